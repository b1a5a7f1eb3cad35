//! Part (p): what a new session costs the box while others are open, live: the replay of part (c), with 10 to 100,000 sessions of another
//! client before it that have had their response and are silent.
//!
//! Refuses a run in which a frame was lost, or a session was not decrypted.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::Duration;

use mmtls_testkit::{Mmtls, MmtlsOptions, Testbed};
use serde::Serialize;

use super::monitor;
use super::replayer::{OPEN, Replayed};
use super::report::{Samples, table};
use super::sessions::{Load, player, replay_bed};
use crate::results::{Axis, Figure};

/// How many sessions are open.
pub const OPEN_BEFORE: [u32; 3] = [10, 1000, 100_000];

/// One replay.
#[derive(Debug, Serialize)]
struct Pass {
    us_per_session: f64,
    sessions_per_s: f64,
    /// What the open ones have added to the process's resident memory.
    bytes_per_open: f64,
}

#[derive(Debug, Serialize)]
struct Measured {
    open: u32,
    us_per_session: Samples,
    sessions_per_s: Samples,
    bytes_per_open: Samples,
}

/// Part (p).
#[derive(Debug, Serialize)]
pub struct GrowthResults {
    sessions: u32,
    window: u32,
    cases: Vec<Measured>,
}

/// Measures with each number of open sessions, some of [`OPEN_BEFORE`], in turn.
pub fn measure(rounds: u32, load: Load, open: &[u32]) -> Result<GrowthResults, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bed = replay_bed().map_err(|error| error.to_string())?;
    let mut passes: [Vec<Pass>; OPEN_BEFORE.len()] = Default::default();
    for _ in 0..rounds {
        for (&open, passes) in open.iter().zip(&mut passes) {
            let pass = replay(&bed, cores, load, open)?;
            eprintln!(
                "  {open} open: {:.1} µs per new session, {:.0} B per open one",
                pass.us_per_session, pass.bytes_per_open
            );
            passes.push(pass);
        }
    }
    let cases = open.iter().zip(&passes).map(|(&open, passes)| {
        let of = |figure: &dyn Fn(&Pass) -> f64| Samples::new(passes.iter().map(figure).collect());
        Measured {
            open,
            us_per_session: of(&|it| it.us_per_session),
            sessions_per_s: of(&|it| it.sessions_per_s),
            bytes_per_open: of(&|it| it.bytes_per_open),
        }
    });
    Ok(GrowthResults { sessions: load.sessions, window: load.window, cases: cases.collect() })
}

fn replay(bed: &Testbed, cores: usize, load: Load, open: u32) -> Result<Pass, String> {
    // The open sessions are another client's than that whose keys come.
    let config = "[keys]\naccept_from = [\"any\"]\n".to_owned();
    let options = MmtlsOptions { config: Some(config), ..MmtlsOptions::new(crate::binaries()?) };
    let failed = |error: mmtls_testkit::TestbedError| error.to_string();
    let mut mmtls = Mmtls::start(bed, &options).map_err(failed)?;
    let mut command = player(bed, &mmtls, cores, load)?;
    command.args(["--open", &open.to_string()]);
    let empty = mmtls.process.resident_bytes();

    let io = |error: std::io::Error| format!("replayer: {error}");
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(io)?;
    let (Some(mut input), Some(output), Some(mut errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err("replayer: no pipes".to_owned());
    };
    let mut output = BufReader::new(output);
    let mut said = String::new();
    output.read_line(&mut said).map_err(io)?;
    let is_open = said.trim() == OPEN;
    let (before, resident) = (mmtls.process.cpu_seconds(), mmtls.process.resident_bytes());
    if is_open {
        input.write_all(b"\n").map_err(io)?;
        said.clear();
    }
    output.read_to_string(&mut said).map_err(io)?;
    let status = child.wait().map_err(io)?;
    if !status.success() || !is_open {
        let mut text = String::new();
        errors.read_to_string(&mut text).map_err(io)?;
        return Err(format!("replayer: {said}{}", text.trim()));
    }
    let replayed: Replayed = serde_json::from_str(&said).map_err(|error| error.to_string())?;
    // Logs follow; those of the open ones, which end with the box, do not count.
    std::thread::sleep(Duration::from_millis(300));
    let box_cpu_s = mmtls.process.cpu_seconds() - before;
    monitor::stop(mmtls, u64::from(load.sessions + open))?;
    Ok(Pass {
        us_per_session: box_cpu_s * 1e6 / f64::from(load.sessions),
        sessions_per_s: f64::from(load.sessions) / replayed.seconds,
        bytes_per_open: resident.saturating_sub(empty) as f64 / f64::from(open),
    })
}

impl GrowthResults {
    /// Ours: what open sessions cost new ones, and the process.
    pub fn figures(&self) -> Vec<Figure> {
        let figure = |panel: &str, title: &str, y| {
            Figure::new("M6", panel, title, Axis::log("open sessions", ""), y)
        };
        let mut cpu = figure(
            "cpu",
            "A new session beside open ones, live: processor time of mmTLS",
            Axis::linear("processor time per new session", "µs"),
        )
        .note(format!(
            "{} sessions of 1 KB, {} at a time, as in figure 11.",
            self.sessions, self.window
        ));
        let mut rate = figure(
            "rate",
            "New sessions per second beside open ones, both ends on the same machine",
            Axis::linear("rate", "sessions/s"),
        );
        let mut memory = figure(
            "memory",
            "Resident memory that open sessions add to mmTLS, live",
            Axis::linear("memory per session", "B"),
        )
        .note("Handshake, request and response, keys and logs; a session that has been silent for half a minute gives some of it back, which of many the first ones may have done.");
        for it in &self.cases {
            let x = u64::from(it.open);
            cpu.add("mmTLS", x, &it.us_per_session.samples);
            rate.add("mmTLS", x, &it.sessions_per_s.samples);
            // Of ten, pages of other things are more.
            if it.open >= 1000 {
                memory.add("mmTLS", x, &it.bytes_per_open.samples);
            }
        }
        vec![cpu, rate, memory]
    }

    pub fn print(&self) {
        let row = |it: &Measured| {
            vec![
                it.open.to_string(),
                format!("{:.1}", it.us_per_session.median),
                format!("{:.1}–{:.1}", it.us_per_session.min, it.us_per_session.max),
                format!("{:.0}", it.sessions_per_s.median),
                format!("{:.0}", it.bytes_per_open.median),
            ]
        };
        let rows: Vec<Vec<String>> = self.cases.iter().map(row).collect();
        table(
            "(p) new sessions beside open ones; the box's processor time, medians",
            &["open", "µs per new session", "range", "new sessions/s", "B per open session"],
            &rows,
        );
    }
}
