//! Keys whose session has not been seen, and what a delivery is.
//!
//! Refuses more than its cap, of which no sender has more than is left for all others.

use core::net::IpAddr;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use super::candidates::{Candidates, KeyEnd, KeySource};
use crate::config::Limits;
use crate::session::KeyRefusal;
use crate::tcp::Client;
use crate::tls::{CipherSuite, Direction, KeyEpoch, OpenRecord};

/// One delivery of record keys.
pub struct SharedKeys {
    /// Address of their sender; `None` for a trusted local source (a key log).
    pub sender: Option<IpAddr>,
    /// Over which of its connections they came, 0 if there are none. Those that fit nothing displace no
    /// other connections' keys.
    pub source: u64,
    /// Which session: `ClientHello.random`.
    pub client_random: [u8; 32],
    /// `ServerHello.random`, when the sender knows it; must match.
    pub server_random: Option<[u8; 32]>,
    /// The suite the keys are for; must match.
    pub cipher_suite: CipherSuite,
    /// The keys, by direction and epoch.
    pub keys: Vec<(Direction, KeyEpoch, Box<dyn OpenRecord>)>,
}

impl SharedKeys {
    /// The same keys once more; `None` where they cannot be given twice.
    #[must_use]
    pub fn share(&self) -> Option<Self> {
        let share = |(direction, epoch, opener): &(_, _, Box<dyn OpenRecord>)| {
            opener.share().map(|opener| (*direction, *epoch, opener))
        };
        let keys: Option<Vec<_>> = self.keys.iter().map(share).collect();
        keys.map(|keys| Self { keys, ..*self })
    }
}

/// A delivery for a session that has not been seen.
pub(crate) enum Delivery {
    Keys(SharedKeys),
    /// A refusal, of one direction or both, from this address.
    Null(Option<Direction>, Option<IpAddr>),
}

impl Delivery {
    /// The same for another session.
    pub(crate) fn share(&self) -> Option<Self> {
        match self {
            &Self::Null(direction, address) => Some(Self::Null(direction, address)),
            Self::Keys(keys) => keys.share().map(Self::Keys),
        }
    }

    /// What it counts against the cap.
    pub(crate) fn cost(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.keys.len().max(1),
            Self::Null(..) => 1,
        }
    }

    /// Over which connection it came. Refusals have few things to say; of which end a sender is, its session tells.
    pub(crate) fn source(&self) -> KeySource {
        let connection = match self {
            Self::Keys(keys) => keys.source,
            Self::Null(..) => 0,
        };
        KeySource { connection, end: KeyEnd::Other }
    }
}

/// A sender that may claim a random: with `None`, any.
pub(crate) type PendingKey = (Option<IpAddr>, [u8; 32]);

/// Share of the cap that one sender may have: one part in so many.
const SENDER_SHARE: usize = 16;

pub(crate) struct Claim {
    deliveries: Candidates<Delivery>,
    serial: u64,
}

pub(crate) struct PendingKeys {
    claims: HashMap<PendingKey, Claim, ahash::RandomState>,
    /// Keys kept per sender, of IPv6 per network; without an entry none.
    per_sender: HashMap<Option<Client>, usize, ahash::RandomState>,
    /// In order of time. An entry whose serial is not the claim's is stale.
    order: VecDeque<(u64, PendingKey, u64)>,
    cost: usize,
    next_serial: u64,
}

impl PendingKeys {
    pub(crate) fn new(hasher: ahash::RandomState) -> Self {
        Self {
            claims: HashMap::with_hasher(hasher.clone()),
            per_sender: HashMap::with_hasher(hasher),
            order: VecDeque::new(),
            cost: 0,
            next_serial: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.claims.len()
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.order.front().map(|(deadline, ..)| *deadline)
    }

    /// Keeps a delivery; returns how many others had to go for it.
    ///
    /// # Errors
    /// It is one too many of its sender's.
    pub(crate) fn push(
        &mut self,
        key: PendingKey,
        mut delivery: Delivery,
        now_ns: u64,
        limits: &Limits,
    ) -> Result<u64, KeyRefusal> {
        if let Delivery::Keys(shared) = &mut delivery {
            // Keys behind a KeyUpdate cannot come this soon.
            shared.keys.retain(|(_, epoch, _)| *epoch <= KeyEpoch::Application(0));
        }
        let cost = delivery.cost();
        let sender = key.0.map(Client::new);
        let of_sender = self.per_sender.get(&sender).copied().unwrap_or(0);
        // As much as is left for all others: senders who together have everything cannot be.
        let left = limits.max_pending_keys.saturating_sub(self.cost);
        let quota = match sender {
            Some(_) => (limits.max_pending_keys / SENDER_SHARE).max(1).min(left),
            None => limits.max_pending_keys,
        };
        let source = delivery.source();
        // Before anything is kept: refused deliveries must cost nothing.
        let known = self.claims.get(&key);
        let taken = known.is_none_or(|claim| claim.deliveries.takes(source));
        if !taken || of_sender + cost > quota {
            return Err(KeyRefusal::Capacity);
        }
        let claim = match self.claims.entry(key) {
            Entry::Occupied(claim) => claim.into_mut(),
            Entry::Vacant(vacant) => {
                self.next_serial += 1;
                let deadline = now_ns.saturating_add(limits.pending_keys_timeout_ns);
                self.order.push_back((deadline, key, self.next_serial));
                vacant.insert(Claim { deliveries: Candidates::default(), serial: self.next_serial })
            }
        };
        let mut displaced = 0;
        let mut freed = 0;
        if let Ok(Some(other)) = claim.deliveries.add(source, delivery) {
            freed = other.cost();
            displaced = 1;
        }
        self.cost = self.cost + cost - freed;
        let of_sender = self.per_sender.entry(sender).or_default();
        *of_sender = *of_sender + cost - freed;
        while self.cost > limits.max_pending_keys {
            match self.order.pop_front() {
                Some((_, oldest, serial)) => displaced += self.forget(&oldest, serial),
                None => break,
            }
        }
        Ok(displaced)
    }

    pub(crate) fn take(&mut self, key: &PendingKey) -> Candidates<Delivery> {
        let Some(claim) = self.claims.remove(key) else {
            return Candidates::default();
        };
        let cost: usize = claim.deliveries.iter().map(Delivery::cost).sum();
        self.cost = self.cost.saturating_sub(cost);
        if let Entry::Occupied(mut of_sender) = self.per_sender.entry(key.0.map(Client::new)) {
            *of_sender.get_mut() = of_sender.get().saturating_sub(cost);
            if *of_sender.get() == 0 {
                of_sender.remove();
            }
        }
        // Stale entries at the front would keep the timer busy.
        while let Some((_, front, serial)) = self.order.front()
            && self.claims.get(front).is_none_or(|claim| claim.serial != *serial)
        {
            self.order.pop_front();
        }
        claim.deliveries
    }

    /// Forgets a claim, if it is still that one; returns how many deliveries it had.
    pub(crate) fn forget(&mut self, key: &PendingKey, serial: u64) -> u64 {
        match self.claims.get(key) {
            Some(claim) if claim.serial == serial => self.take(key).len() as u64,
            _ => 0,
        }
    }

    /// Forgets what is too old; returns how many deliveries that were.
    pub(crate) fn expire(&mut self, now_ns: u64) -> u64 {
        let mut expired = 0;
        while self.next_deadline().is_some_and(|deadline| deadline <= now_ns) {
            if let Some((_, key, serial)) = self.order.pop_front() {
                expired += self.forget(&key, serial);
            }
        }
        expired
    }
}
