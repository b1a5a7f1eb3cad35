//! Single numbers of figures, as sentences and the table of README.md name them: a median, or what one subject takes
//! against another. `bench/README.md` describes the keys.
//!
//! Refuses to compute what is not there: then there is no number, and never a zero.

use serde::Deserialize;

use super::show;
use crate::bench::report::Samples;
use crate::results::{Figure, Kind, Point, Series, X};

/// Which number.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Of what the paper states, instead of what was measured.
    #[serde(default)]
    pub paper: bool,
    /// Another figure than the one that is spoken of.
    pub number: Option<String>,
    pub panel: String,
    pub series: String,
    /// Without it, all places of the axis.
    pub x: Option<X>,
    /// Divided by this subject's.
    pub over: Option<String>,
    /// Divided by the same subject's at this place.
    pub over_x: Option<X>,
    /// After this subject's is taken off both.
    pub beyond: Option<String>,
    /// Of a distribution: the event that this share of all does not exceed.
    pub quantile: Option<f64>,
    /// Of a distribution: the share of events that do not exceed this, in percent.
    pub up_to: Option<f64>,
}

/// A number that was computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Computed {
    pub median: f64,
    /// Of single repetitions.
    pub range: Option<(f64, f64)>,
    /// From one place of the axis to another, or from one statement to another.
    pub across: bool,
    pub unit: String,
}

impl Value {
    /// Computes it of a figure.
    pub fn of(&self, figure: &Figure) -> Option<Computed> {
        let find = |subject: &str| figure.series.iter().find(|it| it.subject == subject);
        let series = find(&self.series)?;
        if figure.kind == Kind::Distribution {
            return self.of_distribution(series, &figure.y.unit);
        }
        let over = match &self.over {
            Some(subject) => Some(find(subject)?),
            None => None,
        };
        let beyond = match &self.beyond {
            Some(subject) => Some(find(subject)?),
            None => None,
        };
        let places: Vec<&Point> =
            series.points.iter().filter(|it| self.x.as_ref().is_none_or(|x| *x == it.x)).collect();
        let mut all = Vec::new();
        for point in places {
            let below = match (&self.over_x, over) {
                (Some(x), _) => Some(series.at(x)?),
                (None, Some(over)) => Some(over.at(&point.x)?),
                (None, None) => None,
            };
            let base = match beyond {
                Some(beyond) => Some(beyond.at(&point.x)?),
                None => None,
            };
            all.push(against(point, below, base));
        }
        // A quotient is "times" in a sentence.
        let is_quotient = self.over.is_some() || self.over_x.is_some() || figure.y.unit == "×";
        let unit = if is_quotient { String::new() } else { figure.y.unit.clone() };
        match &all[..] {
            [] => None,
            // Of the paper's, two numbers are from and to.
            [(median, Some((low, high)))] if self.paper => {
                Some(Computed { median: *median, range: Some((*low, *high)), across: true, unit })
            }
            [(median, range)] => {
                Some(Computed { median: *median, range: *range, across: false, unit })
            }
            _ => {
                let medians = Samples::new(all.iter().map(|(median, _)| *median).collect());
                let range = Some((medians.min, medians.max));
                Some(Computed { median: medians.median, range, across: true, unit })
            }
        }
    }

    /// The events of all runs together; the range is that of runs.
    fn of_distribution(&self, series: &Series, unit: &str) -> Option<Computed> {
        let each = |points: &[&Point]| match (self.quantile, self.up_to) {
            (Some(share), None) => quantile(points, share),
            (None, Some(limit)) => share_up_to(points, limit).map(|share| share * 100.0),
            _ => None,
        };
        let points: Vec<&Point> = series.points.iter().collect();
        let runs = points.iter().map(|point| each(&[point])).collect::<Option<Vec<f64>>>()?;
        let runs = Samples::new(runs);
        Some(Computed {
            median: each(&points)?,
            range: (points.len() > 1).then_some((runs.min, runs.max)),
            across: false,
            unit: if self.up_to.is_some() { "%" } else { unit }.to_owned(),
        })
    }
}

impl Computed {
    /// As a sentence has it.
    pub fn show(&self) -> String {
        let with_unit = |value: f64| show::with_unit(value, &self.unit);
        match self.range {
            Some((low, high)) if self.across && low != high => {
                format!("{} to {}", show::number(low), with_unit(high))
            }
            Some((low, high)) if low != high => {
                let (low, high) = (show::number(low), show::number(high));
                format!("{} ({low}–{high})", with_unit(self.median))
            }
            _ => with_unit(self.median),
        }
    }
}

