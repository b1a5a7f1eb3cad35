//! Which signals count, and which only must not end the process.

use std::io;
use std::sync::Arc;

/// Those of them that this process was not started to ignore: nohup and background jobs stay as they are.
pub fn not_ignored(signals: &[i32]) -> impl Iterator<Item = i32> {
    let ignored = ignored();
    signals.iter().copied().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// From now on a signal does not end this process; others may handle it besides. Programs that it starts have it as
/// it was.
///
/// # Errors
/// The kernel's, for signals that cannot be handled.
pub fn survive(signal: i32) -> io::Result<()> {
    // Ignoring it would be inherited, and a handler would take the place of that.
    for signal in not_ignored(&[signal]) {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    Ok(())
}

/// The signals that this process was started to ignore, signal 1 in the lowest bit.
fn ignored() -> u64 {
    // Without /proc the usual case is assumed: none.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
