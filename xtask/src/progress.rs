//! One line now and then about long work, so that nobody takes it for hung.
//!
//! Refuses to say anything about what is done soon.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(30);

/// Counts steps of known number.
pub struct Progress {
    what: &'static str,
    all: usize,
    /// Begun before the one at hand.
    done: usize,
    due: Instant,
}

impl Progress {
    /// `what` reads well behind "12 of 90".
    pub fn new(what: &'static str, all: usize) -> Self {
        Self { what, all, done: 0, due: Instant::now() + INTERVAL }
    }

    /// One more begins.
    pub fn step(&mut self) {
        let now = Instant::now();
        if now >= self.due {
            self.due = now + INTERVAL;
            println!("{} of {} {}", self.done, self.all, self.what);
        }
        self.done += 1;
    }
}
