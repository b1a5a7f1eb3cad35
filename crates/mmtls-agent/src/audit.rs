//! What was shared, and what was not: a log that is only appended to, a line of JSON for each message to the middleboxes.
//!
//! Refuses to write a secret. A line that cannot be written is told once and holds nothing up; a file system that hangs
//! does.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use base16ct::lower::encode_string as hex;
use mmtls_keyshare::message::{Message, SessionKeys};
use mmtls_record::Direction;
use serde_json::{Map, Value, json};

use crate::Error;

/// Why something was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A program has told of it.
    Program,
    /// A middlebox has asked.
    Request,
    /// A middlebox has asked before, and now its line is there.
    KeyLog,
}

impl Cause {
    const fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Request => "request",
            Self::KeyLog => "key_log",
        }
    }
}

/// The log, if there is one.
#[derive(Default)]
pub struct Audit(Option<Open>);

struct Open {
    file: Mutex<File>,
    path: PathBuf,
    failed: AtomicBool,
    say: fn(&str),
}

impl Audit {
    /// Opens it, and makes it for this user only where it is not there.
    pub fn open(path: &Path, say: fn(&str)) -> Result<Self, Error> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        let file = Mutex::new(file.map_err(Error::file(path))?);
        Ok(Self(Some(Open { file, path: path.to_owned(), failed: AtomicBool::new(false), say })))
    }

    /// Notes that a middlebox was told the keys of all sessions that may be under way: so many, each of which was noted
    /// when it was shared first.
    pub fn note_all(&self, sessions: usize) {
        if let Some(open) = &self.0 {
            let timestamp = jiff::Timestamp::now().to_string();
            let cause = Cause::Request.name();
            let decision = "shared_again";
            open.write(&json!({
                "timestamp": timestamp, "cause": cause, "decision": decision, "sessions": sessions
            }));
        }
    }

    /// Notes what the middleboxes are told.
    pub fn note(&self, message: &Message, cause: Cause, rule: Option<&str>) {
        if let Some(open) = &self.0
            && let Some(line) = line(message, cause, rule)
        {
            open.write(&line);
        }
    }
}

impl Open {
    fn write(&self, line: &Value) {
        let text = format!("{line}\n");
        let written = {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            // At once, so that lines of two agents do not mix.
            file.write_all(text.as_bytes())
        };
        if let Err(error) = written
            && !self.failed.swap(true, Ordering::Relaxed)
        {
            self.tell(&error);
        }
    }

    fn tell(&self, error: &io::Error) {
        (self.say)(&format!("{}: {error}; lines are missing there", self.path.display()));
    }
}

fn line(message: &Message, cause: Cause, rule: Option<&str>) -> Option<Value> {
    let mut line = Map::new();
    let mut add = |name: &str, value: Value| line.insert(name.to_owned(), value);
    add("timestamp", jiff::Timestamp::now().to_string().into());
    add("cause", cause.name().into());
    let (decision, random, flow) = match message {
        Message::SessionKeys(keys) => ("shared", &keys.client_random, keys.flow),
        Message::NullKeys(null) => {
            if let Some(direction) = null.direction {
                add("direction", name_of(direction).into());
            }
            ("exempt", &null.client_random, null.flow)
        }
        Message::Refused(refused) => {
            add("reason", refused.reason.to_string().into());
            ("refused", &refused.client_random, None)
        }
        _ => return None,
    };
    add("decision", decision.into());
    if let Some(rule) = rule {
        add("rule", rule.into());
    }
    add("client_random", hex(random).into());
    if let Some(flow) = flow {
        add("client", flow.client().to_string().into());
        add("server", flow.server().to_string().into());
    }
    if let Message::SessionKeys(keys) = message {
        add("version", format!("{:#06x}", keys.version).into());
        add("cipher_suite", format!("{:#06x}", keys.cipher_suite).into());
        add("keys", epochs(keys));
    }
    Some(line.into())
}

/// Directions and epochs, without the keys.
fn epochs(keys: &SessionKeys) -> Value {
    let entry = |entry: &mmtls_keyshare::message::KeyEntry| json!({ "direction": name_of(entry.direction), "epoch": entry.epoch.0 });
    keys.keys.iter().map(entry).collect()
}

/// As eve.json has it.
fn name_of(direction: Direction) -> &'static str {
    match direction {
        Direction::ClientToServer => "toserver",
        Direction::ServerToClient => "toclient",
    }
}

#[cfg(test)]
mod tests {
    use mmtls_keyshare::message::{Epoch, KeyEntry, NullKeys, Reason, Refused};

    use super::*;

    #[test]
    fn tells_sessions_and_no_secrets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let audit = Audit::open(&path, |text| panic!("{text}")).unwrap();
        let entry =
            KeyEntry::new(Direction::ServerToClient, Epoch(2), &[0x77; 16], &[0x77; 12], &[]);
        let keys = SessionKeys {
            client_random: [0xab; 32],
            server_random: None,
            version: 0x0304,
            cipher_suite: 0x1301,
            flow: None,
            keys: vec![entry.unwrap()],
        };
        audit.note(&Message::SessionKeys(keys), Cause::KeyLog, None);
        let client_random = [1; 32];
        audit.note(
            &Message::NullKeys(NullKeys { client_random, direction: None, flow: None }),
            Cause::Program,
            Some("banks"),
        );
        // The next one appends.
        let audit = Audit::open(&path, |text| panic!("{text}")).unwrap();
        let refused = Refused { client_random, reason: Reason::POLICY };
        audit.note(&Message::Refused(refused), Cause::Request, None);
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["decision"], "shared");
        assert_eq!(lines[0]["client_random"], "ab".repeat(32));
        assert_eq!(lines[0]["keys"], json!([{ "direction": "toclient", "epoch": 2 }]));
        assert_eq!([&lines[1]["decision"], &lines[1]["cause"]], ["exempt", "program"]);
        assert!(lines[2]["reason"].as_str().unwrap().contains("policy"), "{}", lines[2]);
        assert!(!text.contains("7777"), "{text}");
    }

    #[test]
    fn tells_once_that_it_cannot_be_written() {
        static TOLD: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let say = |_: &str| {
            TOLD.fetch_add(1, Ordering::Relaxed);
        };
        let audit = Audit::open(Path::new("/dev/full"), say).unwrap();
        for _ in 0..3 {
            let null = NullKeys { client_random: [1; 32], direction: None, flow: None };
            audit.note(&Message::NullKeys(null), Cause::Program, None);
        }
        assert_eq!(TOLD.load(Ordering::Relaxed), 1);
        Audit::default().note(&Message::Ping(0), Cause::Program, None);
    }
}
