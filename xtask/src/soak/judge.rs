//! The verdict: sessions are decrypted after reloads, too; every error of a client has a cause, and no cut is one.
//!
//! Refuses to explain content that was not sent.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Results;
use super::drift::flat;
use super::log::Log;
use super::monitor::{Event, Kind, Life};
use super::transfers::{Transfer, Transfers};

/// A kill explains errors for so long after the start that follows.
const KILL_SECONDS: f64 = 30.0;
/// A cut that comes so soon after a reload is the reload's, and so is an error that nothing explains.
const RELOAD_SECONDS: f64 = 10.0;
/// Clocks of a line of the log and of a client's error may be so far apart: a client notices when it reads again.
const LOG_SECONDS: f64 = 10.0;
/// Of sessions whose programs share keys; the others lose their agent, which is killed, or begin while the monitor is away.
const DECRYPTED: f64 = 0.95;
/// Why a client saw an error.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A line of the log says why the monitor cut it, which it should not have.
    Log(String),
    /// The monitor was away, or just back.
    Kill,
    /// None other than a reload at that time, whether or not the log tells a cut.
    Reload,
    /// None, or what no cut, kill or reload explains: content that was not sent.
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
    /// Lines of the log about cuts that no kill explains, whether or not a client saw an error.
    pub cuts: usize,
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
            cuts: log.cuts.iter().filter(|it| !is_of_kill(it.at, events)).count(),
            all,
        }
    }
}

/// Whether the monitor was away at that time, or just back.
fn is_of_kill(at: f64, events: &[Event]) -> bool {
    let back = |kill: &Event| {
        let next = events.iter().find(|it| it.kind == Kind::Start && it.at > kill.at);
        next.map_or(f64::INFINITY, |start| start.at)
    };
    let mut kills = events.iter().filter(|it| it.kind == Kind::Kill);
    kills.any(|kill| at >= kill.at && at <= back(kill) + KILL_SECONDS)
}

/// Whether a reload was just before.
fn is_of_reload(at: f64, events: &[Event]) -> bool {
    let mut reloads = events.iter().filter(|it| it.kind == Kind::Reload);
    reloads.any(|it| at >= it.at && at <= it.at + RELOAD_SECONDS)
}

fn cause(transfer: &Transfer, log: &Log, events: &[Event]) -> Cause {
    if transfer.corrupt {
        return Cause::Unknown;
    }
    let cut = log.cuts.iter().find(|cut| {
        cut.client == transfer.local
            && cut.at >= transfer.connected - 1.0
            && cut.at <= transfer.ended + LOG_SECONDS
    });
    match cut {
        Some(cut) if !is_of_kill(cut.at, events) && is_of_reload(cut.at, events) => Cause::Reload,
        Some(cut) => Cause::Log(cut.cause.clone()),
        None if is_of_kill(transfer.ended, events) => Cause::Kill,
        None if is_of_reload(transfer.ended, events) => Cause::Reload,
        None => Cause::Unknown,
    }
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
    lives: &[Life],
    outcome: Result<(), String>,
) -> Vec<Criterion> {
    let is = |name, holds, found: String| Criterion { name, holds: Some(holds), found };
    let failed = log.counter("records_failed");
    let mut all = vec![
        is(
            "the run went to its end, and nothing ended by itself or with an error",
            outcome.is_ok(),
            outcome.err().unwrap_or_default(),
        ),
        is(
            "there was load",
            transfers.count() > 100 && transfers.bad_lines == 0,
            format!("{} transfers, {} bad lines", transfers.count(), transfers.bad_lines),
        ),
        decrypted(log),
        is("no session was cut by a reload", errors.by_reload == 0, errors.by_reload.to_string()),
        is(
            "the monitor cut nothing, but for kills",
            errors.cuts == 0,
            format!("{} of {} lines about cuts", errors.cuts, log.cuts.len()),
        ),
        is(
            "every error of a client is explained",
            errors.unknown == 0,
            format!(
                "{} errors: {} by lines of the log, {} by kills, {} unexplained, of which content that was not sent {}",
                errors.all.len(),
                errors.by_log,
                errors.by_kill,
                errors.unknown + errors.by_reload,
                errors.all.iter().filter(|it| it.transfer.corrupt).count(),
            ),
        ),
        is("every record of shared keys verified", failed == 0, format!("{failed} failed")),
        is(
            "the log is whole",
            log.missing_lines() == 0,
            format!("{} lines unreadable or lost", log.missing_lines()),
        ),
    ];
    all.extend(reloaded(log, lives));
    all.extend(flat(lives));
    all
}

/// A transfer that is forwarded without keys is as whole as any: only the log tells.
fn decrypted(log: &Log) -> Criterion {
    let [sharing, decrypted] = log.sharing();
    Criterion {
        name: "sessions of those who share keys were decrypted",
        holds: Some(sharing > 0 && decrypted as f64 >= sharing as f64 * DECRYPTED),
        found: format!("{decrypted} of {sharing}"),
    }
}

