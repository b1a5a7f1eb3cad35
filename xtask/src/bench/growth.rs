//! Part (p): what a new session costs the box while others are open, live: the replay of part (c), with 10 to 100,000 sessions of another
//! client before it that have had their response and are silent, and with a table that they fill, where each new session takes the
//! place of one that is over or silent.
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

/// How many sessions are open, and whether the table has no room for more.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Case {
    open: u32,
    is_full: bool,
}

/// All cases; the last two take a minute and more.
pub const CASES: [Case; 4] = [
    Case { open: 10, is_full: false },
    Case { open: 1000, is_full: false },
    Case { open: 10_000, is_full: true },
    Case { open: 100_000, is_full: false },
];

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
    case: Case,
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

/// Measures cases in turn.
pub fn measure(rounds: u32, load: Load, cases: &[Case]) -> Result<GrowthResults, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bed = replay_bed().map_err(|error| error.to_string())?;
    let mut passes: [Vec<Pass>; CASES.len()] = Default::default();
    for _ in 0..rounds {
        for (case, passes) in cases.iter().zip(&mut passes) {
            let pass = replay(&bed, cores, load, *case)?;
            eprintln!(
                "  {} open{}: {:.1} µs per new session, {:.0} B per open one",
                case.open,
                if case.is_full { ", table full" } else { "" },
                pass.us_per_session,
                pass.bytes_per_open
            );
            passes.push(pass);
        }
    }
    let cases = cases.iter().zip(&passes).map(|(&case, passes)| {
        let of = |figure: &dyn Fn(&Pass) -> f64| Samples::new(passes.iter().map(figure).collect());
        Measured {
            case,
            us_per_session: of(&|it| it.us_per_session),
            sessions_per_s: of(&|it| it.sessions_per_s),
            bytes_per_open: of(&|it| it.bytes_per_open),
        }
    });
    Ok(GrowthResults { sessions: load.sessions, window: load.window, cases: cases.collect() })
}

fn replay(bed: &Testbed, cores: usize, load: Load, case: Case) -> Result<Pass, String> {
    // The open sessions are another client's than that whose keys come.
    let mut config = "[keys]\naccept_from = [\"any\"]\n".to_owned();
    if case.is_full {
        config += &format!("[limits]\nmax_flows = {}\n", case.open);
    }
    let options = MmtlsOptions { config: Some(config), ..MmtlsOptions::new(crate::binaries()?) };
    let failed = |error: mmtls_testkit::TestbedError| error.to_string();
    let mut mmtls = Mmtls::start(bed, &options).map_err(failed)?;
    let mut command = player(bed, &mmtls, cores, load, true)?;
    command.args(["--open", &case.open.to_string()]);
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
    monitor::stop(mmtls, u64::from(load.sessions + case.open))?;
    Ok(Pass {
        us_per_session: box_cpu_s * 1e6 / f64::from(load.sessions),
        sessions_per_s: f64::from(load.sessions) / replayed.seconds,
        bytes_per_open: resident.saturating_sub(empty) as f64 / f64::from(case.open),
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
            "{} sessions of 1 KB, {} at a time, as in figure 11. Table full: max_flows is the number of those that are open, and each new session takes the place of one that is over or silent.",
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
            let x = u64::from(it.case.open);
            let subject = if it.case.is_full { "mmTLS, table full" } else { "mmTLS" };
            cpu.add(subject, x, &it.us_per_session.samples);
            rate.add(subject, x, &it.sessions_per_s.samples);
            // Of ten, pages of other things are more.
            if it.case.open >= 1000 {
                memory.add(subject, x, &it.bytes_per_open.samples);
            }
        }
        vec![cpu, rate, memory]
    }

    pub fn print(&self) {
        let row = |it: &Measured| {
            let full = if it.case.is_full { ", table full" } else { "" };
            vec![
                format!("{}{full}", it.case.open),
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
