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

use core::net::IpAddr;

use super::late_flows::{Next, Waiting};
use super::payload::{Payload, Tls};
use super::{Engine, context};
use crate::follow::TlsSession;
use crate::keys::LiveKeys;
use crate::output::{LiveKeysNeeded, Output};
use crate::session::{Handler, KeyRefusal, SessionInfo};
use crate::tcp::FlowIndex;
use crate::tls::Direction;
use crate::wire::Segment;

/// What the latest bytes of connections that wait may take: one part in so many of the memory.
const MEMORY_SHARE: usize = 16;

impl<H: Handler> Engine<H> {
    /// A connection was picked up behind its beginning.
    pub(super) fn await_live_keys(&mut self, index: FlowIndex) {
        if !self.config.asks_for_live_keys || self.config.exempt_names.is_some() {
            return;
        }
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let ends = [flow.client, flow.server];
        if !matches!(flow.payload, Payload::Plain(_)) || !self.late.insert(index, flow.id) {
            return;
        }
        self.outputs.push_back(Output::LiveKeysNeeded(LiveKeysNeeded { ends }));
    }

    /// Whether connections of an address, or of any, wait for keys of sessions that are under way.
    #[must_use]
    pub fn awaits_live_keys(&mut self, of: Option<IpAddr>) -> bool {
        let (flows, mut waiting) = (&mut self.flows, self.late.ids());
        waiting.any(|(index, id)| {
            flows.get_if(index, id).is_some_and(|flow| {
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
        let Some(id) = self.late.id(index) else {
            return direction;
        };
        let flow = self.flows.get_if(index, id);
        let Some(flow) = flow.filter(|it| matches!(it.payload, Payload::Plain(_)) && !it.exempt)
        else {
            self.late.remove(index);
            return direction;
        };
        let mut ends = [flow.client, flow.server];
        if direction == Direction::ServerToClient {
            ends.reverse();
        }
        let side = direction.index();
        let half = &flow.halves[side];
        let offset = half.assembler.next();
        let new = half
            .offset_of(segment.tcp.sequence())
            .and_then(|it| usize::try_from(offset as i64 - it).ok())
            .and_then(|repeated| segment.tcp.payload().get(repeated..));
        let next = Next { side, offset, bytes: new.unwrap_or_default(), ends };
        let max_kept = self.config.limits.max_buffered_bytes / MEMORY_SHARE;
        let found = self.late.look(index, &next, &mut self.live, max_kept, self.now_ns);
        let Some((keys, of_client)) = found else {
            return direction;
        };
        // These bytes come once more, as those of a connection that is followed.
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
