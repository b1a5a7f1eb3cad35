//! Part (i): keys on their way. How many a key server takes and steers on one processor; how long one takes from the endpoint's
//! call to a worker's table, through the middlebox's own thread and through a key server's sealed packets; and how long
//! packets of new 1 KB connections wait for keys either way, as figure 12 of the paper.
//!
//! The first two are measured in one process ([`delivery`]), whose threads stand for endpoint, key server and worker; the last
//! one with the real programs and a rustls client.
//!
//! Refuses a run in which a key was lost, or a session was not decrypted.

pub mod delivery;
pub mod downloads;

use std::path::Path;
use std::time::Duration;

use mmtls_testkit::{
    Background, KeyType, Middle, Mmtls, MmtlsOptions, Nginx, Testbed, address, files, middlebox,
};
use serde::Serialize;

use super::contenders;
use super::lane::{self, Tls};
use super::lanes::Directory;
use super::monitor;
use super::report::{Samples, quantile, table};
use super::sessions::output;
use crate::results::{Axis, Contender, Figure, Kind};
use delivery::{Latency, Rate};

/// Keys of each run of the rate and of the latency.
const RATE_KEYS: u32 = 2_000_000;
const LATENCY_KEYS: u32 = 20_000;
/// Where the key server listens, in the client's namespace.
const PORT: u16 = 5544;
const NAME: &str = "keys.test";

/// How keys come to the middlebox.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
pub enum Way {
    /// To its own thread.
    InProcess,
    /// To a key server, and from there as sealed packets.
    Sealed,
}

impl Way {
    const BOTH: [Self; 2] = [Self::InProcess, Self::Sealed];

    fn name(self) -> &'static str {
        match self {
            Self::InProcess => "in-process",
            Self::Sealed => "key server, sealed packets",
        }
    }
}

/// Part (i).
#[derive(Debug, Serialize)]
pub struct KeyResults {
    rates: Vec<Rate>,
    latencies: Vec<(Way, Latency)>,
    stalls: Vec<Stalls>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
}

/// How long packets of one run's sessions waited.
#[derive(Debug, Serialize)]
struct Stalls {
    way: Way,
    sessions: u32,
    /// Share of sessions of which nothing waited.
    without: f64,
    /// Of all sessions, in microseconds.
    median_us: u64,
    p90_us: u64,
    p99_us: u64,
    /// Of each session.
    #[serde(skip)]
    waited_us: Vec<u64>,
    #[serde(skip)]
    contender: Contender,
}

/// Measures all of it; each way in turn.
pub fn measure(repetitions: u32, sessions: u32) -> Result<KeyResults, String> {
    let failed = |error: mmtls_testkit::TestbedError| error.to_string();
    let bed = Testbed::new(Middle::Empty).map_err(failed)?;
    let pki = bed.pki();
    let identity = pki.issue("keys", KeyType::Ecdsa, &format!("DNS:{NAME}"));
    let identity = identity.map_err(failed)?;
    bed.client
        .ip("link add keys8 type veth peer name keys9\nlink set keys8 up\nlink set keys9 up\n")
        .map_err(failed)?;
    let delivery = |arguments: &[&str]| -> Result<String, String> {
        let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
        let mut command = bed.client.command(me);
        command.args(["bench", "key-delivery"]).args(arguments);
        command.arg("--ca").arg(&pki.ca);
        command.arg("--certificate").arg(&pki.middlebox.certificate);
        command.arg("--key").arg(&pki.middlebox.key);
        command.arg("--server-certificate").arg(&identity.certificate);
        command.arg("--server-key").arg(&identity.key);
        output(command)
    };
    let mut results = KeyResults {
        rates: Vec::new(),
        latencies: Vec::new(),
        stalls: Vec::new(),
        contenders: Vec::new(),
    };
    for _ in 0..repetitions {
        let text = delivery(&["--rate", "--keys", &RATE_KEYS.to_string()])?;
        let rate: Rate = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        eprintln!("  key server: {:.0} keys/s, {:.2} µs each", rate.per_s, rate.cpu_us);
        results.rates.push(rate);
        for way in Way::BOTH {
            let sealed = if way == Way::Sealed { &["--sealed"][..] } else { &[] };
            let keys = LATENCY_KEYS.to_string();
            let text = delivery(&[sealed, &["--keys", &keys]].concat())?;
            let latency: Latency =
                serde_json::from_str(&text).map_err(|error| error.to_string())?;
            eprintln!("  {}: {:.1} µs", way.name(), latency.median_us);
            results.latencies.push((way, latency));
        }
    }
    let files = Directory::create("files")?;
    files::pattern(&files.0.join("1k"), 1024, 1).map_err(failed)?;
    let _server = Nginx::start(&bed, lane::server_options(Tls::Gcm, &files.0)).map_err(failed)?;
    for _ in 0..repetitions {
        for way in Way::BOTH {
            let stalls = stalls(&bed, way, sessions, &identity)?;
            eprintln!("  {}: p90 {} µs", way.name(), stalls.p90_us);
            if !results.contenders.contains(&stalls.contender) {
                results.contenders.push(stalls.contender.clone());
            }
            results.stalls.push(stalls);
        }
    }
    Ok(results)
}

