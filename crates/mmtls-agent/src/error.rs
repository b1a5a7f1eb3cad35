//! The agent's errors: one clear line each.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a program could not be run with an agent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written, or the program could not be started.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// An argument is wrong.
    #[error("{0}")]
    Usage(String),
    /// The system refused something else.
    #[error("{what}: {error}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |error| Self::File { path: path.to_owned(), error }
    }
}
