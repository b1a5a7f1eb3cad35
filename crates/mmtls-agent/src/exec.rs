//! `mmtls exec`: runs a program so that its TLS sessions share their record keys.
//!
//! The program gets the preload library, which hands its traffic secrets to this process (the
//! agent) over a private local socket. Here they become record keys, which go to every
//! middlebox; the secrets never leave this host. Refuses: to start without a usable
//! configuration, to hold the program up when a middlebox is away, agents' clients of other
//! users, and to keep secrets of more than a bounded number of sessions.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mmtls_keyshare::agent::{
    EXEMPT_VARIABLE, SHARE_HANDSHAKE_VARIABLE, SHARE_SERVER_VARIABLE, SOCKET_VARIABLE,
};
use mmtls_keyshare::client::Client;
use mmtls_keyshare::message::Message;
use mmtls_keyshare::policy::ServerNames;
use rustix::process::{DumpableBehavior, Pid, Signal, kill_process, set_dumpable_behavior};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use crate::advice::advice;
use crate::agent::Agent;
use crate::channel::Channel;
use crate::sessions::Sessions;
use crate::signals::not_ignored;
use crate::{Error, paths};

/// Exit statuses of programs that run others, where those are not there or cannot be started (POSIX, `env`).
const NOT_FOUND: i32 = 127;
const NOT_STARTED: i32 = 126;
/// How long the program's start waits for the middleboxes, so that the first keys are in time.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How long keys that are still under way are waited for after the program's end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// Signals for the program; a terminal sends some of them to the program itself.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// What `mmtls exec` was asked to do.
#[derive(Clone, Debug, Default)]
pub struct ExecOptions {
    /// Who gets the keys.
    pub channel: Channel,
    /// Server names, exact or `*.example.org`, whose sessions stay private.
    pub exempt: Vec<String>,
    /// Share also the sessions in which the program is the server.
    pub share_server: bool,
    /// Share also the handshake keys of TLS 1.3.
    pub share_handshake: bool,
    /// The preload library, when it is not in one of the usual places.
    pub preload_library: Option<PathBuf>,
    /// Say at the end, on stderr, what was shared. Errors are said in any case.
    pub report: bool,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

/// Runs the program and returns its exit status, or 128 + the signal that ended it.
///
/// # Errors
/// [`Error::Usage`], [`Error::File`] and [`Error::System`]. The program's own failure is no error, nor that it cannot be
/// started: 127 where it is not there, 126 otherwise.
pub fn run(options: &ExecOptions) -> Result<i32, Error> {
    let Some((program, arguments)) = options.program.split_first() else {
        return Err(Error::Usage("no program to run".to_owned()));
    };
    let exempt = exempt_names(&options.exempt)?;
    let library = paths::find_library(options.preload_library.as_deref())?;
    // Traffic secrets live in this memory. Not inherited by the program.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| Error::System { what: "PR_SET_DUMPABLE", error: error.into() })?;

    let sessions = Arc::new(Mutex::new(Sessions::new(options.share_handshake)));
    let client = start_client(options, &sessions)?;
    let directory = paths::PrivateDirectory::create()?;
    let socket = directory.path().join("agent");
    let agent = Agent::start(&socket, client, Arc::clone(&sessions))?;
    for (middlebox, error) in agent.wait_connected(CONNECT_PATIENCE) {
        say(&format!("{middlebox} gets no keys yet: {error}"));
    }

    // Before the program starts, so that its end cannot be missed. What is ignored (nohup, jobs
    // in the background) stays so, also for the program: a handler would not be inherited.
    let forwarded = not_ignored(&FORWARDED);
    let mut signals = SignalsInfo::<WithOrigin>::new(forwarded.chain([SIGCHLD]))
        .map_err(system("signal handlers"))?;
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", paths::preload_list(&library));
    command.env(SOCKET_VARIABLE, &socket);
    match exempt.is_empty() {
        true => command.env_remove(EXEMPT_VARIABLE),
        false => command.env(EXEMPT_VARIABLE, exempt.to_string()),
    };
    for (asked, variable) in [
        (options.share_server, SHARE_SERVER_VARIABLE),
        (options.share_handshake, SHARE_HANDSHAKE_VARIABLE),
    ] {
        match asked {
            true => command.env(variable, "1"),
            false => command.env_remove(variable),
        };
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            say(&format!("{}: {error}", program.display()));
            return Ok(if error.kind() == io::ErrorKind::NotFound {
                NOT_FOUND
            } else {
                NOT_STARTED
            });
        }
    };
    let status = wait(&mut child, &mut signals).map_err(system("waiting for the program"))?;

    let (client, errors) = agent.finish();
    let counters = client.shutdown(DRAIN_PATIENCE);
    let (sessions, reasons) = {
        let sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
        (sessions.counters(), sessions.reasons())
    };
    if counters.dropped > 0 {
        let mut text = format!("{} key messages were not delivered", counters.dropped);
        for (middlebox, error) in errors {
            let _ = write!(text, "; {middlebox}: {error}");
        }
        say(&text);
    }
    // Who connects to a middlebox by IPv4 and by IPv6 has one of the two refused.
    if sessions.refused > counters.sent / 2 {
        say(&format!("middleboxes have refused {} key messages: {reasons}", sessions.refused));
    }
    if sessions.heard_nothing() {
        say(&format!("no TLS session was shared; {}", advice(program)));
    }
    if options.report {
        say(&format!("{sessions}; {} key messages sent", counters.sent));
    }
    Ok(exit_code(status))
}

/// As few lines as possible: stderr belongs to the program.
fn say(text: &str) {
    crate::say::say("exec", text);
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::System { what, error }
}

fn exempt_names(rules: &[String]) -> Result<ServerNames, Error> {
    let mut names = ServerNames::default();
    for rule in rules {
        names.add(rule).map_err(|error| Error::Usage(format!("--exempt: {error}")))?;
    }
    Ok(names)
}

fn start_client(options: &ExecOptions, sessions: &Arc<Mutex<Sessions>>) -> Result<Client, Error> {
    let sessions = Arc::clone(sessions);
    let on_request = move |message| match message {
        Message::KeyRequest(request) => {
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            Some(sessions.answer(&request))
        }
        Message::Refused(refused) => {
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.refused(&refused);
            None
        }
        _ => None,
    };
    options.channel.start("mmtls-exec", 0, Box::new(on_request))
}

/// Waits for the program's end and passes signals on meanwhile.
fn wait(child: &mut Child, signals: &mut SignalsInfo<WithOrigin>) -> io::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for origin in signals.wait() {
            // What the kernel sends (a terminal's Ctrl-C) the program gets itself, because it
            // is in the same process group.
            if !FORWARDED.contains(&origin.signal) || origin.cause == Cause::Kernel {
                continue;
            }
            if let Some(signal) = Signal::from_named_raw(origin.signal) {
                // It fails only when the program is gone, which the next turn notices.
                let _ = kill_process(Pid::from_child(child), signal);
            }
        }
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}
