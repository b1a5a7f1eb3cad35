//! Held packets: when they are held, released, and when waiting ends.
//!
//! Refuses to release a frame that would complete an unjudged record.

use super::{Context, Engine, StallCheck, context};
use crate::config::{Awaited, Limits};
use crate::flow::{Carries, Flow, FlowIndex, Held, Resource, Unacknowledged};
use crate::output::{Output, Verdict};
use crate::session::{Fate, Handler};
use crate::tls::Direction;

impl<H: Handler> Engine<H> {
    /// Holds the packet at hand behind those that are held already.
    pub(super) fn hold(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        contiguous: u64,
    ) -> Verdict {
        if !self.config.inline {
            return self.wait_unheld(index, direction, contiguous);
        }
        let id = self.next_hold();
        let (frames, len) = (self.frame_count, self.frame_len);
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        let half = &mut flow.halves[direction.index()];
        half.hold(Held { id, contiguous, frames, len });
        self.held_frames += frames;
        let limits = &self.config.limits;
        let too_many = half.held_frames() > limits.stall_max_packets;
        if let Carries::Tls(session) = &mut flow.carries {
            if session.fate == Fate::Bypass {
                self.bypass(index);
                return Verdict::Hold(id);
            }
            if too_many || session.stalled_bytes(direction) > limits.stall_max_bytes {
                let mut ctx = context!(self);
                session.handle_missing_keys(direction, &mut ctx);
                self.settle(index);
                return Verdict::Hold(id);
            }
        }
        self.note_stalls(index);
        self.charge(index);
        if self.held_frames > self.config.limits.max_held_frames {
            self.end_largest_stall(index, direction);
        }
        Verdict::Hold(id)
    }

    /// As [`Self::hold`], of a frame that is on its way already: only its bytes wait.
    fn wait_unheld(&mut self, index: FlowIndex, direction: Direction, contiguous: u64) -> Verdict {
        let Some(flow) = self.flows.get(index) else {
            return Verdict::Forward;
        };
        flow.half(direction).released = contiguous;
        if let Carries::Tls(session) = &mut flow.carries
            && session.stalled_bytes(direction) > self.config.limits.stall_max_bytes
        {
            let mut ctx = context!(self);
            session.handle_missing_keys(direction, &mut ctx);
        }
        self.settle(index);
        Verdict::Forward
    }

    /// Gives each stall that has begun a deadline.
    pub(super) fn note_stalls(&mut self, index: FlowIndex) {
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
                let awaited = self.config.awaited.as_ref();
                let awaited = awaited.is_none_or(|Awaited(is_there)| is_there(flow.client.ip()));
                let Limits { stall_timeout_ns: most, unshared_stall_timeout_ns: unshared, .. } =
                    self.config.limits;
                let timeout_ns = if awaited { most } else { unshared.min(most) };
                self.stalls[usize::from(!awaited)].push_back(StallCheck {
                    deadline_ns: since_ns.saturating_add(timeout_ns),
                    index,
                    id: session.info.id,
                    direction,
                    since_ns,
                });
            }
        }
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

    /// Acts on what a session has come to outside of a verdict: releases, bypasses or kills.
    pub(super) fn settle(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let Carries::Tls(session) = &mut flow.carries else {
            return;
        };
        match session.fate {
            Fate::Kill { reset, reason } => self.kill(index, reset, reason),
            Fate::Bypass => {
                self.bypass(index);
                self.close_if_finished(index);
            }
            Fate::Follow => {
                for direction in Direction::BOTH {
                    self.release(index, direction);
                    self.report_fin(index, direction);
                }
                self.note_stalls(index);
                self.charge(index);
                self.close_if_finished(index);
            }
        }
    }

    /// A FIN that was reached while records waited may turn out to cut one.
    fn report_fin(&mut self, index: FlowIndex, direction: Direction) {
        if let Some(flow) = self.flows.get(index)
            && flow.half(direction).fin_reported
            && let Carries::Tls(session) = &mut flow.carries
        {
            let mut ctx = context!(self);
            session.handle_fin(direction, &mut ctx);
        }
    }

    /// Releases the held frames that no longer complete an unjudged record.
    fn release(&mut self, index: FlowIndex, direction: Direction) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let barrier = match &flow.carries {
            Carries::Tls(session) => session.barrier(direction),
            _ => None,
        };
        let half = &mut flow.halves[direction.index()];
        let may_go = |held: &Held| barrier.is_none_or(|barrier| held.contiguous < barrier);
        while half.first_held().is_some_and(may_go)
            && let Some(held) = half.take_held()
        {
            self.outputs.push_back(Output::Release(held.id));
            self.counters.released += held.frames as u64;
            self.held_frames -= held.frames;
            half.released = half.released.max(held.contiguous);
        }
    }

    /// Stops following: everything that is held goes on its way, everything kept is let go.
    pub(super) fn bypass(&mut self, index: FlowIndex) {
        for direction in Direction::BOTH {
            self.release(index, direction);
        }
        if let Some(flow) = self.flows.get(index) {
            for half in &mut flow.halves {
                half.assembler.clear();
                half.sent = Unacknowledged::default();
                half.released = half.assembler.next();
            }
            if let Carries::Tls(session) = &mut flow.carries {
                session.forget();
            }
        }
        self.charge(index);
    }

    /// Throws away what is held.
    pub(super) fn discard_held(&mut self, index: FlowIndex) {
        if let Some(flow) = self.flows.get(index) {
            for half in &mut flow.halves {
                while let Some(held) = half.take_held() {
                    self.counters.dropped += held.frames as u64;
                    self.held_frames -= held.frames;
                    self.outputs.push_back(Output::Discard(held.id));
                }
            }
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
        let undecided = matches!(flow.carries, Carries::Undecided(_));
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
    let carried = match &flow.carries {
        Carries::Tls(session) => session.kept_bytes(),
        Carries::Undecided(recogniser) => recogniser.kept_bytes(),
        Carries::Plain(_) => 0,
    };
    flow.halves.iter().map(crate::flow::Half::kept_bytes).sum::<usize>() + carried
}