fn stalls(
    bed: &Testbed,
    way: Way,
    sessions: u32,
    identity: &mmtls_testkit::Identity,
) -> Result<Stalls, String> {
    let failed = |error: mmtls_testkit::TestbedError| error.to_string();
    let ca = bed.pki().ca.display();
    let config = format!("[keys]\nclient_ca_file = \"{ca}\"\nkey_servers = [\"{NAME}\"]\n");
    let config = (way == Way::Sealed).then_some(config);
    let options = MmtlsOptions { config, ..MmtlsOptions::new(crate::binaries()?) };
    let mmtls = Mmtls::start(bed, &options).map_err(failed)?;
    let contender = contenders::of_process(way.name(), &mmtls.process);
    let monitor =
        format!("{}@{}:{}", address::MIDDLEBOX_NAME, address::KEYS_V4, middlebox::KEYS_PORT);
    let (_key_server, to) = match way {
        Way::InProcess => (None, monitor),
        Way::Sealed => {
            let listen = format!("{}:{PORT}", address::CLIENT_V4);
            let server = key_server(bed, &listen, &monitor, identity).map_err(failed)?;
            (Some(server), format!("{NAME}@{listen}"))
        }
    };
    let me = std::env::current_exe().map_err(|error| format!("own path: {error}"))?;
    let mut command = bed.client.command(me);
    command.args(["bench", "downloads", "--middlebox", &to, "--ca"]).arg(&bed.pki().ca);
    command.args(["--sessions", &sessions.to_string()]);
    output(command)?;
    std::thread::sleep(Duration::from_millis(300));
    let directory = mmtls.directory().to_owned();
    monitor::stop(mmtls, sessions.into())?;
    let waited = waited(&directory)?;
    let at = |share| quantile(&waited, share).unwrap_or(0);
    Ok(Stalls {
        way,
        sessions,
        without: waited.iter().filter(|it| **it == 0).count() as f64 / waited.len() as f64,
        median_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        contender,
        waited_us: waited,
    })
}

fn key_server(
    bed: &Testbed,
    listen: &str,
    monitor: &str,
    identity: &mmtls_testkit::Identity,
) -> Result<Background, mmtls_testkit::TestbedError> {
    let program = crate::binaries().unwrap_or_default().join("mmtls");
    let mut command = bed.client.command(program);
    command.args(["key-server", "--listen", listen, "--interface", "eth0"]);
    command.arg("--cert").arg(&identity.certificate).arg("--key").arg(&identity.key);
    command.args(["--middlebox", monitor, "--ca"]).arg(&bed.pki().ca);
    let mut server = bed.background("key-server", command)?;
    server.wait_for_line("connected to", Duration::from_secs(10))?;
    Ok(server)
}

/// How long packets of each session waited, in microseconds, the shortest first.
fn waited(directory: &Path) -> Result<Vec<u64>, String> {
    let text = std::fs::read_to_string(directory.join("eve.json"))
        .map_err(|error| format!("eve.json: {error}"))?;
    let records = text.lines().filter_map(|it| serde_json::from_str::<serde_json::Value>(it).ok());
    let ended = records.filter(|it| it["event_type"] == "mmtls");
    let mut waited: Vec<u64> =
        ended.map(|it| it["mmtls"]["stall_us"].as_u64().unwrap_or(0)).collect();
    waited.sort_unstable();
    match waited.is_empty() {
        true => Err("no session in eve.json".to_owned()),
        false => Ok(waited),
    }
}

