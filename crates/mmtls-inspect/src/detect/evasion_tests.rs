//! Ways to carry forbidden text past rules, and what becomes of each.
//!
//! Whatever some endpoint may read as the forbidden text is found, or a cause is raised that an operator can
//! have reset. Each row runs whole, in pieces of seven bytes and byte by byte. A row that does neither is
//! listed as open, with the reason.

use std::collections::BTreeSet;
use std::io::Write;

use super::rule_tests::{http, matcher};
use super::*;
use crate::event::{Event, Side};
use crate::uninspected::Uninspected;
use crate::{AppLayer, MemoryBudget};
use Expect::{Cause, Found, Open};
use Uninspected::{Malformed, OverCap, UnknownCoding, UnknownProtocol};

pub(super) const CLIENT: Side = Side::Client;
pub(super) const SERVER: Side = Side::Server;

/// What becomes of a row, however it is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expect {
    /// The rule matches.
    Found,
    /// This cause is raised, which can be set to reset.
    Cause(Uninspected),
    /// Neither, and why.
    Open(&'static str),
}

pub(super) type Parts = Vec<(Side, Vec<u8>)>;

/// Whether a rule matches, and the causes that are raised.
fn seen(matcher: &Matcher, parts: &Parts, chunk: usize) -> (bool, BTreeSet<Uninspected>) {
    let mut app = AppLayer::new();
    let ends = ["10.0.0.1:40000", "192.0.2.7:443"].map(|text| text.parse().unwrap());
    let mut state = FlowState::new(1, ends[0], ends[1]);
    let (mut found, mut causes) = (false, BTreeSet::new());
    let mut cx = Context {
        matcher,
        shared: &Shared::default(),
        budget: &MemoryBudget::default(),
        scratch: &mut Scratch::default(),
        now_ns: 0,
    };
    for (side, bytes) in parts {
        for piece in bytes.chunks(chunk) {
            app.data(*side, piece, &mut |event| {
                let cause = match event {
                    Event::Anomaly(_, anomaly) => anomaly.uninspected(),
                    Event::Data(..) => Some(UnknownProtocol),
                    _ => None,
                };
                causes.extend(cause);
                state.event(&mut cx, &event, &mut |detected| match detected {
                    Detected::Match(_) => found = true,
                    Detected::Uninspected(_, cause) => drop(causes.insert(cause)),
                });
            });
        }
    }
    (found, causes)
}

