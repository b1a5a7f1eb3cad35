//! Part (f): two engines on two threads against one, and what `pause` saves.
//!
//! Nothing is shared between engines, so the throughput of two should be twice that of one, unless
//! the machine itself gives less: raw opening on two threads is measured beside it. The clock is the
//! wall's, as every thread must do its work at the same time. For `pause`, 4 MB objects are
//! downloaded, of which the application wants to see the first 64 KB.
//!
//! Refuses figures of an engine that held, dropped or failed to open anything, or that opened a
//! record it was told to skip.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use mmtls_engine::session::{Handler, Record, Session};
use serde::Serialize;

use super::engine::{
    Cut, Download, RECORD_CONTENT, TOTAL_CONTENT, raw_pass, repeat, seal, thread_time,
};
use super::report::{Samples, table};
use crate::results::{Axis, Figure};

/// What an application looks at of each object, and how large objects are.
const LIMIT: u64 = 64 << 10;
const OBJECT: u64 = 4 << 20;

/// One thread against two.
#[derive(Debug, Serialize)]
pub struct Scaling {
    what: &'static str,
    one_gbit_per_s: Samples,
    two_gbit_per_s: Samples,
    /// Second divided by first, round by round.
    ratio: Samples,
}

/// What looking at everything costs, and at the first part of each object.
#[derive(Debug, Serialize)]
pub struct Pause {
    cut: &'static str,
    everything_cpu_s_per_gb: Samples,
    paused_cpu_s_per_gb: Samples,
    /// Records that were opened and passed over, for one pass.
    records_opened: u64,
    records_paused: u64,
}

/// Part (f).
#[derive(Debug, Serialize)]
pub struct ScalingResults {
    rounds: u32,
    scaling: Vec<Scaling>,
    pause: Vec<Pause>,
}

/// Looks at the first [`LIMIT`] bytes of every [`OBJECT`], and pauses for the rest.
#[derive(Default)]
pub(super) struct FirstPart {
    keys_wanted: u32,
    opened: u64,
    /// Bytes of the object at hand that were looked at.
    seen: u64,
}

impl Handler for FirstPart {
    type State = ();

    fn handshake_start(&mut self, _: &mut Session<'_>, (): &mut ()) {
        self.keys_wanted += 1;
    }

    fn new_record(&mut self, session: &mut Session<'_>, (): &mut (), record: &mut Record<'_>) {
        let direction = record.direction();
        if let Ok(plaintext) = record.open() {
            self.opened += 1;
            self.seen += black_box(plaintext.bytes).len() as u64;
        }
        if self.seen >= LIMIT {
            // The record that crosses the end of the object is the next one's first.
            session.pause(direction, Some(OBJECT - self.seen));
            self.seen = 0;
        }
    }
}

impl super::engine::Application for FirstPart {
    fn keys_wanted(&mut self) -> &mut u32 {
        &mut self.keys_wanted
    }

    fn opened(&self) -> u64 {
        self.opened
    }
}

/// Measures each case in turn, `rounds` times, about `seconds` each time.
pub fn measure(rounds: u32, seconds: f64) -> Result<ScalingResults, String> {
    let records = TOTAL_CONTENT / RECORD_CONTENT;
    // Everybody has memory of their own.
    let sealed = [seal(1, records, RECORD_CONTENT)?, seal(1, records, RECORD_CONTENT)?];
    let mut scaling = Vec::new();
    let mut pause = Vec::new();
    for (what, cut) in [("64 KB super-frames", Cut::Super), ("1448 B segments", Cut::Segments)] {
        let downloads = [0, 1].map(|it| Download::prepare(&sealed[it], records as u64, cut));
        let bytes = downloads[0].payload_bytes();
        scaling.push(scale(what, bytes, rounds, |threads| {
            together(threads, |it| repeat(seconds, || downloads[it].pass(wall)))
        })?);
        let (mut all, mut part) = (Vec::new(), Vec::new());
        let mut counts = (0, 0);
        for round in 0..=rounds {
            let everything = repeat(seconds, || downloads[0].pass(thread_time))?;
            let first = repeat(seconds, || {
                let (time, opened, paused) =
                    downloads[0].play(FirstPart::default(), thread_time)?;
                counts = (opened, paused);
                Ok(time)
            })?;
            if round > 0 {
                let per_gb = |time: f64| time * 1e9 / bytes as f64;
                all.push(per_gb(everything));
                part.push(per_gb(first));
            }
        }
        pause.push(Pause {
            cut: what,
            everything_cpu_s_per_gb: Samples::new(all),
            paused_cpu_s_per_gb: Samples::new(part),
            records_opened: counts.0,
            records_paused: counts.1,
        });
    }
    let bytes = sealed[0].iter().map(|stream| stream.len() as u64).sum();
    scaling.push(scale("raw AEAD", bytes, rounds, |threads| {
        together(threads, |it| repeat(seconds, || raw_pass(&sealed[it], RECORD_CONTENT, wall)))
    })?);
    Ok(ScalingResults { rounds, scaling, pause })
}

