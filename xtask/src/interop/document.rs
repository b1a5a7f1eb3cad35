//! The document of a run, `docs/interoperability.md`, and the matrix beside it as CSV.
//!
//! Refuses to hide anything: what failed, what did not come about and what was skipped has a line with its reason, and
//! never looks like a count of zero.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::report::{Outcome, Report, Totals, Verdict};
use super::suite::Version;

/// Cases that a reason names; the matrix has the others.
const NAMED_CASES: usize = 2;

/// What is counted of cases that were driven.
const COUNTS: &str = "cases,sessions,decrypted,records,records_opened,records_failed,bytes,reason";

/// Writes the document, and beside it the matrix and the suites.
pub fn write(report: &Report<'_>, document: &Path) -> Result<Vec<PathBuf>, String> {
    let stem = document.file_stem().unwrap_or_default().to_string_lossy();
    let matrix = document.with_extension("csv");
    let suites = document.with_file_name(format!("{stem}-suites.csv"));
    let files = [
        (document.to_owned(), report.markdown(&file_name(&matrix), &file_name(&suites))),
        (matrix, report.matrix()),
        (suites, report.suites()),
    ];
    let mut written = Vec::new();
    for (path, text) in files {
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        written.push(path);
    }
    Ok(written)
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

impl Report<'_> {
    /// The page, which links to the matrix and to the suites.
    pub fn markdown(&self, matrix: &str, suites: &str) -> String {
        let mut text = String::new();
        let t = &self.totals;
        let _ = write!(
            text,
            "# Interoperability\n\n\
             Written by `make interop` on {}, commit {}, in {} s. Do not edit.\n\n\
             Real TLS stacks talk to each other in network namespaces: each as client with each as server, in TLS 1.2 and 1.3,\n\
             with the features that both have; each with itself, OpenSSL and GnuTLS also with every suite. `mmtls read` gets the\n\
             packets and one side's key log. The endpoints are small programs on the stacks' libraries\n\
             ([`xtask/interop`](../xtask/interop/README.md)); Chromium is itself.\n\n\
             A case is **ok** when every session had the version, suite, resumption and HelloRetryRequest that the case is about,\n\
             was decrypted without a failed record or an anomaly, and both streams equal byte for byte what the two programs sent\n\
             and received. What cannot come about, or what nobody logs keys of, is **skipped**, with its reason. The run\n\
             fails where mmTLS does not follow a case (failed), or one that should come about does not (not driven).\n\n\
             **{} cases: {} ok, {} failed, {} not driven, {} skipped. {} sessions, {} decrypted;\n\
             {} protected records, {} opened, {} failed; {} bytes of content.**\n\n\
             * [{matrix}]({matrix}): the matrix by client, server, version and feature.\n\
             * [{suites}]({suites}): the same cases by cipher suite.\n\n\
             In both, `records` are protected records that passed, `records_opened` were asked for by the application, and\n\
             `records_failed` did not authenticate.\n\n",
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
        self.stacks_table(&mut text);
        self.features(&mut text);
        self.not_ok(&mut text);
        text
    }

    /// Every client, server, version and feature.
    pub fn matrix(&self) -> String {
        self.csv("client,server,version,feature", |it| {
            vec![
                it.client.to_owned(),
                it.server.to_owned(),
                it.version.clone(),
                it.feature.to_owned(),
            ]
        })
    }

    /// Every suite that was negotiated, or asked for.
    pub fn suites(&self) -> String {
        self.csv("version,suite", |it| {
            let suites = it.seen.as_ref().map(|seen| seen.suites.join(" "));
            vec![it.version.clone(), suites.or(it.suite.clone()).unwrap_or("any".to_owned())]
        })
    }

    fn csv(&self, columns: &str, key: impl Fn(&Outcome) -> Vec<String>) -> String {
        let mut groups: BTreeMap<(Vec<String>, Verdict, String), Totals> = BTreeMap::new();
        for outcome in self.outcomes {
            let group = (key(outcome), outcome.verdict, outcome.reasons.join("; "));
            groups.entry(group).or_default().add(outcome);
        }
        let mut text = format!("{columns},result,{COUNTS}\n");
        for ((key, verdict, reason), totals) in groups {
            let mut fields = key;
            fields.push(verdict.name().to_owned());
            fields.push(totals.cases.to_string());
            fields.extend(match verdict {
                Verdict::Ok | Verdict::Failed => totals.seen().map(|count| count.to_string()),
                // Nothing was there to be counted, which is not the same as none.
                Verdict::NotDriven | Verdict::Skipped => Default::default(),
            });
            fields.push(reason);
            let fields: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
            let _ = writeln!(text, "{}", fields.join(","));
        }
        text
    }

    fn stacks_table(&self, text: &mut String) {
        text.push_str(
            "## Stacks\n\nCases in which the stack is client or server; a stack with itself counts as both.\n\n\
             | stack | version | TLS 1.3 client | TLS 1.3 server | TLS 1.2 client | TLS 1.2 server |\n\
             |---|---|---|---|---|---|\n",
        );
        for stack in self.stacks {
            if let Some(reason) = &stack.missing {
                let _ = writeln!(text, "| {} | **skipped**: {reason} | | | | |", stack.name);
                continue;
            }
            let count = |version: Version, name: fn(&Outcome) -> &'static str| {
                let fits = |it: &&Outcome| name(it) == stack.name && it.case.version == version;
                cell(&Totals::of(self.outcomes.iter().filter(fits)))
            };
            let cells = [Version::V13, Version::V12].map(|version| {
                format!("{} | {}", count(version, |it| it.client), count(version, |it| it.server))
            });
            let _ =
                writeln!(text, "| {} | {} | {} |", stack.name, stack.version, cells.join(" | "));
        }
    }

    fn features(&self, text: &mut String) {
        let names: BTreeSet<&str> = self.outcomes.iter().map(|it| it.feature).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let _ = writeln!(text, "\nFeatures of the cases: {}.", names.join(", "));
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
                if verdict == Verdict::Skipped {
                    // The matrix names them.
                    let _ = writeln!(text, "* {} of: {reason}", ids.len());
                    continue;
                }
                let named: Vec<String> =
                    ids.iter().take(NAMED_CASES).map(|id| format!("`{id}`")).collect();
                let more = ids.len() - named.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let _ = writeln!(text, "* {reason}: {}{more}", named.join(", "));
            }
        }
    }
}

