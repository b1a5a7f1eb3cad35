//! Rules on frames of HTTP/2.

use super::evasion_http2_tests::{CONTINUATION, HEADERS, client, fields, frame, server};
use super::rule_tests::{Run, found, http, matcher};
use super::*;
use crate::event::Side;
use crate::{AppLayer, MemoryBudget};

const DATA: u8 = 0;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const WITH_PRIORITY: u8 = 0x20;
/// END_HEADERS and END_STREAM.
const ONLY: u8 = 5;

fn get(path: &str) -> Vec<u8> {
    fields(&[(":method", "GET"), (":scheme", "https"), (":authority", "h"), (":path", path)])
}

fn number(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Rules from their options, applied to frames of both sides: whole, and byte by byte.
fn matches(options: &[&str], parts: &[(Side, Vec<u8>)]) -> Vec<u32> {
    let parts: Vec<_> = parts.iter().map(|(side, bytes)| (*side, &bytes[..])).collect();
    found(&http(options), &parts)
}

fn settings(pairs: &[(u16, u32)]) -> Vec<u8> {
    let pair = |&(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &pairs.iter().flat_map(pair).collect::<Vec<_>>())
}

#[test]
fn accepts_types_of_frames() {
    let rules = [
        "flow:to_server; http2.frametype:HEADERS;",
        "flow:to_client; http2.frametype:HEADERS;",
        "http2.frametype:DATA;",
        "http2.frametype:PING;",
        "http2.frametype:16;",
        "http2.frametype:CONTINUATION;",
        "flow:to_client; http2.frametype:CONTINUATION;",
        "http2.frametype:PUSHPROMISE;",
        "http2.frametype:SETTINGS;",
        "http2.frametype:GOAWAY;",
        "flow:to_client; http2.frametype:PUSHPROMISE; http2.frametype:CONTINUATION;",
    ];
    let block = get("/a");
    let (start, rest) = block.split_at(9);
    let push = [&number(2)[..], &get("/p")].concat();
    let parts = [
        client(&[
            frame(HEADERS, END_STREAM, 1, start),
            frame(CONTINUATION, END_HEADERS, 1, rest),
            frame(PING, 0, 0, &[0; 8]),
            // PRIORITY_UPDATE.
            frame(16, 0, 0, b"\0\0\0\x01u=1"),
        ]),
        server(&[
            frame(PUSH_PROMISE, 0, 1, &push[..8]),
            frame(CONTINUATION, END_HEADERS, 1, &push[8..]),
            frame(HEADERS, END_HEADERS, 1, &fields(&[(":status", "200")])),
            // Without content, and without an end.
            frame(DATA, 0, 1, b""),
        ]),
    ];
    // What an empty SETTINGS says is nothing.
    assert_eq!(matches(&rules, &parts), [1, 2, 3, 4, 5, 6, 6, 7, 8, 11]);
    // The first bytes of DATA are enough, and so is a part of a block that never ends.
    let parts = [
        client(&[frame(HEADERS, END_HEADERS, 1, &block)]),
        (Side::Client, frame(DATA, 0, 1, &[0; 100])[..9].to_vec()),
        (Side::Client, Vec::new()),
    ];
    assert_eq!(matches(&rules, &parts), [1, 3]);
    let parts = [client(&[frame(HEADERS, 0, 1, start), frame(CONTINUATION, 0, 1, b"")])];
    assert_eq!(matches(&rules, &parts), [1, 6]);
}

#[test]
fn accepts_error_codes_of_resets_and_farewells() {
    let rules = [
        "http2.errorcode:CANCEL;",
        "http2.errorcode:NO_ERROR;",
        "http2.errorcode:HTTP_1_1_REQUIRED;",
        "http2.errorcode:4096;",
        "http2.errorcode:CANCEL; http.uri; content:\"/evil\";",
        "http2.errorcode:CANCEL; http.uri; content:\"/other\";",
        "http2.errorcode:CANCEL; http2.frametype:GOAWAY;",
    ];
    let parts = [client(&[
        frame(HEADERS, ONLY, 1, &get("/evil")),
        frame(RST_STREAM, 0, 1, &number(8)),
        // Those of a length that is not theirs say nothing.
        frame(RST_STREAM, 0, 3, &[0, 0, 0, 13, 0]),
        frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0]),
        frame(GOAWAY, 0, 0, b"\0\0\0\x01\0\0\x10\0with a reason"),
    ])];
    assert_eq!(matches(&rules, &parts), [1, 4, 5]);
    // Two streams are two transactions.
    let parts = [client(&[
        frame(HEADERS, ONLY, 1, &get("/evil")),
        frame(HEADERS, ONLY, 3, &get("/good")),
        frame(RST_STREAM, 0, 3, &number(8)),
    ])];
    assert_eq!(matches(&rules, &parts), [1]);
    // What the server says is about what the server sends.
    let parts = [
        client(&[frame(HEADERS, ONLY, 1, &get("/evil"))]),
        server(&[frame(RST_STREAM, 0, 1, &number(8)), frame(GOAWAY, 0, 0, &[0; 8])]),
    ];
    assert_eq!(matches(&rules, &parts), [1, 2]);
}

