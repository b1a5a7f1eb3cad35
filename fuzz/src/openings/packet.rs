//! TCP segments between the two ends of [`super`], and the frames that carry them.
//!
//! Refuses every option but the window scale: the engine looks at no other.

use core::net::SocketAddr;

use mmtls_engine::tls::Direction;
use mmtls_testkit::segments::{Endpoints, flag};

pub(super) const SYN: u8 = flag::SYN;
pub(super) const ACK: u8 = flag::ACK;
pub(super) const RST: u8 = flag::RST;
pub(super) const FIN: u8 = flag::FIN;

/// Link header, IPv4 header.
const TCP_AT: usize = 14 + 20;

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    /// In whose name: 0 or 1, the side of the engine on which that end is.
    pub(super) from: usize,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Only on a SYN.
    pub(super) scale: Option<u8>,
    pub(super) data: Vec<u8>,
    /// For those of a model: the number of its connection and the place of the data in its stream.
    pub(super) place: Option<(u32, usize)>,
}

impl Packet {
    pub(super) fn new(from: usize, sequence: u32, acknowledgment: u32, flags: u8) -> Self {
        let (window, scale, data, place) = (u16::MAX, None, Vec::new(), None);
        Self { from, sequence, acknowledgment, flags, window, scale, data, place }
    }

    pub(super) fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Numbers that it takes: data, SYN and FIN.
    pub(super) fn len(&self) -> u32 {
        let control = u32::from(self.has(SYN)) + u32::from(self.has(FIN));
        // Less than a packet.
        self.data.len() as u32 + control
    }

    /// The number behind it.
    pub(super) fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.len())
    }

    /// As a frame between these two addresses, that of side 0 first.
    pub(super) fn frame(&self, ends: [SocketAddr; 2]) -> Vec<u8> {
        let endpoints = Endpoints { client: ends[0], server: ends[1], initial: [u32::MAX; 2] };
        let mut frame = endpoints.frame(
            Direction::BOTH[self.from],
            i64::from(self.sequence),
            u64::from(self.acknowledgment),
            self.flags,
            &self.data,
        );
        frame[TCP_AT + 14..TCP_AT + 16].copy_from_slice(&self.window.to_be_bytes());
        if self.has(SYN) {
            let option = self.scale.map_or([1, 1, 1, 0], |scale| [3, 3, scale, 0]);
            frame[TCP_AT + 20..TCP_AT + 24].copy_from_slice(&option);
        }
        frame
    }

    /// As a receiver reads it behind an IP header, if it can.
    pub(super) fn from_tcp(from: usize, tcp: &[u8]) -> Option<Self> {
        let (header, _) = tcp.split_first_chunk::<20>()?;
        let number = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let len = usize::from(header[12] >> 4) * 4;
        let options = tcp.get(20..len)?;
        let mut packet = Self::new(from, number(4), number(8), header[13]);
        packet.window = u16::from_be_bytes([header[14], header[15]]);
        if let ([3, 3, scale, ..], true) = (options, packet.has(SYN)) {
            packet.scale = Some(*scale);
        }
        packet.data = tcp[len..].to_vec();
        Some(packet)
    }

    /// What the engine has injected: a RST, or an empty segment in an end's name.
    pub(super) fn parse(frame: &[u8], ends: [SocketAddr; 2]) -> Self {
        let tcp: &[u8; 20] = frame[TCP_AT..].first_chunk().expect("a TCP header");
        let port = u16::from_be_bytes([tcp[0], tcp[1]]);
        let number =
            |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let from = usize::from(port == ends[1].port());
        let is_bare = frame.len() == TCP_AT + 20;
        assert!(is_bare && [RST | ACK, ACK].contains(&tcp[13]), "{:#x}", tcp[13]);
        Self::new(from, number(4), number(8), tcp[13])
    }
}

/// Whether `one` is before `other`, modulo 2^32 (RFC 9293, section 3.4).
pub(super) fn before(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() < 0
}
