//! What a run takes over while it runs: put down for the workers, each of which looks at its tick.
//!
//! Refuses to wait in a worker, and to hand out half a change: what is put down is whole, and was checked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mmtls_middlebox::Settings;
use mmtls_middlebox::worker::Worker;
use mmtls_packet_io::Ports;

use crate::monitor::{Monitor, MonitorConfig};
use crate::patterns::Patterns;

/// Settings that are to come in force.
pub struct Change {
    /// Those of the engine, for all workers together.
    pub settings: Settings,
    /// Those of the application.
    pub monitor: MonitorConfig,
    /// The patterns that these name.
    pub patterns: Option<Arc<Patterns>>,
}

/// The last change, and who has it.
pub struct Exchange {
    /// Its number; 0 is what the run was started with.
    version: AtomicU64,
    current: Mutex<Option<Arc<Change>>>,
    taken: Vec<AtomicU64>,
}

impl Exchange {
    /// For so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let taken = (0..workers).map(|_| AtomicU64::new(0)).collect();
        Self { version: AtomicU64::new(0), current: Mutex::new(None), taken }
    }

    /// Puts a change down.
    pub fn put(&self, mut change: Change) {
        let mut current = self.current();
        let version = self.version.load(Ordering::Relaxed) + 1;
        if let Some(patterns) = change.patterns.as_mut().and_then(Arc::get_mut) {
            patterns.version = version;
        }
        *current = Some(Arc::new(change));
        self.version.store(version, Ordering::Release);
    }

    /// What a worker does at its tick.
    pub fn work<P: Ports>(&self, number: usize, worker: &mut Worker<Monitor, P>) {
        let version = self.version.load(Ordering::Acquire);
        let Some(taken) = self.taken.get(number) else {
            return;
        };
        if taken.load(Ordering::Relaxed) == version {
            return;
        }
        // Possibly a later one already: then it is taken again.
        let current = self.current().clone();
        if let Some(change) = current {
            worker.reconfigure(&change.settings);
            worker.handler_mut().reconfigure(&change.monitor, change.patterns.clone());
        }
        taken.store(version, Ordering::Release);
    }

    /// Whether all workers have what was put down last.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        let version = self.version.load(Ordering::Acquire);
        self.taken.iter().all(|taken| taken.load(Ordering::Acquire) >= version)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Change>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
