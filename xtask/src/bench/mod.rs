//! `xtask bench`: the benchmarks of the project, as a table and as JSON. `docs/benchmarks.md` says
//! what is measured and how to read it.
//!
//! * `a`, [`engine`]: the engine in memory against raw record opening.
//! * `b`, [`live`]: downloads through a kernel bridge, mmTLS, and nginx as split-TLS proxy.
//! * `c`, [`sessions`]: new connections through mmTLS, and through the proxy.
//! * `d`, [`tag`]: what the private tag costs per record.
//! * `e`, [`endtoend`]: what the private tag costs nginx and h2load.
//! * `f`, [`scaling`]: engines on two threads, and what `pause` saves.
//! * `g`, [`rules`]: what rules cost, in memory.
//! * `h`, [`inspection`]: what they cost live, with a limit of inspection.
//! * `i`, [`keys`]: keys on their way, and what waits for them.
//! * `j`, [`idle`]: what open sessions cost in memory, and to be found.
//!
//! Refuses to report a run in which a request failed or a session was not decrypted.

mod callgrind;
mod endtoend;
mod engine;
pub mod facts;
mod idle;
mod inspection;
pub mod instructions;
mod keys;
mod lanes;
mod live;
mod monitor;
mod places;
mod replayer;
mod report;
mod rules;
mod scaling;
mod sessions;
mod synthetic;
mod tag;

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use serde::Serialize;

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    inner: Option<Inner>,
    /// Run one part only: the engine in memory, downloads live, new connections, the private tag,
    /// the private tag end to end, engines on two threads, rules in memory, rules live, keys on their way, or open sessions.
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// How often each measurement is repeated; parts (a) and (d) to (g) get at least five rounds.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Length of each live transfer in seconds; in memory, each measurement gets a tenth of it.
    #[arg(long, default_value_t = 3.0, value_name = "S")]
    seconds: f64,
    /// Persistent connections of live transfers.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    connections: u32,
    /// Switch receive packet steering off in live transfers: fewer interrupts between cores, but
    /// veth then reorders.
    #[arg(long)]
    no_steering: bool,
    /// Let server, client and middlebox of live transfers run wherever the scheduler puts them,
    /// instead of giving them processors.
    #[arg(long)]
    floating: bool,
    /// New connections of each replay.
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    sessions: u32,
    /// New connections that are open at a time.
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,
    /// Write every sample and the medians to this file.
    #[arg(long, default_value = "out/bench.json", value_name = "PATH")]
    json: PathBuf,
    /// Also count the instructions per packet of the engine, with valgrind.
    #[arg(long)]
    callgrind: bool,
}

/// What the benchmark starts of itself, in other places.
#[derive(Subcommand)]
enum Inner {
    /// Runs the engine over prepared frames a number of times, to be counted from outside.
    #[command(hide = true)]
    EnginePass(engine::PassArgs),
    /// Opens sessions in memory and looks them up.
    #[command(hide = true)]
    IdlePass(idle::IdleArgs),
    /// Plays sessions through the box, from inside the testbed.
    #[command(hide = true)]
    Replayer(replayer::ReplayArgs),
    /// Sends keys through a key server, or without, from inside the testbed.
    #[command(hide = true)]
    KeyDelivery(keys::delivery::DeliveryArgs),
    /// Makes new connections whose keys are shared, from inside the testbed.
    #[command(hide = true)]
    Downloads(keys::downloads::DownloadArgs),
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    A,
    B,
    C,
    D,
    E,
    F,
    G,
    H,
    I,
    J,
}

/// Everything that was measured, as written to the JSON file.
#[derive(Serialize)]
struct Results {
    facts: facts::Facts,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<engine::EngineResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callgrind: Option<callgrind::Instructions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<live::LiveResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<sessions::SessionResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    private_tag: Option<tag::TagResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_to_end: Option<endtoend::EndToEndResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scaling: Option<scaling::ScalingResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<rules::RuleResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inspection: Option<inspection::InspectionResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<keys::KeyResults>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<idle::IdleResults>,
}

pub fn run(args: &BenchArgs) -> Result<(), String> {
    match &args.inner {
        Some(Inner::EnginePass(pass)) => return engine::pass(pass),
        Some(Inner::IdlePass(pass)) => return idle::pass(pass),
        Some(Inner::Replayer(replay)) => return replayer::run(replay),
        Some(Inner::KeyDelivery(delivery)) => return keys::delivery::run(delivery),
        Some(Inner::Downloads(downloads)) => return keys::downloads::run(downloads),
        None => {}
    }
    if !(0.1..=600.0).contains(&args.seconds) {
        return Err("--seconds must be between 0.1 and 600".to_owned());
    }
    let wanted = |part| args.only.is_none_or(|only| only == part);
    let facts = facts::Facts::collect();
    facts.print();
    let mut results = Results {
        facts,
        engine: None,
        callgrind: None,
        live: None,
        sessions: None,
        private_tag: None,
        end_to_end: None,
        scaling: None,
        rules: None,
        inspection: None,
        keys: None,
        idle: None,
    };
    let load = lanes::Load {
        connections: args.connections,
        seconds: args.seconds,
        steering: !args.no_steering,
        floating: args.floating,
    };
    if wanted(Part::A) {
        let measured = engine::measure(args.repetitions.max(5), args.seconds / 10.0)?;
        measured.print();
        results.engine = Some(measured);
        // What has been measured is kept, whatever happens to the next part.
        results.write(&args.json)?;
        if args.callgrind {
            let counted = callgrind::count()?;
            counted.print();
            results.callgrind = Some(counted);
            results.write(&args.json)?;
        }
    }
    if wanted(Part::B) && testbed()? {
        let measured = live::measure(args.repetitions, load)?;
        measured.print();
        results.live = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::C) && testbed()? {
        let load =
            sessions::Load { sessions: args.sessions, window: args.window, seconds: args.seconds };
        let measured = sessions::measure(args.repetitions, load)?;
        measured.print();
        results.sessions = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::D) {
        // Seven kinds of work on five sizes in three suites: a hundredth makes half a minute.
        let measured = tag::measure(args.repetitions.max(5), args.seconds / 100.0)?;
        measured.print();
        results.private_tag = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::E)
        && testbed()?
        && let Some(measured) = endtoend::measure(args.repetitions.max(5), load)?
    {
        measured.print();
        results.end_to_end = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::F) {
        let measured = scaling::measure(args.repetitions.max(5), args.seconds / 10.0)?;
        measured.print();
        results.scaling = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::G) {
        let measured = rules::measure(args.repetitions.max(5), args.seconds / 10.0)?;
        measured.print();
        results.rules = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::H) && testbed()? {
        let measured = inspection::measure(args.repetitions, load)?;
        measured.print();
        results.inspection = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::I) && testbed()? {
        let measured = keys::measure(args.repetitions, args.sessions)?;
        measured.print();
        results.keys = Some(measured);
        results.write(&args.json)?;
    }
    if wanted(Part::J) {
        let measured = idle::measure(args.repetitions.min(3))?;
        measured.print();
        results.idle = Some(measured);
        results.write(&args.json)?;
    }
    println!("\nevery sample: {}", args.json.display());
    Ok(())
}

/// Whether namespaces can be made; where they should be, it is an error when not.
fn testbed() -> Result<bool, String> {
    if !mmtls_testkit::require_testbed() {
        return Ok(false);
    }
    for program in ["nginx", "h2load", "ab"] {
        if !mmtls_testkit::require_program(program) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Results {
    fn write(&self, path: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        let mut text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        text.push('\n');
        std::fs::write(path, text).map_err(failed)
    }
}
