//! Counters for the page, grouped as it shows them, each with what it counts.
//!
//! Refuses to name a counter by itself: names and descriptions are those of `stats` and of metrics.

use mmtls_engine::Limits;
use mmtls_middlebox::{Counters, Histogram, Status};
use serde_json::{Value, json};

use crate::stats::{Snapshots, counts};
use crate::summary::Summary;

/// Counters of the engine that are causes of frames, or bytes, that do not go on.
const DROPS: [&str; 13] = [
    // All together; repetitions of what is held, and what a policy drops, have no counter of their own.
    "dropped",
    "malformed_frames",
    "bad_checksums",
    "syn_data",
    "urgent",
    "wrong_side",
    "misplaced",
    "conflicting_overlaps",
    "out_of_window",
    "buffer_full",
    "table_full",
    "lost_flows",
    "resets_injected",
];

/// Those of what a port loses.
const LOSSES: [&str; 4] = ["kernel_drops", "bad_length", "bad_offload", "send_errors"];

/// Those of the monitor.
const OUTPUTS: [&str; 4] =
    ["lost_log_lines", "failed_streams", "mirror_sessions_cut", "mirror_bytes_lost"];

/// All of them.
pub(super) fn told(snapshots: &Snapshots) -> Value {
    let (status, summary) = snapshots.sum();
    json!({
        "outcomes": outcomes(&summary),
        "why_not": why_not(&summary),
        "drops": drops(&status, &summary),
        "caps": caps(&status, &snapshots.limits()),
        "stalls": histogram(&status.engine.stall_times),
        "held": histogram(&status.held_times),
    })
}

fn outcomes(summary: &Summary) -> Value {
    json!({
        "decrypted": summary.decrypted,
        "missing_key": summary.missing_key,
        "exempt": summary.exempt,
        "failed": summary.failed,
        "nothing_opened": summary.nothing_opened,
        "live": summary.live_sessions(),
    })
}

/// What has kept something from being inspected, by name.
fn why_not(summary: &Summary) -> Value {
    json!({"anomalies": summary.anomalies, "uninspected": summary.uninspected})
}

fn drops(status: &Status, summary: &Summary) -> Vec<Value> {
    let row = |name: String, help: &str, value: u64| json!([name, help.trim(), value]);
    let engine = status.engine.list().zip(Counters::descriptions());
    let mut all: Vec<Value> = engine
        .filter(|((name, _), _)| DROPS.contains(name))
        .map(|((name, value), (_, help))| row(name.to_owned(), help, value))
        .collect();
    for (side, port) in [("left", &status.bridge.left), ("right", &status.bridge.right)] {
        let lost = counts::port(port).into_iter().filter(|(name, ..)| LOSSES.contains(name));
        all.extend(lost.map(|(name, help, value)| row(format!("{side}_{name}"), help, value)));
    }
    let [refused, leases_lost, _] = counts::faults(status);
    all.extend([refused, leases_lost].map(|(name, help, value)| row(name.to_owned(), help, value)));
    let outputs = summary.list().filter(|(name, ..)| OUTPUTS.contains(name));
    all.extend(outputs.map(|(name, help, value)| row(name.to_owned(), help, value)));
    all
}

/// What is kept, and how much may be.
fn caps(status: &Status, limits: &Limits) -> Value {
    json!([
        ["max_flows", "Flows in the table", status.flows, limits.max_flows],
        ["max_buffered_bytes", "Bytes kept", status.buffered_bytes, limits.max_buffered_bytes],
        ["max_held_frames", "Frames held", status.held_frames, limits.max_held_frames],
    ])
}

fn histogram(times: &Histogram) -> Value {
    json!({
        "buckets": times.buckets().collect::<Vec<_>>(),
        "count": times.count(),
        "sum_ns": times.sum_ns(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_counted() {
        let told = drops(&Status::default(), &Summary::default());
        assert_eq!(told.len(), DROPS.len() + 2 * LOSSES.len() + 2 + OUTPUTS.len());
        for row in told {
            let [name, help, value] = &row.as_array().unwrap()[..] else { panic!("{row}") };
            assert!(!name.as_str().unwrap().is_empty() && help.as_str().unwrap().ends_with('.'));
            assert_eq!(value, 0);
        }
        let mut times = Histogram::default();
        times.observe_ns(60_000);
        let told = histogram(&times);
        assert_eq!(told["buckets"][1], json!([100, 1]));
        assert_eq!((&told["count"], &told["sum_ns"]), (&1.into(), &60_000.into()));
    }
}
