//! Part (o), as figure 13 of the paper: how long one client waits for an object that it asks for alone, through the kernel's
//! bridge, a program that only forwards, mmTLS and nginx as split-TLS proxy: over a new connection for each object, near
//! the server and behind lines ([`super::line`]) of 10 and 50 ms, and near over one that is kept.
//!
//! A sample is the middle one of a round's requests: a request that was disturbed must not move it.
//!
//! Refuses what [`super::lanes`] refuses, and a line that adds less than it should or could not carry a frame.

use std::fs;
use std::process::Command;
use std::time::Duration;

use mmtls_testkit::{MmtlsOptions, SplitOptions};
use serde::Serialize;

use super::ab::{self, Requests};
use super::contenders;
use super::h2load::{Http, Object};
use super::lane::{Lane, Load, Middlebox};
use super::lanes::{BRIDGE_NAME, Lanes};
use super::line::{self, Carried, LineOptions};
use super::monitor::Monitored;
use super::report::{Samples, table};
use super::sessions::output;
use crate::results::{Axis, Contender, Figure};

const BRIDGE: usize = 0;
const MMTLS: usize = 2;

const OBJECTS: [Object; 7] = [
    Object { name: "1k", bytes: 1 << 10, http: Http::One },
    Object { name: "4k", bytes: 4 << 10, http: Http::One },
    Object { name: "16k", bytes: 16 << 10, http: Http::One },
    Object { name: "64k", bytes: 64 << 10, http: Http::One },
    Object { name: "256k", bytes: 256 << 10, http: Http::One },
    Object { name: "1m", bytes: 1 << 20, http: Http::One },
    Object { name: "4m", bytes: 4 << 20, http: Http::One },
];

/// Where the server is, and how it is reached.
#[derive(Clone, Copy)]
struct Panel {
    name: &'static str,
    /// What the line adds; without it, there is none.
    round_trip_ms: Option<u64>,
    /// All requests over one connection.
    kept: bool,
}

const PANELS: [Panel; 4] = [
    Panel { name: "near", round_trip_ms: None, kept: false },
    Panel { name: "kept", round_trip_ms: None, kept: true },
    Panel { name: "10 ms", round_trip_ms: Some(10), kept: false },
    Panel { name: "50 ms", round_trip_ms: Some(50), kept: false },
];

/// Of a round's time for each middle and size, the share of a live transfer's.
const SHARE: f64 = 0.1;
/// Requests of a round: at least, and at most.
const LEAST: u32 = 3;
const MOST: u32 = 1001;
/// Before what counts.
const WARM_UP: u32 = 20;
/// The same where each takes long.
const SLOW_WARM_UP: u32 = 2;
/// From here on there are half as many rounds: what differs between them is small against the line.
const FAR_MS: u64 = 50;
/// TCP connections whose time is the round trip.
const ROUND_TRIPS: u32 = 20;

/// One middle, one size.
#[derive(Debug, Serialize)]
struct Times {
    middle: &'static str,
    object_bytes: u64,
    /// Of a round.
    requests: u32,
    /// The middle one of each round's requests.
    ms: Samples,
}

/// One plot.
#[derive(Debug, Serialize)]
struct Measured {
    panel: &'static str,
    kept: bool,
    /// Of a TCP connection through the bridge.
    round_trip_ms: Samples,
    times: Vec<Times>,
    mmtls: Monitored,
    /// By lane.
    lines: Vec<Carried>,
    placed: bool,
}

/// Part (o).
#[derive(Debug, Serialize)]
pub struct ResponseResults {
    panels: Vec<Measured>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
}

/// Measures every panel, in about `repetitions` rounds.
pub fn measure(repetitions: u32, load: Load) -> Result<ResponseResults, String> {
    let mut results = ResponseResults { panels: Vec::new(), contenders: Vec::new() };
    for panel in PANELS {
        let (measured, contenders) = measure_panel(panel, repetitions, load)?;
        results.panels.push(measured);
        for contender in contenders {
            if !results.contenders.iter().any(|it| it.name == contender.name) {
                results.contenders.push(contender);
            }
        }
    }
    Ok(results)
}

