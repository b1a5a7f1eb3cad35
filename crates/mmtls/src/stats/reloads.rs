//! How often a run was told to read its configuration again, and what came of it.

use std::time::SystemTime;

use super::counts::Count;

/// Reloads of a run.
#[derive(Clone, Copy, Debug)]
pub struct Reloads {
    /// All that were done.
    pub count: u64,
    /// Those that changed nothing, since something was wrong.
    pub failed: u64,
    /// The last one was none of them.
    pub is_last_good: bool,
    /// When what is in force was read.
    pub last_good_at: SystemTime,
}

impl Reloads {
    /// What is in force is what the run was started with.
    #[must_use]
    pub fn new(started_at: SystemTime) -> Self {
        Self { count: 0, failed: 0, is_last_good: true, last_good_at: started_at }
    }

    /// There was one more.
    pub(super) fn add(&mut self, is_good: bool) {
        self.count += 1;
        self.is_last_good = is_good;
        if is_good {
            self.last_good_at = SystemTime::now();
        } else {
            self.failed += 1;
        }
    }

    /// In `stats` and in metrics.
    #[must_use]
    pub fn counts(&self) -> [Count; 2] {
        [
            (
                "reloads",
                "How often configuration, rules, patterns and certificates were to be read again.",
                self.count,
            ),
            (
                "reload_failures",
                "Of those, how often a mistake kept everything as it was.",
                self.failed,
            ),
        ]
    }
}
