//! Transfers through several middles, each in namespaces of its own, all standing during the whole
//! run and measured in turn: what parts (b), (h), (n), (o) and (r) have in common.
//!
//! What counts is the busy time of all cores: on veth, part of a forwarder's work is billed to
//! others and part of others' work to it.
//!
//! Refuses a run in which a request failed, a session was not decrypted, or a connection went
//! another way than it should.

use std::path::PathBuf;

use mmtls_testkit::files;
use serde::Serialize;

use super::contenders;
use super::h2load::{Http, Object};
use super::lane::{Lane, Load, Middlebox, Sample};
use super::places::Places;
use super::report::Samples;
use crate::results::Contender;

/// What all others are compared with, and no process.
pub const BRIDGE_NAME: &str = "kernel bridge";

/// Lanes, and the files that they serve.
pub struct Lanes {
    pub lanes: Vec<Lane>,
    places: Places,
    load: Load,
    _files: Directory,
}

impl Lanes {
    /// Starts all of them.
    pub fn start(
        middles: Vec<(&'static str, Middlebox)>,
        objects: &[Object],
        load: Load,
    ) -> Result<Self, String> {
        let files = Directory::create("files")?;
        for object in objects {
            files::pattern(&files.0.join(object.name), object.bytes, 1)
                .map_err(|error| error.to_string())?;
        }
        let places = Places::choose(load.floating)?;
        let mut lanes = Vec::new();
        for (name, middlebox) in middles {
            lanes.push(Lane::start(name, middlebox, load, &files.0, &places)?);
        }
        // Everything that is started from here on is a client.
        places.client()?;
        let lanes = Self { lanes, places, load, _files: files };
        if load.steering && !lanes.steering() {
            println!(
                "WARNING: receive packet steering is off here; veth reorders, figures are lower"
            );
        }
        if !lanes.cubic() {
            println!(
                "WARNING: CUBIC could not be chosen; the congestion control is the kernel's own"
            );
        }
        Ok(lanes)
    }

    /// What stands in each lane, the server that all have alike, and h2load's command.
    pub fn contenders(&self) -> Vec<Contender> {
        let mut contenders = self.middles_and_server();
        if let Some(lane) = self.lanes.first() {
            let object = Object { name: "OBJECT", bytes: 0, http: Http::One };
            let client = lane.h2load(self.load, object, 0);
            contenders.push(contenders::of_client("client, HTTP/1.1", &client));
        }
        contenders
    }

    /// The same without a client.
    pub fn middles_and_server(&self) -> Vec<Contender> {
        let mut contenders: Vec<_> = self.lanes.iter().map(Lane::contender).collect();
        let server = self.lanes.first().map(|lane| contenders::of_process("server", lane.server()));
        contenders.extend(server);
        contenders
    }

    /// How the lanes are set up, in a sentence.
    pub fn note(&self) -> String {
        format!(
            "{} persistent connections, {} on every leg, {}, {}, {}.",
            self.load.connections,
            self.load.tls.suite(),
            match self.placed() {
                true =>
                    "server and client on a processor each, the middle on a third or on either in turn",
                false => "everybody where the scheduler puts them",
            },
            if self.steering() { "receive packet steering" } else { "no receive packet steering" },
            if self.cubic() { "CUBIC" } else { "the kernel's own congestion control" },
        )
    }

    /// Whether receive packet steering is on everywhere.
    pub fn steering(&self) -> bool {
        self.lanes.iter().all(|lane| lane.bed().rps_active())
    }

    /// Whether every leg uses CUBIC.
    pub fn cubic(&self) -> bool {
        self.lanes.iter().all(|lane| lane.bed().uses_cubic())
    }

    /// Whether server, client and middlebox have places.
    pub fn placed(&self) -> bool {
        self.places.are_fixed()
    }

    /// Fetches an object through these lanes in turn, so many times.
    pub fn measure(
        &mut self,
        repetitions: u32,
        object: Object,
        wanted: &[usize],
    ) -> Result<Vec<Variant>, String> {
        let mut requests = Vec::new();
        for &at in wanted {
            requests.push(self.lanes[at].calibrate(self.load, object)?);
        }
        let load = self.load;
        let transfers = self.in_turn(repetitions, wanted, |at, lane| {
            let sample = lane.run(load, object, requests[at])?;
            eprintln!(
                "  {} {} {}: {:.1} Gbit/s, {:.2} machine CPU-s/GB",
                object.http.name(),
                object.name,
                lane.name,
                sample.bytes as f64 * 8e-9 / sample.seconds,
                sample.per_gb(sample.machine_cpu_s)
            );
            Ok(sample)
        })?;
        let lanes = wanted.iter().map(|&at| &self.lanes[at]).zip(transfers);
        Ok(lanes.map(|(lane, transfers)| Variant::new(lane.name, object, transfers)).collect())
    }

    /// All of them, for [`Self::measure`] and [`Self::in_turn`].
    pub fn all(&self) -> Vec<usize> {
        (0..self.lanes.len()).collect()
    }

    /// Does something with each of these lanes in turn, so many times; what came of it, in their order. `work` is told the
    /// place among them, not among all.
    pub fn in_turn<T>(
        &mut self,
        repetitions: u32,
        wanted: &[usize],
        mut work: impl FnMut(usize, &mut Lane) -> Result<T, String>,
    ) -> Result<Vec<Vec<T>>, String> {
        let mut all: Vec<Vec<T>> = wanted.iter().map(|_| Vec::new()).collect();
        for repetition in 0..repetitions as usize {
            for turn in 0..wanted.len() {
                let at = (turn + repetition) % wanted.len();
                let lane = &mut self.lanes[wanted[at]];
                if let Some(middle) = lane.middle() {
                    self.places.middle(repetition, middle)?;
                }
                all[at].push(work(at, lane)?);
            }
        }
        Ok(all)
    }
}

/// One middle with one size of object.
#[derive(Debug, Serialize)]
pub struct Variant {
    pub variant: &'static str,
    pub http: Http,
    pub object_bytes: u64,
    pub gbit_per_s: Samples,
    /// Busy seconds of all cores per 10^9 bytes of objects.
    pub machine_cpu_s_per_gb: Samples,
    /// User and system time of client, middlebox and server: without the interrupts that met no
    /// process or another one, but whatever else the machine did.
    pub processes_cpu_s_per_gb: Samples,
    /// The middlebox process's own.
    pub middle_cpu_s_per_gb: Samples,
    pub transfers: Vec<Sample>,
}

impl Variant {
    fn new(variant: &'static str, object: Object, transfers: Vec<Sample>) -> Self {
        let of =
            |figure: &dyn Fn(&Sample) -> f64| Samples::new(transfers.iter().map(figure).collect());
        Self {
            variant,
            http: object.http,
            object_bytes: object.bytes,
            gbit_per_s: of(&|it| it.bytes as f64 * 8e-9 / it.seconds),
            machine_cpu_s_per_gb: of(&|it| it.per_gb(it.machine_cpu_s)),
            processes_cpu_s_per_gb: of(&|it| it.per_gb(it.processes_cpu_s)),
            middle_cpu_s_per_gb: of(&|it| it.per_gb(it.middle_cpu_s)),
            transfers,
        }
    }
}

/// What [`Variant::cells`] are.
pub const COLUMNS: [&str; 5] = ["middle", "Gbit/s", "machine", "range", "box alone"];

impl Variant {
    /// Its medians, for a table.
    pub fn cells(&self, name: String) -> Vec<String> {
        let machine = &self.machine_cpu_s_per_gb;
        vec![
            name,
            format!("{:.2}", self.gbit_per_s.median),
            format!("{:.3}", machine.median),
            format!("{:.3}–{:.3}", machine.min, machine.max),
            format!("{:.3}", self.middle_cpu_s_per_gb.median),
        ]
    }
}

/// What one middle adds to the bridge's machine time, of what another adds. Infinite where the first
/// took no more than the bridge.
pub fn ratio(bridge: f64, mmtls: f64, split: f64) -> f64 {
    if mmtls > bridge { (split - bridge) / (mmtls - bridge) } else { f64::INFINITY }
}

/// A directory of served files that goes with this value.
pub struct Directory(pub PathBuf);

impl Directory {
    /// An empty one.
    pub fn create(name: &str) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("mmtls-bench-{name}-{}", std::process::id()));
        // Not one that is there already: it could be somebody else's, with links in it.
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_less_than_the_bridge_takes() {
        assert_eq!(ratio(1.0, 1.5, 3.0), 4.0);
        assert_eq!(format!("{:.1}", ratio(1.0, 0.9, 3.0)), "inf");
    }
}
