//! The verdict: every error of a client has a cause, nothing was cut by a reload, memory, files and threads stay.
//!
//! Refuses to judge memory of a life that is too short to have become steady: that is said, and no success.

use std::collections::BTreeMap;

use serde::Serialize;

use super::log::Log;
use super::monitor::{Event, Kind, Life, Monitor};
use super::transfers::{Transfer, Transfers};
use super::{Results, now};

/// A kill explains errors for so long after the start that follows.
const KILL_SECONDS: f64 = 30.0;
/// An error that comes so soon after a reload, and that nothing explains, is the reload's.
const RELOAD_SECONDS: f64 = 10.0;
/// Clocks of a line of the log and of a client's error may be so far apart: a client notices when it reads again.
const LOG_SECONDS: f64 = 10.0;
/// Of a life: what is not looked at, since tables fill (a connection that was reset is remembered for three minutes), and
/// the two parts that are compared.
const WARM_UP_SECONDS: f64 = 200.0;
const WINDOW_SECONDS: f64 = 120.0;
/// What is flat.
const FLAT: f64 = 0.05;
/// Files and threads that come and go with agents.
const FEW: f64 = 8.0;

/// Why a client saw an error.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A line of the log says why the monitor cut it.
    Log(String),
    /// The monitor was away, or just back.
    Kill,
    /// None, and a reload was at that time.
    Reload,
    /// None.
    Unknown,
}

/// An error with its cause.
#[derive(Debug, Serialize)]
pub struct Judged {
    pub cause: Cause,
    pub transfer: Transfer,
}

/// All errors.
#[derive(Debug, Serialize)]
pub struct Errors {
    pub by_log: usize,
    pub by_kill: usize,
    pub by_reload: usize,
    pub unknown: usize,
    pub all: Vec<Judged>,
}

impl Errors {
    /// Looks for the cause of each.
    pub fn judge(transfers: &Transfers, log: &Log, events: &[Event]) -> Self {
        let judged = transfers.errors.iter().map(|transfer| Judged {
            cause: cause(transfer, log, events),
            transfer: transfer.clone(),
        });
        let all: Vec<Judged> = judged.collect();
        let count = |is: &dyn Fn(&Cause) -> bool| all.iter().filter(|it| is(&it.cause)).count();
        Self {
            by_log: count(&|it| matches!(it, Cause::Log(_))),
            by_kill: count(&|it| *it == Cause::Kill),
            by_reload: count(&|it| *it == Cause::Reload),
            unknown: count(&|it| *it == Cause::Unknown),
            all,
        }
    }
}

fn cause(transfer: &Transfer, log: &Log, events: &[Event]) -> Cause {
    let cut = log.cuts.iter().find(|cut| {
        cut.client == transfer.local
            && cut.at >= transfer.connected - 1.0
            && cut.at <= transfer.ended + LOG_SECONDS
    });
    if let Some(cut) = cut {
        return Cause::Log(cut.cause.clone());
    }
    let back = |kill: &Event| {
        let next = events.iter().find(|it| it.kind == Kind::Start && it.at > kill.at);
        next.map_or(f64::INFINITY, |start| start.at)
    };
    let mut kills = events.iter().filter(|it| it.kind == Kind::Kill);
    if kills.any(|kill| transfer.ended >= kill.at && transfer.ended <= back(kill) + KILL_SECONDS) {
        return Cause::Kill;
    }
    let mut reloads = events.iter().filter(|it| it.kind == Kind::Reload);
    let is_reload =
        reloads.any(|it| transfer.ended >= it.at && transfer.ended <= it.at + RELOAD_SECONDS);
    if is_reload { Cause::Reload } else { Cause::Unknown }
}

/// What must hold.
#[derive(Debug, Serialize)]
pub struct Criterion {
    pub name: &'static str,
    /// `None`: not judged.
    pub holds: Option<bool>,
    pub found: String,
}

