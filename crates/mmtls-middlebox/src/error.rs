//! Why a middlebox cannot start or go on: one clear line each, sorted by who can mend it.
//!
//! Refuses to carry secrets or bytes from the network.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be done, or finished.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A capture file is damaged or of an unknown kind; what came before it was handled.
    Capture {
        /// Which one.
        path: PathBuf,
        /// What is wrong, and where.
        error: mmtls_packet_io::capture::CaptureError,
    },
    /// The configuration, an argument or a pattern file is wrong.
    Usage(String),
    /// The interfaces could not be opened or have failed.
    Interface(mmtls_packet_io::Error),
    /// The key server could not be started.
    KeyServer(String),
    /// The system refused something else.
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Capture { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Usage(text) => f.write_str(text),
            Self::Interface(error) => error.fmt(f),
            Self::KeyServer(text) => f.write_str(text),
            Self::System { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for Error {}
