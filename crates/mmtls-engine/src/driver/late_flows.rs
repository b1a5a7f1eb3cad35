//! Connections whose beginning was not seen: their latest bytes, and the search for a record that keys explain.
//!
//! Refuses to keep more than it is allowed to, and to hash more than so much for a packet, of a connection, in a second.

use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;

use crate::config::KeySenders;
use crate::follow::RecordSearch;
use crate::keys::{Effort, LiveKeys, LiveSessions};
use crate::session::SessionId;
use crate::tcp::FlowIndex;

/// Connections that wait for keys.
const MAX_WAITING: usize = 1 << 16;

/// Bytes that are hashed for a packet, to find out whose a record is: some milliseconds. What is beyond it waits for a later
/// record.
const MAX_HASHED_AT_ONCE: usize = 16 << 20;

/// In a second of one connection, and of all.
const MAX_HASHED_OF_ONE: usize = 32 << 20;
const MAX_HASHED: usize = 256 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// First pause between two questions about a connection, twice as long each time; and the longest.
const ASK_PAUSE_NS: u64 = 30 * SECOND_NS;
const MAX_ASK_PAUSE_NS: u64 = 3600 * SECOND_NS;

/// One of them.
pub(super) struct Waiting {
    id: SessionId,
    addresses: [IpAddr; 2],
    /// By direction.
    pub(super) searches: [RecordSearch; 2],
    /// Stream offsets behind what is in them.
    pub(super) ends: [u64; 2],
    /// When its endpoints may be asked again, and how long after that.
    ask_ns: u64,
    ask_pause_ns: u64,
    /// Sessions that were tried on the last record of a direction.
    tried: [usize; 2],
    hashed: Hashed,
}

/// What was hashed in the second that began then.
#[derive(Default)]
struct Hashed {
    bytes: usize,
    since_ns: u64,
}

impl Hashed {
    fn left(&mut self, max: usize, now_ns: u64) -> usize {
        if now_ns.saturating_sub(self.since_ns) >= SECOND_NS {
            *self = Self { bytes: 0, since_ns: now_ns };
        }
        max.saturating_sub(self.bytes)
    }
}

/// All of them, and what they keep.
pub(super) struct LateFlows {
    waiting: HashMap<FlowIndex, Waiting, ahash::RandomState>,
    /// How many there are of each address.
    addresses: HashMap<IpAddr, usize, ahash::RandomState>,
    kept: usize,
    hashed: Hashed,
}

/// The next bytes of a direction of one of them.
pub(super) struct Next<'a> {
    pub(super) side: usize,
    /// Stream offset of the first one.
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
    /// Who sends them, and to whom.
    pub(super) ends: [SocketAddr; 2],
}

impl LateFlows {
    pub(super) fn new(hasher: ahash::RandomState) -> Self {
        Self {
            waiting: HashMap::with_hasher(hasher.clone()),
            addresses: HashMap::with_hasher(hasher),
            kept: 0,
            hashed: Hashed::default(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether there are any of this address.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    pub(super) fn id(&self, index: FlowIndex) -> Option<SessionId> {
        self.waiting.get(&index).map(|waiting| waiting.id)
    }

    /// Takes one up, unless there are too many.
    pub(super) fn insert(&mut self, index: FlowIndex, id: SessionId, addresses: [IpAddr; 2]) {
        if self.waiting.len() >= MAX_WAITING {
            return;
        }
        self.remove(index);
        for address in addresses {
            *self.addresses.entry(address).or_default() += 1;
        }
        let waiting = Waiting {
            id,
            addresses,
            searches: Default::default(),
            ends: [0; 2],
            ask_ns: 0,
            ask_pause_ns: ASK_PAUSE_NS,
            tried: [0; 2],
            hashed: Hashed::default(),
        };
        self.waiting.insert(index, waiting);
    }

    pub(super) fn remove(&mut self, index: FlowIndex) -> Option<Waiting> {
        let waiting = self.waiting.remove(&index)?;
        self.kept -= waiting.kept_bytes();
        for address in waiting.addresses {
            if let Some(count) = self.addresses.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.addresses.remove(&address);
                }
            }
        }
        Some(waiting)
    }

    /// Whether its endpoints are to be asked now: it is time then for as long as nobody has its keys.
    pub(super) fn asks(&mut self, index: FlowIndex, now_ns: u64) -> bool {
        let Some(waiting) = self.waiting.get_mut(&index) else {
            return false;
        };
        let is_due = now_ns >= waiting.ask_ns;
        if is_due {
            waiting.ask_ns = now_ns.saturating_add(waiting.ask_pause_ns);
            waiting.ask_pause_ns = (waiting.ask_pause_ns * 2).min(MAX_ASK_PAUSE_NS);
        }
        is_due
    }

    /// Looks for a record that the keys of a session explain, and takes those: whether its sender is the client, too. The
    /// bytes at hand are taken back then. `max_kept` bytes may be kept of all connections.
    pub(super) fn look(
        &mut self,
        index: FlowIndex,
        next: &Next<'_>,
        live: &mut LiveSessions,
        senders: &KeySenders,
        max_kept: usize,
        now_ns: u64,
    ) -> Option<(LiveKeys, bool)> {
        let waiting = self.waiting.get_mut(&index)?;
        let &Next { side, offset, bytes, ends } = next;
        let of_one = waiting.hashed.left(MAX_HASHED_OF_ONE, now_ns);
        let of_all = self.hashed.left(MAX_HASHED, now_ns);
        let mut effort = Effort {
            from: waiting.tried[side],
            left: MAX_HASHED_AT_ONCE.min(of_one).min(of_all),
            used: 0,
        };
        let before = waiting.kept_bytes();
        let search = &mut waiting.searches[side];
        if !live.has_any(ends) || self.kept + bytes.len() > max_kept {
            search.restart();
            self.kept = self.kept + waiting.kept_bytes() - before;
            return None;
        }
        if waiting.ends[side] != offset {
            search.restart();
        }
        search.push(bytes);
        waiting.ends[side] = offset + bytes.len() as u64;
        let mut taken = None;
        while let Some(found) = search.find() {
            if effort.is_spent() {
                // It goes on with a later record.
                search.restart();
                break;
            }
            let record = (found.header, search.fragment(&found));
            taken = live.take(ends, senders, record, &mut effort);
            if taken.is_some() {
                break;
            }
            // Also where the effort was not enough for all: they are tried on the next one.
            search.pass_over(&found);
        }
        if taken.is_some() {
            search.truncate(bytes.len());
            waiting.ends[side] = offset;
        }
        waiting.tried[side] = effort.from;
        waiting.hashed.bytes += effort.used;
        self.hashed.bytes += effort.used;
        self.kept = self.kept + waiting.kept_bytes() - before;
        taken
    }
}

impl Waiting {
    fn kept_bytes(&self) -> usize {
        self.searches.iter().map(RecordSearch::kept_bytes).sum()
    }
}
