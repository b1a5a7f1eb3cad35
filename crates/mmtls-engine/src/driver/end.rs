//! How flows end: closed by their endpoints, reset by the monitor, forgotten.
//!
//! A session is reset with up to two RSTs per side: one at the first byte that was not forwarded, one at what the side
//! last acknowledged, in case forwarded packets were lost behind the monitor. A tombstone drops everything, and answers
//! what still comes with a RST at the sender's own acknowledgment number, a few times. Its time is counted from the last
//! packet and not from the reset: what comes later would be a mid-stream connection.
//!
//! Refuses to forget a reset connection early: its tombstone keeps dropping what still comes.

use super::conclude::Passage;
use super::payload::{Flow, Payload, is_followed, waits_for_keys_only};
use super::{Engine, context};
use crate::output::{Exit, Output};
use crate::recognition::Recogniser;
use crate::session::{EndReason, FlowAnomaly, Handler, SessionError, TcpAnomaly};
use crate::tcp::{FlowIndex, Phase, TcpDirection};
use crate::tls::Direction;
use crate::wire::{Reset, Segment, build_reset, turned};

/// RSTs sent in answer to packets of a connection that was reset, for each direction: data under way must not use
/// up what the other side's challenge is to be answered with.
const TOMBSTONE_ANSWERS: u16 = 8;

/// The same, of a monitor that drops nothing: its copies are late, so each acknowledgment may come from where the
/// receiver stood long ago, and only the last one shows where it waits for a sender that is gone. More than the
/// acknowledgments of a window of 8 MiB.
const PASSIVE_ANSWERS: u16 = 4096;

impl<H: Handler> Engine<H> {
    /// Ends a session whose endpoints have both finished.
    pub(super) fn close_if_finished(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if flow.phase != Phase::Closed(EndReason::Closed) {
            let reason = match flow.reset_seen {
                Some(direction) => EndReason::ResetByPeer(direction),
                None if flow.halves.iter().all(TcpDirection::fin_reached) => EndReason::Closed,
                None => return,
            };
            if self.waits_at_end(index) {
                return;
            }
            self.close(index, reason);
        }
        // The last acknowledgment belongs to the flow's record; it has come where keys were waited for.
        let is_told = |flow: &&mut Flow<H::State>| {
            flow.phase == Phase::Closed(EndReason::Closed) && flow.is_finished()
        };
        if !self.is_over(index) && self.flows.get(index).filter(is_told).is_some() {
            self.report_end(index, EndReason::Closed);
        }
    }

