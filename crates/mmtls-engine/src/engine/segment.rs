//! What happens to a TCP segment: connection tracking, reassembly, and the verdict.
//!
//! Refuses to forward the segment that completes a record before the record was judged.

use super::{Context, Engine, StallCheck, context};
use crate::config::Policy;
use crate::flow::{Carries, Flow, FlowIndex, FlowKey, Held, Insert, Phase};
use crate::output::{Output, PortId, Verdict};
use crate::session::{EndReason, Fate, Handler, SessionError, SessionInfo, TlsSession};
use crate::tls::{Direction, Recognition, recognise};
use crate::wire::Segment;

/// How far ahead of the stream a segment may be; the largest window is 1 GiB (RFC 7323).
const MAX_AHEAD: i64 = 1 << 30;

/// RSTs sent in answer to packets of a connection that was reset.
const TOMBSTONE_ANSWERS: u8 = 8;

impl<H: Handler> Engine<H> {
    pub(super) fn handle_segment(&mut self, port: PortId, segment: &Segment<'_>) -> Verdict {
        let key = FlowKey::new(segment.source, segment.destination);
        let index = match self.flows.find(&key) {
            Some(index) => index,
            None => match self.new_flow(segment) {
                Ok(index) => index,
                Err(verdict) => return verdict,
            },
        };
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let direction = flow.direction_from(segment.source);
        flow.last_ns = self.now_ns;
        let half = flow.half(direction);
        half.packets += 1;
        half.bytes += segment.tcp.payload().len() as u64;
        half.remember_path(port, segment.link_header);

        if let Phase::Dead { .. } = flow.phase {
            return self.handle_tombstone(index, direction, segment);
        }
        let flags = segment.tcp.flags();
        if flags.syn() {
            return self.handle_syn(index, direction, segment);
        }
        if flags.ack() {
            self.handle_ack(index, direction, segment.tcp.acknowledgment());
            if self.is_dead(index) {
                return Verdict::Drop;
            }
        }
        if flags.rst() {
            return self.handle_rst(index, direction, segment);
        }
        let verdict = if segment.tcp.payload().is_empty() && !flags.fin() {
            Verdict::Forward
        } else {
            self.handle_payload(index, direction, segment.tcp.sequence(), segment)
        };
        self.close_if_finished(index);
        verdict
    }

    /// Creates the flow of a segment whose four-tuple is new.
    fn new_flow(&mut self, segment: &Segment<'_>) -> Result<FlowIndex, Verdict> {
        let flags = segment.tcp.flags();
        if flags.syn() {
            let (client, server) = if flags.ack() {
                (segment.destination, segment.source)
            } else {
                (segment.source, segment.destination)
            };
            return self.insert(client, server);
        }
        let payload = segment.tcp.payload();
        if payload.is_empty() || flags.rst() {
            return Err(Verdict::Forward);
        }
        self.counters.mid_stream += 1;
        let at_hello = recognise(payload) == Recognition::Tls;
        // Without a SYN the lower port is taken for the server's.
        let from_client = at_hello || segment.source.port() > segment.destination.port();
        let (client, server) = if from_client {
            (segment.source, segment.destination)
        } else {
            (segment.destination, segment.source)
        };
        let policy = self.config.policies.mid_stream;
        let index = self.insert(client, server)?;
        let Some(flow) = self.flows.get(index) else {
            return Err(Verdict::Forward);
        };
        flow.phase = Phase::Open;
        if at_hello {
            flow.halves[0].initial = Some(segment.tcp.sequence());
            flow.halves[1].initial = flags.ack().then(|| segment.tcp.acknowledgment());
            return Ok(index);
        }
        flow.carries = Carries::Plain;
        if let Policy::Drop | Policy::Reset = policy {
            let direction = flow.direction_from(segment.source);
            flow.half(direction).initial = Some(segment.tcp.sequence());
            flow.half(direction).last_ack = flags.ack().then(|| segment.tcp.acknowledgment());
            flow.half(direction.reverse()).initial =
                flags.ack().then(|| segment.tcp.acknowledgment());
            let reason = EndReason::ResetByPolicy(SessionError::LostSynchronisation);
            self.kill(index, policy == Policy::Reset, reason);
        }
        Ok(index)
    }

