//! What came of the cases: the table in `docs/interoperability.md`, JSON, and the corpus's
//! manifest.
//!
//! Refuses to hide anything: what failed, what did not come about and what was skipped has a
//! line with its reason.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::case::Case;
use super::drive::{Driven, Plaintext};
use super::judge::Seen;
use super::stacks::STACKS;
use super::suite::Version;

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

    fn row(&self) -> String {
        format!(
            "{} | {} | {} | {} | {} | {} | {} | {} | {}",
            self.cases,
            self.ok,
            self.failed + self.not_driven + self.skipped,
            self.sessions,
            self.decrypted,
            self.records,
            self.records_opened,
            self.records_failed,
            self.bytes
        )
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

const HEAD: &str = "cases | ok | not ok | sessions | decrypted | records | opened | failed | bytes";
const RULE: &str = "---:|---:|---:|---:|---:|---:|---:|---:|---:";

impl Report<'_> {
    /// The document.
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        let t = &self.totals;
        let _ = write!(
            text,
            "# Interoperability\n\n\
             Written by `make interop` on {}, commit {}, in {} s. Do not edit.\n\n\
             Real TLS stacks talk to each other over a veth bridge in network namespaces. The packets are\n\
             captured, one side's key log is kept, and `mmtls read` gets both. A case is **ok** when every\n\
             session was seen with the version, suite, resumption and HelloRetryRequest that the case is\n\
             about, every one was decrypted, no record failed, nothing was reported as an anomaly, and both\n\
             decrypted streams equal byte for byte what the two programs sent and received. Records are\n\
             protected records; *records* passed, *opened* were asked for by the application, *failed* did\n\
             not authenticate. What does not come about is listed below with its reason, never left out.\n\n\
             **{} cases: {} ok, {} failed, {} not driven, {} skipped. {} sessions, {} decrypted,\n\
             {} records passed, {} opened, {} failed, {} bytes of content.**\n\n",
            self.date,
            self.commit,
            self.seconds,
            t.cases,
            t.ok,
            t.failed,
            t.not_driven,
            t.skipped,
            t.sessions,
            t.decrypted,
            t.records,
            t.records_opened,
            t.records_failed,
            t.bytes
        );
        text.push_str("## Stacks\n\n| stack | version |\n|---|---|\n");
        for stack in self.stacks {
            let _ = match &stack.missing {
                None => writeln!(text, "| {} | {} |", stack.name, stack.version),
                Some(reason) => writeln!(text, "| {} | **skipped**: {reason} |", stack.name),
            };
        }
        self.pairs(&mut text);
        self.table(&mut text, "Features", "version | feature", |it| {
            vec![it.version.clone(), it.feature.to_owned()]
        });
        self.table(&mut text, "Suites", "version | suite", |it| {
            let suites = it.seen.as_ref().map(|seen| seen.suites.join(", "));
            vec![it.version.clone(), suites.or(it.suite.clone()).unwrap_or("none".to_owned())]
        });
        self.table(&mut text, "Everything", "client | server | version | feature", |it| {
            vec![
                it.client.to_owned(),
                it.server.to_owned(),
                it.version.clone(),
                it.feature.to_owned(),
            ]
        });
        self.not_ok(&mut text);
        text
    }

    fn pairs(&self, text: &mut String) {
        text.push_str(
            "\n## Pairs\n\nCases that are ok, of all. Rows are clients, columns servers.\n",
        );
        for version in Version::BOTH {
            // Not each stack takes part in each run: some are for the private tag alone.
            let takes_part = |name: &&str| {
                self.outcomes.iter().any(|it| it.client == *name || it.server == *name)
            };
            let servers: Vec<&str> =
                STACKS.iter().map(|stack| stack.name).filter(takes_part).collect();
            let _ = write!(text, "\n| {version} | {} |\n|---|", servers.join(" | "));
            let _ = writeln!(text, "{}", "---:|".repeat(servers.len()));
            for client in &servers {
                let _ = write!(text, "| **{client}** |");
                for server in &servers {
                    let totals = Totals::of(self.outcomes.iter().filter(|it| {
                        it.client == *client && it.server == *server && it.case.version == version
                    }));
                    let _ = match totals.cases {
                        0 => write!(text, " – |"),
                        _ => write!(text, " {}/{} |", totals.ok, totals.cases),
                    };
                }
                text.push('\n');
            }
        }
    }

    fn table(
        &self,
        text: &mut String,
        title: &str,
        columns: &str,
        key: impl Fn(&Outcome) -> Vec<String>,
    ) {
        let mut groups: BTreeMap<Vec<String>, Totals> = BTreeMap::new();
        for outcome in self.outcomes {
            groups.entry(key(outcome)).or_default().add(outcome);
        }
        let names = "---|".repeat(columns.split('|').count());
        let _ = writeln!(text, "\n## {title}\n\n| {columns} | {HEAD} |\n|{names}{RULE}|");
        for (key, totals) in groups {
            let _ = writeln!(text, "| {} | {} |", key.join(" | "), totals.row());
        }
    }

    fn not_ok(&self, text: &mut String) {
        let kinds = [
            (Verdict::Failed, "Failed"),
            (Verdict::NotDriven, "Not driven: the stacks did not talk"),
            (Verdict::Skipped, "Skipped"),
        ];
        for (verdict, title) in kinds {
            let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for outcome in self.outcomes.iter().filter(|it| it.verdict == verdict) {
                reasons.entry(outcome.reasons.join("; ")).or_default().push(&outcome.id);
            }
            if reasons.is_empty() {
                continue;
            }
            let _ = writeln!(text, "\n## {title}\n");
            for (reason, ids) in reasons {
                let shown = ids.iter().take(6).map(|id| format!("`{id}`")).collect::<Vec<_>>();
                let more = ids.len().saturating_sub(shown.len());
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let _ = writeln!(text, "* {reason}: {}{more}", shown.join(", "));
            }
        }
    }
}
