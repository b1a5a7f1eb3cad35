//! TCP connections from SYN to RST: which segments begin, acknowledge and end them. Inline, how they
//! begin is in [`super::opening`]; here it is for copies of packets, which may be out of order or
//! missing and prevent nothing: there the latest SYN counts.
//!
//! Refuses to believe control segments that their receiver would not believe.

use super::conclude::Passage;
use super::segment::is_followed;
use super::{Context, Engine, context};
use crate::config::Policy;
use crate::flow::{Flow, FlowIndex, NewFlow, Origin, Payload, Phase, Syn};
use crate::output::{PortId, Verdict};
use crate::recognition::{Watch, begins_hello};
use crate::session::{EndReason, Handler, SessionError, TcpAnomaly};
use crate::tls::Direction;
use crate::wire::Segment;

/// How long copies of a connection's two directions may come out of order, at most: what was
/// acknowledged longer ago and has not been seen was lost.
const GAP_GRACE_NS: u64 = 1_000_000_000;

/// How long after its SYN a connection may still come about by a SYN cookie: Linux takes them for two minutes,
/// and the SYN-ACK comes within the opening timeout.
const COOKIE_LIFETIME_NS: u64 = 180_000_000_000;

impl<H: Handler> Engine<H> {
    /// Creates the flow of a segment whose four-tuple is new.
    pub(super) fn new_flow(
        &mut self,
        port: PortId,
        segment: &Segment<'_>,
    ) -> Result<FlowIndex, Verdict> {
        if self.config.inline {
            return self.new_flow_inline(port, segment);
        }
        let flags = segment.tcp.flags();
        let payload = segment.tcp.payload();
        let (from, to) = (segment.source, segment.destination);
        let key = |client, server| NewFlow { vlan: segment.vlan, client, server, turned: false };
        if flags.syn() {
            return self.insert(&if flags.ack() { key(to, from) } else { key(from, to) });
        }
        if payload.is_empty() || flags.rst() {
            return Err(Verdict::Forward);
        }
        self.counters.mid_stream += 1;
        self.pick_up(segment, &key(from, to))
    }

    /// Creates the flow of a connection whose beginning was not seen; `key` is as if the segment's sender
    /// were the client.
    pub(super) fn pick_up(
        &mut self,
        segment: &Segment<'_>,
        key: &NewFlow,
    ) -> Result<FlowIndex, Verdict> {
        // Its keys may be shared and its beginning be lost: only a real ClientHello tells.
        let at_hello = begins_hello(segment.tcp.payload());
        let (from, to) = (key.client, key.server);
        // Without a SYN the lower port is taken for the server's.
        let from_client = at_hello || from.port() > to.port();
        let (client, server) = if from_client { (from, to) } else { (to, from) };
        let index = self.insert(&NewFlow { client, server, ..*key })?;
        let Some(flow) = self.flows.get(index) else {
            return Err(Verdict::Drop);
        };
        flow.phase = Phase::Open;
        let direction = flow.direction_from(from);
        flow.half(direction).begin(segment.tcp.sequence(), Origin::Learned, None);
        if segment.tcp.flags().ack() {
            let reverse = flow.half(direction.reverse());
            reverse.begin(segment.tcp.acknowledgment(), Origin::Learned, None);
        }
        if !at_hello {
            flow.payload = Payload::Plain(Watch::default());
        }
        Ok(index)
    }

    /// What becomes of a connection whose copies began behind its start.
    pub(super) fn judge_mid_stream(&mut self, index: FlowIndex) {
        if matches!(self.config.policies.mid_stream, Policy::Drop | Policy::Reset)
            && !self.is_in_grace()
        {
            let reason = EndReason::ResetByPolicy(SessionError::LostSynchronisation);
            self.kill(index, true, reason);
        }
    }

    pub(super) fn insert(&mut self, key: &NewFlow) -> Result<FlowIndex, Verdict> {
        let max_flows = self.config.limits.max_flows;
        if self.flows.has_most_tombstones(key.client.ip(), max_flows) {
            return Err(self.refuse_flow());
        }
        if self.flows.len() >= max_flows {
            if let Some(oldest) = self.flows.oldest_opening() {
                self.counters.evicted += 1;
                self.remove(oldest, EndReason::TimedOut);
            } else if let Some(idle) = self.flows.longest_idle(key.client.ip()) {
                self.counters.evicted += 1;
                // Its handler hears of it, and may reset it; then it stays.
                self.expire(idle, EndReason::TimedOut);
            }
        }
        match self.flows.insert(key, self.now_ns, &self.config.limits) {
            Some(index) => {
                self.counters.flows += 1;
                Ok(index)
            }
            None => Err(self.refuse_flow()),
        }
    }