    fn insert(
        &mut self,
        client: core::net::SocketAddr,
        server: core::net::SocketAddr,
    ) -> Result<FlowIndex, Verdict> {
        match self.flows.insert(client, server, self.now_ns, &self.config.limits) {
            Some(index) => {
                self.counters.flows += 1;
                Ok(index)
            }
            None => {
                self.counters.table_full += 1;
                Err(match self.config.policies.table_full {
                    Policy::Forward | Policy::Bypass => Verdict::Forward,
                    Policy::Drop | Policy::Reset => Verdict::Drop,
                })
            }
        }
    }

    /// A packet of a connection that was reset: never forwarded, answered a few times.
    fn handle_tombstone(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Verdict {
        let flags = segment.tcp.flags();
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Drop;
        };
        if flags.syn() && segment.tcp.payload().is_empty() {
            // A new connection on the four-tuple; the tombstone goes when it is answered.
            return self.handle_syn(index, direction, segment);
        }
        if let Phase::Dead {
            reason: EndReason::ResetByHandler | EndReason::ResetByPolicy(_),
            answers,
        } = &mut flow.phase
            && *answers > 0
            && flags.ack()
            && !flags.rst()
        {
            *answers -= 1;
            // What a sender acknowledges is exactly what it accepts in a RST (RFC 5961).
            let sequence = segment.tcp.acknowledgment();
            let end = segment.tcp.sequence().wrapping_add(segment.tcp.payload().len() as u32);
            self.inject_reset(index, direction.reverse(), sequence, end);
        }
        Verdict::Drop
    }

    fn handle_syn(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Verdict {
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let initial = segment.tcp.sequence().wrapping_add(1);
        let dead = matches!(flow.phase, Phase::Dead { .. } | Phase::Closed(_));
        if segment.tcp.flags().ack() {
            let acknowledged = segment.tcp.acknowledgment();
            if flow.pending_syn.map(|syn| syn.wrapping_add(1)) == Some(acknowledged) {
                return self.replace(index, segment);
            }
            if dead {
                self.counters.stray_control += 1;
                return Verdict::Drop;
            }
            let half = flow.half(direction);
            match half.initial {
                None => half.initial = Some(initial),
                Some(known) if known == initial => {}
                // Which of two answers the client took cannot be known: the first one stays.
                Some(_) => {
                    self.counters.stray_control += 1;
                    return Verdict::Drop;
                }
            }
            half.last_ack = Some(acknowledged);
            if flow.phase == Phase::Opening {
                flow.phase = Phase::Open;
            }
        } else {
            let half = flow.half(direction);
            match half.initial {
                None if !dead => half.initial = Some(initial),
                Some(known) if known == initial && !dead => {}
                _ => {
                    // Perhaps a new connection; believed when the other side answers it.
                    self.counters.stray_control += 1;
                    flow.pending_syn = Some(segment.tcp.sequence());
                    return if segment.tcp.payload().is_empty() {
                        Verdict::Forward
                    } else {
                        Verdict::Drop
                    };
                }
            }
        }
        if segment.tcp.payload().is_empty() {
            return Verdict::Forward;
        }
        // Data on a SYN (RFC 7413): it starts at offset 0, behind the SYN itself.
        self.handle_payload(index, direction, initial, segment)
    }

    /// A new connection has taken over the four-tuple of an old one.
    fn replace(&mut self, index: FlowIndex, segment: &Segment<'_>) -> Verdict {
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let syn = flow.pending_syn;
        let paths = [Direction::ClientToServer, Direction::ServerToClient]
            .map(|way| flow.half(way).path().map(|(port, header)| (port, header.to_vec())));
        let was_client = flow.client;
        self.remove(index, EndReason::Replaced);
        let index = match self.insert(segment.destination, segment.source) {
            Ok(index) => index,
            Err(verdict) => return verdict,
        };
        if let Some(flow) = self.flows.get(index) {
            flow.phase = Phase::Open;
            let same_sides = flow.client == was_client;
            flow.halves[0].initial = syn.map(|syn| syn.wrapping_add(1));
            flow.halves[1].initial = Some(segment.tcp.sequence().wrapping_add(1));
            flow.halves[1].last_ack = Some(segment.tcp.acknowledgment());
            flow.halves[1].packets = 1;
            for (side, path) in paths.into_iter().enumerate() {
                let side = if same_sides { side } else { 1 - side };
                if let Some((port, header)) = path {
                    flow.halves[side].remember_path(port, &header);
                }
            }
        }
        Verdict::Forward
    }

    /// Notes an acknowledgment. Inline, one of bytes that were never seen means that they passed
    /// some other way: the monitor has lost the stream.
    fn handle_ack(&mut self, index: FlowIndex, direction: Direction, acknowledgment: u32) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        flow.half(direction).last_ack = Some(acknowledgment);
        let other = &mut flow.halves[direction.reverse().index()];
        // The answer to a SYN may have been missed: the client's acknowledgment tells it.
        if other.initial.is_none() && direction == Direction::ClientToServer {
            other.initial = Some(acknowledgment);
            if flow.phase == Phase::Opening {
                flow.phase = Phase::Open;
            }
        }
        let other = &flow.halves[direction.reverse().index()];
        if self.config.inline
            && other.is_acknowledged_beyond(acknowledgment)
            && let Carries::Tls(session) = &mut flow.carries
            && session.following()
        {
            let mut ctx = context!(self);
            session.fail(direction.reverse(), SessionError::LostSynchronisation, &mut ctx);
            self.settle(index);
        }
    }

