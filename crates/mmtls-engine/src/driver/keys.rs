//! Keys from the key channel: matching them to sessions, keeping those that come early.
//!
//! A key channel proves one address, so a dual-stack client opens one per address family; deliveries whose sender is not
//! the session's client are ignored.
//!
//! Refuses keys whose sender is none of those that are configured, by default the session's client; keys for other
//! randoms or suites; and more early deliveries than its cap, of which no sender has more than is left
//! for all others.

use core::net::IpAddr;
use std::collections::hash_map::Entry;

use super::payload::{Payload, is_followed};
use super::{Engine, context};
use crate::keys::{Delivery, KeyEnd, KeySource, SharedKeys};
use crate::session::{Handler, KeyRefusal, RefusedKeys, SessionId};
use crate::tcp::{FlowIndex, Phase};
use crate::tls::{Direction, KeyEpoch};

/// Sessions beside the first one that get the same keys.
const MAX_TWINS: usize = 7;

impl<H: Handler> Engine<H> {
    /// Whether a session of this engine has this random, and takes keys from this sender. What it
    /// does not know may be another engine's, or come later.
    #[must_use]
    pub fn has_session(&mut self, sender: Option<IpAddr>, client_random: &[u8; 32]) -> bool {
        let sender = self.config.key_senders.identity(sender);
        self.sessions_of(client_random).any(|(index, id)| {
            self.flows.get_if(index, id).is_some_and(|flow| {
                let [client, server] = flow.ends.both().map(|end| end.ip());
                self.config.key_senders.accepts(sender, client, server)
            })
        })
    }

    /// The session with a random that had it first.
    fn session_of(&self, client_random: &[u8; 32]) -> Option<(FlowIndex, SessionId)> {
        let flow = |at| self.flows.look(at);
        let has_it =
            |at| flow(at).is_some_and(|flow| flow.payload.key_random() == Some(*client_random));
        let index = self.by_random.find(client_random, has_it)?;
        Some((index, flow(index)?.id))
    }

    /// Sessions with a random, the one that had it first in front.
    fn sessions_of(
        &self,
        client_random: &[u8; 32],
    ) -> impl Iterator<Item = (FlowIndex, SessionId)> + use<H> {
        let first = self.session_of(client_random);
        let others = self.twins.get(client_random).cloned().unwrap_or_default();
        first.into_iter().chain(others)
    }

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

    /// Takes an endpoint's refusal to share a direction, or with `None` both. As [`Engine::handle_keys`].
    ///
    /// # Errors
    /// [`KeyRefusal`]; it has been counted.
    pub fn handle_null_keys(
        &mut self,
        now_ns: u64,
        sender: Option<IpAddr>,
        client_random: [u8; 32],
        direction: Option<Direction>,
    ) -> Result<bool, KeyRefusal> {
        self.now_ns = self.now_ns.max(now_ns);
        self.handle_delivery(sender, client_random, Delivery::Null(direction, sender))
    }

    fn handle_delivery(
        &mut self,
        sender: Option<IpAddr>,
        random: [u8; 32],
        delivery: Delivery,
    ) -> Result<bool, KeyRefusal> {
        let address = sender;
        let sender = self.config.key_senders.identity(sender);
        let Some((index, id)) = self.session_of(&random) else {
            let key = (sender, random);
            let pushed = self.pending.push(key, delivery, self.now_ns, &self.config.limits);
            match &pushed {
                Ok(displaced) => {
                    self.counters.keys_pending += 1;
                    self.counters.keys_expired += displaced;
                }
                Err(_) => {
                    self.counters.keys_over_quota += 1;
                    self.counters.keys_refused += 1;
                }
            }
            return pushed.map(|_| false);
        };
        let mut fits_a_twin = false;
        if self.twins.contains_key(&random) {
            for (index, id) in self.sessions_of(&random).skip(1) {
                if let Some(share) = delivery.share() {
                    fits_a_twin |= self.deliver(index, id, sender, share).is_ok();
                    // Also where they were not needed: they may have ended the session.
                    self.conclude(index);
                }
            }
        }
        let outcome = self.deliver(index, id, sender, delivery);
        let outcome = if fits_a_twin { Ok(()) } else { outcome };
        if let Err(why) = outcome {
            self.tell_refusal(index, id, address, why);
        }
        self.conclude(index);
        outcome.map(|()| true)
    }

    fn tell_refusal(
        &mut self,
        index: FlowIndex,
        id: SessionId,
        sender: Option<IpAddr>,
        why: KeyRefusal,
    ) {
        match why {
            KeyRefusal::WrongSender => self.counters.keys_wrong_sender += 1,
            KeyRefusal::Mismatch => self.counters.keys_mismatch += 1,
            KeyRefusal::OpenNothing | KeyRefusal::Capacity | KeyRefusal::TooManyNullKeys => {}
            KeyRefusal::NotNeeded => {
                self.counters.keys_not_needed += 1;
                return;
            }
        }
        self.counters.keys_refused += 1;
        if let Some(flow) = self.flows.get_if(index, id)
            && let Payload::Tls(tls) = &flow.payload
        {
            let session = tls.session.info();
            let now_ns = self.now_ns;
            self.handler.keys_refused(&RefusedKeys { session, sender, why, now_ns });
        }
    }

