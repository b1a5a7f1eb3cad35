//! What an agent has done so far, in a file beside its socket, for those who ask.
//!
//! Refuses to show a secret, and a file that is only half written.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mmtls_keyshare::client::Client;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::paths::{self, AgentDirectory};
use crate::programs::Programs;

/// The state of an agent, as `status.json` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// When it began.
    pub started: String,
    /// By address: why it gets no keys just now; nothing where it is connected.
    pub middleboxes: BTreeMap<String, Option<String>>,
    /// Key logs that are followed.
    pub key_logs: Vec<PathBuf>,
    /// Sessions that programs with the preload library have told of and whose keys were shared, but for a refused direction's.
    pub sessions_shared: u64,
    /// Sessions that they have exempted.
    pub sessions_exempt: u64,
    /// By rule: sessions that it has decided about.
    #[serde(default)]
    pub sessions_by_rule: BTreeMap<String, u64>,
    /// Secrets of versions and suites that are not known.
    pub secrets_unsupported: u64,
    /// Requests of middleboxes that were answered, with keys or with the refusal of a direction.
    pub requests_answered: u64,
    /// Of these, the ones that had to wait for a line of a key log.
    pub requests_waited: u64,
    /// Requests that were refused.
    pub requests_refused: u64,
    /// Key messages that were sent.
    pub messages_sent: u64,
    /// Key messages that were lost: a middlebox was away for too long.
    pub messages_lost: u64,
    /// Key messages that middleboxes have refused.
    pub refusals: u64,
    /// Their reasons.
    pub refusal_reasons: Vec<String>,
}

impl Status {
    /// Of this process.
    pub(crate) fn new(key_logs: Vec<PathBuf>) -> Self {
        let started = jiff::Timestamp::now().to_string();
        Self { pid: std::process::id(), started, key_logs, ..Self::default() }
    }

    /// Takes what has been counted since.
    pub(crate) fn update(&mut self, programs: &Programs, client: &Client) {
        self.middleboxes = client.addresses().map(|it| (it, None)).collect();
        for (address, error) in client.connection_errors() {
            self.middleboxes.insert(address, Some(error));
        }
        let (sessions, reasons) = {
            let sessions = programs.sessions();
            (sessions.counters(), sessions.reasons())
        };
        let logs = programs.logs().map(|logs| logs.counters()).unwrap_or_default();
        let sent = client.counters();
        self.sessions_by_rule = programs.decided().into_iter().collect();
        self.sessions_shared = sessions.shared;
        self.sessions_exempt = sessions.exempt;
        self.secrets_unsupported = sessions.unsupported;
        self.requests_answered = sessions.granted + logs.answered;
        self.requests_waited = logs.waited;
        self.requests_refused = sessions.denied + logs.denied;
        (self.messages_sent, self.messages_lost) = (sent.sent, sent.dropped);
        self.refusals = sessions.refused;
        self.refusal_reasons = reasons.iter().map(ToString::to_string).collect();
    }

    /// One line, for the end.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!(
            "{} sessions shared, {} exempt; {} requests answered, {} of them when their line came; {} key messages sent",
            self.sessions_shared,
            self.sessions_exempt,
            self.requests_answered,
            self.requests_waited,
            self.messages_sent
        );
        for (count, what) in [
            (self.requests_refused, "requests refused"),
            (self.refusals, "refusals by a middlebox"),
            (self.messages_lost, "key messages were not delivered"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        text
    }

    /// Puts it into an agent's directory: readers see the last one, or this.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let path = paths::status(directory);
        let new = paths::new_status(&path);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(serde_json::to_string(self)?.as_bytes())?;
        fs::rename(new, path)
    }

    /// That of the agent with this directory, or with the usual one.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is none, [`Error::File`] where it has written nothing yet.
    pub fn read(directory: Option<&Path>) -> Result<Self, Error> {
        let path = paths::status(&AgentDirectory::running(directory)?);
        let text = fs::read_to_string(&path).map_err(Error::file(&path))?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Usage(format!("{}: {error}", path.display())))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "agent {} since {}", self.pid, self.started)?;
        for (address, error) in &self.middleboxes {
            match error {
                None => writeln!(f, "middlebox {address}: connected")?,
                Some(error) => writeln!(f, "middlebox {address}: gets no keys: {error}")?,
            }
        }
        for path in &self.key_logs {
            writeln!(f, "key log {}", path.display())?;
        }
        for (count, what) in [
            (self.sessions_shared, "sessions of programs shared"),
            (self.sessions_exempt, "exempt"),
            (self.requests_answered, "requests of middleboxes answered"),
            (self.requests_waited, "of them when the key log had the line"),
            (self.requests_refused, "requests refused"),
            (self.messages_sent, "key messages sent"),
        ] {
            writeln!(f, "{count:>8} {what}")?;
        }
        for (rule, count) in &self.sessions_by_rule {
            writeln!(f, "{count:>8} sessions by rule {rule:?}")?;
        }
        for (count, what) in [
            (self.secrets_unsupported, "secrets of unknown versions or suites"),
            (self.messages_lost, "key messages lost"),
        ] {
            if count > 0 {
                writeln!(f, "{count:>8} {what}")?;
            }
        }
        if self.refusals > 0 {
            let reasons = self.refusal_reasons.join(", ");
            writeln!(f, "{:>8} key messages refused by middleboxes: {reasons}", self.refusals)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use mmtls_keyshare::agent::socket::{AgentListener, Users};

    use super::*;

    #[test]
    fn is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
        let _agent = AgentListener::bind(&paths::socket(directory.path()), Users::Own).unwrap();
        let mut status = Status::new(vec!["keys".into()]);
        status.middleboxes.insert("box:1".to_owned(), Some("refused".to_owned()));
        (status.refusals, status.refusal_reasons) = (3, vec!["not the sender".to_owned()]);
        for _ in 0..2 {
            status.write(directory.path()).unwrap();
            assert_eq!(Status::read(Some(directory.path())).unwrap(), status);
            status.sessions_shared += 1;
        }
        let text = status.to_string();
        for words in ["box:1: gets no keys: refused", "3 key messages refused", "not the sender"] {
            assert!(text.contains(words), "{text}");
        }
        let missing = directory.path().join("missing");
        assert!(matches!(Status::read(Some(&missing)), Err(Error::Usage(_))));
    }
}
