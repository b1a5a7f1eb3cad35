//! Tests of the observer on plain strings.

use proptest::prelude::*;

use super::{BodyLeft, Http1};
use crate::event::{Event, Side};
use crate::protocol::AppProto;
use crate::transaction::Version;

/// Events as text, neighbouring body pieces joined: what must not depend on chunking.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn add(&mut self, event: Event<'_>) {
        let body = |name: &str, bytes: &[u8], log: &mut Vec<String>| {
            assert!(!bytes.is_empty());
            let text: String = bytes.iter().map(|&b| b as char).collect();
            match log.last_mut() {
                Some(last) if last.starts_with(name) => last.push_str(&text),
                _ => log.push(format!("{name}{text}")),
            }
        };
        match event {
            Event::Body(it) if it.side == Side::Client => body("> ", it.bytes, &mut self.0),
            Event::Body(it) => body("< ", it.bytes, &mut self.0),
            Event::RequestHead { method, target, .. } => {
                self.0.push(format!("{method} {target}"));
            }
            Event::Interim(it, status, _) => {
                let unasked = if it.is_none() { " unasked" } else { "" };
                self.0.push(format!("{status} interim{unasked}"));
            }
            Event::ResponseHead(it, _) => {
                let response = it.response.as_ref().unwrap();
                let unasked = if response.solicited { "" } else { " unasked" };
                self.0.push(format!("{}{unasked}", response.status));
            }
            Event::RequestEnd(_) => self.0.push("end >".into()),
            Event::ResponseEnd(_) => self.0.push("end <".into()),
            Event::Upgraded(_) => self.0.push("upgraded".into()),
            Event::Protocol(AppProto::Http) | Event::Complete(_) | Event::Data(..) => {}
            Event::Protocol(it) => {
                self.0.push(format!("not http, http2 {}", it == AppProto::Http2));
            }
            Event::Anomaly(side, anomaly) => self.0.push(format!("{side:?} {anomaly}")),
            Event::Frame(_) => {}
            Event::Trailers(side, _, fields) => {
                let text = fields.http1_head().unwrap();
                self.0.push(format!("{side:?} trailers {}", text.escape_ascii()));
            }
            Event::BodyLimit(side) => self.0.push(format!("{side:?} limit")),
            Event::ResetOver(it) => panic!("{it:?}"),
        }
    }
}

fn run(parts: &[(Side, &[u8])]) -> Vec<String> {
    let mut http = Http1::new();
    let mut log = Log::default();
    for (side, bytes) in parts {
        http.data(*side, bytes, &mut |event| log.add(event));
    }
    for side in [Side::Client, Side::Server] {
        http.close(side, &mut |event| log.add(event));
    }
    log.0
}

/// Runs whole and byte by byte, which must agree, and returns the events.
fn observe(parts: &[(Side, &str)]) -> Vec<String> {
    let whole: Vec<_> = parts.iter().map(|(s, t)| (*s, t.as_bytes())).collect();
    let bytes: Vec<_> =
        whole.iter().flat_map(|(side, text)| text.chunks(1).map(|byte| (*side, byte))).collect();
    let events = run(&whole);
    assert_eq!(events, run(&bytes));
    events
}

