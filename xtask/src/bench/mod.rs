//! `xtask bench`: the benchmarks of the project, as tables and as a file of results ([`crate::results`]), of which
//! `xtask report` makes plots. `docs/benchmarks.md` says what is measured and how to read it; [`parts`] lists it all.
//!
//! * `a`, [`opening`]: the engine in memory against raw record opening, by size of record, too.
//! * `b`, [`live`]: downloads through a kernel bridge, mmTLS, and nginx as split-TLS proxy.
//! * `c`, [`sessions`]: new connections through mmTLS, and through the proxy; [`session_parts`]: through a monitor with less to do; [`session_live`]: of real ends.
//! * `d`, [`tag`]: what the private tag costs per record.
//! * `e`, [`endtoend`]: what the private tag costs nginx and h2load.
//! * `f`, [`scaling`]: engines on two threads, and what `pause` saves.
//! * `g`, [`rules`]: what rules cost, in memory.
//! * `h`, [`inspection`]: what they cost live, with a limit of inspection.
//! * `i`, [`keys`]: keys on their way, and what waits for them.
//! * `j`, [`idle`]: what open sessions cost in memory, and to be found.
//! * `k`, [`profile`]: what a proxy leaves of end-to-end throughput, and where its time goes.
//! * `l`, [`sites`]: 1,000 sites of the paper's mix of TLS versions and suites.
//! * `m`, [`pages`]: page loads of Chromium.
//! * `n`, [`workers`] and [`loss`]: more than one worker, live; and frames that are lost.
//! * `o`, [`response`]: how long one client waits for an object, near and far.
//! * `p`, [`growth`]: new sessions beside open ones.
//! * `q`, [`reading`]: a capture file.
//! * `r`, [`floating`]: the downloads of `b` where nobody has a processor.
//! * `s`, [`holds`]: how long a frame is in the middle.
//!
//! Refuses to report a run in which a request failed or a session was not decrypted.

mod ab;
mod callgrind;
mod contenders;
mod endtoend;
mod engine;
pub mod facts;
mod floating;
mod forwarder;
mod growth;
mod h2load;
mod holds;
mod idle;
mod inspection;
pub mod instructions;
mod keys;
mod lane;
mod lanes;
mod line;
mod live;
mod loss;
mod monitor;
mod opening;
mod pages;
mod parts;
mod places;
mod profile;
mod reading;
mod record;
mod replayer;
pub mod report;
mod response;
mod rules;
mod scaling;
mod session_live;
mod session_parts;
mod sessions;
mod setup;
mod sites;
mod synthetic;
mod tag;
mod taps;
mod variants;
mod workers;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Subcommand;
use serde_json::Value;

use crate::results::NoResult;
use parts::{Extent, Outcome, PARTS, Part};
use record::{Record, Took};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    inner: Option<Inner>,
    /// Measure these figures only, of the paper (10) or ours (M1); several: --fig 10 --fig 11, or --fig 10,11.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    fig: Vec<String>,
    /// Run these parts only: the engine in memory (a), downloads live (b), new connections (c), the private tag (d),
    /// the private tag end to end (e), engines on two threads (f), rules in memory (g), rules live (h), keys on their
    /// way (i), open sessions (j), proxy against end to end with a profile (k), 1,000 sites (l), page loads (m), several
    /// workers and lost frames (n), response times (o), new sessions beside open ones (p), reading a capture file (q),
    /// downloads where nobody has a processor (r), frames in the middle (s).
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<char>,
    /// See in minutes that everything works: few and short repetitions, which are no results.
    #[arg(long)]
    quick: bool,
    /// Go on with the latest file of this commit: measure what it lacks.
    #[arg(long)]
    resume: bool,
    /// Where the file goes: DATE-COMMIT.json in this directory; else bench/results, and with --quick out.
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Then make a page of the file (`xtask report`).
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
    /// How often each measurement is repeated (5; with --quick 2); what is done soon gets at least five rounds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
    /// Length of each live transfer in seconds (2; with --quick 0.5); in memory, each measurement gets a tenth of it.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
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
    /// New connections of each replay (20,000; with --quick 2,000).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    sessions: Option<u32>,
    /// New connections that are open at a time.
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,
    /// Write what the parts noted besides, counters and single transfers, to this file.
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
    /// Forwards frames and does nothing else, inside the testbed.
    #[command(hide = true)]
    Forwarder,
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

