//! Rules on trailers, and on the heads of interim responses.

use super::evasion_http2_tests::{HEADERS, client, fields, frame, server};
use super::rule_tests::{found, http};
use crate::event::Side;

const CLIENT: Side = Side::Client;
const SERVER: Side = Side::Server;
const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const END_HEADERS: u8 = 4;
/// END_HEADERS and END_STREAM.
const ONLY: u8 = 5;

fn chunked(fields: &str, trailers: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n\r\n");
    format!("{head}4\r\nbody\r\n0\r\n{trailers}\r\n").into_bytes()
}

fn matches(options: &[&str], response: &[u8]) -> Vec<u32> {
    found(&http(options), &[(CLIENT, GET), (SERVER, response)])
}

#[test]
fn accepts_trailers_of_http1_as_further_fields() {
    let rules = [
        "http.response_header; content:\"X-Sum|3a 20|evil\"; startswith;",
        // In one buffer with the fields of the head, behind them.
        "flow:to_client; http.header; content:\"A|3a 20|1|0d 0a|\"; content:\"X-Sum|3a 20|evil\"; distance:0;",
        "flow:to_client; http.header.raw; content:\"chunked|0d 0a|X-sum|3a|evil\"; nocase;",
        "flow:to_client; http.header_names; content:\"|0d 0a|A|0d 0a|Transfer-Encoding|0d 0a|X-Sum|0d 0a 0d 0a|\";",
        "http.stat_code; content:\"200\"; http.response_header; content:\"evil\";",
        "http.stat_code; content:\"404\"; http.response_header; content:\"evil\";",
        "http.response_body; content:\"body\"; fast_pattern; http.response_header; content:\"evil\";",
        "http.response_body; content:\"none\"; http.response_header; content:\"evil\";",
        "http.cookie; content:\"late\"; flow:to_client;",
        // Decided with the head, and not again.
        "http.response_header; content:\"A|3a|\";",
        "flow:to_client; http.header; content:!\"evil\"; http.stat_code; content:\"200\";",
        "flow:to_server; http.header; content:\"evil\";",
        "file.data; content:\"evil\";",
    ];
    let response = chunked("A: 1\r\n", "X-Sum:evil\r\nSet-Cookie: late\r\n");
    assert_eq!(matches(&rules[..3], &response), [1, 2, 3]);
    assert_eq!(matches(&rules[4..], &response), [1, 3, 5, 6, 7]);
    assert_eq!(matches(&rules[3..4], &chunked("A: 1\r\n", "X-Sum:evil\r\n")), [1]);
    assert_eq!(matches(&rules[..3], &chunked("A: 1\r\n", "X-Sum:good\r\n")), []);
    // Of the next message on the connection it is no field.
    let twice = [chunked("", "X-Sum: evil\r\n"), chunked("A: 1\r\n", "")].concat();
    let parts: &[_] = &[(CLIENT, GET), (CLIENT, GET), (SERVER, &twice[..])];
    assert_eq!(found(&http(&rules[..2]), parts), [1]);
}

#[test]
fn accepts_trailers_of_requests() {
    let rules = [
        "http.request_header; content:\"x|3a 20|evil\";",
        "http.uri; content:\"/form\"; http.header; content:\"x|3a 20|evil\"; http.request_body; content:\"abc\";",
        "http.uri; content:\"/form\"; http.header; content:\"x|3a 20|evil\"; http.request_body; content:\"xyz\";",
        "http.user_agent; content:\"late\";",
    ];
    let post = b"POST /form HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
        3\r\nabc\r\n0\r\nx: evil\r\nUser-Agent: late\r\n\r\n";
    assert_eq!(found(&http(&rules), &[(CLIENT, post)]), [1, 2, 4]);
    let (side, frames) = client(&[
        frame(HEADERS, END_HEADERS, 1, &fields(&[(":method", "POST"), (":path", "/form")])),
        frame(0, 0, 1, b"abc"),
        frame(HEADERS, ONLY, 1, &fields(&[("x", "evil"), ("user-agent", "late")])),
    ]);
    assert_eq!(found(&http(&rules), &[(side, &frames)]), [1, 2, 4]);
}

#[test]
fn accepts_trailers_of_http2() {
    let rules = [
        "http.stat_code; content:\"200\"; http2.header_name; content:\"grpc-status\";",
        "http.response_header; content:\"grpc-status|3a 20|7\";",
        "flow:to_client; http.header; content:\"a|3a 20|1|0d 0a|grpc-status\";",
        "http.stat_code; content:\"500\";",
        "http2.frametype:HEADERS; http.response_header; content:\"grpc-status\";",
    ];
    let (_, requests) =
        client(&[frame(HEADERS, ONLY, 1, &fields(&[(":method", "GET"), (":path", "/")]))]);
    let (_, responses) = server(&[
        frame(HEADERS, END_HEADERS, 1, &fields(&[(":status", "200"), ("a", "1")])),
        frame(0, 0, 1, b"x"),
        // A status is none of a trailer's business.
        frame(HEADERS, ONLY, 1, &fields(&[("grpc-status", "7"), (":status", "500")])),
    ]);
    let parts: &[_] = &[(CLIENT, &requests[..]), (SERVER, &responses[..])];
    assert_eq!(found(&http(&rules), parts), [1, 2, 3, 5]);
}