impl KeyResults {
    /// Figure 12, and how fast keys are delivered, which section 5.3 of the paper has.
    pub fn figures(&self) -> Vec<Figure> {
        let mut stall = Figure::new(
            "12",
            "stall",
            "How long packets of a new connection wait for keys",
            Axis::category("run"),
            Axis::log("wait", "µs"),
        )
        .note(
            "New connections of 1 KB one after another, a rustls client, nginx; everything floats.",
        );
        stall.kind = Kind::Distribution;
        for way in Way::BOTH {
            for (run, it) in (1..).zip(self.stalls.iter().filter(|it| it.way == way)) {
                let waited = it.waited_us.iter().map(|&us| us as f64);
                stall.add_events(way.name(), format!("{run}"), waited);
            }
        }
        let mut latency = Figure::new(
            "12",
            "latency",
            "From the endpoint's call to the worker's queue, one key at a time",
            Axis::category("of the keys of a run"),
            Axis::linear("time", "µs"),
        );
        for way in Way::BOTH {
            let its = || self.latencies.iter().filter(move |(of, _)| *of == way);
            let median: Vec<f64> = its().map(|(_, it)| it.median_us).collect();
            let p99: Vec<f64> = its().map(|(_, it)| it.p99_us).collect();
            latency.add(way.name(), "median", &median);
            latency.add(way.name(), "99 %", &p99);
        }
        let mut rate = Figure::new(
            "12",
            "rate",
            "Keys that a key server takes, seals and sends on one processor",
            Axis::category("on"),
            Axis::linear("rate", "keys/s"),
        )
        .note("Each message has the keys of both directions.");
        let per_s: Vec<f64> = self.rates.iter().map(|it| it.per_s).collect();
        rate.add("key server", "1 processor", &per_s);
        vec![stall, latency, rate]
    }

    /// Prints the tables.
    pub fn print(&self) {
        let of = |values: &mut dyn Iterator<Item = f64>| Samples::new(values.collect());
        let range = |it: &Samples| format!("{:.1}–{:.1}", it.min, it.max);
        let per_s = of(&mut self.rates.iter().map(|it| it.per_s / 1e3));
        let cpu = of(&mut self.rates.iter().map(|it| it.cpu_us));
        table(
            "(i) a key server on one processor, keys of both directions in a message: medians",
            &["", "1000 keys/s", "range", "µs of its thread", "range"],
            &[vec![
                "taken, sealed, received, opened".to_owned(),
                format!("{:.0}", per_s.median),
                range(&per_s),
                format!("{:.2}", cpu.median),
                range(&cpu),
            ]],
        );
        let rows = Way::BOTH.map(|way| {
            let its = || self.latencies.iter().filter(move |(of, _)| *of == way);
            let median = of(&mut its().map(|(_, it)| it.median_us));
            let p99 = of(&mut its().map(|(_, it)| it.p99_us));
            let cells = [format!("{:.1}", median.median), range(&median)];
            let more = [format!("{:.1}", p99.median), range(&p99)];
            [vec![way.name().to_owned()], cells.to_vec(), more.to_vec()].concat()
        });
        table(
            "(i) from the endpoint's call to the worker, one key at a time, µs: medians",
            &["way", "median", "range", "p99", "range"],
            &rows,
        );
        let rows = Way::BOTH.map(|way| {
            let its = || self.stalls.iter().filter(move |it| it.way == way);
            let column = |figure: &dyn Fn(&Stalls) -> f64| {
                let samples = of(&mut its().map(figure));
                format!("{:.0}", samples.median)
            };
            vec![
                way.name().to_owned(),
                column(&|it| it.without * 100.0),
                column(&|it| it.median_us as f64),
                column(&|it| it.p90_us as f64),
                column(&|it| it.p99_us as f64),
            ]
        });
        table(
            "(i) new connections of 1 KB: how long packets waited for keys, µs of all sessions: medians",
            &["way", "% without", "median", "p90", "p99"],
            &rows,
        );
    }
}
