//! What a connection carries.

use core::mem;

use super::shown::{Before, Clear};
use crate::follow::{RestingSession, TlsSession};
use crate::recognition::{Recogniser, Watch};
use crate::session::{Disposition, SessionInfo};
use crate::tcp::{self, Carried, Phase, TcpDirection};
use crate::tls::Direction;

/// A connection of this engine.
pub(super) type Flow<S> = tcp::Flow<Payload<S>>;

/// What a connection carries.
pub(super) enum Payload<S> {
    /// It cannot be told yet; where connections in the clear are shown, also what is known not to be TLS so
    /// far.
    Undecided(Recogniser, Clear<S>),
    /// TLS, followed or not.
    Tls(Box<Tls<S>>),
    /// The same while nothing comes. [`FlowTable::get`](tcp::FlowTable::get) wakes it, so that only who looks at all flows meets one.
    Resting(Box<Resting<S>>),
    /// Something that is not followed.
    Plain(Box<Watch>),
}

/// A session, and what the application keeps of it.
pub(super) struct Tls<S> {
    pub(super) session: TlsSession,
    pub(super) state: S,
    /// What was in front of it.
    pub(super) before: Option<Before<S>>,
}

/// A session that is idle, and what the application keeps of it.
pub(super) struct Resting<S> {
    pub(super) session: RestingSession,
    pub(super) state: S,
}

impl<S> Default for Payload<S> {
    fn default() -> Self {
        Self::Undecided(Recogniser::default(), Clear::default())
    }
}

impl<S> Payload<S> {
    /// What has been decided about the connection's packets, as far as that depends on what it carries.
    pub(super) fn disposition(&self) -> Disposition {
        match self {
            Self::Tls(tls) => match &tls.before {
                Some(before) if before.shown.disposition().is_kill() => before.shown.disposition(),
                _ => tls.session.disposition(),
            },
            Self::Resting(_) => RestingSession::DISPOSITION,
            Self::Undecided(_, clear) => clear.disposition(),
            Self::Plain(_) => Disposition::Follow,
        }
    }

    /// The client random by which its session's keys are found.
    pub(super) fn key_random(&self) -> Option<[u8; 32]> {
        match self {
            Self::Tls(tls) => tls.session.key_random(),
            Self::Resting(resting) => resting.session.key_random(),
            Self::Undecided(..) | Self::Plain(_) => None,
        }
    }

    /// Whether records wait for keys.
    pub(super) fn is_stalled(&self) -> bool {
        match self {
            Self::Tls(tls) => Direction::BOTH.into_iter().any(|it| tls.session.is_stalled(it)),
            Self::Resting(_) | Self::Undecided(..) | Self::Plain(_) => false,
        }
    }

    /// Whether it counts among those of which it is not known what they carry: nothing of it is shown.
    pub(super) fn is_undecided(&self) -> bool {
        matches!(self, Self::Undecided(_, clear) if !clear.is_shown())
    }

    /// The connection is idle, and its session with it. `flow`: what the flow says of the session.
    pub(super) fn rest(&mut self, flow: &SessionInfo) {
        if let Self::Tls(tls) = self
            && tls.before.is_none()
            && let Some(session) = tls.session.take_resting(flow)
            && let Self::Tls(tls) = mem::take(self)
        {
            let Tls { state, .. } = *tls;
            *self = Self::Resting(Box::new(Resting { session, state }));
        }
    }
}

impl<S> Carried for Payload<S> {
    fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Resting(_))
    }

    fn is_resting(&self) -> bool {
        matches!(self, Self::Resting(_))
    }

    fn wake(self, flow: SessionInfo) -> Self {
        match self {
            Self::Resting(resting) => {
                let Resting { session, state } = *resting;
                Self::Tls(Box::new(Tls { session: session.wake(flow), state, before: None }))
            }
            awake => awake,
        }
    }

    fn partial(&self, direction: Direction, len: usize) -> &[u8] {
        match self {
            Self::Tls(tls) => tls.session.partial(direction, len),
            Self::Resting(_) | Self::Undecided(..) | Self::Plain(_) => &[],
        }
    }
}

/// Whether the flow's bytes are looked at in order.
pub(super) fn is_followed<S>(flow: &Flow<S>) -> bool {
    match &flow.payload {
        Payload::Plain(_) => false,
        Payload::Undecided(..) | Payload::Resting(_) => true,
        Payload::Tls(tls) => tls.session.disposition() != Disposition::Bypass,
    }
}

/// Whether the flow's bytes are looked at, be it loosely: inline, what carries another protocol is, too.
pub(super) fn is_watched<S>(flow: &Flow<S>, inline: bool) -> bool {
    is_followed(flow) || inline && !flow.is_exempt() && matches!(flow.payload, Payload::Plain(_))
}

/// Whether a connection is over for both ends, and has not ended here because what was delivered waits for its keys.
pub(super) fn waits_for_keys_only<S: Default>(flow: &Flow<S>) -> bool {
    let is_closed = flow.phase == Phase::Open
        && flow.halves.iter().all(TcpDirection::fin_reached)
        && !flow.payload.is_stalled();
    is_closed || flow.waits_behind_reset()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million of them are open at a time.
    #[test]
    fn accepts_no_more_memory_for_a_connection_than_is_told() {
        assert!(size_of::<Flow<()>>() <= 464, "{}", size_of::<Flow<()>>());
        assert!(size_of::<Tls<()>>() <= 864, "{}", size_of::<Tls<()>>());
        assert!(size_of::<Resting<()>>() <= 240, "{}", size_of::<Resting<()>>());
    }
}