/// Counts of a table's cell: `12 ok, 3 skipped`.
fn cell(totals: &Totals) -> String {
    let counts = [
        (totals.ok, "ok"),
        (totals.failed, "**failed**"),
        (totals.not_driven, "**not driven**"),
        (totals.skipped, "skipped"),
    ];
    let some = counts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = some.map(|(count, name)| format!("{count} {name}")).collect();
    if parts.is_empty() { "–".to_owned() } else { parts.join(", ") }
}

/// A field of a CSV line (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::case::{Case, Feature};
    use super::super::judge::Seen;
    use super::super::report::StackFacts;
    use super::super::stacks::STACKS;
    use super::*;

    fn outcome(feature: Feature, verdict: Verdict, reason: Option<&str>) -> Outcome {
        let case = Case { client: 0, server: 1, version: Version::V13, suite: None, feature };
        let id = format!("case-{}", feature.name());
        let mut outcome = Outcome::new(id, case, verdict, reason.map(str::to_owned));
        if verdict == Verdict::Ok {
            outcome.seen = Some(Seen {
                sessions: 2,
                decrypted: 2,
                records: 16,
                opened: 16,
                bytes: 86_016,
                suites: vec!["TLS_AES_128_GCM_SHA256".to_owned()],
                ..Seen::default()
            });
        }
        outcome
    }

    fn report<'a>(outcomes: &'a [Outcome], stacks: &'a [StackFacts]) -> Report<'a> {
        Report {
            date: "2026-11-23 02:52 UTC".to_owned(),
            commit: "0123456789ab".to_owned(),
            seconds: 7,
            quick: false,
            totals: Totals::of(outcomes),
            stacks,
            outcomes,
        }
    }

    #[test]
    fn refuses_to_show_what_was_skipped_as_a_count_of_zero() {
        let outcomes = [
            outcome(Feature::Full, Verdict::Ok, None),
            outcome(Feature::Full, Verdict::Ok, None),
            outcome(Feature::Ticket, Verdict::Skipped, Some("no key log, \"sadly\"")),
            outcome(Feature::Padding, Verdict::NotDriven, Some("refused")),
        ];
        let [client, server] = [STACKS[0].name, STACKS[1].name];
        let stacks = [client, server].map(|name| StackFacts {
            name,
            version: "1.0".to_owned(),
            missing: None,
        });
        let report = report(&outcomes, &stacks);
        let pair = format!("{client},{server},TLS 1.3");
        assert_eq!(
            report.matrix(),
            format!(
                "client,server,version,feature,result,{COUNTS}\n\
                 {pair},full,ok,2,4,4,32,32,0,172032,\n\
                 {pair},padding,not driven,1,,,,,,,refused\n\
                 {pair},ticket,skipped,1,,,,,,,\"no key log, \"\"sadly\"\"\"\n"
            )
        );
        assert_eq!(
            report.suites().lines().collect::<Vec<_>>()[1..3],
            [
                "TLS 1.3,TLS_AES_128_GCM_SHA256,ok,2,4,4,32,32,0,172032,",
                "TLS 1.3,any,not driven,1,,,,,,,refused"
            ]
        );
        let page = report.markdown("it.csv", "it-suites.csv");
        let counts = "2 ok, 1 **not driven**, 1 skipped";
        assert!(page.contains(&format!("| {client} | 1.0 | {counts} | – | – | – |")), "{page}");
        assert!(page.contains(&format!("| {server} | 1.0 | – | {counts} | – | – |")), "{page}");
        assert!(page.contains("\nFeatures of the cases: full, padding, ticket.\n"), "{page}");
        assert!(page.contains("* 1 of: no key log, \"sadly\"\n"), "{page}");
        assert!(!page.contains("0/"), "{page}");
    }

    #[test]
    fn accepts_a_whole_run_on_one_page() {
        let outcomes: Vec<Outcome> = super::super::matrix::cases(super::super::matrix::Set::Full)
            .into_iter()
            .map(|case| {
                let id = super::super::name(&case);
                let reason = Some("neither side writes a key log of such sessions".to_owned());
                Outcome::new(id, case, Verdict::Skipped, reason)
            })
            .collect();
        let stacks: Vec<StackFacts> = STACKS
            .iter()
            .map(|stack| StackFacts { name: stack.name, version: String::new(), missing: None })
            .collect();
        let report = report(&outcomes, &stacks);
        assert!(report.markdown("it.csv", "it-suites.csv").len() < 6000);
        assert!(report.matrix().lines().count() > 1000);
    }

    #[test]
    fn accepts_a_stack_that_is_not_installed() {
        let stacks = [StackFacts {
            name: STACKS[0].name,
            version: String::new(),
            missing: Some("not installed".to_owned()),
        }];
        let page = report(&[], &stacks).markdown("it.csv", "it-suites.csv");
        assert!(page.contains(&format!("| {} | **skipped**: not installed |", STACKS[0].name)));
    }
}
