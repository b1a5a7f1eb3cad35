//! Results of benchmarks as a file: what `xtask bench` writes and `xtask report` reads. `bench/README.md` describes the format.
//!
//! A file has every sample. Medians and ranges are the reader's, so that no two of them can differ.
//!
//! Refuses files of another format, samples that are no numbers, and keys that it does not know.

mod layout;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bench::report::Samples;

/// The number of this format. Older files, one for each part of the benchmark, have none.
pub const FORMAT: u32 = 1;

/// Everything that was measured of one commit on one machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    pub format: u32,
    /// Of a file that nobody measured: what it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixture: Option<String>,
    /// Measured only to see that everything works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quick: bool,
    /// Short hash, with `-modified` where the tree was.
    pub commit: String,
    /// Day of the first figure, as in RFC 3339.
    pub date: String,
    pub machine: Machine,
    /// What each program says its version is.
    pub programs: BTreeMap<String, String>,
    pub contenders: Vec<Contender>,
    pub figures: Vec<Figure>,
    /// Figures that there are not.
    pub missing: Vec<Missing>,
}

/// Where it was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub memory_mb: u64,
    pub kernel: String,
}

/// Whoever was compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contender {
    /// The part of the benchmark that it ran in.
    pub part: char,
    /// As series name it.
    pub name: String,
    /// Command line and configuration file, as they were.
    pub settings: String,
}

/// One plot: a figure of the paper, a panel of it, or one of ours.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The paper's number; `M1` and so on where the paper has none.
    pub number: String,
    /// What tells the plots of one number apart.
    pub panel: String,
    /// The part of the benchmark that measured it; of the paper's, none.
    #[serde(default = "no_part")]
    pub part: char,
    pub title: String,
    #[serde(default)]
    pub kind: Kind,
    pub x: Axis,
    pub y: Axis,
    pub series: Vec<Series>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What belongs here and was left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<Skipped>,
    #[serde(default)]
    pub command: String,
    /// How long its part of the benchmark took.
    #[serde(default)]
    pub seconds: f64,
    /// Share of all cores that was busy in the second before.
    #[serde(default)]
    pub busy_before: f64,
}

/// What samples of a point are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Repetitions of one measurement, of which the median counts.
    #[default]
    Values,
    /// Many single events of one run, of which the distribution counts.
    Distribution,
}

/// What an axis shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub name: String,
    /// `B`, `s`, `%`, …; empty for what is counted or named.
    pub unit: String,
    pub scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    Category,
    Linear,
    Log,
}

/// One subject's points.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    pub subject: String,
    /// In `bench/paper.json`: the section, table or figure of the paper that states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    pub points: Vec<Point>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    pub x: X,
    /// In the order in which they were taken.
    pub samples: Vec<f64>,
    /// Of a distribution: how often each sample was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub times: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum X {
    Number(f64),
    Category(String),
}

/// What was left out of a figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    pub what: String,
    pub why: String,
}

/// A part of the benchmark without result, and the figures that lack for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Missing {
    pub part: char,
    pub figures: Vec<String>,
    pub what: String,
    pub outcome: NoResult,
    pub reason: String,
    pub command: String,
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoResult {
    Failed,
    Skipped,
}

impl Results {
    /// Why no number of it may be quoted.
    pub fn unfit(&self) -> Option<&str> {
        let quick = "a quick run, only to see that everything works";
        self.fixture.as_deref().or(self.quick.then_some(quick))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// One line with the file's name.
    pub fn read(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| failed(&error))?;
        if value["format"] != FORMAT {
            return Err(failed(&format!(
                "not a result file of format {FORMAT}; `xtask bench` writes one"
            )));
        }
        let results: Self = serde_json::from_value(value).map_err(|error| failed(&error))?;
        results.check().map_err(|error| failed(&error))?;
        Ok(results)
    }

