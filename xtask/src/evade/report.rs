//! The tally of a run, and its table of cases by targets.
//!
//! Refuses to hide anything behind a total: every escape is printed with its script.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::trial::{Judged, Target, Trial, Verdict};

/// What there is to tell of a run.
#[derive(Default)]
pub struct Tally {
    /// By case and target: letters of IPv4 and IPv6.
    cells: BTreeMap<String, BTreeMap<Target, [Option<Verdict>; 2]>>,
    /// Named and generated trials by verdict.
    counts: BTreeMap<Verdict, usize>,
    /// Each with the script, in the order of discovery.
    pub escapes: Vec<String>,
    /// Honest connections that came to harm.
    pub harm: Vec<String>,
    /// Honest connections and third parties that went well.
    pub unharmed: usize,
}

impl Tally {
    /// Adds trials; `listed` ones get a place in the table.
    pub fn add(&mut self, trials: &[Trial], results: &[Judged], listed: bool) {
        for (trial, result) in trials.iter().zip(results) {
            *self.counts.entry(result.verdict).or_default() += 1;
            if listed {
                let row = self.cells.entry(trial.name.clone()).or_default();
                row.entry(trial.target).or_default()[usize::from(trial.v6)] = Some(result.verdict);
            }
        }
    }

    /// Trials with a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.counts.get(&verdict).copied().unwrap_or(0)
    }

    /// All trials.
    pub fn trials(&self) -> usize {
        self.counts.values().sum()
    }

    /// A table of Markdown: a row for each case, a column for each target.
    pub fn table(&self) -> String {
        let mut targets: Vec<Target> = vec![];
        for target in self.cells.values().flat_map(BTreeMap::keys) {
            if !targets.contains(target) {
                targets.push(*target);
            }
        }
        targets.sort();
        let mut text = String::from("| case |");
        for target in &targets {
            let _ = write!(text, " {} |", target.name());
        }
        text.push_str("\n|---|");
        text.push_str(&"---|".repeat(targets.len()));
        for (name, row) in &self.cells {
            let _ = write!(text, "\n| `{name}` |");
            for target in &targets {
                let cell = row.get(target).copied().unwrap_or_default();
                let _ = write!(text, " {} |", words(cell));
            }
        }
        text.push('\n');
        text
    }
}

/// One word where both families agree.
fn words(cell: [Option<Verdict>; 2]) -> String {
    let word = |verdict: Verdict| match verdict {
        Verdict::Escaped => "**escaped**",
        Verdict::Held => "held",
        Verdict::Refused => "refused",
    };
    match cell {
        [None, None] => String::new(),
        [Some(one), None] | [None, Some(one)] => word(one).to_owned(),
        [Some(one), Some(other)] if one == other => word(one).to_owned(),
        [Some(one), Some(other)] => format!("{} / {}", word(one), word(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_families_that_disagree() {
        assert_eq!(words([Some(Verdict::Held), Some(Verdict::Held)]), "held");
        assert_eq!(words([Some(Verdict::Held), Some(Verdict::Escaped)]), "held / **escaped**");
        assert_eq!(words([None, None]), "");
    }
}
