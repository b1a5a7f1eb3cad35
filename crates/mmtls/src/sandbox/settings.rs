//! `[sandbox]` of the configuration, and what can be wrong.
//!
//! Refuses other words than these.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// `[sandbox]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSection {
    /// Restrict anything here.
    pub enabled: bool,
    /// What becomes of a system call that is not in the table.
    pub seccomp: Seccomp,
    /// Keep all memory out of swap.
    pub lock_memory: bool,
    /// Further files and directories that may be read.
    pub read_paths: Vec<PathBuf>,
}

/// What becomes of a system call that is not in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Seccomp {
    /// The process ends at once.
    Kill,
    /// It fails.
    #[default]
    Errno,
    /// The kernel's log tells, and it is done.
    Log,
    /// There is no filter.
    Off,
}

impl Default for SandboxSection {
    fn default() -> Self {
        Self {
            enabled: true,
            seccomp: Seccomp::default(),
            lock_memory: false,
            read_paths: Vec::new(),
        }
    }
}

/// Why the process is not confined, and does not run.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// A file that is to be opened later.
    #[error("sandbox: {0}: {1}")]
    File(String, String),
    /// The kernel's Landlock.
    #[error("sandbox: Landlock: {0}; sandbox.enabled = false (--no-sandbox) runs without")]
    Landlock(String),
    /// The kernel's seccomp.
    #[error("sandbox: seccomp: {0}; sandbox.seccomp = \"off\" runs without")]
    Seccomp(String),
    /// Memory.
    #[error("sandbox.lock_memory: {0}; LimitMEMLOCK=infinity (ulimit -l unlimited) allows it")]
    Memory(std::io::Error),
}

impl SandboxSection {
    /// Finds what cannot be read, without restricting anything.
    ///
    /// # Errors
    /// [`SandboxError::File`].
    pub fn check(&self) -> Result<(), SandboxError> {
        self.read_paths.iter().try_for_each(|path| match path.metadata() {
            Ok(_) => Ok(()),
            Err(error) => Err(SandboxError::File(path.display().to_string(), error.to_string())),
        })
    }
}