#[test]
fn accepts_weights_windows_and_table_sizes() {
    let rules = [
        "http2.priority:>100;",
        "http2.priority:16;",
        "http2.priority:!16;",
        "http2.window:65536;",
        "http2.window:>2147483646;",
        "http2.size_update:>100;",
        "http2.size_update:0;",
        "http2.size_update:1<>31;",
        "http2.priority:>100; http.uri; content:\"/evil\";",
        "http2.window:65536; http.uri; content:\"/evil\";",
    ];
    let weighed = |weight: u8, block: &[u8]| [&[0, 0, 0, 0, weight][..], block].concat();
    let evil = get("/evil");
    let parts = [client(&[
        frame(
            HEADERS,
            ONLY | WITH_PRIORITY,
            1,
            &weighed(16, &[&[0x20, 0x3f, 0x01][..], &evil].concat()),
        ),
        frame(WINDOW_UPDATE, 0, 0, &number(65536)),
    ])];
    assert_eq!(matches(&rules, &parts), [2, 4, 7]);
    // 30 and 4,096 in the prefix and behind it; the reserved bit of a window does not count.
    let sizes = [&[0x3e, 0x3f, 0xe1, 0x1f][..], &evil].concat();
    let parts = [client(&[
        frame(HEADERS, ONLY, 1, &sizes),
        frame(WINDOW_UPDATE, 0, 1, &number(u32::MAX)),
        frame(WINDOW_UPDATE, 0, 1, &[0, 1, 0, 0, 0]),
        frame(PRIORITY, 0, 1, &[0, 0, 0, 0]),
    ])];
    assert_eq!(matches(&rules, &parts), [5, 6, 8]);
    // The weight may come before the stream, the window after the request.
    let parts = [client(&[
        frame(PRIORITY, 0, 3, &weighed(201, b"")),
        frame(HEADERS, ONLY, 3, &evil),
        frame(WINDOW_UPDATE, 0, 3, &number(65536)),
        frame(PRIORITY, 0, 3, &weighed(202, b"")),
    ])];
    assert_eq!(matches(&rules, &parts), [1, 3, 4, 9, 10]);
}

#[test]
fn accepts_settings_and_refuses_to_overlook_one() {
    let rules = [
        "http2.settings:SETTINGS_ENABLE_PUSH;",
        "http2.settings:SETTINGS_HEADER_TABLE_SIZE>4096;",
        "http2.settings:SETTINGS_MAX_FRAME_SIZE 16384-16386;",
        "http2.settings:SETTINGS_INITIAL_WINDOW_SIZE=0; http2.settings:SETTINGS_ENABLE_PUSH=1;",
    ];
    // One that Suricata 7 does not know hides nothing behind it.
    let parts = [client(&[settings(&[(0x0a0a, 7), (2, 1), (1, 4096), (4, 0)])])];
    assert_eq!(matches(&rules, &parts), [1, 4]);
    // Two frames of the connection are two transactions.
    let parts = [client(&[settings(&[(4, 0)]), settings(&[(2, 1), (5, 16385)])])];
    assert_eq!(matches(&rules, &parts), [1, 3]);
    let many = |count: usize| {
        let mut pairs = vec![(3, 100); count];
        pairs.push((1, 5000));
        [client(&[settings(&pairs)])]
    };
    assert_eq!(matches(&rules, &many(2729)), [2]);
    // Longer than any endpoint takes: told, not overlooked.
    super::evasion_tests::check(
        "http2.settings:SETTINGS_HEADER_TABLE_SIZE>4096;",
        vec![(
            "behind many",
            many(2730).to_vec(),
            super::evasion_tests::Expect::Cause(crate::Uninspected::OverCap),
        )],
    );
}

