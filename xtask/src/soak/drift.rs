//! What moves while a monitor lives: memory, files and threads stay.
//!
//! Refuses to judge a life that is too short to have become steady: that is said, and the run neither fails nor succeeds
//! by it.

use super::judge::Criterion;
use super::monitor::{Life, Sample};

/// Of a life: what is not looked at, since tables fill (a connection that was reset is remembered for three minutes), and
/// the two parts that are compared.
const WARM_UP_SECONDS: f64 = 200.0;
const WINDOW_SECONDS: f64 = 120.0;
/// What is flat.
const FLAT: f64 = 0.05;
/// Files and threads that come and go with agents.
const FEW: f64 = 8.0;

/// Memory, files and threads.
pub fn flat(lives: &[Life]) -> [Criterion; 3] {
    type Figure = fn(&Sample) -> f64;
    let figures: [(&'static str, Figure, f64); 3] = [
        ("memory is flat", |it| it.resident_bytes as f64, 0.0),
        ("files are flat", |it| it.files as f64, FEW),
        ("threads are flat", |it| it.threads as f64, FEW),
    ];
    figures.map(|(name, figure, few)| {
        let parts: Vec<_> = lives.iter().filter_map(|it| drift(it, figure)).collect();
        let holds = parts.iter().all(|it| it.last <= it.first * (1.0 + FLAT) + few);
        let found = parts.iter().map(Drift::text).collect::<Vec<_>>().join(", ");
        Criterion {
            name,
            holds: (!parts.is_empty()).then_some(holds),
            found: if found.is_empty() { "no life was long enough".to_owned() } else { found },
        }
    })
}

/// How a figure has moved in a life.
struct Drift {
    first: f64,
    last: f64,
    /// Of a straight line through all samples after the warm-up.
    per_hour: f64,
}

impl Drift {
    fn text(&self) -> String {
        let percent = (self.last / self.first - 1.0) * 100.0;
        match self.first {
            first if first >= 1e6 => format!(
                "{:.1} to {:.1} MB ({percent:+.1} %, {:+.1} MB an hour)",
                first / 1e6,
                self.last / 1e6,
                self.per_hour / 1e6
            ),
            first => format!("{first:.0} to {:.0}", self.last),
        }
    }
}

/// The means of the first window after the warm-up and of the last one; `None` where the two overlap.
fn drift(life: &Life, figure: fn(&Sample) -> f64) -> Option<Drift> {
    // Nothing is sampled when the load is over.
    let end = life.samples.last()?.at;
    let (warm, last) = (life.begun + WARM_UP_SECONDS, end - WINDOW_SECONDS);
    if warm + WINDOW_SECONDS > last {
        return None;
    }
    let window = |from: f64| {
        let part = life.samples.iter().filter(|it| it.at >= from && it.at <= from + WINDOW_SECONDS);
        mean(part.map(figure))
    };
    let steady: Vec<_> = life.samples.iter().filter(|it| it.at >= warm).collect();
    let at = mean(steady.iter().map(|it| it.at))?;
    let value = mean(steady.iter().map(|it| figure(it)))?;
    // Least squares.
    let (mut over, mut under) = (0.0, 0.0);
    for it in steady {
        over += (it.at - at) * (figure(it) - value);
        under += (it.at - at).powi(2);
    }
    Some(Drift { first: window(warm)?, last: window(last)?, per_hour: over / under * 3600.0 })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// A life whose memory grows so fast, in MB an hour.
    fn growing(seconds: u32, mb_per_hour: f64) -> Life {
        let sample = |at: u32| Sample {
            at: f64::from(at),
            resident_bytes: (30e6 + f64::from(at) / 3600.0 * mb_per_hour * 1e6) as u64,
            anonymous_bytes: 0,
            threads: 5,
            files: 19,
            flows: Value::Null,
            buffered_bytes: Value::Null,
            agents: Value::Null,
        };
        let samples = (0..=seconds).step_by(5).map(sample).collect();
        Life { begun: 0.0, ended: None, reloads: 0, reloads_told: [0; 2], samples }
    }

    #[test]
    fn memory_that_grows_slowly_shows_in_the_last_life_of_an_hour() {
        let memory = |life: Life| {
            let [memory, _, _] = flat(&[life]);
            memory.holds
        };
        // Between two kills, and after the last one.
        assert_eq!(memory(growing(600, 15.0)), Some(true));
        assert_eq!(memory(growing(2400, 15.0)), Some(false));
        assert_eq!(memory(growing(2400, 1.0)), Some(true));
        assert_eq!(memory(growing(120, 0.0)), None);
        let text = drift(&growing(2400, 15.0), |it| it.resident_bytes as f64).unwrap().text();
        assert_eq!(text, "31.1 to 39.7 MB (+27.9 %, +15.0 MB an hour)");
    }
}
