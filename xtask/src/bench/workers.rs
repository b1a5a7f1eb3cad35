//! Part (n), as figure 15 of the paper, live: 1 MB objects over persistent connections through mmTLS with one and two workers, nginx
//! as split-TLS proxy with one and two processes, and the kernel's bridge. Nobody is given a processor: two workers need
//! two, and where there are no more than that, client and server share them.
//!
//! Refuses what [`super::lanes`] refuses.

use mmtls_testkit::{MmtlsOptions, SplitOptions, may_have_workers};
use serde::Serialize;

use super::h2load::{Http, Object};
use super::lane::{Load, Middlebox};
use super::lanes::{COLUMNS, Lanes, Variant};
use super::monitor::Monitored;
use super::report::table;
use crate::results::{Axis, Contender, Figure, Skipped};

const OBJECT: Object = Object { name: "1m", bytes: 1 << 20, http: Http::One };

/// Lane, series, workers; the bridge has none.
const LANES: [(&str, &str, u32); 5] = [
    ("kernel bridge", "kernel bridge", 0),
    ("mmTLS, 1 worker", "mmTLS", 1),
    ("mmTLS, 2 workers", "mmTLS", 2),
    ("nginx split TLS, 1 worker", "nginx split TLS", 1),
    ("nginx split TLS, 2 workers", "nginx split TLS", 2),
];
const WORKERS: [u32; 2] = [1, 2];

/// The first half of part (n).
#[derive(Debug, Serialize)]
pub struct WorkersResults {
    connections: u32,
    processors: usize,
    variants: Vec<Variant>,
    monitors: Vec<Monitored>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
    #[serde(skip)]
    note: String,
    #[serde(skip)]
    skipped: Vec<Skipped>,
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<WorkersResults, String> {
    let load = Load { floating: true, ..load };
    let mut skipped = Vec::new();
    let mut middles = Vec::new();
    for (name, series, workers) in LANES {
        let middlebox = match series {
            "mmTLS" => {
                let arguments = vec!["--workers".to_owned(), workers.to_string()];
                let options = MmtlsOptions { arguments, ..MmtlsOptions::new(crate::binaries()?) };
                Middlebox::Monitor(Box::new(options))
            }
            "nginx split TLS" if workers > 1 && !may_have_workers() => {
                let why = "nginx needs rights to change groups".to_owned();
                println!("SKIP: {name}: {why}");
                skipped.push(Skipped { what: name.to_owned(), why });
                continue;
            }
            "nginx split TLS" => {
                Middlebox::SplitWith(Box::new(SplitOptions { workers, ..SplitOptions::default() }))
            }
            _ => Middlebox::Bridge,
        };
        middles.push((name, middlebox));
    }
    let mut lanes = Lanes::start(middles, &[OBJECT], load)?;
    let (contenders, note) = (lanes.contenders(), lanes.note());
    let variants = lanes.measure(repetitions, OBJECT, &lanes.all())?;
    let is_monitor =
        |name: &str| LANES.iter().any(|(it, series, _)| *it == name && *series == "mmTLS");
    let mut monitors = Vec::new();
    for lane in lanes.lanes.iter_mut().filter(|lane| is_monitor(lane.name)) {
        monitors.push(lane.stop_monitor()?);
    }
    Ok(WorkersResults {
        connections: load.connections,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        variants,
        monitors,
        contenders,
        note,
        skipped,
    })
}

impl WorkersResults {
    /// Figure 15, live.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, y| {
            Figure::new("15", panel, title, Axis::linear("workers", ""), y)
        };
        let mut machine = figure(
            "live",
            "Workers, live: processor time of the whole machine",
            Axis::linear("busy time of all cores", "CPU-s/GB"),
        )
        .note(format!(
            "1 MB objects, HTTP/1.1, {} The machine has {} processors, which client, server and workers share: what two workers gain in \
             throughput is what the others leave them. The bridge, which has no workers, was measured once and is drawn at both places.",
            self.note, self.processors
        ));
        let mut throughput = figure(
            "live throughput",
            "Workers, live: throughput of the shared machine",
            Axis::linear("objects", "Gbit/s"),
        );
        for (name, series, workers) in LANES {
            let Some(it) = self.variants.iter().find(|it| it.variant == name) else { continue };
            for x in WORKERS.into_iter().filter(|x| workers == 0 || workers == *x) {
                machine.add(series, u64::from(x), &it.machine_cpu_s_per_gb.samples);
                throughput.add(series, u64::from(x), &it.gbit_per_s.samples);
            }
        }
        let monitors = self.monitors.iter().zip(WORKERS);
        machine.notes.extend(monitors.map(|(it, workers)| it.line(&format!("mmTLS, {workers}"))));
        machine.skipped.clone_from(&self.skipped);
        vec![machine, throughput]
    }

    /// Prints the table.
    pub fn print(&self) {
        let rows: Vec<_> = self.variants.iter().map(|it| it.cells(it.variant.to_owned())).collect();
        let title = format!(
            "(n) 1 MB objects, {} persistent connections, nobody placed; CPU-s/GB, medians",
            self.connections
        );
        table(&title, &COLUMNS, &rows);
    }
}
