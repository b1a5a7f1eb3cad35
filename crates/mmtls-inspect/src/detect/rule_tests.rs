//! Rules on whole connections: which ones match, in the order in which they do.
//!
//! Each row runs with its input whole, and byte by byte.

use std::io::Write;

use super::*;
use crate::event::Side;
use crate::rules::{Buffer, RuleSet, Variables};
use crate::uninspected::Uninspected::OverCap;
use crate::{AppLayer, MemoryBudget};

pub(super) const CLIENT: Side = Side::Client;
pub(super) const SERVER: Side = Side::Server;

/// Compiles rules, all of which must be active. `R(...)` stands for a whole rule of HTTP.
pub(super) fn matcher(rules: &str) -> Matcher {
    let set = RuleSet::read(rules.as_bytes(), &Variables::suricata());
    assert_eq!(set.skipped, [], "{rules}");
    let (matcher, skipped) = Matcher::new(set, &Datasets::default(), |_| true).unwrap();
    assert_eq!(skipped, []);
    matcher
}

/// What rules say of a connection, whose bytes are cut into chunks of so many.
pub(super) struct Run {
    pub(super) matcher: Matcher,
    shared: Shared,
    budget: MemoryBudget,
    pub(super) scratch: Scratch,
    pub(super) found: Vec<u32>,
    pub(super) over_cap: usize,
    pub(super) gave_up: usize,
    pub(super) now_ns: u64,
}

impl Run {
    pub(super) fn new(rules: &str) -> Self {
        Self {
            matcher: matcher(rules),
            shared: Shared::default(),
            budget: MemoryBudget::default(),
            scratch: Scratch::default(),
            found: Vec::new(),
            over_cap: 0,
            gave_up: 0,
            now_ns: 0,
        }
    }

    pub(super) fn connection(&mut self, parts: &[(Side, &[u8])], chunk: usize) {
        let mut app = AppLayer::new();
        let ends = ["10.0.0.1:40000", "192.0.2.7:443"].map(|text| text.parse().unwrap());
        let mut state = FlowState::new(1, ends[0], ends[1]);
        let Self { found, over_cap, gave_up, .. } = self;
        let mut cx = Context {
            matcher: &self.matcher,
            shared: &self.shared,
            budget: &self.budget,
            scratch: &mut self.scratch,
            now_ns: self.now_ns,
        };
        let mut sink = |detected: Detected<'_>| match detected {
            Detected::Match(it) if it.is_reported => found.push(it.rule.id.sid),
            Detected::Match(_) => {}
            Detected::Uninspected(_, OverCap) => *over_cap += 1,
            Detected::Uninspected(..) => *gave_up += 1,
        };
        for (side, bytes) in parts {
            for piece in bytes.chunks(chunk) {
                state.data(&mut cx, *side, piece, &mut sink);
                app.data(*side, piece, &mut |event| state.event(&mut cx, &event, &mut sink));
            }
        }
        app.close(CLIENT, &mut |event| state.event(&mut cx, &event, &mut sink));
        app.close(SERVER, &mut |event| state.event(&mut cx, &event, &mut sink));
        app.finish(&mut |event| state.event(&mut cx, &event, &mut sink));
    }
}

pub(super) fn found(rules: &str, parts: &[(Side, &[u8])]) -> Vec<u32> {
    let all = [usize::MAX, 1, 7].map(|chunk| {
        let mut run = Run::new(rules);
        run.connection(parts, chunk);
        run.found.sort_unstable();
        run.found
    });
    assert!(all.iter().all(|it| *it == all[0]), "depends on the cut: {all:?}\n{rules}");
    let [whole, ..] = all;
    whole
}

/// Rules of HTTP from their options; the place is the sid.
pub(super) fn http(options: &[&str]) -> String {
    let rule = |(at, it): (usize, &&str)| {
        format!("alert http any any -> any any ({it} sid:{};)\n", at + 1)
    };
    options.iter().enumerate().map(rule).collect()
}

pub(super) const GET: &[u8] = b"GET /a/evil.php?x=1 HTTP/1.1\r\nHost: Example.org\r\nUser-Agent: tool/1\r\nCookie: id=7\r\n\r\n";
const POST: &[u8] = b"POST /form HTTP/1.1\r\nHost: example.org\r\nContent-Type: text/plain\r\nContent-Length: 20\r\n\r\nuser=evil&length=900";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/html\r\nContent-Length: 26\r\n\r\n<html>some EVIL body here>";

