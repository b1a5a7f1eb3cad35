//! What an application sees of a connection without TLS, and what it asks for meanwhile.
//!
//! Refuses to know the connection: it is told what came.

use crate::session::{
    Control, Disposition, EndReason, Handler, Session, SessionError, SessionInfo,
};
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
            Self::Shown(shown) => shown.disposition(),
            Self::Expected | Self::Ignored => Disposition::Follow,
        }
    }

    /// Nothing more is shown: nothing of it is kept.
    pub(super) fn forget(&mut self) {
        *self = Self::Ignored;
    }
}

impl<S> Shown<S> {
    /// What the application keeps of it.
    pub(super) fn state(&self) -> &S {
        &self.state
    }

    /// The same, to change it.
    pub(super) fn state_mut(&mut self) -> &mut S {
        &mut self.state
    }

    pub(super) fn disposition(&self) -> Disposition {
        match self.control.reset {
            true => Disposition::Kill { reset: true, reason: EndReason::ResetByHandler },
            false => Disposition::Follow,
        }
    }

    /// Events may be raised.
    fn is_live(&self) -> bool {
        self.has_begun && !self.has_ended && !self.control.reset
    }
}

impl<S> Before<S> {
    /// `None` where nothing was shown so far.
    pub(super) fn new(clear: Clear<S>, reversed: bool) -> Option<Self> {
        match clear {
            Clear::Shown(shown) if shown.has_begun => Some(Self { shown, reversed }),
            _ => None,
        }
    }

    /// A direction of the session, as it was called before.
    pub(super) fn direction(&self, direction: Direction) -> Direction {
        if self.reversed { direction.reverse() } else { direction }
    }
}

impl<S: Default> Shown<S> {
    pub(super) fn new(info: SessionInfo) -> Self {
        Self {
            info,
            state: S::default(),
            control: Control::default(),
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
    }

    /// The next bytes of a direction. `is_other`: TLS does not begin with anything so far.
    pub(super) fn handle_bytes<H: Handler<State = S>>(
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
    pub(super) fn begin_late<H: Handler<State = S>>(&mut self, handler: &mut H, now_ns: u64) {
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
        if bytes.is_empty() || self.control.reset {
            return;
        }
        self.event(handler, now_ns, |handler, session, state| {
            handler.cleartext(session, state, direction, bytes);
        });
    }

    /// Whether the application has asked for nothing more, in either direction.
    pub(super) fn is_over(&self) -> bool {
        self.control.paused == [u64::MAX; 2] && !self.control.reset
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

    pub(super) fn raise<H: Handler<State = S>>(
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

    pub(super) fn end<H: Handler<State = S>>(
        &mut self,
        handler: &mut H,
        now_ns: u64,
        why: Option<EndReason>,
    ) {
        if self.has_begun && !core::mem::replace(&mut self.has_ended, true) {
            self.event(handler, now_ns, |handler, session, state| {
                handler.cleartext_end(session, state, why);
            });
        }
    }
}
