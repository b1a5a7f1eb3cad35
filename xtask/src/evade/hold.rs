//! Hostile connections that make mmTLS hold as many frames as it may, and honest ones beside them.
//!
//! ```text
//!  hostile   a handshake without keys, then hundreds of small records that wait for them; again and again
//!  honest    TLS with keys, there and back
//! ```
//! The hostile ones have sixteen addresses, the honest ones another: it is never they who meet a policy.
//! Refuses to count a run in which less than three quarters were held.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mmtls_testkit::{Mmtls, MmtlsOptions, Testbed};

use super::honest::{self, Plan};
use super::lane::Lane;
use super::peers::{self, Program};
use super::script::Case;

/// The cap; the machine would need minutes to fill the default.
const MAX_HELD: u64 = 4096;
/// Hostile connections at a time: each may hold 1,024.
const HOSTILE: usize = 66;
const SCRIPT: &str = "stream handshake; send PA data=hex:170303002055aa55aa55aa55aa55aa55aa55aa55aa55aa55aa55aa55aa55aa55aa55aa55aa times=600; pause 300";

fn options(_: &Testbed, mut options: MmtlsOptions) -> Result<MmtlsOptions, String> {
    options.log = true;
    // Long enough that the cap ends them, not the time.
    let config = format!(
        "[limits]\nmax_held_frames = {MAX_HELD}\nstall_timeout_milliseconds = 3000\n\
         unshared_stall_timeout_milliseconds = 3000\n[log]\nstats_interval_seconds = 1\n"
    );
    options.config = Some(config);
    Ok(options)
}

/// Runs it with so many honest connections; returns what was harmed.
pub fn run(
    program: &Program,
    binaries: &Path,
    count: usize,
    seed: u64,
) -> Result<Vec<String>, String> {
    let programs = std::slice::from_ref(program);
    let mut lane = Lane::start(programs, Some(binaries), &mut options, (seed, false))?;
    let server = peers::address(program.name, false, false);
    let case: Arc<Case> = Arc::new(SCRIPT.parse()?);
    let plan = |number: usize| Plan {
        tls: true,
        v6: false,
        port: None,
        bytes: 20_000,
        seed: seed ^ number as u64,
        limit: Duration::from_secs(20),
    };
    let plans: Vec<Plan> = (0..count).map(plan).collect();
    let (done, tried) = (AtomicBool::new(false), AtomicUsize::new(0));
    let results = std::thread::scope(|scope| {
        let hostile = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let jobs = (0..HOSTILE).map(|_| lane.job(&case, server));
                let jobs: Vec<_> = jobs.collect::<Result<_, _>>()?;
                lane.client_side.run(jobs, HOSTILE)?;
                tried.fetch_add(HOSTILE, Ordering::Relaxed);
            }
            Ok::<(), String>(())
        });
        // Until they hold what they may.
        std::thread::sleep(Duration::from_millis(1500));
        let results = honest::run(&lane, &plans, 1);
        done.store(true, Ordering::Relaxed);
        hostile.join().map_err(|_| "a thread has panicked")??;
        results
    })?;
    let report = lane.mmtls.take().map(Mmtls::stop).transpose();
    let report = report.map_err(|error| error.to_string())?.ok_or("no mmTLS")?;
    // Somewhere in it.
    let held = |record: &&serde_json::Value| {
        let text = record.to_string();
        let (_, rest) = text.split_once("\"held_frames_now\":")?;
        rest.split(|it: char| !it.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let most = report.events("stats").iter().filter_map(held).max().unwrap_or(0);
    let mut harm: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    println!(
        "evade: {count} honest connections beside {} hostile ones, {HOSTILE} at a time, that held up to {most} \
         of {MAX_HELD} frames: {} harmed",
        tried.load(Ordering::Relaxed),
        harm.len()
    );
    if report.count("decrypted") < count as u64 || report.count("failed") > 0 {
        harm.push(format!("not all decrypted: {:?}", report.summary));
    }
    if most < MAX_HELD * 3 / 4 {
        return Err(format!("void: only {most} of {MAX_HELD} frames were held"));
    }
    Ok(harm)
}
