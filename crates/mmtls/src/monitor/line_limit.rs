//! How many records of a kind are written each second: what costs its sender little (a SYN of 54 bytes, keys that are wrong)
//! must not be worth a line of 430 as often as it likes.
//!
//! Refuses to count time of its own: it is that of the packets.

const SECOND_NS: u64 = 1_000_000_000;

/// Lines that may be written, of which so many are added each second.
#[derive(Debug)]
pub(super) struct LineLimit {
    per_second: u64,
    left: u64,
    since_ns: u64,
}

impl LineLimit {
    /// A second's worth of lines is saved up at most.
    pub(super) fn new(per_second: u64) -> Self {
        Self { per_second, left: per_second, since_ns: 0 }
    }

    pub(super) fn per_second(&self) -> u64 {
        self.per_second
    }

    /// Whether another line may be written.
    pub(super) fn allow(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            self.since_ns = now_ns;
            self.left = self.per_second;
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_more_than_so_many_lines_a_second() {
        let mut lines = LineLimit::new(3);
        let mut written = |ns| (0..5).filter(|_| lines.allow(ns)).count();
        assert_eq!([written(SECOND_NS), written(SECOND_NS + 5), written(2 * SECOND_NS)], [3, 0, 3]);
        assert_eq!(written(9 * SECOND_NS), 3);
        assert!(!LineLimit::new(0).allow(SECOND_NS));
    }
}
