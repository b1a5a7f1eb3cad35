//! The time that engines get.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall-clock nanoseconds that never go back, whatever is done to the system's clock.
pub(super) struct Clock {
    base_ns: u64,
    start: Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        let base = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { base_ns: nanos(base), start: Instant::now() }
    }

    pub(super) fn ns_at(&self, instant: Instant) -> u64 {
        self.base_ns.saturating_add(nanos(instant.saturating_duration_since(self.start)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
