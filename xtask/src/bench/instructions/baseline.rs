//! The committed counts, and what has changed since.
//!
//! Refuses counts of another build or processor, which tell nothing, and a file that does not list exactly the cases
//! there are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Percent more that fails, and percent less that is told.
const TOLERANCE: u64 = 3;

/// What moves the baseline.
pub(super) const UPDATE: &str = "cargo xtask instructions --update";

/// Instructions by case.
pub(super) type Counts = BTreeMap<String, u64>;

/// What else decides about counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Made {
    /// Cargo's profile.
    pub(super) profile: String,
    /// The compiler.
    pub(super) rustc: String,
    /// Features of the processor that valgrind shows.
    pub(super) processor: String,
    /// The C library.
    pub(super) libc: String,
    pub(super) valgrind: String,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Baseline {
    pub(super) made: Made,
    pub(super) instructions: Counts,
}

/// What a comparison found: a line each.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What fails.
    pub(super) worse: Vec<String>,
    /// What should be told.
    pub(super) better: Vec<String>,
}

/// In the checkout that this program was built in.
pub(super) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/instructions.json")
}

impl Baseline {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read(path).map_err(|error| error.to_string());
        let baseline = text.and_then(|text| Self::parse(&text));
        baseline.map_err(|error| {
            format!("bench/instructions.json: {error}; to write it anew: {UPDATE}")
        })
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let it: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        match it.instructions.iter().find(|(_, count)| **count == 0) {
            Some((case, _)) => Err(format!("{case}: a count of nothing")),
            None => Ok(it),
        }
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let mut text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        text.push('\n');
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Why counts of this build cannot be compared with these, if so.
    pub(super) fn differs(&self, made: &Made) -> Option<String> {
        let what = [
            ("processor under valgrind", &self.made.processor, &made.processor),
            ("compiler", &self.made.rustc, &made.rustc),
        ];
        let (what, baseline, here) = what.into_iter().find(|(_, one, other)| one != other)?;
        Some(format!(
            "bench/instructions.json is of another {what}: {baseline}; here: {here}; if that is to stay: {UPDATE}"
        ))
    }

    /// Compares every case.
    pub(super) fn compare(&self, counts: &Counts) -> Findings {
        let mut findings = Findings::default();
        for (case, &now) in counts {
            let Some(&before) = self.instructions.get(case) else {
                let line = format!("{case}: not in bench/instructions.json; to add it: {UPDATE}");
                findings.worse.push(line);
                continue;
            };
            let line = format!(
                "{case}: {now} instructions, baseline {before}: {:+.1} %",
                percent(before, now)
            );
            // Counts are far from overflow.
            if now * 100 > before * (100 + TOLERANCE) {
                findings.worse.push(format!("{line}; if that is meant: {UPDATE}"));
            } else if now * 100 < before * (100 - TOLERANCE) {
                findings.better.push(format!("{line}; to keep it: {UPDATE}"));
            }
        }
        for case in self.instructions.keys().filter(|case| !counts.contains_key(*case)) {
            let line =
                format!("{case}: in bench/instructions.json, but no case; to drop it: {UPDATE}");
            findings.worse.push(line);
        }
        findings
    }
}

/// How much more it is, of a hundred.
pub(super) fn percent(before: u64, now: u64) -> f64 {
    (now as f64 / before as f64 - 1.0) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> Made {
        Made {
            profile: "dev".to_owned(),
            rustc: "rustc 1.95.0".to_owned(),
            processor: "avx2".to_owned(),
            libc: "2.36".to_owned(),
            valgrind: "3.19.0".to_owned(),
        }
    }

    fn counts(cases: &[(&str, u64)]) -> Counts {
        cases.iter().map(|(case, count)| ((*case).to_owned(), *count)).collect()
    }

    fn findings(now: &[(&str, u64)]) -> Findings {
        let instructions = counts(&[("bulk", 100_000), ("rules", 1_000)]);
        Baseline { made: made(), instructions }.compare(&counts(now))
    }

    #[test]
    fn accepts_up_to_three_percent_more() {
        for bulk in [97_000, 100_000, 102_900, 103_000] {
            let found = findings(&[("bulk", bulk), ("rules", 1_000)]);
            assert!(found.worse.is_empty() && found.better.is_empty(), "{found:?}");
        }
    }

    #[test]
    fn refuses_more_than_three_percent_more_with_a_line_per_case() {
        let found = findings(&[("bulk", 103_001), ("rules", 1_100)]);
        assert!(found.better.is_empty());
        assert_eq!(
            found.worse,
            [
                "bulk: 103001 instructions, baseline 100000: +3.0 %; if that is meant: cargo xtask instructions --update",
                "rules: 1100 instructions, baseline 1000: +10.0 %; if that is meant: cargo xtask instructions --update",
            ]
        );
    }

    #[test]
    fn accepts_and_tells_more_than_three_percent_less() {
        let found = findings(&[("bulk", 96_999), ("rules", 1_000)]);
        assert!(found.worse.is_empty());
        assert_eq!(
            found.better,
            [
                "bulk: 96999 instructions, baseline 100000: -3.0 %; to keep it: cargo xtask instructions --update"
            ]
        );
    }

    #[test]
    fn refuses_a_case_without_a_baseline() {
        let found = findings(&[("bulk", 100_000), ("new", 5), ("rules", 1_000)]);
        let expected =
            "new: not in bench/instructions.json; to add it: cargo xtask instructions --update";
        assert_eq!(found.worse, [expected]);
    }

    #[test]
    fn refuses_a_baseline_without_a_case() {
        let found = findings(&[("bulk", 100_000)]);
        let expected = "rules: in bench/instructions.json, but no case; to drop it: cargo xtask instructions --update";
        assert_eq!(found.worse, [expected]);
    }

    #[test]
    fn refuses_an_unreadable_baseline_in_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("instructions.json");
        let whole = Baseline { made: made(), instructions: counts(&[("bulk", 1)]) };
        whole.write(&file).unwrap();
        assert_eq!(Baseline::read(&file).unwrap(), whole);
        let text = std::fs::read_to_string(&file).unwrap();
        for broken in [
            String::new(),
            text[..text.len() / 2].to_owned(),
            text.replace("\"bulk\": 1", "\"bulk\": 0"),
            text.replace("\"bulk\": 1", "\"bulk\": -1"),
            text.replace("rustc\"", "gcc\""),
        ] {
            std::fs::write(&file, broken).unwrap();
            let error = Baseline::read(&file).unwrap_err();
            assert!(error.starts_with("bench/instructions.json: "), "{error}");
            assert!(error.ends_with(UPDATE) && !error.contains('\n'), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(Baseline::read(&file).unwrap_err().contains("No such file"));
    }

    #[test]
    fn tells_of_another_processor_or_compiler_but_not_of_another_c_library() {
        let baseline = Baseline { made: made(), instructions: Counts::new() };
        let differs = |change: fn(&mut Made)| {
            let mut here = made();
            change(&mut here);
            baseline.differs(&here)
        };
        assert_eq!(differs(|it| it.libc = "2.41".to_owned()), None);
        assert!(differs(|it| it.processor = "ssse3".to_owned()).unwrap().contains("processor"));
        assert!(differs(|it| it.rustc = "rustc 1.96.0".to_owned()).unwrap().contains("compiler"));
    }
}
