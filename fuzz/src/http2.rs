//! HTTP/2 as an observer of both directions sees it.
//!
//! Claims: however the bytes are cut, the events are the same; body pieces are never empty; every
//! request that began is over at the end, once.

use std::collections::BTreeMap;

use mmtls_inspect::{AppLayer, Event, Form, Side};

use crate::input::{Input, pieces};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Input: four lengths of pieces, then operations: one byte that says what, and what belongs to it.
pub fn http2(data: &[u8]) {
    let mut input = Input::new(data);
    let lengths = input.take(4);
    let operations = input.all();
    let whole = run(operations, &[]);
    assert_eq!(run(operations, &[1]), whole, "byte by byte");
    assert_eq!(run(operations, lengths), whole, "in pieces");
}

fn run(operations: &[u8], lengths: &[u8]) -> Vec<String> {
    let mut input = Input::new(operations);
    let mut app = AppLayer::new();
    let mut log = Log::default();
    let first = input.u8();
    if first & 1 != 0 {
        app.limit_response_bodies(Some(u64::from(input.u8())));
    }
    app.data(Side::Client, PREFACE, &mut |event| log.add(event));
    while !input.is_empty() {
        let operation = input.u8();
        let side = if operation & 1 == 0 { Side::Client } else { Side::Server };
        let sink = &mut |event: Event<'_>| log.add(event);
        let bytes = match operation >> 1 & 15 {
            0 => {
                app.gap(side, sink);
                continue;
            }
            1 => {
                app.skip(side, u64::from(input.u8()), sink);
                continue;
            }
            2 => {
                app.close(Side::Client, sink);
                app.close(Side::Server, sink);
                break;
            }
            3 | 4 => {
                let len = usize::from(input.u8());
                input.take(len).to_vec()
            }
            // A frame of a stream, so that lengths need not be guessed.
            _ => {
                let (kind, flags, stream) = (input.u8() % 11, input.u8(), input.u8() % 8);
                let len = input.u8();
                let payload = input.take(usize::from(len));
                let head = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
                [&head[..], payload].concat()
            }
        };
        for piece in pieces(&bytes, lengths) {
            app.data(side, piece, sink);
        }
        let _ = (app.wants(side), app.protocol());
    }
    app.finish(&mut |event| log.add(event));
    assert!(log.open.values().all(|&count| count == 0), "transactions");
    log.events
}

/// Events as text, neighbouring body pieces joined: what must not depend on the cut.
#[derive(Default)]
struct Log {
    events: Vec<String>,
    /// Requests that are not over, by number.
    open: BTreeMap<u64, i32>,
}

impl Log {
    fn add(&mut self, event: Event<'_>) {
        match event {
            // The target `codings` looks at them.
            Event::Body(body) if body.form != Form::AsSent => {}
            Event::Anomaly(_, it) if it.name().starts_with("http_content_coding") => {}
            Event::Body(body) => {
                let stream = body.transaction.and_then(|it| it.stream_id);
                self.bytes(&format!("{:?} body {stream:?} ", body.side), body.bytes);
            }
            Event::Data(side, bytes) => self.bytes(&format!("{side:?} data "), bytes),
            other => {
                match other {
                    Event::RequestHead { transaction, .. } => {
                        *self.open.entry(transaction.id.unwrap_or(0)).or_default() += 1;
                    }
                    Event::Complete(it) if it.request.is_some() => {
                        *self.open.entry(it.id.unwrap_or(0)).or_default() -= 1;
                    }
                    _ => {}
                }
                self.events.push(format!("{other:?}"));
            }
        }
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "pieces are not empty");
        let text = bytes.escape_ascii().to_string();
        match self.events.last_mut() {
            Some(last) if last.starts_with(name) => last.push_str(&text),
            _ => self.events.push(format!("{name}{text}")),
        }
    }
}
