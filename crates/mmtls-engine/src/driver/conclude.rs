//! The one place where what has happened to a connection becomes what its packets do.
//!
//! Everything that handles an input changes the connection and calls handlers, which may ask for a reset
//! at any time; nothing of it lets a packet go. Then [`Engine::conclude`] raises what is still to be
//! raised, reads what has been decided, and only then releases, discards or resets, in both directions
//! at once. So a reset stops everything that has not been inspected, whichever event asked for it.
//!
//! ```text
//!  input ─► TCP, records, handlers ─► conclude: FINs, end of the session (handlers, for the last time)
//!           └ disposition: Follow │ Bypass │ Kill ────────────┘ │
//!                                                               ▼
//!                                        discard and reset, or release ─► verdict on the frame at hand
//! ```

use super::payload::{Flow, Payload};
use super::shown::Clear;
use super::{Engine, context};
use crate::output::{Output, Verdict};
use crate::session::{Disposition, Handler};
use crate::tcp::{FlowIndex, Held, Phase, TcpDirection, Unread};
use crate::tls::Direction;

/// What the frame at hand may do, as far as it depends on itself. What its connection comes to has the
/// last word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passage {
    /// It has nothing that is looked at.
    Free,
    /// It has bytes of this direction's stream, which go in order and when they have been inspected.
    Ordered(Direction),
    /// It may begin another connection on this four-tuple: what this one comes to does not matter.
    Beginning,
    /// It must not reach its receiver.
    Refused,
}

impl<H: Handler> Engine<H> {
    /// Concludes what a frame has led to, and its verdict.
    pub(super) fn verdict_for(&mut self, index: FlowIndex, passage: Passage) -> Verdict {
        let inline = self.config.inline;
        let Some(flow) = self.flows.get(index) else {
            return self.lost_flow();
        };
        // Of nearly every segment there is nothing to conclude.
        if !is_concluded(flow) {
            self.conclude(index);
        }
        let Some(flow) = self.flows.get(index) else {
            return self.lost_flow();
        };
        let direction = match (flow.phase, passage) {
            (_, Passage::Beginning) => return Verdict::Forward,
            (Phase::Dead { .. }, _) | (_, Passage::Refused) => return Verdict::Drop,
            (_, Passage::Free) => return Verdict::Forward,
            (_, Passage::Ordered(direction)) => direction,
        };
        let half = &mut flow.halves[direction.index()];
        let contiguous = half.assembler.next();
        let waits = match &flow.payload {
            Payload::Tls(tls) => half.first_held().is_some() || tls.session.is_stalled(direction),
            Payload::Resting(_) | Payload::Plain(_) | Payload::Undecided(..) => false,
        };
        if waits && inline {
            return self.hold(index, direction, contiguous);
        }
        half.released = contiguous;
        if waits {
            // It is on its way already: only its bytes wait.
            self.limit_stall(index, direction);
        } else if matches!(flow.payload, Payload::Plain(_)) {
            self.leave_order(index);
            if self.is_over(index) {
                self.conclude(index);
                return Verdict::Drop;
            }
        }
        Verdict::Forward
    }

    /// A connection is not looked at in order any more: what is behind holes has passed.
    fn leave_order(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let is_exempt = flow.is_exempt();
        let mut missed = None;
        for direction in Direction::BOTH {
            let assembler = &mut flow.halves[direction.index()].assembler;
            let next = assembler.next() as i64;
            for (offset, piece) in assembler.skip_buffered() {
                if let Payload::Plain(watch) = &mut flow.payload
                    && !is_exempt
                    && watch.handle_ahead(direction, next, offset as i64, &piece)
                {
                    missed = Some(direction);
                }
            }
        }
        if let Some(direction) = missed {
            self.miss(index, direction);
        }
        self.charge(index);
    }

    /// A flow that was just there is gone, which cannot be: nothing passes uninspected.
    pub(super) fn lost_flow(&mut self) -> Verdict {
        self.counters.lost_flows += 1;
        if self.config.inline { Verdict::Drop } else { Verdict::Forward }
    }

    /// Does to a connection's packets what has been decided about it.
    pub(super) fn conclude(&mut self, index: FlowIndex) {
        if let Some(flow) = self.flows.get(index)
            && flow.offload.is_on()
            && (flow.offload.records().is_some() || flow.payload.disposition().is_kill())
        {
            // Once it is known where it stands.
            return self.take_back(index);
        }
        // First whatever may still call a handler.
        self.report_fins(index);
        if !self.is_over(index) {
            self.close_if_finished(index);
        }
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if let Phase::Dead { .. } = flow.phase {
            return;
        }
        let is_tls = flow.is_tls();
        match flow.payload.disposition() {
            Disposition::Kill { reset, reason } => self.kill(index, reset, reason),
            _ if !is_tls => {}
            Disposition::Bypass if flow.unread == Unread::Bypassed => {}
            Disposition::Bypass => self.bypass(index),
            Disposition::Follow => {
                for direction in Direction::BOTH {
                    self.release(index, direction);
                }
                self.note_stalls(index);
                // Also where nothing was held: keys that came late let go of what waited for them.
                self.charge(index);
            }
        }
    }

    /// FINs that were reached may cut a record, also one that has waited behind a stall until now.
    fn report_fins(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        for direction in Direction::BOTH {
            if !flow.halves[direction.index()].fin_reached() {
                continue;
            }
            match &mut flow.payload {
                Payload::Tls(tls) if tls.session.following() => {
                    if let Some(before) = &mut tls.before {
                        let direction = before.direction(direction);
                        before.shown.handle_fin(&mut self.handler, self.now_ns, direction);
                    }
                    let mut ctx = context!(self, tls.state);
                    tls.session.handle_fin(direction, &mut ctx);
                }
                Payload::Undecided(_, Clear::Shown(shown)) => {
                    shown.handle_fin(&mut self.handler, self.now_ns, direction);
                }
                _ => {}
            }
        }
    }

    /// Releases the held packets that no longer complete a record that has not been inspected; the caller charges the flow.
    fn release(&mut self, index: FlowIndex, direction: Direction) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let half = &mut flow.halves[direction.index()];
        if half.first_held().is_none() {
            return;
        }
        let barrier = match &flow.payload {
            Payload::Tls(tls) => tls.session.barrier(direction),
            _ => None,
        };
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
                half.assembler.skip_buffered();
                half.forget_sent();
                half.released = half.assembler.next();
            }
            if let Payload::Tls(tls) = &mut flow.payload {
                tls.session.forget();
                flow.unread = Unread::Bypassed;
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
}

/// Whether nothing waits, nothing ends, and nothing has been decided that is not done.
fn is_concluded<S: Default>(flow: &Flow<S>) -> bool {
    let ends = |half: &TcpDirection| half.fin().is_some() || half.first_held().is_some();
    if flow.halves.iter().any(ends) || flow.waits_behind_reset() {
        return false;
    }
    match &flow.payload {
        Payload::Tls(_) | Payload::Resting(_) => match flow.payload.disposition() {
            Disposition::Follow => !flow.payload.is_stalled(),
            Disposition::Bypass => flow.unread == Unread::Bypassed,
            Disposition::Kill { .. } => false,
        },
        Payload::Undecided(_, clear) => !clear.disposition().is_kill(),
        Payload::Plain(_) => true,
    }
}
