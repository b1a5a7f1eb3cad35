//! Part (a): the engine in memory against raw opening of the same records ([`super::engine`]): full records of one flow and
//! of several, and records of other sizes.
//!
//! Refuses figures of an engine that held, dropped or failed to open anything.

use serde::Serialize;

use super::engine::{
    Cut, Download, RECORD_CONTENT, TOTAL_CONTENT, raw_pass, repeat, seal, thread_time,
};
use super::report::{Samples, table};
use crate::results::{Axis, Figure};

/// One way to cut a download, measured.
#[derive(Debug, Serialize)]
pub struct Case {
    cut: &'static str,
    flows: usize,
    /// Plaintext of each record.
    record_bytes: usize,
    frames: usize,
    /// TCP payload of the engine's frames per second.
    gbit_per_s: Samples,
    /// The same of raw opening, interleaved.
    raw_gbit_per_s: Samples,
    /// First divided by second, round by round.
    ratio: Samples,
    /// Engine time per frame, acknowledgments included.
    ns_per_frame: Samples,
}

/// Part (a).
#[derive(Debug, Serialize)]
pub struct EngineResults {
    suite: &'static str,
    working_set_bytes: usize,
    rounds: u32,
    /// Full records, of one flow and of several.
    cases: Vec<Case>,
    /// Records of other sizes, of one flow.
    sizes: Vec<Case>,
}

const CUTS: [(&str, Cut); 2] =
    [("64 KB super-frames", Cut::Super), ("1448 B segments", Cut::Segments)];

/// Plaintext bytes of the records of M4.
const SIZES: [usize; 5] = [100, 400, 1500, 4096, RECORD_CONTENT];

/// Measures each case and raw opening in turn, `rounds` times, about `seconds` each time.
pub fn measure(rounds: u32, seconds: f64) -> Result<EngineResults, String> {
    let (mut cases, mut sizes) = (Vec::new(), Vec::new());
    for flows in [1, 64] {
        cases.extend(compare(rounds, seconds, flows, RECORD_CONTENT)?);
    }
    for record_bytes in SIZES {
        sizes.extend(compare(rounds, seconds, 1, record_bytes)?);
    }
    Ok(EngineResults {
        suite: "TLS_AES_256_GCM_SHA384",
        working_set_bytes: TOTAL_CONTENT,
        rounds,
        cases,
        sizes,
    })
}

/// Both ways to cut the same records.
fn compare(
    rounds: u32,
    seconds: f64,
    flows: usize,
    record_bytes: usize,
) -> Result<Vec<Case>, String> {
    let per_flow = TOTAL_CONTENT / record_bytes / flows;
    let sealed = seal(flows, per_flow, record_bytes)?;
    let records = (flows * per_flow) as u64;
    let downloads = CUTS.map(|(name, cut)| (name, Download::prepare(&sealed, records, cut)));
    let bytes = downloads[0].1.payload_bytes();
    let (mut raw, mut ours) = (Vec::new(), [Vec::new(), Vec::new()]);
    // Round 0 warms up.
    for round in 0..=rounds {
        let raw_time = repeat(seconds, || raw_pass(&sealed, record_bytes, thread_time))?;
        let mut times = [0.0; 2];
        for ((_, download), time) in downloads.iter().zip(&mut times) {
            *time = repeat(seconds, || download.pass(thread_time))?;
        }
        if round > 0 {
            raw.push(raw_time);
            ours.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        }
    }
    let gbit = |time: &f64| bytes as f64 * 8.0 / time / 1e9;
    let cases = downloads.iter().zip(&ours).map(|((cut, download), times)| {
        let frames = download.frames();
        let ratios = raw.iter().zip(times).map(|(raw, time)| raw / time);
        Case {
            cut,
            flows,
            record_bytes,
            frames,
            gbit_per_s: Samples::new(times.iter().map(gbit).collect()),
            raw_gbit_per_s: Samples::new(raw.iter().map(gbit).collect()),
            ratio: Samples::new(ratios.collect()),
            ns_per_frame: Samples::new(
                times.iter().map(|time| time * 1e9 / frames as f64).collect(),
            ),
        }
    });
    Ok(cases.collect())
}

impl EngineResults {
    /// Ours: throughput against raw opening, and time per frame.
    pub fn figures(&self) -> Vec<Figure> {
        let frames = || Axis::category("frames, flows");
        let mut throughput = Figure::new(
            "M1",
            "throughput",
            "The engine in memory on one thread, every record opened, against opening alone",
            frames(),
            Axis::linear("TCP payload", "Gbit/s"),
        )
        .note(format!(
            "{}, records of {RECORD_CONTENT} bytes, {} MB of plaintext; the thread's processor time.",
            self.suite,
            self.working_set_bytes >> 20
        ));
        let mut frame = Figure::new(
            "M1",
            "frame",
            "The engine in memory: time per frame, acknowledgments included",
            frames(),
            Axis::linear("processor time per frame", "ns"),
        );
        for case in &self.cases {
            let x = format!("{}, {} flow{}", case.cut, case.flows, plural(case.flows));
            throughput.add("raw AEAD", x.clone(), &case.raw_gbit_per_s.samples);
            throughput.add("mmTLS engine", x.clone(), &case.gbit_per_s.samples);
            frame.add("mmTLS engine", x, &case.ns_per_frame.samples);
        }
        let mut sizes = Figure::new(
            "M4",
            "throughput",
            "The engine in memory by size of record, every record opened, against opening alone",
            Axis::log("plaintext of a record", "B"),
            Axis::log("TCP payload", "Gbit/s"),
        )
        .note("One flow; what is sent is payload, header and tag of each record, too.");
        for case in &self.sizes {
            let x = case.record_bytes as u64;
            // Raw opening has no frames: both cuts were measured beside the same.
            if case.cut == CUTS[0].0 {
                sizes.add("raw AEAD", x, &case.raw_gbit_per_s.samples);
            }
            sizes.add(case.cut, x, &case.gbit_per_s.samples);
        }
        vec![throughput, frame, sizes]
    }

    /// Prints the table.
    pub fn print(&self) {
        let rows: Vec<Vec<String>> = self
            .cases
            .iter()
            .chain(&self.sizes)
            .map(|case| {
                vec![
                    format!(
                        "{} B, {}, {} flow{}",
                        case.record_bytes,
                        case.cut,
                        case.flows,
                        plural(case.flows)
                    ),
                    format!("{:.1}", case.gbit_per_s.median),
                    format!("{:.1}", case.raw_gbit_per_s.median),
                    format!("{:.2}", case.ratio.median),
                    format!("{:.2}–{:.2}", case.ratio.min, case.ratio.max),
                    format!("{:.0}", case.ns_per_frame.median),
                ]
            })
            .collect();
        table(
            &format!(
                "(a) engine in memory, one thread, {}, everything opened; medians of {} rounds",
                self.suite, self.rounds
            ),
            &["records, frames", "Gbit/s", "raw AEAD", "ratio", "range", "ns/frame"],
            &rows,
        );
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
