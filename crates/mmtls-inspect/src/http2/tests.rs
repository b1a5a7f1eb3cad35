//! Tests of the observer on frames that are put together here.

use proptest::prelude::*;

use super::resets::{MAX_RESET_TEXT, MAX_RESETS};
use super::*;

/// Events as text, neighbouring body pieces of a stream joined.
#[derive(Default)]
struct Log(Vec<String>);

impl Log {
    fn add(&mut self, event: Event<'_>) {
        let stream = |it: Option<&Transaction>| it.and_then(|it| it.stream_id).unwrap_or(0);
        match event {
            Event::Body(body) => {
                assert!(!body.bytes.is_empty());
                let name = format!("{:?} {} ", body.side, stream(body.transaction));
                let text = body.bytes.escape_ascii().to_string();
                match self.0.last_mut() {
                    Some(last) if last.starts_with(&name) => last.push_str(&text),
                    _ => self.0.push(name + &text),
                }
            }
            Event::RequestHead { transaction, method, target, .. } => {
                let host = transaction.request.as_ref().and_then(|it| it.host.clone());
                let at = stream(Some(transaction));
                self.0.push(format!("{at}: {method} {} {target}", host.unwrap_or_default()));
            }
            Event::Interim(it, status, _) => self.0.push(format!("{}: {status}", stream(it))),
            Event::ResponseHead(it, _) => {
                let status = it.response.as_ref().unwrap().status;
                self.0.push(format!("{}: {status}", stream(Some(it))));
            }
            Event::RequestEnd(it) => self.0.push(format!("{}: request end", stream(it))),
            Event::ResponseEnd(it) => self.0.push(format!("{}: response end", stream(it))),
            Event::Complete(it) => self.0.push(format!("{}: over {:?}", stream(Some(it)), it.id)),
            Event::ResetOver(it) => self.0.push(format!("{}: reset over", stream(Some(it)))),
            Event::Anomaly(side, anomaly) => self.0.push(format!("{side:?} {anomaly}")),
            Event::Frame(_) => {}
            Event::Trailers(side, it, fields) => {
                self.0.push(format!("{side:?} {} trailers {fields:?}", stream(it)));
            }
            Event::BodyLimit(side) => self.0.push(format!("{side:?} limit")),
            other => panic!("{other:?}"),
        }
    }
}

fn run(parts: &[(Side, Vec<u8>)], most: usize) -> Vec<String> {
    let mut http = Http2::new(&MemoryBudget::default());
    let mut log = Log::default();
    for (side, bytes) in parts {
        for piece in bytes.chunks(most) {
            http.data(*side, piece, &mut |event| log.add(event));
        }
    }
    for side in [Side::Client, Side::Server] {
        http.close(side, &mut |event| log.add(event));
    }
    http.finish(&mut |event| log.add(event));
    log.0
}

/// Whole and in pieces, which must agree.
fn observe(parts: &[(Side, Vec<u8>)]) -> Vec<String> {
    let whole = run(parts, usize::MAX);
    for most in [1, 2, 3, 10] {
        assert_eq!(run(parts, most), whole, "pieces of {most}");
    }
    whole
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn field(name: &str, value: &str) -> Vec<u8> {
    let (names, values) = (name.len() as u8, value.len() as u8);
    [&[0, names], name.as_bytes(), &[values], value.as_bytes()].concat()
}

/// GET of a path, with the authority h.
fn get(path: &str) -> Vec<u8> {
    [&[0x82, 0x87][..], &field(":path", path), &field(":authority", "h")].concat()
}

const HEADERS: u8 = kind::HEADERS;
const DATA: u8 = kind::DATA;
const CONTINUATION: u8 = kind::CONTINUATION;
/// END_HEADERS and END_STREAM.
const WHOLE: u8 = 5;
const OPEN: u8 = 4;
/// `:status: 200` in the static table.
const OK: &[u8] = &[0x88];

fn preface() -> Vec<u8> {
    [PREFACE, &frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0x20, 0])].concat()
}

