//! Cases against targets: over the bridge and through mmTLS, judged, confirmed and made small.
//!
//! Refuses to call anything an escape that does not happen twice.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::attack::Outcome;
use super::lane::Lane;
use super::peers;
use super::script::Case;
use super::station::Job;
use super::tls::Settings;
use super::victims::{self, Victim};

/// Whom an attack is against, and whether TLS 1.2 is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A server of this name; the attacker is the client.
    Server(&'static str, bool),
    /// A client; the attacker is the server.
    Client(Victim, bool),
}

impl Target {
    /// In reports.
    pub fn name(self) -> String {
        let (name, tls12) = match self {
            Self::Server(name, tls12) => (name, tls12),
            Self::Client(victim, tls12) => (victim.name(), tls12),
        };
        format!("{name}{}", if tls12 { " 1.2" } else { "" })
    }

    fn is_tls12(self) -> bool {
        matches!(self, Self::Server(_, true) | Self::Client(_, true))
    }
}

/// One case against one target.
#[derive(Clone, Debug)]
pub struct Trial {
    pub name: String,
    pub case: Arc<Case>,
    pub target: Target,
    pub v6: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It works without mmTLS and not with it.
    Held,
    /// Its own peer does not put up with it.
    Refused,
    /// It gets through.
    Escaped,
}

impl Verdict {
    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Refused => "refused by peer",
            Self::Escaped => "ESCAPED",
        }
    }
}

/// A trial's verdict and the outcomes that it rests on.
#[derive(Clone, Debug)]
pub struct Judged {
    pub verdict: Verdict,
    pub bridge: Outcome,
    pub through: Outcome,
    /// The server's application got the request, though no response came.
    pub asked: bool,
    /// The attacker's own address in the run through mmTLS, to find it in `eve.json`.
    pub local: Option<SocketAddr>,
}

/// Clients with a process of their own, at a time and lane.
const PROCESSES: usize = 6;

/// Servers that connect, at a time and lane.
const CALLS: usize = 40;

/// The two lanes, and how many attacks run at a time in each.
#[derive(Clone, Copy)]
pub struct Arena<'a> {
    pub plain: &'a Lane,
    pub guarded: &'a Lane,
    pub settings: &'a Settings,
    pub parallel: usize,
}

