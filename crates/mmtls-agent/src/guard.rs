//! The process that stays when `mmtls exec` ends, also by SIGKILL, and programs of it go on: it takes what they still write
//! to their key log, since a FIFO without a reader ends its writers (SIGPIPE), and removes what the agent has left.
//!
//! Refuses to read while the agent lives, to keep what it reads, and to stay when nobody writes any more.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, PidfdFlags, pidfd_open, set_dumpable_behavior, setsid,
};
use zeroize::Zeroizing;

use crate::Error;
use crate::paths::PrivateDirectory;

/// Starts the guard of this process and of the FIFO at `key_log`. `command` is the program and the arguments that lead to
/// [`guard`]; this process's number and the directory come behind them.
pub(crate) fn start(command: &[OsString], directory: &PrivateDirectory) -> Result<(), Error> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    let key_log = directory.key_log();
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

/// What the guard does: waits until the agent with this process number has ended, removes its directory, and reads
/// the FIFO that is its standard input for as long as somebody writes.
///
/// # Errors
/// [`Error::Usage`] for a number that no process has, and [`Error::System`].
pub fn guard(agent: i32, directory: &Path) -> Result<(), Error> {
    let system = |what| move |error: Errno| Error::System { what, error: error.into() };
    // Secrets pass through this memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(system("PR_SET_DUMPABLE"))?;
    // What a terminal sends is for the program and the agent.
    setsid().map_err(system("setsid"))?;
    let number = Pid::from_raw(agent).filter(|_| agent > 0);
    let number = number.ok_or_else(|| Error::Usage(format!("{agent} is no process")))?;
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(agent) => wait(&agent).map_err(system("poll"))?,
        // It has ended already.
        Err(Errno::SRCH) => {}
        Err(error) => return Err(system("pidfd_open")(error)),
    }
    // It is gone where the agent could remove it.
    let _ = std::fs::remove_dir_all(directory);
    let mut buffer = Zeroizing::new([0; 4096]);
    let fifo = io::stdin();
    loop {
        match rustix::io::read(&fifo, &mut buffer[..]) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(&fifo).map_err(system("poll"))?,
            Err(error) => return Err(system("reading the key log")(error)),
        }
    }
}

/// Waits until there is something to be read, or nobody is left who writes.
fn wait(of: &impl AsFd) -> Result<(), Errno> {
    loop {
        match poll(&mut [PollFd::new(of, PollFlags::IN)], None) {
            Err(Errno::INTR) => {}
            outcome => return outcome.map(drop),
        }
    }
}
