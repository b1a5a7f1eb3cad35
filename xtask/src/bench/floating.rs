//! Part (r): the downloads of part (b) where nobody has a processor: server, client and middle run wherever the scheduler puts them,
//! as on a machine that nobody has set up for a measurement. The kernel's bridge, mmTLS, a program that only forwards, and
//! nginx as split-TLS proxy. What each adds varies more than with places, so there are more connections and more rounds.
//!
//! Refuses what [`super::lanes`] refuses.

use mmtls_testkit::MmtlsOptions;
use serde::Serialize;

use super::h2load::{Http, Object};
use super::lane::{Load, Middlebox};
use super::lanes::{BRIDGE_NAME, COLUMNS, Lanes, Variant};
use super::monitor::Monitored;
use super::report::table;
use super::variants;
use crate::results::{Axis, Contender, Figure};

const OBJECTS: [Object; 2] = [
    Object { name: "64k", bytes: 64 << 10, http: Http::One },
    Object { name: "1m", bytes: 1 << 20, http: Http::One },
];

const MMTLS: usize = 1;

const CONNECTIONS: u32 = 64;

/// Part (r).
#[derive(Debug, Serialize)]
pub struct FloatingResults {
    variants: Vec<Variant>,
    mmtls: Monitored,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
    #[serde(skip)]
    note: String,
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<FloatingResults, String> {
    let monitor = MmtlsOptions::new(crate::binaries()?);
    let middles = vec![
        (BRIDGE_NAME, Middlebox::Bridge),
        ("mmTLS", Middlebox::Monitor(Box::new(monitor))),
        ("forwarding alone", Middlebox::Forward),
        ("nginx split TLS", Middlebox::Split),
    ];
    let load = Load { floating: true, connections: CONNECTIONS, ..load };
    let mut lanes = Lanes::start(middles, &OBJECTS, load)?;
    let mut variants = Vec::new();
    for object in OBJECTS {
        variants.extend(lanes.measure(repetitions, object, &lanes.all())?);
    }
    let (contenders, note) = (lanes.contenders(), lanes.note());
    Ok(FloatingResults { variants, mmtls: lanes.lanes[MMTLS].stop_monitor()?, contenders, note })
}

impl FloatingResults {
    /// Figure 10, floating.
    pub fn figures(&self) -> Vec<Figure> {
        let what = "Downloads, everybody where the scheduler puts them";
        let x = |it: &Variant| it.object_bytes.into();
        let panels = variants::figures("10", what, &Axis::log("object", "B"), &self.variants, x);
        let named = |it: Figure| Figure { panel: format!("floating {}", it.panel), ..it };
        let mut panels: Vec<Figure> = panels.into_iter().map(named).collect();
        if let Some(first) = panels.first_mut() {
            first.notes.push(format!("HTTP/1.1, {}", self.note));
            first.notes.push(self.mmtls.line("mmTLS"));
        }
        panels
    }

    /// Prints the table.
    pub fn print(&self) {
        let name = |it: &Variant| format!("{} KB, {}", it.object_bytes >> 10, it.variant);
        let rows: Vec<_> = self.variants.iter().map(|it| it.cells(name(it))).collect();
        let title =
            format!("(r) {CONNECTIONS} persistent connections, nobody placed; CPU-s/GB, medians");
        table(&title, &COLUMNS, &rows);
    }
}
