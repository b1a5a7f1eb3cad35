//! Which signals count.

/// Those of them that this process was not started to ignore: nohup and background jobs stay as they are.
pub fn not_ignored(signals: &[i32]) -> impl Iterator<Item = i32> {
    let ignored = ignored();
    signals.iter().copied().filter(move |signal| ignored >> (signal - 1) & 1 == 0)
}

/// The signals that this process was started to ignore, signal 1 in the lowest bit.
fn ignored() -> u64 {
    // Without /proc the usual case is assumed: none.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
