//! Keys of sessions whose beginning was not seen: nothing but their records tells which connection they are of.
//!
//! Refuses more than [`MAX_PER_SENDER`] sessions of a sender (an IPv6 network is one), more than [`MAX_SESSIONS`], and to keep
//! them for long. Nobody's connection is taken by a claim: a record's tag has to prove it.

use core::mem;
use core::net::{IpAddr, SocketAddr};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::config::KeySenders;
use crate::session::KeyRefusal;
use crate::tcp::Client;
use crate::tls::{
    CipherSuite, Direction, LocateRecord, OpenRecord, ProtocolVersion, RECORD_HEADER_LEN,
};

/// Sessions whose keys may wait, for all senders together.
const MAX_SESSIONS: usize = 1 << 15;

/// The same of one sender: as many as an agent keeps of each kind.
const MAX_PER_SENDER: usize = 8192;

/// Keys of one session: both directions, and some more where it is not known which epochs are in use.
const MAX_KEYS: usize = 6;

/// How long they are kept; those that come again begin anew.
const LIFETIME_NS: u64 = 120_000_000_000;

/// Repetitions within so long change nothing.
const RENEWAL_NS: u64 = 10_000_000_000;

/// What passing over a session costs, looking at it, and hashing at least, in bytes that are hashed.
const PASS_COST: usize = 8;
const LOOK_COST: usize = 64;
const HASH_COST: usize = 512;

/// Times that a record is hashed, at most.
const HASHES: usize = 2;

/// The keys of one session that is under way.
pub struct LiveKeys {
    /// Address of their sender; `None` for a trusted local source.
    pub sender: Option<IpAddr>,
    /// `ClientHello.random`.
    pub client_random: [u8; 32],
    /// `ServerHello.random`, when the sender knows it.
    pub server_random: Option<[u8; 32]>,
    /// The negotiated version.
    pub version: ProtocolVersion,
    /// The negotiated suite.
    pub cipher_suite: CipherSuite,
    /// The keys.
    pub keys: Vec<LiveKey>,
}

/// Those of one direction and epoch.
pub struct LiveKey {
    /// Who sends with them.
    pub direction: Direction,
    /// KeyUpdates before.
    pub updates: u32,
    /// Opens records whose number is known.
    pub opener: Box<dyn OpenRecord>,
    /// Finds the number.
    pub locator: Arc<dyn LocateRecord>,
}

/// For whose sessions they count: those of an address, or with `None`, of any.
type Identity = Option<IpAddr>;

/// Their sessions. Who sends them chooses the randoms.
type ByRandom = HashMap<[u8; 32], Kept, ahash::RandomState>;

struct Kept {
    keys: LiveKeys,
    deadline_ns: u64,
}

/// All that wait for their connection.
pub(crate) struct LiveSessions {
    of: HashMap<Identity, ByRandom, ahash::RandomState>,
    /// By where they really came from.
    per_sender: HashMap<Option<Client>, usize, ahash::RandomState>,
    /// In order of time; one that has come again is there more than once.
    order: VecDeque<(u64, Identity, [u8; 32])>,
    len: usize,
}

/// How far the look through those of a connection is, and what it may cost.
pub(crate) struct Effort {
    /// Sessions to pass over: they were tried on the last record.
    pub(crate) from: usize,
    /// What is left, and what was used, in bytes that are hashed.
    pub(crate) left: usize,
    pub(crate) used: usize,
}

impl Effort {
    /// Whether it is not enough for another look.
    pub(crate) fn is_spent(&self) -> bool {
        self.used + LOOK_COST > self.left
    }

    /// Whether so much more is allowed; it is used then.
    fn spend(&mut self, cost: usize) -> bool {
        let enough = self.used + cost <= self.left;
        self.used += if enough { cost } else { 0 };
        enough
    }
}

impl LiveSessions {
    pub(crate) fn new(hasher: ahash::RandomState) -> Self {
        Self {
            of: HashMap::with_hasher(hasher.clone()),
            per_sender: HashMap::with_hasher(hasher),
            order: VecDeque::new(),
            len: 0,
        }
    }

