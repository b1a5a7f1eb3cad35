//! HTTP/1, and the recognition of other protocols, as an observer of both directions sees them.
//!
//! Claims: however the bytes are cut, the events are the same; body pieces are never empty; every
//! transaction that began is over at the end, once.

use mmtls_inspect::{AppLayer, Event, Form, Side};

use crate::input::{Input, pieces};

/// Input: four lengths of pieces, then operations: one byte that says what, its length, its bytes.
pub fn http1(data: &[u8]) {
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
    while !input.is_empty() {
        let operation = input.u8();
        let side = if operation & 1 == 0 { Side::Client } else { Side::Server };
        let sink = &mut |event: Event<'_>| log.add(event);
        match operation >> 1 & 7 {
            0 => app.gap(side, sink),
            1 => app.skip(side, u64::from(input.u8()), sink),
            2 => {
                app.close(Side::Client, sink);
                app.close(Side::Server, sink);
                break;
            }
            3 => {
                let count = u64::from(input.u32());
                app.skip(side, count, sink);
            }
            kind => {
                let len = if kind < 6 { usize::from(input.u8()) } else { input.u16().into() };
                for piece in pieces(input.take(len), lengths) {
                    app.data(side, piece, sink);
                }
            }
        }
        let _ = (app.wants(side), app.protocol());
    }
    app.finish(&mut |event| log.add(event));
    assert_eq!(log.began, log.ended, "transactions");
    log.events
}

/// Events as text, neighbouring body pieces joined: what must not depend on the cut.
#[derive(Default)]
struct Log {
    events: Vec<String>,
    began: u64,
    ended: u64,
}

impl Log {
    fn add(&mut self, event: Event<'_>) {
        match event {
            // When a coding turns out to be faulty depends on the cut: the target `codings` looks at it.
            Event::Body(body) if body.form != Form::AsSent => {}
            Event::Anomaly(_, it) if it.name().starts_with("http_content_coding") => {}
            Event::Body(body) => self.bytes(&format!("{:?} body ", body.side), body.bytes),
            Event::Data(side, bytes) => self.bytes(&format!("{side:?} data "), bytes),
            other => {
                match other {
                    Event::RequestHead { .. } => self.began += 1,
                    Event::Complete(it) => self.ended += u64::from(it.request.is_some()),
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