/// A quotient of medians, less a third one; and its range, repetition by repetition.
fn against(
    point: &Point,
    below: Option<&Point>,
    base: Option<&Point>,
) -> (f64, Option<(f64, f64)>) {
    let quotient = |of: f64, below: Option<f64>, base: f64| match below {
        Some(below) if below > base => (of - base) / (below - base),
        Some(_) => f64::INFINITY,
        None => of - base,
    };
    let median = |point: &Point| point.summary().median;
    let all = quotient(median(point), below.map(median), base.map_or(0.0, median));
    let paired = |it: Option<&Point>| it.is_none_or(|it| it.samples.len() == point.samples.len());
    if point.samples.len() < 2 || !paired(below) || !paired(base) {
        return (all, None);
    }
    let each = |at: usize| {
        let base = base.map_or(0.0, |it| it.samples[at]);
        quotient(point.samples[at], below.map(|it| it.samples[at]), base)
    };
    let each = Samples::new((0..point.samples.len()).map(each).collect());
    (all, Some((each.min, each.max)))
}

/// All events of some runs, the smallest first, and how many there are.
pub fn events(points: &[&Point]) -> (Vec<(f64, u32)>, u64) {
    let mut events: Vec<(f64, u32)> = points.iter().flat_map(|point| point.events()).collect();
    events.sort_by(|one, other| one.0.total_cmp(&other.0));
    let all = points.iter().map(|point| point.count()).sum();
    (events, all)
}

/// The event that a share of all does not exceed.
pub fn quantile(points: &[&Point], share: f64) -> Option<f64> {
    let (events, all) = events(points);
    let mut before = 0;
    events.iter().find_map(|(event, times)| {
        before += u64::from(*times);
        (before as f64 >= share * all as f64).then_some(*event)
    })
}

fn share_up_to(points: &[&Point], limit: f64) -> Option<f64> {
    let (events, all) = events(points);
    let within = events.iter().filter(|(event, _)| *event <= limit);
    let within: u64 = within.map(|(_, times)| u64::from(*times)).sum();
    (all > 0).then_some(within as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Axis;

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    fn figure() -> Figure {
        let mut figure =
            Figure::new("10", "machine", "", Axis::log("object", "B"), Axis::linear("cost", "s"));
        for (bytes, more) in [(1024_u64, 0.0), (2048, 1.0)] {
            figure.add("bridge", bytes, &[1.0, 1.0, 2.0]);
            figure.add("mmTLS", bytes, &[2.0, 1.5, 2.5]);
            figure.add("split", bytes, &[4.0, 3.0 + more, 4.0]);
        }
        figure
    }

    #[test]
    fn computes_medians_and_quotients() {
        let of = |text: &str| value(text).of(&figure()).map(|it| it.show());
        let median = r#"{"panel": "", "series": "mmTLS", "x": 1024}"#;
        assert_eq!(of(median).unwrap(), "2 s (1.5–2.5)");
        let ratio =
            r#"{"panel": "", "series": "split", "over": "mmTLS", "beyond": "bridge", "x": 1024}"#;
        assert_eq!(of(ratio).unwrap(), "3 (3–4)");
        let across = r#"{"panel": "", "series": "split", "over": "mmTLS", "beyond": "bridge"}"#;
        assert_eq!(of(across).unwrap(), "3");
        let along = r#"{"panel": "", "series": "split", "x": 2048, "over_x": 1024}"#;
        assert_eq!(of(along).unwrap(), "1 (1–1.33)");
    }

    #[test]
    fn refuses_what_is_not_there() {
        let of = |text: &str| value(text).of(&figure());
        assert_eq!(of(r#"{"panel": "", "series": "nobody", "x": 1024}"#), None);
        assert_eq!(of(r#"{"panel": "", "series": "mmTLS", "x": 1}"#), None);
        assert_eq!(of(r#"{"panel": "", "series": "mmTLS", "over": "nobody"}"#), None);
    }

    #[test]
    fn tells_a_contender_that_took_no_more_than_nothing() {
        let mut figure = figure();
        figure.add("free", 1024_u64, &[1.0, 1.0, 2.0]);
        let ratio =
            r#"{"panel": "", "series": "split", "over": "free", "beyond": "bridge", "x": 1024}"#;
        assert_eq!(value(ratio).of(&figure).unwrap().show(), "∞");
    }

    #[test]
    fn computes_shares_of_events() {
        let mut figure =
            Figure::new("12", "stall", "", Axis::category("run"), Axis::log("wait", "µs"));
        figure.kind = Kind::Distribution;
        figure.add_events("mmTLS", "1", [0.0, 0.0, 0.0, 9.0]);
        figure.add_events("mmTLS", "2", [0.0, 5.0, 7.0, 9.0]);
        let of = |text: &str| value(text).of(&figure).unwrap().show();
        assert_eq!(of(r#"{"panel": "", "series": "mmTLS", "up_to": 0}"#), "50 % (25–75)");
        assert_eq!(of(r#"{"panel": "", "series": "mmTLS", "quantile": 0.5}"#), "0 µs (0–5)");
    }
}