fn client(frames: &[Vec<u8>]) -> (Side, Vec<u8>) {
    (Side::Client, [preface(), frames.concat()].concat())
}

fn server(frames: &[Vec<u8>]) -> (Side, Vec<u8>) {
    (Side::Server, frames.concat())
}

#[test]
fn accepts_streams_side_by_side() {
    let requests = client(&[
        frame(HEADERS, WHOLE, 1, &get("/1")),
        frame(HEADERS, OPEN, 3, &get("/3")),
        frame(DATA, 0, 3, b"po"),
        frame(6, 0, 0, b"pingpong"),
        frame(DATA, 1, 3, b"st"),
    ]);
    let responses = server(&[
        frame(kind::SETTINGS, 0, 0, &[]),
        frame(kind::SETTINGS, ACK, 0, &[]),
        frame(HEADERS, OPEN, 1, &field(":status", "103")),
        frame(HEADERS, OPEN, 1, OK),
        frame(HEADERS, OPEN, 3, OK),
        frame(DATA, 0, 1, b"EV"),
        frame(DATA, 0, 3, b"xx"),
        frame(8, 0, 0, &[0, 0, 0, 1]),
        frame(DATA, 0, 1, b""),
        frame(DATA, 1, 1, b"IL"),
        frame(DATA, 0, 3, b"y"),
        // Trailers end a stream.
        frame(HEADERS, WHOLE, 3, &field("grpc-status", "0")),
    ]);
    assert_eq!(
        observe(&[requests, responses]),
        [
            "1: GET h /1",
            "1: request end",
            "3: GET h /3",
            "Client 3 post",
            "3: request end",
            "1: 103",
            "1: 200",
            "3: 200",
            "Server 1 EV",
            "Server 3 xx",
            "Server 1 IL",
            "1: response end",
            "1: over Some(0)",
            "Server 3 y",
            "Server 3 trailers {\"grpc-status\": \"0\"}",
            "3: response end",
            "3: over Some(1)",
        ]
    );
}

#[test]
fn accepts_padding_priority_and_heads_in_many_frames() {
    let block = get("/");
    let priority = [&[0, 0, 0, 0, 15][..], &block[..3]].concat();
    let padded = [&[4][..], &priority, &[0; 4]].concat();
    let mut frames = vec![frame(HEADERS, 8 | 0x20 | 1, 1, &padded)];
    frames.extend(block[3..].chunks(1).map(|byte| frame(CONTINUATION, 0, 1, byte)));
    frames.push(frame(CONTINUATION, 4, 1, b""));
    let body = frame(DATA, 8 | 1, 1, b"\x03EVIL\0\0\0");
    let log = observe(&[client(&frames), server(&[frame(HEADERS, OPEN, 1, OK), body])]);
    assert_eq!(
        log,
        [
            "1: GET h /",
            "1: request end",
            "1: 200",
            "Server 1 EVIL",
            "1: response end",
            "1: over Some(0)"
        ]
    );
    // Nothing but padding.
    let empty = frame(DATA, 8, 1, b"\x02\0\0");
    let log = observe(&[client(&[frame(HEADERS, WHOLE, 1, &get("/"))]), server(&[empty])]);
    assert_eq!(log[2..], ["1: over Some(0)"]);
}

