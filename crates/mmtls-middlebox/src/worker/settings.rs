//! What the caller chooses of a worker.

use std::time::Duration;

/// How a worker moves frames.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Frames per system call.
    pub batch: usize,
    /// How long to let frames gather where many come; zero never waits.
    pub moderation: Duration,
    /// Somebody else forwards the frames, and nothing is sent.
    pub passive: bool,
}