    /// Writes it in one go: a run that is interrupted leaves what was there.
    ///
    /// # Errors
    /// One line with the file's name.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        self.check()?;
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(failed)?;
        let file = tempfile::Builder::new().prefix(".results").tempfile_in(directory);
        let mut file = file.map_err(failed)?;
        let text = layout::text(self)?;
        std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)?;
        // Anybody may read results; temporary files are their owner's alone.
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        file.as_file().set_permissions(readable).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        for figure in &self.figures {
            figure.check().map_err(|why| format!("figure {}: {why}", figure.name()))?;
        }
        Ok(())
    }
}

impl Figure {
    /// An empty one; what the run knows is filled in by [`crate::bench`].
    pub fn new(number: &str, panel: &str, title: &str, x: Axis, y: Axis) -> Self {
        Self {
            number: number.to_owned(),
            panel: panel.to_owned(),
            part: no_part(),
            title: title.to_owned(),
            kind: Kind::Values,
            x,
            y,
            series: Vec::new(),
            notes: Vec::new(),
            skipped: Vec::new(),
            command: String::new(),
            seconds: 0.0,
            busy_before: 0.0,
        }
    }

    /// Number and panel, which no two figures of a file share.
    pub fn name(&self) -> String {
        format!("{} {}", self.number, self.panel)
    }

    /// Adds the repetitions of one measurement.
    pub fn add(&mut self, subject: &str, x: impl Into<X>, samples: &[f64]) {
        let samples = samples.iter().copied().map(rounded).collect();
        self.push(subject, Point { x: x.into(), samples, times: Vec::new() });
    }

    /// Adds what single events of a run took, in any order.
    pub fn add_events(
        &mut self,
        subject: &str,
        x: impl Into<X>,
        events: impl IntoIterator<Item = f64>,
    ) {
        let mut events: Vec<f64> = events.into_iter().map(rounded).collect();
        events.sort_by(f64::total_cmp);
        let alike = || events.chunk_by(|one, other| one == other);
        let samples = alike().filter_map(|it| it.first().copied()).collect();
        let times = alike().map(|it| u32::try_from(it.len()).unwrap_or(u32::MAX)).collect();
        self.push(subject, Point { x: x.into(), samples, times });
    }

    fn push(&mut self, subject: &str, point: Point) {
        match self.series.iter_mut().find(|series| series.subject == subject) {
            Some(series) => series.points.push(point),
            None => self.series.push(Series {
                subject: subject.to_owned(),
                source: None,
                points: vec![point],
            }),
        }
    }

    /// With a line below it.
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    /// The values of the axis of x, in the order in which they first come.
    pub fn xs(&self) -> Vec<&X> {
        let mut xs: Vec<&X> = Vec::new();
        for point in self.series.iter().flat_map(|series| &series.points) {
            if !xs.contains(&&point.x) {
                xs.push(&point.x);
            }
        }
        xs
    }

    /// Whether it may stand in a file.
    pub fn check(&self) -> Result<(), String> {
        let by_name = self.x.scale == Scale::Category;
        for point in self.series.iter().flat_map(|series| &series.points) {
            if matches!(point.x, X::Category(_)) != by_name {
                return Err("the axis of x has names and numbers".to_owned());
            }
            let numbers = point.samples.iter().chain(match &point.x {
                X::Number(number) => Some(number),
                X::Category(_) => None,
            });
            if point.samples.is_empty() || numbers.into_iter().any(|it| !it.is_finite()) {
                return Err("a point without samples, or one that is no number".to_owned());
            }
            if !point.times.is_empty() && point.times.len() != point.samples.len() {
                return Err("`times` has another length than `samples`".to_owned());
            }
        }
        Ok(())
    }
}

impl Series {
    /// The point at a place of the axis.
    pub fn at(&self, x: &X) -> Option<&Point> {
        self.points.iter().find(|point| point.x == *x)
    }
}

impl Point {
    /// Median, smallest and largest sample.
    pub fn summary(&self) -> Samples {
        Samples::new(self.events().map(|(sample, _)| sample).collect())
    }

    /// How many samples there are.
    pub fn count(&self) -> u64 {
        self.events().map(|(_, times)| u64::from(times)).sum()
    }

    /// Samples, and how often each was seen.
    pub fn events(&self) -> impl Iterator<Item = (f64, u32)> + '_ {
        let times = self.times.iter().copied().chain(std::iter::repeat(1));
        self.samples.iter().copied().zip(times)
    }
}

