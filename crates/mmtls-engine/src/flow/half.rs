//! One direction of a connection: sequence space, held frames, and what injecting needs.
//!
//! Refuses to hold bytes: frames stay with the I/O layer.

use std::collections::VecDeque;

use super::Assembler;
use crate::output::{HoldId, PortId};

/// Longest link header that is remembered: Ethernet with two VLAN tags.
const MAX_LINK_HEADER: usize = 22;

/// A held frame.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) id: HoldId,
    /// The contiguous stream end when it arrived. It may go once no unjudged record ends there
    /// or before.
    pub(crate) contiguous: u64,
}

/// One direction.
#[derive(Default)]
pub(crate) struct Half {
    /// Sequence number of stream offset 0: behind the SYN.
    pub(crate) initial: Option<u32>,
    pub(crate) assembler: Assembler,
    /// Stream offset up to which everything was forwarded: where the receiver stands, or will.
    pub(crate) released: u64,
    /// Stream offset of the FIN.
    pub(crate) fin: Option<u64>,
    pub(crate) fin_reported: bool,
    /// Acknowledgment number of the last segment sent in this direction.
    pub(crate) last_ack: Option<u32>,
    pub(crate) held: VecDeque<Held>,
    /// The stall whose deadline has been noted.
    pub(crate) stall_checked_ns: Option<u64>,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    port: Option<PortId>,
    link_header: [u8; MAX_LINK_HEADER],
    link_header_len: u8,
}

impl Half {
    /// Remembers where the direction's frames come in and what they begin with.
    pub(crate) fn remember_path(&mut self, port: PortId, link_header: &[u8]) {
        if self.port.is_none() && link_header.len() <= MAX_LINK_HEADER {
            self.port = Some(port);
            self.link_header[..link_header.len()].copy_from_slice(link_header);
            // At most 22.
            self.link_header_len = link_header.len() as u8;
        }
    }

    /// Port and link header of this direction, once a frame of it was seen.
    pub(crate) fn path(&self) -> Option<(PortId, &[u8])> {
        Some((self.port?, &self.link_header[..usize::from(self.link_header_len)]))
    }

    /// Stream offset of a sequence number, relative to what is expected next; negative for
    /// numbers before the stream. `None` before the SYN is known.
    pub(crate) fn offset_of(&self, sequence: u32) -> Option<i64> {
        let next = self.sequence_of(self.assembler.next())?;
        // Sequence arithmetic modulo 2^32 (RFC 9293, section 3.4).
        let delta = sequence.wrapping_sub(next) as i32;
        Some(self.assembler.next() as i64 + i64::from(delta))
    }

    /// Sequence number of a stream offset.
    pub(crate) fn sequence_of(&self, offset: u64) -> Option<u32> {
        // Truncation is the modulus.
        Some(self.initial?.wrapping_add(offset as u32))
    }

    pub(crate) fn fin_sequence(&self) -> Option<u32> {
        self.sequence_of(self.fin?)
    }

    /// Whether the receiver acknowledges bytes that have not been seen in order.
    pub(crate) fn is_acknowledged_beyond(&self, acknowledgment: u32) -> bool {
        let seen = self.assembler.next() as i64 + i64::from(self.fin_reached());
        self.offset_of(acknowledgment).is_some_and(|offset| offset > seen)
    }

    /// Whether bytes are known to be missing: later ones were seen, or the FIN, or the receiver
    /// acknowledged them.
    pub(crate) fn has_gap(&self, acknowledged: Option<u32>) -> bool {
        self.assembler.highest() > self.assembler.next()
            || self.fin.is_some_and(|fin| fin > self.assembler.next())
            || acknowledged.is_some_and(|it| self.is_acknowledged_beyond(it))
    }

    /// Everything up to the FIN has been seen.
    pub(crate) fn fin_reached(&self) -> bool {
        self.fin == Some(self.assembler.next())
    }
}
