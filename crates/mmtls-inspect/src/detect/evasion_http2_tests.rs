//! Ways to carry forbidden text past rules in HTTP/2: see [`super::evasion_tests`].

use super::evasion_tests::Expect::{Cause, Found};
use super::evasion_tests::{CLIENT, SERVER, check, gzip};
use crate::event::Side;
use crate::uninspected::Uninspected::{Malformed, OverCap, UnknownCoding};

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields that are sent as they are, with short names and values.
pub(super) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let coded = |(name, value): &(&str, &str)| {
        let prefixed = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        [&[0][..], &prefixed(name), &prefixed(value)].concat()
    };
    fields.iter().flat_map(coded).collect()
}

const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
pub(super) const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const ONLY: u8 = END_STREAM | END_HEADERS;

/// What a client sends on a connection of HTTP/2.
pub(super) fn client(frames: &[Vec<u8>]) -> (Side, Vec<u8>) {
    let start = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(4, 0, 0, b"")[..]].concat();
    (CLIENT, [start, frames.concat()].concat())
}

pub(super) fn server(frames: &[Vec<u8>]) -> (Side, Vec<u8>) {
    (SERVER, [frame(4, 0, 0, b""), frames.concat()].concat())
}

fn request(path: &str) -> Vec<u8> {
    fields(&[(":method", "GET"), (":scheme", "https"), (":authority", "h"), (":path", path)])
}

