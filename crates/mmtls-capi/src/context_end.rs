//! The end of a context: what it has counted by then, and a way to wait for it.
//!
//! Refuses to forget why a context ended: what was said first counts.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mmtls_middlebox::Counters;

/// What a context has counted, and its end, with a way to wait for it.
#[derive(Default)]
pub(crate) struct End {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    counters: Counters,
    /// Once it has ended: why it ended early.
    result: Option<Result<(), String>>,
}

impl End {
    /// What has been counted so far.
    pub(crate) fn count(&self, counters: Counters) {
        lock(&self.state).counters = counters;
    }

    /// Says that it has ended; what was said first counts.
    pub(crate) fn tell(&self, result: Result<(), String>) {
        lock(&self.state).result.get_or_insert(result);
        self.ended.notify_all();
    }

    /// What was counted last.
    pub(crate) fn counters(&self) -> Counters {
        lock(&self.state).counters
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let mut state = lock(&self.state);
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A panic while it was locked has left nothing half done that matters.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
