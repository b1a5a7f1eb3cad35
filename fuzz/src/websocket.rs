//! WebSocket behind HTTP/1, as an observer of both directions sees it.
//!
//! Claims: however the bytes are cut, messages and faults are the same, but for how much comes out of a
//! message before a cap; pieces are never empty.

use mmtls_inspect::{Anomaly, AppLayer, Event, Side};

use crate::input::{Input, pieces};

const ASK: &[u8] = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[derive(PartialEq, Eq, Default, Debug)]
struct Log {
    content: [Vec<u8>; 2],
    anomalies: Vec<(bool, Anomaly)>,
}

impl Log {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Data(side, bytes) => {
                assert!(!bytes.is_empty());
                self.content[usize::from(side == Side::Server)].extend_from_slice(bytes);
            }
            Event::Anomaly(side, anomaly) => self.anomalies.push((side == Side::Server, anomaly)),
            _ => {}
        }
    }
}

/// Input: which extensions, four lengths of pieces, then frames: side, head, and payload with its length.
pub fn websocket(data: &[u8]) {
    let mut input = Input::new(data);
    let extensions = input.u8();
    let lengths = input.take(4);
    let frames = input.all();
    let whole = run(extensions, frames, &[]);
    for lengths in [&[1][..], lengths] {
        let cut = run(extensions, frames, lengths);
        if [&whole, &cut]
            .iter()
            .all(|log| !log.anomalies.iter().any(|(_, it)| *it == Anomaly::ContentCodingOverCap))
        {
            assert_eq!(cut, whole, "in pieces of {lengths:?}");
        }
    }
}

fn run(extensions: u8, frames: &[u8], lengths: &[u8]) -> Log {
    let mut app = AppLayer::new();
    let mut log = Log::default();
    let with = [
        "",
        "Sec-WebSocket-Extensions: permessage-deflate\r\n",
        "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover\r\n",
        "Sec-WebSocket-Extensions: x-unknown\r\n",
    ][usize::from(extensions % 4)];
    let answer =
        format!("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n{with}\r\n");
    app.data(Side::Client, ASK, &mut |event| log.add(event));
    app.data(Side::Server, answer.as_bytes(), &mut |event| log.add(event));
    let mut input = Input::new(frames);
    while !input.is_empty() {
        let how = input.u8();
        let side = if how & 1 == 0 { Side::Client } else { Side::Server };
        let bytes = match how >> 1 & 7 {
            0 => {
                app.gap(side, &mut |event| log.add(event));
                continue;
            }
            1 => {
                let len = usize::from(input.u8());
                input.take(len).to_vec()
            }
            // A legal frame, so that lengths and masks need not be guessed.
            _ => {
                let first = input.u8();
                let len = usize::from(input.u8() & 127);
                let payload = input.take(len);
                let masked = u8::from(side == Side::Client) << 7;
                let mut frame = vec![first];
                match payload.len() as u8 {
                    len @ 0..=125 => frame.push(masked | len),
                    len => frame.extend([masked | 126, 0, len]),
                }
                if masked != 0 {
                    frame.extend([0; 4]);
                }
                [&frame, payload].concat()
            }
        };
        for piece in pieces(&bytes, lengths) {
            app.data(side, piece, &mut |event| log.add(event));
        }
    }
    app.finish(&mut |event| log.add(event));
    log
}
