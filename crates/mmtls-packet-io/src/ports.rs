//! What a worker needs of a back end: a pair of ports that frames come in by and leave by.
//!
//! [`af_packet::Bridge`](crate::af_packet::Bridge) and [`MemoryPorts`](crate::memory::MemoryPorts) implement it. A worker
//! is generic over [`Ports`], so that nothing is looked up for a frame; opening a back end is that back end's own
//! affair. What every back end promises:
//!
//! * Frames leave a port in the order in which they were forwarded, released or injected, whichever of the three it was.
//! * What is sent while a frame is being decided leaves before that frame.
//! * What is sent between two calls may wait until the next [`Ports::receive_with`] or [`Ports::wait`], and is lost when
//!   the ports are dropped before one of them.
//! * A frame that a port does not take is dropped and counted, never kept for later.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::{Action, Counters, Error, Forwarded, Frame, HeldFrame, OffloadFlow, Port};

/// Both ports as places to send to.
pub trait Outbox {
    /// Releases a held frame out of the port that it is headed to ([`HeldFrame::egress`]), behind all that left by that
    /// port so far.
    fn send_held(&mut self, held: HeldFrame);

    /// Sends a frame of the caller's making, checksums complete, behind all that left by the port so far.
    ///
    /// # Errors
    /// [`Error::InvalidFrame`] when it is shorter than an Ethernet header or longer than
    /// [`MAX_FRAME_BYTES`](crate::af_packet::MAX_FRAME_BYTES).
    fn inject(&mut self, egress: Port, ethernet: &[u8]) -> Result<(), Error>;

    /// The frame that is being decided, where it is forwarded, leaves in one with others only up to so many bytes of payload.
    /// Without this, a back end that joins frames makes them as long as an interface takes, which costs least.
    fn limit_coalescing(&mut self, _bytes: usize) {}

    /// Leaves a connection to the back end, which forwards its plain segments without showing them as soon as it can do so
    /// without overtaking anything, or never. To ask again does no harm: directions that are not forwarded yet begin where is
    /// said last. False where it has no room for such a connection.
    fn offload(&mut self, _flow: &OffloadFlow) -> bool {
        false
    }

    /// Takes a connection back: from now on everything is shown again. Says what was not.
    fn take_back(&mut self, _flow: &OffloadFlow) -> [Forwarded; 2] {
        Default::default()
    }

    /// Networks that the back end was opened to leave alone ([`BridgeConfig::left_alone`](crate::af_packet::BridgeConfig)) are
    /// no longer: from now on everything of them is shown.
    fn show_again(&mut self, _networks: &[(IpAddr, u8)]) {}

    /// Whether [`Self::offload`] may do something.
    fn offloads(&self) -> bool {
        false
    }
}

/// A pair of ports that one thread moves frames between.
pub trait Ports {
    /// Where frames are sent to.
    type Outbox: Outbox;

    /// Receives one batch from a port without blocking, calls `decide` once per frame in order of arrival, and sends
    /// the forwarded frames out of the other port before it returns. Returns how many frames came, 0 when none waited.
    /// A frame that is [`Action::Forward`]ed leaves unchanged, its offload header included.
    ///
    /// # Errors
    /// [`Error::InterfaceDown`], after which the ports can still be used; [`Error::InterfaceGone`], [`Error::System`].
    /// They are of the receiving port, or of a sending port after the whole batch was decided.
    fn receive_with<F>(&mut self, port: Port, decide: F) -> Result<usize, Error>
    where
        F: FnMut(&Frame<'_>, &mut Self::Outbox) -> Action;

    /// Sends frames that no received frame causes.
    fn outbox(&mut self) -> &mut Self::Outbox;

    /// Sends what is still queued, then waits until a port has frames, `wake` becomes readable, or `timeout` passes
    /// (`None`: for ever). May also return early with nothing ready.
    ///
    /// # Errors
    /// As for [`Self::receive_with`].
    fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<Ready, Error>;

    /// To be called before each turn, and at least whenever [`Self::wait`] returns: keeps the kernel from forwarding in this
    /// thread's place, where it would do that for one that is silent ([`guard`](crate::guard)). Unless the lease is
    /// [held](Lease::Held), what comes is the kernel's, and nothing is shown.
    ///
    /// # Errors
    /// [`Error::Guard`] when another monitor has taken over; as for [`Self::receive_with`].
    fn renew(&mut self) -> Result<Lease, Error> {
        Ok(Lease::Held)
    }

    /// How long this thread may take from one call of [`Self::renew`] to the next, where the kernel would forward in its place then.
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// Leaves everything to the kernel from now on, where it forwards in place of one that is silent.
    fn release(&mut self) {}

    /// Whether both ports still exist, where the other calls would not say so.
    ///
    /// # Errors
    /// [`Error::InterfaceGone`], [`Error::InterfaceDown`].
    fn check(&self) -> Result<(), Error>;

    /// Whether frames can come and go by a port, where the other calls would not say so. That its interface is gone is for
    /// [`Self::check`] to say.
    ///
    /// # Errors
    /// [`Error::InterfaceDown`], [`Error::NoCarrier`].
    fn check_link(&self, port: Port) -> Result<(), Error>;

    /// Counters since opening.
    fn counters(&self) -> Counters;
}

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Whoever has these ports: every frame that is shown from now on follows the one that was shown last.
    Held,
    /// Not any more: frames may have been forwarded that were not shown, and some are lost. Said once.
    Lost,
    /// The kernel, still.
    Waiting,
    /// The kernel, still: more has come than could be discarded of what it has forwarded.
    Flooded,
}

/// What [`Ports::wait`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The left port has frames (or an error to report).
    pub left: bool,
    /// The right port has frames (or an error to report).
    pub right: bool,
    /// The caller's descriptor fired.
    pub woken: bool,
}

impl Ready {
    /// Whether a port has frames.
    #[must_use]
    pub const fn port(self, port: Port) -> bool {
        match port {
            Port::Left => self.left,
            Port::Right => self.right,
        }
    }
}