#[test]
fn accepts_buffers_of_requests_and_responses() {
    let rules = http(&[
        "http.uri; content:\"/evil.php\";",
        "http.uri; content:\"/other.php\";",
        "http.method; content:\"GET\"; bsize:3; http.user_agent; content:\"tool\"; startswith;",
        "http.method; content:\"POST\"; http.user_agent; content:\"tool\";",
        "http.host; content:\"example.org\"; bsize:11;",
        "http.cookie; content:\"id=\";",
        "http.stat_code; content:\"200\"; http.server; content:\"nginx\";",
        "http.stat_code; content:\"404\";",
        "file.data; content:\"some EVIL\"; content:\"body\"; distance:1; within:5;",
        "http.response_body; content:\"evil\"; nocase;",
        "http.response_body; content:\"evil\";",
        "http.header_names; content:\"|0d 0a|Cookie|0d 0a|\"; flow:to_server;",
        "flow:to_client; http.content_type; content:\"text/html\"; endswith;",
        "http.uri; content:!\"/good\"; http.method; content:\"GET\";",
        "http.uri; content:!\"/a/\"; http.method; content:\"GET\";",
        "http.uri; pcre:\"/evil\\.(php|asp)\\?/\";",
        "urilen:15; http.method; content:\"GET\";",
        "http.request_body; content:\"evil\";",
        "file.data; content:\"EVIL\"; fast_pattern; http.header; content:\"nginx\"; flow:to_client;",
        "file.data; content:\"EVIL\"; fast_pattern; http.header; content:\"apache\"; flow:to_client;",
    ]);
    assert_eq!(
        found(&rules, &[(CLIENT, GET), (SERVER, OK)]),
        [1, 3, 5, 6, 7, 9, 10, 12, 13, 14, 16, 17, 19]
    );
}

#[test]
fn accepts_bodies_of_requests_with_their_heads() {
    let rules = http(&[
        "http.method; content:\"POST\"; http.request_body; content:\"user=\"; startswith; content:\"length=\"; distance:0;",
        "http.method; content:\"GET\"; http.request_body; content:\"user=\";",
        "http.request_body; content:\"user=\"; content:!\"good\";",
        "http.request_body; content:\"user=\"; content:!\"evil\";",
        "http.request_body; content:\"length=\"; byte_test:3,>,800,0,relative,string,dec;",
        "http.request_body; content:\"length=\"; byte_test:3,>,900,0,relative,string,dec;",
        "http.request_body; bsize:20;",
        "http.request_body; bsize:<20;",
        "http.request_body; to_sha256; content:\"x\";",
        "http.request_body; to_lowercase; content:\"user=evil\"; bsize:20;",
        "http.request_body; strip_whitespace; pcre:\"/^user=[a-z]+&/\";",
        "file.data; content:\"user=\"; flow:to_server;",
        "http.request_body; content:\"user=\"; isdataat:14,relative;",
        "http.request_body; content:\"user=\"; isdataat:!16,relative;",
        "http.request_body; content:\"user=\"; isdataat:16,relative;",
    ]);
    let parts: [(Side, &[u8]); 2] = [(CLIENT, POST), (SERVER, b"HTTP/1.1 204 N\r\n\r\n")];
    assert_eq!(found(&rules, &parts), [1, 3, 5, 7, 10, 11, 12, 13, 14]);
}

