//! Cases against targets: over the bridge and through mmTLS, judged, confirmed and made small.
//!
//! Refuses to call anything an escape that does not happen twice.

use std::net::SocketAddr;
use std::sync::Arc;

use super::attack::Outcome;
use super::lane::Lane;
use super::script::Case;
use super::tls::Settings;
use super::victims::{self, Victim};

/// Whom an attack is against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A server of this name; the attacker is the client.
    Server(&'static str),
    /// A client; the attacker is the server.
    Client(Victim),
}

impl Target {
    /// In reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Server(name) => name,
            Self::Client(victim) => victim.name(),
        }
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
    /// The attacker's own address in the run through mmTLS, to find it in `eve.json`.
    pub local: Option<SocketAddr>,
}

/// Clients with a process of their own, at a time and lane.
const PROCESSES: usize = 6;

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
        let mut results: Vec<Judged> = plain
            .into_iter()
            .zip(guarded?)
            .map(|((bridge, _), (through, local))| {
                let verdict = match (bridge.is_success(), through.is_success()) {
                    (_, true) => Verdict::Escaped,
                    (true, false) => Verdict::Held,
                    (false, false) => Verdict::Refused,
                };
                Judged { verdict, bridge, through, local }
            })
            .collect();
        // Some attacks are races, and a busy machine makes others fail over the bridge.
        let again: Vec<usize> =
            (0..trials.len()).filter(|at| results[*at].verdict == Verdict::Escaped).collect();
        let repeated: Vec<Trial> = again.iter().map(|at| trials[*at].clone()).collect();
        for (at, (outcome, _)) in again.into_iter().zip(self.run(self.guarded, &repeated)?) {
            if !outcome.is_success() {
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
            let escaped = shorter.iter().zip(outcomes).find(|(_, it)| it.0.is_success());
            match escaped {
                Some((trial, _)) => best = Case::clone(&trial.case),
                None => break,
            }
        }
        Ok(best)
    }

    fn run(
        &self,
        lane: &Lane,
        trials: &[Trial],
    ) -> Result<Vec<(Outcome, Option<SocketAddr>)>, String> {
        let mut outcomes = vec![(Outcome::Silent, None); trials.len()];
        let mut places = vec![];
        let mut jobs = vec![];
        // Those in this process, and those that are processes, of which few at a time are enough to
        // keep a small machine busy.
        let mut meetings = [vec![], vec![]];
        let mut victims = [vec![], vec![]];
        for (at, trial) in trials.iter().enumerate() {
            match trial.target {
                Target::Server(server) => {
                    let job = lane.job(&trial.case, &at.to_string(), server, trial.v6);
                    outcomes[at].1 = Some(job.local);
                    jobs.push(job);
                    places.push(at);
                }
                Target::Client(victim) => {
                    let kind = usize::from(victim != Victim::Rustls);
                    meetings[kind].push((Arc::clone(&trial.case), victim, trial.v6));
                    victims[kind].push(at);
                }
            }
        }
        let (answers, met, others) = std::thread::scope(|scope| {
            let answers = scope.spawn(|| lane.client_side.run(jobs, self.parallel));
            let threads = self.parallel.div_ceil(5);
            let met = victims::run(lane, self.settings, &meetings[0], threads);
            let others = victims::run(lane, self.settings, &meetings[1], PROCESSES);
            (answers.join(), met, others)
        });
        let answers = answers.map_err(|_| "a thread has panicked")??;
        let [one, other] = victims;
        let met = one.into_iter().zip(met?).chain(other.into_iter().zip(others?));
        for (at, outcome) in places.into_iter().zip(answers).chain(met) {
            outcomes[at].0 = outcome;
        }
        Ok(outcomes)
    }
}
