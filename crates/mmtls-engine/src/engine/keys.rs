//! Keys from the key channel: matching them to sessions, keeping those that come early.
//!
//! Refuses keys whose sender is not the session's client, unless configured; keys for other
//! randoms or suites; and more early deliveries than its cap.

use core::net::IpAddr;
use std::collections::{HashMap, VecDeque};

use super::{Context, Engine, context};
use crate::config::Limits;
use crate::flow::{Carries, FlowIndex};
use crate::session::{Handler, SessionId};
use crate::tls::{CipherSuite, Direction, KeyEpoch, OpenRecord};

/// One delivery of record keys.
pub struct SharedKeys {
    /// Address of whoever delivered them; `None` for a trusted local source (a key log).
    pub sender: Option<IpAddr>,
    /// Which session: `ClientHello.random`.
    pub client_random: [u8; 32],
    /// `ServerHello.random`, when the sender knows it; must match.
    pub server_random: Option<[u8; 32]>,
    /// The suite the keys are for; must match.
    pub cipher_suite: CipherSuite,
    /// The keys, by direction and epoch.
    pub keys: Vec<(Direction, KeyEpoch, Box<dyn OpenRecord>)>,
}

/// Why a delivery was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyRefusal {
    /// The sender is not the session's client.
    WrongSender,
    /// The server random or the suite differs from what was observed.
    Mismatch,
    /// The session has these keys already, is over, or is not followed.
    NotNeeded,
}

/// A delivery for a session that has not been seen.
enum Delivery {
    Keys(SharedKeys),
    Null,
}

/// A sender that may claim a random: with `None`, any.
type PendingKey = (Option<IpAddr>, [u8; 32]);

pub(super) struct PendingKeys {
    by_random: HashMap<PendingKey, Vec<Delivery>, ahash::RandomState>,
    order: VecDeque<(u64, PendingKey)>,
}

/// Deliveries kept for one random: both directions and a few updates.
const MAX_DELIVERIES: usize = 16;

impl PendingKeys {
    pub(super) fn new(hasher: ahash::RandomState) -> Self {
        Self { by_random: HashMap::with_hasher(hasher), order: VecDeque::new() }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.order.front().map(|(deadline, _)| *deadline)
    }

    /// Keeps a delivery; returns how many older ones had to go.
    fn push(&mut self, key: PendingKey, delivery: Delivery, now_ns: u64, limits: &Limits) -> u64 {
        let mut displaced = 0;
        let deliveries = self.by_random.entry(key).or_default();
        if deliveries.len() >= MAX_DELIVERIES {
            return 1;
        }
        if deliveries.is_empty() {
            self.order.push_back((now_ns.saturating_add(limits.pending_keys_timeout_ns), key));
        }
        deliveries.push(delivery);
        while self.order.len() > limits.max_pending_keys {
            if let Some((_, oldest)) = self.order.pop_front() {
                displaced += self.by_random.remove(&oldest).map_or(0, |gone| gone.len() as u64);
            }
        }
        displaced
    }

    fn take(&mut self, key: &PendingKey) -> Vec<Delivery> {
        self.by_random.remove(key).unwrap_or_default()
    }

    /// Forgets what is too old; returns how many deliveries that were.
    pub(super) fn expire(&mut self, now_ns: u64) -> u64 {
        let mut expired = 0;
        while self.next_deadline().is_some_and(|deadline| deadline <= now_ns) {
            if let Some((_, key)) = self.order.pop_front() {
                expired += self.by_random.remove(&key).map_or(0, |gone| gone.len() as u64);
            }
        }
        expired
    }
}

impl<H: Handler> Engine<H> {
    /// Takes a delivery of keys. `Ok(false)` when its session has not been seen yet and it is
    /// kept for a while. Stalled packets are inspected and released through the outputs.
    ///
    /// # Errors
    /// [`KeyRefusal`]; it has been counted.
    pub fn handle_keys(&mut self, now_ns: u64, keys: SharedKeys) -> Result<bool, KeyRefusal> {
        self.now_ns = self.now_ns.max(now_ns);
        let random = keys.client_random;
        self.handle_delivery(keys.sender, random, Delivery::Keys(keys))
    }

