//! Content codings of bodies.
//!
//! Claims: however a coded body is cut, the same comes out of it, and not beyond the caps; where the
//! coding is broken, or one of several alone, whatever comes out of the whole at once also comes out byte by byte.

use std::collections::BTreeMap;

use mmtls_inspect::{AppLayer, Event, Form, Side};

use crate::input::{Input, pieces};

const CODINGS: [&str; 12] = [
    "gzip",
    "deflate",
    "br",
    "zstd",
    "gzip, gzip",
    "deflate, gzip",
    "gzip, deflate, deflate",
    "zstd, br",
    "br, zstd, gzip",
    "identity, br",
    "compress",
    "gzip,gzip,gzip,gzip,gzip,gzip",
];
/// What a body may come to, and a piece beyond it.
const MOST: usize = (64 << 20) + (1 << 20);

/// Input: which codings, four lengths of pieces, then the body.
pub fn codings(data: &[u8]) {
    let mut input = Input::new(data);
    let coding = CODINGS[usize::from(input.u8()) % CODINGS.len()];
    let lengths = input.take(4);
    let body = input.all();
    let bytes = run(coding, body, &[1]);
    for other in [run(coding, body, &[]), run(coding, body, lengths)] {
        if bytes.faults.iter().chain(&other.faults).any(|it| it.ends_with("over_cap")) {
            continue;
        }
        let is_broken = |it: &Outcome| it.faults.iter().any(|it| it.ends_with("malformed"));
        assert_eq!(is_broken(&other), is_broken(&bytes), "{coding}");
        if !is_broken(&bytes) {
            assert_eq!(other.faults, bytes.faults, "{coding}");
            for form in [Form::AsSent, Form::Decoded(0)] {
                assert_eq!(other.out.get(&form), bytes.out.get(&form), "{coding}");
            }
            if !coding.contains(',') {
                assert_eq!(other, bytes, "{coding}");
            }
        }
        // Of several codings each is tried alone, and nobody is told where that is broken.
        for (form, out) in &other.out {
            let all = bytes.out.get(form).map_or(&[][..], |out| out);
            assert!(all.starts_with(out), "{coding}");
        }
    }
}

#[derive(PartialEq, Eq, Default, Debug)]
struct Outcome {
    out: BTreeMap<Form, Vec<u8>>,
    faults: Vec<&'static str>,
}

fn run(coding: &str, body: &[u8], lengths: &[u8]) -> Outcome {
    let mut app = AppLayer::new();
    let mut outcome = Outcome::default();
    let sink = &mut |event: Event<'_>| match event {
        Event::Body(body) => {
            assert!(!body.bytes.is_empty(), "body pieces are not empty");
            let out = outcome.out.entry(body.form).or_default();
            out.extend_from_slice(body.bytes);
            assert!(out.len() <= MOST, "{coding}");
        }
        Event::Anomaly(_, anomaly) => outcome.faults.push(anomaly.name()),
        _ => {}
    };
    app.data(Side::Client, b"GET / HTTP/1.1\r\n\r\n", sink);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n");
    app.data(Side::Server, head.as_bytes(), sink);
    for piece in pieces(body, lengths) {
        app.data(Side::Server, piece, sink);
    }
    app.close(Side::Server, sink);
    app.finish(sink);
    outcome.faults.sort_unstable();
    outcome
}