#[test]
fn accepts_files_of_forms_one_by_one() {
    let part = |name: &str, body: &str| {
        format!("--xyz\r\nContent-Disposition: form-data; name=\"a\"{name}\r\n\r\n{body}\r\n")
    };
    let form = |field: &str| {
        let parts = [
            part("; filename=\"a.txt\"", "first file"),
            part(field, "a field"),
            part("; filename=\"b.txt\"", "second file"),
        ];
        let body = parts.concat() + "--xyz--\r\n";
        let len = body.len();
        format!(
            "POST / HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=xyz\r\n\
             Content-Length: {len}\r\n\r\n{body}"
        )
    };
    let rules = http(&[
        "flow:to_server; file.data; content:\"first\"; startswith;",
        "flow:to_server; file.data; content:\"second file\"; bsize:11;",
        "flow:to_server; file.data; content:\"first\"; content:\"second\";",
        "flow:to_server; file.data; content:\"field\";",
        "http.request_body; content:\"first\"; content:\"second\";",
        "http.method; content:\"POST\"; flow:to_server; file.data; content:\"file\"; endswith;",
    ]);
    let found = |text: &str| found(&rules, &[(CLIENT, text.as_bytes())]);
    assert_eq!(found(&form("")), [1, 2, 5, 6]);
    assert_eq!(found(&form("\r\nContent-Type: text/plain; charset=utf-8")), [1, 2, 5, 6]);
    // A file without a name.
    assert_eq!(found(&form("\r\nContent-Type: application/octet-stream")), [1, 2, 4, 5, 6]);
    // What may be read in two ways is looked into as a whole, too.
    assert_eq!(found(&form("; name=b")), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn accepts_coded_bodies_in_every_reading() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(b"an EVIL page, and more of it").unwrap();
    let body = encoder.finish().unwrap();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let response = [head.as_bytes(), &body].concat();
    let rules = http(&[
        "file.data; content:\"EVIL\";",
        "file.data; content:\"|1f 8b|\"; startswith;",
        "file.data; content:!\"EVIL\"; bsize:>3;",
        "file.data; content:\"EVIL\"; content:!\"good\";",
        "file.data; bsize:28;",
        "file.data; to_md5; content:!\"x\";",
    ]);
    assert_eq!(found(&rules, &[(CLIENT, GET), (SERVER, &response)]), [1, 2, 4, 5, 6]);
}

#[test]
fn accepts_long_bodies_near_and_far() {
    let len = 300_000;
    let mut body = vec![b'.'; len];
    body[100..104].copy_from_slice(b"HEAD");
    body[200_000..200_004].copy_from_slice(b"EVIL");
    body[215_000..215_004].copy_from_slice(b"NEAR");
    body[299_000..299_003].copy_from_slice(b"END");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
    let response = [head.as_bytes(), &body].concat();
    let rules = http(&[
        "file.data; content:\"EVIL\"; content:\"NEAR\"; distance:0;",
        "file.data; content:\"EVIL\"; content:\"NEAR\"; within:100;",
        "file.data; content:\"HEAD\"; depth:104; content:\"..\"; distance:10;",
        "file.data; content:\"EVIL\"; offset:60000;",
        "file.data; content:\"END\"; isdataat:900,relative;",
        "file.data; content:\"HEAD\"; content:!\"EVIL\";",
        "file.data; content:!\"HEAD\";",
    ]);
    let mut run = Run::new(&rules);
    for chunk in [usize::MAX, 1000] {
        run.connection(&[(CLIENT, GET), (SERVER, &response)], chunk);
        run.found.sort_unstable();
        // The sixth looks at the start of the body only, as long as that is at hand.
        assert_eq!(core::mem::take(&mut run.found), [1, 3, 4, 5, 6]);
    }
    assert_eq!(run.over_cap, 0);
}

#[test]
fn accepts_headers_of_rules() {
    let rule = |header: &str, sid: u32| {
        format!("alert {header} (sid:{sid}; http.method; content:\"GET\";)\n")
    };
    let rules: String = [
        ("http any any -> any any", 1),
        ("http 10.0.0.0/8 any -> any 443", 2),
        ("http any any -> any 80", 3),
        ("http 192.0.2.7 443 -> 10.0.0.1 any", 4),
        ("http 192.0.2.7 443 <> 10.0.0.1 any", 5),
        ("http $EXTERNAL_NET any -> any any", 6),
        ("http $HOME_NET any -> $EXTERNAL_NET any", 7),
        ("http1 any any -> any any", 8),
        ("http2 any any -> any any", 9),
        ("tcp any any -> any any", 10),
    ]
    .map(|(header, sid)| rule(header, sid))
    .concat();
    assert_eq!(found(&rules, &[(CLIENT, GET), (SERVER, OK)]), [1, 2, 5, 7, 8, 10]);
}

#[test]
fn accepts_bits_of_the_connection_in_their_order() {
    let rules = http(&[
        "http.stat_code; content:\"200\"; flowbits:isset,seen;",
        "http.uri; content:\"evil\"; flowbits:set,seen; flowbits:noalert;",
        "http.stat_code; content:\"200\"; flowbits:isset,other;",
        "http.stat_code; content:\"200\"; flowbits:isnotset,other;",
        "http.stat_code; content:\"200\"; flowbits:isset,other|seen;",
        "file.data; content:\"EVIL\"; flowbits:unset,seen;",
        "http.stat_code; content:\"200\"; flowbits:isnotset,seen; file.data; content:\"here\"; distance:0;",
        "http.uri; content:\"evil\"; xbits:set,address,track ip_src,expire 10; noalert;",
        "http.stat_code; content:\"200\"; xbits:isset,address,track ip_dst;",
        "http.stat_code; content:\"200\"; xbits:isset,address,track ip_src;",
    ]);
    assert_eq!(found(&rules, &[(CLIENT, GET), (SERVER, OK)]), [1, 4, 5, 6, 7, 9]);
}

#[test]
fn accepts_pass_and_refuses_everything_behind_it() {
    let rules = "alert http any any -> any any (http.uri; content:\"evil\"; sid:1;)\n\
        pass http any any -> any any (http.uri; content:\"evil.php\"; sid:2;)\n\
        alert http any any -> any any (file.data; content:\"EVIL\"; sid:3;)\n";
    assert_eq!(found(rules, &[(CLIENT, GET), (SERVER, OK)]), [0; 0]);
}

#[test]
fn accepts_rules_without_anything_to_look_for() {
    let rules = "alert http any any -> any any (flow:to_server; sid:1;)\n\
        alert http any any -> any any (flow:to_client; sid:2;)\n\
        alert http2 any any -> any any (sid:3;)\n\
        alert tcp any any -> any 443 (flow:established; sid:4;)\n\
        alert tls any any -> any any (sid:5;)\n";
    assert_eq!(
        found(rules, &[(CLIENT, GET), (SERVER, OK), (CLIENT, GET), (SERVER, OK)]),
        [1, 1, 2, 2, 4]
    );
}

#[test]
fn counts_matches() {
    let rules = http(&[
        "http.uri; content:\"evil\"; threshold:type limit,track by_src,count 2,seconds 60;",
        "http.uri; content:\"evil\"; threshold:type threshold,track by_src,count 2,seconds 60;",
        "http.uri; content:\"evil\"; threshold:type both,track by_rule,count 3,seconds 60;",
        "http.uri; content:\"evil\"; detection_filter:track by_dst,count 3,seconds 60;",
        "http.uri; content:\"evil\";",
    ]);
    let five = [(CLIENT, GET), (SERVER, OK)].repeat(5);
    assert_eq!(found(&rules, &five), [1, 1, 2, 2, 3, 4, 4, 5, 5, 5, 5, 5]);
}

#[test]
fn accepts_streams_once_for_each_piece() {
    let rules = "alert tcp any any -> any any (content:\"evil\"; sid:1;)\n\
        alert tcp any any -> any any (flow:to_server; content:\"one\"; content:\"two\"; distance:0; sid:2;)\n\
        alert tcp any any -> any any (content:\"one\"; content:\"two\"; flow:no_stream; sid:3;)\n\
        alert tcp any any -> any any (dsize:5; sid:4;)\n\
        alert tcp any any -> any any (dsize:>5; content:\"evil\"; sid:5;)\n\
        alert tcp-pkt any any -> any any (content:\"on\"; depth:2; sid:6;)\n\
        alert tcp-stream any any -> any any (content:\"one\"; startswith; sid:7;)\n\
        alert tcp any any -> any any (content:\"evil\"; content:!\"good\"; sid:8;)\n";
    let mut run = Run::new(rules);
    let parts: [(Side, &[u8]); 5] = [
        (CLIENT, b"one and"),
        (CLIENT, b" two"),
        (CLIENT, b"so evil"),
        (SERVER, b"ev"),
        (SERVER, b"il..."),
    ];
    run.connection(&parts, usize::MAX);
    assert_eq!(run.found, [6, 7, 2, 1, 5, 8, 4, 1, 8]);
}

/// A path is looked into in several forms; a pass must not hold because of one of them.
#[test]
fn refuses_to_pass_for_one_form_of_a_path() {
    let rules = "pass http any any -> any any (http.uri; content:\"/health\"; startswith; sid:1;)\n\
        alert http any any -> any any (http.uri; content:\"cmd=\"; sid:2;)\n";
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let found_of = |path: &str| found(rules, &[(CLIENT, get(path).as_bytes())]);
    assert_eq!(found_of("/health/../shell?cmd=id"), [2]);
    assert_eq!(found_of("/x/../health?cmd=id"), [2]);
    assert_eq!(found_of("/health?cmd=id"), [0; 0]);
}

#[test]
fn looks_into_forms_as_a_whole_where_servers_may_not_take_them_apart_so() {
    let part = "Content-Disposition: form-data; name=a; filename=b\r\n\r\nEVIL";
    let body = format!("--xyz\r\n{part}\r\n--xyz--\r\n");
    let form = "Content-Type: multipart/form-data; boundary=xyz\r\n";
    let request = |more: &str| {
        format!("POST / HTTP/1.1\r\n{form}{more}Content-Length: {}\r\n\r\n{body}", body.len())
    };
    let rules = http(&[
        "flow:to_server; file.data; content:\"EVIL\";",
        "flow:to_server; file.data; content:\"form-data\";",
    ]);
    let found = |more: &str| found(&rules, &[(CLIENT, request(more).as_bytes())]);
    assert_eq!(found(""), [1]);
    // Few servers undo the coding of a request.
    assert_eq!(found("Content-Encoding: gzip\r\n"), [1, 2]);
    assert_eq!(found("Content-Type: multipart/form-data; boundary=other\r\n"), [1, 2]);
}

#[test]
fn counts_no_work_that_was_not_done_and_nobody_late_who_does_not_wait() {
    let first = [&[b'.'; 4000][..], b"EVIL"].concat();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", first.len() + 200);
    let more = (SERVER, &[b'.'; 100][..]);
    let parts: [(Side, &[u8]); 5] =
        [(CLIENT, GET), (SERVER, head.as_bytes()), (SERVER, &first), more, more];
    let waits = "file.data; content:\"EVIL\"; content:\"none\";";
    // One rule that waits, and very many that are about another port.
    let others = (2..9000).map(|sid| {
        format!("alert http any any -> any 9 (file.data; content:\"EVIL\"; sid:{sid};)\n")
    });
    let rules = http(&[waits]) + &others.collect::<String>();
    // All of them match at once.
    let all = (1..9000).map(|sid| {
        format!("alert http any any -> any any (file.data; content:\"EVIL\"; pcre:\"/E.*L/\"; sid:{sid};)\n")
    });
    for (rules, count) in [(rules, 0), (all.collect(), 8999)] {
        let mut run = Run::new(&rules);
        run.connection(&parts, usize::MAX);
        assert_eq!((run.found.len(), run.over_cap), (count, 0));
    }
}

#[test]
fn accepts_messages_of_websocket() {
    use crate::websocket::tests::frame;
    let ask = b"GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let answer =
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\n\r\n";
    let client = [frame(CLIENT, 1, b"so EV"), frame(CLIENT, 0x80, b"IL")].concat();
    let server =
        [frame(SERVER, 1, b"BA"), frame(SERVER, 0x89, b"x"), frame(SERVER, 0x80, b"D")].concat();
    let parts: [(Side, &[u8]); 4] =
        [(CLIENT, ask), (SERVER, answer), (CLIENT, &client), (SERVER, &server)];
    let rules = "alert tcp any any -> any any (flow:to_server; content:\"EVIL\"; sid:1;)\n\
        alert tcp-stream any any -> any any (flow:to_client; content:\"BAD\"; sid:2;)\n\
        alert tcp any any -> any any (content:\"xD\"; sid:3;)\n";
    assert_eq!(found(rules, &parts), [1, 2]);
}

#[test]
fn accepts_messages_of_websocket_in_http2() {
    use super::evasion_http2_tests::{client, fields, frame as h2, server};
    use crate::websocket::tests::frame;
    let connect = fields(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", "/"),
    ]);
    let ok = fields(&[(":status", "200")]);
    let data = |bytes: &[u8]| h2(0, 0, 1, bytes);
    let (_, ask) = client(&[h2(1, 4, 1, &connect)]);
    let (_, answer) = server(&[h2(1, 4, 1, &ok)]);
    let message = [frame(CLIENT, 1, b"so EV"), frame(CLIENT, 0x80, b"IL")].concat();
    let (start, rest) = message.split_at(9);
    let back = data(&frame(SERVER, 0x81, b"BAD"));
    let (first, second) = (data(start), data(rest));
    let parts: [(Side, &[u8]); 5] =
        [(CLIENT, &ask), (SERVER, &answer), (CLIENT, &first), (CLIENT, &second), (SERVER, &back)];
    let rules = http(&[
        "http.request_body; content:\"EVIL\";",
        "http.response_body; content:\"BAD\";",
        "http.request_body; content:\"GOOD\";",
    ]);
    assert_eq!(found(&rules, &parts), [1, 2]);
    // The server may answer before it learns that its client has reset the stream.
    let reset = h2(3, 0, 1, &[0, 0, 0, 8]);
    let back = data(&[frame(SERVER, 1, b"BA"), frame(SERVER, 0x80, b"D")].concat());
    let parts = [(CLIENT, &ask[..]), (CLIENT, &reset), (SERVER, &answer), (SERVER, &back)];
    assert_eq!(found(&rules, &parts), [2]);
}

