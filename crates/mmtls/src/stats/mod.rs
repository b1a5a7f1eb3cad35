//! What a run has counted: where workers put it several times a second, and where others read it.
//!
//! Readers never touch a worker. Refuses to let one wait for a reader: a lock is held for a copy, no longer.

pub mod counts;
pub mod metrics;
mod reloads;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mmtls_engine::Limits;
use mmtls_middlebox::{KeyCounters, KeyMeter, Status};

use crate::rules::Reloader;
use crate::summary::Summary;
pub use reloads::Reloads;

/// What is counted, as of each worker's last tick.
pub struct Snapshots {
    start: Instant,
    started_at: SystemTime,
    /// When a worker has put it down, and what.
    workers: Vec<Mutex<(Instant, Status, Summary)>>,
    keys: KeyMeter,
    limits: Mutex<Limits>,
    key_certificate_end: Mutex<Option<SystemTime>>,
    rules: Option<Reloader>,
    reloads: Mutex<Reloads>,
}

impl Snapshots {
    /// For so many workers that have counted nothing yet. `limits` are those of all together.
    #[must_use]
    pub fn new(workers: usize, keys: KeyMeter, limits: Limits, rules: Option<Reloader>) -> Self {
        let start = Instant::now();
        let started_at = SystemTime::now();
        let nothing = || Mutex::new((start, Status::default(), Summary::default()));
        Self {
            start,
            started_at,
            workers: (0..workers).map(|_| nothing()).collect(),
            keys,
            limits: Mutex::new(limits),
            key_certificate_end: Mutex::new(None),
            rules,
            reloads: Mutex::new(Reloads::new(started_at)),
        }
    }

    /// How long the run has lasted.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    /// When it began.
    #[must_use]
    pub fn started_at(&self) -> SystemTime {
        self.started_at
    }

    /// What may be kept by all workers together.
    #[must_use]
    pub fn limits(&self) -> Limits {
        *lock(&self.limits)
    }

    /// From now on that is another amount.
    pub fn set_limits(&self, limits: Limits) {
        *lock(&self.limits) = limits;
    }

    /// When the key channel's certificate ends, where that is known.
    #[must_use]
    pub fn key_certificate_end(&self) -> Option<SystemTime> {
        *lock(&self.key_certificate_end)
    }

    /// From now on it is another certificate.
    pub fn set_key_certificate_end(&self, end: Option<SystemTime>) {
        *lock(&self.key_certificate_end) = end;
    }

    /// The rules, and how they are read again; `None` without rules.
    #[must_use]
    pub fn rules(&self) -> Option<&Reloader> {
        self.rules.as_ref()
    }

    /// How often everything was read again.
    #[must_use]
    pub fn reloads(&self) -> Reloads {
        *lock(&self.reloads)
    }

    /// It was once more, and is in force, or nothing has changed.
    pub fn add_reload(&self, is_good: bool) {
        lock(&self.reloads).add(is_good);
    }

    /// The key channel's counters, and why the key log cannot be read.
    #[must_use]
    pub fn key_meter(&self) -> &KeyMeter {
        &self.keys
    }

    /// The key channel's counters.
    #[must_use]
    pub fn keys(&self) -> KeyCounters {
        self.keys.read()
    }

    /// What a worker has counted.
    pub fn put(&self, number: usize, status: Status, summary: &Summary) {
        if let Some(place) = self.workers.get(number) {
            *lock(place) = (Instant::now(), status, summary.clone());
        }
    }

    /// What each worker has counted.
    #[must_use]
    pub fn each(&self) -> Vec<(Status, Summary)> {
        self.each_with_time().into_iter().map(|(_, status, summary)| (status, summary)).collect()
    }

    /// The same, each with when it was put down: rates are over that time, since ticks are not even.
    #[must_use]
    pub fn each_with_time(&self) -> Vec<(Instant, Status, Summary)> {
        self.workers.iter().map(|worker| lock(worker).clone()).collect()
    }

    /// What all of them have counted.
    #[must_use]
    pub fn sum(&self) -> (Status, Summary) {
        let mut sum = (Status::default(), Summary::default());
        for (status, summary) in self.each() {
            sum.0 += &status;
            sum.1 += &summary;
        }
        sum
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