impl Arena<'_> {
    /// Runs trials in both lanes at once.
    pub fn judge(&self, trials: &[Trial]) -> Result<Vec<Judged>, String> {
        let (plain, guarded) = std::thread::scope(|scope| {
            let plain = scope.spawn(|| self.run(self.plain, trials));
            let guarded = self.run(self.guarded, trials);
            (plain.join(), guarded)
        });
        let plain = plain.map_err(|_| "a thread has panicked")??;
        let asked = self.guarded.asked();
        let mut results: Vec<Judged> = plain
            .into_iter()
            .zip(guarded?)
            .map(|(one, other)| {
                let (bridge, through) = (one.outcome, other.outcome);
                let escaped = through.is_success() || asked.contains(&other.name);
                let verdict = match (bridge.is_success(), escaped) {
                    (_, true) => Verdict::Escaped,
                    (true, false) => Verdict::Held,
                    (false, false) => Verdict::Refused,
                };
                let asked = asked.contains(&other.name);
                Judged { verdict, bridge, through, asked, local: other.local }
            })
            .collect();
        // Some attacks are races, and a busy machine makes others fail over the bridge.
        let again: Vec<usize> =
            (0..trials.len()).filter(|at| results[*at].verdict == Verdict::Escaped).collect();
        let repeated: Vec<Trial> = again.iter().map(|at| trials[*at].clone()).collect();
        for (at, run) in again.into_iter().zip(self.run(self.guarded, &repeated)?) {
            if !run.outcome.is_success() && !results[at].asked {
                // Once is enough for an attacker, but it is to be told from what always works.
                results[at].through = Outcome::Response("now and then".to_owned());
            }
        }
        Ok(results)
    }

    /// The shortest case that still escapes, found by leaving out one thing after the other.
    pub fn minimise(&self, trial: &Trial) -> Result<Case, String> {
        let mut best = Case::clone(&trial.case);
        for _ in 0..40 {
            let shorter: Vec<Trial> = best
                .shorter()
                .into_iter()
                .map(|case| Trial { case: Arc::new(case), ..trial.clone() })
                .collect();
            let outcomes = self.run(self.guarded, &shorter)?;
            let escaped = shorter.iter().zip(outcomes).find(|(_, it)| it.outcome.is_success());
            match escaped {
                Some((trial, _)) => best = Case::clone(&trial.case),
                None => break,
            }
        }
        Ok(best)
    }

    fn run(&self, lane: &Lane, trials: &[Trial]) -> Result<Vec<Done>, String> {
        let silent = Done { outcome: Outcome::Silent, local: None, name: String::new() };
        let mut outcomes = vec![silent; trials.len()];
        let mut places = vec![];
        let mut jobs = vec![];
        let mut calls = vec![];
        // Those in this process, and those that are processes, of which few at a time are enough to
        // keep a small machine busy.
        let mut meetings = [vec![], vec![]];
        let mut victims = [vec![], vec![]];
        for (at, trial) in trials.iter().enumerate() {
            let mut case = Arc::clone(&trial.case);
            if trial.target.is_tls12() && !case.tls12 {
                Arc::make_mut(&mut case).tls12 = true;
            }
            match trial.target {
                Target::Server(server, tls12) => {
                    let server = peers::address(server, tls12, trial.v6);
                    let job = lane.job(&case, server)?;
                    outcomes[at].local = Some(job.local);
                    outcomes[at].name.clone_from(&job.name);
                    if case.listens() {
                        calls.push((at, job, server));
                    } else {
                        jobs.push(job);
                        places.push(at);
                    }
                }
                Target::Client(victim, _) => {
                    let kind = usize::from(victim != Victim::Rustls);
                    meetings[kind].push((case, victim, trial.v6));
                    victims[kind].push(at);
                }
            }
        }
        let (answers, called, met, others) = std::thread::scope(|scope| {
            let answers = scope.spawn(|| lane.client_side.run(jobs, self.parallel));
            let called = scope.spawn(|| call(lane, &calls));
            let threads = self.parallel.div_ceil(5);
            let met = victims::run(lane, self.settings, &meetings[0], threads);
            let others = victims::run(lane, self.settings, &meetings[1], PROCESSES);
            (answers.join(), called.join(), met, others)
        });
        let answers = answers.map_err(|_| "a thread has panicked")??;
        let called = called.map_err(|_| "a thread has panicked")??;
        let [one, other] = victims;
        let met = one.into_iter().zip(met?).chain(other.into_iter().zip(others?));
        for (at, outcome) in places.into_iter().zip(answers).chain(met).chain(called) {
            outcomes[at].outcome = outcome;
        }
        Ok(outcomes)
    }
}

/// One attack in one lane.
#[derive(Clone)]
struct Done {
    outcome: Outcome,
    local: Option<SocketAddr>,
    /// What it asked for.
    name: String,
}

/// Attackers that wait for a server to connect: number, job, server.
fn call(lane: &Lane, calls: &[(usize, Job, SocketAddr)]) -> Result<Vec<(usize, Outcome)>, String> {
    let mut all = vec![];
    for some in calls.chunks(CALLS) {
        let mut replies = vec![];
        for (at, job, _) in some {
            replies.push((*at, lane.client_side.submit(job.clone())?));
        }
        // The orders must be there before the SYNs are.
        std::thread::sleep(Duration::from_millis(10));
        for (_, job, server) in some {
            lane.fronts.call(job.local, *server);
        }
        for (at, reply) in replies {
            let outcome = reply.recv_timeout(Duration::from_secs(70));
            all.push((at, outcome.map_or(Outcome::Silent, |it| it.1)));
        }
    }
    Ok(all)
}
