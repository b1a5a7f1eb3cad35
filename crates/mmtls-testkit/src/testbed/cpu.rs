//! Processor time of processes and of the machine, from `/proc`.
//!
//! Refuses to guess: a process that is gone has no figure here; [`super::process::Background`]
//! reads it before it reaps.

use std::fs;
use std::sync::OnceLock;
use std::time::Instant;

/// Ticks per second of `/proc/*/stat`: `USER_HZ`, which the Linux ABI fixes at 100 on every
/// architecture that Rust's Linux targets cover.
const TICKS_PER_SECOND: f64 = 100.0;

/// One line of `/proc/PID/stat`, as far as the testbed needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub state: char,
    pub parent: u32,
    /// User and system time in seconds, of the process and of its reaped children.
    pub cpu_seconds: f64,
    /// Start time in ticks since boot: with the PID, a name that is never reused.
    pub start: u64,
}

pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(line: &str) -> Option<Stat> {
    // The command name is in parentheses and may itself contain spaces and parentheses.
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // `fields[0]` is field 3 of proc(5).
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let ticks = number(14)? + number(15)? + number(16)? + number(17)?;
    Some(Stat {
        state: fields.first()?.chars().next()?,
        parent: u32::try_from(number(4)?).ok()?,
        cpu_seconds: ticks as f64 / TICKS_PER_SECOND,
        start: number(22)?,
    })
}

/// All process ids at this moment.
pub(crate) fn all_pids() -> Vec<u32> {
    numbers_in("/proc")
}

/// The threads of a process; none when it is gone.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    numbers_in(&format!("/proc/{pid}/task"))
}

fn numbers_in(directory: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// `root` and its living descendants, parents before children.
pub(crate) fn process_tree(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> =
        all_pids().into_iter().filter_map(|pid| Some((pid, stat(pid)?.parent))).collect();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        tree.extend(
            parents.iter().filter(|(_, its_parent)| *its_parent == parent).map(|(pid, _)| *pid),
        );
        next += 1;
    }
    tree
}

/// Processor seconds of a process and its descendants so far; `None` when it is gone.
pub(crate) fn tree_cpu_seconds(root: u32) -> Option<f64> {
    stat(root)?;
    Some(process_tree(root).into_iter().filter_map(|pid| Some(stat(pid)?.cpu_seconds)).sum())
}

/// Busy seconds of all processors together: what was neither idle nor stolen by a hypervisor. Only
/// the difference of two readings means anything; it is the "machine" column of a benchmark.
///
/// The kernel measures how long a processor was idle (unless it was built without `NO_HZ`), and tells
/// it in hundredths of a second, but only samples at ticks what the others did; where processors often
/// sleep, samples are off by several percent. Returns 0 where `/proc/stat` cannot be read.
#[must_use]
pub fn machine_cpu() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let now = start.elapsed().as_secs_f64();
    busy(&text, now).unwrap_or(0.0)
}

/// `now` times the processors, without what `/proc/stat` says that they did not work.
fn busy(text: &str, now: f64) -> Option<f64> {
    let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let processors = text.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    let ticks: Vec<u64> = all.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // idle iowait steal
    let unused: u64 = [3, 4, 7].iter().filter_map(|&at| ticks.get(at)).sum();
    Some(processors as f64 * now - unused as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_names_with_parentheses() {
        let line = "42 (a) b (c) S 7 1 1 0 -1 0 0 0 0 0 100 50 25 25 20 0 1 0 9876 0 0 0 0 0 0 0 0";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.start), ('S', 7, 9876));
        assert!((stat.cpu_seconds - 2.0).abs() < 1e-9);
    }

    #[test]
    fn accepts_this_machine() {
        let own = || tree_cpu_seconds(std::process::id()).unwrap();
        let (machine, before) = (machine_cpu(), own());
        while own() < before + 0.3 {}
        let busy = machine_cpu() - machine;
        // Less than it looks like by what was stolen.
        assert!(busy > 0.15, "{busy}");
    }

    #[test]
    fn accepts_what_processors_did_not_do() {
        let text = "cpu  900 5 300 150 20 0 60 30 7 0\ncpu0 1 2\ncpu1 3 4\nintr 99\n";
        assert_eq!(busy(text, 10.0), Some(18.0));
        assert_eq!(busy("", 1.0), None);
    }

    #[test]
    fn refuses_a_short_line() {
        assert!(parse_stat("42 (a) S 7").is_none());
    }
}