fn measure_panel(
    panel: Panel,
    repetitions: u32,
    load: Load,
) -> Result<(Measured, Vec<Contender>), String> {
    let round_trip = panel.round_trip_ms.map(Duration::from_millis);
    let options = |round_trip| LineOptions { round_trip, ..LineOptions::default() };
    let load = Load { line: round_trip.map(options), ..load };
    let mut lanes = Lanes::start(middles(panel)?, &OBJECTS, load)?;
    let bridge = lanes.lanes[BRIDGE].bed();
    // The first ones ask for link addresses, too.
    line::round_trips(bridge, 2)?;
    let round_trip_ms = Samples::new(line::round_trips(bridge, ROUND_TRIPS)?);
    if panel.round_trip_ms.is_some_and(|ms| round_trip_ms.min < ms as f64) {
        return Err(format!("{}: a round trip took {:.3} ms", panel.name, round_trip_ms.min));
    }
    let contenders = contenders_of(panel, &lanes);
    let is_far = panel.round_trip_ms.is_some_and(|ms| ms >= FAR_MS);
    let rounds = if is_far { repetitions.div_ceil(2) } else { repetitions };
    let mut times = Vec::new();
    for object in OBJECTS {
        let warm_up = if panel.round_trip_ms.is_some() { SLOW_WARM_UP } else { WARM_UP };
        let mut requests = Vec::new();
        for lane in &mut lanes.lanes {
            let ms = fetch(lane, object, warm_up, panel.kept)?;
            // An odd number has one in the middle.
            let fitting = (load.seconds * SHARE * 1e3 / ms) as u32 | 1;
            requests.push(fitting.clamp(LEAST, MOST));
        }
        let all = lanes.all();
        let taken = lanes.in_turn(rounds, &all, |at, lane| {
            let ms = fetch(lane, object, requests[at], panel.kept)?;
            eprintln!("  {}, {} {}: {ms:.3} ms", panel.name, object.name, lane.name);
            Ok(ms)
        })?;
        for ((lane, requests), ms) in lanes.lanes.iter().zip(requests).zip(taken) {
            let (middle, object_bytes) = (lane.name, object.bytes);
            times.push(Times { middle, object_bytes, requests, ms: Samples::new(ms) });
        }
    }
    let mmtls = lanes.lanes[MMTLS].stop_monitor()?;
    let mut lines = Vec::new();
    for lane in &mut lanes.lanes {
        lines.extend(lane.stop_line()?);
    }
    let (kept, placed) = (panel.kept, lanes.placed());
    let measured = Measured { panel: panel.name, kept, round_trip_ms, times, mmtls, lines, placed };
    Ok((measured, contenders))
}

/// The proxy keeps upstream connections only where its client keeps one, too: with a pool of them, and a window that is open,
/// it would be nearer to a far server than anybody else.
fn middles(panel: Panel) -> Result<Vec<(&'static str, Middlebox)>, String> {
    let monitor = MmtlsOptions::new(crate::binaries()?);
    let (name, split) = match panel.kept {
        true => ("nginx split TLS, upstream kept", SplitOptions::default()),
        false => (
            "nginx split TLS, upstream new",
            SplitOptions { upstream_keepalive: 0, ..SplitOptions::default() },
        ),
    };
    Ok(vec![
        (BRIDGE_NAME, Middlebox::Bridge),
        ("forwarding alone", Middlebox::Forward),
        ("mmTLS", Middlebox::Monitor(Box::new(monitor))),
        (name, Middlebox::SplitWith(Box::new(split))),
    ])
}

fn contenders_of(panel: Panel, lanes: &Lanes) -> Vec<Contender> {
    let mut all = lanes.middles_and_server();
    let object = Object { name: "OBJECT", bytes: 0, http: Http::One };
    let client = command(&lanes.lanes[BRIDGE], asked(object, 0, panel.kept));
    all.push(contenders::of_client(if panel.kept { "client, kept" } else { "client" }, &client));
    all
}

