//! What a run takes over while it runs: put down for the workers, each of which looks at its tick.
//!
//! Refuses to wait in a worker, and to hand out half a change: what is put down is whole, and was checked.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mmtls_middlebox::Settings;
use mmtls_middlebox::worker::{SLOTS_PER_TICK, TICK_PAUSE, Worker};
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
    taken: Vec<Taken>,
}

/// What a worker has taken over.
struct Taken {
    version: AtomicU64,
    /// The place in the table of connections up to which sessions have, too.
    next: AtomicUsize,
}

impl Exchange {
    /// For so many workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let taken = || Taken { version: AtomicU64::new(0), next: AtomicUsize::new(usize::MAX) };
        let taken = (0..workers).map(|_| taken()).collect();
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
        if taken.version.load(Ordering::Relaxed) == version {
            taken.update_sessions(worker);
            return;
        }
        // Possibly a later one already: then it is taken again.
        let current = self.current().clone();
        if let Some(change) = current {
            worker.reconfigure(&change.settings);
            worker.handler_mut().reconfigure(&change.monitor, change.patterns.clone());
        }
        taken.next.store(0, Ordering::Relaxed);
        taken.version.store(version, Ordering::Release);
        taken.update_sessions(worker);
    }

    /// Whether all workers have what was put down last.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        let version = self.version.load(Ordering::Acquire);
        self.taken.iter().all(|taken| taken.version.load(Ordering::Acquire) >= version)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Change>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Has the next part of the open sessions go by the rules in force.
    fn update_sessions<P: Ports>(&self, worker: &mut Worker<Monitor, P>) {
        let from = self.next.load(Ordering::Relaxed);
        if from == usize::MAX {
            return;
        }
        let end = from.saturating_add(SLOTS_PER_TICK);
        worker.update_states(from..end, Monitor::take_over_rules);
        let is_done = end >= worker.engine().slots();
        self.next.store(if is_done { usize::MAX } else { end }, Ordering::Relaxed);
        if !is_done {
            worker.tick_again_after(TICK_PAUSE);
        }
    }
}