#[test]
fn tells_what_rules_cost_where_that_is_asked_for() {
    let rules = http(&[
        "http.uri; content:\"evil\";",
        "http.uri; content:\"evil\"; content:\"x=2\";",
        "http.uri; content:\"none\";",
    ]);
    let mut run = Run::new(&rules);
    run.connection(&[(CLIENT, GET)], usize::MAX);
    assert_eq!(run.matcher.profile().count(), 0);
    run.matcher.count_costs();
    run.connection(&[(CLIENT, GET), (SERVER, OK), (CLIENT, GET), (SERVER, OK)], usize::MAX);
    let profile: Vec<_> =
        run.matcher.profile().map(|it| (it.rule.id.sid, it.checks, it.matches)).collect();
    assert_eq!(profile, [(1, 2, 2), (2, 2, 0)]);
}

#[test]
fn shows_what_the_caller_cannot() {
    let set = RuleSet::read(
        b"alert tls any any -> any any (ja3.hash; content:\"0\"; sid:1;)\n\
        alert http any any -> any any (http.uri; pcre:\"/(/\"; sid:2;)\n\
        alert http any any -> any any (http2.frametype:GOAWAY; content:\"x\"; sid:3;)\n\
        alert http any any -> any any (http.uri; dataset:isset,none,type string; sid:4;)\n\
        alert tls any any -> any any (tls.sni; content:\"x\"; sid:5;)\n",
        &Variables::suricata(),
    );
    let (matcher, skipped) =
        Matcher::new(set, &Datasets::default(), |buffer| buffer != Buffer::Ja3Hash).unwrap();
    assert_eq!(matcher.len(), 1);
    let causes: Vec<String> = skipped.iter().map(|it| it.cause.to_string()).collect();
    assert!(
        causes[0].contains("ja3.hash") && causes[1].contains("regular expression"),
        "{causes:?}"
    );
    assert!(causes[2].contains("http2") && causes[3].contains("no dataset none"), "{causes:?}");
}