fn asked(object: Object, number: u32, keep: bool) -> Requests<'static> {
    Requests { object: object.name, bytes: object.bytes, number, concurrency: 1, keep }
}

fn command(lane: &Lane, requests: Requests<'_>) -> Command {
    let mut command = lane.client("ab");
    command.arg("-e").arg(lane.bed().directory().join("ab.csv"));
    requests.ask(&mut command);
    command
}

/// The time of the middle one of so many requests, in milliseconds.
fn fetch(lane: &mut Lane, object: Object, number: u32, keep: bool) -> Result<f64, String> {
    let requests = asked(object, number, keep);
    let text =
        output(command(lane, requests)).map_err(|error| format!("{}: ab: {error}", lane.name))?;
    lane.opened(if keep { 1 } else { number.into() });
    let failed = |why: String| format!("{}: {why}", lane.name);
    requests.seconds(&text).map_err(failed)?;
    let path = lane.bed().directory().join("ab.csv");
    let times = fs::read_to_string(&path);
    let times = times.map_err(|error| failed(format!("{}: {error}", path.display())))?;
    ab::median_ms(&times, number).ok_or_else(|| failed(format!("ab's times: {times}")))
}

impl ResponseResults {
    /// Figure 13.
    pub fn figures(&self) -> Vec<Figure> {
        self.panels.iter().map(Measured::figure).collect()
    }

    /// Prints the tables.
    pub fn print(&self) {
        for panel in &self.panels {
            panel.print();
        }
    }
}

impl Measured {
    fn title(&self) -> &'static str {
        match (self.kept, self.lines.is_empty()) {
            (true, _) => "Response times, one connection that is kept",
            (false, true) => "Response times, a new connection for each object",
            (false, false) => "Response times, a new connection for each object, over a line",
        }
    }

    fn figure(&self) -> Figure {
        let axis = Axis::log("response time", "ms");
        let mut figure =
            Figure::new("13", self.panel, self.title(), Axis::log("object", "B"), axis);
        for it in &self.times {
            figure.add(it.middle, it.object_bytes, &it.ms.samples);
        }
        let requests = self.times.iter().map(|it| it.requests);
        let figure = figure.note(format!(
            "One client that waits for each object (ab -c 1), at least {} and at most {} requests in a round, of which the middle one is a sample. \
             A round trip is {:.3} ms ({:.3} to {:.3}; TCP connections through the bridge). {}.",
            requests.clone().min().unwrap_or(0),
            requests.max().unwrap_or(0),
            self.round_trip_ms.median,
            self.round_trip_ms.min,
            self.round_trip_ms.max,
            if self.placed { "Server and client have a processor each" } else { "Nobody has a processor" }
        ));
        let figure = figure.note(self.mmtls.line("mmTLS"));
        match self.lines.iter().map(|line| line.queued_bytes).max() {
            None => figure,
            Some(most) => figure.note(format!(
                "The line delays frames between middle and server in user space, in the same way in all lanes; at most {:.1} MB \
                 were on their way in one direction, and none was lost.",
                most as f64 / 1e6
            )),
        }
    }

    fn print(&self) {
        let mut middles: Vec<&str> = self.times.iter().map(|it| it.middle).collect();
        middles.sort_unstable();
        middles.dedup();
        let mut header = vec!["object"];
        header.extend(&middles);
        let cell = |bytes: u64, middle: &str| {
            let it = self.times.iter().find(|it| (it.object_bytes, it.middle) == (bytes, middle));
            it.map_or_else(String::new, |it| format!("{:.3}", it.ms.median))
        };
        let row = |object: &Object| {
            let cells = middles.iter().map(|middle| cell(object.bytes, middle));
            std::iter::once(format!("{} KB", object.bytes >> 10)).chain(cells).collect()
        };
        let rows: Vec<Vec<String>> = OBJECTS.iter().map(row).collect();
        let title = format!(
            "(o) {} ({}); milliseconds, medians; a round trip is {:.3} ms",
            self.title(),
            self.panel,
            self.round_trip_ms.median
        );
        table(&title, &header, &rows);
        self.mmtls.print("mmTLS");
    }
}