    /// Takes an endpoint's refusal to share. As [`Engine::handle_keys`].
    ///
    /// # Errors
    /// [`KeyRefusal`]; it has been counted.
    pub fn handle_null_keys(
        &mut self,
        now_ns: u64,
        sender: Option<IpAddr>,
        client_random: [u8; 32],
    ) -> Result<bool, KeyRefusal> {
        self.now_ns = self.now_ns.max(now_ns);
        self.handle_delivery(sender, client_random, Delivery::Null)
    }

    fn handle_delivery(
        &mut self,
        sender: Option<IpAddr>,
        random: [u8; 32],
        delivery: Delivery,
    ) -> Result<bool, KeyRefusal> {
        let sender = if self.config.any_key_sender { None } else { sender };
        let Some(&(index, id)) = self.by_random.get(&random) else {
            self.counters.keys_pending += 1;
            self.counters.keys_expired +=
                self.pending.push((sender, random), delivery, self.now_ns, &self.config.limits);
            return Ok(false);
        };
        let outcome = self.deliver(index, id, sender, delivery);
        if outcome.is_err() {
            self.counters.keys_refused += 1;
        }
        self.settle(index);
        outcome.map(|()| true)
    }

    fn deliver(
        &mut self,
        index: FlowIndex,
        id: SessionId,
        sender: Option<IpAddr>,
        delivery: Delivery,
    ) -> Result<(), KeyRefusal> {
        let flow = self.flows.get_if(index, id).ok_or(KeyRefusal::NotNeeded)?;
        if sender.is_some_and(|sender| sender != flow.client.ip()) {
            return Err(KeyRefusal::WrongSender);
        }
        let Carries::Tls(session) = &mut flow.carries else {
            return Err(KeyRefusal::NotNeeded);
        };
        let mut ctx = context!(self);
        let mut used = false;
        match delivery {
            Delivery::Null => used = session.handle_null_keys(&mut ctx),
            Delivery::Keys(shared) => {
                let info = &session.info;
                let ours = session.key_server_random();
                let same_random =
                    shared.server_random.is_none_or(|it| ours.is_none_or(|us| us == it));
                let same_suite = info.cipher_suite.is_none_or(|suite| suite == shared.cipher_suite);
                if !same_random || !same_suite {
                    return Err(KeyRefusal::Mismatch);
                }
                for (direction, epoch, opener) in shared.keys {
                    used |= session.handle_keys(direction, epoch, opener, &mut ctx);
                }
            }
        }
        if used { Ok(()) } else { Err(KeyRefusal::NotNeeded) }
    }

    /// A session's client random has become known: keys can find it, and some may be waiting.
    pub(super) fn register(&mut self, index: FlowIndex, before: [u8; 32]) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let (id, client) = (flow.id, flow.client.ip());
        let Carries::Tls(session) = &flow.carries else {
            return;
        };
        let random = session.key_random();
        self.unregister(&before, id);
        if let Some(&(other, other_id)) = self.by_random.get(&random) {
            // A replayed random must not take the keys away from the session that had it first,
            // unless its own client has come back with it.
            let same_client =
                self.flows.get_if(other, other_id).is_none_or(|flow| flow.client.ip() == client);
            if !same_client {
                return;
            }
        }
        self.by_random.insert(random, (index, id));
        for sender in [Some(client), None] {
            for delivery in self.pending.take(&(sender, random)) {
                if self.deliver(index, id, sender, delivery).is_err() {
                    self.counters.keys_refused += 1;
                }
            }
        }
    }

    /// Forgets a random, if it is still this session's.
    pub(super) fn unregister(&mut self, random: &[u8; 32], id: SessionId) {
        if self.by_random.get(random).is_some_and(|(_, owner)| *owner == id) {
            self.by_random.remove(random);
        }
    }
}
