//! Samples, medians and tables. Refuses to average: one disturbed run must not move a figure.

use serde::Serialize;

/// All samples of one quantity, in the order in which they were taken, and what to quote.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Samples {
    /// The middle sample; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
    /// Every sample.
    pub samples: Vec<f64>,
}

impl Samples {
    /// Sums up samples; zeros when there are none.
    pub fn new(samples: Vec<f64>) -> Self {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Self {
            median,
            min: sorted.first().copied().unwrap_or(0.0),
            max: sorted.last().copied().unwrap_or(0.0),
            samples,
        }
    }
}

/// The event that this share of all does not exceed; they are sorted. `None` of none.
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    sorted.get((sorted.len().saturating_sub(1) as f64 * share).round() as usize).copied()
}

/// Prints rows under a headline, columns as wide as they need to be.
pub fn table(title: &str, header: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let of_rows =
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        of_rows
            .chain([header.get(column).map_or(0, |cell| cell.chars().count())])
            .max()
            .unwrap_or(0)
    };
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, cell) in cells.enumerate() {
            let (gap, width) = (if column == 0 { "" } else { "  " }, width(column));
            line += &match column {
                0 => format!("{gap}{cell:<width$}"),
                _ => format!("{gap}{cell:>width$}"),
            };
        }
        println!("{}", line.trim_end());
    };
    println!("\n{title}");
    print(&mut header.iter().copied());
    for row in rows {
        print(&mut row.iter().map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_odd_even_and_no_samples() {
        assert_eq!(Samples::new(vec![3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Samples::new(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let one = Samples::new(vec![7.0]);
        assert_eq!((one.median, one.min, one.max), (7.0, 7.0, 7.0));
        assert_eq!(Samples::new(Vec::new()).median, 0.0);
    }
}
