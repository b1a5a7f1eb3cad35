//! HTTP/1 as an observer of both directions sees it.
//!
//! Claims: however the bytes are cut, the events are the same; body pieces are never empty; a
//! body of known length is not exceeded.

use mmtls_inspect::http1::{Event, Http1, Side};

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
    let mut http = Http1::new();
    let mut log = Log::default();
    while !input.is_empty() {
        let operation = input.u8();
        let side = if operation & 1 == 0 { Side::Client } else { Side::Server };
        let sink = &mut |event: Event<'_>| log.add(event);
        match operation >> 1 & 7 {
            0 => http.gap(side, sink),
            1 => http.skip_response_bytes(u64::from(input.u8()), sink),
            2 => {
                http.close(sink);
                log.closed = true;
                return log.events;
            }
            3 => {
                let count = u64::from(input.u32());
                http.skip_response_bytes(count, sink);
            }
            kind => {
                let len = if kind < 6 { usize::from(input.u8()) } else { input.u16().into() };
                for piece in pieces(input.take(len), lengths) {
                    match side {
                        Side::Client => http.request_bytes(piece, sink),
                        Side::Server => http.response_bytes(piece, sink),
                    }
                }
            }
        }
        let _ = (http.is_opaque(), http.response_body_left());
    }
    http.close(&mut |event| log.add(event));
    log.events
}

/// Events as text, neighbouring body pieces joined: what must not depend on the cut.
#[derive(Default)]
struct Log {
    events: Vec<String>,
    closed: bool,
}

impl Log {
    fn add(&mut self, event: Event<'_>) {
        assert!(!self.closed, "{event:?} behind the end");
        match event {
            Event::RequestBody(bytes) => self.body("request body ", bytes),
            Event::ResponseBody(bytes) => self.body("response body ", bytes),
            other => self.events.push(format!("{other:?}")),
        }
    }

    fn body(&mut self, name: &str, bytes: &[u8]) {
        assert!(!bytes.is_empty(), "body pieces are not empty");
        let text = bytes.escape_ascii().to_string();
        match self.events.last_mut() {
            Some(last) if last.starts_with(name) => last.push_str(&text),
            _ => self.events.push(format!("{name}{text}")),
        }
    }
}