#[test]
fn accepts_conditions_with_bodies_and_bits() {
    let rules = "\
        alert http2 any any -> any any (http2.frametype:PING; flowbits:set,ping; noalert; sid:1;)\n\
        alert http2 any any -> any any (http2.frametype:GOAWAY; flowbits:isset,ping; sid:2;)\n\
        alert http2 any any -> any any (http2.window:5; http.request_body; content:\"evil\"; sid:3;)\n\
        alert http any any -> any any (http2.frametype:PING; http2.priority:1; sid:4;)\n\
        pass http2 any any -> any any (http2.errorcode:11; sid:5;)\n";
    let post = frame(HEADERS, END_HEADERS, 1, &get("/"));
    let run = |frames: &[Vec<u8>]| {
        let (side, bytes) = client(frames);
        found(rules, &[(side, &bytes)])
    };
    let farewell = frame(GOAWAY, 0, 0, &[0; 8]);
    let ping = frame(PING, 0, 0, &[0; 8]);
    assert_eq!(run(&[farewell.clone(), ping.clone()]), []);
    assert_eq!(run(&[ping.clone(), farewell.clone()]), [2]);
    let body = [frame(DATA, 0, 1, b"ev"), frame(DATA, END_STREAM, 1, b"il")].concat();
    let window = frame(WINDOW_UPDATE, 0, 1, &number(5));
    // Before the body, in it, and behind it.
    assert_eq!(run(&[post.clone(), window.clone(), body.clone()]), [3]);
    assert_eq!(run(&[post.clone(), body.clone(), window.clone()]), [3]);
    assert_eq!(run(&[post.clone(), body.clone()]), []);
    let elsewhere = frame(WINDOW_UPDATE, 0, 3, &number(5));
    assert_eq!(run(&[post.clone(), elsewhere, body.clone()]), []);
    assert_eq!(run(&[frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 11]), ping, farewell]), []);
}

#[test]
fn accepts_a_condition_once_and_refuses_to_keep_any_number_of_streams() {
    let rule = ["http2.window:5;", "http2.priority:7; http.uri; content:\"/evil\";"];
    let window = |stream| frame(WINDOW_UPDATE, 0, stream, &number(5));
    let get = |stream, path: &str| frame(HEADERS, ONLY, stream, &get(path));
    // Once for each side of a stream, and for each frame of the connection.
    let parts = [client(&[get(1, "/"), window(1), window(1), window(0), window(0)])];
    assert_eq!(matches(&rule, &parts), [1, 1, 1]);
    // Streams that nobody opens fill no memory, and hide no other one without a word.
    let weight = |stream| frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 7]);
    let flood: Vec<_> = (0..3000).map(|at| weight(2 * at + 3)).collect();
    let mut run = Run::new(&http(&rule));
    let (side, bytes) = client(&[flood.concat(), get(5999, "/evil")]);
    run.connection(&[(side, &bytes)], usize::MAX);
    assert_eq!((run.over_cap, &run.found[..]), (1, &[][..]));
    let mut run = Run::new(&http(&rule));
    // Those that can be opened no longer are not kept.
    let (side, bytes) = client(&[get(9001, "/"), flood.concat(), weight(9003), get(9003, "/evil")]);
    run.connection(&[(side, &bytes)], usize::MAX);
    assert_eq!((run.over_cap, &run.found[..]), (0, &[2][..]));
}

