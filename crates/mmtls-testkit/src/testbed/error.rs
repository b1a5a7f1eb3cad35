//! What can go wrong in the testbed, sorted by whose fault it is.
//!
//! Refuses a catch-all: a caller must be able to tell "this machine cannot" (a skip) from "this
//! failed" (a failure).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

/// Failure of a testbed operation.
#[derive(Debug, Error)]
pub enum TestbedError {
    /// The machine cannot provide the testbed (rights, kernel feature, missing program): a skip.
    #[error("testbed unavailable: {0}")]
    Unavailable(String),
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A command ended with a failure status.
    #[error("{what} failed: {detail}")]
    Failed {
        /// The command line or the name of the background process.
        what: String,
        /// Its exit status and the end of its output.
        detail: String,
    },
    /// Something did not happen in time.
    #[error("{what}: nothing after {:.1} s; output so far: {detail}", after.as_secs_f64())]
    Timeout {
        /// What was awaited.
        what: String,
        /// How long.
        after: Duration,
        /// The end of the output so far.
        detail: String,
    },
}

impl TestbedError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_path_buf(), source }
    }

    /// Whether this is the machine's limit and so a reason to skip.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}