    fn deliver(
        &mut self,
        index: FlowIndex,
        id: SessionId,
        sender: Option<IpAddr>,
        delivery: Delivery,
    ) -> Result<(), KeyRefusal> {
        let flow = self.flows.get_if(index, id).ok_or(KeyRefusal::NotNeeded)?;
        let [client, server] = flow.ends.both().map(|end| end.ip());
        if !self.config.key_senders.accepts(sender, client, server) {
            return Err(KeyRefusal::WrongSender);
        }
        // Wherever it is trusted for others.
        let address = match &delivery {
            Delivery::Keys(keys) => keys.sender,
            Delivery::Null(_, address) => *address,
        };
        let of_client = address.is_none_or(|it| it == client || it != server);
        let Payload::Tls(tls) = &mut flow.payload else {
            return Err(KeyRefusal::NotNeeded);
        };
        let known = tls.session.key_random();
        let mut ctx = context!(self, tls.state);
        let mut used = false;
        let mut is_one_too_many = false;
        match delivery {
            Delivery::Null(direction, _) => {
                used = tls.session.handle_null_keys(direction, of_client, &mut ctx);
                is_one_too_many = tls.session.is_one_too_many();
            }
            Delivery::Keys(mut shared) => {
                let info = tls.session.info();
                let ours = tls.session.key_server_random();
                let same_random =
                    shared.server_random.is_none_or(|it| ours.is_none_or(|us| us == it));
                let same_suite = info.cipher_suite.is_none_or(|suite| suite == shared.cipher_suite);
                // The suite of early data is that of the pre-shared key: where it is not the
                // negotiated one, the server rejects them.
                let fits =
                    |epoch: KeyEpoch| epoch == KeyEpoch::EarlyData || (same_random && same_suite);
                let all = shared.keys.len();
                shared.keys.retain(|(_, epoch, _)| fits(*epoch));
                if all > 0 && shared.keys.is_empty() {
                    return Err(KeyRefusal::Mismatch);
                }
                let end = match address {
                    Some(it) if it == client => KeyEnd::Client,
                    Some(it) if it == server => KeyEnd::Server,
                    _ => KeyEnd::Other,
                };
                let source = KeySource { connection: shared.source, end };
                // Early data first: what they are is decided before later keys are looked at. Of an epoch the
                // client first: what waits of the server answers it.
                shared.keys.sort_by_key(|(direction, epoch, _)| (*epoch, direction.index()));
                for (direction, epoch, opener) in shared.keys {
                    used |= tls.session.handle_keys(direction, epoch, source, opener, &mut ctx);
                }
                if of_client {
                    tls.session.note_client_shares();
                }
            }
        }
        let moved = tls.session.key_random() != known;
        if moved {
            // A renegotiation began in what waited for these keys.
            self.register(index, known);
        }
        match used {
            true if is_one_too_many => Err(KeyRefusal::TooManyNullKeys),
            true => Ok(()),
            false => Err(KeyRefusal::NotNeeded),
        }
    }

    /// A session's client random has become known: keys can find it, and some may be waiting.
    pub(super) fn register(&mut self, index: FlowIndex, before: Option<[u8; 32]>) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let (id, [client, server]) = (flow.id, flow.ends.both().map(|end| end.ip()));
        let Payload::Tls(tls) = &flow.payload else {
            return;
        };
        let Some(random) = tls.session.key_random() else {
            return;
        };
        if let Some(before) = before {
            self.unregister(&before, index, id);
        }
        match self.session_of(&random) {
            // A replayed random must not take the keys away from a session that lives. Where it is a
            // copy, the same keys fit both.
            Some((other, other_id)) if self.is_alive(other, other_id) => {
                self.add_twin(random, (index, id));
            }
            had_it => {
                if let Some((other, _)) = had_it {
                    self.by_random.remove(&random, other);
                }
                self.by_random.insert(&random, index);
            }
        }
        let ends: Vec<_> = self.config.key_senders.ends(client, server).map(Some).collect();
        // The client's first: what it refuses stays refused.
        for sender in ends.into_iter().chain([None]) {
            for (_, delivery) in self.pending.take(&(sender, random)).into_items() {
                if let Err(why) = self.deliver(index, id, sender, delivery) {
                    self.tell_refusal(index, id, sender, why);
                }
            }
        }
    }

    fn is_alive(&mut self, index: FlowIndex, id: SessionId) -> bool {
        self.flows.get_if(index, id).is_some_and(|flow| {
            matches!(flow.phase, Phase::Opening | Phase::Open) && is_followed(flow)
        })
    }

    fn add_twin(&mut self, random: [u8; 32], twin: (FlowIndex, SessionId)) {
        let mut twins = self.twins.remove(&random).unwrap_or_default();
        twins.retain(|(index, id)| self.is_alive(*index, *id));
        if twins.len() < MAX_TWINS {
            twins.push(twin);
        }
        self.twins.insert(random, twins);
    }

    /// Forgets a random, if it is still this session's.
    pub(super) fn unregister(&mut self, random: &[u8; 32], index: FlowIndex, id: SessionId) {
        if let Entry::Occupied(mut twins) = self.twins.entry(*random) {
            twins.get_mut().retain(|(_, twin)| *twin != id);
            if twins.get().is_empty() {
                twins.remove();
            }
        }
        if self.by_random.remove(random, index)
            && let Some(mut twins) = self.twins.remove(random)
        {
            // It has its keys, or waits for them as the first one now.
            let (first, _) = twins.remove(0);
            self.by_random.insert(random, first);
            if !twins.is_empty() {
                self.twins.insert(*random, twins);
            }
        }
    }
}
