//! Payload of a segment: where it stands in the stream, whether it contradicts what is there, and what becomes contiguous.
//!
//! Inline, a segment that cannot be kept is dropped, and its sender repeats it; in a capture it was delivered anyway, so the
//! loss is declared. Where a connection has shown that it carries something else, a copy with other bytes passes if TLS cannot
//! begin in it, nor be asked for: nothing is inspected there.
//!
//! Refuses bytes that no receiver takes.

use super::Engine;
use super::conclude::Passage;
use super::payload::{Flow, Payload, is_followed};
use super::shown::Clear;
use crate::recognition::{Noticed, may_begin};
use crate::session::{EndReason, Handler, SessionError, TcpAnomaly};
use crate::tcp::{FlowIndex, Insert, Origin, Phase, TcpDirection};
use crate::tls::Direction;
use crate::wire::Segment;

/// How far ahead of the stream a segment of a capture may be; the largest window is 1 GiB
/// (RFC 7323).
const MAX_AHEAD: i64 = 1 << 30;

/// How far behind its stream a segment of a flow that is not followed is looked at: more than a sender's usual
/// window, and a four-thousandth of the numbers that somebody who cannot see the connection would try.
const MAX_REPEATED: i64 = 1 << 20;

/// One direction's unacknowledged bytes may take one part in so many of the memory that is left.
const UNACKNOWLEDGED_SHARE: usize = 8;

