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
use crate::session::{
    Control, Disposition, EndReason, Handler, Session, SessionError, SessionInfo,
};
use crate::tcp::FlowIndex;
use crate::tls::Direction;

/// What an application sees of a connection that is not known to carry TLS.
#[derive(Default)]
pub(super) enum Clear<S> {
    /// All of it, if it asks for that; nothing has come yet.
    #[default]
    Expected,
    /// All of it.
    Shown(Box<Shown<S>>),
    /// Nothing: its beginning was not seen, or the application has seen enough.
    Ignored,
}

/// What was in the clear in front of a session that no server has answered yet.
pub(super) struct Before<S> {
    pub(super) shown: Box<Shown<S>>,
    /// Client and server of the session are the other way round.
    reversed: bool,
}

/// A connection in the clear, and what the application keeps of it.
pub(super) struct Shown<S> {
    info: SessionInfo,
    state: S,
    control: Control,
    disposition: Disposition,
    /// Bytes of each direction that came before it was known that TLS does not begin with them.
    waiting: [Vec<u8>; 2],
    has_begun: bool,
    /// By direction: its FIN was told.
    has_finished: [bool; 2],
    has_ended: bool,
}

impl<S> Clear<S> {
    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        match self {
            Self::Shown(shown) => shown.waiting.iter().map(Vec::len).sum(),
            Self::Expected | Self::Ignored => 0,
        }
    }

    /// Whether the application has seen something of it, and goes on to.
    pub(super) fn is_shown(&self) -> bool {
        matches!(self, Self::Shown(shown) if shown.has_begun && !shown.has_ended)
    }

    pub(super) fn disposition(&self) -> Disposition {
        match self {
            Self::Shown(shown) => shown.disposition,
            Self::Expected | Self::Ignored => Disposition::Follow,
        }
    }

    /// Nothing more is shown: nothing of it is kept.
    pub(super) fn forget(&mut self) {
        *self = Self::Ignored;
    }
}

impl<S> Shown<S> {
    pub(super) fn disposition(&self) -> Disposition {
        self.disposition
    }

    /// Events may be raised.
    fn is_live(&self) -> bool {
        self.has_begun && !self.has_ended && !self.disposition.is_kill()
    }
}

impl<S: Default> Before<S> {
    /// Bytes of the session.
    pub(super) fn handle_bytes<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        direction: Direction,
        bytes: &[u8],
    ) {
        let direction = if self.reversed { direction.reverse() } else { direction };
        self.shown.handle_bytes(handler, now_ns, direction, bytes, true);
    }

    pub(super) fn handle_fin<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        direction: Direction,
    ) {
        let direction = if self.reversed { direction.reverse() } else { direction };
        self.shown.handle_fin(handler, now_ns, direction);
    }

    /// Nothing more is shown; whether it can be forgotten.
    pub(super) fn end<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        why: Option<EndReason>,
    ) -> bool {
        self.shown.end(handler, now_ns, why);
        !self.shown.disposition.is_kill()
    }
}

impl<S: Default> Shown<S> {
    fn new(info: SessionInfo) -> Self {
        Self {
            info,
            state: S::default(),
            control: Control::default(),
            disposition: Disposition::Follow,
            waiting: Default::default(),
            has_begun: false,
            has_finished: [false; 2],
            has_ended: false,
        }
    }

    fn event<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        raise: impl FnOnce(&mut H, &mut Session<'_>, &mut S),
    ) {
        let mut session = Session { info: &self.info, control: &mut self.control, now_ns };
        raise(handler, &mut session, &mut self.state);
        if self.control.reset {
            let reason = EndReason::ResetByHandler;
            self.disposition.decide(Disposition::Kill { reset: true, reason });
        }
    }

