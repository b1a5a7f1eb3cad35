//! Keys from a key server, which come as packets: each is sealed, and steered to the worker whose session it is of, as the
//! session's own packets are ([`mmtls_keyshare::sealed`]).
//!
//! Refuses to let any packet that looks like one go on, and to take one that came before, was not sealed by a key server
//! that is connected, or is another worker's: so who repeats one with other addresses gets nowhere.

use std::collections::HashMap;
use std::sync::Arc;

use mmtls_engine::{Link, udp_payload};
use mmtls_keyshare::message::Message;
use mmtls_keyshare::sealed::{self, Delivery, Id, OpenError, Opener};
use mmtls_keyshare::server::{ConnectionId, KeySink, ServerHandle};
use zeroize::Zeroizing;

use super::{KeyRouter, WorkerSink};

/// Where one worker takes them.
pub struct SealedInput {
    own: usize,
    sink: WorkerSink,
    router: Arc<KeyRouter>,
    openers: HashMap<Id, (ConnectionId, Opener)>,
    /// How often the secrets had changed, when the openers were looked through.
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
        self.look_at_secrets();
        let came = std::mem::take(&mut self.came);
        if came {
            self.sink.batch_end();
        }
        came
    }

    /// Follows which key servers are connected: secrets of those that are gone do not stay.
    fn look_at_secrets(&mut self) {
        let secrets = &self.router.sealed;
        let changes = secrets.changes();
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
    }

    fn open(&mut self, payload: &[u8], server: Option<&ServerHandle>) -> Result<(), OpenError> {
        let id = sealed::id_of(payload)?;
        if payload.len() > sealed::MAX_BYTES {
            return Err(OpenError::Forged);
        }
        self.look_at_secrets();
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
                self.router.sealed.count_accepted();
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
