//! An axis of a plot: its range, its ticks, and where a value stands on it.
//!
//! Refuses to put a value where no axis is: on a logarithmic one, zero has a place of its own at the edge.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

use crate::report::show;
use crate::results::Scale;

/// From values to places, which are linear.
pub struct Positions {
    is_log: bool,
    /// The place of zero on a logarithmic axis, and of what is below it.
    zero: f64,
    pub from: f64,
    pub to: f64,
    /// Values with a tick.
    pub ticks: Vec<f64>,
}

impl Positions {
    /// For an axis of quantities: from zero, if it is linear, to a little more than the largest.
    pub fn of_quantities(
        scale: Scale,
        values: impl Iterator<Item = f64> + Clone,
        ticks: usize,
    ) -> Self {
        match scale {
            Scale::Log => Self::logarithmic(values),
            _ => {
                Self::linear(values.clone().fold(0.0, f64::min), values.fold(0.0, f64::max), ticks)
            }
        }
    }

    fn linear(least: f64, largest: f64, ticks: usize) -> Self {
        let largest = if largest > least { largest } else { least + 1.0 };
        let step = nice_step((largest - least) / ticks.max(1) as f64);
        let (first, last) = ((least / step).floor(), (largest / step).ceil());
        let ticks = (0..=(last - first) as usize).map(|it| (first + it as f64) * step).collect();
        Self { is_log: false, zero: 0.0, from: first * step, to: last * step, ticks }
    }

    fn logarithmic(values: impl Iterator<Item = f64> + Clone) -> Self {
        let has_zero = values.clone().any(|value| value <= 0.0);
        let positive = values.filter(|value| *value > 0.0);
        let least = positive.clone().fold(f64::INFINITY, f64::min);
        let (least, largest) = match least.is_finite() {
            true => (least.log10().floor(), positive.fold(0.0, f64::max).log10().ceil()),
            false => (0.0, 1.0),
        };
        let largest = largest.max(least + 1.0);
        let mut ticks: Vec<f64> =
            (least as i32..=largest as i32).map(|power| 10_f64.powi(power)).collect();
        // Within one or two powers, those between them help.
        if ticks.len() <= 3 {
            let between = [2.0, 5.0];
            ticks = ticks
                .iter()
                .flat_map(|tick| [1.0, between[0], between[1]].map(|by| tick * by))
                .collect();
            ticks.retain(|tick| *tick <= 10_f64.powf(largest) * 1.001);
        }
        let zero = least - 0.6;
        if has_zero {
            ticks.insert(0, 0.0);
        }
        Self { is_log: true, zero, from: if has_zero { zero } else { least }, to: largest, ticks }
    }

    /// For places that are given: a tick at each.
    pub fn of_places(scale: Scale, places: &[f64]) -> Self {
        let mut ticks = places.to_vec();
        ticks.sort_by(f64::total_cmp);
        let is_log = scale == Scale::Log;
        let positive = ticks.iter().copied().find(|place| *place > 0.0).unwrap_or(1.0);
        // As far from the first as places are from each other, if they were powers of ten.
        let zero = positive.log10() - 1.0;
        let mut positions = Self { is_log, zero, from: 0.0, to: 0.0, ticks };
        let place = |tick: Option<&f64>| tick.map_or(0.0, |tick| positions.at(*tick));
        let (first, last) = (place(positions.ticks.first()), place(positions.ticks.last()));
        let edge = ((last - first) * 0.04).max(1e-9);
        (positions.from, positions.to) = (first - edge, last + edge);
        positions
    }

    /// The place of a value.
    pub fn at(&self, value: f64) -> f64 {
        match self.is_log {
            true if value > 0.0 => value.log10(),
            true => self.zero,
            false => value,
        }
    }

    /// The value that has its tick at a place.
    pub fn tick_at(&self, place: f64) -> Option<f64> {
        let near = |tick: &f64| (self.at(*tick) - place).abs();
        self.ticks.iter().copied().min_by(|one, other| near(one).total_cmp(&near(other)))
    }

    /// Leaves out ticks whose labels would touch the one before.
    pub fn thin(&mut self, pixels: i32, width_of: impl Fn(f64) -> i32) {
        let (from, range) = (self.from, self.to - self.from);
        let mut end = f64::NEG_INFINITY;
        let ticks = std::mem::take(&mut self.ticks);
        for tick in ticks {
            let middle = (self.at(tick) - from) / range * f64::from(pixels);
            let half = f64::from(width_of(tick)) / 2.0 + 4.0;
            if middle - half >= end {
                end = middle + half;
                self.ticks.push(tick);
            }
        }
    }
}

/// An axis for `plotters`, with ticks where they are wanted.
pub struct Ticked {
    inner: RangedCoordf64,
    ticks: Vec<f64>,
}

impl From<&Positions> for Ticked {
    fn from(positions: &Positions) -> Self {
        let ticks = positions.ticks.iter().map(|tick| positions.at(*tick)).collect();
        Self { inner: (positions.from..positions.to).into(), ticks }
    }
}

impl Ranged for Ticked {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.inner.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.inner.range()
    }
}

impl ValueFormatter<f64> for Ticked {
    fn format_ext(&self, value: &f64) -> String {
        show::number(*value)
    }
}

/// 1, 2 or 5 times a power of ten, and not less than a step.
fn nice_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|by| by * power);
    steps.into_iter().find(|nice| *nice >= step * 0.999).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_ticks_that_people_read() {
        let linear = Positions::of_quantities(Scale::Linear, [0.41, 2.43].into_iter(), 5);
        assert_eq!((linear.from, linear.to), (0.0, 2.5));
        assert_eq!(linear.ticks.len(), 6);
        let below = Positions::of_quantities(Scale::Linear, [-1.5, 4.4].into_iter(), 5);
        assert_eq!((below.from, below.to, below.ticks.len()), (-2.0, 6.0, 5));
        let log = Positions::of_quantities(Scale::Log, [0.0, 4.0, 900.0].into_iter(), 5);
        assert_eq!(log.ticks, [0.0, 1.0, 10.0, 100.0, 1000.0]);
        assert!(log.at(0.0) < log.at(1.0));
    }

    #[test]
    fn thins_labels_that_would_touch() {
        let mut places = Positions::of_places(Scale::Linear, &[1.0, 2.0, 50.0, 100.0]);
        places.thin(400, |_| 40);
        assert_eq!(places.ticks, [1.0, 50.0, 100.0]);
    }
}
