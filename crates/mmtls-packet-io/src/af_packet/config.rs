//! How a bridge is to be opened, and the defaults. Refuses nothing: what is senseless is found at opening.

use std::net::IpAddr;

/// Whether the kernel forwards what it is asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloading {
    /// No.
    Off,
    /// Where both interfaces are cards. Frames of software (veth, tap, a virtual machine's interface) may come with a checksum that is
    /// still to be finished, at a place that their sender chooses: user space drops those, and the kernel would write there.
    OfCards,
    /// Of all interfaces: what is behind them can be trusted not to do that.
    Always,
}

/// How to open a [`Bridge`](super::Bridge).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeConfig {
    /// Name of the interface of the left port.
    pub left: String,
    /// Name of the interface of the right port; only a passive one may have none.
    pub right: Option<String>,
    /// Only look at what comes in, and forward nothing: somebody else forwards the frames (a bridge or router of
    /// the kernel), or they are copies that a switch sends here. All frames are shown as the left port's, in the order in
    /// which they came.
    pub passive: bool,
    /// Of a passive one, the interface that injected frames leave by; without it they go nowhere.
    pub reset_interface: Option<String>,
    /// Frames received and sent per system call, 1 to 1024. Each has a 66 KiB buffer; at most 1024 more are kept for
    /// those that the caller has not given back.
    pub batch: usize,
    /// Receive and send buffer of each socket, bytes. The usual default of 212 KB holds six super-frames.
    pub socket_buffer_bytes: usize,
    /// Receive frames for other stations' addresses too. A bridge needs that.
    pub promiscuous: bool,
    /// Let consecutive TCP segments of a connection leave as one super-frame when they leave together and their
    /// checksum is left to the kernel. No byte of TCP payload changes, nor does its sequence number; segments end
    /// elsewhere. Where round trips are long, receivers then open their windows more slowly, unless
    /// [`limit_coalescing`](crate::Outbox::limit_coalescing) says how much of it they bear.
    pub coalesce: bool,
    /// Let the kernel forward what it is asked to ([`Outbox::offload`](crate::Outbox::offload)), where it can: Linux 6.6,
    /// CAP_BPF and CAP_NET_ADMIN, and clang when this crate was built. Where it cannot, a [`Warning`](super::Warning) says why.
    pub offload: Offloading,
    /// Let the kernel forward everything whenever this bridge does not: by the [guard](crate::guard) of the two interfaces, which
    /// is installed where it is not there. Without it nothing is forwarded then, and a guard that is there is an error.
    pub fails_open: bool,
    /// Of a [check](super::check): another bridge may still hold the guard's lease, and will have let go when this one is opened.
    pub takes_over: bool,
    /// Addresses, and how many of their bits count, whose plain TCP segments the kernel is to forward in any case.
    pub left_alone: Vec<(IpAddr, u8)>,
}

impl BridgeConfig {
    /// The defaults: batches of 32, buffers of 64 MiB, promiscuous, coalescing, what nobody reads left to the kernel.
    #[must_use]
    pub fn new(left: impl Into<String>, right: impl Into<String>) -> Self {
        Self {
            left: left.into(),
            right: Some(right.into()),
            passive: false,
            reset_interface: None,
            batch: 32,
            socket_buffer_bytes: 64 << 20,
            promiscuous: true,
            coalesce: true,
            offload: Offloading::OfCards,
            fails_open: false,
            takes_over: false,
            left_alone: Vec::new(),
        }
    }
}
