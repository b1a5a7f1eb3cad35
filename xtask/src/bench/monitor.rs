//! The monitor of a live measurement: what it must say at its end.
//!
//! Refuses to let a run count that the monitor did not see and open whole.

use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use mmtls_testkit::{Mmtls, middlebox};
use serde::Serialize;
use serde_json::Value;

/// What the monitor counted.
#[derive(Clone, Debug, Serialize)]
pub struct Monitored {
    sessions: u64,
    decrypted: u64,
    records_opened: u64,
    /// Matches of rules, of which there are to be none.
    alerts: u64,
    /// Times that packets of a session waited for keys.
    pub stalls: u64,
    longest_stall_us: u64,
    kernel_drops: u64,
    frames: u64,
    /// Bytes of frames that the kernel has forwarded without it.
    kernel_forwarded: u64,
    /// User and system time of the whole process, from start to end.
    pub cpu_s: f64,
}

/// Ends it. All of `sessions` must have been decrypted.
pub fn stop(mut mmtls: Mmtls, sessions: u64) -> Result<Monitored, String> {
    mmtls.process.signal("TERM");
    mmtls.process.wait(Duration::from_secs(60)).map_err(|error| error.to_string())?;
    let text = mmtls.process.stdout_text();
    let summary = middlebox::summary(&text);
    let count = |name: &str| summary.get(name).copied().unwrap_or(0);
    let stats = last_stats(&mmtls).unwrap_or_default();
    let engine = |name: &str| stats["stats"]["engine"][name].as_u64().unwrap_or(0);
    let seen = Monitored {
        sessions: count("TLS sessions"),
        decrypted: count("decrypted"),
        records_opened: count("records opened"),
        alerts: count("alerts"),
        stalls: count("stalls"),
        longest_stall_us: count("longest stall in us"),
        kernel_drops: engine("left_kernel_drops") + engine("right_kernel_drops"),
        frames: count("frames"),
        kernel_forwarded: engine("left_kernel_forwarded_bytes")
            + engine("right_kernel_forwarded_bytes"),
        cpu_s: mmtls.process.cpu_seconds(),
    };
    let wrong = seen.decrypted != sessions
        || seen.sessions != sessions
        || count("failed")
            + count("missing key")
            + count("records failed")
            + seen.kernel_drops
            + seen.alerts
            > 0;
    if wrong {
        let said = mmtls.process.stderr_text();
        return Err(format!(
            "mmtls was to decrypt {sessions} sessions; {} kernel drops; it says:\n{text}{said}",
            seen.kernel_drops
        ));
    }
    Ok(seen)
}

/// The last `stats` record of `eve.json`, which may be long.
fn last_stats(mmtls: &Mmtls) -> Option<Value> {
    let mut file = std::fs::File::open(mmtls.directory().join("eve.json")).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(1 << 20))).ok()?;
    let mut end = Vec::new();
    file.read_to_end(&mut end).ok()?;
    String::from_utf8_lossy(&end)
        .lines()
        .rev()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|record| record["event_type"] == "stats")
}

impl Monitored {
    /// Prints one line.
    pub fn print(&self, name: &str) {
        println!("{}", self.line(name));
    }

    /// What it counted.
    pub fn line(&self, name: &str) -> String {
        format!(
            "{name}: {} of {} sessions decrypted, {} records opened, {} frames, {} dropped by the \
             kernel, {:.1} GB forwarded by it, {} stalls, the longest {} µs",
            self.decrypted,
            self.sessions,
            self.records_opened,
            self.frames,
            self.kernel_drops,
            self.kernel_forwarded as f64 / 1e9,
            self.stalls,
            self.longest_stall_us
        )
    }
}