#[test]
fn accepts_promises_resets_and_tables() {
    let promise = [&[0, 0, 0, 2][..], &get("/pushed")].concat();
    // The first head puts `a: b` into the table, the second takes it from there.
    let indexed = [OK, &[0x40, 1, b'a', 1, b'b']].concat();
    let log = observe(&[
        client(&[frame(HEADERS, WHOLE, 1, &get("/")), frame(HEADERS, OPEN, 3, &get("/3"))]),
        server(&[
            frame(kind::PUSH_PROMISE, 4, 1, &promise),
            frame(HEADERS, OPEN, 1, &indexed),
            frame(HEADERS, OPEN, 2, &[0x88, 0xbe]),
            frame(DATA, 1, 2, b"EVIL"),
            frame(kind::RST_STREAM, 0, 3, &[0, 0, 0, 8]),
            frame(DATA, 0, 3, b"late"),
        ]),
    ]);
    assert_eq!(
        log,
        [
            "1: GET h /",
            "1: request end",
            "3: GET h /3",
            "2: GET h /pushed",
            "2: request end",
            "1: 200",
            "2: 200",
            "Server 2 EVIL",
            "2: response end",
            "2: over Some(2)",
            "3: over Some(1)",
            "Server 0 late",
            "1: over Some(0)",
        ]
    );
    // A table of 8192 bytes was allowed by the client, not by the server.
    let update = [&[0x3f, 0xe1, 0x3f][..], OK].concat();
    let log = observe(&[
        client(&[frame(HEADERS, WHOLE, 1, &get("/"))]),
        server(&[frame(HEADERS, WHOLE, 1, &update)]),
    ]);
    assert_eq!(log[2], "1: 200");
    let update = [&[0x3f, 0xe1, 0x3f][..], &get("/")].concat();
    assert_eq!(
        observe(&[client(&[frame(HEADERS, WHOLE, 1, &update)])])[0],
        "Client http2_malformed"
    );
}

#[test]
fn refuses_what_endpoints_refuse_and_shows_it_as_body() {
    let head = frame(HEADERS, WHOLE, 1, &get("/"));
    for bad in [
        frame(DATA, 0, 0, b"x"),
        frame(DATA, 8, 1, b""),
        frame(DATA, 8, 1, b"\x05abc"),
        frame(CONTINUATION, 4, 1, OK),
        [frame(HEADERS, 0, 1, OK), frame(DATA, 0, 1, b"x")].concat(),
        [frame(HEADERS, 0, 1, OK), frame(CONTINUATION, 4, 3, b"")].concat(),
        frame(HEADERS, OPEN, 1, &[0xff, 0xff]),
        frame(HEADERS, OPEN | 0x20, 1, b"\0\0"),
        frame(kind::PUSH_PROMISE, 4, 1, b"\0\0"),
    ] {
        let log = observe(&[
            client(core::slice::from_ref(&head)),
            server(&[bad.clone(), b"EVIL".to_vec()]),
        ]);
        assert_eq!(log[2], "Server http2_malformed", "{bad:?}");
        assert!(log.iter().any(|line| line.starts_with("Server 0 ") && line.ends_with("EVIL")));
        assert_eq!(log.last().unwrap(), "1: over Some(0)");
    }
    let log = observe(&[(Side::Client, b"PRI * HTTP/2.0\r\n\r\nXX".to_vec())]);
    assert_eq!(log, ["Client http2_malformed", "Client 0 XX"]);
    let log = observe(&[client(&[b"\0\0\x01".to_vec()])]);
    assert_eq!(log, ["Client http_truncated"]);
}

#[test]
fn refuses_heads_that_endpoints_refuse_but_follows_the_stream() {
    for fields in [
        [get("/"), field("Upper", "x")].concat(),
        [get("/"), field("a", "b"), field(":scheme", "x")].concat(),
        [get("/"), field(":path", "/2")].concat(),
        [get("/"), field(":odd", "x")].concat(),
    ] {
        let log = observe(&[client(&[frame(HEADERS, WHOLE, 1, &fields)])]);
        assert_eq!(log[..2], ["Client http2_bad_head", "1: GET h /"]);
    }
    let log = observe(&[
        client(&[frame(HEADERS, WHOLE, 1, &get("/"))]),
        server(&[frame(HEADERS, OPEN, 1, &field("a", "b"))]),
    ]);
    assert_eq!(log[2], "Server http2_bad_head");
}