    /// Moves a flow to its closed phase and ends its session.
    pub(super) fn close(&mut self, index: FlowIndex, reason: EndReason) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if matches!(flow.phase, Phase::Closed(_) | Phase::Dead { .. }) {
            return;
        }
        let id = flow.id;
        self.flows.close(index, reason);
        if reason == EndReason::Closed {
            // What was sent may still be repeated.
            let Some(flow) = self.flows.get(index) else {
                return;
            };
            for direction in Direction::BOTH {
                flow.copy_partial(direction, 0, &mut self.pool);
            }
            self.end_session(index, reason);
            self.charge(index);
        } else {
            // Held bytes of a dead connection were never inspected, and are of no use to its ends.
            self.discard_held(index);
            self.end_session(index, reason);
            if self.is_over(index) {
                // The handler wants it to be reset, which will be its end.
                return;
            }
            self.report_end(index, reason);
            self.let_go(index);
        }
        let deadline = self.now_ns.saturating_add(self.config.limits.closed_timeout_ns);
        self.flows.check_at(deadline, index, id);
    }

    /// Turns a flow into a tombstone; with `reset`, both endpoints get a RST.
    pub(super) fn kill(&mut self, index: FlowIndex, reset: bool, reason: EndReason) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if let Phase::Dead { .. } = flow.phase {
            return;
        }
        self.take_back(index);
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let answers = match reset {
            true if self.config.inline => TOMBSTONE_ANSWERS,
            true => PASSIVE_ANSWERS,
            false => 0,
        };
        flow.phase = Phase::Dead { reason, answers: [answers; 2] };
        let id = flow.id;
        self.flows.bury(index);
        self.discard_held(index);
        if reset {
            for direction in Direction::BOTH {
                self.reset_receiver(index, direction);
            }
        }
        self.end_session(index, reason);
        self.report_end(index, reason);
        self.let_go(index);
        let deadline = self.now_ns.saturating_add(self.config.limits.tombstone_timeout_ns);
        self.flows.check_at(deadline, index, id);
    }

    /// Frees what was kept for a connection that is over.
    fn let_go(&mut self, index: FlowIndex) {
        if let Some(flow) = self.flows.get(index) {
            for half in &mut flow.halves {
                half.assembler.clear();
                half.forget_sent();
                half.take_syn_data();
            }
            match &mut flow.payload {
                Payload::Tls(tls) => {
                    tls.session.forget();
                    tls.before = None;
                }
                // Still undecided: what comes behind a RST is dropped, and not passed as unknown.
                Payload::Undecided(recogniser, clear) => {
                    *recogniser = Recogniser::default();
                    clear.forget();
                }
                Payload::Resting(_) | Payload::Plain(_) => {}
            }
        }
        self.charge(index);
    }

    /// A RST that was seen is how it ended, also where keys were waited for in vain.
    fn seen_reason(&mut self, index: FlowIndex, reason: EndReason) -> EndReason {
        let seen = self.flows.get(index).and_then(|flow| flow.reset_seen);
        seen.map_or(reason, EndReason::ResetByPeer)
    }

    /// A flow's time is over: it is forgotten, unless its handler wants it to be reset.
    pub(super) fn expire(&mut self, index: FlowIndex, reason: EndReason) {
        let reason = self.seen_reason(index, reason);
        self.discard_held(index);
        self.end_session(index, reason);
        let dead =
            self.flows.get(index).is_some_and(|flow| matches!(flow.phase, Phase::Dead { .. }));
        if !self.is_over(index) || dead {
            return self.remove(index, reason);
        }
        self.conclude(index);
        if let Some(flow) = self.flows.get(index) {
            // The tombstone's time begins.
            flow.last_ns = self.now_ns;
        }
    }

    /// Forgets a flow; ends what has not ended yet.
    pub(super) fn remove(&mut self, index: FlowIndex, reason: EndReason) {
        let reason = self.seen_reason(index, reason);
        self.discard_held(index);
        self.end_session(index, reason);
        self.report_end(index, reason);
        self.take_back(index);
        if !self.late.is_empty() {
            self.late.remove(index);
        }
        if let Some(flow) = self.flows.remove(index) {
            self.buffered = self.buffered.saturating_sub(flow.charged);
            if flow.charged_undecided {
                self.undecided = self.undecided.saturating_sub(flow.charged);
            }
        }
    }

    /// Sends a RST to the receiver of a direction, in the name of its sender.
    pub(super) fn reset_receiver(&mut self, index: FlowIndex, direction: Direction) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let half = &flow.halves[direction.index()];
        let other = &flow.halves[direction.reverse().index()];
        // The receiver stands where everything was forwarded to, or, of a monitor that forwards nothing, where
        // all that has been seen ends; what it acknowledged itself is the other candidate, when forwarded
        // packets were lost behind the monitor.
        let inline = self.config.inline;
        let passed =
            |half: &TcpDirection| if inline { half.released } else { half.assembler.next() };
        let stands = passed(half);
        let fin = u64::from(half.fin().is_some_and(|fin| stands >= fin));
        let forwarded = half.sequence_of(stands + fin);
        let acknowledged = other.last_ack;
        let end = other.sequence_of(passed(other)).unwrap_or(0);
        if let Some(sequence) = forwarded {
            self.inject_reset(index, direction, sequence, end);
        }
        if let Some(sequence) = acknowledged
            && acknowledged != forwarded
        {
            self.inject_reset(index, direction, sequence, end);
        }
    }

    /// Injects a RST along a direction; not where everything has happened already.
    pub(super) fn inject_reset(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        sequence: u32,
        acknowledgment: u32,
    ) {
        let sends = self.config.inline || self.config.resets_beside;
        let Some(flow) = self.flows.get(index).filter(|_| sends) else {
            return;
        };
        let [client, server] = flow.ends.both();
        let (source, destination) = match direction {
            Direction::ClientToServer => (client, server),
            Direction::ServerToClient => (server, client),
        };
        let reset = Reset { source, destination, sequence, acknowledgment };
        let own = flow.halves[direction.index()].path();
        let rst = if let Some((port, link_header)) = own {
            rst(Exit::AwayFrom(port), link_header, &reset)
        } else if let Some((port, link_header)) = flow.halves[direction.reverse().index()].path() {
            // This side has never spoken: back to where the other one's frames come from.
            rst(Exit::Through(port), link_header, &reset)
        } else {
            return;
        };
        self.inject(rst);
    }

    /// Sends a RST, where one could be built.
    pub(super) fn inject(&mut self, rst: Option<Output>) {
        if let Some(rst) = rst {
            self.counters.resets_injected += 1;
            self.outputs.push_back(rst);
        }
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
                beyond <= client.syn_data().len()
            });
        if exact || refused {
            if matches!(flow.phase, Phase::Opening | Phase::Open) && !waits_for_keys_only(flow) {
                flow.reset_seen.get_or_insert(direction);
                self.close_if_finished(index);
            }
            return Passage::Free;
        }
        let followed = is_followed(flow);
        self.stray(index, direction, TcpAnomaly::StrayReset);
        // It must not end what is followed here: the next connection would be taken for this one.
        if self.config.inline && followed { Passage::Refused } else { Passage::Free }
    }

    fn end_session(&mut self, index: FlowIndex, reason: EndReason) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        // Where it ends in the middle, what is still under way is not lost, unless it has arrived unseen. Behind
        // the end of a capture nothing comes.
        let is_settled = match reason {
            EndReason::Closed | EndReason::TimedOut => true,
            EndReason::Shutdown | EndReason::Replaced => !self.config.inline,
            _ => false,
        };
        let gaps = Direction::BOTH.map(|direction| {
            let half = &flow.halves[direction.index()];
            let acknowledged = flow.halves[direction.reverse().index()].last_ack;
            match is_settled {
                true => half.has_gap(acknowledged),
                false => acknowledged.is_some_and(|it| half.is_acknowledged_beyond(it)),
            }
        });
        if let Payload::Tls(tls) = &mut flow.payload {
            if let Some(before) = &mut tls.before {
                // The session tells how it ends.
                before.shown.end(&mut self.handler, self.now_ns, None);
            }
            let mut ctx = context!(self, tls.state);
            if tls.session.following() {
                for direction in Direction::BOTH.into_iter().filter(|it| gaps[it.index()]) {
                    tls.session.raise(direction, SessionError::LostSynchronisation, &mut ctx);
                }
            }
            tls.session.end(reason, &mut ctx);
            if let (Some(random), id) = (tls.session.key_random(), tls.session.info().id) {
                self.unregister(&random, index, id);
            }
        } else {
            self.end_cleartext(index, gaps, reason);
        }
    }

    /// Reports something strange, once per direction and kind.
    pub(super) fn note(&mut self, index: FlowIndex, direction: Direction, kind: TcpAnomaly) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let reported = &mut flow.half(direction).reported;
        if *reported & kind.bit() != 0 {
            return;
        }
        *reported |= kind.bit();
        self.handler.flow_anomaly(&FlowAnomaly {
            id: flow.id,
            client: flow.ends.client(),
            server: flow.ends.server(),
            place: flow.place(),
            direction,
            kind,
            now_ns: self.now_ns,
        });
    }

    /// Counts a control segment that does not belong to its connection.
    pub(super) fn stray(&mut self, index: FlowIndex, direction: Direction, kind: TcpAnomaly) {
        self.counters.stray_control += 1;
        if self.flows.get(index).is_some_and(|it| matches!(it.phase, Phase::Opening | Phase::Open))
        {
            self.note(index, direction, kind);
        }
    }

    /// Counts an empty segment that does not belong to its connection. It does not pass where bytes are
    /// looked at: a server that answers with SYN cookies may take it for the beginning.
    pub(super) fn stray_acknowledgment(
        &mut self,
        index: FlowIndex,
        direction: Direction,
    ) -> Passage {
        let looked_at = |flow: &&mut Flow<H::State>| flow.phase == Phase::Open && is_followed(flow);
        let Some(flow) = self.flows.get(index).filter(looked_at) else {
            return Passage::Free;
        };
        let is_proven = self.config.inline && flow.is_established();
        self.stray(index, direction, TcpAnomaly::StrayAcknowledgment);
        if is_proven { Passage::Refused } else { Passage::Free }
    }

    /// Counts data that no receiver takes.
    pub(super) fn out_of_window(&mut self, index: FlowIndex, direction: Direction) -> Passage {
        self.counters.out_of_window += 1;
        self.note(index, direction, TcpAnomaly::OutOfWindow);
        Passage::Refused
    }

    fn report_end(&mut self, index: FlowIndex, reason: EndReason) {
        if let Some(flow) = self.flows.get(index)
            && !core::mem::replace(&mut flow.end_reported, true)
            && !flow.is_exempt()
        {
            self.handler.flow_end(&flow.end(reason));
        }
    }
}

/// A RST that takes the way of frames with this header, or goes back to where they come from.
pub(super) fn rst(exit: Exit, link_header: &[u8], reset: &Reset) -> Option<Output> {
    let frame = match exit {
        Exit::AwayFrom(_) => build_reset(link_header, reset),
        Exit::Through(_) => build_reset(&turned(link_header), reset),
    };
    frame.map(|frame| Output::Inject { exit, frame })
}
