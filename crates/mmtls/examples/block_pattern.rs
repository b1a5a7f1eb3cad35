//! A middlebox application in 60 lines: search decrypted HTTP response bodies for literal
//! patterns, reset the session on the first match.
//!
//! `cargo run --example block_pattern -- PATTERNS CAPTURE [KEYLOG]`

use std::path::Path;

use mmtls_engine::session::{Handler, Record, Session};
use mmtls_engine::tls::{ContentType, Direction};
use mmtls_inspect::http1::{Event, Http1};
use mmtls_inspect::literal::{PatternSet, Scanner};

struct BlockPattern {
    patterns: PatternSet,
}

#[derive(Default)]
struct State {
    http: Http1,
    scanner: Scanner,
}

impl Handler for BlockPattern {
    type State = State;

    fn new_record(
        &mut self,
        session: &mut Session<'_>,
        state: &mut State,
        record: &mut Record<'_>,
    ) {
        let direction = record.direction();
        // Nothing is decrypted before this line; a failure is the engine's business.
        let Ok(plaintext) = record.open() else { return };
        if plaintext.content_type != ContentType::APPLICATION_DATA {
            return;
        }
        let mut found = None;
        let mut sink = |event: Event<'_>| match event {
            Event::ResponseHead(_) => state.scanner.restart(),
            Event::ResponseBody(body) => {
                found = found.or(self.patterns.scan(&mut state.scanner, body));
            }
            _ => {}
        };
        match direction {
            Direction::ClientToServer => state.http.request_bytes(plaintext.bytes, &mut sink),
            Direction::ServerToClient => state.http.response_bytes(plaintext.bytes, &mut sink),
        }
        if let Some(found) = found {
            let name = session.info().server_name.as_deref().unwrap_or("(no name)");
            let pattern = self.patterns.text(found.pattern).unwrap_or_default();
            println!("{name}: {pattern:?} at body byte {}: reset", found.end);
            session.reset();
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [patterns, capture, keylog @ ..] = &arguments[..] else {
        return Err("usage: block_pattern PATTERNS CAPTURE [KEYLOG]".into());
    };
    let patterns = PatternSet::from_bytes(&std::fs::read(patterns)?)?;
    let keylog = keylog.first().map(Path::new);
    mmtls::offline::replay(Path::new(capture), keylog, BlockPattern { patterns })?;
    Ok(())
}