    /// The next bytes of a direction. `is_other`: TLS does not begin with anything so far.
    fn handle_bytes<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        direction: Direction,
        bytes: &[u8],
        is_other: bool,
    ) {
        if self.has_ended {
            return;
        }
        // No server of TLS speaks while its client's hello is incomplete.
        let waits = self.waiting[direction.reverse().index()].is_empty();
        if !is_other && !self.has_begun && waits {
            self.waiting[direction.index()].extend_from_slice(bytes);
            return;
        }
        self.begin(handler, now_ns);
        self.show(handler, now_ns, direction, bytes);
    }

    /// What has waited is shown.
    fn begin<H: Handler<State = S>>(&mut self, handler: &mut H, now_ns: u64) {
        if core::mem::replace(&mut self.has_begun, true) {
            return;
        }
        self.event(handler, now_ns, H::cleartext_start);
        for direction in Direction::BOTH {
            let waiting = core::mem::take(&mut self.waiting[direction.index()]);
            self.show(handler, now_ns, direction, &waiting);
        }
    }

    /// Nothing more comes that could show what has waited to be TLS.
    fn begin_late<H: Handler<State = S>>(&mut self, handler: &mut H, now_ns: u64) {
        if self.waiting.iter().any(|waiting| !waiting.is_empty()) {
            self.begin(handler, now_ns);
        }
    }

    fn show<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        direction: Direction,
        bytes: &[u8],
    ) {
        let paused = &mut self.control.paused[direction.index()];
        let skipped = usize::try_from(*paused).unwrap_or(usize::MAX).min(bytes.len());
        if *paused != u64::MAX {
            *paused -= skipped as u64;
        }
        let bytes = &bytes[skipped..];
        if bytes.is_empty() || self.disposition.is_kill() {
            return;
        }
        self.event(handler, now_ns, |handler, session, state| {
            handler.cleartext(session, state, direction, bytes);
        });
    }

    /// Whether the application has asked for nothing more, in either direction.
    fn is_over(&self) -> bool {
        self.control.paused == [u64::MAX; 2] && !self.disposition.is_kill()
    }

    /// A FIN was reached.
    pub(super) fn handle_fin<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        direction: Direction,
    ) {
        if !self.waiting[direction.index()].is_empty() {
            self.begin(handler, now_ns);
        }
        if self.is_live() && !core::mem::replace(&mut self.has_finished[direction.index()], true) {
            self.event(handler, now_ns, |handler, session, state| {
                handler.cleartext_fin(session, state, direction);
            });
        }
    }

    fn raise<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        direction: Direction,
        error: SessionError,
    ) {
        if self.is_live() {
            self.event(handler, now_ns, |handler, session, state| {
                handler.error(session, state, direction, error);
            });
        }
    }

    fn end<H: Handler<State = S>>(&mut self, handler: &mut H, now_ns: u64, why: Option<EndReason>) {
        if self.has_begun && !core::mem::replace(&mut self.has_ended, true) {
            self.event(handler, now_ns, |handler, session, state| {
                handler.cleartext_end(session, state, why);
            });
        }
    }
}

impl<H: Handler> Engine<H> {
    /// Shows bytes of a connection in which TLS has not begun.
    pub(super) fn show_cleartext(&mut self, index: FlowIndex, direction: Direction, bytes: &[u8]) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let Payload::Undecided(recogniser, cleartext) = &mut flow.payload else {
            return;
        };
        if let Clear::Expected = cleartext {
            let info = SessionInfo::new(flow.id, flow.client, flow.server, flow.started_ns);
            *cleartext = Clear::Shown(Box::new(Shown::new(info)));
        }
        let Clear::Shown(shown) = cleartext else {
            return;
        };
        let (handler, now_ns) = (&mut self.handler, self.now_ns);
        shown.handle_bytes(handler, now_ns, direction, bytes, recogniser.is_excluded());
        if shown.is_over() {
            shown.end(handler, now_ns, None);
            if !shown.disposition.is_kill() {
                cleartext.forget();
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
        match core::mem::replace(clear, Clear::Ignored) {
            Clear::Shown(shown) if shown.has_begun => Some(Before { shown, reversed }),
            _ => None,
        }
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
        let Disposition::Kill { reset, reason } = shown.disposition else {
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