    /// Keeps the keys of a session.
    ///
    /// # Errors
    /// It is one too many.
    pub(crate) fn push(
        &mut self,
        mut keys: LiveKeys,
        senders: &KeySenders,
        now_ns: u64,
    ) -> Result<(), KeyRefusal> {
        self.expire(now_ns);
        keys.keys.truncate(MAX_KEYS);
        let (identity, random) = (senders.identity(keys.sender), keys.client_random);
        let deadline_ns = now_ns.saturating_add(LIFETIME_NS);
        let known = self.of.get(&identity).and_then(|all| all.get(&random));
        let known = known.map(|it| (it.deadline_ns, it.keys.sender));
        if known.is_some_and(|(deadline, _)| deadline_ns - deadline < RENEWAL_NS) {
            return Ok(());
        }
        // Another sender's of the same session give way.
        if known.is_some() {
            self.remove(identity, &random);
        }
        let sender = keys.sender.map(Client::new);
        let of_sender = self.per_sender.get(&sender).copied().unwrap_or(0);
        if of_sender >= MAX_PER_SENDER || self.len >= MAX_SESSIONS {
            return Err(KeyRefusal::Capacity);
        }
        let hasher = self.of.hasher().clone();
        let all = self.of.entry(identity).or_insert_with(|| HashMap::with_hasher(hasher));
        all.insert(random, Kept { keys, deadline_ns });
        *self.per_sender.entry(sender).or_default() += 1;
        self.order.push_back((deadline_ns, identity, random));
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, identity: Identity, random: &[u8; 32]) -> Option<LiveKeys> {
        let all = self.of.get_mut(&identity)?;
        let Kept { keys, .. } = all.remove(random)?;
        if all.is_empty() {
            self.of.remove(&identity);
        }
        self.len -= 1;
        let sender = keys.sender.map(Client::new);
        if let Some(count) = self.per_sender.get_mut(&sender) {
            *count -= 1;
            if *count == 0 {
                self.per_sender.remove(&sender);
            }
        }
        Some(keys)
    }

    /// Forgets those that no connection has come for.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some((deadline, identity, random)) = self.order.front().copied()
            && deadline <= now_ns
        {
            self.order.pop_front();
            let kept = self.of.get(&identity).and_then(|all| all.get(&random));
            if kept.is_some_and(|it| it.deadline_ns <= now_ns) {
                self.remove(identity, &random);
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.order.front().map(|(deadline, ..)| *deadline)
    }

    /// Whether there are any of a connection with these ends.
    pub(crate) fn has_any(&self, ends: [SocketAddr; 2]) -> bool {
        self.len > 0 && identities(ends).any(|it| self.of.contains_key(&it))
    }

    /// Takes the keys that a record was protected with, and whether its sender is the client. The effort says then, or where
    /// it was not enough, where the next look begins.
    pub(crate) fn take(
        &mut self,
        ends: [SocketAddr; 2],
        senders: &KeySenders,
        record: RecordBytes<'_>,
        effort: &mut Effort,
    ) -> Option<(LiveKeys, bool)> {
        let (mut seen, from) = (0, effort.from);
        let mut found = None;
        'look: for identity in identities(ends) {
            let all = self.of.get(&identity).into_iter().flat_map(HashMap::values);
            for Kept { keys, .. } in all {
                seen += 1;
                if seen <= from {
                    if !effort.spend(PASS_COST) {
                        break 'look;
                    }
                    continue;
                }
                match keys.explains(identity, ends, senders, record, effort) {
                    Ok(None) => effort.from = seen,
                    Ok(Some(of_client)) => found = Some((identity, keys.client_random, of_client)),
                    Err(TooMuch) => break 'look,
                }
                if found.is_some() {
                    break 'look;
                }
            }
        }
        if effort.from >= seen {
            // All of them were tried, some on an earlier record.
            effort.from = 0;
        }
        let (identity, random, of_client) = found?;
        self.remove(identity, &random).map(|keys| (keys, of_client))
    }
}

/// Header and fragment.
type RecordBytes<'a> = ([u8; RECORD_HEADER_LEN], &'a [u8]);

/// The effort is used up.
struct TooMuch;

/// In an order that does not depend on the direction.
fn identities([from, to]: [SocketAddr; 2]) -> impl Iterator<Item = Identity> {
    let (one, other) = (from.ip().min(to.ip()), from.ip().max(to.ip()));
    [Some(one), Some(other), None].into_iter()
}

impl LiveKeys {
    /// Whether a record between these ends is this session's, and then whether its client has sent it.
    fn explains(
        &self,
        identity: Identity,
        [from, to]: [SocketAddr; 2],
        senders: &KeySenders,
        (header, fragment): RecordBytes<'_>,
        effort: &mut Effort,
    ) -> Result<Option<bool>, TooMuch> {
        if !effort.spend(LOOK_COST) {
            return Err(TooMuch);
        }
        for (direction, client, server) in
            [(Direction::ClientToServer, from, to), (Direction::ServerToClient, to, from)]
        {
            if !senders.accepts(identity, client.ip(), server.ip()) {
                continue;
            }
            for key in self.keys.iter().filter(|it| it.direction == direction) {
                if !effort.spend(HASHES * fragment.len().max(HASH_COST)) {
                    return Err(TooMuch);
                }
                if key.locator.locate(header, fragment).is_some() {
                    return Ok(Some(direction == Direction::ClientToServer));
                }
            }
        }
        Ok(None)
    }

    /// The keys of a direction.
    pub(crate) fn take_keys(&mut self, direction: Direction) -> Vec<LiveKey> {
        let (of_it, others) =
            mem::take(&mut self.keys).into_iter().partition(|it| it.direction == direction);
        self.keys = others;
        of_it
    }
}
