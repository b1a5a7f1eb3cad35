//! What happens to a TCP segment: which connection it belongs to, reassembly, and the verdict.
//!
//! Inline, a segment that cannot be kept is dropped, and its sender repeats it; in a capture it was delivered anyway, so the
//! loss is declared. Where a connection has shown that it carries something else, a copy with other bytes passes if TLS cannot
//! begin in it, nor be asked for: nothing is judged there.
//!
//! Refuses to forward the segment that completes a record before the record was judged.

use super::conclude::Passage;
use super::payload::{Flow, Payload, Tls, is_followed};
use super::{Engine, context};
use crate::config::Policy;
use crate::follow::TlsSession;
use crate::output::{PortId, Verdict};
use crate::recognition::{Beginning, Found, Noticed, may_begin};
use crate::session::{Disposition, EndReason, Handler, SessionError, SessionInfo, TcpAnomaly};
use crate::tcp::{FlowIndex, FlowKey, Insert, Phase, SharedBytes, TcpDirection};
use crate::tls::{Direction, ProtocolVersion};
use crate::wire::Segment;

/// How far ahead of the stream a segment of a capture may be; the largest window is 1 GiB
/// (RFC 7323).
const MAX_AHEAD: i64 = 1 << 30;

/// How far behind its stream a segment of a flow that is not followed is looked at: more than a sender's usual
/// window, and a four-thousandth of the numbers that somebody who cannot see the connection would try.
const MAX_REPEATED: i64 = 1 << 20;

/// One direction's unacknowledged bytes may take one part in so many of the memory that is left.
const UNACKNOWLEDGED_SHARE: usize = 8;

/// As long as no more than one part in so many of the memory is taken, some of it is wasted where that saves time.
const WASTE_SHARE: usize = 16;

impl<H: Handler> Engine<H> {
    pub(super) fn handle_segment(&mut self, port: PortId, segment: &Segment<'_>) -> Verdict {
        if segment.tcp.flags().syn() && segment.tcp.is_multipath() {
            self.counters.multipath += 1;
            let policy = self.config.policies.multipath;
            if self.config.inline && matches!(policy, Policy::Drop | Policy::Reset) {
                return Verdict::Drop;
            }
        }
        let flags = segment.tcp.flags();
        if self.config.inline
            && flags.syn()
            && (flags.fin() || flags.rst() || !segment.tcp.payload().is_empty())
        {
            // Which of it counts, its receiver alone knows.
            self.counters.syn_data += 1;
            return Verdict::Drop;
        }
        let (index, is_new) = match self.find_flow(port, segment) {
            Ok(found) => found,
            Err(verdict) => return verdict,
        };
        let passage = self.handle_segment_of(index, is_new, port, segment);
        self.verdict_for(index, passage)
    }

