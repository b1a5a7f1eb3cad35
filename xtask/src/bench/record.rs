//! The result file of a run, which is written after each part: what was measured stays, whatever comes next.
//!
//! Refuses to put figures of two machines into one file.

use std::fs;
use std::path::{Path, PathBuf};

use super::facts::{Facts, version};
use super::parts::{Measured, Part};
use crate::results::{FORMAT, Missing, NoResult, Results};

pub struct Record {
    path: PathBuf,
    results: Results,
}

/// How a part went.
pub struct Took {
    pub seconds: f64,
    pub busy_before: f64,
}

impl Record {
    /// Today's file of this commit, or a new one; with `resume` the latest one of this commit.
    pub fn open(
        directory: &Path,
        facts: &Facts,
        quick: bool,
        resume: bool,
    ) -> Result<Self, String> {
        let end = format!("-{}{}.json", facts.commit(), if quick { "-quick" } else { "" });
        let mut path = directory.join(format!("{}{end}", facts.day()));
        if resume && let Some(latest) = latest(directory, &end) {
            path = latest;
        }
        let new = Results {
            format: FORMAT,
            fixture: None,
            quick,
            commit: facts.commit().to_owned(),
            date: facts.day().to_owned(),
            machine: facts.machine(),
            programs: Default::default(),
            contenders: Vec::new(),
            figures: Vec::new(),
            missing: Vec::new(),
        };
        let results = if path.exists() { Results::read(&path)? } else { new };
        if results.machine != facts.machine() {
            return Err(format!(
                "{} was measured on another machine; remove it, or name another directory with --results",
                path.display()
            ));
        }
        Ok(Self { path, results })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a part has been measured.
    pub fn has(&self, part: &Part) -> bool {
        self.results.figures.iter().any(|figure| figure.part == part.letter)
    }

    /// Puts what was measured in the place of what was there of this part.
    pub fn put(
        &mut self,
        part: &Part,
        measured: Measured,
        command: &str,
        took: &Took,
    ) -> Result<(), String> {
        for figure in &measured.figures {
            figure.check().map_err(|why| format!("figure {}: {why}", figure.name()))?;
        }
        self.forget(part);
        for mut figure in measured.figures {
            figure.part = part.letter;
            figure.command = command.to_owned();
            (figure.seconds, figure.busy_before) = (took.seconds.round(), took.busy_before);
            self.results.figures.push(figure);
        }
        for mut contender in measured.contenders {
            contender.part = part.letter;
            self.results.contenders.push(contender);
        }
        for program in part.programs {
            self.results.programs.insert((*program).to_owned(), version(program));
        }
        self.results.write(&self.path)
    }

    /// Notes why there is nothing of a part. Figures that it once had stay.
    pub fn miss(
        &mut self,
        part: &Part,
        outcome: NoResult,
        reason: &str,
        command: &str,
        took: &Took,
    ) -> Result<(), String> {
        self.results.missing.retain(|missing| missing.part != part.letter);
        self.results.missing.push(Missing {
            part: part.letter,
            figures: part.figures.iter().map(|&number| number.to_owned()).collect(),
            what: part.what.to_owned(),
            outcome,
            reason: reason.to_owned(),
            command: command.to_owned(),
            seconds: took.seconds.round(),
        });
        self.results.write(&self.path)
    }

    fn forget(&mut self, part: &Part) {
        self.results.figures.retain(|figure| figure.part != part.letter);
        self.results.contenders.retain(|contender| contender.part != part.letter);
        self.results.missing.retain(|missing| missing.part != part.letter);
    }
}

/// The file with this end whose name, and so its date, is the last one.
fn latest(directory: &Path, end: &str) -> Option<PathBuf> {
    let names = fs::read_dir(directory).ok()?.flatten().map(|entry| entry.file_name());
    let ours = names.filter_map(|name| name.into_string().ok()).filter(|name| {
        // A date, and nothing else, stands before the commit.
        name.strip_suffix(end).is_some_and(|date| date.len() == "2026-01-02".len())
    });
    ours.max().map(|name| directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::super::parts::PARTS;
    use super::*;
    use crate::results::{Axis, Figure};

    fn measured(value: f64) -> Measured {
        let mut figure =
            Figure::new("M1", "throughput", "t", Axis::category("x"), Axis::linear("y", "s"));
        figure.add("mmTLS", "1", &[value]);
        let contender = super::super::contenders::of_text("mmTLS", "none");
        Measured {
            figures: vec![figure],
            contenders: vec![contender],
            details: serde_json::Value::Null,
        }
    }

    const TOOK: Took = Took { seconds: 1.0, busy_before: 0.0 };

    #[test]
    fn goes_on_where_a_run_ended() {
        let place = tempfile::tempdir().unwrap();
        let facts = Facts::collect();
        let (first, second) = (&PARTS[0], &PARTS[1]);
        let mut record = Record::open(place.path(), &facts, true, false).unwrap();
        assert!(!record.has(first));
        record.put(first, measured(1.0), "a", &TOOK).unwrap();
        record.miss(second, NoResult::Failed, "broken", "b", &TOOK).unwrap();
        // As if it had been begun the day before.
        let old = record.path().to_owned();
        let name = old.file_name().unwrap().to_str().unwrap();
        let earlier = place.path().join(format!("2020-01-02{}", &name[10..]));
        fs::rename(&old, &earlier).unwrap();
        let mut record = Record::open(place.path(), &facts, true, true).unwrap();
        assert_eq!(record.path(), earlier);
        assert!(record.has(first) && !record.has(second));
        record.put(second, measured(2.0), "b", &TOOK).unwrap();
        let results = Results::read(&earlier).unwrap();
        assert_eq!((results.figures.len(), results.missing.len()), (2, 0));
        // Without it, a file of today.
        assert_eq!(Record::open(place.path(), &facts, true, false).unwrap().path(), old);
        // Those of other kinds are other files.
        let other = Record::open(place.path(), &facts, false, true).unwrap();
        assert!(!other.path().exists());
    }

    #[test]
    fn measures_anew_what_it_is_asked_for() {
        let place = tempfile::tempdir().unwrap();
        let facts = Facts::collect();
        for value in [1.0, 2.0] {
            let mut record = Record::open(place.path(), &facts, false, false).unwrap();
            record.put(&PARTS[0], measured(value), "a", &TOOK).unwrap();
        }
        let record = Record::open(place.path(), &facts, false, false).unwrap();
        assert_eq!(record.results.figures.len(), 1);
        assert_eq!(record.results.contenders.len(), 1);
        assert_eq!(record.results.figures[0].series[0].points[0].samples, [2.0]);
    }

    #[test]
    fn refuses_figures_that_no_file_can_have_and_keeps_the_others() {
        let place = tempfile::tempdir().unwrap();
        let mut record = Record::open(place.path(), &Facts::collect(), false, false).unwrap();
        record.put(&PARTS[0], measured(1.0), "a", &TOOK).unwrap();
        assert!(record.put(&PARTS[1], measured(f64::INFINITY), "b", &TOOK).is_err());
        record.miss(&PARTS[1], NoResult::Failed, "infinite", "b", &TOOK).unwrap();
        let results = Results::read(record.path()).unwrap();
        assert_eq!((results.figures.len(), results.missing.len()), (1, 1));
    }

    #[test]
    fn refuses_another_machines_file() {
        let place = tempfile::tempdir().unwrap();
        let facts = Facts::collect();
        let mut record = Record::open(place.path(), &facts, false, false).unwrap();
        record.results.machine.cores += 1;
        record.put(&PARTS[0], measured(1.0), "a", &TOOK).unwrap();
        let refused = Record::open(place.path(), &facts, false, false).map(|_| ()).unwrap_err();
        assert!(refused.contains("another machine"), "{refused}");
    }
}
