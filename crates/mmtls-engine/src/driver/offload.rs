//! Connections that nobody reads, and that the I/O layer may therefore forward by itself; and records that a pause skips.
//!
//! Of those it shows what changes their state (SYN, FIN, RST) and what is unusual, and of a connection that is read
//! everything but the records that may pass. Before the engine judges that, it takes the
//! connection back, so as to know where its two directions stand; afterwards it may be left to the I/O layer again.
//!
//! Refuses to let go of a connection of which something waits, and of one that may come to be looked at.

use super::acknowledgment::fits_cookie;
use super::payload::{Flow, Payload};
use super::{Engine, context};
use crate::output::{ForwardedElsewhere, OffloadedFlow, OffloadedRecords, Output, Verdict};
use crate::session::{Disposition, Handler};
use crate::tcp::{FlowIndex, FlowKey, Phase, Unread};
use crate::tls::Direction;
use crate::wire::Segment;

/// How often a connection that nobody reads is left to the I/O layer: each time costs more than a segment. Records that are not
/// read are left to it whenever they may.
const MAX_OFFERS: u8 = 8;

/// Content still to be skipped for which that pays, in bytes. Fuzzing is to see it with what it has.
const MIN_CONTENT: u64 = if cfg!(fuzzing) { 1 } else { 1 << 16 };

/// Bytes of an Ethernet header without tags.
const UNTAGGED: usize = 14;

/// How long no records are left to an I/O layer that had no room.
const REFUSED_NS: u64 = 1_000_000_000;

/// How long the answer of the I/O layer is waited for, which comes at once.
const ANSWER_NS: u64 = 1_000_000;

impl<H: Handler> Engine<H> {
    /// Leaves a connection to the I/O layer if nothing of it is looked at, or the records of a direction that a pause skips.
    ///
    /// `payload`: the direction of the segment at hand, if it had payload. Only behind such a one its records are left, so that
    /// of two directions it is that which is under way.
    pub(super) fn offer(&mut self, index: FlowIndex, payload: Option<Direction>) {
        let is_whole = self.frame_count == 1;
        let may_try = self.now_ns >= self.no_offers_until_ns;
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let is_unread = flow.unread != Unread::No;
        let paused = payload.filter(|&it| is_whole && may_try && is_paused(flow, it));
        let is_wanted =
            if is_unread { flow.offload.count() < MAX_OFFERS } else { paused.is_some() };
        if !is_wanted || !may_go(flow) {
            return;
        }
        let direction = paused.filter(|&it| !is_unread && may_pass(flow, it));
        if (is_unread || direction.is_some())
            && let Some(offloaded) = offloaded(flow, direction)
        {
            flow.offload.begin(direction);
            self.outputs.push_back(Output::Offload(Box::new(offloaded)));
        }
    }

    /// A segment of a connection that was left to the I/O layer.
    pub(super) fn handle_offloaded(&mut self, index: FlowIndex, segment: &Segment<'_>) -> Verdict {
        let flags = segment.tcp.flags();
        let is_plain = !(flags.syn() || flags.fin() || flags.rst() || flags.urg());
        // What was put together of fragments is not there any more to be handed in again.
        let is_whole = self.frame_count == 1;
        let now_ns = self.now_ns;
        let Some(flow) = self.flows.get(index) else {
            return self.lost_flow();
        };
        if !is_plain {
            self.take_back(index);
            // Its sender repeats it, and then it is judged where it stands.
            return if is_whole { Verdict::Again } else { Verdict::Drop };
        }
        let direction = flow.direction_from(segment.source);
        let len = segment.tcp.payload().len();
        let has_records = flow.offload.records().is_some();
        let halves = [direction, direction.reverse()].map(|it| &flow.halves[it.index()]);
        let (sequence, acknowledgment) = (segment.tcp.sequence(), segment.tcp.acknowledgment());
        // What could begin another connection is judged by where this one stands.
        if has_records && (len > 0 || fits_cookie(halves, sequence, acknowledgment)) {
            self.take_back(index);
            return if is_whole { Verdict::Again } else { Verdict::Drop };
        }
        flow.last_ns = now_ns;
        let half = flow.half(direction);
        half.packets += 1;
        half.bytes += len as u64;
        if has_records {
            // Before the I/O layer could begin.
            if let Some(memory) = note_acknowledgment(flow, direction, segment) {
                self.pool.give(memory);
            }
            self.charge(index);
            return Verdict::Forward;
        }
        half.keep_up(segment.tcp.sequence(), len, false);
        self.counters.bypassed += u64::from(flow.is_exempt());
        // It has come before the I/O layer could begin, perhaps: then that begins behind it.
        if let Some(offloaded) = offloaded(flow, None) {
            self.outputs.push_back(Output::Offload(Box::new(offloaded)));
        }
        Verdict::Forward
    }