    /// Handles a segment of a connection: what it may do, if the connection allows it.
    fn handle_segment_of(
        &mut self,
        index: FlowIndex,
        is_new: bool,
        port: PortId,
        segment: &Segment<'_>,
    ) -> Passage {
        let flags = segment.tcp.flags();
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let mut direction = flow.direction_from(segment.source);
        flow.last_ns = self.now_ns;
        let half = flow.half(direction);
        half.packets += 1;
        half.bytes += segment.tcp.payload().len() as u64;
        half.remember_path(port, segment.link_header);
        if flow.one_sided {
            flow.one_sided = flow.halves.iter().any(|half| half.packets == 0);
        }
        if flow.is_attempt() {
            self.flows.settle_attempt(index);
        }
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        if is_new && !self.config.inline && matches!(flow.payload, Payload::Plain(_)) {
            self.judge_mid_stream(index);
            return Passage::Free;
        }

        if flags.syn() {
            return match self.handle_syn(index, direction, segment) {
                Passage::Free => Passage::Beginning,
                other => other,
            };
        }
        if let Phase::Dead { .. } = flow.phase {
            return self.handle_tombstone(index, direction, segment);
        }
        if flow.phase == Phase::Opening && self.config.inline {
            if let Some(passage) = self.handle_opening(index, direction, segment) {
                return passage;
            }
            // Whoever has sent the SYN is the client now.
            direction = self.direction_of(index, segment);
        }
        let inline = self.config.inline;
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        self.counters.bypassed += u64::from(flow.exempt);
        // Receivers take urgent bytes out of the stream, or not: two streams. TLS has none.
        if flags.urg() && refuses_urgent(flow, direction, segment.tcp.payload()) {
            self.counters.urgent += 1;
            self.note(index, direction, TcpAnomaly::UrgentData);
            return Passage::Refused;
        }
        let fits = !flags.ack() || self.handle_ack(index, direction, segment);
        if self.is_over(index) {
            return Passage::Refused;
        }
        if !self.config.inline {
            // Data on a SYN, acknowledged just now, may have shown that roles are the other way round.
            direction = self.direction_of(index, segment);
        }
        if flags.rst() {
            return self.handle_rst(index, direction, segment);
        }
        if segment.tcp.payload().is_empty() && !flags.fin() {
            match fits {
                true => Passage::Free,
                false => self.stray_acknowledgment(index, direction),
            }
        } else if (!fits || !flags.ack())
            && self.flows.get(index).is_some_and(|it| is_watched(it, inline))
        {
            // No receiver takes it (RFC 9293, section 3.10.7.4), and what stands there would be read in its
            // place.
            self.out_of_window(index, direction)
        } else {
            self.handle_payload(index, direction, segment)
        }
    }

    fn direction_of(&mut self, index: FlowIndex, segment: &Segment<'_>) -> Direction {
        let flow = self.flows.get(index);
        flow.map_or(Direction::ClientToServer, |flow| flow.direction_from(segment.source))
    }

    /// The flow of a segment, new or known, and whether it is new.
    fn find_flow(
        &mut self,
        port: PortId,
        segment: &Segment<'_>,
    ) -> Result<(FlowIndex, bool), Verdict> {
        let (from, to) = (segment.source, segment.destination);
        let key = match self.config.inline {
            true => FlowKey::of(segment.vlan, from, to, port),
            false => FlowKey::new(segment.vlan, from, to),
        };
        match self.flows.find(&key) {
            Some(index) => Ok((index, false)),
            None => self.new_flow(port, segment).map(|index| (index, true)),
        }
    }

    /// A packet of a connection that was reset: never forwarded, answered a few times.
    fn handle_tombstone(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        let flags = segment.tcp.flags();
        if let Some(flow) = self.flows.get(index)
            && let Phase::Dead { answers, .. } = &mut flow.phase
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
        Passage::Refused
    }

    /// Payload and FIN of a segment.
    fn handle_payload(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        let inline = self.config.inline;
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let payload = segment.tcp.payload();
        let sequence = segment.tcp.sequence();
        let fin = segment.tcp.flags().fin();
        let urgent = segment.tcp.flags().urg();
        if inline
            && direction == Direction::ClientToServer
            && !flow.exempt
            && let Payload::Plain(watch) = &flow.payload
            && watch.may_begin(direction)
            && flow.halves[direction.index()]
                .offset_of(sequence)
                .is_some_and(|it| it > flow.halves[direction.index()].assembler.next() as i64)
        {
            // TLS may begin in what is missing before it. Of whoever answered the SYN this is not asked:
            // a lost segment would cost the whole flight behind it, for downloads in the clear.
            return self.out_of_window(index, direction);
        }
        match &mut flow.payload {
            // From there anybody can send what looks like TLS; a client may have walked away from where its
            // receiver stands.
            Payload::Plain(watch) if !is_near(&flow.halves[direction.index()], sequence) => {
                watch.note_unread(direction);
            }
            Payload::Undecided(recogniser) if urgent => recogniser.note_urgent(direction),
            Payload::Tls(_) => {}
            carries => {
                let missed = match carries {
                    Payload::Plain(watch) if urgent => watch.handle_urgent(direction, payload),
                    _ => watch(flow, direction, sequence, payload),
                };
                if missed {
                    self.miss(index, direction);
                    if self.is_over(index) {
                        return Passage::Refused;
                    }
                }
            }
        }
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        if !is_followed(flow) {
            if is_changed(flow, direction, sequence, payload) && may_begin(payload) {
                // The bytes that showed what the connection carries, sent again as others.
                self.counters.conflicting_overlaps += 1;
                self.note(index, direction, TcpAnomaly::ConflictingOverlap);
                return Passage::Refused;
            }
            handle_unfollowed(flow, direction, sequence, payload.len(), fin);
            return Passage::Free;
        }
        let reset = matches!(flow.phase, Phase::Closed(EndReason::ResetByPeer(_)));
        let half = &mut flow.halves[direction.index()];
        let Some(range) = place(half, sequence, payload.len(), fin, inline) else {
            return self.out_of_window(index, direction);
        };
        if reset && !payload.is_empty() {
            return self.out_of_window(index, direction);
        }
        let (start, skip) = range;
        let payload = payload.get(skip..).unwrap_or(&[]);
        let end = start + payload.len() as u64;
        let fin_before = half.fin;
        if fin {
            half.fin = Some(end);
        }
        let buffered = self.counters.conflicting_overlaps + self.counters.buffer_full;
        let passage = self.reassemble(index, direction, start, payload);
        if buffered != self.counters.conflicting_overlaps + self.counters.buffer_full
            && let Some(flow) = self.flows.get(index)
        {
            // The segment was refused whole, and its FIN with it.
            flow.half(direction).fin = fin_before;
        }
        passage
    }