fn exchange(request: &str, response: &str) -> Vec<String> {
    observe(&[(Side::Client, request), (Side::Server, response)])
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

#[test]
fn accepts_an_ordinary_exchange() {
    let request = "\r\nPOST /a?b HTTP/1.1\r\nHost: example.org\r\nUser-Agent: curl/8\r\n\
                   Content-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc";
    let response = "HTTP/1.1 201 Created\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\
                    Content-Encoding: gzip\r\n\r\nhello";
    assert_eq!(
        exchange(request, response),
        ["POST /a?b", "> abc", "end >", "201", "< hello", "end <"]
    );
    let mut http = Http1::new();
    let mut seen = 0;
    http.data(Side::Client, request.as_bytes(), &mut |event| {
        if let Event::RequestHead { transaction, fields, .. } = event {
            let head = transaction.request.as_ref().unwrap();
            assert_eq!(head.version, Version::Http11);
            assert_eq!(head.host.as_deref(), Some("example.org"));
            assert_eq!(head.user_agent.as_deref(), Some("curl/8"));
            assert_eq!(head.content_type.as_deref(), Some("text/plain"));
            assert_eq!(head.content_length, Some(3));
            assert_eq!(fields.iter().nth(1), Some((&b"User-Agent"[..], &b"curl/8"[..])));
            seen += 1;
        }
    });
    http.data(Side::Server, response.as_bytes(), &mut |event| {
        if let Event::ResponseHead(transaction, _) = event {
            let head = transaction.response.as_ref().unwrap();
            assert_eq!(&*head.reason, "Created");
            assert_eq!(head.content_encoding.as_deref(), Some("gzip"));
            assert_eq!(head.content_length, Some(5));
            seen += 1;
        }
    });
    assert_eq!(seen, 2);
}

#[test]
fn accepts_chunked_bodies_with_extensions_and_trailers() {
    let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n\
                    4;x=\"y\"\r\nWiki\r\n0A \r\n0123456789\r\n000\r\nTrailer: t\r\n\r\n\
                    HTTP/1.1 204 No\r\n\r\n";
    assert_eq!(
        exchange(&GET.repeat(2), response),
        [
            "GET /a",
            "end >",
            "GET /a",
            "end >",
            "Server http_unknown_coding",
            "200",
            "< Wiki0123456789",
            "Server trailers Trailer: t\\r\\n\\r\\n",
            "end <",
            "204",
            "end <"
        ]
    );
}

#[test]
fn accepts_bodies_until_close_and_old_versions() {
    assert_eq!(
        exchange(GET, "HTTP/1.0 200 OK\n\nall\r\n\r\nof it"),
        ["GET /a", "end >", "200", "< all\r\n\r\nof it", "end <"]
    );
}

#[test]
fn accepts_responses_without_a_body() {
    let requests = "HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nGET /c HTTP/1.1\r\n\r\n";
    let responses = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\
                     HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n\
                     HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n\
                     HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx\
                     HTTP/1.1 408 Late\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        exchange(requests, responses)[6..],
        [
            "200",
            "end <",
            "304",
            "end <",
            "100 interim",
            "103 interim",
            "200",
            "< x",
            "end <",
            "408 unasked",
            "end <"
        ]
    );
}

#[test]
fn accepts_connect_and_upgrades_as_opaque() {
    let connect = "CONNECT h:1 HTTP/1.1\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(
        observe(&[
            (Side::Client, connect),
            (Side::Server, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nxxGET"),
            (Side::Client, "GET / HTTP/1.1\r\n\r\n"),
        ]),
        ["CONNECT h:1", "end >", "200", "end <", "upgraded"]
    );
    assert_eq!(
        observe(&[
            (Side::Client, connect),
            (Side::Server, "HTTP/1.1 407 No\r\nContent-Length: 1\r\n\r\nx"),
            (Side::Client, GET),
        ]),
        ["CONNECT h:1", "end >", "407", "< x", "end <", "GET /a", "end >"]
    );
    assert_eq!(
        observe(&[
            (Side::Client, "GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"),
            (Side::Server, "HTTP/1.1 101 Switching\r\n\r\n\x01\x02"),
            (Side::Client, "\x03\x04"),
        ]),
        ["GET /ws", "end >", "101", "end <", "upgraded"]
    );
}

#[test]
fn refuses_upgrades_that_nobody_asked_for() {
    // curl and wget deliver the body.
    assert_eq!(
        exchange(GET, "HTTP/1.1 101 Switching\r\n\r\nbody")[2..],
        [
            "101",
            "Server http_unexpected_upgrade",
            "Server http_conflicting_lengths",
            "< body",
            "end <"
        ]
    );
    let chunked =
        "HTTP/1.1 101 S\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n";
    assert_eq!(
        exchange(GET, chunked)[2..],
        [
            "101",
            "Server http_unexpected_upgrade",
            "Server http_conflicting_lengths",
            "< ab",
            "end <"
        ]
    );
}

