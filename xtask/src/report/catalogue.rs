//! What the report says besides numbers (`bench/figures.json`), and what the paper states (`bench/paper.json`): data, so
//! that neither is code.
//!
//! Refuses numbers in sentences that nothing computes: `{name}` stands for each.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::show;
use super::value::{Computed, Value};
use crate::results::{FORMAT, Figure};

/// `bench/figures.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Subjects in the order of their colours, which are the same in all figures.
    pub subjects: Vec<String>,
    /// In the order of the report.
    pub figures: Vec<Entry>,
    pub not_measured: Vec<NotMeasured>,
    pub readme: Table,
    pub cost: Cost,
}

/// What the parts of the monitor cost: a table, and what stands below it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    pub table: Table,
    pub entry: Entry,
}

/// What is said of the figures of one number.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub number: String,
    pub title: String,
    /// Paper, ours, why they differ.
    pub sentence: String,
    #[serde(default)]
    pub values: BTreeMap<String, Value>,
    #[serde(default)]
    pub goals: Vec<Goal>,
}

/// What a value ought to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// A name of the entry's values.
    pub value: String,
    pub what: String,
    pub at_least: Option<f64>,
    pub at_most: Option<f64>,
    /// What the profile shows, where it is missed: a sentence as the entry's.
    #[serde(default)]
    pub if_missed: String,
}

/// A figure of the paper, or a quantity, that no file has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotMeasured {
    pub what: String,
    /// A number of the paper's; the line is left out where a file has it nevertheless.
    pub number: Option<String>,
    pub why: String,
}

/// The table of README.md.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub what: String,
    /// The figure, unless a value names another one.
    pub number: String,
    /// For each column a value, or text.
    pub cells: Vec<Cell>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    Text(String),
    Value(Value),
}

/// `bench/paper.json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    pub format: u32,
    pub title: String,
    pub setup: String,
    pub figures: Vec<Figure>,
}

/// Both.
pub struct Texts {
    pub catalogue: Catalogue,
    pub paper: Paper,
}

impl Texts {
    /// Reads them from the directory where they are.
    pub fn read(directory: &Path) -> Result<Self, String> {
        let catalogue: Catalogue = read(&directory.join("figures.json"))?;
        let paper: Paper = read(&directory.join("paper.json"))?;
        if paper.format != FORMAT {
            return Err(format!("paper.json: not of format {FORMAT}"));
        }
        let texts = Self { catalogue, paper };
        texts.check()?;
        Ok(texts)
    }

    /// Computes a value that is spoken of beside the figures of a number.
    pub fn compute(&self, figures: &[&Figure], number: &str, value: &Value) -> Option<Computed> {
        let number = value.number.as_deref().unwrap_or(number);
        let is_it = |figure: &&Figure| figure.number == number && figure.panel == value.panel;
        match value.paper {
            true => value.of(self.paper.figures.iter().find(is_it)?),
            false => value.of(figures.iter().copied().find(is_it)?),
        }
    }

    /// The sentence of an entry with its numbers, and whether all were there.
    pub fn sentence(&self, figures: &[&Figure], entry: &Entry) -> (String, bool) {
        self.filled(figures, entry, &entry.sentence)
    }

    fn filled(&self, figures: &[&Figure], entry: &Entry, sentence: &str) -> (String, bool) {
        let (mut text, mut complete) = (String::new(), true);
        for (is_name, piece) in pieces(sentence) {
            if !is_name {
                text += piece;
                continue;
            }
            let value = entry.values.get(piece);
            match value.and_then(|value| self.compute(figures, &entry.number, value)) {
                Some(computed) => text += &computed.show(),
                None => {
                    text += "(not measured)";
                    complete = false;
                }
            }
        }
        (text, complete)
    }

    /// Whether a goal was reached, in words.
    pub fn goal(&self, figures: &[&Figure], entry: &Entry, goal: &Goal) -> String {
        let value = entry.values.get(&goal.value);
        let computed = value.and_then(|value| self.compute(figures, &entry.number, value));
        let (limit, name) = match (goal.at_least, goal.at_most) {
            (Some(limit), _) => (limit, "at least"),
            (None, limit) => (limit.unwrap_or(0.0), "at most"),
        };
        let Some(computed) = computed else {
            return format!("Goal: {}, {name} {}; not measured.", goal.what, show::number(limit));
        };
        let limit_shown = show::with_unit(limit, &computed.unit);
        let reached = match goal.at_least {
            Some(limit) => computed.median >= limit,
            None => computed.median <= limit,
        };
        let head = format!("Goal: {}, {name} {limit_shown}: {}", goal.what, computed.show());
        if computed.median.is_infinite() {
            // A quotient over nothing is neither good nor bad.
            return format!("{head}; not judged, since {}.", show::INFINITE);
        }
        match reached {
            true => format!("{head}, reached."),
            false => {
                let by = (computed.median / limit - 1.0).abs() * 100.0;
                let why = self.filled(figures, entry, &goal.if_missed).0;
                format!("{head}, missed by {} %. {why}", show::number(by)).trim_end().to_owned()
            }
        }
    }

