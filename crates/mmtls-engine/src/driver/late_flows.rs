//! Connections whose beginning was not seen: their latest bytes, and the search for a record that keys explain.
//!
//! Refuses to keep more than it is allowed to, and to hash more than so much in a second.

use core::net::SocketAddr;
use std::collections::HashMap;

use crate::follow::RecordSearch;
use crate::keys::{LiveKeys, LiveSessions};
use crate::session::SessionId;
use crate::tcp::FlowIndex;

/// Connections that wait for keys.
const MAX_WAITING: usize = 1 << 16;

/// Bytes that are hashed in a second to find out whose a record is: less than a tenth of a core. What is beyond it waits
/// for a later record.
const MAX_HASHED: usize = 256 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// The same for one connection, all in all: then it is of none of them.
const MAX_HASHED_OF_ONE: usize = 256 << 20;

/// One of them.
pub(super) struct Waiting {
    id: SessionId,
    /// By direction.
    pub(super) searches: [RecordSearch; 2],
    /// Stream offsets behind what is in them.
    pub(super) ends: [u64; 2],
    hashed: usize,
}

/// All of them, and what they keep.
pub(super) struct LateFlows {
    waiting: HashMap<FlowIndex, Waiting, ahash::RandomState>,
    kept: usize,
    /// In the second that began then.
    hashed: usize,
    second_ns: u64,
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
        Self { waiting: HashMap::with_hasher(hasher), kept: 0, hashed: 0, second_ns: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whose they are.
    pub(super) fn ids(&self) -> impl Iterator<Item = (FlowIndex, SessionId)> + '_ {
        self.waiting.iter().map(|(index, waiting)| (*index, waiting.id))
    }

    pub(super) fn id(&self, index: FlowIndex) -> Option<SessionId> {
        self.waiting.get(&index).map(|waiting| waiting.id)
    }

    /// Takes one up; false where there are too many.
    pub(super) fn insert(&mut self, index: FlowIndex, id: SessionId) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        self.remove(index);
        let searches = Default::default();
        self.waiting.insert(index, Waiting { id, searches, ends: [0; 2], hashed: 0 });
        true
    }

    pub(super) fn remove(&mut self, index: FlowIndex) -> Option<Waiting> {
        let waiting = self.waiting.remove(&index)?;
        self.kept -= waiting.kept_bytes();
        Some(waiting)
    }

    /// Looks for a record that the keys of a session explain, and takes those: whether its sender is the client, too. The
    /// bytes at hand are taken back then. `max_kept` bytes may be kept of all connections.
    pub(super) fn look(
        &mut self,
        index: FlowIndex,
        next: &Next<'_>,
        live: &mut LiveSessions,
        max_kept: usize,
        now_ns: u64,
    ) -> Option<(LiveKeys, bool)> {
        if now_ns.saturating_sub(self.second_ns) >= SECOND_NS {
            self.second_ns = now_ns;
            self.hashed = 0;
        }
        let waiting = self.waiting.get_mut(&index)?;
        let &Next { side, offset, bytes, ends } = next;
        if bytes.is_empty()
            || !live.has_any(ends)
            || self.kept + bytes.len() > max_kept
            || self.hashed >= MAX_HASHED
        {
            return None;
        }
        let before = waiting.kept_bytes();
        let search = &mut waiting.searches[side];
        if waiting.ends[side] != offset {
            search.restart();
        }
        search.push(bytes);
        waiting.ends[side] = offset + bytes.len() as u64;
        let (mut taken, mut cost) = (None, 0);
        while let Some(found) = search.find() {
            taken = live.take(ends, found.header, search.fragment(&found), &mut cost);
            if taken.is_some() || self.hashed + cost >= MAX_HASHED {
                break;
            }
            search.go_on();
        }
        if taken.is_some() {
            search.truncate(bytes.len());
            waiting.ends[side] = offset;
        }
        self.hashed += cost;
        waiting.hashed += cost;
        let is_of_none = taken.is_none() && waiting.hashed >= MAX_HASHED_OF_ONE;
        self.kept = self.kept + waiting.kept_bytes() - before;
        if is_of_none {
            self.remove(index);
        }
        taken
    }
}

impl Waiting {
    fn kept_bytes(&self) -> usize {
        self.searches.iter().map(RecordSearch::kept_bytes).sum()
    }
}