#[test]
fn refuses_codings_that_clients_decode_all_the_same() {
    let body = "1\r\nE\r\n3\r\nVIL\r\n0\r\n\r\n";
    for (head, anomaly) in [
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "http_coding_in_http10"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n", "http_unknown_coding"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
            "http_unknown_coding",
        ),
    ] {
        let events = exchange(GET, &format!("{head}{body}"));
        assert_eq!(events[2..], [&format!("Server {anomaly}"), "200", "< EVIL", "end <"], "{head}");
        // What is not that coding is shown as it is.
        let events = exchange(GET, &format!("{head}So EVIL"));
        assert!(events.contains(&"< So EVIL".to_owned()), "{events:?}");
    }
    assert_eq!(
        exchange(GET, "HTTP/1.1 200 OK\r\nTransfer-Encoding: x\r\n\r\nEVIL")[2..],
        ["Server http_unknown_coding", "200", "< EVIL", "end <"]
    );
    // Lines that are no fields, and a blank before the colon, do not hide the coding.
    let odd = "HTTP/1.1 200 OK\r\nbad line\r\nTransfer-Encoding : chunked\r\n\r\n";
    let events = exchange(GET, &format!("{odd}{body}"));
    assert_eq!(events[2..], ["Server http_control_in_head", "200", "< EVIL", "end <"]);
}

/// Frameworks take the length away, browsers expect no body.
#[test]
fn accepts_a_205_without_a_length_between_others() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n";
    let events = observe(&[
        (Side::Client, GET),
        (Side::Server, "HTTP/1.1 205 R\r\n\r\n"),
        (Side::Client, GET),
        (Side::Server, &format!("{ok}x")),
    ]);
    let first = ["GET /a", "end >", "205", "end <"];
    assert_eq!(events, [&first[..], &["GET /a", "end >", "200", "< x", "end <"]].concat());
}

/// Who asked for it is not known where bytes are missing.
#[test]
fn accepts_an_upgrade_behind_a_gap() {
    let mut http = Http1::new();
    let mut anomalies = Vec::new();
    let mut note = |event: Event<'_>| {
        if let Event::Anomaly(_, anomaly) = event {
            anomalies.push(anomaly.name());
        }
    };
    http.data(Side::Client, GET.as_bytes(), &mut note);
    http.gap(Side::Client, &mut note);
    http.data(Side::Server, b"HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\n\x81\x01a", &mut note);
    assert_eq!(anomalies, ["http_gap", "http_unexpected_upgrade"]);
}

#[test]
fn refuses_to_let_the_server_decide_what_the_protocol_is() {
    let early = observe(&[(Side::Server, "EVIL"), (Side::Client, GET), (Side::Server, "more")]);
    assert_eq!(early, ["Server http_bad_head", "< EVIL", "GET /a", "end >", "< more", "end <"]);
    let other = observe(&[(Side::Server, "220 smtp\r\n"), (Side::Client, "\x01")]);
    assert_eq!(other, ["Server http_bad_head", "< 220 smtp\r\n", "not http, http2 false"]);
}

