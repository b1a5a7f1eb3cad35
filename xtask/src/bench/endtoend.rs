//! Part (e): what the private tag costs end to end, as figure 17 of the paper. nginx and h2load,
//! both on OpenSSL with the private tag (`make openssl`), through a kernel bridge: each suite with
//! and without, in turn, from one server that stays up. With two processors or more nginx and h2load
//! have one each: where the scheduler puts them moves the figures by more than the tag does.
//!
//! Refuses a run in which a request failed or another suite was negotiated.

use std::process::Stdio;

use mmtls_testkit::{
    Middle, Nginx, NginxOptions, Options, PrivateTagOpenssl, Testbed, address, files, machine_cpu,
};
use serde::Serialize;

use super::contenders;
use super::h2load::{Done, negotiated};
use super::lane::{Load, children_cpu};
use super::lanes::Directory;
use super::places::Places;
use super::report::{Samples, table};
use crate::results::{Axis, Contender, Figure};

/// The ordinary suites; with "MMTLS" in front they have the private tag.
const CIPHERS: [&str; 2] = ["AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256"];

/// Served files: name and length.
const OBJECTS: [(&str, u64); 4] =
    [("1k", 1 << 10), ("16k", 16 << 10), ("64k", 64 << 10), ("1m", 1 << 20)];

/// Requests of the warm-up, which finds out how many fill the time: so many, or of large objects
/// those that make up [`WARM_UP_BYTES`].
const WARM_UP: u64 = 4000;

const WARM_UP_BYTES: u64 = 256 << 20;

/// One transfer.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    requests: u64,
    seconds: f64,
    machine_cpu_s: f64,
    server_cpu_s: f64,
    client_cpu_s: f64,
}