#[test]
fn refuses_floods() {
    // CONTINUATION without end, in number and in bytes.
    let mut frames = vec![frame(HEADERS, 0, 1, &get("/"))];
    frames.extend((0..300).map(|_| frame(CONTINUATION, 0, 1, b"")));
    assert_eq!(run(&[client(&frames)], usize::MAX)[0], "Client http2_headers_too_large");
    frames.truncate(1);
    frames.extend((0..40).map(|_| frame(CONTINUATION, 0, 1, &[0x82; 10_000])));
    assert_eq!(run(&[client(&frames)], usize::MAX)[0], "Client http2_headers_too_large");
    // A few bytes that stand for many.
    let entry = [&[0x40, 1, b'a', 0x7f, 0x81, 0x1e][..], &[b'x'; 3968]].concat();
    let bomb = |length| [get("/"), entry.clone(), vec![0xbe; length]].concat();
    let log = run(&[client(&[frame(HEADERS, WHOLE, 1, &bomb(100))])], usize::MAX);
    assert_eq!(log[..2], ["Client http2_headers_too_large", "1: GET h /"]);
    let log = run(&[client(&[frame(HEADERS, WHOLE, 1, &bomb(5000))])], usize::MAX);
    assert_eq!(log, ["Client http2_headers_too_large"]);
    // Streams that never end.
    let frames: Vec<_> =
        (0..MAX_STREAMS as u32 + 2).map(|at| frame(HEADERS, OPEN, 2 * at + 1, &get("/"))).collect();
    let log = run(&[client(&frames)], usize::MAX);
    assert_eq!(log.iter().filter(|line| line.contains("too_many_streams")).count(), 1);
    assert_eq!(log.iter().filter(|line| line.contains("over Some")).count(), MAX_STREAMS + 2);
    // Long targets.
    let long = format!("/{}", "x".repeat(120));
    let more = [field("user-agent", &"y".repeat(120)), field("content-type", &"z".repeat(120))];
    let head = [get(&long), more.concat()].concat();
    // Only a request with a body has something that is not decoded.
    for (flags, reported) in [(OPEN, 1), (WHOLE, 0)] {
        let frames: Vec<_> = (0..900).map(|at| frame(HEADERS, flags, 2 * at + 1, &head)).collect();
        let mut http = Http2::new(&MemoryBudget::default());
        let mut anomalies = 0;
        http.data(Side::Client, &client(&frames).1, &mut |event| {
            anomalies += usize::from(matches!(event, Event::Anomaly(..)));
        });
        assert!(http.text_bytes <= MAX_STREAM_TEXT && http.streams.len() == 900);
        assert_eq!(anomalies, reported);
    }
    // Rapid reset.
    let frames: Vec<_> = (0..FEW_RESETS as u32 + 1)
        .flat_map(|at| {
            let stream = 2 * at + 1;
            [
                frame(HEADERS, WHOLE, stream, &get("/")),
                frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            ]
        })
        .collect();
    let log = run(&[client(&frames)], usize::MAX);
    assert!(log.contains(&"Client http2_rapid_reset".into()));
}

fn ask(stream: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, stream, &get("/"))
}

fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])
}

