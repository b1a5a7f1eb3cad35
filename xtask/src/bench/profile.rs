//! Part (k), as figures 2 and 3 and table 1 of the paper: what a split-TLS proxy leaves of the throughput that there is end to end,
//! over persistent and over new connections, and where its process spends its time; mmTLS beside it.
//!
//! Figure 2 is measured by [`super::lanes`], as part (b) is. For figure 3, ab opens a connection for each request, with a server of an RSA
//! key, as the paper's; the proxy opens one to the server for each. The same loads run again under `perf record`, which samples
//! the processor's clock, since virtual machines have no counters: ab over kept connections, and over new ones.
//!
//! Refuses a run in which a request failed or a session was not decrypted, and shares of too few samples.

pub mod attribution;

use std::path::Path;
use std::process::Command;

use mmtls_testkit::{KeyType, MmtlsOptions, NginxOptions, SplitOptions, files};
use serde::Serialize;

use super::ab::{CONCURRENCY, Requests};
use super::facts;
use super::h2load::{Http, Object};
use super::lane::{self, Load, Middlebox, Tls};
use super::lanes::{BRIDGE_NAME, Directory, Lanes, Variant};
use super::monitor::Monitored;
use super::report::{Samples, table};
use super::sessions::output;
use super::setup::{Kind, Setup};
use super::variants;
use crate::results::{Axis, Contender, Figure, Scale};
use attribution::{Counts, Place};

/// Figure 2's files.
const OBJECTS: [Object; 3] = [
    Object { name: "1k", bytes: 1 << 10, http: Http::One },
    Object { name: "64k", bytes: 64 << 10, http: Http::One },
    Object { name: "1m", bytes: 1 << 20, http: Http::One },
];

/// What ab asks for over new connections, and over kept ones.
const NEW: Requests<'static> =
    Requests { object: "1k", bytes: 1 << 10, number: 500, concurrency: CONCURRENCY, keep: false };
const KEPT: Requests<'static> =
    Requests { object: "64k", bytes: 64 << 10, number: 2000, concurrency: CONCURRENCY, keep: true };

/// Samples per second: no divisor of the timer's, so that nothing that happens at ticks is counted too often.
const SAMPLES_PER_SECOND: u32 = 1999;
/// Fewer say nothing.
const MIN_SAMPLES: u32 = 100;

const MMTLS: &str = "mmTLS";
const SPLIT: &str = "nginx split TLS";

/// One middle with what fills the time of a round.
struct Lane {
    setup: Setup,
    /// The loads that it is measured with; a proxy keeps upstream connections or makes new ones, so that there are two.
    serves: &'static [Requests<'static>],
    /// Whether there is a process to be sampled.
    is_process: bool,
    /// In the order of `serves`: requests that fill the time.
    fitting: Vec<u32>,
    /// Connections over which requests were made.
    used: u64,
}

/// Where one process spent its time.
#[derive(Debug, Serialize)]
struct Profile {
    middle: &'static str,
    connections: &'static str,
    /// Samples by place.
    rounds: Vec<Counts>,
}

