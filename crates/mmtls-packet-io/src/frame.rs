//! A frame on its way through a pair of ports, and the offload header that travels with it.
//!
//! Frames are read-only here: nothing in this module changes a byte of one. The only header it interprets is the
//! kernel's own `virtio_net_hdr`.

use std::sync::Arc;

/// One of the two ports of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Port {
    /// The first interface, by convention the clients' side.
    Left,
    /// The second interface, by convention the servers' side.
    Right,
}

impl Port {
    /// Both ports, left first.
    pub const BOTH: [Self; 2] = [Self::Left, Self::Right];

    /// The opposite port: where a frame received here leaves.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Left => 0,
            Self::Right => 1,
        }
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Left => "left",
            Self::Right => "right",
        })
    }
}

/// What to do with a frame that was just received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Action {
    /// Send it out of the other port.
    Forward,
    /// Forget it.
    Drop,
    /// The caller kept a copy ([`Frame::hold`]) and will release or drop that. Nothing is sent now.
    Taken,
}

/// The kernel's offload header (`struct virtio_net_hdr`, 10 bytes, host byte order) of one frame.
///
/// It is passed from the receiving to the sending socket, so that a segmentation-offload frame stays one frame and an
/// unfinished checksum is finished by whoever would have finished it without us. It changes only where frames are
/// joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`Self::NEEDS_CHECKSUM`], [`Self::DATA_VALID`].
    pub flags: u8,
    /// [`Self::GSO_NONE`] or the kind of super-frame. Bit 0x80 (ECN) may be added.
    pub gso_type: u8,
    /// Bytes of all headers, of a super-frame only. A hint.
    pub header_len: u16,
    /// Bytes of payload in each segment of a super-frame.
    pub gso_size: u16,
    /// Where checksumming starts, from the start of the Ethernet frame.
    pub checksum_start: u16,
    /// Where the checksum is to be put, from `checksum_start`.
    pub checksum_offset: u16,
}

impl VnetHeader {
    /// Bytes on the socket.
    pub const LEN: usize = 10;
    /// `flags`: the transport checksum field holds the pseudo-header sum only; do not verify it.
    pub const NEEDS_CHECKSUM: u8 = 1;
    /// `flags`: the checksum was verified by the receiving hardware.
    pub const DATA_VALID: u8 = 2;
    /// `gso_type`: one ordinary frame.
    pub const GSO_NONE: u8 = 0;
    const GSO_UDP: u8 = 3;
    const GSO_UDP_L4: u8 = 5;
    const GSO_ECN: u8 = 0x80;

    /// A super-frame of UDP datagrams, not of TCP segments.
    #[must_use]
    pub const fn is_of_datagrams(&self) -> bool {
        matches!(self.gso_type & !Self::GSO_ECN, Self::GSO_UDP | Self::GSO_UDP_L4)
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = bytes;
        Self {
            flags,
            gso_type,
            header_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            checksum_start: u16::from_ne_bytes([s0, s1]),
            checksum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; Self::LEN] {
        let [h0, h1] = self.header_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.checksum_start.to_ne_bytes();
        let [o0, o1] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// The header that fits the same frame with `bytes` more in front of its network header.
    pub(crate) fn shifted(self, bytes: u16) -> Self {
        let mut shifted = self;
        if self.flags & Self::NEEDS_CHECKSUM != 0 {
            shifted.checksum_start = self.checksum_start.saturating_add(bytes);
        }
        if self.gso_type != Self::GSO_NONE {
            shifted.header_len = self.header_len.saturating_add(bytes);
        }
        shifted
    }
}

/// A received frame, borrowed from the receive buffer while the caller decides about it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The Ethernet frame from the destination address on, without FCS, with its VLAN tags in place. Up to 64 KiB and
    /// headers when [`Self::gso_size`] says that it is a super-frame.
    pub bytes: &'a [u8],
    /// The memory that `bytes` are in, where cloning it keeps them: the next frames come into other memory then. Tens of
    /// kilobytes, however small the frame.
    pub memory: Option<&'a Arc<[u8]>>,
    /// Offload header, relative to `bytes`.
    pub vnet: VnetHeader,
    /// The port that it came in by.
    pub ingress: Port,
}

impl Frame<'_> {
    /// True when the transport checksum is not there yet (and must not be verified).
    #[must_use]
    pub const fn checksum_partial(&self) -> bool {
        self.vnet.flags & VnetHeader::NEEDS_CHECKSUM != 0
    }

    /// Bytes of payload per segment when this is a segmentation-offload super-frame.
    #[must_use]
    pub const fn gso_size(&self) -> Option<u16> {
        if self.vnet.gso_type == VnetHeader::GSO_NONE { None } else { Some(self.vnet.gso_size) }
    }

    /// Copies the frame, to be released later out of the port that it was headed to. Answer [`Action::Taken`] then.
    #[must_use]
    pub fn hold(&self) -> HeldFrame {
        HeldFrame::new(self.ingress.other(), self.vnet, self.bytes)
    }
}

/// An owned copy of a frame. Dropping it drops the frame.
#[derive(Debug)]
pub struct HeldFrame {
    egress: Port,
    /// Offload header and frame in one piece, as the socket wants them.
    packet: Vec<u8>,
}

impl HeldFrame {
    /// A frame of the caller's making, with an offload header that fits it: for frames whose checksum or segmentation
    /// is left to the kernel.
    #[must_use]
    pub fn new(egress: Port, vnet: VnetHeader, bytes: &[u8]) -> Self {
        let mut packet = Vec::with_capacity(VnetHeader::LEN + bytes.len());
        packet.extend_from_slice(&vnet.to_bytes());
        packet.extend_from_slice(bytes);
        Self { egress, packet }
    }

    /// The port that it is headed to.
    #[must_use]
    pub const fn egress(&self) -> Port {
        self.egress
    }

    /// The Ethernet frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.packet.get(VnetHeader::LEN..).unwrap_or_default()
    }

    pub(crate) fn into_packet(self) -> Vec<u8> {
        self.packet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_offload_header_round_trip() {
        let header = VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            gso_type: 1,
            header_len: 66,
            gso_size: 1448,
            checksum_start: 34,
            checksum_offset: 16,
        };
        assert_eq!(VnetHeader::from_bytes(header.to_bytes()), header);
    }

    #[test]
    fn accepts_shift_only_of_fields_in_use() {
        assert_eq!(VnetHeader::default().shifted(4), VnetHeader::default());
        let partial = VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            checksum_start: 34,
            checksum_offset: 16,
            ..Default::default()
        };
        assert_eq!(partial.shifted(4).checksum_start, 38);
        assert_eq!(partial.shifted(4).checksum_offset, 16);
        assert_eq!(partial.shifted(4).header_len, 0);
        let gso = VnetHeader { gso_type: 4, header_len: 86, ..Default::default() };
        assert_eq!(gso.shifted(4).header_len, 90);
    }

    #[test]
    fn accepts_hold_towards_the_other_port() {
        let frame = Frame {
            bytes: &[1, 2, 3],
            memory: None,
            vnet: VnetHeader::default(),
            ingress: Port::Left,
        };
        let held = frame.hold();
        assert_eq!(held.egress(), Port::Right);
        assert_eq!(held.bytes(), &[1, 2, 3]);
    }
}
