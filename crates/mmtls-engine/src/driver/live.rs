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
use super::payload::{Flow, Payload, Tls};
use super::{Engine, context};
use crate::config::{Bypass, Config, KeySenders};
use crate::follow::TlsSession;
use crate::keys::LiveKeys;
use crate::output::{LiveKeysNeeded, Output};
use crate::session::{Handler, KeyRefusal};
use crate::tcp::{FlowIndex, Phase};
use crate::tls::Direction;
use crate::wire::Segment;

/// What the latest bytes of connections that wait may take: one part in so many of the memory.
const MEMORY_SHARE: usize = 16;

impl<H: Handler> Engine<H> {
    /// Whether sessions whose beginning was not seen are gone on with. Where others than clients share, nobody knows any more
    /// what a client has refused.
    fn goes_on_with_sessions(&self) -> bool {
        let Config { asks_for_live_keys, exempt_names, key_senders, .. } = &self.config;
        *asks_for_live_keys && exempt_names.is_none() && *key_senders == KeySenders::CLIENT
    }

    /// A connection was picked up behind its beginning. Its endpoints are asked once both have spoken: a stranger can send a
    /// segment in somebody's name.
    pub(super) fn await_live_keys(&mut self, index: FlowIndex) {
        if !self.goes_on_with_sessions() {
            return;
        }
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let ends = flow.ends.both();
        // Nobody knows yet which of them is the server.
        let left_alone =
            |it: &Bypass| it.port.is_some() && ends.into_iter().any(|end| it.contains(end));
        if matches!(flow.payload, Payload::Plain(_)) && !self.config.bypass.iter().any(left_alone) {
            self.late.insert(index, flow.id, ends.map(|end| end.ip()));
        }
    }

    /// Whether connections of an address, or of any, wait for keys of sessions that are under way.
    #[must_use]
    pub fn awaits_live_keys(&self, of: Option<IpAddr>) -> bool {
        of.map_or(!self.late.is_empty(), |address| self.late.has_address(address))
    }

    /// Takes the keys of a session that is under way. They are kept for a while: its connection is known by its records.
    ///
    /// # Errors
    /// [`KeyRefusal::Capacity`]; it has been counted.
    pub fn handle_live_keys(&mut self, now_ns: u64, keys: LiveKeys) -> Result<(), KeyRefusal> {
        self.now_ns = self.now_ns.max(now_ns);
        // Of a session that is followed they bring nothing new.
        if !self.goes_on_with_sessions() || self.has_session(keys.sender, &keys.client_random) {
            self.counters.keys_not_needed += 1;
            return Ok(());
        }
        let pushed = self.live.push(keys, &self.config.key_senders, self.now_ns);
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
        if !self.goes_on_with_sessions() {
            self.late.remove(index);
            return direction;
        }
        let flow = self.flows.get_if(index, id);
        let waits = |it: &&mut Flow<H::State>| {
            matches!(it.payload, Payload::Plain(_)) && it.phase == Phase::Open && !it.is_exempt()
        };
        let Some(flow) = flow.filter(waits) else {
            self.late.remove(index);
            return direction;
        };
        let mut ends = flow.ends.both();
        if !flow.one_sided && self.late.asks(index, self.now_ns) {
            self.outputs.push_back(Output::LiveKeysNeeded(LiveKeysNeeded { ends }));
        }
        if direction == Direction::ServerToClient {
            ends.reverse();
        }
        let side = direction.index();
        let [half, other] = flow.halves_from(direction);
        let offset = half.assembler.next();
        // Its receiver may have more than has been seen, and this be a repetition: not once it has acknowledged some of what
        // was seen, and no more.
        let received = other.last_ack.and_then(|it| half.offset_of(it));
        if !received.is_some_and(|it| (1..=offset as i64).contains(&it)) {
            return direction;
        }
        let new = half
            .offset_of(segment.tcp.sequence())
            .and_then(|it| usize::try_from(offset as i64 - it).ok())
            .and_then(|repeated| segment.tcp.payload().get(repeated..));
        let Some(new) = new.filter(|it| !it.is_empty()) else {
            return direction;
        };
        let next = Next { side, offset, bytes: new, ends };
        let max_kept = self.config.limits.max_buffered_bytes / MEMORY_SHARE;
        let senders = &self.config.key_senders;
        let found = self.late.look(index, &next, &mut self.live, senders, max_kept, self.now_ns);
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
        for (side, direction) in Direction::BOTH.into_iter().enumerate() {
            let [half, other] = flow.halves_from(direction);
            // What its receiver has and was not seen is not repeated.
            if let Some(received) = other.last_ack.filter(|it| half.is_acknowledged_beyond(*it)) {
                half.skip_to(received);
            }
            let next = half.assembler.next();
            if waiting.ends[side] != next {
                waiting.searches[side].restart();
            }
            // What was lost before the connection was picked up is sent again.
            half.make_room_before();
            waiting.ends[side] = half.assembler.next();
        }
        if reversed {
            flow.swap_roles();
            waiting.searches.swap(0, 1);
            waiting.ends.swap(0, 1);
        }
        let info = flow.session_info();
        let mut state = H::State::default();
        let mut ctx = context!(self, state);
        let Waiting { searches, ends, .. } = waiting;
        let session = TlsSession::go_on(info, keys, searches, ends, &mut ctx);
        flow.payload = Payload::Tls(Box::new(Tls { session, state, before: None }));
        self.register(index, None);
        self.charge(index);
    }
}