struct Hello(Option<u16>);

impl Facts for Hello {
    fn version(&self) -> Option<u16> {
        self.0
    }

    fn each(&self, buffer: Buffer, show: &mut dyn FnMut(&[u8])) {
        match buffer {
            Buffer::TlsSni => show(b"bad.example.org"),
            Buffer::TlsAlpn => [&b"h2"[..], b"http/1.1"].iter().for_each(|it| show(it)),
            Buffer::Ja3Hash | Buffer::Ja3sHash => show(b"0123456789abcdef0123456789abcdef"),
            Buffer::Ja3String => show(b"771,4865-4866,0-43,29,0"),
            Buffer::Ja3sString => show(b"771,4865,43"),
            Buffer::Ja4Hash => show(b"t13d0202h2_0123456789ab_cdef01234567"),
            _ => {}
        }
    }
}

#[test]
fn accepts_handshakes() {
    let rules = "alert tls any any -> any any (tls.sni; content:\"example.org\"; endswith; sid:1;)\n\
        alert tls any any -> any any (tls.sni; dotprefix; content:\".bad.\"; startswith; sid:2;)\n\
        alert tls any any -> any any (tls.sni; content:\"bad\"; tls.version:1.3; sid:3;)\n\
        alert tls any any -> any any (tls.sni; content:\"bad\"; tls.version:1.2; sid:4;)\n\
        alert tls any any -> any any (tls.version:!1.2; flow:to_client; sid:5;)\n\
        alert tls any any -> any any (flow:to_server; tls.alpn; content:\"http/1.1\"; sid:6;)\n\
        alert http any any -> any any (http.uri; content:\"x\"; sid:7;)\n\
        alert tls any any -> any any (tls.cert_subject; content:!\"x\"; sid:8;)\n\
        drop tls any any -> any any (tls.sni; content:\"bad\"; sid:9;)\n";
    let matcher = matcher(rules);
    let ends = ["10.0.0.1:40000", "192.0.2.7:443"].map(|text| text.parse().unwrap());
    let mut state = FlowState::new(1, ends[0], ends[1]);
    let mut found = Vec::new();
    let mut sink = |it: Detected<'_>| {
        if let Detected::Match(it) = it {
            found.push((it.rule.id.sid, it.side));
        }
    };
    let mut cx = Context {
        matcher: &matcher,
        shared: &Shared::default(),
        budget: &MemoryBudget::default(),
        scratch: &mut Scratch::default(),
        now_ns: 0,
    };
    state.handshake(&mut cx, CLIENT, &Hello(None), false, &mut sink);
    state.handshake(&mut cx, CLIENT, &Hello(Some(0x0304)), true, &mut sink);
    state.handshake(&mut cx, SERVER, &Hello(Some(0x0304)), true, &mut sink);
    let expected = [(9, CLIENT), (1, CLIENT), (2, CLIENT), (6, CLIENT), (3, CLIENT), (5, SERVER)];
    assert_eq!(found, expected);
}

