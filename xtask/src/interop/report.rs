//! What came of the cases: outcomes and their sums, JSON, and the corpus's manifest.
//!
//! Refuses to count a case twice: each has one verdict.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::case::Case;
use super::drive::{Driven, Plaintext};
use super::judge::Seen;
use super::stacks::STACKS;

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Everything as it must be.
    Ok,
    /// mmTLS did not do what it must.
    Failed,
    /// The stacks did not talk, so there was nothing to judge.
    NotDriven,
    /// A stack is not installed, or nobody logs keys.
    Skipped,
}

impl Verdict {
    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::NotDriven => "not driven",
            Self::Skipped => "skipped",
        }
    }
}

/// A case with its end.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub id: String,
    pub client: &'static str,
    pub server: &'static str,
    pub version: String,
    pub suite: Option<String>,
    pub feature: &'static str,
    pub verdict: Verdict,
    pub reasons: Vec<String>,
    pub seen: Option<Seen>,
    #[serde(skip)]
    pub case: Case,
}

impl Outcome {
    /// An outcome without a judgement.
    pub fn new(id: String, case: Case, verdict: Verdict, reason: Option<String>) -> Self {
        Self {
            id,
            client: STACKS[case.client].name,
            server: STACKS[case.server].name,
            version: case.version.to_string(),
            suite: case.suite.map(|suite| suite.iana()),
            feature: case.feature.name(),
            verdict,
            reasons: reason.into_iter().collect(),
            seen: None,
            case,
        }
    }
}

/// Sums of outcomes.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Totals {
    pub cases: u64,
    pub ok: u64,
    pub failed: u64,
    pub not_driven: u64,
    pub skipped: u64,
    pub sessions: u64,
    pub decrypted: u64,
    pub records: u64,
    pub records_opened: u64,
    pub records_failed: u64,
    pub bytes: u64,
}

impl Totals {
    /// Adds one outcome.
    pub fn add(&mut self, outcome: &Outcome) {
        self.cases += 1;
        *match outcome.verdict {
            Verdict::Ok => &mut self.ok,
            Verdict::Failed => &mut self.failed,
            Verdict::NotDriven => &mut self.not_driven,
            Verdict::Skipped => &mut self.skipped,
        } += 1;
        if let Some(seen) = &outcome.seen {
            self.sessions += seen.sessions;
            self.decrypted += seen.decrypted;
            self.records += seen.records;
            self.records_opened += seen.opened;
            self.records_failed += seen.failed;
            self.bytes += seen.bytes;
        }
    }

    /// Of some outcomes.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let mut totals = Self::default();
        outcomes.into_iter().for_each(|outcome| totals.add(outcome));
        totals
    }

    /// Sessions, those decrypted, records, those opened, those that failed, and bytes.
    pub fn seen(&self) -> [u64; 6] {
        [
            self.sessions,
            self.decrypted,
            self.records,
            self.records_opened,
            self.records_failed,
            self.bytes,
        ]
    }
}

/// One capture of the corpus.
#[derive(Debug, Serialize)]
pub struct CorpusEntry {
    pub id: String,
    pub capture: PathBuf,
    pub keylog: PathBuf,
    pub keylog_of: &'static str,
    pub client: &'static str,
    pub server: &'static str,
    pub version: String,
    pub suites: Vec<String>,
    pub feature: &'static str,
    pub verdict: Verdict,
    /// In the order of the connections.
    pub client_randoms: Vec<String>,
    pub sessions: Vec<Plaintext>,
}

impl CorpusEntry {
    /// The entry of a judged case.
    pub fn new(outcome: &Outcome, driven: Driven, capture: PathBuf) -> Self {
        let seen = outcome.seen.clone().unwrap_or_default();
        Self {
            id: outcome.id.clone(),
            capture,
            keylog: driven.keylog,
            keylog_of: driven.keylog_of.name(),
            client: outcome.client,
            server: outcome.server,
            version: outcome.version.clone(),
            suites: seen.suites,
            feature: outcome.feature,
            verdict: outcome.verdict,
            client_randoms: seen.client_randoms,
            sessions: driven.sessions,
        }
    }
}

/// A stack of the run.
#[derive(Debug, Serialize)]
pub struct StackFacts {
    pub name: &'static str,
    pub version: String,
    /// Why it was not there.
    pub missing: Option<String>,
}

/// Everything about a run.
#[derive(Serialize)]
pub struct Report<'a> {
    pub date: String,
    pub commit: String,
    pub seconds: u64,
    pub quick: bool,
    pub totals: Totals,
    pub stacks: &'a [StackFacts],
    pub outcomes: &'a [Outcome],
}

/// Writes a value as JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    fs::write(path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))
}