impl Sample {
    fn per_s(&self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

/// One cipher and size of object.
#[derive(Debug, Serialize)]
struct Comparison {
    cipher: &'static str,
    object_bytes: u64,
    /// Requests per second without and with the private tag.
    requests_per_s: [Samples; 2],
    /// How much less throughput the private tag leaves, in percent, round by round.
    throughput_loss: Samples,
    /// How much more processor time nginx takes per request, in percent, round by round.
    server_cpu: Samples,
    /// The same of h2load.
    client_cpu: Samples,
    /// The same of the machine.
    machine_cpu: Samples,
    transfers: [Vec<Sample>; 2],
}

/// Part (e).
#[derive(Debug, Serialize)]
pub struct EndToEndResults {
    connections: u32,
    /// Whether server and client had a processor each.
    pinned: bool,
    comparisons: Vec<Comparison>,
    #[serde(skip)]
    pub contenders: Vec<Contender>,
}

/// Measures everything `repetitions` times. `None` without the libraries, said aloud.
pub fn measure(repetitions: u32, load: Load) -> Result<Option<EndToEndResults>, String> {
    let Some(openssl) = PrivateTagOpenssl::require() else {
        return Ok(None);
    };
    let failed = |error: mmtls_testkit::TestbedError| error.to_string();
    let directory = Directory::create("files")?;
    for (name, length) in OBJECTS {
        files::pattern(&directory.0.join(name), length, 1).map_err(failed)?;
    }
    let options =
        Options { middle: Middle::KernelBridge, rps: load.steering, ..Options::default() };
    let bed = Testbed::with_options(&options).map_err(failed)?;
    let options = NginxOptions {
        protocols: "TLSv1.3".to_owned(),
        root: Some(directory.0.clone()),
        resumption: false,
        openssl: Some(openssl.clone()),
        ..NginxOptions::default()
    };
    let places = Places::choose(load.floating)?;
    places.server()?;
    let mut server = Nginx::start(&bed, options).map_err(failed)?;
    let name = "nginx with the private tag";
    let contenders = vec![contenders::of_process(name, &server.process)];
    places.client()?;
    let mut comparisons = Vec::new();
    for cipher in CIPHERS {
        for (name, object_bytes) in OBJECTS {
            let mut run = |private_tag: bool, requests: u64| {
                transfer(&bed, &mut server, &openssl, load, (cipher, private_tag), name, requests)
            };
            let least = WARM_UP.min(WARM_UP_BYTES / object_bytes);
            let warm = [run(false, least)?, run(true, least)?];
            let slowest = warm[0].per_s().min(warm[1].per_s());
            let requests = ((slowest * load.seconds) as u64).max(least);
            let mut transfers = [Vec::new(), Vec::new()];
            for repetition in 0..repetitions {
                // Neither is always the first.
                for turn in 0..2 {
                    let private_tag = (repetition + turn) % 2 == 1;
                    transfers[usize::from(private_tag)].push(run(private_tag, requests)?);
                }
            }
            let comparison = Comparison::new(cipher, object_bytes, transfers);
            comparison.tell(name);
            comparisons.push(comparison);
        }
    }
    Ok(Some(EndToEndResults {
        connections: load.connections,
        pinned: places.are_fixed(),
        comparisons,
        contenders,
    }))
}

fn transfer(
    bed: &Testbed,
    server: &mut Nginx,
    openssl: &PrivateTagOpenssl,
    load: Load,
    (cipher, private_tag): (&str, bool),
    object: &str,
    requests: u64,
) -> Result<Sample, String> {
    let suite = format!("{}_{cipher}", if private_tag { "MMTLS" } else { "TLS" });
    let mut command = bed.client.command("h2load");
    openssl.lend(&mut command).stdin(Stdio::null());
    command.args(["--h1", "-t", "1", "-c", &load.connections.to_string()]);
    command.args(["-n", &requests.to_string(), "--connection-inactivity-timeout", "10"]);
    // It names its suites itself, whatever the library's default.
    command.arg(format!("--tls13-ciphers={suite}"));
    command.arg(format!("https://{}/{object}", address::SERVER_V4));
    let (server_s, machine, client) = (server.process.cpu_seconds(), machine_cpu(), children_cpu());
    let output = command.output().map_err(|error| format!("h2load: {error}"))?;
    let sample = Sample {
        requests,
        seconds: 0.0,
        machine_cpu_s: machine_cpu() - machine,
        client_cpu_s: children_cpu() - client,
        server_cpu_s: server.process.cpu_seconds() - server_s,
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let done = Done::parse(&text).filter(|done| {
        output.status.success() && done.succeeded == requests && negotiated(&text, &suite)
    });
    let done = done.ok_or_else(|| {
        format!("h2load: {}{}", text.trim(), String::from_utf8_lossy(&output.stderr).trim())
    })?;
    Ok(Sample { seconds: done.seconds, ..sample })
}

impl Comparison {
    fn new(cipher: &'static str, object_bytes: u64, transfers: [Vec<Sample>; 2]) -> Self {
        let [without, with] = &transfers;
        let rounds = |figure: &dyn Fn(&Sample, &Sample) -> f64| {
            Samples::new(without.iter().zip(with).map(|(a, b)| figure(a, b) * 100.0).collect())
        };
        let more = |cpu: fn(&Sample) -> f64| rounds(&|a, b| cpu(b) / cpu(a) - 1.0);
        let per_s = |of: &[Sample]| Samples::new(of.iter().map(Sample::per_s).collect());
        Self {
            cipher,
            object_bytes,
            requests_per_s: [per_s(without), per_s(with)],
            throughput_loss: rounds(&|a, b| 1.0 - b.per_s() / a.per_s()),
            server_cpu: more(|it| it.server_cpu_s),
            client_cpu: more(|it| it.client_cpu_s),
            machine_cpu: more(|it| it.machine_cpu_s),
            transfers,
        }
    }

    fn tell(&self, name: &str) {
        let [without, with] = &self.requests_per_s;
        eprintln!(
            "  {name} {}: {:.0} requests/s without, {:.0} with the private tag",
            self.cipher, without.median, with.median
        );
    }
}

impl EndToEndResults {
    /// Figure 17: what is lost, and requests per second; and more processor time of the server, which the paper's text has.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, y| {
            Figure::new("17", panel, title, Axis::log("object", "B"), y)
        };
        let mut loss = figure(
            "loss",
            "Throughput that the private tag costs nginx and h2load",
            Axis::linear("less throughput", "%"),
        )
        .note(format!(
            "HTTP/1.1, {} connections, a kernel bridge between them{}; with and without the tag in turn, round by round.",
            self.connections,
            if self.pinned { ", nginx and h2load on a processor each" } else { "" }
        ));
        let mut server = figure(
            "server",
            "Processor time that the private tag costs nginx",
            Axis::linear("more processor time per request", "%"),
        );
        let mut rate = figure(
            "requests",
            "Requests per second with and without the private tag",
            Axis::log("rate", "requests/s"),
        );
        for it in &self.comparisons {
            loss.add(it.cipher, it.object_bytes, &it.throughput_loss.samples);
            server.add(it.cipher, it.object_bytes, &it.server_cpu.samples);
            let [without, with] = &it.requests_per_s;
            rate.add(it.cipher, it.object_bytes, &without.samples);
            let with_tag = format!("{}, private tag", it.cipher);
            rate.add(&with_tag, it.object_bytes, &with.samples);
        }
        vec![loss, server, rate]
    }

    /// Prints the table.
    pub fn print(&self) {
        let percent = |samples: &Samples| {
            format!("{:+.1} % ({:+.1} to {:+.1})", samples.median, samples.min, samples.max)
        };
        let rows: Vec<Vec<String>> = self
            .comparisons
            .iter()
            .map(|it| {
                let gbit = |samples: &Samples| {
                    format!("{:.2}", samples.median * it.object_bytes as f64 * 8e-9)
                };
                vec![
                    format!("{}, {} KB", it.cipher, it.object_bytes >> 10),
                    gbit(&it.requests_per_s[0]),
                    gbit(&it.requests_per_s[1]),
                    percent(&it.throughput_loss),
                    percent(&it.server_cpu),
                    percent(&it.client_cpu),
                    percent(&it.machine_cpu),
                ]
            })
            .collect();
        table(
            &format!(
                "(e) the private tag end to end, nginx and h2load{}, {} connections: medians of rounds",
                if self.pinned { " on a processor each" } else { "" },
                self.connections
            ),
            &["suite, object", "Gbit/s", "with tag", "loss", "nginx CPU", "h2load CPU", "machine"],
            &rows,
        );
    }
}
