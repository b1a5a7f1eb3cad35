//! Keys of sessions whose beginning was not seen: nothing but their records tells which connection they are of.
//!
//! Refuses more than [`MAX_PER_SENDER`] sessions of a sender, more than [`MAX_SESSIONS`], and to keep them for long.

use core::mem;
use core::net::{IpAddr, SocketAddr};
use std::collections::{HashMap, VecDeque};

use crate::session::KeyRefusal;
use crate::tls::{
    CipherSuite, Direction, LocateRecord, OpenRecord, ProtocolVersion, RECORD_HEADER_LEN,
};

/// Sessions whose keys may wait, for all senders together.
const MAX_SESSIONS: usize = 1 << 16;

/// As many as an endpoint keeps.
const MAX_PER_SENDER: usize = 4096;

/// Keys of one session: a few epochs of each direction.
const MAX_KEYS: usize = 16;

/// How long after the first ones of a sender they are kept.
const LIFETIME_NS: u64 = 120_000_000_000;

/// The keys of one session that is under way.
pub struct LiveKeys {
    /// Address of their sender; `None` where it says nothing.
    pub sender: Option<IpAddr>,
    /// Over which of its connections they came.
    pub source: u64,
    /// `ClientHello.random`.
    pub client_random: [u8; 32],
    /// `ServerHello.random`, when the sender knows it.
    pub server_random: Option<[u8; 32]>,
    /// The negotiated version.
    pub version: ProtocolVersion,
    /// The negotiated suite.
    pub cipher_suite: CipherSuite,
    /// The connection's ends, client first, where the sender knows them.
    pub flow: Option<(SocketAddr, SocketAddr)>,
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
    /// Finds the number, where the protection tells.
    pub locator: Option<Box<dyn LocateRecord>>,
}

/// Whose they are: with `None`, of any address.
type Sender = Option<IpAddr>;

/// Their sessions. Who sends them chooses the randoms.
type ByRandom = HashMap<[u8; 32], LiveKeys, ahash::RandomState>;

/// All that wait for their connection.
pub(crate) struct LiveSessions {
    senders: HashMap<Sender, ByRandom, ahash::RandomState>,
    /// In order of time: each sender once.
    order: VecDeque<(u64, Sender)>,
    len: usize,
}

impl LiveSessions {
    pub(crate) fn new(hasher: ahash::RandomState) -> Self {
        Self { senders: HashMap::with_hasher(hasher), order: VecDeque::new(), len: 0 }
    }

    /// Keeps the keys of a session.
    ///
    /// # Errors
    /// It is one too many.
    pub(crate) fn push(&mut self, mut keys: LiveKeys, now_ns: u64) -> Result<(), KeyRefusal> {
        self.expire(now_ns);
        keys.keys.truncate(MAX_KEYS);
        if !self.senders.contains_key(&keys.sender) {
            self.order.push_back((now_ns.saturating_add(LIFETIME_NS), keys.sender));
        }
        let hasher = self.senders.hasher().clone();
        let all = self.senders.entry(keys.sender).or_insert_with(|| HashMap::with_hasher(hasher));
        let is_new = !all.contains_key(&keys.client_random);
        if is_new && (all.len() >= MAX_PER_SENDER || self.len >= MAX_SESSIONS) {
            return Err(KeyRefusal::Capacity);
        }
        self.len += usize::from(is_new);
        all.insert(keys.client_random, keys);
        Ok(())
    }

    /// Forgets those that no connection has come for.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some((deadline, sender)) = self.order.front()
            && *deadline <= now_ns
        {
            self.len -= self.senders.remove(sender).map_or(0, |all| all.len());
            self.order.pop_front();
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.order.front().map(|(deadline, _)| *deadline)
    }

    /// Whether there are any of a connection with these ends.
    pub(crate) fn has_any(&self, ends: [SocketAddr; 2]) -> bool {
        self.len > 0
            && senders_of(ends).any(|it| self.senders.get(&it).is_some_and(|all| !all.is_empty()))
    }

    /// Takes the keys of the connection on which this record was sent, if there are any, and whether the sender of the record
    /// is the client. A sender that knows its connection's ends has named it; of the others' keys the record's tag tells.
    /// `cost` goes up by the bytes that were hashed for that.
    pub(crate) fn take(
        &mut self,
        [from, to]: [SocketAddr; 2],
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        cost: &mut usize,
    ) -> Option<(LiveKeys, bool)> {
        for sender in senders_of([from, to]) {
            let Some(all) = self.senders.get_mut(&sender) else {
                continue;
            };
            let found = all.values().find_map(|it| {
                let of_client = it.fits([from, to], sender, header, fragment, cost)?;
                Some((it.client_random, of_client))
            });
            if let Some((random, of_client)) = found {
                self.len -= 1;
                return all.remove(&random).map(|keys| (keys, of_client));
            }
        }
        None
    }
}

fn senders_of([from, to]: [SocketAddr; 2]) -> impl Iterator<Item = Sender> {
    [Some(from.ip()), Some(to.ip()), None].into_iter()
}

impl LiveKeys {
    /// Whether a record between these ends is this session's, and then whether its client has sent it.
    fn fits(
        &self,
        [from, to]: [SocketAddr; 2],
        sender: Sender,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        cost: &mut usize,
    ) -> Option<bool> {
        let of_client = match self.flow {
            Some(flow) if flow == (from, to) => return Some(true),
            Some(flow) if flow == (to, from) => return Some(false),
            Some(_) => return None,
            // Keys are taken from clients.
            None => sender.map(|it| it == from.ip()),
        };
        let mut opens = |direction: Direction| {
            let of_it = self.keys.iter().filter(|it| it.direction == direction);
            of_it.filter_map(|it| it.locator.as_ref()).any(|it| {
                *cost += fragment.len();
                it.locate(header, fragment).is_some()
            })
        };
        let [client, server] = [Direction::ClientToServer, Direction::ServerToClient];
        match of_client {
            Some(true) if from.ip() != to.ip() => opens(client).then_some(true),
            Some(false) => opens(server).then_some(false),
            _ if opens(client) => Some(true),
            _ => opens(server).then_some(false),
        }
    }

    /// The keys of a direction.
    pub(crate) fn take_keys(&mut self, direction: Direction) -> Vec<LiveKey> {
        let (of_it, others) =
            mem::take(&mut self.keys).into_iter().partition(|it| it.direction == direction);
        self.keys = others;
        of_it
    }
}
