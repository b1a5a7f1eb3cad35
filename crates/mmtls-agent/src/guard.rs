//! The process that stays when an agent ends, also by SIGKILL, and programs go on that share through it: it takes what they
//! still write to their key log, since a FIFO without a reader ends its writers (SIGPIPE), and removes what the agent
//! has left.
//!
//! Refuses to read while an agent lives, its own or the next one, to keep what it reads, and to stay when nobody writes
//! any more.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use mmtls_keylog::follow::is_replaced;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, pidfd_open, set_dumpable_behavior, setsid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use zeroize::Zeroizing;

use crate::Error;
use crate::paths::{self, AgentDirectory};

/// How often it is looked for another agent.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Starts the guard of this process and of the FIFO at `key_log`. `command` is the program and the arguments that lead to
/// [`guard`]; this process's number and the directory come behind them.
pub(crate) fn start(command: &[OsString], directory: &AgentDirectory) -> Result<(), Error> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    let key_log = paths::key_log(directory.path());
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let fifo = OpenOptions::new().read(true).custom_flags(flags).open(&key_log);
    let fifo = fifo.map_err(Error::file(&key_log))?;
    let mut command = Command::new(program);
    command.args(arguments).arg(std::process::id().to_string()).arg(directory.path());
    command.current_dir("/");
    command.stdin(fifo).stdout(Stdio::null()).stderr(Stdio::null());
    // It ends by itself, and not before this process.
    command.spawn().map_err(Error::file(Path::new(program)))?;
    Ok(())
}

/// What the guard does: waits until the agent with this process number has ended, reads the FIFO that is its standard
/// input until nobody writes any more, and removes the agent's directory; or until another agent is there.
///
/// # Errors
/// [`Error::Usage`] for a number that no process has, and [`Error::System`].
pub fn guard(agent: i32, directory: &Path) -> Result<(), Error> {
    let system = |what| move |error: Errno| Error::System { what, error: error.into() };
    // Secrets pass through this memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(system("PR_SET_DUMPABLE"))?;
    // What a terminal or a service manager sends is for the program and the agent.
    setsid().map_err(system("setsid"))?;
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::default())
            .map_err(|error| Error::System { what: "signal handlers", error })?;
    }
    let number = Pid::from_raw(agent).filter(|_| agent > 0);
    let number = number.ok_or_else(|| Error::Usage(format!("{agent} is no process")))?;
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(agent) => wait(&agent, None).map_err(system("poll"))?,
        // It has ended already.
        Err(Errno::SRCH) => {}
        Err(error) => return Err(system("pidfd_open")(error)),
    }
    let mut buffer = Zeroizing::new([0; 4096]);
    let fifo = File::from(
        io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::System { what: "standard input", error })?,
    );
    loop {
        // An agent has it locked for as long as it lives.
        match flock(&fifo, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(()),
            Err(error) => return Err(system("flock")(error)),
        }
        let read = rustix::io::read(&fifo, &mut buffer[..]);
        if read == Ok(0) {
            break;
        }
        flock(&fifo, FlockOperation::Unlock).map_err(system("flock"))?;
        match read {
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(&fifo, Some(&PAUSE)).map_err(system("poll"))?,
            Err(error) => return Err(system("reading the key log")(error)),
        }
    }
    // Where its agent could remove it, the next one's may be there.
    if is_replaced(&paths::key_log(directory), &fifo).is_ok_and(|replaced| !replaced) {
        paths::clean(directory);
    }
    Ok(())
}

/// Waits until there is something to be read, or nobody is left who writes, or for so long.
fn wait(of: &impl AsFd, limit: Option<&Timespec>) -> Result<(), Errno> {
    loop {
        match poll(&mut [PollFd::new(of, PollFlags::IN)], limit) {
            Err(Errno::INTR) => {}
            outcome => return outcome.map(drop),
        }
    }
}
