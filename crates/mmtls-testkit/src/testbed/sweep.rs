//! Names that say whose they are, and the removal of what crashed runs left behind.
//!
//! A name carries the PID and the start time of its process, so a reused PID is not mistaken for
//! the owner. Refuses to touch anything whose owner lives or whose name is not of this form.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cpu;
use super::error::TestbedError;
use super::namespace::{self, NETNS_DIR};

const PREFIX: &str = "mmtls-bed";

/// `mmtls-bed-PID-START-COUNTER-role`, unique on this machine.
pub(crate) fn unique_name(role: &str) -> String {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let pid = std::process::id();
    let start = cpu::stat(pid).map_or(0, |stat| stat.start);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}-{pid}-{start}-{count}-{role}")
}

/// Whether `name` is of our form and its process is gone.
fn is_orphan(name: &str) -> bool {
    let Some((pid, start)) = owner(name) else {
        return false;
    };
    cpu::stat(pid).is_none_or(|stat| stat.start != start)
}

fn owner(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.strip_prefix('-')?.split('-');
    let owner = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    // Counter and role must be there too.
    parts.next()?.parse::<usize>().ok()?;
    parts.next().map(|_| owner)
}

/// Removes namespaces (with the processes inside) and directories of runs that are gone.
///
/// Called by the first testbed of a process. Returns how many things were removed.
pub fn sweep() -> usize {
    let mut removed = 0;
    for name in orphans(Path::new(NETNS_DIR)) {
        namespace::remove(&name);
        removed += 1;
    }
    let temporary = std::env::temp_dir();
    for name in orphans(&temporary) {
        if fs::remove_dir_all(temporary.join(name)).is_ok() {
            removed += 1;
        }
    }
    removed
}

fn orphans(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_orphan(name))
        .collect()
}

/// A private directory that is removed with this value, unless `MMTLS_KEEP_TESTBED=1`.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    pub(crate) fn create(role: &str) -> Result<Self, TestbedError> {
        let path = std::env::temp_dir().join(unique_name(role));
        // Private keys and key logs live here.
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(TestbedError::io(&path))?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if std::env::var_os("MMTLS_KEEP_TESTBED").is_none_or(|value| value != "1") {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_its_own_names() {
        let name = unique_name("client");
        assert_eq!(owner(&name).unwrap().0, std::process::id());
        assert!(!is_orphan(&name));
    }

    #[test]
    fn accepts_a_reused_pid_as_orphan() {
        let name = format!("{PREFIX}-{}-1-0-client", std::process::id());
        assert!(is_orphan(&name));
    }

    #[test]
    fn refuses_foreign_names() {
        for name in ["", "mmtls", "mmtls-bed-x-1-0-client", "mmtls-bed-999999999-1", "netns0"] {
            assert!(!is_orphan(name), "{name}");
        }
    }
}