    /// Puts payload into order and feeds what became contiguous.
    pub(super) fn reassemble(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        start: u64,
        payload: &[u8],
    ) -> Passage {
        let left = self.room_for(index);
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let limits = &self.config.limits;
        let half = &mut flow.halves[direction.index()];
        let room = limits.max_reassembly_bytes.saturating_sub(half.assembler.buffered()).min(left);
        let end = start + payload.len() as u64;
        // A share of what is left, so that a few who never acknowledge do not take all of it.
        let sent_room = limits.max_reassembly_bytes.min(left / UNACKNOWLEDGED_SHARE);
        if end > half.assembler.next()
            && half.sent.len() > 0
            && half.sent.len() + payload.len() > sent_room
        {
            if self.config.inline {
                // Its sender repeats it, more slowly.
                self.counters.buffer_full += 1;
                return Passage::Refused;
            }
            half.sent.shrink_to(sent_room.saturating_sub(payload.len()));
            self.charge(index);
        }
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let contradicts = flow.contradicts(direction, start, payload);
        let half = flow.half(direction);
        let inserted = match contradicts {
            true => Insert::Conflict,
            false => half.assembler.insert(start, payload, room),
        };
        match inserted {
            Insert::InOrder(bytes) => {
                let len = bytes.len();
                let undecided = matches!(flow.payload, Payload::Undecided(_));
                let client = flow.client;
                let changed = self.hand_on(index, direction, bytes);
                // Roles may have turned out to be the other way round.
                let direction = match undecided && self.client_of(index) != Some(client) {
                    true => direction.reverse(),
                    false => direction,
                };
                self.advance(index, direction, len, changed);
                Passage::Ordered(direction)
            }
            Insert::Duplicate => {
                if !payload.is_empty() {
                    self.counters.retransmissions += 1;
                    // The original is held and will go, or be dropped, in its turn.
                    if end > half.released {
                        return Passage::Refused;
                    }
                }
                if half.fin == Some(end) {
                    self.advance(index, direction, 0, false);
                    return Passage::Ordered(direction);
                }
                Passage::Free
            }
            Insert::OutOfOrder => {
                self.counters.out_of_order += 1;
                self.charge(index);
                Passage::Ordered(direction)
            }
            Insert::Conflict => {
                self.counters.conflicting_overlaps += 1;
                // Said once: who sends one can send many.
                if !core::mem::replace(&mut half.conflict_reported, true) {
                    self.report_conflict(index, direction);
                }
                Passage::Refused
            }
            Insert::Full => {
                self.counters.buffer_full += 1;
                if !self.config.inline {
                    self.fail(index, direction, SessionError::LostSynchronisation);
                }
                Passage::Refused
            }
        }
    }

