//! Skips that nobody overlooks.
//!
//! A test that needs what the machine cannot give says so on the real standard error (libtest
//! hides only what goes through the print macros) and counts. Refuses to skip where
//! `MMTLS_REQUIRE_TESTBED=1`: there a skip is a failure. Other variables do the same for what not every testbed has:
//! `MMTLS_REQUIRE_OPENSSL` (takes long to build), `MMTLS_REQUIRE_BROWSER`, `MMTLS_REQUIRE_MAN`,
//! `MMTLS_REQUIRE_PROXIES` (`scripts/setup bench`), `MMTLS_REQUIRE_INJECTION` (calls
//! that are made for threads: x86-64), `MMTLS_REQUIRE_INSTRUCTIONS` (AVX2, and the baseline's compiler), and what `scripts/with-testbed` sets where kernel and rights allow it:
//! `MMTLS_REQUIRE_KERNEL_FORWARDING`, `MMTLS_REQUIRE_MEMORY_CGROUP`, `MMTLS_REQUIRE_LOCKED_MEMORY`.

use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::namespace;

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// How many tests of this process were skipped so far.
#[must_use]
pub fn skipped_so_far() -> usize {
    SKIPPED.load(Ordering::Relaxed)
}

/// Whether namespaces can be made here. `if !require_testbed() { return; }` opens a testbed test.
///
/// # Panics
/// When they cannot be made and `MMTLS_REQUIRE_TESTBED` is `1`.
#[must_use]
#[track_caller]
pub fn require_testbed() -> bool {
    static PROBE: OnceLock<Result<(), String>> = OnceLock::new();
    match PROBE.get_or_init(|| namespace::probe().map_err(|error| error.to_string())) {
        Ok(()) => true,
        Err(reason) => skip(reason),
    }
}

/// Whether `program` is installed; otherwise as [`require_testbed`].
///
/// # Panics
/// When it is missing and `MMTLS_REQUIRE_TESTBED` is `1`.
#[must_use]
#[track_caller]
pub fn require_program(program: &str) -> bool {
    find_program(program).is_some() || skip(&format!("{program} is not installed"))
}

/// Whether a browser is installed, which is large; otherwise as [`require_testbed`], with another variable.
///
/// # Panics
/// When it is missing and `MMTLS_REQUIRE_BROWSER` is `1`.
#[must_use]
#[track_caller]
pub fn require_browser(program: &str) -> bool {
    find_program(program).is_some()
        || skip_unless("MMTLS_REQUIRE_BROWSER", &format!("{program} is not installed"))
}

/// Whether a file is there that is fetched where it can be; otherwise as [`require_testbed`], with another variable.
///
/// # Panics
/// When it is missing and `MMTLS_REQUIRE_BROWSER` is `1`.
#[must_use]
#[track_caller]
pub fn require_file(path: &str) -> bool {
    std::path::Path::new(path).exists()
        || skip_unless("MMTLS_REQUIRE_BROWSER", &format!("{path} is not there"))
}

/// Whether `python3` is installed and has `module`; otherwise as [`require_testbed`].
///
/// # Panics
/// When it is missing and `MMTLS_REQUIRE_TESTBED` is `1`.
#[must_use]
#[track_caller]
pub fn require_python(module: &str) -> bool {
    let import = format!("import {module}");
    let found = std::process::Command::new("python3").args(["-c", &import]).output();
    found.is_ok_and(|output| output.status.success())
        || skip(&format!("python3 with its module {module} is not installed"))
}

/// Whether a program is installed; nothing is skipped by asking.
#[must_use]
pub(crate) fn is_installed(program: &str) -> bool {
    find_program(program).is_some()
}

pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Administrators' directories are not on every user's PATH, but nginx and ip live there.
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

#[track_caller]
fn skip(reason: &str) -> bool {
    skip_unless("MMTLS_REQUIRE_TESTBED", reason)
}

/// Counts and tells a skip, which is a failure where `variable` is `1`.
#[track_caller]
pub fn skip_unless(variable: &str, reason: &str) -> bool {
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(
        std::env::var_os(variable).is_none_or(|value| value != "1"),
        "{test} would be skipped, but {variable}=1: {reason}"
    );
    // The message is a courtesy: a closed standard error must not fail the test.
    // One write, so that the lines of parallel tests do not mix.
    let line = format!("SKIP: {test}: {reason} (skip {count} of this run)\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_an_installed_program() {
        assert!(find_program("sh").is_some());
    }

    #[test]
    fn refuses_a_missing_program() {
        assert!(find_program("mmtls-no-such-program").is_none());
    }
}
