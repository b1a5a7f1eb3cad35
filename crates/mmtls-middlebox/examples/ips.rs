//! Searches the first kilobytes of every HTTP/1.1 response for literal patterns, skips the rest
//! without decrypting it, and resets the session on a match (figure 9 of the paper).
//!
//! As in the paper, it trusts servers not to pad: a pause counts at most too much, and a server that
//! makes it do so can hide its next response. Where that matters, pause only where
//! `Record::announced_len_is_exact`, as `mmtls run` does.
//!
//! `cargo run --example ips -- PATTERNS CAPTURE [KEYLOG]`

use std::path::Path;

use mmtls_middlebox::http1::{BodyLeft, Event, Http1};
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
    http: Http1,
    scanner: Scanner,
    searched: u64,
}

impl Handler for Ips {
    type State = Http;

    fn new_record(&mut self, session: &mut Session<'_>, state: &mut Http, record: &mut Record<'_>) {
        let Http { http, scanner, searched } = state;
        let direction = record.direction();
        if direction == Direction::ServerToClient {
            http.skip_response_bytes(record.skipped_bytes(), &mut |_| ());
        }
        // Nothing is decrypted before this line; a failure is the engine's business.
        let Ok(plaintext) = record.open() else { return };
        if plaintext.content_type != ContentType::APPLICATION_DATA {
            return;
        }
        let mut found = None;
        let mut look = |event: Event<'_>| match event {
            Event::ResponseHead(_) => {
                scanner.restart();
                *searched = 0;
            }
            Event::ResponseBody(body) => {
                let wanted = body.len().min((LIMIT - *searched).try_into().unwrap_or(usize::MAX));
                *searched += wanted as u64;
                found = found.or(self.patterns.scan(scanner, &body[..wanted]));
            }
            _ => {}
        };
        match direction {
            Direction::ClientToServer => http.request_bytes(plaintext.bytes, &mut look),
            Direction::ServerToClient => http.response_bytes(plaintext.bytes, &mut look),
        }
        if let Some(found) = found {
            let name = session.info().server_name.as_deref().unwrap_or("(no name)");
            let pattern = self.patterns.text(found.pattern).unwrap_or_default();
            println!("{name}: {pattern:?} at body byte {}: reset", found.end);
            self.resets += 1;
            session.reset();
        } else if direction == Direction::ServerToClient && *searched >= LIMIT {
            match http.response_body_left() {
                BodyLeft::Length(left) => session.pause(Direction::ServerToClient, Some(left)),
                BodyLeft::UntilClose => session.pause(Direction::ServerToClient, None),
                // The length of chunks is in between them.
                BodyLeft::Chunked | BodyLeft::None => {}
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