    /// A RST counts only where its receiver must obey it (RFC 5961, section 3.2); otherwise a
    /// forged one would blind the monitor.
    fn handle_rst(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Verdict {
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let followed = !matches!(flow.carries, Carries::Plain);
        let half = &flow.halves[direction.index()];
        let offset = half.offset_of(segment.tcp.sequence());
        let next = half.assembler.next() as i64;
        let fin = i64::from(half.fin_reached());
        let exact = offset == Some(next)
            || offset == Some(next + fin)
            || offset == Some(half.released as i64);
        // In answer to a SYN the RST carries sequence 0 and acknowledges the SYN.
        let refused = flow.phase == Phase::Opening
            && direction == Direction::ServerToClient
            && flow.halves[0].initial == Some(segment.tcp.acknowledgment());
        if followed && !exact && !refused {
            self.counters.stray_control += 1;
            return Verdict::Forward;
        }
        self.close(index, EndReason::ResetByPeer(direction));
        Verdict::Forward
    }

    /// Payload and FIN of a segment, starting at `sequence`.
    fn handle_payload(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        sequence: u32,
        segment: &Segment<'_>,
    ) -> Verdict {
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let payload = segment.tcp.payload();
        let fin = segment.tcp.flags().fin();
        if !is_followed(flow) {
            return handle_unfollowed(flow, direction, sequence, payload.len(), fin);
        }
        let half = &mut flow.halves[direction.index()];
        // Data before the SYN of its direction: nobody accepts it.
        let Some(offset) = half.offset_of(sequence) else {
            self.counters.out_of_window += 1;
            return Verdict::Drop;
        };
        // What lies before the stream (keep-alive probes repeat one byte) is old.
        let skip = usize::try_from(offset.min(0).unsigned_abs()).unwrap_or(usize::MAX);
        let payload = payload.get(skip..).unwrap_or(&[]);
        let start = u64::try_from(offset).unwrap_or(0);
        let end = start + payload.len() as u64;
        let ahead = offset - half.assembler.next() as i64;
        let behind_fin = half.fin.is_some_and(|fin_at| end > fin_at || (fin && end != fin_at));
        let closed = matches!(flow.phase, Phase::Closed(EndReason::ResetByPeer(_)));
        if ahead > MAX_AHEAD || behind_fin || (closed && !payload.is_empty()) {
            self.counters.out_of_window += 1;
            return Verdict::Drop;
        }
        if fin {
            // A FIN below bytes that were seen contradicts them.
            if end < half.assembler.highest() {
                self.counters.out_of_window += 1;
                return Verdict::Drop;
            }
            half.fin = Some(end);
        }
        self.reassemble(index, direction, start, payload)
    }

    /// Puts payload into order, feeds what became contiguous, and finds the verdict.
    fn reassemble(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        start: u64,
        payload: &[u8],
    ) -> Verdict {
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let limits = &self.config.limits;
        let half = &mut flow.halves[direction.index()];
        let room = limits
            .max_reassembly_bytes
            .saturating_sub(half.assembler.buffered())
            .min(limits.max_buffered_bytes.saturating_sub(self.buffered));
        match half.assembler.insert(start, payload, room) {
            Insert::InOrder(bytes) => {
                let len = bytes.len();
                self.feed(index, direction, bytes);
                self.advance(index, direction, len);
                self.judge(index, direction)
            }
            Insert::Duplicate => {
                let end = start + payload.len() as u64;
                if !payload.is_empty() {
                    self.counters.retransmissions += 1;
                    // The original is held and will go, or be dropped, in its turn.
                    if end > half.released {
                        return Verdict::Drop;
                    }
                }
                if half.fin == Some(end) {
                    self.advance(index, direction, 0);
                    return self.judge(index, direction);
                }
                Verdict::Forward
            }
            Insert::OutOfOrder => {
                self.counters.out_of_order += 1;
                self.charge(index);
                self.judge(index, direction)
            }
            Insert::Conflict => {
                self.counters.conflicting_overlaps += 1;
                if let Some(Flow { carries: Carries::Tls(session), .. }) = self.flows.get(index) {
                    let mut ctx = context!(self);
                    session.raise(direction, SessionError::ConflictingOverlap, &mut ctx);
                }
                Verdict::Drop
            }
            Insert::Full => {
                self.counters.buffer_full += 1;
                if !self.config.inline
                    && let Some(Flow { carries: Carries::Tls(session), .. }) = self.flows.get(index)
                {
                    let mut ctx = context!(self);
                    session.fail(direction, SessionError::LostSynchronisation, &mut ctx);
                    self.settle(index);
                }
                Verdict::Drop
            }
        }
    }

    /// Moves the stream on behind delivered bytes and delivers what has become contiguous.
    fn advance(&mut self, index: FlowIndex, direction: Direction, len: usize) {
        let mut delivered = len;
        while let Some(flow) = self.flows.get(index) {
            let half = flow.half(direction);
            half.assembler.advance(delivered);
            let Some(piece) = half.assembler.pop_ready() else {
                break;
            };
            self.feed(index, direction, &piece);
            delivered = piece.len();
        }
        if let Some(flow) = self.flows.get(index)
            && flow.half(direction).fin_reached()
            && !core::mem::replace(&mut flow.half(direction).fin_reported, true)
            && let Carries::Tls(session) = &mut flow.carries
        {
            let mut ctx = context!(self);
            session.handle_fin(direction, &mut ctx);
        }
        self.charge(index);
    }

    /// Hands contiguous bytes to whatever the flow carries.
    fn feed(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        match &mut flow.carries {
            Carries::Plain => {}
            Carries::Tls(session) => {
                let mut ctx = context!(self);
                let known = session.key_random();
                session.handle_bytes(direction, bytes, &mut ctx);
                if session.key_random() != known {
                    self.register(index, known);
                }
            }
            // A server that speaks first does not speak TLS.
            Carries::Undecided(_) if direction == Direction::ServerToClient => {
                if !bytes.is_empty() {
                    flow.carries = Carries::Plain;
                }
            }
            Carries::Undecided(prefix) => {
                let position = flow.halves[0].assembler.next() - prefix.len() as u64;
                prefix.extend_from_slice(&bytes[..bytes.len().min(16)]);
                match recognise(prefix) {
                    Recognition::Unsure => {}
                    Recognition::Other => flow.carries = Carries::Plain,
                    Recognition::Tls => {
                        let taken = (flow.halves[0].assembler.next() - position) as usize;
                        let before = prefix[..taken].to_vec();
                        let info =
                            SessionInfo::new(flow.id, flow.client, flow.server, flow.started_ns);
                        let mut ctx = context!(self);
                        let positions = [position, flow.halves[1].assembler.next()];
                        let session = TlsSession::start(info, positions, &mut ctx);
                        flow.carries = Carries::Tls(Box::new(session));
                        self.feed(index, direction, &before);
                        self.feed(index, direction, bytes);
                    }
                }
            }
        }
    }

    /// The verdict on a frame whose bytes have been handled.
    fn judge(&mut self, index: FlowIndex, direction: Direction) -> Verdict {
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let half = &mut flow.halves[direction.index()];
        let contiguous = half.assembler.next();
        let Carries::Tls(session) = &mut flow.carries else {
            half.released = contiguous;
            if let Carries::Plain = flow.carries {
                half.assembler.clear();
                self.charge(index);
            }
            return Verdict::Forward;
        };
        match session.fate {
            Fate::Kill { reset, reason } => {
                self.kill(index, reset, reason);
                Verdict::Drop
            }
            Fate::Bypass if half.held.is_empty() => {
                half.released = contiguous;
                self.bypass(index);
                Verdict::Forward
            }
            Fate::Follow if half.held.is_empty() && !session.is_stalled(direction) => {
                half.released = contiguous;
                Verdict::Forward
            }
            Fate::Follow | Fate::Bypass => self.hold(index, direction, contiguous),
        }
    }

    /// Holds the frame at hand behind those that are held already.
    fn hold(&mut self, index: FlowIndex, direction: Direction, contiguous: u64) -> Verdict {
        let id = self.next_hold();
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let half = &mut flow.halves[direction.index()];
        half.held.push_back(Held { id, contiguous });
        let held = half.held.len();
        let limits = &self.config.limits;
        if let Carries::Tls(session) = &mut flow.carries {
            if session.fate == Fate::Bypass {
                self.bypass(index);
                return Verdict::Hold(id);
            }
            if let Some(since_ns) = session.stalled_since_ns(direction)
                && half.stall_checked_ns != Some(since_ns)
            {
                half.stall_checked_ns = Some(since_ns);
                self.stalls.push_back(StallCheck {
                    deadline_ns: since_ns.saturating_add(limits.stall_timeout_ns),
                    index,
                    id: session.info.id,
                    direction,
                    since_ns,
                });
            }
            if held > limits.stall_max_packets
                || session.stalled_bytes(direction) > limits.stall_max_bytes
            {
                let mut ctx = context!(self);
                session.handle_missing_keys(direction, &mut ctx);
                self.settle(index);
            }
        }
        Verdict::Hold(id)
    }

    /// The time of a stall is up.
    pub(super) fn end_stall(&mut self, check: &StallCheck) {
        if let Some(flow) = self.flows.get_if(check.index, check.id)
            && let Carries::Tls(session) = &mut flow.carries
            && session.stalled_since_ns(check.direction) == Some(check.since_ns)
        {
            let mut ctx = context!(self);
            session.handle_missing_keys(check.direction, &mut ctx);
            self.settle(check.index);
        }
    }

    /// Acts on what a session has come to outside of a frame: releases, bypasses or kills.
    pub(super) fn settle(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let Carries::Tls(session) = &flow.carries else {
            return;
        };
        match session.fate {
            Fate::Kill { reset, reason } => self.kill(index, reset, reason),
            Fate::Bypass => self.bypass(index),
            Fate::Follow => {
                for direction in Direction::BOTH {
                    self.release(index, direction);
                }
                self.recheck_stalls(index);
                self.charge(index);
                self.close_if_finished(index);
            }
        }
    }

    /// Releases the held frames that no longer complete an unjudged record.
    fn release(&mut self, index: FlowIndex, direction: Direction) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let barrier = match &flow.carries {
            Carries::Tls(session) if session.fate == Fate::Follow => session.barrier(direction),
            _ => None,
        };
        let half = &mut flow.halves[direction.index()];
        while let Some(held) = half.held.front() {
            if barrier.is_some_and(|barrier| held.contiguous >= barrier) {
                return;
            }
            self.outputs.push_back(Output::Release(held.id));
            self.counters.released += 1;
            half.released = half.released.max(held.contiguous);
            half.held.pop_front();
        }
    }

