//! Bytes of records that a pause skips: neither read nor kept, but for where the records begin and how long they are.
//!
//! Refuses to let go of bytes that were read before, as long as their receiver has not acknowledged them.

use super::payload::Payload;
use super::{Engine, context};
use crate::session::Handler;
use crate::tcp::FlowIndex;
use crate::tls::Direction;

/// What of contiguous bytes is to be kept, and what to be read: up to `read_from` they have passed unread.
#[derive(Default)]
pub(super) struct Passing {
    pub(super) kept_from: usize,
    pub(super) read_from: usize,
    /// Whether other memory is taken now.
    pub(super) changed: bool,
}

impl<H: Handler> Engine<H> {
    /// Hands on the front of a direction's next bytes where that completes a record that has begun before, so that what is
    /// behind it may pass. Returns how many bytes that were, and as [`Engine::hand_on`] does.
    pub(super) fn complete_before_passing(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        bytes: &[u8],
    ) -> (usize, bool) {
        let (mut used, mut changed) = (0, false);
        while let Some(flow) = self.flows.get(index)
            && let Payload::Tls(tls) = &flow.payload
            && let Some(missing) = tls.session.missing_before_passing(direction)
            && missing < bytes.len() - used
        {
            changed |= self.hand_on(index, direction, &bytes[used..used + missing]);
            used += missing;
            if let Some(flow) = self.flows.get(index) {
                flow.half(direction).assembler.advance(missing);
            }
        }
        (used, changed)
    }

    /// Passes over records that a pause skips, at the front of a direction's next bytes.
    pub(super) fn pass(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) -> Passing {
        let Some(flow) = self.flows.get(index) else {
            return Passing::default();
        };
        let Payload::Tls(tls) = &mut flow.payload else {
            return Passing::default();
        };
        if tls.before.is_some() || !tls.session.may_pass(direction) {
            return Passing::default();
        }
        let half = &mut flow.halves[direction.index()];
        // What was not forwarded cannot have arrived, whatever is acknowledged.
        let (next, arrived) = (half.assembler.next(), half.acknowledged().min(half.released));
        let Some(passed) = half.passing() else {
            return Passing::default();
        };
        let before = passed.capacity();
        let mut ctx = context!(self, tls.state);
        let read_from = tls.session.pass(direction, bytes, passed, &mut ctx);
        let (start, mut changed) = (passed.start(), passed.capacity() != before);
        // What was read before them, and may still be sent again, ends where they begin.
        let follows = half.sent.as_ref().is_some_and(|it| it.len() > 0 && it.end() == next);
        let kept_from = if follows && arrived < start { 0 } else { read_from };
        if kept_from > 0 && half.sent.take().is_some() {
            changed = true;
        }
        Passing { kept_from, read_from, changed }
    }
}