pub fn run(args: &BenchArgs) -> Result<(), String> {
    match &args.inner {
        Some(Inner::EnginePass(pass)) => return engine::pass(pass),
        Some(Inner::IdlePass(pass)) => return idle::pass(pass),
        Some(Inner::Forwarder) => return forwarder::run(),
        Some(Inner::Replayer(replay)) => return replayer::run(replay),
        Some(Inner::KeyDelivery(delivery)) => return keys::delivery::run(delivery),
        Some(Inner::Downloads(downloads)) => return keys::downloads::run(downloads),
        None => {}
    }
    let extent = extent(args)?;
    let wanted = chosen(&args.only, &args.fig)?;
    let facts = facts::Facts::collect();
    facts.print();
    let results = args.results.clone();
    let results =
        results.unwrap_or_else(|| if args.quick { "out" } else { "bench/results" }.into());
    let mut record = Record::open(&results, &facts, args.quick, args.resume)?;
    if args.resume && facts.commit().ends_with("-modified") {
        println!("WARNING: the tree is modified; whether it is as it was then, nobody can tell");
    }
    let wanted: Vec<&Part> =
        wanted.into_iter().filter(|part| !(args.resume && record.has(part))).collect();
    let command = command();
    let mut details = serde_json::Map::new();
    let mut failed = Vec::new();
    let mut course = Course::new(&wanted, &extent);
    for part in &wanted {
        course.begin(part);
        let busy_before = facts::busy_now();
        let start = Instant::now();
        // A part that panics must not take the others with it.
        let outcome = std::panic::catch_unwind(|| (part.measure)(&extent))
            .unwrap_or_else(|_| Err("a panic, whose message stands above".to_owned()));
        let took = Took { seconds: start.elapsed().as_secs_f64(), busy_before };
        course.end(part, took.seconds);
        let outcome = outcome.and_then(|outcome| match outcome {
            Outcome::Measured(mut measured) => {
                details.insert(part.letter.to_string(), measured.details.take());
                record.put(part, measured, &command, &took).map(|()| None)
            }
            Outcome::Skipped(reason) => Ok(Some(reason)),
        });
        match outcome {
            Ok(None) => {}
            Ok(Some(reason)) => {
                println!("({}) skipped: {reason}", part.letter);
                record.miss(part, NoResult::Skipped, &reason, &command, &took)?;
            }
            Err(reason) => {
                eprintln!("({}) failed: {reason}", part.letter);
                record.miss(part, NoResult::Failed, &reason, &command, &took)?;
                failed.push(part.letter.to_string());
            }
        }
    }
    if !details.is_empty() {
        write_details(&args.json, &details)?;
    }
    println!("\nevery sample: {}", record.path().display());
    match &args.report {
        Some(page) => crate::report::page(&[record.path().to_owned()], page)?,
        None => println!("plots: cargo xtask report {}", record.path().display()),
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "parts that failed: {}; --resume measures them again, and not the others",
            failed.join(", ")
        )),
    }
}

fn write_details(path: &Path, details: &serde_json::Map<String, Value>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    let text = serde_json::to_string_pretty(details).map_err(|error| error.to_string())?;
    std::fs::write(path, text + "\n").map_err(failed)
}

fn extent(args: &BenchArgs) -> Result<Extent, String> {
    let (repetitions, seconds, sessions) =
        if args.quick { (2, 0.5, 2000) } else { (5, 2.0, 20_000) };
    let seconds = args.seconds.unwrap_or(seconds);
    if !(0.1..=600.0).contains(&seconds) {
        return Err("--seconds must be between 0.1 and 600".to_owned());
    }
    Ok(Extent {
        repetitions: args.repetitions.unwrap_or(repetitions),
        seconds,
        load: lane::Load {
            connections: args.connections,
            seconds,
            steering: !args.no_steering,
            floating: args.floating,
            single_frames: false,
            tls: lane::Tls::Gcm,
            line: None,
        },
        sessions: args.sessions.unwrap_or(sessions),
        window: args.window,
        callgrind: args.callgrind,
        quick: args.quick,
    })
}

