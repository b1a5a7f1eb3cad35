//! A time in which the guard forwards in a worker's place.
//!
//! Refuses to call that silence which is a flood.

use std::time::{Duration, Instant};

/// For how long more has to come than is discarded before the operator is told: a monitor that was stopped finds its sockets full.
const FLOOD: Duration = Duration::from_secs(1);

/// What a worker knows of it.
#[derive(Default)]
pub(super) struct Outage {
    /// The lease was lost, and is not held again.
    is_lost: bool,
    /// Since when more comes than is discarded of what the guard has forwarded.
    flooded_since: Option<Instant>,
    is_flood_told: bool,
}

impl Outage {
    /// The guard forwards.
    pub(super) fn begin(&mut self) {
        self.is_lost = true;
    }

    /// Frames are shown. Whether others were not before.
    pub(super) fn end(&mut self) -> bool {
        std::mem::take(self).is_lost
    }

    /// More has come than could be discarded: nobody was silent, but the kernel goes on. Whether the operator is to be told now.
    pub(super) fn is_flood(&mut self, now: Instant) -> bool {
        let since = *self.flooded_since.get_or_insert(now);
        let is_new = !self.is_flood_told && now.saturating_duration_since(since) >= FLOOD;
        self.is_flood_told |= is_new;
        is_new
    }
}