    /// Names in sentences and goals must be values, and the paper's values must be there: a typing error is not "not measured".
    fn check(&self) -> Result<(), String> {
        let catalogue = &self.catalogue;
        for entry in catalogue.figures.iter().chain([&catalogue.cost.entry]) {
            let wrong = |what: &str| Err(format!("figures.json: figure {}: {what}", entry.number));
            let goals = entry.goals.iter();
            let sentences = goals.clone().map(|it| &*it.if_missed).chain([&*entry.sentence]);
            let names = sentences.flat_map(pieces).filter(|(is_name, _)| *is_name);
            let names = names.map(|(_, name)| name).chain(goals.map(|it| &*it.value));
            for name in names {
                if !entry.values.contains_key(name) {
                    return wrong(&format!("there is no value {name:?}"));
                }
            }
            for (name, value) in &entry.values {
                if value.paper && self.compute(&[], &entry.number, value).is_none() {
                    return wrong(&format!("the paper's {name:?} is not in paper.json"));
                }
            }
        }
        for table in [&catalogue.readme, &catalogue.cost.table] {
            let columns = table.columns.len();
            if let Some(row) = table.rows.iter().find(|row| row.cells.len() != columns) {
                return Err(format!("figures.json: {:?} has not {columns} cells", row.what));
            }
        }
        Ok(())
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|it| format!("{}: {it}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Text and, between braces, names.
fn pieces(sentence: &str) -> Vec<(bool, &str)> {
    let mut pieces = Vec::new();
    let mut rest = sentence;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, end)) = after.split_once('}') else { break };
        pieces.extend([(false, before), (true, name)]);
        rest = end;
    }
    pieces.push((false, rest));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Axis;

    fn texts() -> Texts {
        Texts::read(&crate::report::bench_directory()).unwrap()
    }

    fn entry(text: &str) -> Entry {
        serde_json::from_str(text).unwrap()
    }

    fn figure() -> Figure {
        let mut figure =
            Figure::new("10", "machine", "", Axis::log("object", "B"), Axis::linear("cost", "s"));
        figure.add("mmTLS", 1024_u64, &[2.0]);
        figure
    }

    const ENTRY: &str = r#"{"number": "10", "title": "t", "sentence": "Ours {a}, theirs {b}.",
        "values": {"a": {"panel": "machine", "series": "mmTLS", "x": 1024},
                   "b": {"panel": "machine", "series": "nginx", "x": 1024}},
        "goals": [{"value": "a", "what": "cost", "at_most": 1.6, "if_missed": "Copies."}]}"#;

    #[test]
    fn puts_numbers_into_sentences() {
        let (texts, entry, figure) = (texts(), entry(ENTRY), figure());
        let (text, complete) = texts.sentence(&[&figure], &entry);
        assert_eq!((text.as_str(), complete), ("Ours 2 s, theirs (not measured).", false));
        let goal = texts.goal(&[&figure], &entry, &entry.goals[0]);
        assert_eq!(goal, "Goal: cost, at most 1.6 s: 2 s, missed by 25 %. Copies.");
        assert!(texts.goal(&[], &entry, &entry.goals[0]).ends_with("not measured."));
        let mut infinite = figure;
        infinite.series.clear();
        infinite.add("mmTLS", 1024_u64, &[f64::INFINITY]);
        assert!(
            texts.goal(&[&infinite], &entry, &entry.goals[0]).contains("; not judged, since ∞")
        );
    }

    #[test]
    fn refuses_names_that_nothing_computes() {
        let mut wrong = texts();
        wrong.catalogue.figures.push(entry(&ENTRY.replace("{a}", "{c}")));
        assert!(wrong.check().unwrap_err().contains("no value \"c\""));
        let mut wrong = texts();
        let paper = ENTRY.replace(r#""b": {"#, r#""b": {"paper": true, "#);
        wrong.catalogue.figures.push(entry(&paper));
        assert!(wrong.check().unwrap_err().contains("not in paper.json"));
    }
}