/// Runs rows of a name, what is sent, and what becomes of it, with one rule. Nothing may depend on the end of
/// the connection: what is found then has gone on.
pub(super) fn check(rule: &str, rows: Vec<(&str, Parts, Expect)>) {
    let matcher = matcher(&http(&[rule]));
    let mut wrong = Vec::new();
    for (name, parts, expected) in rows {
        for chunk in [usize::MAX, 7, 1] {
            let (found, causes) = seen(&matcher, &parts, chunk);
            let is_so = match expected {
                Found => found,
                Cause(cause) => causes.contains(&cause),
                Open(_) => !found && causes.is_empty(),
            };
            if !is_so {
                wrong.push(format!(
                    "{name}: in pieces of {chunk}: {expected:?}, but {found} {causes:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{rule}\n{}", wrong.join("\n"));
}

pub(super) const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// Rows of responses, as they are sent.
fn check_responses(rows: Vec<(&str, Vec<u8>, Expect)>) {
    let whole = |(name, response, expected)| {
        (name, vec![(CLIENT, GET.into()), (SERVER, response)], expected)
    };
    check("flow:to_client; file.data; content:\"EVIL\";", rows.into_iter().map(whole).collect());
}

/// Rows of requests, as they are sent.
pub(super) fn check_requests(rule: &str, rows: Vec<(&str, Vec<u8>, Expect)>) {
    let whole = |(name, request, expected)| (name, vec![(CLIENT, request)], expected);
    check(rule, rows.into_iter().map(whole).collect());
}

/// A response of fields, each with its line end, and a body.
pub(super) fn ok(fields: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    [b"HTTP/1.1 200 OK\r\n", fields.as_bytes(), b"\r\n", body.as_ref()].concat()
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[test]
fn chunked_bodies() {
    let chunked = |body: &str| ok(CHUNKED, body);
    let by = |field: &str| ok(field, "2\r\nEV\r\n2\r\nIL\r\n0\r\n\r\n");
    // Content for whoever takes no coding off.
    let by_none = |field: &str| ok(&format!("{field}Connection: close\r\n"), "0;EVIL\r\n\r\n");
    check_responses(vec![
        ("plain", chunked("4\r\nEVIL\r\n0\r\n\r\n"), Found),
        ("one byte each", chunked("1\r\nE\r\n1\r\nV\r\n1\r\nI\r\n1\r\nL\r\n0\r\n\r\n"), Found),
        ("extension", chunked("2;a=b\r\nEV\r\n2 ;c\r\nIL\r\n0\r\n\r\n"), Found),
        ("extension that quotes a chunk", chunked("2;a=\"x\r\nEV\r\n2\r\nIL\r\n0\r\n\r\n"), Found),
        ("LF in an extension", chunked("2;\nEV\r\n2\r\nIL\r\n0\r\n\r\n"), Cause(Malformed)),
        ("zeros", chunked("0000000000000002\r\nEV\r\n02\r\nIL\r\n0\r\n\r\n"), Found),
        ("many zeros", chunked("00000000000000002\r\nEV\r\n2\r\nIL\r\n"), Cause(Malformed)),
        ("too large", chunked("10000000000000002\r\nEV\r\n2\r\nIL\r\n"), Cause(Malformed)),
        ("0x", chunked("0x2\r\nEV\r\n0x2\r\nIL\r\n0\r\n\r\n"), Cause(Malformed)),
        ("sign", chunked("+2\r\nEV\r\n+2\r\nIL\r\n0\r\n\r\n"), Cause(Malformed)),
        ("underscore", chunked("0_2\r\nEV\r\n0_2\r\nIL\r\n0\r\n\r\n"), Cause(Malformed)),
        ("blank in front", chunked(" 2\r\nEV\r\n 2\r\nIL\r\n0\r\n\r\n"), Cause(Malformed)),
        ("CR in a size", chunked("2\rx\r\nEV\r\n2\r\nIL\r\n0\r\n\r\n"), Cause(Malformed)),
        ("bare LF", chunked("2\nEV\r\n2\nIL\r\n0\n\n"), Found),
        ("bare LF behind data", chunked("2\r\nEV\n2\r\nIL\n0\r\n\r\n"), Cause(Malformed)),
        ("no line end behind data", chunked("2\r\nEV2\r\nIL0\r\n\r\n"), Cause(Malformed)),
        ("behind the last chunk", chunked("0\r\n\r\nEVIL"), Cause(Malformed)),
        ("not chunked at all", chunked("EVIL"), Cause(Malformed)),
        ("case", by("tRANSFER-eNCODING: cHUNKED\r\n"), Found),
        (
            "twice",
            by("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
            Cause(UnknownCoding),
        ),
        ("list", by("Transfer-Encoding: chunked, chunked\r\n"), Cause(UnknownCoding)),
        ("identity behind", by("Transfer-Encoding: chunked, identity\r\n"), Cause(UnknownCoding)),
        ("identity in front", by("Transfer-Encoding: identity, chunked\r\n"), Found),
        // Python and Java compare the whole value, and see no coding.
        (
            "extension, identity in front",
            by_none("Transfer-Encoding: identity, chunked\r\n"),
            Cause(UnknownCoding),
        ),
        (
            "extension, nothing in front",
            by_none("Transfer-Encoding: ,chunked\r\n"),
            Cause(UnknownCoding),
        ),
        ("unknown", by("Transfer-Encoding: xchunked\r\n"), Cause(UnknownCoding)),
        ("vertical tab", by("Transfer-Encoding: \x0bchunked\r\n"), Cause(Malformed)),
        ("NUL", by("Transfer-Encoding: chunked\0\r\n"), Cause(Malformed)),
        ("bare CR", by("Transfer-Encoding:\rchunked\r\n"), Cause(Malformed)),
        ("blank behind the name", by("Transfer-Encoding : chunked\r\n"), Found),
        // To curl it is another field.
        (
            "extension, blank behind the name",
            by_none("Transfer-Encoding : chunked\r\n"),
            Cause(Malformed),
        ),
        ("folded", by("Transfer-Encoding:\r\n chunked\r\n"), Cause(Malformed)),
        ("behind a fold", by("X: a\r\n Transfer-Encoding: chunked\r\n"), Cause(Malformed)),
        (
            "HTTP/1.0",
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nEV\r\n2\r\nIL\r\n".to_vec(),
            Cause(Malformed),
        ),
        ("with a length", by("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n"), Found),
        ("with a false length", by("Content-Length: x\r\nTransfer-Encoding: chunked\r\n"), Found),
    ]);
}

#[test]
fn lengths() {
    let long = |length: &str| ok(&format!("Content-Length:{length}\r\n"), "EVIL");
    check_responses(vec![
        ("list of equal ones", long(" 4, 4"), Found),
        ("two equal fields", ok("Content-Length: 4\r\nContent-Length: 4\r\n", "EVIL"), Found),
        (
            "two different fields",
            ok("Content-Length: 1\r\nContent-Length: 4\r\n", "EVIL"),
            Cause(Malformed),
        ),
        ("list", long(" 1, 4"), Cause(Malformed)),
        ("sign", long(" +4"), Cause(Malformed)),
        ("negative", long(" -4"), Cause(Malformed)),
        ("hexadecimal", long(" 0x4"), Cause(Malformed)),
        ("blank inside", long(" 4 4"), Cause(Malformed)),
        ("fraction", long(" 4.0"), Cause(Malformed)),
        ("over 64 bits", long(" 18446744073709551617"), Cause(Malformed)),
        ("nothing", long(""), Cause(Malformed)),
        ("zeros", long(" 0000000000000000000000000000004"), Found),
        ("folded", long("\r\n 1"), Cause(Malformed)),
        ("too short", ok("Content-Length: 1\r\n", "xEVIL"), Cause(Malformed)),
        ("nothing of it", ok("Content-Length: 0\r\n", "EVIL"), Cause(Malformed)),
        ("too long", ok("Content-Length: 400\r\n", "EVIL"), Found),
        ("none", ok("", "EVIL"), Found),
        ("until close", b"HTTP/1.0 200 OK\r\n\r\nEVIL".to_vec(), Found),
    ]);
}

#[test]
fn heads_of_responses() {
    let coded = gzip(b"EVIL");
    let len = coded.len();
    let with = |coding: &str| ok(&format!("{coding}Content-Length: {len}\r\n"), &coded);
    let text = |text: &str| text.as_bytes().to_vec();
    // The next response to browsers, or to Python; the content of this one to others.
    let within = |status: &str| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: 1000000\r\n\r\n");
        [text(&head), with("Content-Encoding: gzip\r\n")].concat()
    };
    check_responses(vec![
        ("LF", text("HTTP/1.1 200 OK\nContent-Length: 4\n\nEVIL"), Found),
        ("LF and CR LF", text("HTTP/1.1 200 OK\r\nContent-Length: 4\n\r\nEVIL"), Found),
        ("CR alone", text("HTTP/1.1 200 OK\rContent-Length: 0\r\n\r\nEVIL"), Cause(Malformed)),
        ("NUL", text("HTTP/1.1 200 OK\r\nX: \0\r\n\r\nEVIL"), Cause(Malformed)),
        ("no reason", text("HTTP/1.1 200\r\n\r\nEVIL"), Found),
        ("line without colon", ok("nonsense\r\nContent-Length: 4\r\n", "EVIL"), Found),
        ("HTTP/0.9", text("<html>EVIL"), Cause(Malformed)),
        ("HTTP/1.2", text("HTTP/1.2 200 OK\r\n\r\nEVIL"), Cause(Malformed)),
        ("HTTP/2.0", text("HTTP/2.0 200 OK\r\n\r\nEVIL"), Cause(Malformed)),
        ("small letters", text("http/1.1 200 OK\r\n\r\nEVIL"), Cause(Malformed)),
        ("ICY", text("ICY 200 OK\r\n\r\nEVIL"), Cause(Malformed)),
        ("bad status", text("HTTP/1.1 20 OK\r\n\r\nEVIL"), Cause(Malformed)),
        ("64 KiB", ok(&format!("X: {}\r\n", "x".repeat(66_000)), "EVIL"), Cause(OverCap)),
        ("200 fields", ok(&"X: y\r\n".repeat(200), "EVIL"), Cause(Malformed)),
        ("folded coding", with("Content-Encoding:\r\n\tgzip\r\n"), Found),
        ("coding behind a fold", with("X: a\r\n Content-Encoding: gzip\r\n"), Cause(Malformed)),
        ("blank behind coding's name", with("Content-Encoding : gzip\r\n"), Found),
        ("coding with NUL", with("Content-Encoding: gzip\0\r\n"), Cause(Malformed)),
        (
            "interim with a body",
            text("HTTP/1.1 100 C\r\nContent-Length: 4\r\n\r\nEVILHTTP/1.1 200 OK\r\n\r\n"),
            Cause(Malformed),
        ),
        (
            "behind interims",
            [text("HTTP/1.1 103 E\r\nX: y\r\n\r\n").repeat(9), ok("", "EVIL")].concat(),
            Found,
        ),
        ("204", text("HTTP/1.1 204 N\r\nContent-Length: 4\r\n\r\nEVIL"), Cause(Malformed)),
        ("304", text("HTTP/1.1 304 N\r\nContent-Length: 4\r\n\r\nEVIL"), Cause(Malformed)),
        ("205", text("HTTP/1.1 205 R\r\nContent-Length: 4\r\n\r\nEVIL"), Found),
        ("101 unasked", text("HTTP/1.1 101 S\r\nUpgrade: x\r\n\r\nEVIL"), Found),
        ("205 without a length", text("HTTP/1.1 205 R\r\n\r\nEVIL"), Cause(Malformed)),
        (
            "response behind a 205 without a length",
            [text("HTTP/1.1 205 R\r\n\r\n"), ok("X: EVIL\r\n", "")].concat(),
            Cause(Malformed),
        ),
        ("response inside a 205", within("205 R"), Cause(Malformed)),
        ("response inside a 101 unasked", within("101 S"), Cause(Malformed)),
        (
            "second response",
            [ok("Content-Length: 0\r\n", ""), ok("Content-Length: 4\r\n", "EVIL")].concat(),
            Found,
        ),
    ]);
    let head = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n";
    let upgrade = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: x\r\n\r\n";
    let connect = "CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n";
    let row = |name, request: &str, response: Vec<u8>, expected| {
        (name, vec![(CLIENT, request.into()), (SERVER, response)], expected)
    };
    let mut begun = with("Content-Encoding: gzip\r\n");
    let rest = begun.split_off(begun.len() - len + 5);
    let far = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(4000)).repeat(20).into_bytes();
    let early = vec![
        (CLIENT, b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n1".to_vec()),
        (SERVER, [ok("Content-Length: 0\r\n", ""), begun.clone()].concat()),
        (CLIENT, [b"2", GET.as_bytes()].concat()),
        (SERVER, rest.clone()),
    ];
    let pipelined = vec![(CLIENT, GET.into()), (SERVER, begun), (CLIENT, far), (SERVER, rest)];
    let empty = ok("Content-Length: 0\r\n", "");
    let crossing = vec![
        (CLIENT, GET.into()),
        (SERVER, [empty, ok("Content-Length: 1000000\r\n", "")].concat()),
        (CLIENT, head.into()),
        (SERVER, with("Content-Encoding: gzip\r\n")),
    ];
    check(
        "flow:to_client; file.data; content:\"EVIL\";",
        vec![
            row("HEAD", head, ok("Content-Length: 4\r\n", "EVIL"), Cause(Malformed)),
            row("CONNECT", connect, ok("", "EVIL"), Cause(UnknownProtocol)),
            row("upgrade", upgrade, text("HTTP/1.1 101 S\r\n\r\nEVIL"), Cause(UnknownProtocol)),
            row(
                "upgrade to two protocols",
                upgrade,
                text("HTTP/1.1 101 S\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n\r\n"),
                Cause(Malformed),
            ),
            ("many requests behind a response's head", pipelined, Found),
            ("end of the request before behind a response's head", early, Found),
            ("HEAD that crosses a response", crossing, Cause(Malformed)),
            ("before the request", vec![(SERVER, ok("", "EVIL")), (CLIENT, GET.into())], Found),
            (
                "no head before the request",
                vec![(SERVER, text("EVIL")), (CLIENT, GET.into())],
                Cause(Malformed),
            ),
            (
                "no head before the end of the request",
                vec![(CLIENT, text("GET / HTTP/1.1\r\n")), (SERVER, text("EVIL"))],
                Cause(Malformed),
            ),
            (
                "answer to a request without version",
                vec![(CLIENT, text("GET /\r\n")), (SERVER, text("EVIL"))],
                Cause(UnknownProtocol),
            ),
            (
                "later answer to a request without version",
                vec![
                    (CLIENT, GET.into()),
                    (SERVER, ok("Content-Length: 0\r\n", "")),
                    (CLIENT, text("GET /\r\n")),
                ],
                Cause(Malformed),
            ),
        ],
    );
    check(
        "flow:to_client; http.header; content:\"EVIL\";",
        vec![
            row("interim", GET, text("HTTP/1.1 103 E\r\nX: EVIL\r\n\r\n"), Found),
            row("trailer", GET, ok(CHUNKED, "0\r\nX: EVIL\r\n\r\n"), Found),
            row(
                "trailer behind many",
                GET,
                ok(CHUNKED, format!("0\r\n{}X: EVIL\r\n\r\n", "a: b\r\n".repeat(6000))),
                Cause(OverCap),
            ),
            row("trailer with LF", GET, ok(CHUNKED, "0\r\n\tX:\n EVIL\n\n"), Found),
            row(
                "repeated",
                GET,
                ok(&["X: y\r\n".repeat(100), "X: EVIL\r\n".into()].concat(), ""),
                Cause(OverCap),
            ),
            row("folded", GET, ok("X: a\r\n EVIL\r\n", ""), Found),
            row("line without colon", GET, ok("EVIL\r\n", ""), Found),
        ],
    );
}

pub(super) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn zlib(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

pub(super) fn deflate(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let mut coded = vec![0; zstd_safe::compress_bound(text.len())];
    let len = zstd_safe::compress(&mut coded[..], text, 19).unwrap();
    coded.truncate(len);
    coded
}

#[test]
fn content_codings() {
    // Letters that are not stored as they are.
    let mut state = 1u32;
    let mut text: Vec<u8> = (0..4000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b"eeeeeettaaoinsh\n"[(state >> 28) as usize]
        })
        .collect();
    text[2000..2004].copy_from_slice(b"EVIL");
    let hidden = |coded: Vec<u8>| {
        assert!(!coded.windows(4).any(|it| it == b"EVIL"), "{}", coded.escape_ascii());
        coded
    };
    let with = |coding: &str, body: Vec<u8>| ok(&format!("Content-Encoding: {coding}\r\n"), body);
    let [gz, zl, raw, zs] = [gzip(&text), zlib(&text), deflate(&text), zstd(&text)].map(hidden);
    let (first, second) = text.split_at(2002);
    let members = [gzip(first), gzip(second)].concat();
    let frames = [zstd(first), b"\x50\x2a\x4d\x18\x02\0\0\0xx".to_vec(), zstd(second)].concat();
    let mut reserved = gz.clone();
    reserved[3] = 0xe0;
    let mut named = gz.clone();
    named[3] = 0x1e;
    named.splice(10..10, *b"\x02\0xxname\0comment\0hc");
    let mut bad_check = gz.clone();
    let end = bad_check.len();
    bad_check[end - 8..].fill(0x55);
    let mut cut = gz.clone();
    cut.truncate(gz.len() - 9);
    let in_chunks = |fields: &str| {
        let size = format!("{:x}\r\n", gz.len());
        ok(fields, [size.as_bytes(), &gz, b"\r\n0\r\n\r\n"].concat())
    };
    check_responses(vec![
        ("gzip", with("gzip", gz.clone()), Found),
        ("x-gzip", with("X-GZip", gz.clone()), Found),
        ("zlib", with("deflate", zl.clone()), Found),
        ("raw deflate", with("deflate", raw.clone()), Found),
        ("zstd", with("zstd", zs.clone()), Found),
        ("gzip named deflate", with("deflate", gz.clone()), Cause(Malformed)),
        ("zlib named gzip", with("gzip", zl.clone()), Found),
        ("raw deflate named gzip", with("gzip", raw.clone()), Cause(Malformed)),
        ("gzip twice", with("gzip, gzip", gzip(&gz)), Found),
        ("gzip twice in two fields", with("gzip\r\nContent-Encoding: gzip", gzip(&gz)), Found),
        ("gzip once, named twice", with("gzip, gzip", gz.clone()), Cause(Malformed)),
        (
            "gzip twice, named once",
            with("gzip", gzip(&gz)),
            Open("a coding that nobody names is content"),
        ),
        ("gzip not named", ok("", &gz), Open("a coding that nobody names is content")),
        ("stack", with("gzip, deflate, zstd", zstd(&zlib(&gz))), Found),
        ("six", with("gzip, gzip, gzip, gzip, gzip, gzip", gz.clone()), Cause(OverCap)),
        ("identity among them", with("identity, , gzip", gz.clone()), Found),
        ("weight", with("gzip;q=1", gz.clone()), Cause(UnknownCoding)),
        ("quoted", with("\"gzip\"", gz.clone()), Cause(UnknownCoding)),
        ("compress", with("compress", gz.clone()), Cause(UnknownCoding)),
        ("transfer coding", ok("Transfer-Encoding: gzip\r\n", &gz), Found),
        ("transfer coding in chunks", in_chunks("Transfer-Encoding: gzip, chunked\r\n"), Found),
        (
            "transfer coding that some do not know",
            in_chunks("Transfer-Encoding: gzip, chunked\r\n"),
            Cause(UnknownCoding),
        ),
        (
            "beside a coding that nobody knows",
            in_chunks("Content-Encoding: gzip\r\nTransfer-Encoding: x, chunked\r\n"),
            Found,
        ),
        (
            "both, coded once",
            in_chunks("Content-Encoding: gzip\r\nTransfer-Encoding: gzip, chunked\r\n"),
            Cause(Malformed),
        ),
        ("named, but as it is", with("gzip", text.clone()), Found),
        ("members", with("gzip", members), Found),
        ("frames", with("zstd", frames), Found),
        ("junk behind", with("gzip", [&gz[..], b"junk"].concat()), Found),
        ("text behind", with("gzip", [&gzip(b"x")[..], b"EVIL"].concat()), Found),
        ("junk in front", with("gzip", [b"\n", &gz[..]].concat()), Cause(Malformed)),
        ("name, comment, check", with("gzip", named), Found),
        ("reserved flags", with("gzip", reserved), Found),
        ("wrong checksum", with("gzip", bad_check), Found),
        ("cut", with("gzip", cut), Found),
        ("fault behind", with("deflate", [&raw[..raw.len() - 1], &[0xff; 99]].concat()), Found),
        (
            "chunked",
            {
                let chunks: Vec<u8> =
                    gz.iter().flat_map(|&it| [b'1', b'\r', b'\n', it, b'\r', b'\n']).collect();
                ok(
                    &format!("Content-Encoding: gzip\r\n{CHUNKED}"),
                    [&chunks[..], b"0\r\n\r\n"].concat(),
                )
            },
            Found,
        ),
        (
            "bomb",
            with("gzip", gzip(&gzip(&vec![0; 80 << 20]))),
            Open("a coding that nobody names is content"),
        ),
        ("bomb of two", with("gzip, gzip", gzip(&gzip(&vec![0; 80 << 20]))), Cause(OverCap)),
        (
            "UTF-16",
            ok("Content-Type: text/html; charset=utf-16le\r\n", "E\0V\0I\0L\0"),
            Open("no character set is decoded"),
        ),
        ("UTF-16 with a mark", ok("", "\u{feff}E\0V\0I\0L\0"), Open("no character set is decoded")),
        (
            "UTF-7",
            ok("Content-Type: text/html; charset=utf-7\r\n", "+AEUAVgBJAEw-"),
            Open("no character set is decoded"),
        ),
    ]);
}

#[test]
fn requests() {
    let get = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n").into_bytes();
    let uri = |target: &str| get(&format!("GET {target} HTTP/1.1"), "Host: h\r\n");
    let once = "applied once, as Suricata does";
    check_requests(
        "http.uri; content:\"/evil\";",
        vec![
            ("plain", uri("/evil"), Found),
            ("percent", uri("/%65v%69l"), Found),
            ("percent twice", uri("/%2565vil"), Open(once)),
            ("dots", uri("/a/../evil"), Found),
            ("coded dots", uri("/a/%2e%2e/evil"), Found),
            ("dot", uri("/./evil"), Found),
            ("slashes", uri("//evil"), Found),
            ("coded slash", uri("%2fevil"), Found),
            ("backslash", uri("\\evil"), Found),
            ("NUL", uri("/%00/evil"), Found),
            ("absolute", uri("http://h/evil"), Found),
            ("absolute with a user", uri("http://a@h:80/evil"), Found),
            ("blank inside", uri("/a /evil"), Cause(Malformed)),
            ("two blanks", get("GET  /evil HTTP/1.1", "Host: h\r\n"), Cause(Malformed)),
            ("tabs", get("GET\t/evil\tHTTP/1.1", "Host: h\r\n"), Cause(UnknownProtocol)),
            ("blank in front", get(" GET /evil HTTP/1.1", "Host: h\r\n"), Cause(UnknownProtocol)),
            ("empty lines in front", get("\r\n\n\r\nGET /evil HTTP/1.1", "Host: h\r\n"), Found),
            ("no version", b"GET /evil\r\n".to_vec(), Cause(UnknownProtocol)),
            ("HTTP/0.9", get("GET /evil HTTP/0.9", ""), Cause(Malformed)),
            ("HTTP/0.9, a line", b"GET /evil HTTP/0.9\r\n".to_vec(), Cause(Malformed)),
            ("HTTP/2.0", get("GET /evil HTTP/2.0", "Host: h\r\n"), Cause(Malformed)),
            ("dots behind", uri("/evil/../x"), Found),
            ("coded dots behind", uri("/%65vil/%2e%2e/x"), Found),
            ("dots in a query", uri("/x?/../evil"), Found),
            ("HTTP/1.2", get("GET /evil HTTP/1.2", "Host: h\r\n"), Cause(Malformed)),
            ("HTTP/1.10", get("GET /evil HTTP/1.10", "Host: h\r\n"), Cause(Malformed)),
            ("HTTP/01.1", get("GET /evil HTTP/01.1", "Host: h\r\n"), Cause(UnknownProtocol)),
            ("small letters", get("GET /evil http/1.1", "Host: h\r\n"), Cause(UnknownProtocol)),
            ("bytes over 127", uri("/\u{e9}/evil"), Found),
            ("LF", b"GET /evil HTTP/1.1\nHost: h\n\n".to_vec(), Found),
            ("CR", b"GET /evil HTTP/1.1\rHost: h\r\r\n\r\n".to_vec(), Cause(UnknownProtocol)),
            ("NUL in the head", get("GET /evil HTTP/1.1", "Host: h\r\nX: \0\r\n"), Cause(Malformed)),
            ("NUL in the line", get("GET /evil\0 HTTP/1.1", "Host: h\r\n"), Cause(Malformed)),
            ("folded", get("GET /evil HTTP/1.1", "Host: h\r\nX: a\r\n b\r\n"), Cause(Malformed)),
            ("no colon", get("GET /evil HTTP/1.1", "Host: h\r\nnonsense\r\n"), Cause(Malformed)),
            ("200 fields", get("GET /evil HTTP/1.1", &"X: y\r\n".repeat(200)), Cause(Malformed)),
            ("64 KiB", get("GET /evil HTTP/1.1", &format!("X: {}\r\n", "x".repeat(66_000))), Cause(OverCap)),
            ("long method", get(&format!("{} /evil HTTP/1.1", "M".repeat(99)), ""), Found),
            ("behind a body", b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nxxGET /evil HTTP/1.1\r\n\r\n".to_vec(), Found),
            ("other versions", get("GET /evil HTTP/3.0", ""), Cause(UnknownProtocol)),
            ("behind chunks", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n".to_vec(), Found),
            ("300 requests ahead", [uri("/").repeat(300), uri("/evil")].concat(), Found),
        ],
    );
    // A request that one server finds where another one still reads a body.
    let hidden = |fields: &str, body: &str| {
        format!(
            "POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}GET /evil HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        .into_bytes()
    };
    let chunk = "2b\r\n";
    check_requests(
        "http.uri; content:\"/evil\";",
        vec![
            ("length and coding", hidden("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", chunk), Cause(Malformed)),
            ("coding and length", hidden("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", chunk), Cause(Malformed)),
            ("two lengths", hidden("Content-Length: 0\r\nContent-Length: 43\r\n", ""), Cause(Malformed)),
            ("length that is none", hidden("Content-Length: 0x2b\r\n", ""), Cause(Malformed)),
            ("unknown coding", hidden("Transfer-Encoding: xchunked\r\n", ""), Cause(UnknownCoding)),
            (
                "length and unknown coding",
                hidden("Content-Length: 0\r\nTransfer-Encoding: x\r\n", ""),
                Cause(Malformed),
            ),
            ("coding behind chunked", hidden("Transfer-Encoding: chunked, x\r\n", ""), Cause(UnknownCoding)),
            ("coding before chunked", hidden("Transfer-Encoding: x, chunked\r\n", chunk), Cause(UnknownCoding)),
            ("chunked twice", hidden("Transfer-Encoding: chunked, chunked\r\n", chunk), Cause(UnknownCoding)),
            ("blank behind the name", hidden("Transfer-Encoding : chunked\r\n", chunk), Cause(Malformed)),
            ("folded", hidden("Transfer-Encoding:\r\n chunked\r\n", chunk), Cause(Malformed)),
            ("vertical tab", hidden("Transfer-Encoding: \x0bchunked\r\n", chunk), Cause(Malformed)),
            ("LF in an extension", hidden(CHUNKED, "2;\nxx\r\n2b\r\n"), Cause(Malformed)),
            ("no CR behind data", hidden(CHUNKED, "2\r\nxx\n2b\r\n"), Cause(Malformed)),
            ("HTTP/1.0", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2b\r\nGET /evil HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(), Cause(Malformed)),
            ("CONNECT", b"CONNECT h:1 HTTP/1.1\r\n\r\nGET /evil HTTP/1.1\r\n\r\n".to_vec(), Cause(UnknownProtocol)),
        ],
    );
    check_requests(
        "http.host; content:\"evil.test\";",
        vec![
            ("field", get("GET / HTTP/1.1", "Host: evil.test\r\n"), Found),
            ("port", get("GET / HTTP/1.1", "Host: EVIL.test:443\r\n"), Found),
            ("target", get("GET http://evil.test/ HTTP/1.1", "Host: good.test\r\n"), Found),
            (
                "field beside a target",
                get("GET http://good.test/ HTTP/1.1", "Host: evil.test\r\n"),
                Cause(Malformed),
            ),
            (
                "second field",
                get("GET / HTTP/1.1", "Host: good.test\r\nHost: evil.test\r\n"),
                Cause(Malformed),
            ),
            ("first field", get("GET / HTTP/1.1", "Host: evil.test\r\nHost: good.test\r\n"), Found),
            (
                "blank behind the name",
                get("GET / HTTP/1.1", "Host : evil.test\r\n"),
                Cause(Malformed),
            ),
            ("CONNECT", get("CONNECT evil.test:443 HTTP/1.1", "Host: evil.test\r\n"), Found),
        ],
    );
    let post = |fields: &str, body: &[u8]| {
        [format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n").as_bytes(), body].concat()
    };
    let coded = gzip(b"EVIL");
    let with = format!("Content-Encoding: gzip\r\nContent-Length: {}\r\n", coded.len());
    let far = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(4000)).repeat(20).into_bytes();
    check_requests(
        "http.request_body; content:\"EVIL\";",
        vec![
            ("gzip", post(&with, &coded), Found),
            (
                "behind 100-continue",
                post("Expect: 100-continue\r\nContent-Length: 4\r\n", b"EVIL"),
                Found,
            ),
            ("GET", b"GET / HTTP/1.1\r\nContent-Length: 4\r\n\r\nEVIL".to_vec(), Found),
            ("chunks", post(CHUNKED, b"2\r\nEV\r\n2\r\nIL\r\n0\r\n\r\n"), Found),
            ("far behind in a pipeline", [&far[..], &post(&with, &coded)].concat(), Cause(OverCap)),
        ],
    );
    check_requests(
        "http.header; content:\"EVIL\";",
        vec![
            ("trailer", post(CHUNKED, b"0\r\nX: EVIL\r\n\r\n"), Found),
            (
                "repeated",
                get("GET / HTTP/1.1", &["X: y\r\n".repeat(100), "X: EVIL\r\n".into()].concat()),
                Cause(OverCap),
            ),
        ],
    );
}
