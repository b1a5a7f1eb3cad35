//! Connections whose beginning was not seen, and the keys of sessions that are under way: a middlebox that has started
//! again, or comes late, goes on with them at their next records.
//!
//! ```text
//!  first segment ─► waits ─► LiveKeysNeeded ─► keys of the endpoint's sessions
//!                     │                              │
//!                     └── a record whose tag one of them explains ──► Payload::Tls
//! ```
//! What passes before is not inspected, and policy `mid_stream` decides whether it may pass at all. The bytes in front of
//! the first record may be sent again, since they may have died behind the monitor, and nobody knows what they were.
//!
//! Refuses connections where names are exempt, which only a ClientHello tells; and to keep more than a part of the memory.

use std::collections::HashMap;

use super::payload::{Payload, Tls};
use super::{Engine, context};
use crate::follow::{RecordSearch, TlsSession};
use crate::keys::LiveKeys;
use crate::output::{LiveKeysNeeded, Output};
use crate::session::{Handler, KeyRefusal, SessionId, SessionInfo};
use crate::tcp::FlowIndex;
use crate::tls::Direction;
use crate::wire::Segment;

/// Connections that wait for keys.
const MAX_WAITING: usize = 1 << 16;

/// Bytes that are hashed in a second to find out whose a record is: less than a tenth of a core. What is beyond it waits
/// for a later record.
const MAX_HASHED: usize = 256 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// The same for one connection, all in all: then it is of none of them.
const MAX_HASHED_OF_ONE: usize = 256 << 20;

/// What their latest bytes may take: one part in so many of the memory.
const MEMORY_SHARE: usize = 16;