impl Axis {
    fn new(name: &str, unit: &str, scale: Scale) -> Self {
        Self { name: name.to_owned(), unit: unit.to_owned(), scale }
    }

    /// Names.
    pub fn category(name: &str) -> Self {
        Self::new(name, "", Scale::Category)
    }

    /// Numbers.
    pub fn linear(name: &str, unit: &str) -> Self {
        Self::new(name, unit, Scale::Linear)
    }

    /// Numbers that grow by factors.
    pub fn log(name: &str, unit: &str) -> Self {
        Self::new(name, unit, Scale::Log)
    }
}

impl From<&str> for X {
    fn from(name: &str) -> Self {
        Self::Category(name.to_owned())
    }
}

impl From<String> for X {
    fn from(name: String) -> Self {
        Self::Category(name)
    }
}

impl From<f64> for X {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for X {
    fn from(number: u64) -> Self {
        Self::Number(number as f64)
    }
}

fn no_part() -> char {
    '-'
}

/// Six digits: what comes behind them is noise, and most of a file.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> Figure {
        let mut figure =
            Figure::new("10", "machine", "t", Axis::log("object", "B"), Axis::linear("cost", "s"));
        figure.add("mmTLS", 1024_u64, &[1.234_567_89, 3.0]);
        figure.add("bridge", 1024_u64, &[1.0]);
        figure.add("mmTLS", 2048_u64, &[2.0]);
        figure
    }

    fn results(figures: Vec<Figure>) -> Results {
        Results {
            format: FORMAT,
            fixture: None,
            quick: false,
            commit: "0000000".to_owned(),
            date: "2026-01-02".to_owned(),
            machine: Machine { cpu: String::new(), cores: 1, memory_mb: 1, kernel: String::new() },
            programs: BTreeMap::new(),
            contenders: Vec::new(),
            figures,
            missing: Vec::new(),
        }
    }

    #[test]
    fn accepts_what_it_wrote() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("results/file.json");
        results(vec![figure()]).write(&path).unwrap();
        let read = Results::read(&path).unwrap();
        let [mmtls, bridge] = &read.figures[0].series[..] else { panic!("{read:?}") };
        assert_eq!(mmtls.points[0].samples, [1.23457, 3.0]);
        assert_eq!((mmtls.points.len(), bridge.points.len()), (2, 1));
        assert_eq!(read.figures[0].xs(), [&X::Number(1024.0), &X::Number(2048.0)]);
        assert_eq!(fs::read_dir(place.path().join("results")).unwrap().count(), 1);
        // A series is a line, so that differences of two files can be read.
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().any(|line| line.trim().starts_with(r#"{"subject":"mmTLS""#)),
            "{text}"
        );
    }

    #[test]
    fn accepts_events_by_their_number() {
        let mut figure = figure();
        figure.kind = Kind::Distribution;
        figure.add_events("events", 1_u64, [0.0, 7.0, 0.0, 0.0]);
        let point = &figure.series[2].points[0];
        assert_eq!((&point.samples[..], &point.times[..]), (&[0.0, 7.0][..], &[3, 1][..]));
        assert_eq!(point.count(), 4);
    }

    #[test]
    fn refuses_other_formats_and_what_is_no_number() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file.json");
        let mut infinite = figure();
        infinite.add("mmTLS", 4096_u64, &[f64::INFINITY]);
        assert!(results(vec![infinite]).write(&path).unwrap_err().contains("no number"));
        let mut mixed = figure();
        mixed.add("mmTLS", "name", &[1.0]);
        assert!(results(vec![mixed]).write(&path).unwrap_err().contains("names and numbers"));
        for text in [r#"{"part":"a","figures":[]}"#, r#"{"format":2}"#, "[]"] {
            fs::write(&path, text).unwrap();
            assert!(Results::read(&path).unwrap_err().contains("not a result file of format 1"));
        }
        let text = serde_json::to_string(&results(Vec::new())).unwrap();
        fs::write(&path, text.replace("\"date\"", "\"day\"")).unwrap();
        assert!(Results::read(&path).unwrap_err().contains("unknown field `day`"));
    }
}
