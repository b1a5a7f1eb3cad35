//! TCP segments around stream bytes, and a small seeded generator for choosing them.
//!
//! Refuses to be random: the same seed gives the same packets.

use std::net::{IpAddr, SocketAddr};

use mmtls_engine::tls::Direction;

use crate::synthesis::side;

/// Reproducible choices.
#[derive(Clone)]
pub struct Seeded(fastrand::Rng);

impl Seeded {
    /// A generator; any seed will do.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number below `bound` (0 for bound 0).
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { self.0.usize(..bound) }
    }

    /// True once in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A TCP connection between two addresses of the same family.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// Sends the SYN.
    pub client: SocketAddr,
    /// Answers it.
    pub server: SocketAddr,
    /// Initial sequence numbers, client first.
    pub initial: [u32; 2],
}

/// TCP control bits.
pub mod flag {
    /// No more data.
    pub const FIN: u8 = 1;
    /// Synchronise.
    pub const SYN: u8 = 2;
    /// Reset.
    pub const RST: u8 = 4;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 16;
    /// There are urgent data.
    pub const URG: u8 = 32;
}

impl Endpoints {
    /// An Ethernet frame that carries `payload` at a stream offset and acknowledges the other
    /// stream up to `acknowledged`; offset -1 is the SYN's place. The TCP checksum is zero.
    #[must_use]
    pub fn frame(
        &self,
        direction: Direction,
        offset: i64,
        acknowledged: u64,
        flags: u8,
        payload: &[u8],
    ) -> Vec<u8> {
        let from = side(direction);
        let (source, destination) = match direction {
            Direction::ClientToServer => (self.client, self.server),
            Direction::ServerToClient => (self.server, self.client),
        };
        // The modulus of sequence numbers.
        let sequence = self.initial[from].wrapping_add(1).wrapping_add(offset as u32);
        let acknowledgment =
            self.initial[1 - from].wrapping_add(1).wrapping_add(acknowledged as u32);
        let mut tcp = Vec::with_capacity(20 + payload.len());
        tcp.extend_from_slice(&source.port().to_be_bytes());
        tcp.extend_from_slice(&destination.port().to_be_bytes());
        tcp.extend_from_slice(&sequence.to_be_bytes());
        tcp.extend_from_slice(&acknowledgment.to_be_bytes());
        // A SYN announces a window scale of 7.
        let options: &[u8] = if flags & flag::SYN != 0 { &[3, 3, 7, 0] } else { &[] };
        let header_len = if options.is_empty() { 5 << 4 } else { 6 << 4 };
        tcp.extend_from_slice(&[header_len, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend_from_slice(options);
        tcp.extend_from_slice(payload);
        let mut frame = match direction {
            Direction::ClientToServer => [[2; 6], [1; 6]].concat(),
            Direction::ServerToClient => [[1; 6], [2; 6]].concat(),
        };
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                // A length that does not fit says 0, as a super-frame's may.
                let total = u16::try_from(20 + tcp.len()).unwrap_or(0).to_be_bytes();
                frame.extend_from_slice(&[8, 0, 0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 6]);
                frame.extend_from_slice(&[0, 0]);
                frame.extend_from_slice(&source.octets());
                frame.extend_from_slice(&destination.octets());
                let at = frame.len() - 20;
                let sum = header_checksum(&frame[at..]);
                frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let payload = u16::try_from(tcp.len()).unwrap_or(0).to_be_bytes();
                frame
                    .extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, payload[0], payload[1], 6, 64]);
                frame.extend_from_slice(&source.octets());
                frame.extend_from_slice(&destination.octets());
            }
            _ => {}
        }
        frame.extend_from_slice(&tcp);
        frame
    }
}

/// The IPv4 header checksum (RFC 791) of a header whose checksum field is zero.
fn header_checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let mut sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Folded to 16 bits above.
    !(sum as u16)
}

/// Whether an Ethernet frame is a RST.
pub fn is_reset(frame: &[u8]) -> bool {
    crate::wire::Segment::of(frame).is_some_and(|it| it.flags & flag::RST != 0)
}