    fn client_of(&mut self, index: FlowIndex) -> Option<core::net::SocketAddr> {
        self.flows.get(index).map(|flow| flow.client)
    }

    /// A side has answered as a TLS server does to something that was not recognised.
    fn miss(&mut self, index: FlowIndex, direction: Direction) {
        self.note(index, direction, TcpAnomaly::MissedTls);
        self.give_up(index, SessionError::LostSynchronisation);
    }

    /// Tells of bytes that were sent again as others.
    fn report_conflict(&mut self, index: FlowIndex, direction: Direction) {
        if let Some(Flow { payload: Payload::Tls(tls), .. }) = self.flows.get(index) {
            let mut ctx = context!(self, tls.state);
            tls.session.raise(direction, SessionError::ConflictingOverlap, &mut ctx);
        } else {
            self.note(index, direction, TcpAnomaly::ConflictingOverlap);
        }
    }

    /// Raises an error; its policy is carried out when the connection is concluded.
    pub(super) fn fail(&mut self, index: FlowIndex, direction: Direction, error: SessionError) {
        if let Some(Flow { payload: Payload::Tls(tls), .. }) = self.flows.get(index)
            && tls.session.following()
        {
            let mut ctx = context!(self, tls.state);
            tls.session.fail(direction, error, &mut ctx);
        }
    }

    /// Moves the stream on behind delivered bytes and delivers what has become contiguous.
    /// `changed`: whether the flow may take other memory than when it was charged last.
    fn advance(
        &mut self,
        index: FlowIndex,
        mut direction: Direction,
        len: usize,
        mut changed: bool,
    ) {
        let mut delivered = len;
        while let Some(flow) = self.flows.get(index) {
            let half = flow.half(direction);
            half.assembler.advance(delivered);
            changed |= half.assembler.buffered() > 0;
            let Some(piece) = half.assembler.pop_ready() else {
                break;
            };
            let client = self.client_of(index);
            self.hand_on(index, direction, &piece);
            if client != self.client_of(index) {
                direction = direction.reverse();
            }
            delivered = piece.len();
        }
        if changed && self.charge(index) > 0 {
            self.meet_cap(index, direction);
        }
    }

    /// Makes room where a connection has grown; if that cannot be done, ends its following. While it
    /// is not known what they carry, connections share half of it.
    fn meet_cap(&mut self, index: FlowIndex, direction: Direction) {
        self.make_room();
        let max = self.config.limits.max_buffered_bytes;
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        match &flow.payload {
            Payload::Undecided(_) if self.undecided > max / 2 || self.buffered > max => {
                self.give_up(index, SessionError::MemoryCap);
            }
            Payload::Tls(_) if self.buffered > max => {
                self.fail(index, direction, SessionError::MemoryCap);
            }
            _ => {}
        }
    }

    /// Hands contiguous bytes to whatever the flow carries, and keeps them until they are
    /// acknowledged. Returns whether the flow may take other memory now than before.
    fn hand_on(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) -> bool {
        if let Some(flow) = self.flows.get(index)
            && is_followed(flow)
        {
            let half = &mut flow.halves[direction.index()];
            let offset = half.assembler.next();
            if let Payload::Tls(tls) = &mut flow.payload
                && let Some(changed) = tls.session.keep_partial(direction, bytes, &mut self.pool)
            {
                half.sent.push_partial(offset, bytes.len());
                return changed;
            }
            let lent = self.frame_memory.as_ref().and_then(|memory| {
                let affordable = self.config.limits.max_buffered_bytes / WASTE_SHARE;
                let waste = self.buffered < affordable && half.sent.is_small();
                SharedBytes::new(memory, bytes, waste)
            });
            let more = if lent.is_some() { 0 } else { bytes.len() };
            flow.copy_partial(direction, more, &mut self.pool);
            let half = flow.half(direction);
            if let Some(lent) = lent {
                half.sent.push_shared(offset, lent);
            } else {
                half.sent.make_room(bytes.len(), &mut self.pool);
                half.sent.push(offset, bytes);
            }
        }
        self.feed(index, direction, bytes);
        true
    }