    fn refuse_flow(&mut self) -> Verdict {
        self.counters.table_full += 1;
        match self.config.policies.table_full {
            Policy::Forward | Policy::Bypass => Verdict::Forward,
            Policy::Drop | Policy::Reset => Verdict::Drop,
        }
    }

    /// The copy of a SYN or SYN-ACK.
    pub(super) fn handle_syn(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        if self.config.inline {
            return self.handle_syn_inline(index, direction, segment);
        }
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let answer = segment.tcp.flags().ack();
        match flow.phase {
            Phase::Opening if answer => self.handle_syn_ack(index, direction, segment),
            Phase::Opening => self.handle_first_syn(index, direction, segment),
            Phase::Open if repeats(flow, direction, segment) => {
                self.judge_repeated(index, direction, segment);
            }
            // Of an open one, the copies of its end may have been lost.
            Phase::Open | Phase::Closed(_) | Phase::Dead { .. } if answer => {
                match flow.opening.answered_by(direction, segment.tcp.acknowledgment()) {
                    Some(syn) => self.replace(index, syn, segment),
                    None => self.stray(index, direction, TcpAnomaly::StraySyn),
                }
            }
            Phase::Open | Phase::Closed(_) | Phase::Dead { .. } => {
                flow.opening.push_syn(Syn {
                    direction,
                    sequence: segment.tcp.sequence(),
                    window: segment.tcp.window(),
                    window_scale: segment.tcp.window_scale(),
                });
            }
        }
        Passage::Free
    }

    /// A SYN of a connection whose answer has not been acknowledged: the latest one counts.
    fn handle_first_syn(&mut self, index: FlowIndex, direction: Direction, segment: &Segment<'_>) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let initial = segment.tcp.sequence().wrapping_add(1);
        let payload = segment.tcp.payload();
        let [half, other] = flow.halves_from(direction);
        if half.initial == Some(initial) && half.origin == Origin::Syn {
            return self.judge_repeated(index, direction, segment);
        }
        if half.assembler.next() > 0 || other.assembler.next() > 0 {
            // Data on the earlier SYN was acknowledged already.
            return self.stray(index, direction, TcpAnomaly::StraySyn);
        }
        let payload = self.admit_syn_data(payload);
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let [half, other] = flow.halves_from(direction);
        half.begin(initial, Origin::Syn, segment.tcp.window_scale());
        half.syn_data = payload.to_vec();
        // What answered another SYN does not answer this one.
        if other.origin != Origin::Syn {
            other.unlearn();
        }
        other.window_end = Some(u64::from(segment.tcp.window()));
        self.charge(index);
    }

    /// The answer to a SYN. Its sender is the server.
    fn handle_syn_ack(&mut self, index: FlowIndex, direction: Direction, segment: &Segment<'_>) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let initial = segment.tcp.sequence().wrapping_add(1);
        let acknowledged = segment.tcp.acknowledgment();
        let payload = segment.tcp.payload();
        let [half, other] = flow.halves_from(direction);
        let beyond_syn = other.initial.map(|syn| u64::from(acknowledged.wrapping_sub(syn)));
        // Data on the SYN that an earlier answer has acknowledged are part of the stream.
        let sent = other.assembler.next().max(other.syn_data.len() as u64);
        match (other.origin, beyond_syn) {
            (Origin::Syn, Some(beyond)) if beyond <= sent => {}
            // It answers a SYN that was not seen; a SYN that is seen later counts more.
            (Origin::Unknown | Origin::Learned, _) => {
                other.begin(acknowledged, Origin::Learned, None);
            }
            // Its receiver refuses it with a RST.
            _ => return self.stray(index, direction, TcpAnomaly::StraySyn),
        }
        let repeated = half.origin == Origin::SynAck && half.initial == Some(initial);
        if repeated {
            self.judge_repeated(index, direction, segment);
        } else if half.origin == Origin::SynAck && half.assembler.next() > 0 {
            // Which of two answers the client took is known by what was read.
            return self.stray(index, direction, TcpAnomaly::StraySyn);
        }
        let payload = self.admit_syn_data(payload);
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let [half, other] = flow.halves_from(direction);
        if !repeated {
            half.begin(initial, Origin::SynAck, segment.tcp.window_scale());
            half.syn_data = payload.to_vec();
        }
        half.last_ack = Some(acknowledged);
        if half.window_scale.is_none() || other.window_scale.is_none() {
            // Scaling needs both sides (RFC 7323, section 2.2).
            half.window_scale = None;
            other.window_scale = None;
        }
        // The window of a SYN-ACK is never scaled.
        other.window_end = Some(u64::from(segment.tcp.window()));
        if other.origin == Origin::Learned {
            other.window_end = None;
        }
        if direction == Direction::ClientToServer {
            flow.swap_roles();
        }
        self.accept_syn_data(index, Direction::ClientToServer, acknowledged);
        self.charge(index);
    }

