//! `xtask soak`: hours of load on links that lose and reorder, with agents that come and go, a monitor that reads its
//! rules and certificates again every minute, and is killed every ten, but for the last half hour.
//!
//! ```text
//!  client ──(bad link)── left │ mmtls │ right ──(bad link)── server: nginx, WebSocket, hashes
//! ```
//!
//! 1. [`stage`]: the namespaces, the links ([`crate::impair`]), the servers, what is served.
//! 2. [`population`]: agents and programs, which end and are followed by others; what they do is in `xtask/soak/client.py`.
//! 3. [`monitor`]: one life of mmtls after another, and what is sampled of each.
//! 4. [`transfers`], [`log`]: what clients tell, and what `eve.json` says, read as it grows.
//! 5. [`judge`], [`drift`]: sessions are decrypted; each error of a client needs a cause, nothing is cut; memory stays flat.
//!
//! Refuses to pass over an error: one that no kill explains fails the run, whatever the log says of it.

mod drift;
mod judge;
mod log;
mod monitor;
mod population;
mod stage;
mod tail;
mod transfers;

pub use monitor::of_status;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::bench::facts::Facts;
use judge::{Criterion, Errors};
use log::Log;
use monitor::{Event, Life, Monitor};
use population::Population;
use stage::{LinkCounts, Stage, TcpCounts};
use transfers::Transfers;

/// `xtask soak`
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct SoakArgs {
    /// How long there is load, in minutes.
    #[arg(long, default_value_t = 60.0, value_name = "N")]
    minutes: f64,
    /// Seconds between two reloads.
    #[arg(long, default_value_t = 60.0, value_name = "S")]
    reload_seconds: f64,
    /// Seconds between two kills.
    #[arg(long, default_value_t = 600.0, value_name = "S")]
    kill_seconds: f64,
    /// Seconds from a kill to the next start.
    #[arg(long, default_value_t = 2.0, value_name = "S")]
    down_seconds: f64,
    /// Of a thousand frames, those that each link loses, in each direction.
    #[arg(long, default_value_t = 10, value_name = "N")]
    lost: usize,
    /// Of a thousand frames, those that each link delays by up to 5 ms.
    #[arg(long, default_value_t = 10, value_name = "N")]
    late: usize,
    /// Connections of programs that are busy, as a multiple.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    load: u32,
    /// Workers of the monitor.
    #[arg(long, default_value_t = 1, value_name = "N")]
    workers: u32,
    /// What random choices start from.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Write every sample, event and error to this file.
    #[arg(long, default_value = "out/soak.json", value_name = "FILE")]
    json: PathBuf,
}

/// What happens is looked at so often.
const TICK: Duration = Duration::from_millis(200);
const SAMPLE_SECONDS: f64 = 5.0;
const PROGRESS_SECONDS: f64 = 10.0;
/// Flows that end are in the log when this is over.
const LOG_SECONDS: f64 = 4.0;
/// Without kills at the end of an hour: memory that grows slowly shows in a long life only.
const LAST_LIFE_SECONDS: f64 = 1800.0;

/// How long before the end of the load the last kill may be.
fn quiet_seconds(args: &SoakArgs) -> f64 {
    // A life that is far shorter than the others would tell nothing of memory.
    let least = args.kill_seconds / 5.0;
    // A run of half an hour or less has kills throughout.
    let last_life = (args.minutes * 60.0 - LAST_LIFE_SECONDS).min(LAST_LIFE_SECONDS);
    least.max(last_life)
}

/// Everything that was seen.
#[derive(Serialize)]
struct Results<'a> {
    facts: &'a Facts,
    settings: &'a SoakArgs,
    seconds: f64,
    criteria: &'a [Criterion],
    errors: &'a Errors,
    transfers: &'a Transfers,
    log: &'a Log,
    population: population::Counts,
    links: LinkCounts,
    tcp: [TcpCounts; 2],
    events: &'a [Event],
    lives: &'a [Life],
}

/// Seconds since 1970, which clients and the log tell, too.
fn now() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |it| it.as_secs_f64())
}

/// When something is to happen again and again.
struct Due {
    at: f64,
    every: f64,
}

impl Due {
    fn new(first: f64, every: f64) -> Self {
        Self { at: first, every }
    }

    fn is(&mut self, now: f64) -> bool {
        let due = now >= self.at;
        while self.at <= now {
            self.at += self.every;
        }
        due
    }
}

/// Runs it.
pub fn run(args: &SoakArgs) -> Result<(), String> {
    for (name, value) in [
        ("--minutes", args.minutes),
        ("--reload-seconds", args.reload_seconds),
        ("--kill-seconds", args.kill_seconds),
        ("--down-seconds", args.down_seconds),
    ] {
        // NaN, too.
        if !(0.1..=1e6).contains(&value) {
            return Err(format!("{name} must be between 0.1 and 1000000"));
        }
    }
    if args.lost + args.late > 1000 {
        return Err("--lost and --late are parts of a thousand".to_owned());
    }
    let facts = Facts::collect();
    facts.print();
    // From the last to the first each ends before what it needs.
    let stage = Stage::build(args)?;
    let mut soak = Soak::start(args, &stage)?;
    let outcome = soak.run();
    soak.end(&facts, outcome)
}

struct Soak<'a> {
    args: &'a SoakArgs,
    stage: &'a Stage,
    population: Population<'a>,
    monitor: Monitor<'a>,
    transfers: Transfers,
    log: Log,
    tcp_before: [TcpCounts; 2],
    begun: f64,
}