    /// Lets whatever the flow carries see contiguous bytes.
    fn feed(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        match &mut flow.payload {
            // Pieces that waited for the one with which the connection stopped being read.
            Payload::Plain(watch) => watch.note_unread(direction),
            Payload::Tls(tls) => {
                let mut ctx = context!(self, tls.state);
                let known = tls.session.key_random();
                tls.session.handle_bytes(direction, bytes, &mut ctx);
                if tls.session.key_random() != known {
                    self.register(index, known);
                }
            }
            Payload::Undecided(recogniser) => match recogniser.handle_bytes(direction, bytes) {
                Found::Unsure | Found::Plain(_)
                    if recogniser.is_excluded()
                        && self.config.meets_not_tls(flow.client, flow.server) =>
                {
                    let policy = self.config.policies.not_tls;
                    self.counters.not_tls += 1;
                    self.note(index, direction, TcpAnomaly::NotTls);
                    self.refuse(index, policy, SessionError::NotTls);
                }
                Found::Unsure => {}
                Found::Plain(watch) => flow.payload = Payload::Plain(watch),
                Found::Tls(beginning) => {
                    if beginning.reversed {
                        flow.swap_roles();
                    }
                    self.begin_session(index, beginning, bytes.len());
                }
                Found::Missed => self.miss(index, direction),
            },
        }
    }

    /// A flow turned out to carry TLS; `latest` of the client's bytes are not counted as delivered
    /// yet.
    fn begin_session(&mut self, index: FlowIndex, first: Beginning, latest: usize) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let next = |half: &TcpDirection| half.assembler.next();
        let delivered = next(&flow.halves[0]) + latest as u64;
        let positions = [
            delivered - first.client.len() as u64,
            next(&flow.halves[1]) - first.server.len() as u64,
        ];
        let mut info = SessionInfo::new(flow.id, flow.client, flow.server, flow.started_ns);
        info.starttls = first.upgrade;
        let mut state = H::State::default();
        let mut ctx = context!(self, state);
        let mut session = TlsSession::start(info, positions, &mut ctx);
        if first.ssl2 {
            session.refuse_version(ProtocolVersion::SSL_2_0, &mut ctx);
        }
        flow.payload = Payload::Tls(Box::new(Tls { session, state }));
        self.feed(index, Direction::ClientToServer, &first.client);
        if first.server_lost {
            self.fail(index, Direction::ServerToClient, SessionError::LostSynchronisation);
        } else {
            self.feed(index, Direction::ServerToClient, &first.server);
        }
        // The frame at hand is the client's: what the server sent before may wait, unheld.
        self.note_stalls(index);
    }

    /// Whether the connection has been reset, or will be.
    pub(super) fn is_over(&mut self, index: FlowIndex) -> bool {
        self.flows.get(index).is_some_and(|flow| match &flow.payload {
            Payload::Tls(tls) if tls.session.disposition().is_kill() => true,
            _ => matches!(flow.phase, Phase::Dead { .. }),
        })
    }
}

/// Whether the flow's bytes are looked at, be it loosely: inline, what carries another protocol is, too.
fn is_watched<S>(flow: &Flow<S>, inline: bool) -> bool {
    is_followed(flow) || inline && !flow.exempt && matches!(flow.payload, Payload::Plain(_))
}

/// Whether urgent data must not pass: where TLS is followed or may begin, perhaps behind a byte that
/// the receiver takes out. Telnet, FTP and others use them.
fn refuses_urgent<S>(flow: &Flow<S>, direction: Direction, payload: &[u8]) -> bool {
    let from_client = direction == Direction::ClientToServer;
    let begins = (0..if from_client { 4 } else { 1 }).any(|at| {
        matches!(payload.get(at), Some(20..=22)) && matches!(payload.get(at + 1), None | Some(3))
    });
    match &flow.payload {
        Payload::Undecided(recogniser) => recogniser.refuses_urgent() || begins,
        Payload::Plain(watch) => !flow.exempt && (watch.refuses_urgent() || begins),
        Payload::Tls(tls) => tls.session.disposition() != Disposition::Bypass,
    }
}