#[test]
fn refuses_content_of_the_stream_together_with_frames() {
    use crate::rules::{Cause, RuleSet, Variables};
    for more in ["content:\"x\";", "dsize:>1;"] {
        let rule = format!("alert http2 any any -> any any (http2.window:5; {more} sid:1;)");
        let set = RuleSet::read(rule.as_bytes(), &Variables::suricata());
        let (matcher, skipped) =
            super::Matcher::new(set, &super::Datasets::default(), |_| true).unwrap();
        assert!(matcher.is_empty());
        assert!(matches!(skipped[0].cause, Cause::UnsupportedKeyword(_)), "{rule}");
    }
}

#[test]
fn accepts_paths_as_they_are_and_normalised() {
    let rules = [
        "http.uri; content:\"/evil\";",
        "http.uri; content:\"%65\";",
        "http.uri; content:\"/evil\"; content:\"%65\";",
        "http.uri; content:\"/evil\"; endswith; bsize:5;",
        "urilen:7; http.method; content:\"GET\";",
        "http.uri.raw; content:\"/evil\";",
        "http.request_line; content:\"/evil\";",
        "http.uri; content:!\"/evil\"; http.method; content:\"GET\";",
    ];
    let parts = |path: &str| [client(&[frame(HEADERS, ONLY, 1, &get(path))])];
    assert_eq!(matches(&rules, &parts("/%65vil")), [1, 2, 4, 5, 8]);
    assert_eq!(matches(&rules, &parts("/evil")), [1, 4, 6, 7]);
    assert_eq!(matches(&rules, &parts("/good")), [8]);
}

#[test]
fn waits_for_no_response_that_was_reset() {
    let rules = http(&[
        "flow:to_client; file.data; content:\"EVIL\";",
        "http.request_body; content:\"x\";",
    ]);
    let (old, new) = (matcher(&rules), matcher(&rules));
    let ends = ["10.0.0.1:40000", "192.0.2.7:443"].map(|text| text.parse().unwrap());
    let mut state = FlowState::new(1, ends[0], ends[1]);
    let (mut app, mut found) = (AppLayer::new(), 0);
    let mut run = |state: &mut FlowState, matcher: &Matcher, (side, bytes): (Side, Vec<u8>)| {
        let mut cx = Context {
            matcher,
            shared: &Shared::default(),
            budget: &MemoryBudget::default(),
            scratch: &mut Scratch::default(),
            now_ns: 0,
        };
        app.data(side, &bytes, &mut |event| {
            state.event(&mut cx, &event, &mut |_| found += 1);
        });
        (state.is_idle(), found)
    };
    let head = |stream: u32| frame(HEADERS, END_HEADERS, stream, &fields(&[(":status", "200")]));
    let open = frame(HEADERS, END_HEADERS, 1, &get("/"));
    let reset = |side: Side, stream: u32| (side, frame(RST_STREAM, 0, stream, &number(8)));
    assert_eq!(run(&mut state, &old, client(&[open, frame(DATA, 0, 1, b"a")])), (false, 0));
    assert_eq!(run(&mut state, &old, server(&[head(1), frame(DATA, 0, 1, b"EV")])), (false, 0));
    assert_eq!(run(&mut state, &old, reset(Side::Client, 1)), (true, 0));
    let other = (Side::Client, frame(HEADERS, ONLY, 3, &get("/")));
    assert_eq!(run(&mut state, &old, other).1, 0);
    let answer = (Side::Server, [head(3), frame(DATA, 0, 3, b"EV")].concat());
    assert_eq!(run(&mut state, &old, answer), (false, 0));
    assert_eq!(run(&mut state, &old, (Side::Server, frame(DATA, 1, 3, b"x"))), (true, 0));
    // Other rules search what comes from there on.
    state.exchange(&old, &new);
    let data = |text: &[u8]| (Side::Server, frame(DATA, 0, 1, text));
    assert_eq!(run(&mut state, &new, data(b"IL EV")), (true, 0));
    assert_eq!(run(&mut state, &new, data(b"IL")), (true, 1));
    assert_eq!(run(&mut state, &new, reset(Side::Server, 1)), (true, 1));
}