#[test]
fn refuses_bytes_behind_a_refused_connect() {
    let events = observe(&[
        (Side::Client, "CONNECT h:1 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
        (Side::Server, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"),
    ]);
    assert_eq!(events, ["CONNECT h:1", "end >", "403", "Client http_bytes_after_connect", "end <"]);
}

#[test]
fn refuses_other_protocols_early() {
    assert_eq!(observe(&[(Side::Client, "\x16\x03\x01")]), ["not http, http2 false"]);
    assert_eq!(
        exchange("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\0\0\x12\x04"),
        ["not http, http2 true"]
    );
    let mut http = Http1::new();
    http.data(Side::Client, b"\x16", &mut |_| {});
    assert!(http.is_opaque());
}

/// Node hands these to the application.
#[test]
fn refuses_requests_of_other_versions_as_bad_heads() {
    let old = "POST /evil HTTP/0.9\r\n";
    let fields = "Host: h\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(
        exchange(&format!("{old}{fields}"), "")[..2],
        ["Client http_bad_head", &format!("> {old}{fields}")]
    );
    // It may be answered before it ends.
    assert_eq!(exchange(old, "")[..2], ["Client http_bad_head", &format!("> {old}")]);
    let new = "POST /evil HTTP/2.0\r\n";
    assert_eq!(
        exchange(&format!("{new}{fields}"), "")[..2],
        ["Client http_bad_head", &format!("> {new}{fields}")]
    );
    for line in ["PRI * HTTP/2.0\r\n\r\n", "GET /evil HTTP/3.0\r\n\r\n", "SETUP / RTSP/1.0\r\n\r\n"]
    {
        let events = exchange(line, "");
        assert!(events[0].starts_with("not http"), "{line} {events:?}");
    }
}

/// A client whose request crosses it takes the response for the answer.
#[test]
fn refuses_responses_ahead_of_requests_whose_answer_has_no_content() {
    let first = (Side::Client, GET);
    let answer = (Side::Server, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let early = (Side::Server, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHTTP/1.1 ");
    let fault = "Server http_conflicting_lengths".to_owned();
    for (request, expected) in [
        ("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n", true),
        ("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", true),
        (GET, false),
    ] {
        let asked = (Side::Client, request);
        let within = (Side::Server, &early.1[..early.1.len() - 4]);
        assert_eq!(observe(&[first, answer, early, asked]).contains(&fault), expected);
        assert_eq!(observe(&[first, answer, within, asked]).contains(&fault), expected);
        assert_eq!(
            observe(&[first, answer, early, first, answer, asked]).contains(&fault),
            expected
        );
        // In their order there is nothing to be mistaken.
        assert!(!observe(&[first, answer, asked, answer, asked]).contains(&fault));
    }
    // An idle connection is closed.
    let timeout =
        "HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
    let closed = [first, answer, (Side::Server, timeout)];
    assert!(!observe(&closed).contains(&fault));
    // A request that crosses with that finds a connection that ends.
    let crossing = (Side::Client, "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(observe(&[&closed[..], &[crossing]].concat()).contains(&fault));
}

#[test]
fn refuses_conflicting_lengths_and_keeps_showing_the_body() {
    let smuggled = "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd";
    assert_eq!(
        observe(&[(Side::Client, smuggled)]),
        ["Client http_conflicting_lengths", "POST /", "> abcd", "end >"]
    );
    assert_eq!(
        exchange(GET, "HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc")[2..],
        ["Server http_bad_length", "200", "< abc", "end <"]
    );
    assert_eq!(
        exchange(GET, "HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\nContent-Length: 3\r\n\r\nabc")
            [2..],
        ["200", "< abc", "end <"]
    );
    let huge = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nabc";
    assert_eq!(exchange(GET, huge)[2..], ["Server http_bad_length", "200", "< abc", "end <"]);
}

#[test]
fn refuses_a_length_beside_a_coding() {
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n\
                    1\r\nx\r\n0\r\n\r\n";
    assert_eq!(
        exchange(GET, response)[2..],
        ["Server http_length_and_coding", "200", "< x", "end <"]
    );
    assert_eq!(
        exchange(GET, "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx")[2..],
        ["Server http_coding_in_http10", "200", "< x", "Server http_truncated"]
    );
    assert_eq!(
        observe(&[(Side::Client, "POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nx")]),
        ["Client http_unknown_coding", "POST /", "> x", "end >"]
    );
}

#[test]
fn refuses_bad_chunks_and_shows_the_rest() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (body, events) in [
        ("1\r\nxy\r\n", &["< x", "Server http_bad_chunk", "< y\r\n", "end <"][..]),
        ("zz", &["Server http_bad_chunk", "< zz", "end <"]),
        (
            "\r\n\t1\r\na\r\n 0\r\n\r\n",
            &["Server http_bad_chunk_size", "Server http_bare_line_feed", "< a", "end <"],
        ),
        ("11112222333344445", &["Server http_bad_chunk", "< 5", "end <"]),
        ("1\nx\r\n0\n\n", &["Server http_bare_line_feed", "< x", "end <"]),
        ("3\r\nab", &["< ab", "Server http_truncated"]),
        // curl looks at digits only.
        ("1x\r\na\r\n0\r\n\r\n", &["Server http_bad_chunk_size", "< a", "end <"]),
        ("1\r\r\na\r\n0\r\n\r\n", &["Server http_bad_chunk_size", "< a", "end <"]),
        ("0x1\r\n\r\n", &["Server http_bad_chunk_size", "end <"]),
        (
            "1x\na\r\n0\r\n\r\n",
            &["Server http_bad_chunk_size", "Server http_bare_line_feed", "< a", "end <"],
        ),
        // Python drops two bytes here.
        ("1\r\na\n0\r\n\r\n", &["< a", "Server http_bad_chunk_end", "end <"]),
    ] {
        assert_eq!(exchange(GET, &format!("{head}{body}"))[3..], *events, "{body:?}");
    }
    let long = format!("{head}1;{}\r\na\r\n0\r\n\r\n", "e".repeat(50_000));
    assert_eq!(exchange(GET, &long)[3..], ["< a", "end <"]);
    let trailer = format!("{head}0\r\n{}\r\n", "a: b\r\n".repeat(4000));
    let log = exchange(GET, &trailer);
    assert!(log[3].starts_with("Server trailers a: b") && log[3].ends_with("\\n\\r\\n"));
    assert_eq!(log[4..], ["end <"]);
    // Longer ones are told, and do not lose the framing; what never ends is shown in the end.
    let trailer = format!("{head}0\r\n{}\r\n", "a: b\r\n".repeat(6000));
    let log = exchange(GET, &trailer);
    assert_eq!((&log[3][..], &log[5..]), ("Server http_head_too_large", &["end <".to_owned()][..]));
    let log = exchange(GET, &format!("{head}0\r\nEVIL: 1\r\n"));
    assert_eq!(log[3..], ["Server trailers EVIL: 1\\r\\n", "Server http_truncated"]);
    let log = exchange(GET, &format!("{head}0\r\nEVIL: 1\r2\r\n"));
    assert_eq!(log[3..5], ["Server trailers EVIL: 1\\r", "Server http_bad_chunk"]);
}

/// curl and wget take some control bytes for spaces; a parser would pass over the field.
#[test]
fn refuses_control_bytes_that_hide_a_coding() {
    for value in ["chunked\x0b", "\x0cchunked", "chunked\r"] {
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {value}\r\n\r\n");
        assert_eq!(
            exchange(GET, &format!("{head}2\r\nse\r\n4\r\ncret\r\n0\r\n\r\n"))[2..],
            ["Server http_control_in_head", "200", "< secret", "end <"],
            "{value:?}"
        );
    }
    // A parser passes over this field, curl reads its number.
    assert_eq!(
        exchange(GET, "HTTP/1.1 200 OK\r\nContent-Length: 5\x7f\r\n\r\nhello")[2..],
        ["Server http_control_in_head", "200", "< hello", "end <"]
    );
}

#[test]
fn refuses_bad_and_oversized_heads() {
    assert_eq!(
        exchange(GET, "HTTP/1.1 2x0 OK\r\n\r\nsecret")[2..],
        ["Server http_bad_head", "< HTTP/1.1 2x0 OK\r\n\r\n", "0", "< secret", "end <"]
    );
    let huge = format!("{GET}GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(70_000));
    let events = observe(&[(Side::Client, &huge)]);
    assert_eq!(events[2], "Client http_head_too_large");
    assert_eq!(events[3].len(), 2 + huge.len() - GET.len());
    let fits = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(65_536 - 23));
    assert_eq!(fits.len(), 65_536);
    assert_eq!(observe(&[(Side::Client, &fits)]), ["GET /", "end >"]);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(200));
    let events = observe(&[(Side::Client, &many)]);
    assert_eq!(events[0], "Client http_bad_head");
    assert_eq!(events[1].len(), 2 + many.len());
    // The responses are followed all the same.
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let events = observe(&[(Side::Client, &many), (Side::Server, response)]);
    assert_eq!(events[2..], ["GET /", "200", "< ok", "end <", "end >"]);
}

/// Who takes such a head gets the body that follows; who does not gets all of it.
#[test]
fn refuses_heads_for_lenient_receivers_and_shows_both_readings() {
    for line in ["HTTP/1.2 200 ok", "http/1.1 200 ok", "HTTP/2.0 200 ok", "HTTP/1.10 200 ok"] {
        let shown = format!("< {line}\r\nA: b\r\n\r\n");
        assert_eq!(
            exchange(GET, &format!("{line}\r\nA: b\r\n\r\nbody"))[2..],
            ["Server http_bad_head", &shown, "200", "< body", "end <"]
        );
    }
    let blank = " \t\0\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(exchange(GET, blank)[4..], ["200", "< x", "end <"]);
    let spaces = "POST  /a b  HTTP/1.1\r\n\r\n";
    assert_eq!(
        exchange(&format!("{spaces}data"), "HTTP/1.1 204 No\r\n\r\n"),
        [
            "Client http_bad_head",
            "> POST  /a b  HTTP/1.1\r\n\r\n",
            "POST /a b",
            "> data",
            "204",
            "end <",
            "end >"
        ]
    );
    // A tunnel is no matter of taste.
    assert_eq!(
        exchange("CONNECT  a:1 HTTP/1.1\r\n\r\nx", "")[..2],
        ["Client http_bad_head", "> CONNECT  a:1 HTTP/1.1\r\n\r\nx"]
    );
    // White space is no head yet.
    assert_eq!(exchange(GET, " \t")[2..], ["Server http_truncated", "<  \t", "end <"]);
    // Nobody was asked.
    assert_eq!(
        observe(&[(Side::Server, "HTTP/1.2 200 ok\r\n\r\n")]),
        ["Server http_bad_head", "< HTTP/1.2 200 ok\r\n\r\n", "end <"]
    );
}

/// To some clients LF CR is a line end, and a line of blanks an empty one.
#[test]
fn refuses_heads_whose_end_is_a_matter_of_taste() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 1";
    assert_eq!(exchange(GET, &format!("{head}\n\r\r\nx")).last().unwrap(), "end <");
    for end in ["\n\r\r\n\n", "\n\r\r\n\r\n", "\r\n\r\r\nA: b\r\n\r\n"] {
        let events = exchange(GET, &format!("{head}{end}x"));
        assert!(events.contains(&"200".to_owned()), "{end:?} {events:?}");
        assert!(events.iter().any(|it| it == "< x"), "{end:?} {events:?}");
    }
    // A CR behind it, whose place is not known before the next byte, is the body's.
    let events = exchange(GET, &format!("{head}\n\r\r\n\rx"));
    assert!(events.contains(&"< \rx".to_owned()), "{events:?}");
    assert_eq!(
        exchange(GET, &format!("{head}\n \nbody"))[2..],
        [
            "Server http_truncated",
            "Server http_bad_head",
            "< HTTP/1.1 200 OK\r\nContent-Length: 1\n \n",
            "200",
            "< body",
            "end <"
        ]
    );
}

/// `fetch` lets a page choose any method.
#[test]
fn accepts_methods_of_any_length() {
    let method = "M".repeat(5000);
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    assert_eq!(
        exchange(&format!("{method} / HTTP/1.1\r\n\r\n"), response),
        [&format!("{method} /"), "end >", "200", "< ok", "end <"]
    );
}

#[test]
fn accepts_deep_pipelines_within_the_cap() {
    let requests = GET.repeat(5000);
    let events = observe(&[(Side::Client, &requests), (Side::Server, "HTTP/1.1 204 N\r\n\r\n")]);
    assert_eq!(events.len(), 10_002);
    let alternating = "GET / HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\n".repeat(600);
    let events = observe(&[(Side::Client, &alternating)]);
    assert!(events.contains(&"Client http_pipeline_too_deep".to_owned()));
}

#[test]
fn accepts_skips_inside_bodies_and_refuses_them_elsewhere() {
    let mut http = Http1::new();
    let mut log = Log::default();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";
    http.data(Side::Client, GET.as_bytes(), &mut |event| log.add(event));
    http.data(Side::Server, format!("{head}0123").as_bytes(), &mut |event| log.add(event));
    assert_eq!(http.response_body_left(), BodyLeft::Length(96));
    http.skip(Side::Server, 90, &mut |event| log.add(event));
    http.data(Side::Server, b"456", &mut |event| log.add(event));
    http.skip(Side::Server, 3, &mut |event| log.add(event));
    assert_eq!(http.response_body_left(), BodyLeft::None);
    http.data(Side::Server, b"HTTP/1.1 204 N\r\n\r\n", &mut |event| log.add(event));
    http.skip(Side::Server, 1, &mut |event| log.add(event));
    http.data(Side::Server, b"rest", &mut |event| log.add(event));
    assert_eq!(http.response_body_left(), BodyLeft::UntilClose);
    assert_eq!(
        log.0,
        [
            "GET /a",
            "end >",
            "200",
            "< 0123456",
            "end <",
            "204 unasked",
            "end <",
            "Server http_gap",
            "< rest"
        ]
    );
}

fn message() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("GET / HTTP/1.1\r\n"),
        Just("HEAD / HTTP/1.1\r\n"),
        Just("CONNECT a:1 HTTP/1.1\r\n"),
        Just("HTTP/1.1 200 OK\r\n"),
        Just("HTTP/1.1 100 C\r\n"),
        Just("HTTP/1.0 101 S\r\n"),
        Just("Content-Length: 4\r\n"),
        Just("Content-Length: 5\r\n"),
        Just("Upgrade: x\r\n"),
        Just("Transfer-Encoding: chunked\r\n"),
        Just("\r\n"),
        Just("\n"),
        Just("\r"),
        Just("4\r\nabcd\r\n"),
        Just("0\r\n\r\n"),
        Just("3;e\nabc\n"),
        Just("abcd"),
        Just(" "),
        Just("HTTP/1.1 204 N\r\n\r\n"),
        Just("GET /q HTTP/1.1\r\nHost: h\r\n\r\n"),
        Just("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        Just("\u{1}"),
    ];
    proptest::collection::vec(pieces, 0..14).prop_map(|pieces| pieces.concat())
}

