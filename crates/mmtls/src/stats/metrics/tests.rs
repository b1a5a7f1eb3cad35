//! What is served is what `docs/metrics.md` says, and dashboard and alerts ask for nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

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
        key_certificate_end: Some(UNIX_EPOCH),
        limits: limits(&mmtls_engine::Limits::default()),
        rules: Some(RulesInForce {
            active: 5,
            skipped: 1,
            loaded_at: UNIX_EPOCH,
            failed_reloads: 0,
            versions: 2,
        }),
        reloads: Reloads::new(UNIX_EPOCH),
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
        "mmtls_monitor_uninspected_total{cause=\"malformed\"} 0",
        "mmtls_stall_duration_seconds_bucket{worker=\"0\",le=\"0.001\"} 0",
        "mmtls_stall_duration_seconds_bucket{worker=\"0\",le=\"0.0025\"} 1",
        "mmtls_stall_duration_seconds_sum{worker=\"0\"} 0.002",
        "mmtls_held_frame_duration_seconds_bucket{worker=\"0\",le=\"10\"} 0",
        "mmtls_held_frame_duration_seconds_bucket{worker=\"0\",le=\"+Inf\"} 1",
        "mmtls_rules_active 5",
        "mmtls_last_reload_successful 1",
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
}

fn panels() -> Vec<Value> {
    let text = std::fs::read_to_string(repository("docs/grafana.json")).unwrap();
    let Value::Object(mut dashboard) = serde_json::from_str(&text).unwrap() else { panic!() };
    let Some(Value::Array(panels)) = dashboard.remove("panels") else { panic!() };
    panels
}

/// Panels beside each other, each with what is bad about what it shows, and no default of Grafana's that would say something wrong.
#[test]
fn accepts_a_dashboard_that_grafana_can_lay_out() {
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: an id twice");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|it| panel["gridPos"][it].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}: 24 columns");
        for at in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(at), "{title}: over another panel");
        }
        // In a window of 1,600 pixels a column has room for some six letters.
        assert!(title.len() as u64 <= 6 * w, "{title}: too long");
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].as_str().is_some_and(|it| it.len() > 20), "{title}");
        let defaults = &panel["fieldConfig"]["defaults"];
        let is_told = |key: &str| !defaults[key].is_null();
        // Grafana's own threshold makes everything from 80 on red: an uptime, too.
        assert!(panel["type"] != "stat" || is_told("thresholds"), "{title}");
        assert!(panel["type"] == "heatmap" || is_told("unit"), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            assert!(!target["legendFormat"].as_str().unwrap().is_empty(), "{title}: a legend");
        }
    }
}

/// What counts is asked for its rate, and what goes up and down for its value.
#[test]
fn accepts_rates_of_counters_and_of_nothing_else() {
    let kinds: BTreeMap<_, _> = sample().iter().map(|it| (served(it), it.kind)).collect();
    for panel in panels() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().unwrap();
            for (at, _) in query.match_indices("mmtls_") {
                let name = query[at..].split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'));
                let name = name.into_iter().next().unwrap().trim_end_matches("_bucket");
                let is_rate = ["rate(", "increase("].iter().any(|it| query[..at].ends_with(it));
                let is_gauge = matches!(kinds[name], MetricType::Gauge);
                assert!(is_rate != is_gauge, "{}: {query}", panel["title"]);
            }
        }
    }
}