/// Part (k).
#[derive(Debug, Serialize)]
pub struct ProfileResults {
    variants: Vec<Variant>,
    mmtls: Monitored,
    /// New connections per second.
    rates: Vec<(&'static str, Samples)>,
    profiles: Vec<Profile>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
    #[serde(skip)]
    note: String,
}

/// Why perf cannot be used here, if so.
pub fn no_perf() -> Option<String> {
    if facts::version("perf") == facts::unknown() {
        return Some("perf is not installed (Debian: linux-perf)".to_owned());
    }
    let place = match Directory::create("perf") {
        Ok(place) => place,
        Err(why) => return Some(why),
    };
    let mut record = record(&place.0.join("data"), &[]);
    record.arg("true");
    if let Err(why) = output(record) {
        let why = why.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
        return Some(format!("perf may not record here: {}", why.trim()));
    }
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let hidden = symbols.lines().take(10).all(|line| line.starts_with("0000000000000000"));
    hidden.then(|| "the kernel hides its symbols (kernel.kptr_restrict)".to_owned())
}

/// `perf record` of these threads, or of the command that is appended, as long as that runs.
fn record(data: &Path, threads: &[u32]) -> Command {
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-g", "-F", &SAMPLES_PER_SECOND.to_string()]);
    if !threads.is_empty() {
        let threads: Vec<String> = threads.iter().map(u32::to_string).collect();
        perf.args(["-t", &threads.join(",")]);
    }
    perf.arg("-o").arg(data).arg("--");
    perf
}

/// Measures everything `repetitions` times.
pub fn measure(repetitions: u32, load: Load) -> Result<ProfileResults, String> {
    let options = Box::new(MmtlsOptions::new(crate::binaries()?));
    let middles = vec![
        (BRIDGE_NAME, Middlebox::Bridge),
        (MMTLS, Middlebox::Monitor(options)),
        (SPLIT, Middlebox::Split),
    ];
    let mut lanes = Lanes::start(middles, &OBJECTS, load)?;
    let (mut contenders, note) = (lanes.contenders(), lanes.note());
    let mut variants = Vec::new();
    let all = lanes.all();
    for object in OBJECTS {
        variants.extend(lanes.measure(repetitions, object, &all)?);
    }
    let mmtls = lanes.lanes[1].stop_monitor()?;
    // The client's processor is given back with them.
    drop(lanes);

    let place = Directory::create("profile")?;
    for it in [NEW, KEPT] {
        let path = place.0.join(it.object);
        files::pattern(&path, it.bytes, 1).map_err(|error| error.to_string())?;
    }
    let mut lanes = Vec::new();
    let proxy = |upstream_keepalive| Kind::Split(split_options(upstream_keepalive));
    let all: [(Kind, &'static [Requests<'static>]); 4] = [
        (Kind::Bridge, &[NEW]),
        (Kind::Mmtls, &[NEW, KEPT]),
        (proxy(0), &[NEW]),
        (proxy(512), &[KEPT]),
    ];
    for (kind, serves) in all {
        let lane = Lane::start(kind, serves, &place.0, load.seconds)?;
        if lane.setup.name == SPLIT {
            let upstream = if serves[0].keep { "kept" } else { "new" };
            let name = format!("{SPLIT}, RSA-2048, upstream {upstream}");
            contenders.push(lane.setup.contender(&name));
        }
        lanes.push(lane);
    }
    let mut rates: Vec<(&'static str, Vec<f64>)> = Vec::new();
    let mut profiles: Vec<Profile> = Vec::new();
    for repetition in 0..repetitions as usize {
        for turn in 0..lanes.len() {
            let at = (turn + repetition) % lanes.len();
            lanes[at].round(&place.0, &mut rates, &mut profiles)?;
        }
    }
    // In the order of the loads and the lanes, whoever was first.
    profiles.sort_by_key(|it| (it.connections == "new", it.middle));
    rates.sort_by_key(|(name, _)| *name);
    let rates = rates.into_iter().map(|(name, rates)| (name, Samples::new(rates))).collect();
    for lane in lanes {
        lane.setup.finish(lane.used)?;
    }
    Ok(ProfileResults { variants, mmtls, rates, profiles, contenders, note })
}

fn split_options(upstream_keepalive: u32) -> SplitOptions {
    let options =
        SplitOptions { key_type: KeyType::Rsa, upstream_keepalive, ..SplitOptions::default() };
    Tls::Gcm.split(options)
}

impl Lane {
    fn start(
        kind: Kind,
        serves: &'static [Requests<'static>],
        files: &Path,
        seconds: f64,
    ) -> Result<Self, String> {
        let options =
            NginxOptions { key_type: KeyType::Rsa, ..lane::server_options(Tls::Gcm, files) };
        let is_process = !matches!(kind, Kind::Bridge);
        let setup = Setup::start(kind, options)?;
        let mut lane = Self { setup, serves, is_process, fitting: Vec::new(), used: 0 };
        for requests in serves {
            let warm = lane.run(*requests, None)?;
            let fitting = f64::from(requests.number) / warm * seconds;
            lane.fitting.push((fitting as u32).max(requests.number));
        }
        Ok(lane)
    }