/// Judges all of it; `outcome` is how the run itself went.
pub fn criteria(
    errors: &Errors,
    transfers: &Transfers,
    log: &Log,
    monitor: &Monitor,
    outcome: Result<(), String>,
) -> Vec<Criterion> {
    let is = |name, holds, found: String| Criterion { name, holds: Some(holds), found };
    let failed = log.counter("records_failed");
    let reloads: u64 = monitor.lives.iter().map(|life| life.reloads).sum();
    let told =
        |which: usize| monitor.lives.iter().map(|life| life.reloads_told[which]).sum::<usize>();
    let [rules, certificates] = [told(0), told(1)];
    let mut all = vec![
        is(
            "the run went to its end, and nothing ended by itself",
            outcome.is_ok(),
            outcome.err().unwrap_or_default(),
        ),
        is(
            "there was load",
            transfers.count() > 100 && transfers.bad_lines == 0,
            format!("{} transfers, {} bad lines", transfers.count(), transfers.bad_lines),
        ),
        is("no session was cut by a reload", errors.by_reload == 0, errors.by_reload.to_string()),
        is(
            "every error of a client is explained",
            errors.unknown == 0,
            format!(
                "{} errors: {} by lines of the log, {} by kills, {} unexplained",
                errors.all.len(),
                errors.by_log,
                errors.by_kill,
                errors.unknown + errors.by_reload
            ),
        ),
        is("every record of shared keys verified", failed == 0, format!("{failed} failed")),
        is(
            "the log is whole",
            log.missing_lines() == 0,
            format!("{} lines unreadable or lost", log.missing_lines()),
        ),
        is(
            "every reload read rules and certificates",
            rules as u64 == reloads && certificates as u64 == reloads,
            format!("{reloads} reloads, rules {rules}, certificates {certificates}"),
        ),
    ];
    type Figure = fn(&super::monitor::Sample) -> f64;
    let figures: [(&'static str, Figure, f64); 3] = [
        ("memory is flat", |it| it.resident_bytes as f64, 0.0),
        ("files are flat", |it| it.files as f64, FEW),
        ("threads are flat", |it| it.threads as f64, FEW),
    ];
    for (name, figure, few) in figures {
        let parts: Vec<_> = monitor.lives.iter().filter_map(|it| drift(it, figure)).collect();
        let holds = parts.iter().all(|it| it.last <= it.first * (1.0 + FLAT) + few);
        let found = parts.iter().map(Drift::text).collect::<Vec<_>>().join(", ");
        all.push(Criterion {
            name,
            holds: (!parts.is_empty()).then_some(holds),
            found: if found.is_empty() { "no life was long enough".to_owned() } else { found },
        });
    }
    all
}

/// How a figure has moved in a life.
struct Drift {
    first: f64,
    last: f64,
}

impl Drift {
    fn text(&self) -> String {
        let percent = (self.last / self.first - 1.0) * 100.0;
        match self.first {
            first if first >= 1e6 => {
                format!("{:.1} to {:.1} MB ({percent:+.1} %)", first / 1e6, self.last / 1e6)
            }
            first => format!("{first:.0} to {:.0}", self.last),
        }
    }
}

/// The means of the first window after the warm-up and of the last one; `None` where the two overlap.
fn drift(life: &Life, figure: fn(&super::monitor::Sample) -> f64) -> Option<Drift> {
    let end = life.ended.unwrap_or_else(now);
    let (warm, last) = (life.begun + WARM_UP_SECONDS, end - WINDOW_SECONDS);
    if warm + WINDOW_SECONDS > last {
        return None;
    }
    let mean = |from: f64| {
        let part = life.samples.iter().filter(|it| it.at >= from && it.at <= from + WINDOW_SECONDS);
        let values: Vec<f64> = part.map(figure).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    Some(Drift { first: mean(warm)?, last: mean(last)? })
}

/// Tells the operator.
pub fn print(results: &Results) {
    let begun = results.events.first().map_or(0.0, |event| event.at);
    let transfers = results.transfers;
    println!(
        "\n{:.0} s: {} transfers, {:.2} GB, {} agents ({} killed), {} programs ({} killed)",
        results.seconds,
        transfers.count(),
        transfers.bytes() as f64 / 1e9,
        results.population.agents,
        results.population.agents_killed,
        results.population.programs,
        results.population.programs_killed,
    );
    for (kind, sum) in &transfers.kinds {
        println!(
            "  {kind}: {} transfers, {:.2} GB, the longest {:.1} s",
            sum.transfers,
            sum.bytes as f64 / 1e9,
            sum.longest
        );
    }
    let links = results.links;
    println!("links: {} frames, {} lost, {} late", links.frames, links.lost, links.late);
    for (end, tcp) in ["clients", "servers"].iter().zip(results.tcp) {
        println!(
            "{end}: {} segments, {} sent again, {} timeouts; {} came out of order",
            tcp.segments_sent, tcp.retransmitted, tcp.timeouts, tcp.out_of_order
        );
    }
    results.log.print();
    let mut shown = BTreeMap::<_, usize>::new();
    for judged in &results.errors.all {
        let count = shown.entry(judged.cause.clone()).or_default();
        *count += 1;
        // The file has them all.
        if *count <= 12 {
            let it = &judged.transfer;
            println!(
                "  {:.1} s: {} {} from {}, begun at {:.1} s: {}: {:?}",
                it.ended - begun,
                it.kind,
                it.what,
                it.local,
                it.begun - begun,
                it.error.as_deref().unwrap_or_default(),
                judged.cause
            );
        }
    }
    println!();
    for criterion in results.criteria {
        let verdict = match criterion.holds {
            Some(true) => "holds",
            Some(false) => "FAILS",
            None => "not judged",
        };
        println!("{verdict}: {}: {}", criterion.name, criterion.found);
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Cut;
    use super::*;

    fn error(begun: f64, ended: f64) -> Transfer {
        Transfer {
            kind: "short".to_owned(),
            connected: begun,
            begun,
            ended,
            local: "10.77.0.2:4000".to_owned(),
            what: "1k".to_owned(),
            bytes: 0,
            version: None,
            error: Some("reset".to_owned()),
        }
    }

    #[test]
    fn an_error_is_explained_by_its_own_line_or_a_kill_and_by_no_reload() {
        let at = |at, kind| Event { at, kind };
        let events = [
            at(0.0, Kind::Start),
            at(100.0, Kind::Reload),
            at(200.0, Kind::Kill),
            at(202.0, Kind::Start),
        ];
        let mut log = Log::default();
        let of =
            |client: &str| Cut { at: 50.0, client: client.to_owned(), cause: "why".to_owned() };
        log.cuts.push(of("10.77.0.2:4001"));
        assert_eq!(cause(&error(48.0, 50.0), &log, &events), Cause::Unknown);
        log.cuts.push(of("10.77.0.2:4000"));
        assert_eq!(cause(&error(48.0, 50.0), &log, &events), Cause::Log("why".to_owned()));
        // The port's next owner.
        assert_eq!(cause(&error(60.0, 61.0), &log, &events), Cause::Unknown);
        assert_eq!(cause(&error(90.0, 105.0), &log, &events), Cause::Reload);
        assert_eq!(cause(&error(90.0, 120.0), &log, &events), Cause::Unknown);
        assert_eq!(cause(&error(190.0, 199.0), &log, &events), Cause::Unknown);
        assert_eq!(cause(&error(190.0, 201.0), &log, &events), Cause::Kill);
        assert_eq!(cause(&error(210.0, 231.0), &log, &events), Cause::Kill);
        assert_eq!(cause(&error(210.0, 233.0), &log, &events), Cause::Unknown);
    }
}
