//! Part (h), as figure 20 of the paper: 1 MB objects through mmTLS that applies 10,000 rules to the first
//! 16, 32, 64 or 128 KB of each, against nginx as split-TLS proxy that looks at nothing, over HTTP/1.1
//! and HTTP/2; and 4 MB objects, with what is not inspected forwarded by the kernel, too. What [`super::lanes`] refuses, and a run in which a rule matched: none is meant to.

use std::fs;

use mmtls_testkit::MmtlsOptions;
use serde::Serialize;

use super::h2load::{Http, Object};
use super::lane::{Load, Middlebox};
use super::lanes::{BRIDGE_NAME, Directory, Lanes, Variant, ratio};
use super::monitor::Monitored;
use super::report::{Samples, table};
use super::rules::rule_text;
use super::variants;
use crate::results::{Axis, Contender, Figure};

/// Rules, inspected KB of each body, and whether the kernel forwards the rest of it.
const RULES: usize = 10_000;
const DEPTHS: [(&str, u64, bool); 6] = [
    ("mmTLS, first 16 KB", 16, false),
    ("mmTLS, first 32 KB", 32, false),
    ("mmTLS, first 64 KB", 64, false),
    ("mmTLS, first 128 KB", 128, false),
    ("mmTLS, 16 KB, kernel", 16, true),
    ("mmTLS, 64 KB, kernel", 64, true),
];

const BRIDGE: usize = 0;
const SPLIT: usize = 1;

/// What is fetched; over HTTP/2 several at a time on each connection.
const OBJECTS: [Object; 3] = [
    Object { name: "4m", bytes: 4 << 20, http: Http::One },
    Object { name: "1m", bytes: 1 << 20, http: Http::One },
    Object { name: "1m", bytes: 1 << 20, http: Http::Two { streams: 8 } },
];

/// What one middle adds, against what the proxy adds.
#[derive(Debug, Serialize)]
struct Against {
    variant: &'static str,
    http: Http,
    object_bytes: u64,
    /// (split − bridge) / (this − bridge) of the medians of machine CPU per byte.
    ratio: f64,
    /// The same of each repetition.
    per_repetition: Samples,
}

