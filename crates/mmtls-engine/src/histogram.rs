//! How long something took, counted in fixed buckets. Refuses to allocate: counting is an addition to a number.

/// Bounds of the buckets in microseconds; what took longer counts beyond all of them.
const BOUNDS_US: [u64; 16] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 10_000_000,
];

/// Durations by bucket, and their sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    buckets: [u64; BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl Histogram {
    /// Counts a duration.
    pub fn observe_ns(&mut self, duration_ns: u64) {
        let at = BOUNDS_US.partition_point(|bound| bound * 1_000 < duration_ns);
        self.buckets[at] += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration_ns);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together, in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The buckets in order: the largest duration of each in microseconds, `None` for the last one, and how many are
    /// in it alone.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        let bounds = BOUNDS_US.into_iter().map(Some).chain([None]);
        bounds.zip(self.buckets)
    }
}

impl core::ops::AddAssign for Histogram {
    /// That of another engine or worker.
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += more;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_duration_in_one_bucket() {
        let mut all = Histogram::default();
        for ns in [0, 50_000, 50_001, 999_999_999, 1_000_000_000, 10_000_000_001, u64::MAX] {
            all.observe_ns(ns);
        }
        all += all;
        let of = |bound| all.buckets().find(|it| it.0 == bound).unwrap().1;
        assert_eq!([of(Some(50)), of(Some(100)), of(Some(1_000_000)), of(None)], [4, 2, 4, 4]);
        assert_eq!((all.count(), all.sum_ns()), (14, u64::MAX));
    }
}