#[test]
fn accepts_fingerprints_where_they_are_told() {
    let rules = "alert tls any any -> any any (ja3.hash; content:\"0123456789ABCDEF0123456789ABCDEF\"; sid:1;)\n\
        alert tls any any -> any any (ja3_string; content:\"-4866,\"; pcre:\"/^771,/\"; sid:2;)\n\
        alert tls any any -> any any (ja3s.hash; content:!\"0123456789abcdef0123456789abcde0\"; sid:3;)\n\
        alert tls any any -> any any (ja3s.string; content:\"771,4865,43\"; bsize:11; sid:4;)\n\
        alert tls any any -> any any (ja4_hash; content:\"t13d\"; startswith; tls.version:1.3; sid:5;)\n\
        alert tls any any -> any any (ja4.hash; content:\"T13d\"; sid:6;)\n\
        alert tls any any -> any any (flow:to_server; ja3.string; content:\"x\"; sid:7;)\n\
        alert tcp any any -> any any (ja3.string; content:\"771\"; tls.sni; content:\"bad\"; sid:8;)\n";
    let matcher = matcher(rules);
    let ends = ["10.0.0.1:40000", "192.0.2.7:443"].map(|text| text.parse().unwrap());
    let mut state = FlowState::new(1, ends[0], ends[1]);
    let mut found = Vec::new();
    let mut cx = Context {
        matcher: &matcher,
        shared: &Shared::default(),
        budget: &MemoryBudget::default(),
        scratch: &mut Scratch::default(),
        now_ns: 0,
    };
    for (side, version) in [(CLIENT, None), (CLIENT, Some(0x0304)), (SERVER, Some(0x0304))] {
        state.handshake(&mut cx, side, &Hello(version), false, &mut |it| {
            if let Detected::Match(it) = it {
                found.push((it.rule.id.sid, it.side, version.is_some()));
            }
        });
    }
    let expected = [
        (1, CLIENT, false),
        (2, CLIENT, false),
        (8, CLIENT, false),
        (5, CLIENT, true),
        (3, SERVER, true),
        (4, SERVER, true),
    ];
    assert_eq!(found, expected);
}