fn scale(
    what: &'static str,
    bytes: u64,
    rounds: u32,
    mut run: impl FnMut(usize) -> Result<f64, String>,
) -> Result<Scaling, String> {
    let (mut one, mut two) = (Vec::new(), Vec::new());
    // Round 0 warms up.
    for round in 0..=rounds {
        let times = [run(1)?, run(2)?];
        if round > 0 {
            let gbit = bytes as f64 * 8.0 / 1e9;
            one.push(gbit / times[0]);
            two.push(2.0 * gbit / times[1]);
        }
    }
    let ratio = one.iter().zip(&two).map(|(one, two)| two / one).collect();
    Ok(Scaling {
        what,
        one_gbit_per_s: Samples::new(one),
        two_gbit_per_s: Samples::new(two),
        ratio: Samples::new(ratio),
    })
}

/// Runs a measurement on several threads at once; the mean of their times.
fn together(
    threads: usize,
    measure: impl Fn(usize) -> Result<f64, String> + Sync,
) -> Result<f64, String> {
    let barrier = Barrier::new(threads);
    let times = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..threads)
            .map(|it| {
                let (measure, barrier) = (&measure, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    measure(it)
                })
            })
            .collect();
        jobs.into_iter()
            .map(|job| job.join().map_err(|_| "a thread panicked".to_owned())?)
            .collect::<Result<Vec<f64>, String>>()
    })?;
    Ok(times.iter().sum::<f64>() / threads as f64)
}

/// Time on the wall since the first question.
fn wall() -> Duration {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

impl ScalingResults {
    /// Figure 15, as far as engines in memory are a part of it, and ours: what a pause saves.
    pub fn figures(&self) -> Vec<Figure> {
        let mut scaling = Figure::new(
            "15",
            "memory",
            "Engines in memory on one and two threads",
            Axis::linear("threads", ""),
            Axis::linear("TCP payload", "Gbit/s"),
        )
        .note("One flow per thread, everything opened, on the wall's clock.");
        for case in &self.scaling {
            scaling.add(case.what, 1_u64, &case.one_gbit_per_s.samples);
            scaling.add(case.what, 2_u64, &case.two_gbit_per_s.samples);
        }
        let mut pause = Figure::new(
            "M2",
            "pause",
            "4 MB objects: everything opened, and the first 64 KB of each",
            Axis::category("frames"),
            Axis::linear("processor time", "CPU-s/GB"),
        );
        for case in &self.pause {
            pause.add("everything", case.cut, &case.everything_cpu_s_per_gb.samples);
            pause.add("first 64 KB", case.cut, &case.paused_cpu_s_per_gb.samples);
            pause.notes.push(format!(
                "{}: {} records opened and {} passed over in a pass.",
                case.cut, case.records_opened, case.records_paused
            ));
        }
        vec![scaling, pause]
    }

    /// Prints both tables.
    pub fn print(&self) {
        let rows: Vec<Vec<String>> = self
            .scaling
            .iter()
            .map(|case| {
                vec![
                    case.what.to_owned(),
                    format!("{:.1}", case.one_gbit_per_s.median),
                    format!("{:.1}", case.two_gbit_per_s.median),
                    format!("{:.2}", case.ratio.median),
                    format!("{:.2}–{:.2}", case.ratio.min, case.ratio.max),
                ]
            })
            .collect();
        let title = format!(
            "(f) engines in memory, one and two threads, wall clock; medians of {} rounds",
            self.rounds
        );
        table(&title, &["frames", "1 thread Gbit/s", "2 threads", "ratio", "range"], &rows);
        let rows: Vec<Vec<String>> = self
            .pause
            .iter()
            .map(|case| {
                vec![
                    case.cut.to_owned(),
                    format!("{:.3}", case.everything_cpu_s_per_gb.median),
                    format!("{:.3}", case.paused_cpu_s_per_gb.median),
                    case.records_opened.to_string(),
                    case.records_paused.to_string(),
                ]
            })
            .collect();
        table(
            "(f) 4 MB objects: everything opened, and the first 64 KB of each; CPU-s/GB",
            &["frames", "everything", "first 64 KB", "records opened", "paused"],
            &rows,
        );
    }
}
