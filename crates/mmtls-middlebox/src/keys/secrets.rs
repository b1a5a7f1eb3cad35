//! What the packets of key servers are sealed with, and what came of them: for all workers.
//!
//! Refuses to keep a secret for longer than its key server is connected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mmtls_keyshare::sealed::{Id, OpenError, Secret};
use mmtls_keyshare::server::ConnectionId;

/// What the key servers' packets are sealed with, for all workers.
#[derive(Default)]
pub(super) struct Secrets {
    known: Mutex<HashMap<Id, (ConnectionId, Secret)>>,
    /// How often that has changed.
    changes: AtomicU64,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    accepted: AtomicU64,
    unknown: AtomicU64,
    forged: AtomicU64,
    replayed: AtomicU64,
    malformed: AtomicU64,
}

/// What came of the packets that looked like a key server's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealedCounters {
    /// Keys, or their refusal, that were taken.
    pub accepted: u64,
    /// Of no key server that is connected: of an earlier connection, or made up.
    pub unknown: u64,
    /// Sealed by nobody who may, or changed on the way.
    pub forged: u64,
    /// Came before.
    pub replayed: u64,
    /// Sealed by a key server, and no keys or another worker's: a fault of the key server, or a packet that somebody has
    /// sent to another worker.
    pub malformed: u64,
}

impl Secrets {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Id, (ConnectionId, Secret)>> {
        // Consistent between any two statements, so poison means nothing here.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, connection: ConnectionId, secret: Secret) {
        self.lock().insert(secret.id(), (connection, secret));
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub(super) fn remove(&self, connection: ConnectionId) {
        self.lock().retain(|_, (of, _)| *of != connection);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// How often they have changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn count_accepted(&self) {
        self.tally.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counters(&self) -> SealedCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Tally { accepted, unknown, forged, replayed, malformed } = &self.tally;
        SealedCounters {
            accepted: read(accepted),
            unknown: read(unknown),
            forged: read(forged),
            replayed: read(replayed),
            malformed: read(malformed),
        }
    }

    pub(super) fn count(&self, error: OpenError) {
        let counter = match error {
            OpenError::Foreign => return,
            OpenError::UnknownSecret => &self.tally.unknown,
            OpenError::Forged => &self.tally.forged,
            OpenError::Replayed => &self.tally.replayed,
            OpenError::Malformed => &self.tally.malformed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
