//! Part (n), our own figure: throughput where frames from the server are lost between it and the middle, through the kernel's bridge,
//! mmTLS and nginx as split-TLS proxy. All have the same line ([`super::line`]), also where nothing is lost, and no offloads, so
//! that what is lost is a frame as on a wire.
//!
//! Refuses what [`super::lanes`] refuses: a session that failed or was not decrypted, too, and a line that lost other frames
//! than it should.

use mmtls_testkit::MmtlsOptions;
use serde::Serialize;

use super::h2load::{Http, Object};
use super::lane::{Load, Middlebox};
use super::lanes::{BRIDGE_NAME, Lanes, Variant};
use super::line::{Carried, LineOptions};
use super::monitor::Monitored;
use super::report::table;
use crate::results::{Axis, Contender, Figure};

const OBJECT: Object = Object { name: "1m", bytes: 1 << 20, http: Http::One };
/// Of a thousand frames.
const LOST: [usize; 3] = [0, 1, 10];
/// Fewer than elsewhere: what all of them have in flight is to find place in the buffers of the line.
const CONNECTIONS: u32 = 8;
const MMTLS: usize = 1;

/// With so many frames lost.
#[derive(Debug, Serialize)]
struct Lossy {
    lost_per_mille: usize,
    variants: Vec<Variant>,
    /// By lane.
    lines: Vec<Carried>,
    mmtls: Monitored,
}

/// The second half of part (n).
#[derive(Debug, Serialize)]
pub struct LossResults {
    all: Vec<Lossy>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
    #[serde(skip)]
    note: String,
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<LossResults, String> {
    let mut results = LossResults { all: Vec::new(), contenders: Vec::new(), note: String::new() };
    for lost_per_mille in LOST {
        let line = LineOptions { lost_per_mille, ..LineOptions::default() };
        let load = Load { connections: CONNECTIONS, line: Some(line), single_frames: true, ..load };
        let monitor = MmtlsOptions::new(crate::binaries()?);
        let middles = vec![
            (BRIDGE_NAME, Middlebox::Bridge),
            ("mmTLS", Middlebox::Monitor(Box::new(monitor))),
            ("nginx split TLS", Middlebox::Split),
        ];
        let mut lanes = Lanes::start(middles, &[OBJECT], load)?;
        (results.contenders, results.note) = (lanes.contenders(), lanes.note());
        let variants = lanes.measure(repetitions, OBJECT, &lanes.all())?;
        let mmtls = lanes.lanes[MMTLS].stop_monitor()?;
        let mut lines = Vec::new();
        for lane in &mut lanes.lanes {
            lines.extend(lane.stop_line()?);
        }
        results.all.push(Lossy { lost_per_mille, variants, lines, mmtls });
    }
    Ok(results)
}

impl Lossy {
    /// What was meant to be lost.
    fn name(&self) -> String {
        format!("{} %", self.lost_per_mille as f64 / 10.0)
    }

    /// What was lost.
    fn line(&self) -> String {
        let frames: u64 = self.lines.iter().map(|it| it.from_server).sum();
        let lost: u64 = self.lines.iter().map(|it| it.lost).sum();
        let share = lost as f64 / frames.max(1) as f64 * 100.0;
        format!("{}: {lost} of {frames} frames lost ({share:.3} %), all lanes", self.name())
    }
}

impl LossResults {
    /// Figure M5.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figure = Figure::new(
            "M5",
            "throughput",
            "Throughput where frames are lost",
            Axis::category("frames from the server that are lost"),
            Axis::linear("objects", "Gbit/s"),
        )
        .note(format!(
            "1 MB objects, HTTP/1.1, {} Offloads are off, and a program in user space stands between middle and server in all lanes, which \
             drops frames by a seed; client, middle, line and server share the machine. Behind split TLS, only the proxy sees the loss.",
            self.note
        ));
        for it in &self.all {
            for variant in &it.variants {
                figure.add(variant.variant, it.name(), &variant.gbit_per_s.samples);
            }
            figure.notes.push(it.line());
            figure.notes.push(format!("{}, no session failed", it.mmtls.line("mmTLS")));
        }
        vec![figure]
    }

    /// Prints the table.
    pub fn print(&self) {
        let rows = self.all.iter().flat_map(|it| {
            it.variants.iter().map(|variant| {
                let rate = &variant.gbit_per_s;
                vec![
                    format!("{} lost, {}", it.name(), variant.variant),
                    format!("{:.3}", rate.median),
                    format!("{:.3}–{:.3}", rate.min, rate.max),
                    format!("{:.3}", variant.machine_cpu_s_per_gb.median),
                ]
            })
        });
        let rows: Vec<Vec<String>> = rows.collect();
        let title =
            format!("(n) 1 MB objects, {CONNECTIONS} persistent connections, frames lost; medians");
        table(&title, &["loss, middle", "Gbit/s", "range", "machine, CPU-s/GB"], &rows);
        for it in &self.all {
            println!("{}", it.line());
            it.mmtls.print("mmTLS");
        }
    }
}
