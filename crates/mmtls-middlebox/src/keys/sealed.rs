//! Keys from a key server, which come as packets: each is sealed, and steered to the worker whose session it is of, as the
//! session's own packets are ([`mmtls_keyshare::sealed`]).
//!
//! Refuses to let any packet that looks like one go on, and to take one that came before, was not sealed by a key server
//! that is connected, or is another worker's: so who repeats one with other addresses gets nowhere.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mmtls_engine::{Link, udp_payload};
use mmtls_keyshare::message::Message;
use mmtls_keyshare::sealed::{self, Delivery, Id, OpenError, Opener, Secret};
use mmtls_keyshare::server::{ConnectionId, KeySink, ServerHandle};
use zeroize::Zeroizing;

use super::{KeyRouter, WorkerSink};

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
    fn lock(&self) -> MutexGuard<'_, HashMap<Id, (ConnectionId, Secret)>> {
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

    fn count(&self, error: OpenError) {
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

/// Where one worker takes them.
pub struct SealedInput {
    own: usize,
    sink: WorkerSink,
    router: Arc<KeyRouter>,
    openers: HashMap<Id, (ConnectionId, Opener)>,
    /// Of [`Secrets::changes`], when the openers were looked through.
    seen_changes: u64,
    /// What is being opened.
    buffer: Zeroizing<Vec<u8>>,
    /// Keys have come that the worker has not looked at.
    came: bool,
}

impl SealedInput {
    /// For the worker with this number.
    #[must_use]
    pub fn new(own: usize, sink: WorkerSink) -> Self {
        let router = Arc::clone(&sink.router);
        Self {
            own,
            sink,
            router,
            openers: HashMap::new(),
            seen_changes: 0,
            // Never grows, which would leave copies of keys in freed memory.
            buffer: Zeroizing::new(Vec::with_capacity(sealed::MAX_BYTES)),
            came: false,
        }
    }

    /// Takes a frame if it looks like a key server's, whatever comes of it: then it must not go on.
    pub fn take(&mut self, frame: &[u8], server: Option<&ServerHandle>) -> bool {
        let Some(payload) = udp_payload(Link::Ethernet, frame) else {
            return false;
        };
        match self.open(payload, server) {
            Err(OpenError::Foreign) => return false,
            Err(error) => self.router.sealed.count(error),
            Ok(()) => {}
        }
        true
    }

    /// Whether keys have come since it was asked last.
    pub fn has_come(&mut self) -> bool {
        let came = std::mem::take(&mut self.came);
        if came {
            self.sink.batch_end();
        }
        came
    }

    fn open(&mut self, payload: &[u8], server: Option<&ServerHandle>) -> Result<(), OpenError> {
        let id = sealed::id_of(payload)?;
        if payload.len() > sealed::MAX_BYTES {
            return Err(OpenError::Forged);
        }
        let secrets = &self.router.sealed;
        let changes = secrets.changes.load(Ordering::Acquire);
        if changes != self.seen_changes {
            self.seen_changes = changes;
            let known = secrets.lock();
            self.openers.retain(|id, _| known.contains_key(id));
            for (id, (connection, secret)) in &*known {
                if !self.openers.contains_key(id)
                    && let Some(opener) = Opener::new(secret.clone())
                {
                    self.openers.insert(*id, (*connection, opener));
                }
            }
        }
        let Self { own, sink, router, openers, buffer, came, .. } = self;
        let (connection, opener) = openers.get_mut(&id).ok_or(OpenError::UnknownSecret)?;
        buffer.clear();
        buffer.extend_from_slice(payload);
        let mut worker = Worker { own: *own, sink, router, came };
        opener.open(buffer, |delivery| worker.deliver(*connection, delivery, server))
    }
}

/// Whom it is delivered to.
struct Worker<'a> {
    own: usize,
    sink: &'a mut WorkerSink,
    router: &'a KeyRouter,
    came: &'a mut bool,
}

impl Worker<'_> {
    fn deliver(
        &mut self,
        key_server: ConnectionId,
        Delivery { endpoint, address, message }: Delivery,
        server: Option<&ServerHandle>,
    ) {
        let flow = match &message {
            Message::SessionKeys(keys) => keys.flow.as_ref().map(|flow| (flow, keys.client_random)),
            Message::NullKeys(null) => null.flow.as_ref().map(|flow| (flow, null.client_random)),
            _ => None,
        };
        if flow.is_none_or(|(flow, random)| self.sink.home(Some(flow), &random) != self.own) {
            return self.router.sealed.count(OpenError::Malformed);
        }
        let connection = ConnectionId::of_endpoint(key_server, endpoint);
        match self.sink.deliver(address.ip(), connection.number(), message) {
            Ok(()) => {
                *self.came = true;
                self.router.sealed.tally.accepted.fetch_add(1, Ordering::Relaxed);
            }
            Err(refused) => {
                if let Some(server) = server {
                    // A full queue means that the endpoint is slow, or flooded with refusals.
                    let _ = server.send_to(connection, &Message::Refused(refused));
                }
            }
        }
    }
}