    /// Runs ab, behind another command if there is one, and returns the seconds that ab tells.
    fn run(&mut self, requests: Requests<'_>, before: Option<Command>) -> Result<f64, String> {
        let mut ab = self.setup.client("ab");
        requests.ask(&mut ab);
        let command = match before {
            Some(mut before) => {
                before.arg(ab.get_program()).args(ab.get_args());
                before
            }
            None => ab,
        };
        let name = self.setup.name;
        let text = output(command).map_err(|error| format!("{name}: {error}"))?;
        self.used += u64::from(if requests.keep { CONCURRENCY } else { requests.number });
        requests.seconds(&text).map_err(|error| format!("{name}: {error}"))
    }

    /// Each load once, new connections without being sampled, too.
    fn round(
        &mut self,
        place: &Path,
        rates: &mut Vec<(&'static str, Vec<f64>)>,
        profiles: &mut Vec<Profile>,
    ) -> Result<(), String> {
        let name = self.setup.name;
        for (at, requests) in self.serves.iter().enumerate() {
            let requests = Requests { number: self.fitting[at], ..*requests };
            if !requests.keep {
                let rate = f64::from(requests.number) / self.run(requests, None)?;
                eprintln!("  {name}: {rate:.0} new connections/s");
                match rates.iter_mut().find(|(it, _)| *it == name) {
                    Some((_, rates)) => rates.push(rate),
                    None => rates.push((name, vec![rate])),
                }
            }
            if !self.is_process {
                continue;
            }
            let counts = self.sample(requests, place)?;
            let connections = if requests.keep { "persistent" } else { "new" };
            eprintln!("  {name}, {connections} connections: samples {counts:?}");
            let is_it = |it: &&mut Profile| (it.middle, it.connections) == (name, connections);
            match profiles.iter_mut().find(is_it) {
                Some(profile) => profile.rounds.push(counts),
                None => profiles.push(Profile { middle: name, connections, rounds: vec![counts] }),
            }
        }
        Ok(())
    }

    /// Samples of the process in the middle, by place.
    fn sample(&mut self, requests: Requests<'_>, place: &Path) -> Result<Counts, String> {
        let data = place.join("perf.data");
        let threads = self.setup.process().map(|it| it.threads()).unwrap_or_default();
        self.run(requests, Some(record(&data, &threads)))?;
        let mut script = Command::new("perf");
        // What is further out is the program's, whose frames need no pointers and then are guesses.
        script.args(["script", "--max-stack", "48", "-F", "ip,sym,dso", "-i"]).arg(&data);
        let program = if self.setup.mmtls().is_some() { "mmtls" } else { "nginx" };
        let counts = attribution::count(&output(script)?, program);
        match counts.iter().sum::<u32>() {
            MIN_SAMPLES.. => Ok(counts),
            few => Err(format!("{}: perf took only {few} samples", self.setup.name)),
        }
    }
}

impl Profile {
    /// The shares of a place, in percent, round by round.
    fn shares(&self, place: Place) -> Samples {
        let share = |counts: &Counts| {
            f64::from(counts[place as usize]) / f64::from(counts.iter().sum::<u32>()) * 100.0
        };
        Samples::new(self.rounds.iter().map(share).collect())
    }
}

impl ProfileResults {
    /// Figures 2 and 3, table 1.
    pub fn figures(&self) -> Vec<Figure> {
        let x = |it: &Variant| it.object_bytes.into();
        let axis = Axis::log("object", "B");
        let what = "Persistent connections, through a proxy and end to end";
        let mut figures = variants::figures("2", what, &axis, &self.variants, x);
        figures.iter_mut().for_each(|figure| figure.y.scale = Scale::Log);
        if let Some(first) = figures.first_mut() {
            first.notes.extend([format!("HTTP/1.1, {}", self.note), self.mmtls.line(MMTLS)]);
        }
        let mut rate = Figure::new(
            "3",
            "rate",
            "New connections per second, clients and servers on the same machine",
            Axis::category("object per connection"),
            Axis::linear("rate", "connections/s"),
        )
        .note(format!(
            "ab, {CONCURRENCY} at a time, {}, a server with an RSA-2048 key; for each of its clients' connections the proxy opens one to the server.",
            Tls::Gcm.suite()
        ))
        .note("Client, middle and server share this machine's processors: end to end, too, most of the time is that of the two ends.");
        for (name, rates) in &self.rates {
            rate.add(name, format!("{} B", NEW.bytes), &rates.samples);
        }
        figures.push(rate);
        for connections in ["persistent", "new"] {
            let panel = if connections == "new" { "ephemeral" } else { connections };
            figures.push(self.shares(panel, connections));
        }
        figures
    }