fn cut<'a>(side: Side, text: &'a str, cuts: &[usize]) -> Vec<(Side, &'a [u8])> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(text.len())).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| (side, &text.as_bytes()[pair[0]..pair[1]])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// However both directions are cut, the events are the same.
    #[test]
    fn accepts_any_chunking(
        requests in message(), responses in message(), more in message(),
        cuts in proptest::collection::vec(0usize..160, 0..10),
    ) {
        let parts = [(Side::Client, &requests), (Side::Server, &responses), (Side::Client, &more)];
        let whole: Vec<_> = parts.iter().map(|(s, t)| (*s, t.as_bytes())).collect();
        let pieces: Vec<_> = parts.iter().flat_map(|(s, t)| cut(*s, t, &cuts)).collect();
        prop_assert_eq!(run(&whole), run(&pieces));
    }

    /// Nothing that a peer can send makes it panic, and no response byte disappears unless the
    /// connection is opaque: what is no head and no framing is body.
    #[test]
    fn accepts_any_bytes(client in proptest::collection::vec(any::<u8>(), 0..300),
                         server in proptest::collection::vec(any::<u8>(), 0..300)) {
        run(&[(Side::Client, &client), (Side::Server, &server)]);
        run(&[(Side::Client, GET.as_bytes()), (Side::Server, &server), (Side::Client, &client)]);
    }

    /// After a request, whatever the server sends instead of a head is shown as body.
    #[test]
    fn accepts_no_blind_spot(junk in "[A-GI-Z][ -~]{0,80}") {
        let events = run(&[(Side::Client, GET.as_bytes()), (Side::Server, junk.as_bytes())]);
        let shown = format!("< {junk}");
        prop_assert!(events.contains(&shown), "{:?}", events);
    }
}