    /// Data on a SYN counts when it is acknowledged (RFC 7413), and only then.
    fn accept_syn_data(&mut self, index: FlowIndex, direction: Direction, acknowledged: u32) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let half = flow.half(direction);
        if half.syn_data.is_empty() {
            return;
        }
        let data = core::mem::take(&mut half.syn_data);
        let accepted = half.offset_of(acknowledged).is_some_and(|it| it >= data.len() as i64);
        if accepted {
            // It was on the SYN; a ClientHello or a greeting.
            self.reassemble(index, direction, 0, &data);
        }
    }

    /// A SYN or SYN-ACK again: with other data than before, nobody knows which its receiver took.
    fn judge_repeated(&mut self, index: FlowIndex, direction: Direction, segment: &Segment<'_>) {
        let payload = segment.tcp.payload();
        if self.flows.get(index).is_some_and(|flow| !repeats_data(flow, direction, payload)) {
            self.counters.conflicting_overlaps += 1;
            self.note(index, direction, TcpAnomaly::ConflictingOverlap);
        }
    }

    /// What to keep of the data on a SYN or SYN-ACK: anybody can send them in anybody's name.
    fn admit_syn_data<'p>(&mut self, payload: &'p [u8]) -> &'p [u8] {
        let cap = self.config.limits.max_buffered_bytes / 4;
        if payload.is_empty() || self.buffered + payload.len() <= cap {
            return payload;
        }
        self.counters.buffer_full += 1;
        &[]
    }

    /// A new connection has taken over the four-tuple of an old one.
    fn replace(&mut self, index: FlowIndex, syn: Syn, segment: &Segment<'_>) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let (client, server) = (segment.destination, segment.source);
        let key = NewFlow { vlan: segment.vlan, client, server, turned: false };
        let same_sides = flow.client == client;
        let mut paths = Direction::BOTH
            .map(|way| flow.half(way).path().map(|(port, header)| (port, header.to_vec())));
        if !same_sides {
            paths.swap(0, 1);
        }
        self.remove(index, EndReason::Replaced);
        let Ok(index) = self.insert(&key) else {
            return;
        };
        if let Some(flow) = self.flows.get(index) {
            for (half, path) in flow.halves.iter_mut().zip(paths) {
                half.packets = 1;
                if let Some((port, header)) = path {
                    half.remember_path(port, &header);
                }
            }
            let initial = syn.sequence.wrapping_add(1);
            flow.halves[0].begin(initial, Origin::Syn, syn.window_scale);
            flow.halves[1].window_end = Some(u64::from(syn.window));
        }
        self.handle_syn_ack(index, Direction::ServerToClient, segment);
    }

    /// Notes an acknowledgment; false when the segment cannot be its sender's. Inline, an
    /// acknowledgment of bytes that were never seen means that they passed some other way: the
    /// monitor has lost the stream.
    pub(super) fn handle_ack(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> bool {
        let inline = self.config.inline;
        let Some(flow) = self.flows.get(index) else {
            return true;
        };
        let acknowledgment = segment.tcp.acknowledgment();
        if flow.phase == Phase::Opening {
            if direction == Direction::ServerToClient {
                return true;
            }
            if !self.handle_first_ack(index, segment) {
                return false;
            }
        }
        let Some(flow) = self.flows.get(index) else {
            return true;
        };
        let plain = matches!(flow.payload, Payload::Plain(_));
        let [half, other] = flow.halves_from(direction);
        let Some(offset) = half.offset_of(segment.tcp.sequence()) else {
            return !inline;
        };
        if !half.is_acceptable(offset) {
            return false;
        }
        let scale = half.window_scale.unwrap_or(match half.origin {
            // Not known: it may have been anything.
            Origin::Learned => 14,
            _ => 0,
        });
        let window = u64::from(segment.tcp.window()) << scale;
        // What acknowledges bytes that were never sent, or what has long been acknowledged, is not the
        // sender's, and its receiver drops it (RFC 9293, section 3.10.7.4).
        let acknowledged = other.offset_of(acknowledgment);
        let beyond = acknowledged.is_some_and(|it| it > other.seen());
        let sane = !inline
            || other.origin == Origin::Learned
            || acknowledged.is_none_or(|it| other.is_acknowledgeable(it));
        // Bytes of another protocol may take two ways.
        let unseen = plain && beyond && acknowledged.is_some_and(|it| it <= other.limit() as i64);
        let kept = other.sent.capacity();
        let freed = sane.then(|| other.open_window(acknowledgment, window)).flatten();
        let fewer = other.sent.capacity() < kept;
        let early = half.origin == Origin::Syn && !(0..=half.seen()).contains(&offset);
        // Also a server's keep-alive is sent by one that has the connection.
        let keeps_alive = offset == -1 && segment.tcp.payload().is_empty();
        let answers = half.origin == Origin::SynAck && (offset >= 0 || keeps_alive);
        let nothing_said = acknowledged == Some(0);
        if sane {
            half.last_ack = Some(acknowledgment);
        }
        // Only what stands exactly where the sender is can accuse: it cannot be guessed.
        let exact = offset == half.seen();
        let current = offset >= half.seen();
        if inline && !flow.confirmed {
            flow.confirmed = answers && sane;
            // Once no SYN cookie can be in force, a keep-alive begins nothing.
            let expired = self.now_ns.saturating_sub(flow.started_ns) >= COOKIE_LIFETIME_NS;
            if early && !(keeps_alive && nothing_said && expired) && is_followed(flow) {
                return false;
            }
        }
        let Some(flow) = self.flows.get(index) else {
            return false;
        };
        let [_, other] = flow.halves_from(direction);
        let mut direction = direction;
        if !other.syn_data.is_empty() {
            self.accept_syn_data(index, direction.reverse(), acknowledgment);
            // It may have shown that roles are the other way round.
            if let Some(flow) = self.flows.get(index) {
                direction = flow.direction_from(segment.source);
            }
        }
        if let Some(memory) = freed {
            self.pool.give(memory);
        }
        if fewer {
            self.charge(index);
        }
        if let Some(flow) = self.flows.get(index)
            && current
        {
            if !inline {
                let half = flow.half(direction.reverse());
                let beyond = half.is_acknowledged_beyond(acknowledgment);
                let since = half.gap_since_ns.filter(|_| beyond).unwrap_or(self.now_ns);
                half.gap_since_ns = beyond.then_some(since);
                if beyond && self.now_ns.saturating_sub(since) >= GAP_GRACE_NS {
                    self.skip_gap(index, direction.reverse(), acknowledgment);
                }
            } else if beyond && exact {
                self.handle_unseen(index, direction.reverse());
            }
        }
        sane || unseen
    }

    /// A copy of bytes was lost on its way to the monitor. What follows is not understood any more,
    /// but the connection is followed to its end.
    fn skip_gap(&mut self, index: FlowIndex, direction: Direction, acknowledgment: u32) {
        self.handle_unseen(index, direction);
        if let Some(flow) = self.flows.get(index)
            && !is_followed(flow)
        {
            flow.half(direction).skip_to(acknowledgment);
            self.charge(index);
            self.close_if_finished(index);
        }
    }

    /// Bytes of a direction have passed some other way.
    fn handle_unseen(&mut self, index: FlowIndex, direction: Direction) {
        match self.flows.get(index).map(|flow| &mut flow.payload) {
            Some(Payload::Tls(session)) if session.following() => {
                let mut ctx = context!(self);
                session.fail(direction, SessionError::LostSynchronisation, &mut ctx);
            }
            Some(Payload::Undecided(_)) => {
                self.note(index, direction, TcpAnomaly::UnseenBytes);
                self.give_up(index, SessionError::LostSynchronisation);
            }
            _ => {}
        }
    }

    /// What an undecided connection carries will not be known any more.
    pub(super) fn give_up(&mut self, index: FlowIndex, error: SessionError) {
        if self.config.inline {
            let policies = &self.config.policies;
            let policy = match error {
                SessionError::MemoryCap => policies.memory_cap,
                _ => policies.lost_synchronisation,
            };
            return self.refuse(index, policy, error);
        }
        if let Some(flow) = self.flows.get(index) {
            flow.payload = Payload::Plain(Watch::default());
        }
        self.counters.mid_stream += 1;
        self.bypass(index);
        self.judge_mid_stream(index);
    }

    /// The client's acknowledgment of the SYN-ACK opens the connection; false when it does not
    /// fit.
    fn handle_first_ack(&mut self, index: FlowIndex, segment: &Segment<'_>) -> bool {
        let Some(flow) = self.flows.get(index) else {
            return false;
        };
        let [client, server] = &mut flow.halves;
        let acknowledgment = segment.tcp.acknowledgment();
        if server.initial.is_none() {
            // A capture may miss the answer: the acknowledgment tells it.
            server.begin(acknowledgment, Origin::Learned, None);
        }
        let in_place = client
            .offset_of(segment.tcp.sequence())
            .is_some_and(|offset| offset >= 0 && client.is_acceptable(offset));
        let answered = server
            .offset_of(acknowledgment)
            .is_some_and(|offset| offset >= 0 && server.is_acceptable(offset));
        if !in_place || !answered || segment.tcp.flags().rst() {
            // A RST is judged for itself.
            return segment.tcp.flags().rst();
        }
        flow.phase = Phase::Open;
        true
    }

    /// A RST counts only where its receiver must obey it (RFC 5961, section 3.2); otherwise a
    /// forged one would blind the monitor.
    pub(super) fn handle_rst(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let half = &flow.halves[direction.index()];
        let exact = match half.offset_of(segment.tcp.sequence()) {
            // Where its receiver is, as far as it is known: bytes may be lost behind the monitor.
            Some(offset) => {
                let stands = [half.assembler.next(), half.released, half.acknowledged()];
                offset == half.seen() || stands.map(|at| at as i64).contains(&offset)
            }
            None => matches!(flow.payload, Payload::Plain(_)),
        };
        // In answer to a SYN the RST carries sequence 0 and acknowledges the SYN.
        let client = &flow.halves[0];
        let refused = flow.phase == Phase::Opening
            && direction == Direction::ServerToClient
            && client.initial.is_some_and(|syn| {
                let beyond = segment.tcp.acknowledgment().wrapping_sub(syn) as usize;
                beyond <= client.syn_data.len()
            });
        if exact || refused {
            self.close(index, EndReason::ResetByPeer(direction));
            return Passage::Free;
        }
        let followed = is_followed(flow);
        self.stray(index, direction, TcpAnomaly::StrayReset);
        // It must not end what is followed here: the next connection would be taken for this one.
        if self.config.inline && followed { Passage::Refused } else { Passage::Free }
    }
}

/// Whether the data of a repeated SYN or SYN-ACK are those of the first one, or none.
fn repeats_data<S>(flow: &Flow<S>, direction: Direction, payload: &[u8]) -> bool {
    let half = &flow.halves[direction.index()];
    let known = payload.len() as u64 <= half.assembler.next();
    payload.is_empty()
        || half.syn_data == payload
        || known && !flow.contradicts(direction, 0, payload)
}

/// Whether a SYN or SYN-ACK is a copy of the one that this connection began with.
fn repeats<S>(flow: &Flow<S>, direction: Direction, segment: &Segment<'_>) -> bool {
    let half = &flow.halves[direction.index()];
    let origin = if segment.tcp.flags().ack() { Origin::SynAck } else { Origin::Syn };
    half.origin == origin && half.initial == Some(segment.tcp.sequence().wrapping_add(1))
}
