//! Why a guard cannot be installed, found or used: one line each, with what to do. Refuses to carry what it did not find out.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why something about a guard could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GuardError {
    /// None is there.
    #[error("no guard is installed for {names} (`mmtls guard install {}` as root)", words(names))]
    NotThere {
        /// The interfaces.
        names: String,
    },
    /// One is there that is not as it should be.
    #[error(
        "the guard of {names} has a lease of {lease_ms} ms: remove it first (`mmtls guard remove {}`)",
        words(names)
    )]
    Installed {
        /// The interfaces.
        names: String,
        /// Its lease, in milliseconds.
        lease_ms: u128,
    },
    /// There is a part of one.
    #[error(
        "the guard of {names} is not complete: its installation has been interrupted, and it may forward beside a monitor (`mmtls \
         guard remove {}` as root), or is under way",
        words(names)
    )]
    Incomplete {
        /// The interfaces.
        names: String,
    },
    /// A guard of another pair is on an interface of this one, and would forward first.
    #[error(
        "the guard of {names} is installed on {interface}, and would forward every frame beside this one: remove it first (`mmtls \
         guard {remove}` as root)"
    )]
    Shared {
        /// The interface.
        interface: String,
        /// The other guard's interfaces.
        names: String,
        /// How it is removed.
        remove: String,
    },
    /// A guard would forward what a monitor forwards that does not renew its lease.
    #[error(
        "a guard is installed on {interface}, and would forward every frame beside this monitor: inline.when_down = \"open\", \
         or remove it (`mmtls guard status` lists them)"
    )]
    FailsClosed {
        /// The interface.
        interface: String,
    },
    /// Somebody receives there who would not renew the lease.
    #[error(
        "packet sockets receive from {names} ({processes}): a monitor that runs without the guard would forward what the guard \
         forwards. End it, and what else captures on both, first"
    )]
    InUse {
        /// The interfaces.
        names: String,
        /// Whose sockets they are.
        processes: String,
    },
    /// A monitor renews it.
    #[error("another monitor holds the lease of the guard of {names}; end it first")]
    Held {
        /// The interfaces.
        names: String,
    },
    /// Another monitor has claimed it.
    #[error("another monitor has taken the lease of the guard of {names}")]
    Taken {
        /// The interfaces.
        names: String,
    },
    /// What is there is not of this version, or for something else.
    #[error(
        "the guard in {} is of another version of mmtls: remove it and install it again (`mmtls guard remove`, `mmtls guard install`)",
        path.display()
    )]
    Foreign {
        /// Where it is.
        path: PathBuf,
    },
    /// There are not so many slots.
    #[error("a guard is for 128 workers at most")]
    TooManyWorkers,
    /// It cannot be had here.
    #[error("no guard can be installed: {reason}")]
    Unsupported {
        /// Why.
        reason: String,
    },
    /// This user may not.
    #[error(
        "{}: not permitted: `mmtls guard install {} --user USER`, as root, makes a guard for a monitor of that user (for a \
         service see docs/operations.md)",
        path.display(), words(names)
    )]
    NotPermitted {
        /// What.
        path: PathBuf,
        /// The interfaces.
        names: String,
    },
    /// Anything else that the system refused.
    #[error("{}: {error}", path.display())]
    System {
        /// What was attempted, or where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// Names of interfaces as a command takes them.
fn words(names: &str) -> String {
    names.replace(" and ", " ")
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> GuardError + '_ {
    |error| GuardError::System { path: path.to_owned(), error }
}

/// What the system said, behind what a library says around it.
pub(super) fn system_error(error: &(dyn std::error::Error + 'static)) -> io::Error {
    let mut cause = Some(error);
    while let Some(of) = cause {
        if let Some(code) = of.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return io::Error::from_raw_os_error(code);
        }
        cause = of.source();
    }
    io::Error::other(error.to_string())
}
