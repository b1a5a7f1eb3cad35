//! Why a middlebox cannot start or go on: one clear line each, sorted by who can mend it.
//!
//! Refuses to carry secrets or bytes from the network.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why something could not be done, or finished.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A capture file is damaged or of an unknown kind; what came before it was handled.
    #[error("{}: {error}", path.display())]
    Capture {
        /// Which one.
        path: PathBuf,
        /// What is wrong, and where.
        error: mmtls_packet_io::capture::CaptureError,
    },
    /// The configuration, an argument or a pattern file is wrong.
    #[error("{0}")]
    Usage(String),
    /// The interfaces could not be opened or have failed.
    #[error(transparent)]
    Interface(mmtls_packet_io::Error),
    /// The key server could not be started.
    #[error("{0}")]
    KeyServer(String),
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
