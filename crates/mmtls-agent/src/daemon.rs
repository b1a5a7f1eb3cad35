//! `mmtls agent`: shares the keys of programs that write key logs, until it is told to stop.
//!
//! Refuses to start without a key log, and to print a secret.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Error;
use crate::channel::Channel;
use crate::key_logs::{FollowedLog, KeyLogs};
use crate::say::say;
use crate::signals::not_ignored;

/// How often signals and connections are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a middlebox may be away before it is said: a restart is no news.
const AWAY: Duration = Duration::from_secs(2);
/// How long keys that are still under way are waited for at the end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// What `mmtls agent` was asked to do.
#[derive(Clone, Debug, Default)]
pub struct AgentOptions {
    /// Who gets the keys.
    pub channel: Channel,
    /// Files or FIFOs that programs write their key logs to; a FIFO is made where nothing is.
    pub key_logs: Vec<PathBuf>,
    /// Share also the handshake keys of TLS 1.3.
    pub share_handshake: bool,
}

/// Shares keys until SIGINT, SIGTERM or SIGHUP, and says then what came of it.
///
/// # Errors
/// [`Error::Usage`], [`Error::File`] and [`Error::System`], all of them at the start.
pub fn serve(options: &AgentOptions) -> Result<(), Error> {
    if options.key_logs.is_empty() {
        return Err(Error::Usage("no key log to follow".to_owned()));
    }
    // Traffic secrets live in this memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| Error::System { what: "PR_SET_DUMPABLE", error: error.into() })?;
    // Before there is a FIFO to be removed.
    let mut signals = Signals::new(not_ignored(&[SIGHUP, SIGINT, SIGTERM]))
        .map_err(|error| Error::System { what: "signal handlers", error })?;
    let logs = KeyLogs::new(options.share_handshake);
    let on_request = {
        let logs = Arc::clone(&logs);
        Box::new(move |message| logs.middlebox_says(message))
    };
    let client = Arc::new(options.channel.start("mmtls-agent", logs.capabilities(), on_request)?);
    logs.answer_through(&client);
    let followed = options
        .key_logs
        .iter()
        .map(|path| FollowedLog::start(path, &logs, say_as_agent))
        .collect::<Result<Vec<_>, _>>()?;
    for path in &options.key_logs {
        say_as_agent(&format!("sharing the keys of {}", path.display()));
    }

    let mut connections = Connections::new(client.addresses(), Instant::now());
    while signals.pending().next().is_none() {
        for change in connections.changes(&client.connection_errors(), Instant::now()) {
            say_as_agent(&change);
        }
        thread::sleep(TICK);
    }
    // Programs must not wait for a reader of their key log that is not there.
    drop(followed);
    let sent = client.shutdown(DRAIN_PATIENCE);
    let mut text = logs.counters().to_string();
    if sent.dropped > 0 {
        text.push_str(&format!("; {} key messages were not delivered", sent.dropped));
    }
    say_as_agent(&text);
    Ok(())
}

fn say_as_agent(text: &str) {
    say("agent", text);
}

/// Middleboxes that are away, by address.
struct Connections {
    away: HashMap<String, Away>,
}

struct Away {
    since: Instant,
    /// It was said that it is away.
    told: bool,
    /// It has never been there.
    new: bool,
}

impl Connections {
    /// Nobody is connected yet.
    fn new(addresses: impl Iterator<Item = String>, now: Instant) -> Self {
        let away = addresses.map(|it| (it, Away { since: now, told: false, new: true })).collect();
        Self { away }
    }

    /// What there is to be said of connections that are up and down.
    fn changes(&mut self, down: &[(String, String)], now: Instant) -> Vec<String> {
        let mut changes = Vec::new();
        self.away.retain(|address, away| {
            let is_down = down.iter().any(|(it, _)| it == address);
            if !is_down && (away.told || away.new) {
                changes.push(format!("connected to {address}"));
            }
            is_down
        });
        for (address, error) in down {
            let away = self.away.entry(address.clone());
            let away = away.or_insert(Away { since: now, told: false, new: false });
            if !away.told && now.duration_since(away.since) >= AWAY {
                away.told = true;
                changes.push(format!("{address} gets no keys: {error}"));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_away_for_long_and_what_is_back() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let down = [("box:1".to_owned(), "refused".to_owned())];
        let mut connections =
            Connections::new(["box:1", "box:2"].map(str::to_owned).into_iter(), start);
        assert_eq!(connections.changes(&down, at(1)), ["connected to box:2"]);
        assert_eq!(connections.changes(&down, at(2)), ["box:1 gets no keys: refused"]);
        assert!(connections.changes(&down, at(9)).is_empty(), "said once");
        assert_eq!(connections.changes(&[], at(10)), ["connected to box:1"]);
        // A restart that takes a moment.
        assert!(connections.changes(&down, at(20)).is_empty());
        assert!(connections.changes(&[], at(21)).is_empty());
    }
}
