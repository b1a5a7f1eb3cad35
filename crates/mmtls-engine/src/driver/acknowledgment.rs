//! What an acknowledgment says: which bytes have arrived, that the connection is open, that bytes passed some other way.
//!
//! Refuses to believe what its receiver would not believe, and to let a segment that can be guessed accuse anyone.

use super::payload::{Flow, Payload, is_followed, is_watched};
use super::{Engine, context};
use crate::output::{Exit, Output};
use crate::session::{Handler, SessionError, TcpAnomaly};
use crate::tcp::{FlowIndex, Origin, Phase, TcpDirection};
use crate::tls::Direction;
use crate::wire::{Segment, build_probe};

/// How long copies of a connection's two directions may come out of order, at most: what was
/// acknowledged longer ago and has not been seen was lost.
const GAP_GRACE_NS: u64 = 1_000_000_000;

/// How long after it has opened a connection's SYN cookie may be in force: Linux takes them for two minutes.
const COOKIE_LIFETIME_NS: u64 = 180_000_000_000;

/// By how many numbers an acknowledgment may be beside that of a SYN cookie, either way: Linux has a segment size in them.
const COOKIE_SLACK: u32 = 3;

/// Whose a segment with an acknowledgment is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// Its connection's.
    Fits,
    /// Not its sender's.
    Stray,
    /// Perhaps another connection's, see [`begins_anew`].
    BeginsAnew,
}

impl Fit {
    fn of(fits: bool) -> Self {
        if fits { Self::Fits } else { Self::Stray }
    }
}

impl<H: Handler> Engine<H> {
    /// Notes an acknowledgment, unless the segment cannot be its sender's. Inline, an
    /// acknowledgment of bytes that were never seen means that they passed some other way: the
    /// monitor has lost the stream.
    pub(super) fn handle_ack(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Fit {
        let (inline, now_ns) = (self.config.inline, self.now_ns);
        let Some(flow) = self.flows.get(index) else {
            return Fit::Fits;
        };
        let acknowledgment = segment.tcp.acknowledgment();
        if flow.phase == Phase::Opening {
            if direction == Direction::ServerToClient {
                return Fit::Fits;
            }
            if !handle_first_ack(flow, segment, now_ns) {
                return Fit::Stray;
            }
        }
        let [half, other] = [direction, direction.reverse()].map(|it| &flow.halves[it.index()]);
        let Some(offset) = half.offset_of(segment.tcp.sequence()) else {
            return Fit::of(!inline);
        };
        if !half.is_acceptable(offset) {
            return Fit::Stray;
        }
        // Only what stands exactly where the sender is can accuse: it cannot be guessed.
        let exact = offset == half.seen();
        // What acknowledges bytes that were never sent, or what has long been acknowledged, is not the
        // sender's, and its receiver drops it (RFC 9293, section 3.10.7.4).
        let acknowledged = other.offset_of(acknowledgment);
        let is_old = acknowledged.is_some_and(|it| it < other.acknowledged() as i64);
        if inline
            && (is_old || !exact)
            && !segment.tcp.flags().rst()
            && is_watched(flow, inline)
            && begins_anew(flow, direction, segment, offset, is_old, now_ns)
        {
            // No anomaly: as a rule it was sent for nothing, or others have overtaken it.
            self.counters.out_of_window += 1;
            let is_sane = acknowledged.is_some_and(|it| it <= other.seen());
            if is_sane && !is_old && offset < half.acknowledged() as i64 {
                let probe = ask_receiver([half, other], segment);
                self.outputs.extend(probe);
            }
            return Fit::BeginsAnew;
        }
        let [half, other] = flow.halves_from(direction);
        let window = half.announced(segment.tcp.window());
        let beyond = acknowledged.is_some_and(|it| it > other.seen());
        let sane = !inline
            || other.origin == Origin::Learned
            || acknowledged.is_none_or(|it| other.is_acknowledgeable(it));
        let in_window = acknowledged.is_some_and(|it| it <= other.limit() as i64);
        let kept = other.flight_capacity();
        let freed = sane.then(|| other.open_window(acknowledgment, window)).flatten();
        let fewer = other.flight_capacity() < kept;
        let current = offset >= half.seen();
        if sane {
            half.last_ack = Some(acknowledgment);
        }
        let has_syn_data = !other.syn_data().is_empty();
        let mut missing_ns = None;
        if !inline && current && !has_syn_data {
            missing_ns = other.note_gap(beyond, now_ns);
        }
        if inline && !flow.confirmed {
            let [half, _] = flow.halves_from(direction);
            let early = half.origin == Origin::Syn && !(0..=half.seen()).contains(&offset);
            // Also a server's keep-alive is sent by one that has the connection.
            let keeps_alive = offset == -1 && segment.tcp.payload().is_empty();
            let answers = half.origin == Origin::SynAck && (offset >= 0 || keeps_alive);
            let nothing_said = acknowledged == Some(0);
            flow.confirmed = answers && sane;
            // Once no SYN cookie can be in force, a keep-alive begins nothing.
            let expired = flow.open_for_ns(now_ns) >= COOKIE_LIFETIME_NS;
            if early && !(keeps_alive && nothing_said && expired) && is_followed(flow) {
                return Fit::Stray;
            }
        }
        let mut direction = direction;
        if has_syn_data {
            self.accept_syn_data(index, direction.reverse(), acknowledgment);
            if let Some(flow) = self.flows.get(index) {
                // It may have shown that roles are the other way round.
                direction = flow.direction_from(segment.source);
                let other = flow.half(direction.reverse());
                if !inline && current {
                    let beyond = other.is_acknowledged_beyond(acknowledgment);
                    missing_ns = other.note_gap(beyond, now_ns);
                }
            }
        }
        if let Some(memory) = freed {
            self.pool.give(memory);
        }
        if fewer {
            self.charge(index);
        }
        if inline && beyond && exact {
            self.handle_unseen(index, direction.reverse());
        } else if missing_ns.is_some_and(|missing| missing >= GAP_GRACE_NS) {
            self.skip_gap(index, direction.reverse(), acknowledgment);
        }
        if beyond
            && in_window
            && let Some(Payload::Plain(watch)) = self.flows.get(index).map(|flow| &mut flow.payload)
        {
            // Bytes of another protocol may take two ways; there may be a ClientHello among them.
            watch.note_unread(direction.reverse());
            return Fit::Fits;
        }
        Fit::of(sane)
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
            Some(Payload::Tls(tls)) if tls.session.following() => {
                let mut ctx = context!(self, tls.state);
                tls.session.fail(direction, SessionError::LostSynchronisation, &mut ctx);
            }
            Some(Payload::Undecided(..)) => {
                self.note(index, direction, TcpAnomaly::UnseenBytes);
                self.give_up(index, direction, SessionError::LostSynchronisation);
            }
            _ => {}
        }
    }

