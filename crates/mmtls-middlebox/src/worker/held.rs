//! Frames that wait for their verdict, and how long they have. Refuses to look at a clock: it is told the time of the turn.

use std::collections::HashMap;

use mmtls_engine::{Histogram, HoldId};
use mmtls_packet_io::HeldFrame;

/// The frames that a worker's engine holds.
#[derive(Default)]
pub(super) struct HeldFrames {
    frames: HashMap<HoldId, (HeldFrame, u64)>,
    times: Histogram,
}

impl HeldFrames {
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// How long those were held that are not any more.
    pub(super) fn times(&self) -> &Histogram {
        &self.times
    }

    pub(super) fn insert(&mut self, id: HoldId, frame: HeldFrame, now_ns: u64) {
        self.frames.insert(id, (frame, now_ns));
    }

    /// The frame, whose verdict is there.
    pub(super) fn take(&mut self, id: HoldId, now_ns: u64) -> Option<HeldFrame> {
        let (frame, since_ns) = self.frames.remove(&id)?;
        self.times.observe_ns(now_ns.saturating_sub(since_ns));
        Some(frame)
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
    }
}
