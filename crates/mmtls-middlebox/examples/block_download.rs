//! Resets every session in which the server says a word (docs/writing-a-middlebox.md).

use std::path::Path;

use mmtls_middlebox::session::{Handler, Record, Session};
use mmtls_middlebox::tls::{ContentType, Direction};

/// What a worker has of its own.
struct Block {
    word: Vec<u8>,
}

/// What it keeps of a session: the end of the stream so far.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    seen: usize,
}

impl Handler for Block {
    type State = Tail;

    fn session_start(&mut self, session: &mut Session<'_>, _: &mut Tail) {
        session.pause(Direction::ClientToServer, None);
    }

    fn new_record(&mut self, session: &mut Session<'_>, tail: &mut Tail, record: &mut Record<'_>) {
        let direction = record.direction();
        let Ok(plaintext) = record.open() else { return };
        if plaintext.content_type != ContentType::APPLICATION_DATA {
            return;
        }
        tail.bytes.extend_from_slice(plaintext.bytes);
        tail.seen += plaintext.bytes.len();
        if tail.bytes.windows(self.word.len()).any(|window| window == self.word) {
            println!(
                "session {}: found in the first {} bytes: reset",
                session.info().id.0,
                tail.seen
            );
            session.reset();
        }
        let old = tail.bytes.len().saturating_sub(self.word.len() - 1);
        tail.bytes.drain(..old);
        if tail.seen >= 64 << 10 {
            session.pause(direction, None);
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [capture, word] = &arguments[..] else {
        return Err("usage: block_download CAPTURE WORD".into());
    };
    if word.is_empty() {
        return Err("an empty word is found everywhere".into());
    }
    let block = Block { word: word.clone().into_bytes() };
    mmtls_middlebox::offline::replay(Path::new(capture), None, block)?;
    Ok(())
}
