//! Processor time of processes and of the machine, from `/proc`.
//!
//! Refuses to guess: a process that is gone has no figure here; [`super::process::Background`]
//! reads it before it reaps.

use std::fs;

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
    let Ok(entries) = fs::read_dir("/proc") else {
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

/// Busy seconds of all cores together since boot: user, nice, system, irq and softirq.
///
/// The difference of two readings is the "machine" column of a benchmark. Time stolen by a
/// hypervisor is not counted. Returns 0 where `/proc/stat` cannot be read.
#[must_use]
pub fn machine_cpu() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let Some(line) = text.lines().find(|line| line.starts_with("cpu ")) else {
        return 0.0;
    };
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system (idle iowait) irq softirq
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|&i| ticks.get(i)).sum();
    busy as f64 / TICKS_PER_SECOND
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
        assert!(machine_cpu() > 0.0);
        assert!(tree_cpu_seconds(std::process::id()).is_some());
    }

    #[test]
    fn refuses_a_short_line() {
        assert!(parse_stat("42 (a) S 7").is_none());
    }
}