    fn shares(&self, panel: &str, connections: &str) -> Figure {
        let object = if connections == "new" { NEW } else { KEPT };
        let mut figure = Figure::new(
            "Table 1",
            panel,
            &format!("Where the process in the middle spends its time, {connections} connections"),
            Axis::category("place"),
            Axis::linear("share of its processor time", "%"),
        )
        .note(format!(
            "ab, {CONCURRENCY} connections, objects of {} KB; perf with {SAMPLES_PER_SECOND} samples of the clock per second of processor time.",
            object.bytes >> 10
        ))
        .note("Kernel functions are the network's below the calls of sockets and in its interrupts, some of which are other processes' packets. Of libcrypto nothing tells records from handshakes: over persistent connections it is records, over new ones nearly all handshakes.");
        for it in self.profiles.iter().filter(|it| it.connections == connections) {
            for place in Place::ALL {
                figure.add(it.middle, place.name(), &it.shares(place).samples);
            }
        }
        figure
    }

    /// Prints the tables.
    pub fn print(&self) {
        let of = |object: u64, name: &str| {
            let is_it = |it: &&Variant| it.object_bytes == object && it.variant == name;
            self.variants.iter().find(is_it).map_or(0.0, |it| it.gbit_per_s.median)
        };
        let rows: Vec<Vec<String>> = OBJECTS
            .iter()
            .map(|object| {
                let [bridge, mmtls, split] =
                    [BRIDGE_NAME, MMTLS, SPLIT].map(|it| of(object.bytes, it));
                let values = [bridge, mmtls, split, mmtls / bridge, split / bridge];
                let values = values.map(|value| format!("{value:.2}"));
                std::iter::once(object.name.to_owned()).chain(values).collect()
            })
            .collect();
        let header = ["object", "bridge", "mmTLS", "split", "mmTLS/bridge", "split/bridge"];
        table("(k) persistent connections, Gbit/s, medians", &header, &rows);
        let row = |(name, rates): &(&'static str, Samples)| {
            let range = format!("{:.0}–{:.0}", rates.min, rates.max);
            vec![(*name).to_owned(), format!("{:.0}", rates.median), range]
        };
        let rows: Vec<Vec<String>> = self.rates.iter().map(row).collect();
        table("(k) new connections/s, 1 KB each, medians", &["middle", "rate", "range"], &rows);
        let rows: Vec<Vec<String>> = self
            .profiles
            .iter()
            .map(|it| {
                let shares = Place::ALL.map(|place| format!("{:.1}", it.shares(place).median));
                let name = format!("{}, {}", it.middle, it.connections);
                std::iter::once(name).chain(shares).collect()
            })
            .collect();
        let names = Place::ALL.map(Place::name);
        let header: Vec<&str> = std::iter::once("middle, connections").chain(names).collect();
        table("(k) shares of the process's time, %, medians", &header, &rows);
    }
}