/// The parts that were asked for by letter or by figure; all, where none was.
fn chosen(letters: &[char], figures: &[String]) -> Result<Vec<&'static Part>, String> {
    for letter in letters {
        if !PARTS.iter().any(|part| part.letter == *letter) {
            return Err(format!("--only {letter}: there is no such part"));
        }
    }
    for figure in figures {
        if !PARTS.iter().any(|part| part.figures.contains(&figure.as_str())) {
            let mut all: Vec<&str> = PARTS.iter().flat_map(|part| part.figures).copied().collect();
            all.dedup();
            let all = all.join(", ");
            return Err(format!("--fig {figure}: nothing measures it; there are {all}"));
        }
    }
    let everything = letters.is_empty() && figures.is_empty();
    let is_wanted = |part: &&Part| {
        everything
            || letters.contains(&part.letter)
            || figures.iter().any(|figure| part.figures.contains(&figure.as_str()))
    };
    Ok(PARTS.iter().filter(is_wanted).collect())
}

/// This command, without the path of the program.
fn command() -> String {
    let words: Vec<String> = std::env::args().skip(1).collect();
    ["xtask".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

/// How far a run is, and how long it may go on.
struct Course {
    all: usize,
    begun: usize,
    start: Instant,
    /// Of the parts that are not done, as they are thought to take, and of those that are.
    left: f64,
    thought: f64,
    took: f64,
    factor: f64,
}

impl Course {
    fn new(parts: &[&Part], extent: &Extent) -> Self {
        let factor = f64::from(extent.repetitions) / 5.0 * extent.seconds / 2.0;
        let left = parts.iter().map(|part| part.seconds * factor).sum();
        let start = Instant::now();
        Self { all: parts.len(), begun: 0, start, left, thought: 0.0, took: 0.0, factor }
    }

    fn begin(&mut self, part: &Part) {
        self.begun += 1;
        println!(
            "\n[{} of {}] figure {}: {} ({}); {} so far, about {} to go",
            self.begun,
            self.all,
            part.figures.join(", "),
            part.what,
            part.letter,
            minutes(self.start.elapsed().as_secs_f64()),
            minutes(self.to_go()),
        );
    }

    fn end(&mut self, part: &Part, seconds: f64) {
        self.left -= part.seconds * self.factor;
        self.thought += part.seconds * self.factor;
        self.took += seconds;
    }

    /// Whoever was slower than thought so far will be.
    fn to_go(&self) -> f64 {
        let slower = if self.thought > 0.0 { self.took / self.thought } else { 1.0 };
        self.left.max(0.0) * slower
    }
}

fn minutes(seconds: f64) -> String {
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters(only: &[char], fig: &[&str]) -> Result<String, String> {
        let fig: Vec<String> = fig.iter().map(|&it| it.to_owned()).collect();
        chosen(only, &fig).map(|parts| parts.iter().map(|part| part.letter).collect())
    }

    #[test]
    fn accepts_parts_and_figures() {
        assert_eq!(letters(&[], &[]).unwrap(), "abcdefghijklmnopqrs");
        assert_eq!(letters(&['j'], &["20", "10"]).unwrap(), "bghjr");
        assert_eq!(letters(&[], &["M2"]).unwrap(), "f");
    }

    #[test]
    fn refuses_figures_that_nothing_measures() {
        assert!(letters(&['z'], &[]).is_err());
        let refused = letters(&[], &["14"]).unwrap_err();
        assert!(refused.contains("there are M1, M4, 10,"), "{refused}");
    }

    #[test]
    fn tells_how_long_a_run_may_go_on() {
        let parts: Vec<&Part> = PARTS[..2].iter().collect();
        let args = Extent {
            repetitions: 5,
            seconds: 2.0,
            load: lane::Load {
                connections: 1,
                seconds: 2.0,
                steering: true,
                floating: true,
                single_frames: false,
                tls: lane::Tls::Gcm,
                line: None,
            },
            sessions: 100,
            window: 1,
            callgrind: false,
            quick: false,
        };
        let mut course = Course::new(&parts, &args);
        assert_eq!(course.to_go(), PARTS[0].seconds + PARTS[1].seconds);
        // Twice as long as was thought.
        course.end(parts[0], 2.0 * PARTS[0].seconds);
        assert_eq!(course.to_go(), 2.0 * PARTS[1].seconds);
    }
}
