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
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use mmtls_keyshare::agent::socket::Users;
use mmtls_keyshare::agent::{
    EXEMPT_VARIABLE, SHARE_HANDSHAKE_VARIABLE, SHARE_SERVER_VARIABLE, SOCKET_VARIABLE,
};
use mmtls_keyshare::policy::ServerNames;
use mmtls_record::Direction;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal, kill_process, set_dumpable_behavior};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use crate::advice::advice;
use crate::agent::Agent;
use crate::audit::Audit;
use crate::channel::Channel;
use crate::consent::Consent;
use crate::key_logs::FollowedLog;
use crate::paths::AgentDirectory;
use crate::programs::{KeyLogUse, Programs};
use crate::rules::Rules;
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
    /// Who gets the keys; without a middlebox, those of an agent that runs.
    pub channel: Channel,
    /// Directory of that agent; `None` for the usual one.
    pub agent: Option<PathBuf>,
    /// Server names, exact or `*.example.org`, whose sessions stay private.
    pub exempt: Vec<String>,
    /// Refuse the keys of this direction: it passes unread.
    pub refused: Option<Direction>,
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

/// Runs the program and returns its exit status, or 128 + the signal that ended it. Where no middlebox is named
/// the program shares through an agent that runs already, and takes this process's place.
///
/// # Errors
/// [`Error::Usage`], [`Error::File`] and [`Error::System`]. The program's own failure is no error, nor that it cannot be
/// started: 127 where it is not there, 126 otherwise.
pub fn run(options: &ExecOptions) -> Result<i32, Error> {
    let Some((program, arguments)) = options.program.split_first() else {
        return Err(Error::Usage("no program to run".to_owned()));
    };
    let exempt = exempt_names(&options.exempt)?;
    let mut command = Command::new(program);
    command.args(arguments);
    let library = paths::find_library(options.preload_library.as_deref())?;
    command.env("LD_PRELOAD", paths::preload_list(&library));
    if options.channel.middleboxes.is_empty() {
        return through_agent(options, &exempt, command);
    }
    // Traffic secrets live in this memory. Not inherited by the program.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| Error::System { what: "PR_SET_DUMPABLE", error: error.into() })?;

    let key_logs = if writes_key_log(&exempt) { KeyLogUse::Shared } else { KeyLogUse::None };
    let consent = Consent::new(options.refused, Rules::default(), Audit::default());
    let programs = Programs::new(options.share_handshake, key_logs, consent);
    let client = options.channel.start("mmtls-exec", &programs)?;
    let directory = paths::AgentDirectory::create()?;
    let agent =
        Agent::start(&paths::socket(directory.path()), Users::Own, Arc::clone(&client), &programs)?;
    let mut followed = None;
    if let Some(logs) = programs.logs() {
        followed = Some(FollowedLog::start(&paths::key_log(directory.path()), logs, say)?);
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
    set_environment(&mut command, options, &exempt, directory.path());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(program, &error)),
    };
    let status = wait(&mut child, &mut signals).map_err(system("waiting for the program"))?;

    drop(followed);
    let (client, errors) = agent.finish();
    let counters = client.shutdown(DRAIN_PATIENCE);
    let from_logs = programs.logs().map(|logs| logs.counters()).unwrap_or_default();
    let (sessions, reasons) = {
        let sessions = programs.sessions();
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
        let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
        let reasons = reasons.join(", ");
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

/// Starts the program in this process's place, with an agent that is there.
fn through_agent(
    options: &ExecOptions,
    exempt: &ServerNames,
    mut command: Command,
) -> Result<i32, Error> {
    let directory = AgentDirectory::running(options.agent.as_deref())
        .map_err(|error| Error::Usage(format!("no --middlebox, and {error}")))?;
    set_environment(&mut command, options, exempt, &directory);
    let error = command.exec();
    Ok(not_started(command.get_program(), &error))
}

/// Tells the preload library and other TLS libraries where the agent is.
fn set_environment(
    command: &mut Command,
    options: &ExecOptions,
    exempt: &ServerNames,
    directory: &Path,
) {
    command.env(SOCKET_VARIABLE, paths::socket(directory));
    let key_log = paths::key_log(directory);
    if writes_key_log(exempt) {
        // An agent of all users takes key logs of its own only.
        match access(&key_log, Access::WRITE_OK) {
            Err(Errno::ACCESS) => {
                say("this agent takes no key logs of yours: only programs with OpenSSL share");
            }
            _ => set_key_log(command, &key_log, options.java_agent.as_deref()),
        }
    }
    if exempt.is_empty() {
        command.env_remove(EXEMPT_VARIABLE);
    } else {
        command.env(EXEMPT_VARIABLE, exempt.to_string());
        take_key_log_away(command);
    }
    for (asked, variable) in [
        (options.share_server, SHARE_SERVER_VARIABLE),
        (options.share_handshake, SHARE_HANDSHAKE_VARIABLE),
    ] {
        match asked {
            true => command.env(variable, "1"),
            false => command.env_remove(variable),
        };
    }
}

/// The exit status where the program is not there, or cannot be started.
fn not_started(program: &OsStr, error: &io::Error) -> i32 {
    say(&format!("{}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_STARTED,
    }
}

/// Whether the program is to write a key log: not where some names are exempt, which no line has, or where somebody
/// else reads it.
fn writes_key_log(exempt: &ServerNames) -> bool {
    exempt.is_empty() && std::env::var_os(KEY_LOG_VARIABLE).is_none_or(|it| it.is_empty())
}

/// Takes a key log away that an agent reads: it was set by another `mmtls exec`, or for all programs.
fn take_key_log_away(command: &mut Command) {
    let is_fifo = |path: &Path| path.metadata().is_ok_and(|it| it.file_type().is_fifo());
    if std::env::var_os(KEY_LOG_VARIABLE).is_some_and(|path| is_fifo(Path::new(&path))) {
        say("--exempt: this program writes no key log, since it has no names");
        command.env_remove(KEY_LOG_VARIABLE);
    }
    for variable in [NODE_VARIABLE, JAVA_VARIABLE] {
        let Ok(options) = std::env::var(variable) else {
            continue;
        };
        let names_fifo = |it: &&str| it.rsplit('=').next().is_some_and(|it| is_fifo(Path::new(it)));
        let kept: Vec<&str> = options.split(' ').filter(|it| !names_fifo(it)).collect();
        command.env(variable, kept.join(" "));
    }
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