#[test]
fn refuses_memory_beyond_the_budget_and_says_so() {
    let mut run = Run::new(&http(&["file.data; content:\"EVIL\"; content:\"body\";"]));
    run.budget = MemoryBudget::new(600);
    run.connection(&[(CLIENT, GET), (SERVER, OK)], usize::MAX);
    assert_eq!((run.found.len(), run.over_cap), (1, 0));
    run.budget = MemoryBudget::new(300);
    run.connection(&[(CLIENT, GET), (SERVER, OK)], usize::MAX);
    assert_eq!((run.found.len(), run.over_cap), (1, 1));
}

/// How often rules were applied, and how many caps were told.
fn checks(rules: &str, parts: &[(Side, &[u8])], chunk: usize) -> (u64, usize) {
    let mut run = Run::new(rules);
    run.matcher.count_costs();
    run.connection(parts, chunk);
    assert_eq!(run.found, []);
    (run.matcher.profile().map(|it| it.checks).sum(), run.over_cap)
}

#[test]
fn bounds_how_often_a_pattern_in_every_chunk_has_rules_applied() {
    let endless = b"EVIL".repeat(10_000);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", endless.len());
    let parts: [(Side, &[u8]); 3] = [(CLIENT, GET), (SERVER, head.as_bytes()), (SERVER, &endless)];
    let one = http(&["file.data; content:\"EVIL\"; content:\"none\";"]);
    let many = |options: &str, protocol: &str| -> String {
        let rule = |sid| format!("alert {protocol} any any -> any any ({options} sid:{sid};)\n");
        (1..=200).map(rule).collect()
    };
    assert!(checks(&one, &parts, 4).0 > 1000, "few rules are applied each time");
    for rules in [
        many("file.data; content:\"EVIL\"; content:\"none\";", "http"),
        many("flow:to_client; content:\"EVIL\"; content:\"none\";", "tcp-stream"),
    ] {
        let (checks, over_cap) = checks(&rules, &parts, 4);
        assert!(checks < 100_000 && over_cap == 1, "{checks} {over_cap}");
    }
}

