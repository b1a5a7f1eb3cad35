//! One direction of a connection as a stream, whatever it carries.
//!
//! Refuses to let rules match twice in the same bytes.

use super::connection::Connection;
use super::context::{Context, Sink};
use super::message::{Outcome, Subject, Waiting};
use super::prefilter::Position;
use super::view::View;
use super::window::Window;
use crate::budget::MemoryBudget;
use crate::event::Side;
use crate::rules::header::Protocol;

/// One direction as a stream.
pub(super) struct Stream {
    pub(super) window: Window,
    pub(super) positions: Vec<Position>,
    pub(super) waiting: Vec<Waiting>,
    /// Where in the stream rules have matched: they look at what is behind it from then on.
    pub(super) matched: Vec<(u32, u64)>,
}

impl Stream {
    pub(super) fn new(budget: &MemoryBudget, slots: usize) -> Self {
        let positions = vec![Position::default(); slots];
        Self {
            window: Window::new(budget, size_of_val(&*positions)),
            positions,
            waiting: Vec::new(),
            matched: Vec::new(),
        }
    }

    /// Applies a rule to the latest bytes by themselves, which came with so many, and to the stream.
    pub(super) fn apply(
        &mut self,
        connection: &mut Connection,
        cx: &mut Context<'_>,
        number: u32,
        side: Side,
        latest: Option<(&[u8], usize)>,
        sink: Sink<'_>,
    ) {
        let Some(compiled) = cx.matcher.rules.get(number as usize) else {
            return;
        };
        let rule = &compiled.rule;
        if let Some((_, len)) = latest
            && rule.data_size.is_some_and(|size| !size.holds(len as u64))
        {
            return;
        }
        let at = self.waiting.iter().position(|it| it.rule == number);
        let mut waiting =
            at.map_or_else(|| Waiting::new(number), |at| self.waiting.swap_remove(at));
        let protocol = rule.header.protocol;
        let of_segments = protocol == Protocol::TcpPacket
            || rule.flow.stream == Some(false)
            || rule.data_size.is_some();
        let of_stream = protocol == Protocol::TcpStream || rule.flow.stream == Some(true);
        let known = self.matched.iter().position(|(rule, _)| *rule == number);
        let from = known.map_or(0, |at| self.matched[at].1);
        let view = self.window.so_far().behind(from);
        // Without memory, the latest bytes are not in the window.
        let is_there =
            latest.is_none_or(|(piece, _)| piece.len() <= self.window.view().bytes.len());
        let (may_hold, work) = waiting.may_hold(compiled, view);
        let may_hold = may_hold || !is_there;
        self.window.worked(work);
        waiting.known = self.window.len();
        if !may_hold {
            self.waiting.push(waiting);
            return;
        }
        let mut outcome = Outcome::Never;
        if let Some((piece, _)) = latest
            && !of_stream
        {
            let subject = Subject { payload: Some(View::whole(piece)), ..Subject::none(true) };
            outcome = connection.apply(cx, &mut Waiting::new(number), side, &subject);
        }
        if outcome != Outcome::Matched && !of_segments {
            let payload = Some(self.window.so_far().behind(from));
            let subject = Subject { payload, ..Subject::none(false) };
            outcome = connection.apply(cx, &mut waiting, side, &subject);
            self.window.worked(cx.scratch.work);
        }
        connection.tell_applied(cx, side, sink);
        match outcome {
            Outcome::Matched => {
                let end = self.window.len();
                match known {
                    Some(at) => self.matched[at].1 = end,
                    None => self.matched.push((number, end)),
                }
                connection.matched(cx, number, side, None, sink);
            }
            Outcome::Waits => self.waiting.push(waiting),
            Outcome::Never | Outcome::Settled => {}
        }
    }
}