    /// What an undecided connection carries will not be known any more.
    pub(super) fn give_up(&mut self, index: FlowIndex, direction: Direction, error: SessionError) {
        if self.config.inline {
            let policies = &self.config.policies;
            let policy = match error {
                SessionError::MemoryCap => policies.memory_cap,
                _ => policies.lost_synchronisation,
            };
            return self.refuse(index, policy, direction, error);
        }
        if !self.leave_cleartext(index, direction, error) {
            return;
        }
        if let Some(flow) = self.flows.get(index) {
            flow.payload = Payload::Plain(Box::default());
        }
        self.counters.mid_stream += 1;
        self.bypass(index);
        self.apply_mid_stream_policy(index);
    }
}

/// Whether a segment could begin another connection, or go on with it, where its receiver has lost this one and answers with SYN
/// cookies (RFC 4987, section 3.6). To begin it takes the numbers of this one's third segment, or, where it is Linux, numbers
/// that are both as far behind those. What is said then in the place of what was acknowledged cannot be compared with that, what
/// stands behind a hole is not read, and in a record that is not whole anything may stand. `is_old`: it
/// acknowledges less than its sender has; then another one of that has overtaken it, or it is not its sender's at all.
fn begins_anew<S: Default>(
    flow: &Flow<S>,
    direction: Direction,
    segment: &Segment<'_>,
    offset: i64,
    is_old: bool,
    now_ns: u64,
) -> bool {
    let halves = [direction, direction.reverse()].map(|it| &flow.halves[it.index()]);
    let [half, other] = halves;
    if half.origin != Origin::Syn || flow.open_for_ns(now_ns) >= COOKIE_LIFETIME_NS {
        return false;
    }
    // A keep-alive is one byte behind.
    let is_behind = offset < half.acknowledged() as i64 && offset + 1 < half.seen();
    // Of a receiver that has finished nothing is acknowledged any more, so that nothing overtakes bytes for long. It is one that
    // may well have lost the connection, and of which there may be a second cookie.
    let is_late = other.fin().is_some() && !segment.tcp.payload().is_empty();
    is_old && (is_behind || is_late)
        || (is_old || is_behind || offset > half.seen())
            && fits_cookie(halves, segment.tcp.sequence(), segment.tcp.acknowledgment())
}

/// Whether these numbers of a segment are as far from the beginnings of the two directions, about.
pub(super) fn fits_cookie(halves: [&TcpDirection; 2], sequence: u32, acknowledgment: u32) -> bool {
    let [Some(from), Some(to)] = halves.map(|it| it.initial) else {
        return false;
    };
    // The modulus of sequence numbers.
    let distance = sequence.wrapping_sub(from).wrapping_sub(acknowledgment.wrapping_sub(to));
    distance.wrapping_add(COOKIE_SLACK) <= 2 * COOKIE_SLACK
}

/// In the place of a segment that is refused though its sender may not have heard of what its receiver has acknowledged: an empty
/// one from just before that, which makes the receiver say it again (RFC 9293, section 3.10.7.4), and with numbers that fit no
/// cookie.
fn ask_receiver(halves: [&TcpDirection; 2], segment: &Segment<'_>) -> Option<Output> {
    let [half, _] = halves;
    let before = half.sequence_of(half.acknowledged())?.wrapping_sub(1);
    let further = before.wrapping_sub(2 * COOKIE_SLACK + 1);
    let fits = fits_cookie(halves, before, segment.tcp.acknowledgment());
    let (port, _) = half.path()?;
    let frame = build_probe(segment.link_header, segment, if fits { further } else { before })?;
    Some(Output::Inject { exit: Exit::AwayFrom(port), frame })
}

/// The client's acknowledgment of the SYN-ACK opens the connection; false when it does not
/// fit.
fn handle_first_ack<S>(flow: &mut Flow<S>, segment: &Segment<'_>, now_ns: u64) -> bool {
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
        // A RST is looked at for itself.
        return segment.tcp.flags().rst();
    }
    flow.open(now_ns);
    true
}