#[test]
fn accepts_what_a_server_sends_before_it_learns_of_a_reset() {
    let log = observe(&[
        client(&[ask(1), ask(3), ask(5), reset(1), reset(3), reset(3), reset(5)]),
        server(&[
            frame(HEADERS, OPEN, 1, OK),
            frame(DATA, 0, 1, b"some"),
            frame(HEADERS, OPEN, 3, OK),
            frame(DATA, 1, 3, b"whole"),
            reset(5),
            frame(DATA, 0, 5, b"none"),
            frame(DATA, 0, 1, b"more"),
        ]),
        (Side::Client, ask(7)),
        // It may have queued more of another one than of this.
        server(&[frame(HEADERS, WHOLE, 7, OK), frame(DATA, 0, 1, b"late")]),
    ]);
    let expected = [
        // Reports do not wait for what may come.
        "1: over Some(0)",
        "3: over Some(1)",
        "5: over Some(2)",
        "1: 200",
        "Server 1 some",
        "3: 200",
        "Server 3 whole",
        "3: response end",
        "3: reset over",
        "5: reset over",
        "Server 0 none",
        "Server 1 more",
        "7: GET h /",
        "7: request end",
        "7: 200",
        "7: response end",
        "7: over Some(3)",
        "Server 1 late",
        "1: reset over",
    ];
    assert_eq!(log[6..], expected);
    // One that was promised.
    let promise = [&[0, 0, 0, 2][..], &get("/pushed")].concat();
    let log = observe(&[
        client(&[ask(1)]),
        server(&[frame(kind::PUSH_PROMISE, OPEN, 1, &promise)]),
        (Side::Client, [reset(2), ask(3)].concat()),
        server(&[
            frame(HEADERS, WHOLE, 3, OK),
            frame(HEADERS, OPEN, 2, OK),
            frame(DATA, 1, 2, b"EVIL"),
        ]),
    ]);
    let expected = ["2: 200", "Server 2 EVIL", "2: response end", "2: reset over"];
    assert_eq!(log[10..14], expected);
    // Nothing of it can be told apart behind a gap.
    let mut http = Http2::new(&MemoryBudget::default());
    let mut log = Log::default();
    http.data(Side::Client, &client(&[ask(1), reset(1), ask(3)]).1, &mut |it| log.add(it));
    http.gap(Side::Server, &mut |it| log.add(it));
    http.data(Side::Client, &reset(3), &mut |it| log.add(it));
    assert_eq!(log.0[5..], ["Server http_gap", "1: reset over", "3: over Some(1)"]);
}

#[test]
fn refuses_heads_on_streams_that_are_over() {
    // Of one that was reset, the old response goes on.
    let again = [ask(1), frame(HEADERS, WHOLE, 3, &field("a", "b"))].concat();
    let data = |text: &[u8]| frame(DATA, 0, 1, text);
    let log = observe(&[
        client(&[ask(1), ask(3), reset(1), reset(3)]),
        server(&[frame(HEADERS, OPEN, 1, OK), data(b"EV")]),
        (Side::Client, again),
        server(&[data(b"IL")]),
    ]);
    let fields =
        "{\":method\": \"GET\", \":scheme\": \"https\", \":path\": \"/\", \":authority\": \"h\"}";
    let expected = [
        "1: 200".into(),
        "Server 1 EV".into(),
        "Client http2_bad_head".into(),
        format!("Client 0 trailers {fields}"),
        "Client 0 trailers {\"a\": \"b\"}".into(),
        "Server 1 IL".into(),
        "1: reset over".into(),
        "3: reset over".into(),
    ];
    assert_eq!(log[6..], expected);
    // One that has ended, or was passed over, is no other request's.
    let ended = server(&[frame(HEADERS, WHOLE, 3, OK), reset(3)]);
    for stream in [1, 3] {
        let log = observe(&[client(&[ask(3)]), ended.clone(), (Side::Client, ask(stream))]);
        assert_eq!(log[5..7], ["Client http2_bad_head".into(), format!("{stream}: GET h /")]);
    }
    // Trailers may come behind the end of the response.
    let trailers = frame(HEADERS, WHOLE, 3, &field("a", "b"));
    let open = frame(HEADERS, OPEN, 3, &get("/"));
    let log = observe(&[client(&[open]), ended, (Side::Client, trailers)]);
    assert!(!log.iter().any(|it| it.contains("bad_head")), "{log:?}");
}