#[test]
fn bounds_how_often_files_of_a_form_have_rules_applied() {
    let file = "--x\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\nEVIL\r\n";
    let body = file.repeat(5000) + "--x--\r\n";
    let head = format!(
        "POST / HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let rules: String = (1..=100)
        .map(|sid| {
            let buffer = if sid % 2 == 0 { "file.data" } else { "http.request_body" };
            format!(
                "alert http any any -> any any (flow:to_server; {buffer}; content:\"EVIL\"; \
                 content:\"none\"; sid:{sid};)\n"
            )
        })
        .collect();
    let (checks, over_cap) =
        checks(&rules, &[(CLIENT, head.as_bytes()), (CLIENT, body.as_bytes())], 1000);
    assert!(checks < 100_000 && over_cap == 1, "{checks} {over_cap}");
}

#[test]
fn bounds_the_work_of_rules_that_wait() {
    // Each byte makes all of them look at everything again.
    let rules: Vec<String> = (0..200)
        .map(|it| format!("file.data; content:\"EVIL\"; pcre:\"/x{it}[^y]*z{it}/R\";"))
        .collect();
    let rules = http(&rules.iter().map(String::as_str).collect::<Vec<_>>());
    let body = [&b"EVIL"[..], &[b'a'; 40_000]].concat();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let mut run = Run::new(&rules);
    let response = [head.as_bytes(), &body].concat();
    run.connection(&[(CLIENT, GET), (SERVER, &response)], 1);
    assert_eq!((run.found.len(), run.over_cap), (0, 1));
}

#[test]
fn accepts_bits_of_what_came_before_tls() {
    let rules = "\
        alert tcp any any -> any any (content:\"STARTTLS\"; flowbits:set,asked; noalert; sid:1;)\n\
        alert tls any any -> any any (tls.sni; content:\"bad\"; flowbits:isset,asked; sid:2;)\n\
        alert tls any any -> any any (tls.version:1.3; flowbits:unset,asked; sid:3;)\n\
        alert http any any -> any any (http.uri; content:\"/a\"; flowbits:isset,asked; sid:4;)\n\
        alert http any any -> any any (http.uri; content:\"/a\"; flowbits:isset,late; sid:5;)\n\
        alert tcp any any -> any any (content:\"go\"; flowbits:set,late; noalert; sid:6;)\n\
        pass tcp any any -> any any (content:\"PASS\"; sid:7;)\n";
    let own = matcher(rules);
    // The same rules in another order, as they may be after a reload: bits have other numbers.
    let others: Vec<&str> = rules.lines().rev().collect();
    let others = matcher(&others.join("\n"));
    let ends = ["10.0.0.1:40000", "192.0.2.7:25"].map(|text| text.parse().unwrap());
    for before_by in [&own, &others] {
        let run = |clear: &[&str], unsets: bool| {
            let (shared, budget) = (Shared::default(), MemoryBudget::default());
            let (mut before, mut state) =
                (FlowState::new(1, ends[0], ends[1]), FlowState::new(1, ends[0], ends[1]));
            let mut found = Vec::new();
            for text in clear {
                let mut cx = Context {
                    matcher: before_by,
                    shared: &shared,
                    budget: &budget,
                    scratch: &mut Scratch::default(),
                    now_ns: 0,
                };
                before.data(&mut cx, CLIENT, text.as_bytes(), &mut |_| {});
                // More than once, since more may be said.
                for _ in 0..2 {
                    state.inherit(&own, &before, before_by);
                }
                cx.matcher = &own;
                let mut sink = |detected: Detected<'_>| match detected {
                    Detected::Match(it) => found.push(it.rule.id.sid),
                    Detected::Uninspected(..) => {}
                };
                let version = unsets.then_some(0x0304);
                state.handshake(&mut cx, CLIENT, &Hello(version), false, &mut sink);
                state.inherit(&own, &before, before_by);
                if *text == clear[clear.len() - 1] {
                    let mut app = AppLayer::new();
                    let get = b"GET /a HTTP/1.1\r\n\r\n";
                    app.data(CLIENT, get, &mut |event| state.event(&mut cx, &event, &mut sink));
                }
            }
            found
        };
        assert_eq!(run(&["EHLO"], false), []);
        assert_eq!(run(&["STARTTLS"], false), [2, 4]);
        // What TLS unsets stays unset. Who unsets comes first.
        assert_eq!(run(&["STARTTLS"], true), [3]);
        assert_eq!(run(&["STARTTLS", "go"], true), [3, 5]);
        assert_eq!(run(&["PASS"], true), []);
    }
}
