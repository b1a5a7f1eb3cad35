//! Part (s), our own figure: how long a frame is in the middle. The monitor hands a frame on when nothing in it is left to be
//! inspected; the one that completes a record waits until the record is open. Live, by what the kernel says of when a frame came to
//! the middle and to the client; and of the engine alone.
//!
//! Refuses a run in which a request failed, a session was not decrypted, or a byte came to the client that did not come
//! to the middle.

use mmtls_testkit::MmtlsOptions;
use serde::Serialize;

use super::ab::Requests;
use super::engine::{self, RECORD_CONTENT};
use super::h2load::{Http, Object};
use super::lane::{Lane, Load, Middlebox};
use super::lanes::{BRIDGE_NAME, Lanes};
use super::monitor::Monitored;
use super::report::{quantile, table};
use super::sessions::output;
use super::taps::{Taps, Times};
use crate::results::{Axis, Contender, Figure, Kind};

const OBJECT: Object = Object { name: "64k", bytes: 64 << 10, http: Http::One };
/// Of a round: four full records each.
const REQUESTS: u32 = 500;
const MMTLS: usize = 2;
/// Records of a round in memory: what they take on the wire is more than a cache holds.
const RECORDS: usize = 2_000;
const ENGINE: &str = "mmTLS engine";

/// What one middle did in each round.
#[derive(Debug)]
struct Middle {
    name: &'static str,
    rounds: Vec<Times>,
}

/// Part (s).
#[derive(Debug, Serialize)]
pub struct HoldResults {
    #[serde(skip)]
    middles: Vec<Middle>,
    /// Of each round, the nanoseconds from a record's last frame to its release, the engine alone.
    #[serde(skip)]
    engine_ns: Vec<Vec<u64>>,
    mmtls: Monitored,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
    #[serde(skip)]
    note: String,
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<HoldResults, String> {
    let sealed = engine::seal(1, RECORDS, RECORD_CONTENT)?;
    let download = engine::Download::prepare(&sealed, RECORDS as u64, engine::Cut::Segments);
    // Round 0 warms up.
    let rounds = (0..=repetitions).map(|_| download.last_frames(RECORD_CONTENT));
    let engine_ns = rounds.skip(1).collect::<Result<Vec<_>, _>>()?;

    let load = Load { connections: 1, single_frames: true, ..load };
    let monitor = MmtlsOptions::new(crate::binaries()?);
    let middles = vec![
        (BRIDGE_NAME, Middlebox::Bridge),
        ("forwarding alone", Middlebox::Forward),
        ("mmTLS", Middlebox::Monitor(Box::new(monitor))),
    ];
    let mut lanes = Lanes::start(middles, &[OBJECT], load)?;
    let (contenders, note) = (lanes.middles_and_server(), lanes.note());
    let all = lanes.all();
    let rounds = lanes.in_turn(repetitions, &all, |_, lane| {
        let times = fetch(lane)?;
        let [median, most] = [0.5, 0.99].map(|share| quantile_us(&times.last_ns, share));
        eprintln!("  {}: {median:.1} µs, 99 in 100 {most:.1} µs", lane.name);
        Ok(times)
    })?;
    let middles = lanes.lanes.iter().zip(rounds);
    let middles = middles.map(|(lane, rounds)| Middle { name: lane.name, rounds }).collect();
    let mmtls = lanes.lanes[MMTLS].stop_monitor()?;
    Ok(HoldResults { middles, engine_ns, mmtls, contenders, note })
}

/// One round: a client that waits for each object, over one connection.
fn fetch(lane: &mut Lane) -> Result<Times, String> {
    let failed = |why: String| format!("{}: {why}", lane.name);
    let taps = Taps::start(lane.bed()).map_err(failed)?;
    let requests = Requests {
        object: OBJECT.name,
        bytes: OBJECT.bytes,
        number: REQUESTS,
        concurrency: 1,
        keep: true,
    };
    let mut command = lane.client("ab");
    requests.ask(&mut command);
    let text = output(command).map_err(|error| failed(format!("ab: {error}")))?;
    requests.seconds(&text).map_err(failed)?;
    let times = taps.stop(RECORD_CONTENT).map_err(failed)?;
    lane.opened(1);
    Ok(times)
}

/// Microseconds, in tenths: finer, no two events would be alike, and each would stand in the file.
fn us(events_ns: &[u64]) -> impl Iterator<Item = f64> {
    events_ns.iter().map(|&ns| (ns as f64 / 100.0).round() / 10.0)
}

/// In microseconds.
fn quantile_us(events_ns: &[u64], share: f64) -> f64 {
    let mut sorted = events_ns.to_vec();
    sorted.sort_unstable();
    quantile(&sorted, share).unwrap_or(0) as f64 / 1e3
}

impl HoldResults {
    /// Figure M8.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str| {
            let mut figure = Figure::new(
                "M8",
                panel,
                title,
                Axis::category("run"),
                Axis::log("time in the middle", "µs"),
            );
            figure.kind = Kind::Distribution;
            figure
        };
        let mut last = figure("last", "From the last frame of a full record to its release")
            .note(format!(
                "64 KB objects one after another (ab -c 1 -k), nginx, frames of MTU size; by the kernel's time of a frame when it comes to the \
                 middle's interface and to the client's. The engine alone, in memory: no sockets, no interfaces, one flow. {}",
                self.note
            ))
            .note(self.mmtls.line("mmTLS"));
        let mut others = figure("others", "The same for frames that complete no record");
        for middle in &self.middles {
            for (run, times) in (1..).zip(&middle.rounds) {
                last.add_events(middle.name, format!("{run}"), us(&times.last_ns));
                others.add_events(middle.name, format!("{run}"), us(&times.other_ns));
            }
        }
        for (run, events) in (1..).zip(&self.engine_ns) {
            last.add_events(ENGINE, format!("{run}"), us(events));
        }
        vec![last, others]
    }

    /// Prints the table.
    pub fn print(&self) {
        let row = |name: &str, all: &[&[u64]]| {
            let events = all.concat();
            let cell = |share| format!("{:.1}", quantile_us(&events, share));
            vec![name.to_owned(), events.len().to_string(), cell(0.5), cell(0.9), cell(0.99)]
        };
        let mut rows = Vec::new();
        for middle in &self.middles {
            let of =
                |pick: fn(&Times) -> &[u64]| middle.rounds.iter().map(pick).collect::<Vec<_>>();
            rows.push(row(middle.name, &of(|times| &times.last_ns)));
            rows.push(row(&format!("{}, other frames", middle.name), &of(|times| &times.other_ns)));
        }
        let engine: Vec<&[u64]> = self.engine_ns.iter().map(Vec::as_slice).collect();
        rows.push(row(ENGINE, &engine));
        let title = "(s) last frames of full records: µs in the middle, of all rounds";
        table(title, &["middle", "frames", "median", "90 %", "99 %"], &rows);
        self.mmtls.print("mmTLS");
    }
}