    /// Asks for what the I/O layer has forwarded; [`Engine::handle_taken_back`] is the answer.
    pub(super) fn take_back(&mut self, index: FlowIndex) {
        if let Some(flow) = self.flows.get(index)
            && flow.offload.is_on()
            && let Some(offloaded) = offloaded(flow, flow.offload.records())
        {
            self.outputs.push_back(Output::TakeBack(Box::new(offloaded)));
        }
    }

    /// The time of such a connection is up, as far as the engine has seen it: it is looked at again once it is known what the
    /// I/O layer has seen.
    pub(super) fn ask_whether_idle(&mut self, index: FlowIndex) {
        self.take_back(index);
        let at = self.now_ns.saturating_add(ANSWER_NS);
        if let Some(flow) = self.flows.get(index) {
            let id = flow.id;
            self.flows.check_at(at, index, id);
        }
    }

    /// Takes back all connections that are left to the I/O layer ([`Output::TakeBack`]): before the end, so that what is told of them
    /// is whole.
    pub fn take_all_back(&mut self) {
        for index in self.flows.all() {
            self.take_back(index);
        }
    }

    /// What the I/O layer has forwarded by itself of a connection that it forwards no more ([`Output::TakeBack`]).
    pub fn handle_taken_back(
        &mut self,
        now_ns: u64,
        flow: &OffloadedFlow,
        forwarded: [ForwardedElsewhere; 2],
    ) {
        self.now_ns = self.now_ns.max(now_ns);
        let key = FlowKey::of(0, flow.ends[0], flow.ends[1], flow.ports[0]);
        let Some(index) = self.flows.find(&key) else {
            return;
        };
        let now_ns = self.now_ns;
        let Some(known) = self.flows.get(index).filter(|known| known.id == flow.id) else {
            return;
        };
        let passing = known.offload.records();
        known.offload.end();
        if known.is_exempt() {
            self.counters.bypassed += forwarded.iter().map(|of| of.packets).sum::<u64>();
        }
        for (half, of) in known.halves.iter_mut().zip(&forwarded) {
            if of.packets > 0 {
                known.last_ns = now_ns;
            }
            half.packets += of.packets;
            half.bytes += of.bytes;
            if passing.is_none() {
                half.stand_at(of.position);
            }
        }
        let Some(direction) = passing else {
            if let Phase::Dead { answers, .. } = known.phase
                && answers.iter().any(|left| *left > 0)
                && forwarded.iter().any(|of| of.packets > 0)
            {
                // It was reset meanwhile, where it stood before.
                for direction in Direction::BOTH {
                    self.reset_receiver(index, direction);
                }
            }
            return self.conclude(index);
        };
        let [of, other] = [direction, direction.reverse()].map(|it| &forwarded[it.index()]);
        if of.packets + other.packets > 0 {
            // What either side has allowed since is not known.
            known.halves.iter_mut().for_each(|half| half.set_window_end(None));
        }
        match &mut known.payload {
            Payload::Tls(tls) if tls.session.following() => {
                let mut ctx = context!(self, tls.state);
                tls.session.pass_elsewhere(direction, of.position, &of.records, &mut ctx);
                let half = known.half(direction);
                half.pass_elsewhere(of.position, &of.records, other.acknowledgment);
            }
            _ => known.half(direction).stand_at(of.position),
        }
        if let Some(acknowledgment) = other.acknowledgment {
            known.half(direction.reverse()).last_ack = Some(acknowledgment);
        }
        self.charge(index);
        // What was decided meanwhile.
        self.conclude(index);
    }