/// Whether a segment is where a sender can be who is followed loosely: it may repeat what died behind the
/// monitor, and be ahead as far as its receiver's window goes.
fn is_near(half: &TcpDirection, sequence: u32) -> bool {
    half.offset_of(sequence).is_none_or(|offset| {
        offset >= half.assembler.next() as i64 - MAX_REPEATED && offset <= half.limit() as i64
    })
}

/// Looks at a segment of a flow that is not followed: TLS may begin in it. Whether it shows that TLS
/// was missed.
fn watch<S>(flow: &mut Flow<S>, direction: Direction, sequence: u32, payload: &[u8]) -> bool {
    let half = &flow.halves[direction.index()];
    let Payload::Plain(watch) = &mut flow.payload else {
        return false;
    };
    if flow.exempt {
        return false;
    }
    // A segment may repeat bytes in front of its new ones.
    let new = half
        .offset_of(sequence)
        .and_then(|offset| usize::try_from(half.assembler.next() as i64 - offset).ok())
        .and_then(|repeated| payload.get(repeated..));
    match watch.handle_segment(direction, payload, new) {
        Noticed::Nothing => false,
        Noticed::Missed => true,
        Noticed::Beginning(recogniser) => {
            flow.payload = Payload::Undecided(*recogniser);
            false
        }
    }
}

/// Whether a segment repeats bytes as others than those that were handed on.
fn is_changed<S>(flow: &Flow<S>, direction: Direction, sequence: u32, payload: &[u8]) -> bool {
    let half = &flow.halves[direction.index()];
    if half.sent.len() == 0 {
        return false;
    }
    let offset = half.offset_of(sequence).unwrap_or(0);
    let before = usize::try_from(offset.min(0).unsigned_abs()).unwrap_or(usize::MAX);
    let start = offset.max(0).unsigned_abs();
    flow.contradicts(direction, start, payload.get(before..).unwrap_or(&[]))
}

/// Where a segment's payload stands in the stream, and how many of its first bytes are before
/// it; `None` when no receiver takes it.
fn place(
    half: &TcpDirection,
    sequence: u32,
    len: usize,
    fin: bool,
    inline: bool,
) -> Option<(u64, usize)> {
    let offset = half.offset_of(sequence)?;
    // Only a keep-alive repeats the byte before the stream (RFC 9293, section 3.8.4).
    if offset < -1 || (offset == -1 && len > 1) {
        return None;
    }
    if offset == -1 && inline && half.assembler.next() == 0 && len > 0 {
        // Nothing was sent yet that could be kept alive.
        return None;
    }
    let skip = usize::from(offset == -1);
    let start = offset.max(0).unsigned_abs();
    let end = start + len.saturating_sub(skip) as u64;
    let too_far = match inline {
        true => end > half.limit(),
        false => offset - half.assembler.next() as i64 > MAX_AHEAD,
    };
    let behind_fin = half.fin.is_some_and(|fin_at| end > fin_at || (fin && end != fin_at));
    // A FIN below bytes that were seen contradicts them.
    let too_early = fin && end < half.assembler.highest();
    (!too_far && !behind_fin && !too_early).then_some((start, skip))
}

/// A data segment of a flow that is not followed: keeps up with the stream, so that FIN, RST and
/// the flow's end are still understood.
fn handle_unfollowed<S>(
    flow: &mut Flow<S>,
    direction: Direction,
    sequence: u32,
    len: usize,
    fin: bool,
) {
    let half = flow.half(direction);
    let Some(offset) = half.offset_of(sequence) else {
        return;
    };
    let Ok(end) = u64::try_from(offset + len as i64) else {
        return;
    };
    let next = half.assembler.next();
    if !half.is_acceptable(offset) || end < next {
        return;
    }
    half.assembler.advance((end - next) as usize);
    half.released = end;
    if fin {
        half.fin = Some(end);
    }
}
