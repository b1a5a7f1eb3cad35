//! `mmtls exec`: runs a program so that its TLS sessions share their record keys.
//!
//! The program gets the preload library, which hands its traffic secrets to this process (the
//! agent) over a private local socket; one that has another library than OpenSSL writes them to a private FIFO, as a
//! key log. Here they become record keys, which go to every middlebox; the secrets never leave this host.
//!
//! Refuses: to start without a usable configuration, to hold the program up when a middlebox is away or this process
//! ends first, agents' clients of other users, to keep secrets of more than a bounded number of sessions, and a key
//! log where names are exempt: there are no names in it.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
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
use crate::key_logs::{FollowedLog, KeyLogs};
use crate::sessions::Sessions;
use crate::signals::not_ignored;
use crate::{Error, guard, paths};

/// Exit statuses of programs that run others, where those are not there or cannot be started (POSIX, `env`).
const NOT_FOUND: i32 = 127;
const NOT_STARTED: i32 = 126;
/// How long the program's start waits for the middleboxes, so that the first keys are in time.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How long keys that are still under way are waited for after the program's end.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// What programs look at that write a key log (NSS, GnuTLS, Chromium, curl, Python), and where Node.js and Java find
/// options.
const KEY_LOG_VARIABLE: &str = "SSLKEYLOGFILE";
const NODE_VARIABLE: &str = "NODE_OPTIONS";
const JAVA_VARIABLE: &str = "JAVA_TOOL_OPTIONS";
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
    /// An agent for Java that writes a key log to the file that is its argument.
    pub java_agent: Option<PathBuf>,
    /// A program, and arguments, that calls [`guard`](crate::guard()) with the two arguments that come behind them.
    /// Without it programs that outlive this process may end with SIGPIPE.
    pub guard: Vec<OsString>,
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
    let logs = writes_key_log(&exempt).then(|| KeyLogs::new(options.share_handshake));
    let client = start_client(options, &sessions, logs.clone())?;
    let directory = paths::PrivateDirectory::create()?;
    let socket = directory.socket();
    let agent = Agent::start(&socket, client, Arc::clone(&sessions))?;
    let mut followed = None;
    if let Some(logs) = &logs {
        logs.answer_through(agent.client());
        followed = Some(FollowedLog::start(&directory.key_log(), logs, say)?);
        guard::start(&options.guard, &directory)?;
    }
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
    if followed.is_some() {
        set_key_log(&mut command, &directory.key_log(), options.java_agent.as_deref());
    }
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

    drop(followed);
    let (client, errors) = agent.finish();
    let counters = client.shutdown(DRAIN_PATIENCE);
    let from_logs = logs.map(|logs| logs.counters()).unwrap_or_default();
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
    if sessions.heard_nothing() && from_logs.answered == 0 {
        say(&format!("no TLS session was shared; {}", advice(program)));
    }
    if options.report {
        say(&format!(
            "{sessions}; from its key log: {from_logs}; {} key messages sent",
            counters.sent
        ));
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

/// Whether the program is to write a key log: not where some names are exempt, which no line has, or where somebody
/// else reads it.
fn writes_key_log(exempt: &ServerNames) -> bool {
    exempt.is_empty() && std::env::var_os(KEY_LOG_VARIABLE).is_none_or(|it| it.is_empty())
}

/// Tells a program where to write its key log, by the ways that programs know.
fn set_key_log(command: &mut Command, path: &Path, java_agent: Option<&Path>) {
    command.env(KEY_LOG_VARIABLE, path);
    let mut add = |variable: &str, parts: &[&OsStr]| {
        let mut options = std::env::var_os(variable).unwrap_or_default();
        parts.iter().for_each(|part| options.push(part));
        command.env(variable, options);
    };
    add(NODE_VARIABLE, &[OsStr::new(" --tls-keylog="), path.as_os_str()]);
    if let Some(jar) = java_agent {
        let parts =
            [OsStr::new(" -javaagent:"), jar.as_os_str(), OsStr::new("="), path.as_os_str()];
        add(JAVA_VARIABLE, &parts);
    }
}

fn start_client(
    options: &ExecOptions,
    sessions: &Arc<Mutex<Sessions>>,
    logs: Option<Arc<KeyLogs>>,
) -> Result<Client, Error> {
    let capabilities = logs.as_ref().map_or(0, |logs| logs.capabilities());
    let sessions = Arc::clone(sessions);
    let on_request = move |message| match message {
        Message::KeyRequest(request) => {
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            match &logs {
                // The program's library may have told of it both ways.
                Some(logs) if !sessions.knows(&request.client_random) => {
                    logs.middlebox_says(Message::KeyRequest(request))
                }
                _ => Some(sessions.answer(&request)),
            }
        }
        Message::Refused(refused) => {
            let mut sessions = sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.refused(&refused);
            None
        }
        _ => None,
    };
    options.channel.start("mmtls-exec", capabilities, Box::new(on_request))
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
