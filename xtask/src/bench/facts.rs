//! What a figure means nothing without: the machine, the programs, the commit, the date, and how
//! busy the machine was before. Refuses to fail: what cannot be found out is "unknown".

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use mmtls_testkit::machine_cpu;
use serde::Serialize;

use crate::results::Machine;

/// Share of all cores from which on other work disturbs.
pub const BUSY: f64 = 0.1;

/// Facts about this run.
#[derive(Debug, Serialize)]
pub struct Facts {
    date: String,
    commit: String,
    cpu: String,
    cores: usize,
    memory_mb: u64,
    kernel: String,
    nginx: String,
    h2load: String,
    openssl: String,
    /// Share of all cores that was busy in the second before the benchmark began.
    busy_before: f64,
}

impl Facts {
    /// Looks around for a second.
    pub fn collect() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            date: said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            commit: commit(),
            cpu: value_in("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            cores,
            memory_mb: value_in("/proc/meminfo", "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse::<u64>().ok())
                .map_or(0, |kilobytes| kilobytes / 1024),
            kernel: said("uname", &["-sr"]),
            nginx: version("nginx"),
            h2load: version("h2load"),
            openssl: version("openssl"),
            busy_before: busy(cores),
        }
    }

    /// What does not change from one part of a benchmark to the next.
    pub fn machine(&self) -> Machine {
        Machine {
            cpu: self.cpu.clone(),
            cores: self.cores,
            memory_mb: self.memory_mb,
            kernel: self.kernel.clone(),
        }
    }

    /// The commit, as [`commit`] has it.
    pub fn commit(&self) -> &str {
        &self.commit
    }

    /// The day, as in RFC 3339.
    pub fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }

    /// Prints them.
    pub fn print(&self) {
        println!("{}, commit {}", self.date, self.commit);
        println!("{}, {} cores, {} MB, {}", self.cpu, self.cores, self.memory_mb, self.kernel);
        println!("{}; {}; {}", self.nginx, self.h2load, self.openssl);
        println!("busy before: {:.0} % of all cores", self.busy_before * 100.0);
        if self.busy_before > BUSY {
            println!("WARNING: this machine is not idle; do not trust these figures");
        }
    }
}

/// What a program says its version is.
pub fn version(program: &str) -> String {
    let argument = match program {
        "nginx" | "haproxy" | "squid" => "-v",
        "ab" => "-V",
        "openssl" => "version",
        _ => "--version",
    };
    said(program, &[argument])
}

/// Share of all cores that is busy in the next second.
pub fn busy_now() -> f64 {
    busy(std::thread::available_parallelism().map_or(1, usize::from))
}

fn busy(cores: usize) -> f64 {
    let (start, before) = (Instant::now(), machine_cpu());
    sleep(Duration::from_secs(1));
    let share = (machine_cpu() - before) / (start.elapsed().as_secs_f64() * cores as f64);
    (share * 1000.0).round() / 1000.0
}

/// The short hash of the commit that is checked out, and whether files differ from it.
pub fn commit() -> String {
    let commit = said("git", &["rev-parse", "--short", "HEAD"]);
    let changes = said("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changes.is_empty() || commit == "unknown" { commit } else { format!("{commit}-modified") }
}

/// The first line that a program prints.
pub fn said(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        return unknown();
    };
    if !output.status.success() {
        return unknown();
    }
    // nginx tells its version on standard error.
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().trim().to_owned()
}

/// The value of the first `name: value` line of a file.
fn value_in(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// What stands for what cannot be found out.
pub fn unknown() -> String {
    "unknown".to_owned()
}