/// Part (h).
#[derive(Debug, Serialize)]
pub struct InspectionResults {
    suite: &'static str,
    connections: u32,
    rules: usize,
    receive_steering: bool,
    cubic: bool,
    placed: bool,
    variants: Vec<Variant>,
    against_split: Vec<Against>,
    monitors: Vec<Monitored>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
    #[serde(skip)]
    note: String,
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<InspectionResults, String> {
    let place = Directory::create("rules")?;
    let rules = place.0.join("bench.rules");
    fs::write(&rules, rule_text(RULES)).map_err(|error| format!("{}: {error}", rules.display()))?;
    let monitor = |inspect: String| -> Result<Middlebox, String> {
        let config = Some(format!("[inspect]\n{inspect}\n"));
        let options = MmtlsOptions { config, ..MmtlsOptions::new(crate::binaries()?) };
        Ok(Middlebox::Monitor(Box::new(options)))
    };
    let mut middles = vec![
        (BRIDGE_NAME, Middlebox::Bridge),
        ("nginx split TLS", Middlebox::Split),
        ("mmTLS, no rules", monitor(String::new())?),
    ];
    for (name, kilobytes, by_kernel) in DEPTHS {
        // nginx pads nothing.
        let limit = kilobytes << 10;
        let forwarding = if by_kernel { "always" } else { "never" };
        let text = format!(
            "rules_files = [{rules:?}]\nlimit_bytes = {limit}\nlimit_trusts_padding = true\n\
             [inline]\nkernel_forwarding = {forwarding:?}"
        );
        middles.push((name, monitor(text)?));
    }
    let mut lanes = Lanes::start(middles, &OBJECTS, load)?;
    let (contenders, note) = (lanes.contenders(), lanes.note());
    let mut variants = Vec::new();
    let all = lanes.all();
    for object in OBJECTS {
        variants.extend(lanes.measure(repetitions, object, &all)?);
    }
    let against_split = variants.chunks_exact(lanes.lanes.len()).flat_map(against).collect();
    let mut monitors = Vec::new();
    for lane in lanes.lanes.iter_mut().skip(SPLIT + 1) {
        monitors.push(lane.stop_monitor()?);
    }
    Ok(InspectionResults {
        suite: load.tls.suite(),
        connections: load.connections,
        rules: RULES,
        receive_steering: lanes.steering(),
        cubic: lanes.cubic(),
        placed: lanes.placed(),
        variants,
        against_split,
        monitors,
        contenders,
        note,
    })
}

/// Of the variants of one object.
fn against(variants: &[Variant]) -> Vec<Against> {
    let cpu = |at: usize| &variants[at].machine_cpu_s_per_gb;
    let each = |this: usize, at: usize| {
        ratio(cpu(BRIDGE).samples[at], cpu(this).samples[at], cpu(SPLIT).samples[at])
    };
    (SPLIT + 1..variants.len())
        .map(|this| Against {
            variant: variants[this].variant,
            http: variants[this].http,
            object_bytes: variants[this].object_bytes,
            ratio: ratio(cpu(BRIDGE).median, cpu(this).median, cpu(SPLIT).median),
            per_repetition: Samples::new(
                (0..cpu(this).samples.len()).map(|at| each(this, at)).collect(),
            ),
        })
        .collect()
}

impl InspectionResults {
    /// Figure 20.
    pub fn figures(&self) -> Vec<Figure> {
        let x = |it: &Variant| format!("{} MB, {}", it.object_bytes >> 20, it.http.name()).into();
        let axis = Axis::category("object, protocol");
        let what = format!("{} rules, none of which matches", self.rules);
        let mut figures = variants::figures("20", &what, &axis, &self.variants, x);
        if let Some(first) = figures.first_mut() {
            first.notes.push(self.note.clone());
            first.notes.push(
                "The proxy looks at nothing; mmTLS at the first part of each body, as its name says.".to_owned(),
            );
        }
        figures
    }

    /// Prints a table.
    pub fn print(&self) {
        let bridge = |of: &Variant| {
            self.variants
                .iter()
                .find(|it| (it.http, it.object_bytes) == (of.http, of.object_bytes))
                .map_or(0.0, |bridge| bridge.machine_cpu_s_per_gb.median)
        };
        let rows: Vec<Vec<String>> = self
            .variants
            .iter()
            .map(|it| {
                let machine = &it.machine_cpu_s_per_gb;
                let against = self.against_split.iter().find(|other| {
                    (other.variant, other.http, other.object_bytes)
                        == (it.variant, it.http, it.object_bytes)
                });
                let (ratio, range) = against.map_or_else(Default::default, |it| {
                    let each = &it.per_repetition;
                    (format!("{:.1}", it.ratio), format!("{:.1}–{:.1}", each.min, each.max))
                });
                vec![
                    format!("{} MB, {}, {}", it.object_bytes >> 20, it.http.name(), it.variant),
                    format!("{:.1}", it.gbit_per_s.median),
                    format!("{:.3}", machine.median),
                    format!("{:.3}–{:.3}", machine.min, machine.max),
                    format!("{:.3}", machine.median - bridge(it)),
                    format!("{:.3}", it.middle_cpu_s_per_gb.median),
                    ratio,
                    range,
                ]
            })
            .collect();
        let title = format!(
            "(h) 4 MB and 1 MB objects, {} rules, {} persistent connections, {}; CPU-s/GB, medians",
            self.rules, self.connections, self.suite
        );
        let header =
            ["middle", "Gbit/s", "machine", "range", "added", "box alone", "ratio", "range"];
        table(&title, &header, &rows);
    }
}
