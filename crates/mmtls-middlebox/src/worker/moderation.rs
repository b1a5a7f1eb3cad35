//! Interrupt moderation for sockets.

use std::time::{Duration, Instant};

use super::settings::Settings;

/// Frames per [`SLOT`] from which on the worker pauses between two looks. With fewer, as in bulk
/// transfers of large frames, pauses cost more than they save: the endpoints run dry meanwhile.
const BUSY_FRAMES: usize = 100;

/// How long frames are counted for [`BUSY_FRAMES`]: 100 of them are 100,000 a second.
const SLOT: Duration = Duration::from_millis(1);

/// How long frames gather that somebody else forwards.
const PASSIVE_PAUSE: Duration = Duration::from_millis(1);

/// Interrupt moderation, as network cards have it: where many frames come one by one, waking up
/// for each costs more than the frame. A short pause lets them gather into batches.
pub(super) struct Moderation {
    pause: Duration,
    /// Frames per [`SLOT`] from which on there are pauses.
    busy_frames: usize,
    slot_end: Instant,
    /// Frames in this slot and in the one before.
    frames: [usize; 2],
}

impl Moderation {
    pub(super) fn new(settings: Settings) -> Self {
        let (pause, busy_frames) = match settings.passive {
            // Nobody waits for what is only looked at.
            true if !settings.moderation.is_zero() => (PASSIVE_PAUSE, 1),
            _ => (settings.moderation, BUSY_FRAMES),
        };
        Self { pause, busy_frames, slot_end: Instant::now() + SLOT, frames: [0; 2] }
    }

    /// Takes note of a turn's frames and pauses when many come in small turns.
    pub(super) fn turn(&mut self, now: Instant, frames: usize, batch: usize) {
        if self.pause.is_zero() {
            return;
        }
        if now >= self.slot_end {
            let skipped = now - self.slot_end >= SLOT;
            self.frames = [0, if skipped { 0 } else { self.frames[0] }];
            self.slot_end = now + SLOT;
        }
        self.frames[0] += frames;
        let busy = self.frames.iter().any(|&frames| frames >= self.busy_frames);
        if busy && frames < batch {
            std::thread::sleep(self.pause);
        }
    }
}
