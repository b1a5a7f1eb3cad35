//! How flows end: closed by their endpoints, reset by the monitor, forgotten.
//!
//! Refuses to forget a reset connection early: its tombstone keeps dropping what still comes.

use super::{Context, Engine, context};
use crate::flow::{Carries, FlowIndex, Phase, Unacknowledged};
use crate::output::Output;
use crate::session::{EndReason, Fate, Handler, SessionError};
use crate::tls::Direction;
use crate::wire::{Reset, build_reset};

/// RSTs sent in answer to packets of a connection that was reset.
const TOMBSTONE_ANSWERS: u8 = 8;

impl<H: Handler> Engine<H> {
    /// Ends a session whose endpoints have both finished.
    pub(super) fn close_if_finished(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if let Phase::Closed(EndReason::Closed) = flow.phase {
            // The last acknowledgment belongs to the flow's record.
            if !flow.end_reported && flow.is_finished() {
                self.report_end(index, EndReason::Closed);
            }
            return;
        }
        let stalled = match &flow.carries {
            Carries::Tls(session) => {
                Direction::BOTH.into_iter().any(|direction| session.is_stalled(direction))
            }
            _ => false,
        };
        if !stalled && flow.halves.iter().all(crate::flow::Half::fin_reached) {
            self.close(index, EndReason::Closed);
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
        flow.phase = Phase::Closed(reason);
        let id = flow.id;
        if reason != EndReason::Closed {
            // Held bytes of a dead connection were never judged: nobody needs them.
            self.discard_held(index);
        }
        self.end_session(index, reason);
        if reason != EndReason::Closed {
            self.report_end(index, reason);
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
        let answers = if reset { TOMBSTONE_ANSWERS } else { 0 };
        flow.phase = Phase::Dead { reason, answers };
        let id = flow.id;
        self.discard_held(index);
        if reset {
            for direction in Direction::BOTH {
                self.reset_receiver(index, direction);
            }
        }
        self.end_session(index, reason);
        self.report_end(index, reason);
        if let Some(flow) = self.flows.get(index) {
            for half in &mut flow.halves {
                half.assembler.clear();
                half.sent = Unacknowledged::default();
                half.syn_data = Vec::new();
            }
            if let Carries::Undecided(_) = flow.carries {
                flow.carries = Carries::Plain;
            }
        }
        self.charge(index);
        let deadline = self.now_ns.saturating_add(self.config.limits.tombstone_timeout_ns);
        self.flows.check_at(deadline, index, id);
    }

    /// Forgets a flow; ends what has not ended yet.
    pub(super) fn remove(&mut self, index: FlowIndex, reason: EndReason) {
        self.discard_held(index);
        self.end_session(index, reason);
        self.report_end(index, reason);
        if let Some(flow) = self.flows.remove(index) {
            self.buffered = self.buffered.saturating_sub(flow.charged);
        }
    }

    /// Sends a RST to the receiver of a direction, in the name of its sender.
    fn reset_receiver(&mut self, index: FlowIndex, direction: Direction) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let half = &flow.halves[direction.index()];
        let other = &flow.halves[direction.reverse().index()];
        // The receiver stands where everything was forwarded to; what it acknowledged itself is
        // the other candidate, when forwarded packets were lost behind the monitor.
        let fin = u64::from(half.fin.is_some_and(|fin| half.released >= fin));
        let forwarded = half.sequence_of(half.released + fin);
        let acknowledged = other.last_ack;
        let end = other.sequence_of(other.released).unwrap_or(0);
        if let Some(sequence) = forwarded {
            self.inject_reset(index, direction, sequence, end);
        }
        if let Some(sequence) = acknowledged
            && acknowledged != forwarded
        {
            self.inject_reset(index, direction, sequence, end);
        }
    }

    /// Injects a RST along a direction.
    pub(super) fn inject_reset(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        sequence: u32,
        acknowledgment: u32,
    ) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let (source, destination) = match direction {
            Direction::ClientToServer => (flow.client, flow.server),
            Direction::ServerToClient => (flow.server, flow.client),
        };
        let Some((port, link_header)) = flow.halves[direction.index()].path() else {
            // Nothing is known of a side that has never spoken.
            return;
        };
        let reset = Reset { source, destination, sequence, acknowledgment };
        if let Some(frame) = build_reset(link_header, &reset) {
            self.counters.resets_injected += 1;
            self.outputs.push_back(Output::Inject { port, frame });
        }
    }

    fn end_session(&mut self, index: FlowIndex, reason: EndReason) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if let Carries::Tls(session) = &mut flow.carries {
            let mut ctx = context!(self);
            if session.fate == Fate::Follow {
                for direction in Direction::BOTH {
                    let acknowledged = flow.halves[direction.reverse().index()].last_ack;
                    if flow.halves[direction.index()].has_gap(acknowledged) {
                        session.raise(direction, SessionError::LostSynchronisation, &mut ctx);
                    }
                }
            }
            session.end(reason, &mut ctx);
            let (random, id) = (session.key_random(), session.info.id);
            self.unregister(&random, id);
        }
    }

    fn report_end(&mut self, index: FlowIndex, reason: EndReason) {
        if let Some(flow) = self.flows.get(index)
            && !core::mem::replace(&mut flow.end_reported, true)
        {
            self.handler.flow_end(&flow.end(reason));
        }
    }
}