#[test]
fn requests_of_http2() {
    let whole = |block: &[u8]| vec![client(&[frame(HEADERS, ONLY, 1, block)])];
    let block = request("/evil");
    let cut = |most: usize| {
        let mut pieces = block.chunks(most);
        let mut frames = vec![frame(HEADERS, END_STREAM, 1, pieces.next().unwrap())];
        frames.extend(pieces.map(|piece| frame(CONTINUATION, 0, 1, piece)));
        frames.push(frame(CONTINUATION, END_HEADERS, 1, b""));
        vec![client(&frames)]
    };
    let flood = |count: usize| {
        let mut frames = vec![frame(HEADERS, END_STREAM, 1, &block)];
        frames.extend((0..count).map(|_| frame(CONTINUATION, 0, 1, b"")));
        vec![client(&frames)]
    };
    let padded = |of: u8| [&[of][..], &block, &vec![0; of.into()]].concat();
    let pseudo = |fields_of: &[(&str, &str)]| whole(&fields(fields_of));
    let get = [(":method", "GET"), (":scheme", "https"), (":authority", "h")];
    let with = |more: &[(&str, &str)]| pseudo(&[&get[..], more].concat());
    let reset = |stream: u32| {
        [frame(HEADERS, ONLY, stream, &block), frame(RST_STREAM, 0, stream, &[0; 4])].concat()
    };
    let rapid: Vec<_> = (0..400).map(|at| reset(2 * at + 1)).collect();
    let open: Vec<_> =
        (0..1100).map(|at| frame(HEADERS, END_HEADERS, 2 * at + 1, &request("/"))).collect();
    let late = frame(HEADERS, ONLY, 3001, &block);
    check(
        "http.uri; content:\"/evil\";",
        vec![
            ("plain", whole(&block), Found),
            ("two frames", cut(10), Found),
            ("a frame for each byte", cut(1), Found),
            ("empty CONTINUATION without end", flood(1000), Cause(OverCap)),
            ("padding", vec![client(&[frame(HEADERS, ONLY | PADDED, 1, &padded(200))])], Found),
            (
                "too much padding",
                vec![client(&[frame(HEADERS, ONLY | PADDED, 1, b"\xffx")])],
                Cause(Malformed),
            ),
            (
                "another frame inside",
                vec![client(&[frame(HEADERS, 0, 1, &block[..9]), frame(6, 0, 0, &[0; 8])])],
                Cause(Malformed),
            ),
            (
                "CONTINUATION of another stream",
                vec![client(&[
                    frame(HEADERS, 0, 1, &block[..9]),
                    frame(CONTINUATION, END_HEADERS, 3, &block[9..]),
                ])],
                Cause(Malformed),
            ),
            ("behind a field", with(&[("x", "y"), (":path", "/evil")]), Cause(Malformed)),
            ("second path", with(&[(":path", "/good"), (":path", "/evil")]), Cause(Malformed)),
            (
                "unknown pseudo-field",
                with(&[(":path", "/good"), (":x-path", "/evil")]),
                Cause(Malformed),
            ),
            ("capital letters", with(&[(":Path", "/evil")]), Cause(Malformed)),
            ("percent", with(&[(":path", "/%65vil")]), Found),
            ("slashes", with(&[(":path", "/a//.\\.%2e/%2Fevil")]), Found),
            ("absolute", with(&[(":path", "https://h/ev%69l")]), Found),
            ("dots", with(&[(":path", "/a/../evil")]), Found),
            ("reset at once", vec![client(&rapid[..1])], Found),
            ("rapid reset", vec![client(&rapid)], Found),
            ("over 1024 streams", vec![client(&[open.concat(), late])], Cause(OverCap)),
            ("bad compression", whole(b"\xff\xff\xff\xff\xff\xff\xff"), Cause(Malformed)),
            (
                "preface cut",
                vec![(
                    CLIENT,
                    [b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", &frame(HEADERS, ONLY, 1, &block)[..]]
                        .concat(),
                )],
                Cause(Malformed),
            ),
        ],
    );
    check(
        "http.host; content:\"evil.test\";",
        vec![
            (
                "authority",
                pseudo(&[(":method", "GET"), (":authority", "evil.test"), (":path", "/")]),
                Found,
            ),
            (
                "only a host",
                pseudo(&[(":method", "GET"), (":path", "/"), ("host", "evil.test")]),
                Found,
            ),
            ("another host", with(&[(":path", "/"), ("host", "evil.test")]), Cause(Malformed)),
        ],
    );
    let body = |more: &[(&str, &str)], frames: &[Vec<u8>]| {
        let head = [&get[..], &[(":path", "/")], more].concat();
        vec![client(&[&[frame(HEADERS, END_HEADERS, 1, &fields(&head))], frames].concat())]
    };
    let data = |flags: u8, bytes: &[u8]| frame(DATA, flags, 1, bytes);
    let other = frame(HEADERS, ONLY, 3, &request("/other"));
    check(
        "http.request_body; content:\"EVIL\";",
        vec![
            ("a frame for each byte", body(&[], &b"EVIL".map(|it| data(0, &[it]))), Found),
            ("another stream between", body(&[], &[data(0, b"EV"), other, data(0, b"IL")]), Found),
            (
                "padding",
                body(&[], &[data(PADDED, b"\x05EV\0\0\0\0\0"), data(PADDED, b"\x02IL\0\0")]),
                Found,
            ),
            (
                "empty frames",
                body(&[], &[data(0, b"EV"), data(0, b"").repeat(300), data(0, b"IL")]),
                Found,
            ),
            ("length of less", body(&[("content-length", "1")], &[data(0, b"EVIL")]), Found),
            ("length of more", body(&[("content-length", "99")], &[data(0, b"EVIL")]), Found),
            (
                "lengths",
                body(&[("content-length", "4"), ("content-length", "x")], &[data(0, b"EVIL")]),
                Found,
            ),
            (
                "transfer coding",
                body(
                    &[("transfer-encoding", "chunked")],
                    &[data(0, b"2\r\nEV\r\n2\r\nIL\r\n0\r\n\r\n")],
                ),
                Cause(Malformed),
            ),
        ],
    );
    let trailer = frame(HEADERS, ONLY, 1, &fields(&[("x", "EVIL")]));
    check(
        "http.header; content:\"EVIL\";",
        vec![("trailer", body(&[], &[data(0, b"x"), trailer]), Found)],
    );
}

#[test]
fn responses_of_http2() {
    let ask = || client(&[frame(HEADERS, ONLY, 1, &request("/"))]);
    let head = |more: &[(&str, &str)]| {
        frame(HEADERS, END_HEADERS, 1, &fields(&[&[(":status", "200")], more].concat()))
    };
    let data = |stream: u32, bytes: &[u8]| frame(DATA, 0, stream, bytes);
    let sent = |frames: &[Vec<u8>]| vec![ask(), server(frames)];
    let plain = head(&[]);
    let coded = gzip(b"EVIL");
    let promise = |promised: u32, path: &str| {
        frame(PUSH_PROMISE, END_HEADERS, 1, &[&promised.to_be_bytes()[..], &request(path)].concat())
    };
    let coded_head = fields(&[(":status", "200"), ("content-encoding", "gzip")]);
    let pushed = frame(HEADERS, END_HEADERS, 2, &coded_head);
    // So much text of requests that not all of it is kept.
    let long = "/".to_owned() + &"x".repeat(4000);
    let mut long_block = fields(&[(":method", "GET"), (":authority", "h")]);
    long_block.extend([&[4, 0x7f, 0xa2, 0x1e][..], long.as_bytes()].concat());
    let many = client(
        &(0..100).map(|at| frame(HEADERS, ONLY, 2 * at + 1, &long_block)).collect::<Vec<_>>(),
    );
    let [last, before] =
        [199, 197].map(|it| frame(HEADERS, END_HEADERS, it, &fields(&[(":status", "200")])));
    let mixed = server(&[last, before, data(199, b"EV"), data(197, b"xx"), data(199, b"IL")]);
    check(
        "flow:to_client; file.data; content:\"EVIL\";",
        vec![
            ("plain", sent(&[plain.clone(), data(1, b"EVIL")]), Found),
            (
                "a frame for each byte",
                sent(&[&[plain.clone()][..], &b"EVIL".map(|it| data(1, &[it]))].concat()),
                Found,
            ),
            (
                "gzip",
                sent(
                    &[
                        &[head(&[("content-encoding", "gzip")])][..],
                        &coded.iter().map(|it| data(1, &[*it])).collect::<Vec<_>>(),
                    ]
                    .concat(),
                ),
                Found,
            ),
            ("length of less", sent(&[head(&[("content-length", "1")]), data(1, b"EVIL")]), Found),
            (
                "after 103",
                sent(&[
                    frame(HEADERS, END_HEADERS, 1, &fields(&[(":status", "103")])),
                    plain.clone(),
                    data(1, b"EVIL"),
                ]),
                Found,
            ),
            (
                "204",
                sent(&[
                    frame(HEADERS, END_HEADERS, 1, &fields(&[(":status", "204")])),
                    data(1, b"EVIL"),
                ]),
                Found,
            ),
            (
                "no status",
                sent(&[frame(HEADERS, END_HEADERS, 1, &fields(&[("x", "y")])), data(1, b"EVIL")]),
                Cause(Malformed),
            ),
            ("no head", sent(&[data(1, b"EVIL")]), Found),
            ("stream that nobody opened", sent(&[data(7, b"EVIL")]), Found),
            ("pushed", sent(&[promise(2, "/p"), pushed, data(2, &coded)]), Found),
            (
                "before its request",
                vec![
                    client(&[]),
                    server(&[frame(HEADERS, END_HEADERS, 1, &coded_head), data(1, &coded[..9])]),
                    (CLIENT, frame(HEADERS, ONLY, 1, &request("/"))),
                    (SERVER, data(1, &coded[9..])),
                ],
                Cause(Malformed),
            ),
            ("among many long requests", vec![many, mixed], Found),
            (
                "gRPC",
                sent(&[
                    head(&[("content-type", "application/grpc"), ("grpc-encoding", "gzip")]),
                    data(1, &coded),
                ]),
                Cause(UnknownCoding),
            ),
        ],
    );
    check("http.uri; content:\"/evil\";", vec![("promised", sent(&[promise(2, "/evil")]), Found)]);
    check(
        "flow:to_client; http.header; content:\"EVIL\";",
        vec![
            ("trailer", sent(&[plain, frame(HEADERS, ONLY, 1, &fields(&[("x", "EVIL")]))]), Found),
            (
                "interim",
                sent(&[frame(
                    HEADERS,
                    END_HEADERS,
                    1,
                    &fields(&[(":status", "103"), ("x", "EVIL")]),
                )]),
                Found,
            ),
            (
                "stream that nobody opened",
                sent(&[frame(HEADERS, ONLY, 7, &fields(&[(":status", "200"), ("x", "EVIL")]))]),
                Found,
            ),
            (
                "third head",
                sent(&[head(&[]), head(&[]), frame(HEADERS, ONLY, 1, &fields(&[("x", "EVIL")]))]),
                Found,
            ),
        ],
    );
}

#[test]
fn responses_behind_a_reset_of_http2() {
    let ask = |stream: u32| frame(HEADERS, ONLY, stream, &request("/"));
    let head = |stream: u32, more: &[(&str, &str)]| {
        frame(HEADERS, END_HEADERS, stream, &fields(&[&[(":status", "200")], more].concat()))
    };
    let gzipped = [("content-encoding", "gzip")];
    let data = |stream: u32, bytes: &[u8]| frame(DATA, 0, stream, bytes);
    let reset = |stream: u32| frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]);
    let coded = gzip(b"EVIL");
    let cut = |first: Vec<Vec<u8>>, behind: Vec<Vec<u8>>| {
        vec![
            client(&[ask(1), ask(3)]),
            server(&first),
            (CLIENT, reset(1)),
            (SERVER, behind.concat()),
        ]
    };
    check(
        "flow:to_client; file.data; content:\"EVIL\";",
        vec![
            ("all of it", cut(vec![], vec![head(1, &[]), data(1, b"EVIL")]), Found),
            ("rest", cut(vec![head(1, &[]), data(1, b"EV")], vec![data(1, b"IL")]), Found),
            ("coded", cut(vec![], vec![head(1, &gzipped), data(1, &coded)]), Found),
            (
                "coded rest",
                cut(vec![head(1, &gzipped), data(1, &coded[..12])], vec![data(1, &coded[12..])]),
                Found,
            ),
            (
                "behind the answer to a later request",
                vec![
                    client(&[ask(1)]),
                    server(&[head(1, &gzipped), data(1, &coded[..12])]),
                    (CLIENT, [reset(1), ask(3)].concat()),
                    (SERVER, [head(3, &[]), data(1, &coded[12..])].concat()),
                ],
                Found,
            ),
            (
                "behind one more request",
                vec![
                    client(&[ask(1)]),
                    server(&[head(1, &gzipped), data(1, &coded[..12])]),
                    (CLIENT, [reset(1), ask(1)].concat()),
                    (SERVER, data(1, &coded[12..])),
                ],
                Found,
            ),
            (
                "of one more request",
                vec![
                    client(&[ask(1)]),
                    server(&[head(1, &[])]),
                    (CLIENT, [reset(1), ask(1)].concat()),
                    (SERVER, [head(1, &gzipped), data(1, &coded)].concat()),
                ],
                Cause(Malformed),
            ),
            (
                "among others",
                cut(
                    vec![head(1, &[]), head(3, &[]), data(1, b"EV")],
                    vec![data(3, b"xx"), data(1, b"IL")],
                ),
                Found,
            ),
        ],
    );
}
