//! Which endpoints were asked for the keys of what is under way, and when.
//!
//! Refuses to remember connections that have ended.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mmtls_keyshare::server::ConnectionId;

/// Pause between two questions to an endpoint, by whichever worker: it answers with thousands of messages.
const PAUSE: Duration = Duration::from_secs(10);

/// How long its answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// As many as there are connections; from then on those of long ago are forgotten.
const MAX_REMEMBERED: usize = 4096;

/// Which endpoints were asked, and when.
#[derive(Default)]
pub(super) struct Asked(HashMap<ConnectionId, Instant>);

impl Asked {
    /// Asks an endpoint where it is time to. `ask` says whether the question is on its way: only then it counts as asked.
    pub(super) fn ask(&mut self, connection: ConnectionId, ask: impl FnOnce() -> bool) {
        if !self.is_within(connection, PAUSE) && ask() {
            if self.0.len() >= MAX_REMEMBERED {
                // Some have ended before they were asked.
                self.0.retain(|_, at| at.elapsed() < PATIENCE);
            }
            self.0.insert(connection, Instant::now());
        }
    }

    /// Whether its answer may be on its way.
    pub(super) fn awaits(&self, connection: ConnectionId) -> bool {
        self.is_within(connection, PATIENCE)
    }

    fn is_within(&self, connection: ConnectionId, time: Duration) -> bool {
        self.0.get(&connection).is_some_and(|at| at.elapsed() < time)
    }

    /// It has ended.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.0.remove(&connection);
    }
}
