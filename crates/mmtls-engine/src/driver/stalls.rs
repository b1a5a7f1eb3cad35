//! Packets that wait for keys: how many, and for how long.
//!
//! Where no agent of the client's address is connected, a stall is short: `mmtls exec` connects before it starts its program, so
//! only endpoints that connect at that moment are waited for. The engine asks when a stall begins, not per packet.
//!
//! Refuses to wait without a limit.

use super::payload::{Flow, Payload};
use super::{Engine, Stall, StallCheck, context};
use crate::config::{Awaited, Limits};
use crate::output::Verdict;
use crate::session::Handler;
use crate::tcp::{FlowIndex, Held, Resource, TcpDirection};
use crate::tls::Direction;

impl<H: Handler> Engine<H> {
    /// Holds the packet at hand behind those that are held already.
    pub(super) fn hold(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        contiguous: u64,
    ) -> Verdict {
        let id = self.next_hold();
        let (frames, len) = (self.frame_count, self.frame_len);
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Drop;
        };
        flow.half(direction).hold(Held { id, contiguous, frames, len });
        self.held_frames += frames;
        self.charge(index);
        self.limit_stall(index, direction);
        if self.held_frames > self.config.limits.max_held_frames {
            self.end_largest_stall(index, direction);
        }
        Verdict::Hold(id)
    }

    /// Ends a stall behind which too much waits.
    pub(super) fn limit_stall(&mut self, index: FlowIndex, direction: Direction) {
        let limits = &self.config.limits;
        if let Some(flow) = self.flows.get(index)
            && let Payload::Tls(tls) = &mut flow.payload
            && (flow.halves[direction.index()].held_frames() > limits.stall_max_packets
                || tls.session.stalled_bytes(direction) > limits.stall_max_bytes)
        {
            let mut ctx = context!(self, tls.state);
            tls.session.handle_missing_keys(direction, &mut ctx);
            self.conclude(index);
        }
    }

    /// Gives each stall that has begun a deadline.
    pub(super) fn note_stalls(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let Payload::Tls(tls) = &flow.payload else {
            return;
        };
        let mut began = [None; 2];
        for direction in Direction::BOTH {
            let half = &mut flow.halves[direction.index()];
            if let Some(since_ns) = tls.session.stalled_since_ns(direction)
                && half.note_stall(since_ns)
            {
                began[direction.index()] = Some(since_ns);
            }
        }
        for (direction, since_ns) in Direction::BOTH.into_iter().zip(began) {
            if let Some(since_ns) = since_ns {
                self.limit_time(index, since_ns, Stall::Records(direction, since_ns));
            }
        }
    }

    /// Gives what has begun to wait a deadline.
    fn limit_time(&mut self, index: FlowIndex, since_ns: u64, stall: Stall) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let awaited = self.config.awaited.as_ref();
        let [client, server] = flow.ends.both().map(|end| end.ip());
        let awaited = awaited.is_none_or(|Awaited(is_there)| is_there(client, server));
        let Limits { stall_timeout_ns: most, unshared_stall_timeout_ns: unshared, .. } =
            self.config.limits;
        let timeout_ns = if awaited { most } else { unshared.min(most) };
        let deadline_ns = since_ns.saturating_add(timeout_ns);
        let check = StallCheck { deadline_ns, index, id: flow.id, stall };
        let queue = &mut self.stalls[usize::from(!awaited)];
        // Last, but behind a limit that was longer.
        let at = match queue.back() {
            Some(last) if last.deadline_ns > deadline_ns => {
                queue.partition_point(|it| it.deadline_ns <= deadline_ns)
            }
            _ => queue.len(),
        };
        queue.insert(at, check);
    }

    /// Whether a session must not end yet although its connection has: keys that are on their way show what has passed. Then
    /// it begins to wait.
    pub(super) fn waits_at_end(&mut self, index: FlowIndex) -> bool {
        let Some(flow) = self.flows.get(index) else {
            return false;
        };
        // Inline, what waits behind a RST is never delivered.
        let is_delivered = !self.config.inline || flow.reset_seen.is_none();
        if is_delivered && flow.payload.is_stalled() {
            return true;
        }
        let Payload::Tls(tls) = &mut flow.payload else {
            return false;
        };
        let waits = tls.session.waits_at_end();
        if waits && tls.session.begin_to_wait_at_end() {
            if !is_delivered {
                tls.session.forget_stalls();
                for half in &mut flow.halves {
                    half.assembler.clear();
                    half.forget_sent();
                    half.take_syn_data();
                }
                self.discard_held(index);
            }
            self.limit_time(index, self.now_ns, Stall::End);
            self.charge(index);
        }
        waits
    }

    /// The time of a stall is up.
    pub(super) fn end_stall(&mut self, check: &StallCheck) {
        if let Some(flow) = self.flows.get_if(check.index, check.id)
            && let Payload::Tls(tls) = &mut flow.payload
        {
            match check.stall {
                Stall::End => tls.session.end_wait_at_end(),
                Stall::Records(direction, since_ns)
                    if tls.session.stalled_since_ns(direction) == Some(since_ns) =>
                {
                    let mut ctx = context!(self, tls.state);
                    tls.session.handle_missing_keys(direction, &mut ctx);
                }
                Stall::Records(..) => return,
            }
            self.conclude(check.index);
        }
    }

    /// Brings the engine's total of kept bytes up to date with one flow; returns by how many
    /// bytes that flow has grown.
    pub(super) fn charge(&mut self, index: FlowIndex) -> usize {
        let Some(flow) = self.flows.get(index) else {
            return 0;
        };
        let bytes = kept_bytes(flow);
        let before = core::mem::replace(&mut flow.charged, bytes);
        let undecided = flow.payload.is_undecided();
        let held = flow.held_frames();
        let was_undecided = core::mem::replace(&mut flow.charged_undecided, undecided);
        self.buffered = self.buffered.saturating_sub(before).saturating_add(bytes);
        self.undecided = self
            .undecided
            .saturating_sub(if was_undecided { before } else { 0 })
            .saturating_add(if undecided { bytes } else { 0 });
        self.flows.account(index, Resource::HeldFrames, held);
        self.flows.account(index, Resource::KeptBytes, bytes);
        self.flows.account(index, Resource::UndecidedBytes, if undecided { bytes } else { 0 });
        bytes.saturating_sub(before)
    }
}

fn kept_bytes<S: Default>(flow: &Flow<S>) -> usize {
    let carried = match &flow.payload {
        Payload::Tls(tls) => tls.session.kept_bytes(),
        Payload::Undecided(recogniser, clear) => recogniser.kept_bytes() + clear.kept_bytes(),
        Payload::Resting(_) | Payload::Plain(_) => 0,
    };
    flow.halves.iter().map(TcpDirection::kept_bytes).sum::<usize>() + carried
}
