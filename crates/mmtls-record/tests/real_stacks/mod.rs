//! Records of real TLS stacks, opened by this crate: OpenSSL and GnuTLS over loopback, one session
//! per suite, recorded by a relay in the middle, keys from the client's key log.
//!
//! Every protected record must open, and must not open once a byte of it has been changed. A
//! stack that is not installed is a loud skip.

mod command;
mod gnutls;
mod openssl;
mod relay;
mod transcript;

use std::path::Path;

use transcript::Session;

/// What one stack's sessions came to.
#[derive(Default)]
struct Tally {
    sessions: usize,
    records: usize,
    tampered: usize,
    failed: Vec<String>,
}

impl Tally {
    /// Counts a session, which must have spoken `suite` and carried the request and `body`.
    fn add(&mut self, what: &str, suite: u16, body: &[u8], session: Result<Session, String>) {
        let checked = session.and_then(|session| {
            if session.suite != suite {
                return Err(format!("spoke {:#06x}", session.suite));
            }
            if !contains(&session.content[0], b"GET /big") {
                return Err("the request is missing".to_owned());
            }
            if !contains(&session.content[1], body) {
                return Err("the answer is missing".to_owned());
            }
            Ok(session)
        });
        match checked {
            Ok(session) => {
                self.sessions += 1;
                self.records += session.records;
                self.tampered += session.tampered;
            }
            Err(why) => self.failed.push(format!("{what}: {why}")),
        }
    }

    fn finish(&self, stack: &str, least_sessions: usize) {
        eprintln!(
            "{stack}: {} sessions, {} protected records opened, {} changed records refused",
            self.sessions, self.records, self.tampered
        );
        assert!(self.failed.is_empty(), "{stack}: {:#?}", self.failed);
        assert!(self.sessions >= least_sessions, "{stack}: only {} sessions", self.sessions);
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// 50,000 bytes that need several records and do not repeat.
fn write_body(directory: &Path) -> Vec<u8> {
    let body: String = (0..10_000).map(|line| format!("{line:04}\n")).collect();
    std::fs::write(directory.join("big"), &body).expect("the test's own directory");
    body.into_bytes()
}
