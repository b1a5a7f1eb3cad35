//! A connection that does not carry TLS, as its application sees it: every byte, in order, once.
//!
//! ```text
//!  bytes ──► may TLS begin with them? ── yes, or not known yet ──► they wait
//!                      │ no
//!                      ▼
//!            cleartext_start, cleartext… ──► cleartext_end: TLS begins behind them (STARTTLS),
//!                                            nothing more is asked for, or the connection is over
//! ```
//! Nothing is held: a segment is looked at before it goes on, and one that a handler resets goes nowhere.
//! What waits has passed already: the beginning of a hello, or of a load balancer's header, of one side, as long as the other one
//! says nothing. It is shown with what follows, or with the FIN; in front of a session it is not.
//!
//! What looks like a hello behind other bytes may be none: until a server has answered it, it is shown as well ([`Before`]).
//! Otherwise a few bytes would switch the inspection off, whoever sends them.
//!
//! Refuses to show connections whose beginning was not seen, and anything behind a gap.

use super::Engine;
use super::payload::Payload;
use super::shown::{Before, Clear, Shown};
use crate::session::{Disposition, EndReason, Handler, SessionError, SessionInfo};
use crate::tcp::FlowIndex;
use crate::tls::Direction;

impl<H: Handler> Engine<H> {
    /// Shows bytes of a connection in which TLS has not begun.
    pub(super) fn show_cleartext(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let place = flow.place();
        let Payload::Undecided(recogniser, clear) = &mut flow.payload else {
            return;
        };
        if let Clear::Expected = clear {
            let [client, server] = flow.ends.both();
            let info = SessionInfo::new(flow.id, client, server, place, flow.started_ns);
            *clear = Clear::Shown(Box::new(Shown::new(info)));
        }
        let Clear::Shown(shown) = clear else {
            return;
        };
        let (handler, now_ns) = (&mut self.handler, self.now_ns);
        shown.handle_bytes(handler, now_ns, direction, bytes, recogniser.is_excluded());
        if shown.is_over() {
            shown.end(handler, now_ns, None);
            if !shown.disposition().is_kill() {
                clear.forget();
            }
        }
    }

    /// TLS seems to begin: what was shown goes on beside it until a server has answered.
    pub(super) fn take_cleartext(
        &mut self,
        index: FlowIndex,
        reversed: bool,
    ) -> Option<Before<H::State>> {
        let Payload::Undecided(_, clear) = &mut self.flows.get(index)?.payload else {
            return None;
        };
        Before::new(core::mem::replace(clear, Clear::Ignored), reversed)
    }

    /// Nothing more of a connection is shown, though it goes on: it cannot be followed. False when its handler
    /// wants it to be reset.
    pub(super) fn leave_cleartext(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        error: SessionError,
    ) -> bool {
        let Some(Payload::Undecided(_, Clear::Shown(shown))) =
            self.flows.get(index).map(|flow| &mut flow.payload)
        else {
            return true;
        };
        let (handler, now_ns) = (&mut self.handler, self.now_ns);
        shown.begin_late(handler, now_ns);
        shown.raise(handler, now_ns, direction, error);
        shown.end(handler, now_ns, None);
        let Disposition::Kill { reset, reason } = shown.disposition() else {
            return true;
        };
        self.kill(index, reset, reason);
        false
    }

    /// The connection is over. `gaps`: the directions of which bytes are missing.
    pub(super) fn end_cleartext(&mut self, index: FlowIndex, gaps: [bool; 2], reason: EndReason) {
        let Some(Payload::Undecided(_, Clear::Shown(shown))) =
            self.flows.get(index).map(|flow| &mut flow.payload)
        else {
            return;
        };
        let (handler, now_ns) = (&mut self.handler, self.now_ns);
        shown.begin_late(handler, now_ns);
        for direction in Direction::BOTH {
            if gaps[direction.index()] {
                let error = SessionError::LostSynchronisation;
                shown.raise(handler, now_ns, direction, error);
            }
        }
        shown.end(handler, now_ns, Some(reason));
    }
}