/// What the monitor says of reloads, and what came of them.
fn reloaded(log: &Log, lives: &[Life]) -> [Criterion; 2] {
    let reloads: u64 = lives.iter().map(|life| life.reloads).sum();
    let told = |which: usize| lives.iter().map(|life| life.reloads_told[which]).sum::<usize>();
    let [rules, certificates] = [told(0), told(1)];
    let alerts: Vec<_> = log.alerts.iter().map(|(rev, count)| format!("{rev}: {count}")).collect();
    [
        Criterion {
            name: "every reload read rules and certificates",
            holds: Some(rules as u64 == reloads && certificates as u64 == reloads),
            found: format!("{reloads} reloads, rules {rules}, certificates {certificates}"),
        },
        Criterion {
            name: "rules of both versions matched",
            // With fewer, one of them may have been in force too shortly.
            holds: (reloads >= 2)
                .then(|| ["1", "2"].iter().all(|rev| log.alerts.contains_key(*rev))),
            found: format!("alerts by version: {}", alerts.join(", ")),
        },
    ]
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
            corrupt: false,
        }
    }

    fn at(at: f64, kind: Kind) -> Event {
        Event { at, kind }
    }

    fn cut(at: f64, client: &str) -> Cut {
        Cut { at, client: client.to_owned(), cause: "why".to_owned() }
    }

    fn life(reloads: u64) -> Life {
        let told = [reloads as usize; 2];
        Life { begun: 0.0, ended: None, reloads, reloads_told: told, samples: Vec::new() }
    }

    fn errors(log: &Log, events: &[Event], of: Vec<Transfer>) -> Errors {
        let mut transfers = Transfers::new("/nonexistent".as_ref());
        transfers.errors = of;
        Errors::judge(&transfers, log, events)
    }

    /// What is found of a criterion, by the beginning of its name.
    fn verdict(log: &Log, events: &[Event], lives: &[Life], name: &str) -> Option<bool> {
        let errors = errors(log, events, Vec::new());
        let transfers = Transfers::new("/nonexistent".as_ref());
        let all = criteria(&errors, &transfers, log, lives, Ok(()));
        all.iter().find(|it| it.name.starts_with(name)).unwrap().holds
    }

    #[test]
    fn sessions_that_nobody_decrypts_fail_the_run_although_they_pass() {
        let judged = |outcomes: &[(&str, u64)]| {
            let outcomes = outcomes.iter().map(|(name, count)| ((*name).to_owned(), *count));
            let mut log = Log::default();
            log.outcomes.extend(outcomes);
            verdict(&log, &[], &[], "sessions of those who share keys")
        };
        let others = [("sharing: exempt", 500), ("without keys: missing_key", 500)];
        let with = |more: &[(&'static str, u64)]| judged(&[&others, more].concat());
        assert_eq!(with(&[("sharing: decrypted", 98), ("sharing: missing_key", 2)]), Some(true));
        assert_eq!(with(&[("sharing: decrypted", 94), ("sharing: missing_key", 6)]), Some(false));
        assert_eq!(with(&[("sharing: missing_key", 100)]), Some(false));
        assert_eq!(with(&[]), Some(false));
    }

    #[test]
    fn rules_of_both_versions_must_match_once_there_were_two_reloads() {
        let judged = |revisions: &[&str], reloads: &[u64]| {
            let mut log = Log::default();
            log.alerts.extend(revisions.iter().map(|it| ((*it).to_owned(), 7)));
            let lives: Vec<Life> = reloads.iter().map(|it| life(*it)).collect();
            verdict(&log, &[], &lives, "rules of both versions")
        };
        assert_eq!(judged(&["1", "2"], &[1, 1]), Some(true));
        assert_eq!(judged(&["1"], &[1, 1]), Some(false));
        assert_eq!(judged(&["2"], &[3]), Some(false));
        assert_eq!(judged(&["1"], &[1]), None);
    }

    #[test]
    fn a_cut_that_the_log_tells_is_the_reloads_where_one_was_just_before() {
        let events = [
            at(0.0, Kind::Start),
            at(100.0, Kind::Reload),
            at(200.0, Kind::Kill),
            at(202.0, Kind::Start),
            at(205.0, Kind::Reload),
        ];
        let judged = |seconds: f64| {
            let mut log = Log::default();
            log.cuts.push(cut(seconds, "10.77.0.2:4000"));
            let cause = cause(&error(seconds - 10.0, seconds), &log, &events);
            (cause, verdict(&log, &events, &[], "the monitor cut nothing"))
        };
        assert_eq!(judged(50.0), (Cause::Log("why".to_owned()), Some(false)));
        assert_eq!(judged(104.0), (Cause::Reload, Some(false)));
        assert_eq!(judged(150.0), (Cause::Log("why".to_owned()), Some(false)));
        assert_eq!(judged(207.0), (Cause::Log("why".to_owned()), Some(true)));
        assert_eq!(verdict(&Log::default(), &events, &[], "the monitor cut nothing"), Some(true));
    }

    #[test]
    fn content_that_was_not_sent_is_explained_by_nothing() {
        let events = [at(0.0, Kind::Start), at(200.0, Kind::Kill), at(202.0, Kind::Start)];
        let mut log = Log::default();
        log.cuts.extend([cut(50.0, "10.77.0.2:4000"), cut(201.0, "10.77.0.2:4000")]);
        for seconds in [50.0, 201.0, 210.0] {
            let whole = error(seconds - 10.0, seconds);
            let corrupt = Transfer { corrupt: true, ..whole.clone() };
            assert_ne!(cause(&whole, &log, &events), Cause::Unknown, "{seconds}");
            assert_eq!(cause(&corrupt, &log, &events), Cause::Unknown, "{seconds}");
            assert_eq!(errors(&log, &events, vec![corrupt]).unknown, 1);
        }
    }

    #[test]
    fn an_error_is_explained_by_its_own_line_or_a_kill_and_by_no_reload() {
        let events = [
            at(0.0, Kind::Start),
            at(100.0, Kind::Reload),
            at(200.0, Kind::Kill),
            at(202.0, Kind::Start),
        ];
        let mut log = Log::default();
        log.cuts.push(cut(50.0, "10.77.0.2:4001"));
        assert_eq!(cause(&error(48.0, 50.0), &log, &events), Cause::Unknown);
        log.cuts.push(cut(50.0, "10.77.0.2:4000"));
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