    /// Stops following: everything that is held goes on its way.
    fn bypass(&mut self, index: FlowIndex) {
        for direction in Direction::BOTH {
            self.release(index, direction);
            if let Some(flow) = self.flows.get(index) {
                let half = flow.half(direction);
                half.assembler.clear();
                half.released = half.assembler.next();
            }
        }
        self.charge(index);
    }

    /// A stall that began while another ended has its own deadline.
    fn recheck_stalls(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let Carries::Tls(session) = &flow.carries else {
            return;
        };
        for direction in Direction::BOTH {
            let half = &mut flow.halves[direction.index()];
            if let Some(since_ns) = session.stalled_since_ns(direction)
                && half.stall_checked_ns != Some(since_ns)
            {
                half.stall_checked_ns = Some(since_ns);
                self.stalls.push_back(StallCheck {
                    deadline_ns: since_ns.saturating_add(self.config.limits.stall_timeout_ns),
                    index,
                    id: session.info.id,
                    direction,
                    since_ns,
                });
            }
        }
    }

    /// Brings the engine's total of buffered bytes up to date with one flow.
    fn charge(&mut self, index: FlowIndex) {
        if let Some(flow) = self.flows.get(index) {
            let mut bytes: usize = flow.halves.iter().map(|half| half.assembler.buffered()).sum();
            if let Carries::Tls(session) = &flow.carries {
                bytes += session.buffered();
            }
            self.buffered = self.buffered.saturating_sub(flow.charged).saturating_add(bytes);
            flow.charged = bytes;
        }
    }