#[test]
fn accepts_interim_heads_and_keeps_them_apart() {
    let rules = [
        "http.response_header; content:\"</evil.js>\";",
        "http.stat_code; content:\"103\";",
        "http.stat_code; content:\"200\";",
        // On the final head only.
        "flow:to_client; http.header_names; content:!\"Server\";",
        "http.stat_code; content:!\"200\";",
        "http.stat_code; content:\"103\"; http.response_header; content:\"A|3a 20|1\"; nocase;",
        "http.response_header; content:\"</evil.js>\"; http.response_body; content:\"body\";",
        // In both: told once.
        "http.response_header; content:\"X-Both\"; nocase;",
        "http.server; content:\"nginx\";",
    ];
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </evil.js>; rel=preload\r\nX-Both: 1\r\n\r\n";
    let last =
        "HTTP/1.1 200 OK\r\nA: 1\r\nServer: nginx\r\nX-Both: 1\r\nContent-Length: 4\r\n\r\nbody";
    let go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    let response = [early, go_on, early, last].concat();
    assert_eq!(matches(&rules, response.as_bytes()), [1, 2, 3, 8, 9]);
    // Before the final response has come.
    assert_eq!(matches(&rules, early.as_bytes()), [1, 2, 8]);

    let (_, requests) =
        client(&[frame(HEADERS, ONLY, 1, &fields(&[(":method", "GET"), (":path", "/")]))]);
    let early = [(":status", "103"), ("link", "</evil.js>"), ("x-both", "1")];
    let last = [(":status", "200"), ("a", "1"), ("Server", "nginx"), ("x-both", "1")];
    let (_, responses) = server(&[
        frame(HEADERS, END_HEADERS, 1, &fields(&early)),
        frame(HEADERS, END_HEADERS, 1, &fields(&early)),
        frame(HEADERS, END_HEADERS, 1, &fields(&last)),
        frame(0, 1, 1, b"body"),
    ]);
    let parts: &[_] = &[(CLIENT, &requests[..]), (SERVER, &responses[..])];
    assert_eq!(found(&http(&rules[..8]), parts), [1, 2, 3, 8]);
}

#[test]
fn refuses_to_keep_heads_for_trailers_beyond_the_budget() {
    use super::{Context, Detected, FlowState, Scratch, Shared};
    use crate::{AppLayer, MemoryBudget};
    let matcher = super::rule_tests::matcher(&http(&["http.response_header; content:\"evil\";"]));
    let ends = ["10.0.0.1:40000", "192.0.2.7:443"].map(|text| text.parse().unwrap());
    let budget = MemoryBudget::new(1000);
    let run = |parts: &[(Side, &[u8])]| {
        let (mut app, mut state) = (AppLayer::new(), FlowState::new(1, ends[0], ends[1]));
        let (mut found, mut over_cap) = (0, 0);
        let mut cx = Context {
            matcher: &matcher,
            shared: &Shared::default(),
            budget: &budget,
            scratch: &mut Scratch::default(),
            now_ns: 0,
        };
        for (side, bytes) in parts {
            app.data(*side, bytes, &mut |event| {
                state.event(&mut cx, &event, &mut |detected| match detected {
                    Detected::Match(_) => found += 1,
                    Detected::Uninspected(..) => over_cap += 1,
                });
            });
        }
        (found, over_cap, budget.left() < 1000)
    };
    let whole = chunked("", "X: evil\r\n");
    let (head, _) = whole.split_at(whole.len() - 20);
    // Kept until the end, and given back.
    assert_eq!(run(&[(CLIENT, GET), (SERVER, head)]), (0, 0, true));
    assert_eq!(run(&[(CLIENT, GET), (SERVER, &whole)]), (1, 0, false));
    // A head that finds no room is told; its trailers are looked at by themselves.
    let long = chunked(&format!("Y: {}\r\n", "y".repeat(2000)), "X: evil\r\n");
    assert_eq!(run(&[(CLIENT, GET), (SERVER, &long)]), (1, 1, false));
    // What has a length has none.
    let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    assert_eq!(run(&[(CLIENT, GET), (SERVER, plain)]), (0, 0, false));
}

/// A server may answer before it has read what it answers.
#[test]
fn accepts_requests_that_go_on_behind_their_answer() {
    let rules = http(&[
        "http.uri; content:\"/form\"; http.request_body; content:\"evil\";",
        "http.request_body; content:\"evil\";",
        "http.uri; content:\"/next\"; http.request_body; content:\"evil\";",
    ]);
    let head = b"POST /form HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\n-ev";
    let next = b"il-POST /next HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\ngood";
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    for answers in [1, 2] {
        // The second one is of a request that is not there yet.
        let answer = answer.repeat(answers);
        let parts: &[_] = &[(CLIENT, &head[..]), (SERVER, &answer), (CLIENT, next)];
        assert_eq!(found(&rules, parts), [1, 2], "{answers}");
    }
}
