//! What is served is what `docs/metrics.md` says, and dashboard and alerts ask for nothing else.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;

/// Every metric with every label.
fn sample() -> Vec<Family> {
    let mut worker = (Status::default(), Summary::default());
    worker.0.engine.frames = 3;
    worker.0.engine.stall_ns = 1_500_000_000;
    worker.0.engine.stall_times.observe_ns(2_000_000);
    worker.0.held_times.observe_ns(11_000_000_000);
    worker.0.bridge.right.received_bytes = 7;
    worker.1.decrypted = 2;
    worker.1.longest_stall_us = 2_500;
    worker.1.uninspected.insert("gap", 1);
    worker.1.anomalies.insert("early_fin", 4);
    families(&Facts {
        started_at: UNIX_EPOCH,
        sum: worker.clone(),
        workers: vec![worker],
        keys: KeyCounters::default(),
        limits: limits(&mmtls_engine::Limits::default()),
        rules: Some(RulesInForce {
            active: 5,
            skipped: 1,
            loaded_at: UNIX_EPOCH,
            failed_reloads: 0,
        }),
    })
}

/// The name as it is served.
fn served(family: &Family) -> String {
    let suffix = if family.kind == MetricType::Counter { "_total" } else { "" };
    format!("mmtls_{}{suffix}", family.name)
}

fn repository(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

#[test]
fn accepts_the_text_of_a_sample() {
    let text = encode(sample());
    for line in [
        "# TYPE mmtls_engine_frames_total counter",
        "mmtls_engine_frames_total{worker=\"0\"} 3",
        "mmtls_engine_stall_seconds_total{worker=\"0\"} 1.5",
        "mmtls_port_received_bytes_total{worker=\"0\",port=\"right\"} 7",
        "mmtls_monitor_sessions_total{outcome=\"decrypted\"} 2",
        "mmtls_monitor_longest_stall_seconds 0.0025",
        "mmtls_monitor_uninspected_total{cause=\"gap\"} 1",
        "mmtls_stall_duration_seconds_bucket{worker=\"0\",le=\"0.001\"} 0",
        "mmtls_stall_duration_seconds_bucket{worker=\"0\",le=\"0.0025\"} 1",
        "mmtls_stall_duration_seconds_sum{worker=\"0\"} 0.002",
        "mmtls_held_frame_duration_seconds_bucket{worker=\"0\",le=\"10\"} 0",
        "mmtls_held_frame_duration_seconds_bucket{worker=\"0\",le=\"+Inf\"} 1",
        "mmtls_rules_active 5",
        "mmtls_limit_flows 1048576",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
    }
    let names: BTreeSet<_> = sample().iter().map(served).collect();
    assert_eq!(names.len(), sample().len(), "each name once");
}

#[test]
fn accepts_the_document_that_says_what_is_served() {
    let path = repository("docs/metrics.md");
    let mut table = String::from("| Metric | Labels | What |\n|---|---|---|\n");
    for family in sample() {
        let labels: Vec<_> = family.samples[0].0.iter().map(|it| it.0).collect();
        let name = served(&family);
        table += &format!("| `{name}` | {} | {} |\n", labels.join(", "), family.help);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let head = text.split("| Metric |").next().unwrap();
    if std::env::var_os("MMTLS_UPDATE_METRICS").is_some() {
        std::fs::write(&path, format!("{head}{table}")).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        text,
        format!("{head}{table}"),
        "MMTLS_UPDATE_METRICS=1 cargo test -p mmtls --lib metrics writes it"
    );
}

#[test]
fn accepts_dashboard_and_alerts_that_ask_for_what_is_served() {
    let names: BTreeSet<_> = sample().iter().map(served).collect();
    for path in ["docs/grafana.json", "docs/alerts.yml"] {
        let text = std::fs::read_to_string(repository(path)).unwrap();
        let words = text.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
        let asked: BTreeSet<_> = words.filter(|it| it.starts_with("mmtls_")).collect();
        assert!(asked.len() > 5, "{path} asks for something");
        for name in asked {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
            let known = names.contains(name) || family.is_some_and(|it| names.contains(it));
            assert!(known, "{path}: {name}");
        }
    }
    let dashboard = std::fs::read_to_string(repository("docs/grafana.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
}