    /// The I/O layer has no room for records of a connection ([`Output::Offload`]): it is asked less often.
    pub fn handle_offload_refused(&mut self, now_ns: u64, flow: &OffloadedFlow) {
        self.now_ns = self.now_ns.max(now_ns);
        self.no_offers_until_ns = self.now_ns.saturating_add(REFUSED_NS);
        let key = FlowKey::of(0, flow.ends[0], flow.ends[1], flow.ports[0]);
        if let Some(index) = self.flows.find(&key)
            && let Some(known) = self.flows.get(index).filter(|known| known.id == flow.id)
        {
            known.offload.end();
        }
    }
}

/// What a segment without payload says, while it is not known how far its connection is: of bytes that have gone elsewhere
/// nothing. Returns memory that is not needed any more.
fn note_acknowledgment<S>(
    flow: &mut Flow<S>,
    direction: Direction,
    segment: &Segment<'_>,
) -> Option<Vec<u8>> {
    let [half, other] = flow.halves_from(direction);
    let acknowledgment = segment.tcp.acknowledgment();
    let is_sane = half.offset_of(segment.tcp.sequence()).is_some_and(|it| half.is_acceptable(it))
        && other.offset_of(acknowledgment).is_some_and(|it| other.is_acknowledgeable(it));
    if !is_sane {
        return None;
    }
    half.last_ack = Some(acknowledgment);
    other.open_window(acknowledgment, half.announced(segment.tcp.window()))
}

/// Whether a handler has paused a direction of a connection.
fn is_paused<S>(flow: &Flow<S>, direction: Direction) -> bool {
    matches!(&flow.payload, Payload::Tls(tls) if tls.before.is_none() && tls.session.may_pass(direction))
}

/// Whether records of a direction may pass elsewhere: nothing that was read is still under way, either way. Its acknowledgments
/// would not be seen.
fn may_pass<S>(flow: &Flow<S>, direction: Direction) -> bool {
    let Payload::Tls(tls) = &flow.payload else {
        return false;
    };
    let half = &flow.halves[direction.index()];
    let next = half.assembler.next();
    flow.halves.iter().all(|half| half.sent_len() == 0)
        && half.passed().is_some_and(|passed| passed.end() == next && passed.is_short())
        && tls.session.passing(direction).is_some_and(|it| it.content >= MIN_CONTENT)
}

/// Whether a connection may be left alone for a while, whole or in part, if nobody reads that.
fn may_go<S>(flow: &Flow<S>) -> bool {
    // Another connection may begin on its four-tuple, which is not to be left alone.
    let is_open = flow.phase == Phase::Open && flow.opening.is_over();
    let is_free = !flow.offload.is_on() && flow.reset_seen.is_none();
    // A handler may have asked for its reset since.
    let is_alive = match flow.unread {
        Unread::No => flow.payload.disposition() == Disposition::Follow,
        Unread::Exempt => true,
        Unread::Bypassed => flow.payload.disposition() == Disposition::Bypass,
    };
    let nothing_waits = |direction: Direction| {
        let half = &flow.halves[direction.index()];
        // Priority tags are unusual, too.
        let is_untagged = half.path().is_some_and(|(_, header)| header.len() == UNTAGGED);
        is_untagged
            && half.fin().is_none()
            && half.first_held().is_none()
            && half.assembler.buffered() == 0
    };
    is_open && is_free && is_alive && Direction::BOTH.into_iter().all(nothing_waits)
}

/// A connection as the I/O layer knows it, or the records of one direction; `None` where not both have been seen.
fn offloaded<S>(flow: &Flow<S>, direction: Option<Direction>) -> Option<OffloadedFlow> {
    let [client, server] = &flow.halves;
    let ports = [client.path()?.0, server.path()?.0];
    (ports[0] != ports[1]).then_some(())?;
    let records = direction.map(|direction| {
        let records = match &flow.payload {
            Payload::Tls(tls) => tls.session.passing(direction),
            Payload::Resting(_) | Payload::Undecided(..) | Payload::Plain(_) => None,
        };
        // A connection that is not read any more has only to be named.
        records.unwrap_or(OffloadedRecords { direction, next: 0, content: 0, overhead: 0 })
    });
    Some(OffloadedFlow {
        id: flow.id,
        ends: flow.ends.both(),
        ports,
        initial: [client.initial?, server.initial?],
        positions: [client.assembler.next(), server.assembler.next()],
        records,
    })
}