impl<'a> Soak<'a> {
    fn start(args: &'a SoakArgs, stage: &'a Stage) -> Result<Self, String> {
        let mut log = Log::default();
        let mut monitor = Monitor::new(stage, args);
        monitor.start(&mut log)?;
        Ok(Self {
            args,
            stage,
            population: Population::new(stage, args),
            monitor,
            transfers: Transfers::new(stage.results()),
            log,
            tcp_before: stage.tcp()?,
            begun: now(),
        })
    }

    /// An error is of the soak itself, or an end of the monitor that nobody wanted.
    fn run(&mut self) -> Result<(), String> {
        let args = self.args;
        let end = self.begun + args.minutes * 60.0;
        // Never at the moment of a kill, as long as that is a multiple.
        let half = args.reload_seconds / 2.0;
        let mut reload = Due::new(self.begun + half, args.reload_seconds);
        let mut kill = Due::new(self.begun + args.kill_seconds, args.kill_seconds);
        let mut sample = Due::new(self.begun, SAMPLE_SECONDS);
        let mut progress = Due::new(self.begun + PROGRESS_SECONDS, PROGRESS_SECONDS);
        while now() < end {
            std::thread::sleep(TICK);
            if self.monitor.is_down() {
                self.monitor.start_when_due(&mut self.log)?;
            } else {
                self.monitor.check()?;
                self.population.tick(self.monitor.mmtls()?)?;
                if reload.is(now()) {
                    self.monitor.reload(&mut self.log)?;
                }
                if kill.is(now()) && end - now() > quiet_seconds(args) {
                    self.monitor.kill()?;
                } else if sample.is(now()) {
                    self.monitor.sample();
                }
            }
            self.transfers.read()?;
            self.log.read()?;
            if progress.is(now()) {
                self.tell();
            }
        }
        Ok(())
    }

    fn tell(&self) {
        let seconds = now() - self.begun;
        let memory = self
            .monitor
            .resident_bytes()
            .map_or_else(|| "down".to_owned(), |bytes| format!("{:.1} MB", bytes as f64 / 1e6));
        println!(
            "{seconds:5.0} s: {} transfers, {:.2} GB, {} errors; {} sessions, {} decrypted, {} cut; {memory}; {} reloads, {} \
             kills, {} agents",
            self.transfers.count(),
            self.transfers.bytes() as f64 / 1e9,
            self.transfers.errors.len(),
            self.log.sessions(),
            self.log.decrypted(),
            self.log.cut(),
            self.monitor.reloads(),
            self.monitor.kills(),
            self.population.counts.agents,
        );
    }

    /// Lets everybody finish, ends the monitor, judges.
    fn end(mut self, facts: &Facts, outcome: Result<(), String>) -> Result<(), String> {
        let seconds = now() - self.begun;
        let mut outcome = outcome.and_then(|()| self.finish());
        let links = self.stage.links();
        let tcp = match self.stage.tcp() {
            Ok([client, server]) => {
                [client.since(&self.tcp_before[0]), server.since(&self.tcp_before[1])]
            }
            Err(error) => {
                outcome = outcome.and(Err(error));
                <[TcpCounts; 2]>::default()
            }
        };
        let errors = Errors::judge(&self.transfers, &self.log, &self.monitor.events);
        let (transfers, log) = (&self.transfers, &self.log);
        let criteria = judge::criteria(&errors, transfers, log, &self.monitor.lives, outcome);
        let results = Results {
            facts,
            settings: self.args,
            seconds,
            criteria: &criteria,
            errors: &errors,
            transfers: &self.transfers,
            log: &self.log,
            population: self.population.counts,
            links,
            tcp,
            events: &self.monitor.events,
            lives: &self.monitor.lives,
        };
        judge::print(&results);
        write(&results)?;
        match criteria.iter().filter(|it| it.holds == Some(false)).count() {
            0 => Ok(()),
            failed => Err(format!("{failed} of {} criteria do not hold", criteria.len())),
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        println!("no more load; what is under way may finish");
        if self.monitor.is_down() {
            self.monitor.start(&mut self.log)?;
        }
        self.population.retire_all();
        while self.population.is_alive() {
            std::thread::sleep(TICK);
            self.monitor.check()?;
            self.population.tick(self.monitor.mmtls()?)?;
            self.transfers.read()?;
            self.log.read()?;
        }
        let end = now() + LOG_SECONDS;
        while now() < end {
            std::thread::sleep(TICK);
            self.log.read()?;
        }
        self.monitor.stop()?;
        self.transfers.read()?;
        self.log.read()?;
        self.log.close();
        Ok(())
    }
}

fn write(results: &Results) -> Result<(), String> {
    let path = &results.settings.json;
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
    }
    let text = serde_json::to_string_pretty(results).map_err(|error| failed(&error))?;
    std::fs::write(path, text + "\n").map_err(|error| failed(&error))?;
    println!("written: {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        soak: SoakArgs,
    }

    /// Seconds of the kills.
    fn kills(arguments: &[&str]) -> Vec<f64> {
        let args = Program::parse_from([&["soak"], arguments].concat()).soak;
        let end = args.minutes * 60.0;
        let mut due = Due::new(args.kill_seconds, args.kill_seconds);
        let seconds = (0..end as u32).map(f64::from);
        seconds.filter(|now| due.is(*now) && end - now > quiet_seconds(&args)).collect()
    }

    #[test]
    fn the_last_life_of_an_hour_is_long_and_a_short_run_has_kills_to_its_end() {
        assert_eq!(kills(&[]), [600.0, 1200.0]);
        assert_eq!(kills(&["--minutes", "90"]), [600.0, 1200.0, 1800.0, 2400.0, 3000.0]);
        assert_eq!(kills(&["--minutes", "16", "--kill-seconds", "480"]), [480.0]);
        // `make soak-quick`
        assert_eq!(kills(&["--minutes", "3", "--kill-seconds", "60"]), [60.0, 120.0]);
    }
}
