//! What a pair of ports counts. Every frame that the ports do not pass on as they were asked to shows up in one of these
//! numbers.

/// Counters of both ports since they were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The left port.
    pub left: PortCounters,
    /// The right port.
    pub right: PortCounters,
}

impl std::ops::AddAssign for Counters {
    /// Those of another pair of ports.
    fn add_assign(&mut self, other: Self) {
        self.left += other.left;
        self.right += other.right;
    }
}

/// Counters of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Frames handed to the caller; a super-frame is one.
    pub received_frames: u64,
    /// Their bytes, VLAN tags included.
    pub received_bytes: u64,
    /// Of those frames, segmentation-offload super-frames.
    pub received_super_frames: u64,
    /// Of those frames, the ones whose outer VLAN tag was put back.
    pub received_vlan_frames: u64,
    /// Frames that came in by this port and that the kernel forwarded by itself: nobody was shown them.
    pub offloaded_frames: u64,
    /// Their bytes.
    pub offloaded_bytes: u64,
    /// Frames that came in by this port and that the guard forwarded, since nobody renewed its lease.
    pub guard_forwarded_frames: u64,
    /// Their bytes.
    pub guard_forwarded_bytes: u64,
    /// Frames that came in by this port and that the guard has forwarded since it was installed: before this bridge, too.
    pub guard_passed_frames: u64,
    /// Their bytes.
    pub guard_passed_bytes: u64,
    /// Received frames that were discarded, since the guard may have forwarded them.
    pub guard_discarded_frames: u64,
    /// Frames accepted by this port's interface for sending.
    pub sent_frames: u64,
    /// Their bytes; of frames that were joined, the headers count once.
    pub sent_bytes: u64,
    /// Of those frames, the ones that left as part of the frame before them ([`BridgeConfig::coalesce`](crate::af_packet::BridgeConfig::coalesce)).
    pub coalesced_frames: u64,
    /// Frames that the kernel lost because the receive buffer was full.
    pub kernel_dropped: u64,
    /// Received frames dropped because they exceed the receive buffer ([`MAX_FRAME_BYTES`](crate::af_packet::MAX_FRAME_BYTES)).
    pub truncated: u64,
    /// Received frames dropped because they are shorter than an Ethernet header.
    pub runts: u64,
    /// Received frames lost because the offload header cannot express them (GSO kinds other than TCP and UDP).
    pub unsupported_offload: u64,
    /// Frames not sent, by reason.
    pub send_errors: SendErrors,
    /// Waits for a congested interface.
    pub send_waits: u64,
}

impl std::ops::AddAssign for PortCounters {
    /// Those of the same port of another pair.
    fn add_assign(&mut self, other: Self) {
        self.received_frames += other.received_frames;
        self.received_bytes += other.received_bytes;
        self.received_super_frames += other.received_super_frames;
        self.received_vlan_frames += other.received_vlan_frames;
        self.offloaded_frames += other.offloaded_frames;
        self.offloaded_bytes += other.offloaded_bytes;
        self.guard_forwarded_frames += other.guard_forwarded_frames;
        self.guard_forwarded_bytes += other.guard_forwarded_bytes;
        self.guard_passed_frames += other.guard_passed_frames;
        self.guard_passed_bytes += other.guard_passed_bytes;
        self.guard_discarded_frames += other.guard_discarded_frames;
        self.sent_frames += other.sent_frames;
        self.sent_bytes += other.sent_bytes;
        self.coalesced_frames += other.coalesced_frames;
        self.kernel_dropped += other.kernel_dropped;
        self.truncated += other.truncated;
        self.runts += other.runts;
        self.unsupported_offload += other.unsupported_offload;
        self.send_errors.no_buffers += other.send_errors.no_buffers;
        self.send_errors.would_block += other.send_errors.would_block;
        self.send_errors.too_long += other.send_errors.too_long;
        self.send_errors.interface_down += other.send_errors.interface_down;
        self.send_errors.refused += other.send_errors.refused;
        self.send_waits += other.send_waits;
    }
}

/// Frames dropped at sending, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendErrors {
    /// The interface's queue was full (ENOBUFS) and stayed so.
    pub no_buffers: u64,
    /// The socket's send buffer was full (EAGAIN) and stayed so.
    pub would_block: u64,
    /// Larger than the interface's MTU and not a super-frame (EMSGSIZE).
    pub too_long: u64,
    /// The interface was down or gone.
    pub interface_down: u64,
    /// Refused for another reason, such as an offload header that does not fit the frame.
    pub refused: u64,
}

impl SendErrors {
    /// All frames dropped at sending.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.no_buffers + self.would_block + self.too_long + self.interface_down + self.refused
    }
}