/// A connection whose beginning was not seen.
pub(super) struct Waiting {
    id: SessionId,
    /// By direction.
    searches: [RecordSearch; 2],
    /// Stream offsets behind what is in them.
    ends: [u64; 2],
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

impl LateFlows {
    pub(super) fn new(hasher: ahash::RandomState) -> Self {
        Self { waiting: HashMap::with_hasher(hasher), kept: 0, hashed: 0, second_ns: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn remove(&mut self, index: FlowIndex) -> Option<Waiting> {
        let waiting = self.waiting.remove(&index)?;
        self.kept -= waiting.kept_bytes();
        Some(waiting)
    }
}

impl Waiting {
    fn kept_bytes(&self) -> usize {
        self.searches.iter().map(RecordSearch::kept_bytes).sum()
    }
}

impl<H: Handler> Engine<H> {
    /// A connection was picked up behind its beginning.
    pub(super) fn await_live_keys(&mut self, index: FlowIndex) {
        if !self.config.asks_for_live_keys || self.config.exempt_names.is_some() {
            return;
        }
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if !matches!(flow.payload, Payload::Plain(_)) || self.late.waiting.len() >= MAX_WAITING {
            return;
        }
        let ends = [flow.client, flow.server];
        let searches = Default::default();
        let waiting = Waiting { id: flow.id, searches, ends: [0; 2], hashed: 0 };
        self.late.waiting.insert(index, waiting);
        self.outputs.push_back(Output::LiveKeysNeeded(LiveKeysNeeded { ends }));
    }

    /// Whether connections of an address, or of any, wait for keys of sessions that are under way.
    #[must_use]
    pub fn awaits_live_keys(&mut self, of: Option<core::net::IpAddr>) -> bool {
        let mut waiting = self.late.waiting.iter();
        waiting.any(|(index, waiting)| {
            self.flows.get_if(*index, waiting.id).is_some_and(|flow| {
                of.is_none_or(|it| [flow.client, flow.server].iter().any(|end| end.ip() == it))
            })
        })
    }

    /// Takes the keys of a session that is under way. They are kept for a while: its connection is known by its records.
    ///
    /// # Errors
    /// [`KeyRefusal::Capacity`]; it has been counted.
    pub fn handle_live_keys(&mut self, now_ns: u64, mut keys: LiveKeys) -> Result<(), KeyRefusal> {
        self.now_ns = self.now_ns.max(now_ns);
        // Of a session that is followed they bring nothing new.
        if !self.config.asks_for_live_keys || self.by_random.contains_key(&keys.client_random) {
            self.counters.keys_not_needed += 1;
            return Ok(());
        }
        if self.config.any_key_sender {
            keys.sender = None;
        }
        let pushed = self.live.push(keys, self.now_ns);
        if pushed.is_err() {
            self.counters.keys_over_quota += 1;
            self.counters.keys_refused += 1;
        }
        pushed
    }

    /// Looks for a record in a segment of a connection that waits. If it is one of a session whose keys are there, the
    /// connection is followed from it on; the direction of the segment, since roles may have turned out to be the other way
    /// round.
    pub(super) fn look_for_live_session(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Direction {
        let Some(waiting) = self.late.waiting.get_mut(&index) else {
            return direction;
        };
        let Some(flow) = self.flows.get_if(index, waiting.id) else {
            self.late.remove(index);
            return direction;
        };
        if !matches!(flow.payload, Payload::Plain(_)) || flow.exempt {
            self.late.remove(index);
            return direction;
        }
        let side = direction.index();
        let mut ends = [flow.client, flow.server];
        if direction == Direction::ServerToClient {
            ends.reverse();
        }
        let half = &flow.halves[side];
        let next = half.assembler.next();
        let payload = segment.tcp.payload();
        let new = half
            .offset_of(segment.tcp.sequence())
            .and_then(|offset| usize::try_from(next as i64 - offset).ok())
            .and_then(|repeated| payload.get(repeated..));
        if self.now_ns.saturating_sub(self.late.second_ns) >= SECOND_NS {
            self.late.second_ns = self.now_ns;
            self.late.hashed = 0;
        }
        let affordable = self.config.limits.max_buffered_bytes / MEMORY_SHARE;
        let before = waiting.kept_bytes();
        let search = &mut waiting.searches[side];
        let Some(new) = new.filter(|new| {
            !new.is_empty()
                && self.live.has_any(ends)
                && self.late.kept + new.len() <= affordable
                && self.late.hashed < MAX_HASHED
        }) else {
            return direction;
        };
        if waiting.ends[side] != next {
            search.restart();
        }
        search.push(new);
        waiting.ends[side] = next + new.len() as u64;
        let (mut taken, mut cost) = (None, 0);
        while let Some(found) = search.find() {
            taken = self.live.take(ends, found.header, search.fragment(&found), &mut cost);
            if taken.is_some() || self.late.hashed + cost >= MAX_HASHED {
                break;
            }
            search.go_on();
        }
        self.late.hashed += cost;
        waiting.hashed += cost;
        self.late.kept = self.late.kept + waiting.kept_bytes() - before;
        let Some((keys, of_client)) = taken else {
            if waiting.hashed >= MAX_HASHED_OF_ONE {
                self.late.remove(index);
            }
            return direction;
        };
        // These bytes come once more, as those of a connection that is followed.
        waiting.searches[side].truncate(new.len());
        waiting.ends[side] = next;
        let of_client = of_client == (direction == Direction::ClientToServer);
        self.begin_live_session(index, keys, !of_client);
        if of_client { direction } else { direction.reverse() }
    }

    /// Goes on with a session; `reversed`: its client is the flow's server.
    fn begin_live_session(&mut self, index: FlowIndex, keys: LiveKeys, reversed: bool) {
        let Some(mut waiting) = self.late.remove(index) else {
            return;
        };
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        for (side, half) in flow.halves.iter().enumerate() {
            let next = half.assembler.next();
            if waiting.ends[side] != next {
                waiting.searches[side].restart();
                waiting.ends[side] = next;
            }
        }
        if reversed {
            flow.swap_roles();
            waiting.searches.swap(0, 1);
            waiting.ends.swap(0, 1);
        }
        let info =
            SessionInfo::new(flow.id, flow.client, flow.server, flow.place(), flow.started_ns);
        let mut state = H::State::default();
        let mut ctx = context!(self, state);
        let Waiting { searches, ends, .. } = waiting;
        let session = TlsSession::go_on(info, keys, searches, ends, &mut ctx);
        flow.payload = Payload::Tls(Box::new(Tls { session, state, before: None }));
        self.register(index, None);
        self.charge(index);
    }
}
