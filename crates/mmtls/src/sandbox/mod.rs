//! What the program gives up once it has started: files that it does not need, connections to others, and system calls.
//! Capabilities and core dumps go before ([`mmtls_middlebox::harden`]).
//!
//! For the program `mmtls` alone: a library must not confine the process of its host. Refuses to go on without a
//! restriction that the kernel has and the operator has not switched off.

pub mod calls;
mod files;
mod filter;
mod settings;

use std::path::Path;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, setrlimit};

use calls::Jobs;
pub use files::{Confined, Files, parent};
pub use filter::Filter;
pub use settings::{SandboxError, SandboxSection, Seccomp};

/// Keeps all memory out of swap, present and future, as it is used. To be called while there are capabilities: what the
/// limit allows after that would end in allocations that fail.
///
/// # Errors
/// [`SandboxError::Memory`].
pub fn lock_memory() -> Result<(), SandboxError> {
    let memory = |error: rustix::io::Errno| SandboxError::Memory(error.into());
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).map_err(memory)?;
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(flags).map_err(memory)
}

/// What a process keeps: made while everything can be opened.
pub struct Sandbox {
    section: SandboxSection,
    files: Files,
    jobs: Jobs,
}

impl Sandbox {
    /// For a process whose threads have these jobs, and open these files.
    #[must_use]
    pub fn new(section: SandboxSection, mut files: Files, jobs: Jobs) -> Self {
        section.read_paths.iter().for_each(|path| files.read_all(path));
        Self { section, files, jobs }
    }

    /// Confines the calling thread, and those that it starts; there must be no other yet. What is returned is for the operator.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn enter(mut self) -> Result<Vec<String>, SandboxError> {
        let SandboxSection { enabled, seccomp, .. } = self.section;
        if !enabled {
            return Ok(vec![
                "warning: no sandbox: files, connections and system calls are not restricted"
                    .to_owned(),
            ]);
        }
        // How many there are: the C library, when it shares out memory, and who reads counters of a map that each has.
        let processors = Path::new("/sys/devices/system/cpu");
        if processors.exists() {
            self.files.read_all(processors);
        }
        let mut told = Vec::new();
        match self.files.confine()? {
            Confined::Fully => {}
            Confined::Partly => told.push(
                "sandbox: this kernel's Landlock is an older one: not all files, connections and signals are restricted".to_owned(),
            ),
            Confined::Not => told.push(
                "sandbox: this kernel has no Landlock: files are restricted by their permissions alone".to_owned(),
            ),
        }
        if seccomp == Seccomp::Off {
            told.push(
                "warning: sandbox.seccomp = \"off\": system calls are not restricted".to_owned(),
            );
        }
        Filter::new(self.jobs, seccomp)?.apply()?;
        Ok(told)
    }
}

impl SandboxSection {
    /// For threads that do less than the process.
    ///
    /// # Errors
    /// [`SandboxError::Seccomp`].
    pub fn filter(&self, jobs: Jobs) -> Result<Filter, SandboxError> {
        Filter::new(jobs, if self.enabled { self.seccomp } else { Seccomp::Off })
    }
}

#[cfg(test)]
mod tests;
