//! Metrics in Prometheus' text format. Names come from those of `stats` in `eve.json`: `mmtls_GROUP_NAME_total` counts,
//! everything else goes up and down; seconds in place of `_us` and `_ns`.
//!
//! Refuses to compute anything that its reader can compute.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use mmtls_engine::Limits;
use mmtls_inspect::Uninspected;
use mmtls_middlebox::{Counters, Histogram, KeyCounters, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::counts::Count;
use super::{Reloads, Snapshots, counts};
use crate::rules::{Reloader, RulesInForce};
use crate::summary::Summary;

/// What the text is, for HTTP.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const NANOSECONDS: f64 = 1e9;
const MICROSECONDS: f64 = 1e6;

/// Counters of the engine that are told as one metric: name, metric, label, its value.
const LABELLED: [(&str, &str, &str, &str); 6] = [
    ("stalls_ended_by_keys", "stalls_ended", "by", "keys"),
    ("stalls_ended_by_limit", "stalls_ended", "by", "limit"),
    ("keys_wrong_sender", "keys_refused_by_cause", "cause", "wrong_sender"),
    ("keys_mismatch", "keys_refused_by_cause", "cause", "mismatch"),
    ("keys_open_nothing", "keys_refused_by_cause", "cause", "open_nothing"),
    ("keys_over_quota", "keys_refused_by_cause", "cause", "over_quota"),
];
const LABELLED_HELP: [(&str, &str); 2] = [
    ("stalls_ended", "Stalls ended, by keys or by a limit."),
    ("keys_refused_by_cause", "Of engine_keys_refused, those with a cause of their own."),
];

/// Fields of the summary that are the outcomes of sessions.
const OUTCOMES: [&str; 5] = ["decrypted", "missing_key", "exempt", "failed", "nothing_opened"];

/// What is told.
struct Facts {
    started_at: SystemTime,
    workers: Vec<(Status, Summary)>,
    sum: (Status, Summary),
    keys: KeyCounters,
    key_certificate_end: Option<SystemTime>,
    limits: [Count; 3],
    rules: Option<RulesInForce>,
    reloads: Reloads,
}

/// One metric.
#[derive(Debug)]
struct Family {
    name: String,
    help: String,
    kind: MetricType,
    samples: Vec<(Labels, Value)>,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Count(u64),
    Number(f64),
    Times(Box<Histogram>),
}

/// All metrics as text.
#[must_use]
pub fn text(snapshots: &Snapshots) -> String {
    encode(families(&Facts {
        started_at: snapshots.started_at(),
        workers: snapshots.each(),
        sum: snapshots.sum(),
        keys: snapshots.keys(),
        key_certificate_end: snapshots.key_certificate_end(),
        limits: limits(&snapshots.limits()),
        rules: snapshots.rules().map(Reloader::in_force),
        reloads: snapshots.reloads(),
    }))
}

fn limits(limits: &Limits) -> [Count; 3] {
    let Limits { max_flows, max_buffered_bytes, max_held_frames, .. } = *limits;
    [
        ("flows", "Most flows in the table (`limits.max_flows`).", max_flows as u64),
        (
            "buffered_bytes",
            "Most bytes kept (`limits.max_buffered_bytes`).",
            max_buffered_bytes as u64,
        ),
        ("held_frames", "Most frames held (`limits.max_held_frames`).", max_held_frames as u64),
    ]
}

fn encode(families: Vec<Family>) -> String {
    let mut registry = Registry::with_prefix("mmtls");
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = prometheus_text::encode(&mut text, &registry);
    text
}

fn families(facts: &Facts) -> Vec<Family> {
    let mut all = Vec::new();
    let one = |value| vec![(Labels::new(), value)];
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    all.push(gauge(
        "build_info",
        "The version that runs; always 1.",
        vec![(version, Value::Count(1))],
    ));
    let since = facts.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = Value::Number(since.as_secs_f64());
    all.push(gauge("start_time_seconds", "When the run began, in seconds since 1970.", one(start)));
    for (name, help, most) in facts.limits {
        all.push(gauge(&format!("limit_{name}"), help, one(Value::Count(most))));
    }
    engine(facts, &mut all);
    ports(facts, &mut all);
    monitor(&facts.sum.1, &mut all);
    for (name, help, value) in counts::keys(&facts.keys) {
        all.push(number(name, help, one(Value::Count(value))));
    }
    if let Some(end) = facts.key_certificate_end {
        let end = end.duration_since(UNIX_EPOCH).unwrap_or_default();
        let help = "When the key channel's certificate ends, in seconds since 1970: endpoints refuse it from then on.";
        let at = one(Value::Number(end.as_secs_f64()));
        all.push(gauge("key_certificate_expiry_time_seconds", help, at));
    }
    reloads(&facts.reloads, &mut all);
    if let Some(rules) = &facts.rules {
        let loaded = rules.loaded_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let count = |count: usize| one(Value::Count(count as u64));
        all.push(gauge("rules_active", "Rules in force.", count(rules.active)));
        all.push(gauge("rules_skipped", "Rules that were left out.", count(rules.skipped)));
        let help = "When the rules in force were read, in seconds since 1970.";
        let at = one(Value::Number(loaded.as_secs_f64()));
        all.push(gauge("rules_loaded_time_seconds", help, at));
        let help = "How often rules were to be read again and an error kept the last ones.";
        all.push(counter("rules_reload_failures", help, one(Value::Count(rules.failed_reloads))));
        let help = "Versions of the rules in memory: the one in force, and those that open transactions go by.";
        all.push(gauge("rules_versions", help, count(rules.versions)));
    }
    all
}

/// As Prometheus tells of its own.
fn reloads(reloads: &Reloads, all: &mut Vec<Family>) {
    let one = |value| vec![(Labels::new(), value)];
    for (name, help, value) in reloads.counts() {
        all.push(counter(name, help, one(Value::Count(value))));
    }
    let help = "1 where the last reload is in force, or there was none; 0 where a mistake kept everything as it was.";
    let is_good = Value::Count(u64::from(reloads.is_last_good));
    all.push(gauge("last_reload_successful", help, one(is_good)));
    let at = reloads.last_good_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let help = "When what is in force was read, in seconds since 1970.";
    let at = one(Value::Number(at.as_secs_f64()));
    all.push(gauge("last_reload_success_time_seconds", help, at));
}

/// What each worker and its engine count and keep.
fn engine(facts: &Facts, all: &mut Vec<Family>) {
    let each = |of: &dyn Fn(&Status) -> Value| -> Vec<(Labels, Value)> {
        let workers = facts.workers.iter().enumerate();
        workers.map(|(at, (status, _))| (worker(at), of(status))).collect()
    };
    for (at, (name, help)) in Counters::descriptions().enumerate() {
        let value = |status: &Status| {
            status.engine.list().nth(at).map_or(Value::Count(0), |(_, count)| Value::Count(count))
        };
        let Some((_, metric, label, of)) = LABELLED.iter().find(|it| it.0 == name) else {
            all.push(number(&format!("engine_{name}"), help, each(&value)));
            continue;
        };
        let mut samples = each(&value);
        samples.iter_mut().for_each(|(labels, _)| labels.push((*label, (*of).to_owned())));
        let named = format!("engine_{metric}");
        match all.iter_mut().find(|it| it.name == named) {
            Some(family) => family.samples.extend(samples),
            None => {
                let help = LABELLED_HELP.iter().find(|it| it.0 == *metric).map_or("", |it| it.1);
                all.push(counter(&named, help, samples));
            }
        }
    }
    for at in 0..counts::kept(&Status::default()).len() {
        let (name, help, _) = counts::kept(&Status::default())[at];
        let value = |status: &Status| Value::Count(counts::kept(status)[at].2);
        all.push(number(&format!("worker_{name}"), help, each(&value)));
    }
    // All workers see an interface go down.
    let [.., downs] = counts::faults(&facts.sum.0);
    for at in 0..2 {
        let (name, help, _) = counts::faults(&facts.sum.0)[at];
        let value = |status: &Status| Value::Count(counts::faults(status)[at].2);
        all.push(number(&format!("worker_{name}"), help, each(&value)));
    }
    all.push(number(downs.0, downs.1, vec![(Labels::new(), Value::Count(downs.2))]));
    for (name, help, of) in [
        (
            "stall_duration_seconds",
            "How long records waited until their keys came, or the limit of their direction.",
            &(|status: &Status| status.engine.stall_times) as &dyn Fn(&Status) -> Histogram,
        ),
        (
            "held_frame_duration_seconds",
            "How long frames that were held waited for their verdict.",
            &|status: &Status| status.held_times,
        ),
    ] {
        let samples = each(&|status| Value::Times(Box::new(of(status))));
        all.push(Family { samples, ..new(name, help, MetricType::Histogram) });
    }
}

fn ports(facts: &Facts, all: &mut Vec<Family>) {
    // All workers see the same.
    let links = counts::links(&facts.sum.0);
    let samples = ["left", "right"].into_iter().zip(links);
    let samples = samples
        .map(|(side, (.., is_up))| (vec![("port", side.to_owned())], Value::Count(is_up)))
        .collect();
    all.push(gauge("port_up", links[0].1, samples));
    // One worker tells for all, and not of this run alone.
    let bridge = &facts.sum.0.bridge;
    let [left, right] = [&bridge.left, &bridge.right].map(counts::guard);
    for ((name, help, left), (.., right)) in left.into_iter().zip(right) {
        let samples = [("left", left), ("right", right)];
        let samples =
            samples.map(|(side, count)| (vec![("port", side.to_owned())], Value::Count(count)));
        all.push(counter(&format!("port_{name}"), help, samples.into()));
    }
    for (at, (name, help, _)) in
        counts::port(&Status::default().bridge.left).into_iter().enumerate()
    {
        let mut samples = Vec::new();
        for (number, (status, _)) in facts.workers.iter().enumerate() {
            for (side, port) in [("left", &status.bridge.left), ("right", &status.bridge.right)] {
                let mut labels = worker(number);
                labels.push(("port", side.to_owned()));
                samples.push((labels, Value::Count(counts::port(port)[at].2)));
            }
        }
        all.push(counter(&format!("port_{name}"), help, samples));
    }
}

fn monitor(summary: &Summary, all: &mut Vec<Family>) {
    let one = |value| vec![(Labels::new(), Value::Count(value))];
    let mut outcomes = Vec::new();
    for (name, help, value) in summary.list() {
        if OUTCOMES.contains(&name) {
            outcomes.push((vec![("outcome", name.to_owned())], Value::Count(value)));
        } else {
            all.push(number(&format!("monitor_{name}"), help, one(value)));
        }
    }
    all.push(counter("monitor_sessions", "Ended TLS sessions by outcome.", outcomes));
    let longest = Value::Number(summary.longest_stall_us as f64 / MICROSECONDS);
    let help = "Longest wait of packets for keys.";
    all.push(gauge("monitor_longest_stall_seconds", help, vec![(Labels::new(), longest)]));
    // Causes are there from the start: of a count that begins with 1, `rate` does not see that 1.
    let uninspected = Uninspected::ALL.map(|cause| {
        let count = summary.uninspected.get(cause.name()).copied().unwrap_or_default();
        (vec![("cause", cause.name().to_owned())], Value::Count(count))
    });
    let help = "Directions of sessions of which something passed uninspected, by cause.";
    all.push(counter("monitor_uninspected", help, uninspected.into()));
    let help = "Anomalies, by the name that eve.json gives them.";
    let anomalies = summary.anomalies.iter();
    let anomalies = anomalies
        .map(|(name, count)| (vec![("event", (*name).to_owned())], Value::Count(*count)))
        .collect();
    all.push(counter("monitor_anomalies", help, anomalies));
}

fn worker(number: usize) -> Labels {
    vec![("worker", number.to_string())]
}

fn new(name: &str, help: &str, kind: MetricType) -> Family {
    Family { name: name.to_owned(), help: help.trim().to_owned(), kind, samples: Vec::new() }
}

fn gauge(name: &str, help: &str, samples: Vec<(Labels, Value)>) -> Family {
    Family { samples, ..new(name, help, MetricType::Gauge) }
}

fn counter(name: &str, help: &str, samples: Vec<(Labels, Value)>) -> Family {
    Family { samples, ..new(name, help, MetricType::Counter) }
}

/// What a name of `stats` says about itself: `_now` goes up and down, `_ns` is time, everything else counts.
fn number(name: &str, help: &str, mut samples: Vec<(Labels, Value)>) -> Family {
    if let Some(name) = name.strip_suffix("_now") {
        // Prometheus' text does not tell a gauge from a counter of that name without its suffix.
        return gauge(&format!("{name}_now"), help, samples);
    }
    let Some(name) = name.strip_suffix("_ns") else {
        return counter(name, help, samples);
    };
    for (_, value) in &mut samples {
        if let Value::Count(count) = *value {
            *value = Value::Number(count as f64 / NANOSECONDS);
        }
    }
    counter(&format!("{name}_seconds"), &help.replacen("Nanoseconds", "Seconds", 1), samples)
}

struct Families(Vec<Family>);

impl fmt::Debug for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Families").finish_non_exhaustive()
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for Family { name, help, kind, samples } in &self.0 {
            let mut metric = encoder.encode_descriptor(name, help, None, *kind)?;
            for (labels, value) in samples {
                let mut sample = metric.encode_family(labels)?;
                match (value, kind) {
                    (Value::Count(count), MetricType::Counter) => {
                        sample.encode_counter::<Labels, u64, u64>(count, None)?;
                    }
                    (Value::Number(number), MetricType::Counter) => {
                        sample.encode_counter::<Labels, f64, u64>(number, None)?;
                    }
                    (Value::Count(count), _) => sample.encode_gauge(&Whole(*count))?,
                    (Value::Number(number), _) => sample.encode_gauge(number)?,
                    (Value::Times(times), _) => {
                        let buckets: Vec<(f64, u64)> = times
                            .buckets()
                            .map(|(bound, count)| {
                                (bound.map_or(f64::INFINITY, |us| us as f64 / MICROSECONDS), count)
                            })
                            .collect();
                        let sum = times.sum_ns() as f64 / NANOSECONDS;
                        sample.encode_histogram::<Labels>(sum, times.count(), &buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A whole number that goes up and down.
struct Whole(u64);

impl EncodeGaugeValue for Whole {
    fn encode(&self, encoder: &mut prometheus_client::encoding::GaugeValueEncoder) -> fmt::Result {
        EncodeGaugeValue::encode(&i64::try_from(self.0).unwrap_or(i64::MAX), encoder)
    }
}

#[cfg(test)]
mod tests;