impl<H: Handler> Engine<H> {
    /// Payload and FIN of a segment.
    pub(super) fn handle_payload(
        &mut self,
        index: FlowIndex,
        mut direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        let inline = self.config.inline;
        if !self.late.is_empty() {
            direction = self.look_for_live_session(index, direction, segment);
        }
        let Some(mut flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let payload = segment.tcp.payload();
        let sequence = segment.tcp.sequence();
        let fin = segment.tcp.flags().fin();
        let urgent = segment.tcp.flags().urg();
        if inline
            && direction == Direction::ClientToServer
            && !flow.is_exempt()
            && let Payload::Plain(watch) = &flow.payload
            && watch.may_begin(direction)
            && flow.halves[direction.index()]
                .offset_of(sequence)
                .is_some_and(|it| it > flow.halves[direction.index()].assembler.next() as i64)
        {
            // TLS may begin in what is missing before it. Of the side that answered the SYN this is not asked:
            // a lost segment would cost the whole flight behind it, for downloads in the clear.
            return self.out_of_window(index, direction);
        }
        match &mut flow.payload {
            // What stands elsewhere and looks like TLS can be anybody's; a client may have walked away from where its
            // receiver stands.
            Payload::Plain(watch)
                if !is_near(&flow.halves[direction.index()], sequence, payload.len()) =>
            {
                watch.note_unread(direction);
            }
            Payload::Tls(_) => {}
            carries => {
                let half = &flow.halves[direction.index()];
                let offset = half.offset_of(sequence);
                let missed = match carries {
                    Payload::Plain(watch) if urgent => {
                        watch.handle_urgent(direction, offset, payload)
                    }
                    Payload::Undecided(recogniser, _) => {
                        if urgent {
                            recogniser.note_urgent(direction);
                        }
                        let uncompared = is_uncompared(half, sequence, payload.len());
                        offset.is_some_and(|offset| {
                            if offset < half.kept_from() as i64 {
                                recogniser.note_repeated(direction, payload);
                            }
                            recogniser.begins_behind_rest(direction, offset, payload)
                                || uncompared
                                    && recogniser.handle_uncompared(direction, offset, payload)
                        })
                    }
                    _ => watch(flow, direction, sequence, payload),
                };
                if missed {
                    self.miss(index, direction);
                    if self.is_over(index) {
                        return Passage::Refused;
                    }
                    match self.flows.get(index) {
                        Some(it) => flow = it,
                        None => return Passage::Refused,
                    }
                }
            }
        }
        if !is_followed(flow) {
            if is_changed(flow, direction, sequence, payload) && may_begin(payload) {
                // The bytes that showed what the connection carries, sent again as others.
                self.counters.conflicting_overlaps += 1;
                self.note(index, direction, TcpAnomaly::ConflictingOverlap);
                return Passage::Refused;
            }
            flow.half(direction).keep_up(sequence, payload.len(), fin);
            return Passage::Free;
        }
        // Before anything is compared: what could be compared with has gone with the reset.
        if let Phase::Closed(EndReason::ResetByPeer(by)) = flow.phase
            && !payload.is_empty()
        {
            if direction == by {
                return self.out_of_window(index, direction);
            }
            // Its sender need not know of the reset: nobody takes it, and it is nothing strange.
            self.counters.out_of_window += 1;
            return Passage::Refused;
        }
        if inline
            && matches!(&flow.payload, Payload::Tls(tls) if !tls.session.info().is_mid_stream)
            && is_uncompared(&flow.halves[direction.index()], sequence, payload.len())
        {
            // Each end has seen what the other one said before TLS: one waits for an answer before it begins.
            self.counters.conflicting_overlaps += 1;
            self.note(index, direction, TcpAnomaly::ConflictingOverlap);
            return Passage::Refused;
        }
        let half = &mut flow.halves[direction.index()];
        let Some((start, skip)) = stream_offset(half, sequence, payload.len(), fin, inline) else {
            return self.out_of_window(index, direction);
        };
        let payload = payload.get(skip..).unwrap_or(&[]);
        let end = start + payload.len() as u64;
        let fin_before = half.fin();
        if fin {
            half.set_fin(Some(end));
        }
        let buffered = self.counters.conflicting_overlaps + self.counters.buffer_full;
        let passage = self.reassemble(index, direction, start, payload);
        if buffered != self.counters.conflicting_overlaps + self.counters.buffer_full
            && let Some(flow) = self.flows.get(index)
        {
            // The segment was refused whole, and its FIN with it.
            flow.half(direction).set_fin(fin_before);
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
        let Some(mut flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let limits = &self.config.limits;
        let half = &mut flow.halves[direction.index()];
        let room = limits.max_reassembly_bytes.saturating_sub(half.assembler.buffered()).min(left);
        let end = start + payload.len() as u64;
        // A share of what is left, so that a few who never acknowledge do not take all of it.
        let sent_room = limits.max_reassembly_bytes.min(left / UNACKNOWLEDGED_SHARE);
        if end > half.assembler.next()
            && half.sent_len() > 0
            && half.sent_len() + payload.len() > sent_room
        {
            if self.config.inline {
                // Its sender repeats it, more slowly.
                self.counters.buffer_full += 1;
                return Passage::Refused;
            }
            if let Some(sent) = &mut half.sent {
                sent.shrink_to(sent_room.saturating_sub(payload.len()));
            }
            self.charge(index);
            match self.flows.get(index) {
                Some(it) => flow = it,
                None => return Passage::Refused,
            }
        }
        let contradicts = flow.contradicts(direction, start, payload);
        let half = flow.half(direction);
        let inserted = match contradicts {
            true => Insert::Conflict,
            false => half.assembler.insert(start, payload, room),
        };
        match inserted {
            Insert::InOrder(bytes) => {
                let len = bytes.len();
                let undecided = matches!(flow.payload, Payload::Undecided(..));
                let client = undecided.then(|| flow.ends.client());
                let (behind, changed) = self.complete_before_passing(index, direction, bytes);
                let (bytes, len) = (&bytes[behind..], len - behind);
                let changed = self.hand_on(index, direction, bytes) || changed;
                // Roles may have turned out to be the other way round.
                let direction = match undecided && self.client_of(index) != client {
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
                if half.fin() == Some(end) {
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
        self.flows.get(index).map(|flow| flow.ends.client())
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
            Payload::Undecided(..)
                if self.buffered > max
                    || self.undecided > max / 2 && flow.payload.is_undecided() =>
            {
                self.give_up(index, direction, SessionError::MemoryCap);
            }
            Payload::Tls(_) if self.buffered > max => {
                self.fail(index, direction, SessionError::MemoryCap);
            }
            _ => {}
        }
    }
}

/// Whether a segment is where a sender can be who is followed loosely: it may repeat what died behind the
/// monitor, also much of it as long as its receiver has not acknowledged that, and be ahead as far as its receiver's window
/// goes.
fn is_near(half: &TcpDirection, sequence: u32, len: usize) -> bool {
    half.offset_of(sequence).is_none_or(|offset| {
        let from = half.assembler.next() as i64 - MAX_REPEATED;
        // Of one that was picked up it is not known before it acknowledges something.
        let known = matches!(half.origin, Origin::Syn | Origin::SynAck) || half.acknowledged() > 0;
        let is_open = known && offset + len as i64 > half.acknowledged() as i64;
        let repeats = offset >= from || is_open;
        repeats && offset <= half.limit() as i64
    })
}

/// Whether some of a segment can be compared with nothing, and taken by its receiver all the same: it repeats what
/// passed while the flow was not followed, and may have died behind the monitor.
fn is_uncompared(half: &TcpDirection, sequence: u32, len: usize) -> bool {
    let kept = half.kept_from() as i64;
    half.offset_of(sequence).is_some_and(|offset| {
        offset.max(half.acknowledged() as i64) < kept.min(offset + len as i64)
    })
}

/// Looks at a segment of a flow that is not followed: TLS may begin in it. Whether it shows that TLS
/// was missed.
fn watch<S>(flow: &mut Flow<S>, direction: Direction, sequence: u32, payload: &[u8]) -> bool {
    let is_exempt = flow.is_exempt();
    let half = &flow.halves[direction.index()];
    let Payload::Plain(watch) = &mut flow.payload else {
        return false;
    };
    if is_exempt {
        return false;
    }
    let next = half.assembler.next() as i64;
    let offset = half.offset_of(sequence);
    let repeated = offset.map(|offset| next - offset);
    if let Some(offset) = offset.filter(|it| *it > next) {
        // What is missing before it may begin TLS, and come to be acknowledged without ever being seen.
        return watch.handle_ahead(direction, next, offset, payload);
    }
    // A segment may repeat bytes in front of its new ones.
    let new = repeated.and_then(|it| usize::try_from(it).ok()).and_then(|it| payload.get(it..));
    match watch.handle_segment(direction, offset, payload, new) {
        Noticed::Nothing => false,
        Noticed::Missed => true,
        Noticed::Beginning(recogniser) => {
            // Where it was in the clear it was not shown, or no more of it is asked for.
            flow.payload = Payload::Undecided(recogniser, Clear::Ignored);
            false
        }
    }
}

/// Whether a segment repeats bytes as others than those that were handed on.
fn is_changed<S>(flow: &Flow<S>, direction: Direction, sequence: u32, payload: &[u8]) -> bool {
    let half = &flow.halves[direction.index()];
    if half.sent_len() == 0 {
        return false;
    }
    let offset = half.offset_of(sequence).unwrap_or(0);
    let before = usize::try_from(offset.min(0).unsigned_abs()).unwrap_or(usize::MAX);
    let start = offset.max(0).unsigned_abs();
    flow.contradicts(direction, start, payload.get(before..).unwrap_or(&[]))
}

/// Where a segment's payload stands in the stream, and how many of its first bytes are before
/// it; `None` when no receiver takes it.
fn stream_offset(
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
    let behind_fin = half.fin().is_some_and(|fin_at| end > fin_at || (fin && end != fin_at));
    // A FIN below bytes that were seen contradicts them.
    let too_early = fin && end < half.assembler.highest();
    (!too_far && !behind_fin && !too_early).then_some((start, skip))
}
