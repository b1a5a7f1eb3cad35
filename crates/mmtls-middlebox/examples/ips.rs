//! Searches the first kilobytes of every HTTP/1.1 response for literal patterns, skips the rest
//! without decrypting it, and resets the session on a match (figure 9 of the paper).
//!
//! As in the paper, it trusts servers not to pad: a pause counts at most too much, and a server that
//! makes it do so can hide its next response. Where that matters, pause only where
//! `Record::announced_len_is_exact`, as `mmtls run` does.
//!
//! `cargo run --example ips -- PATTERNS CAPTURE [KEYLOG]`

use std::path::Path;

use mmtls_middlebox::inspect::{AppLayer, Event, Form, Side, Wants};
use mmtls_middlebox::literal::{PatternSet, Scanner};
use mmtls_middlebox::session::{Handler, Record, Session};
use mmtls_middlebox::tls::{ContentType, Direction};

/// Bytes of a body that are searched.
const LIMIT: u64 = 64 << 10;

/// What a worker has of its own.
struct Ips {
    patterns: PatternSet,
    resets: u64,
}

/// What it keeps of each session.
#[derive(Default)]
struct Http {
    app: AppLayer,
    scanner: Scanner,
}

impl Handler for Ips {
    type State = Http;

    fn new_record(&mut self, session: &mut Session<'_>, state: &mut Http, record: &mut Record<'_>) {
        let Http { app, scanner } = state;
        let direction = record.direction();
        if direction == Direction::ServerToClient {
            app.skip(Side::Server, record.skipped_bytes(), &mut |_| ());
        }
        // Nothing is decrypted before this line; a failure is the engine's business.
        let Ok(plaintext) = record.open() else { return };
        if plaintext.content_type != ContentType::APPLICATION_DATA {
            return;
        }
        let mut found = None;
        let mut look = |event: Event<'_>| match event {
            Event::ResponseHead(..) => {
                scanner.restart();
            }
            // As sent: a decoded form is another stream, which would want a scanner of its own.
            Event::Body(body) if body.side == Side::Server && body.form == Form::AsSent => {
                found = found.or(self.patterns.scan(scanner, body.bytes));
            }
            _ => {}
        };
        let side = match direction {
            Direction::ClientToServer => Side::Client,
            Direction::ServerToClient => Side::Server,
        };
        app.limit_response_bodies(Some(LIMIT));
        app.data(side, plaintext.bytes, &mut look);
        if let Some(found) = found {
            let name = session.info().server_name.as_deref().unwrap_or("(no name)");
            let pattern = self.patterns.text(found.pattern).unwrap_or_default();
            println!("{name}: {pattern:?} at body byte {}: reset", found.end);
            self.resets += 1;
            session.reset();
        } else {
            match app.wants(side) {
                Wants::All => {}
                Wants::After(count) => session.pause(direction, Some(count)),
                Wants::Nothing => session.pause(direction, None),
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [patterns, capture, keylog @ ..] = &arguments[..] else {
        return Err("usage: ips PATTERNS CAPTURE [KEYLOG]".into());
    };
    let patterns = PatternSet::from_bytes(&std::fs::read(patterns)?)?;
    let keylog = keylog.first().map(Path::new);
    let ips =
        mmtls_middlebox::offline::replay(Path::new(capture), keylog, Ips { patterns, resets: 0 })?;
    println!("{} sessions reset", ips.resets);
    Ok(())
}
