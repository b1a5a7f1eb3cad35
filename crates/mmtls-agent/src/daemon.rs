//! `mmtls agent`: shares the keys of the programs of a user, or of all, until it is told to stop. Programs find it in a directory: a
//! socket for the preload library, a FIFO for key logs.
//!
//! Refuses a directory that others can look into, or where all users' programs come, write in, and to print a secret.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mmtls_keyshare::agent::socket::Users;
use mmtls_record::Direction;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, geteuid, getrlimit, set_dumpable_behavior, setrlimit,
};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::agent::Agent;
use crate::audit::Audit;
use crate::channel::Channel;
use crate::consent::Consent;
use crate::key_logs::FollowedLog;
use crate::paths::AgentDirectory;
use crate::programs::{KeyLogUse, Programs};
use crate::rules::Rules;
use crate::say::say;
use crate::signals::not_ignored;
use crate::status::Status;
use crate::{Error, guard, paths};

/// How often signals and connections are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long a middlebox may be away before it is said: a restart is no news.
const AWAY: Duration = Duration::from_secs(2);
/// How long keys that are still under way are waited for at the end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// How often its status is written, where it has changed.
const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// What `mmtls agent` was asked to do.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Who gets the keys.
    pub channel: Channel,
    /// Where programs find the agent; `None` for the usual place.
    pub directory: Option<PathBuf>,
    /// Whose programs may connect: all users' may only to root's.
    pub users: Users,
    /// Other files or FIFOs that programs write their key logs to; a FIFO is made where nothing is.
    pub key_logs: Vec<PathBuf>,
    /// Share also the handshake keys of TLS 1.3.
    pub share_handshake: bool,
    /// As in [`ExecOptions`](crate::ExecOptions::refused).
    pub refused: Option<Direction>,
    /// What else is not shared.
    pub rules: Rules,
    /// Whether sessions of key logs are shared, to which no rule can be applied.
    pub share_key_logs: bool,
    /// Where it notes what was shared.
    pub audit_log: Option<PathBuf>,
    /// As in [`ExecOptions`](crate::ExecOptions::guard).
    pub guard: Vec<OsString>,
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            channel: Channel::default(),
            directory: None,
            users: Users::Own,
            key_logs: Vec::new(),
            share_handshake: false,
            refused: None,
            rules: Rules::default(),
            share_key_logs: true,
            audit_log: None,
            guard: Vec::new(),
        }
    }
}

/// Shares keys until SIGINT, SIGTERM or SIGHUP, and says then what came of it.
///
/// # Errors
/// [`Error::Usage`], [`Error::File`] and [`Error::System`], all of them at the start.
pub fn serve(options: &AgentOptions) -> Result<(), Error> {
    // Traffic secrets live in this memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| Error::System { what: "PR_SET_DUMPABLE", error: error.into() })?;
    if options.users == Users::All {
        if !geteuid().is_root() {
            // Nobody else's programs trust it.
            return Err(Error::Usage("--all-users needs root".to_owned()));
        }
        raise_descriptors();
    }
    // Before there is a FIFO to be removed.
    let mut signals = Signals::new(not_ignored(&[SIGHUP, SIGINT, SIGTERM]))
        .map_err(|error| Error::System { what: "signal handlers", error })?;
    let path = options.directory.clone().or_else(AgentDirectory::usual);
    let path = path.ok_or_else(|| {
        Error::Usage(
            "no --directory for programs to find this agent, and no XDG_RUNTIME_DIR".into(),
        )
    })?;
    let audit = options.audit_log.as_deref().map(|path| Audit::open(path, say_as_agent));
    let audit = audit.transpose()?.unwrap_or_default();
    let consent = Consent::new(options.refused, options.rules.clone(), audit);
    let key_log_use = if options.share_key_logs { KeyLogUse::Shared } else { KeyLogUse::Discarded };
    let programs = Programs::new(options.share_handshake, key_log_use, consent);
    let mut directory = AgentDirectory::named(&path, options.users)?;
    let mut key_logs = vec![paths::key_log(directory.path())];
    key_logs.extend(options.key_logs.iter().cloned());
    let mut followed = Vec::new();
    if let Some(logs) = programs.logs() {
        followed.push(FollowedLog::start_fifo(&key_logs[0], logs, say_as_agent)?);
        // No other agent has it.
        directory.own();
        for path in &options.key_logs {
            followed.push(FollowedLog::start(path, logs, say_as_agent)?);
        }
    }
    let client = options.channel.start("mmtls-agent", &programs)?;
    // A socket that is there was left by an agent that was killed.
    let socket = paths::socket(directory.path());
    let _ = std::fs::remove_file(&socket);
    let agent = Agent::start(&socket, options.users, Arc::clone(&client), &programs)?;
    guard::start(&options.guard, &directory)?;
    say_as_agent(&format!("programs find it at {}", directory.path().display()));
    if options.share_key_logs {
        for path in &options.key_logs {
            say_as_agent(&format!("sharing the keys of {}", path.display()));
        }
    } else {
        say_as_agent(
            "sessions of key logs stay private: they tell no rule's names (share_key_logs = true shares all of them)",
        );
    }
    tell_manager(&[NotifyState::Ready]);

    let mut status = Status::new(key_logs);
    let mut written = None;
    let mut connections = Connections::new(client.addresses(), Instant::now());
    let mut told = Instant::now().checked_sub(STATUS_PAUSE);
    while signals.pending().next().is_none() {
        for change in connections.changes(&client.connection_errors(), Instant::now()) {
            say_as_agent(&change);
        }
        if told.is_none_or(|told| told.elapsed() >= STATUS_PAUSE) {
            told = Some(Instant::now());
            status.update(&programs, &client);
            if written.as_ref() != Some(&status) {
                let outcome = status.write(directory.path());
                // Said once: the last attempt is what is compared with.
                if let (Err(error), None) = (outcome, &written) {
                    say_as_agent(&format!("its status cannot be written: {error}"));
                }
                written = Some(status.clone());
            }
        }
        thread::sleep(TICK);
    }
    tell_manager(&[NotifyState::Stopping]);
    let (client, _) = agent.finish();
    // Programs must not wait for a reader of their key log that is not there. The next agent may begin when its lock is
    // free, so nothing in the directory is touched behind that.
    drop(directory);
    drop(followed);
    let _ = client.shutdown(DRAIN_PATIENCE);
    status.update(&programs, &client);
    say_as_agent(&status.summary());
    Ok(())
}

/// A service manager learns when programs find it; where there is none, nobody does.
fn tell_manager(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// Each program has one; where that is not allowed there are fewer.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
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