    fn is_dead(&mut self, index: FlowIndex) -> bool {
        self.flows.get(index).is_some_and(|flow| matches!(flow.phase, Phase::Dead { .. }))
    }

    /// The number of answers a fresh tombstone gives.
    pub(super) const fn tombstone_answers() -> u8 {
        TOMBSTONE_ANSWERS
    }
}

/// Whether the flow's bytes are looked at.
fn is_followed<S>(flow: &Flow<S>) -> bool {
    match &flow.carries {
        Carries::Plain => false,
        Carries::Undecided(_) => true,
        Carries::Tls(session) => session.fate != Fate::Bypass,
    }
}

/// A data segment of a flow that is not followed: only its FIN matters.
fn handle_unfollowed<S>(
    flow: &mut Flow<S>,
    direction: Direction,
    sequence: u32,
    len: usize,
    fin: bool,
) -> Verdict {
    let half = flow.half(direction);
    // Keep up with the stream, so that FIN, RST and the flow's end are still understood.
    if let Some(offset) = half.offset_of(sequence) {
        let end = u64::try_from(offset + len as i64).unwrap_or(0);
        let next = half.assembler.next();
        if end > next && end - next <= MAX_AHEAD as u64 {
            half.assembler.advance((end - next) as usize);
            half.released = end;
        }
        if fin {
            half.fin = Some(end);
        }
    }
    Verdict::Forward
}