#[test]
fn refuses_to_follow_more_resets_than_their_own_room_has() {
    let numbers = |count: usize| (0..count).map(|it| 2 * it as u32 + 1);
    let mut http = Http2::new(&MemoryBudget::default());
    let mut log = Log::default();
    // As many as may be open, twice: half of them reset in between.
    let open = |stream: u32| frame(HEADERS, OPEN, stream, &get("/"));
    let all: Vec<_> = numbers(MAX_STREAMS).map(open).collect();
    let resets: Vec<_> = numbers(MAX_STREAMS).step_by(2).map(reset).collect();
    let more: Vec<_> = numbers(3 * MAX_STREAMS / 2).skip(MAX_STREAMS).map(open).collect();
    let bytes = client(&[all.concat(), resets.concat(), more.concat()]).1;
    http.data(Side::Client, &bytes, &mut |it| log.add(it));
    assert_eq!(http.streams.len(), MAX_STREAMS);
    assert_eq!(log.0.iter().filter(|it| it.contains("reset over")).count(), 512 - MAX_RESETS);
    let last = 2 * MAX_STREAMS as u32 - 3;
    let late = [frame(DATA, 0, last, b"new"), frame(DATA, 0, 1, b"old")];
    http.data(Side::Server, &server(&late).1, &mut |it| log.add(it));
    assert!(log.0.ends_with(&[format!("Server {last} new"), "Server 0 old".into()]));
    assert!(!log.0.iter().any(|it| it.contains("http2_")));
    http.finish(&mut |it| log.add(it));
    assert_eq!(log.0.iter().filter(|it| it.contains("reset over")).count(), 512);
    // Nor more of their text, a path and two fields of 5024 bytes each.
    let mut http = Http2::new(&MemoryBudget::default());
    let long = [&[0x82, 0x87, 4, 0x7f, 0xa2, 0x1e][..], "/".repeat(4001).as_bytes()].concat();
    let text = |name| {
        let name = field(name, "");
        [&name[..name.len() - 1], &[0x7f, 0x81, 3], &[b'x'; 512]].concat()
    };
    let long = [long, text("user-agent"), text("content-type")].concat();
    let long = |stream: u32| [frame(HEADERS, WHOLE, stream, &long), reset(stream)].concat();
    let bytes = client(&numbers(100).map(long).collect::<Vec<_>>()).1;
    http.data(Side::Client, &bytes, &mut |_| ());
    assert_eq!((http.text_bytes, http.streams.len()), (0, 0));
    assert_eq!(http.resets.text_bytes() / 5024, MAX_RESET_TEXT / 5024);
}

#[test]
fn accepts_a_limit_of_bodies_and_gaps() {
    let mut http = Http2::new(&MemoryBudget::default());
    let mut log = Log::default();
    let mut sink = |event: Event<'_>| log.add(event);
    http.limit_response_bodies(Some(3));
    http.data(Side::Client, &client(&[frame(HEADERS, WHOLE, 1, &get("/"))]).1, &mut sink);
    let body = [frame(DATA, 0, 1, b"01"), frame(DATA, 0, 1, b"2345")].concat();
    http.data(Side::Server, &[frame(HEADERS, OPEN, 1, OK), body].concat(), &mut sink);
    http.gap(Side::Server, &mut sink);
    http.data(Side::Server, b"EVIL", &mut sink);
    let seen = http.streams[&1].transaction.response.as_ref().unwrap().body_bytes;
    http.finish(&mut sink);
    assert_eq!(seen, 6);
    assert_eq!(
        log.0[2..],
        [
            "1: 200",
            "Server 1 012",
            "Server limit",
            "Server http_gap",
            "Server 0 EVIL",
            "1: over Some(0)"
        ]
    );
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let block = prop_oneof![
        Just(get("/")),
        Just(OK.to_vec()),
        Just(vec![0x40, 1, b'a', 1, b'b']),
        Just(vec![0xbe]),
        Just(vec![0x20]),
        proptest::collection::vec(any::<u8>(), 0..12),
    ];
    let flags = prop_oneof![Just(0), Just(4), Just(5), Just(1), any::<u8>()];
    (prop_oneof![0u8..10, 0u8..2], flags, 0u32..6, block)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// However both directions are cut, the events are the same.
    #[test]
    fn accepts_any_chunking(
        requests in proptest::collection::vec(any_frame(), 0..10),
        responses in proptest::collection::vec(any_frame(), 0..10),
        most in 1usize..40,
    ) {
        let parts = [client(&requests), server(&responses), (Side::Client, requests.concat())];
        prop_assert_eq!(run(&parts, usize::MAX), run(&parts, most));
    }
}
