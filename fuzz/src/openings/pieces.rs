//! IP fragments: how a packet is cut, what receivers put together, and what must never leave the
//! engine.
//!
//! Refuses fragments that nobody would cut from a whole packet, but for those that are missing, changed
//! or cut otherwise: `tests/fragments.rs` of the engine has the others.

use super::SECOND;
use core::net::SocketAddr;

use super::packet::Packet;

/// Link header; its IPv4 header.
const LINK: usize = 14;
const IPV4: usize = 20;

/// As long as any receiver waits for the rest (RFC 8200, section 4.5; Linux half of that).
const WAIT_NS: u64 = 60 * SECOND;

/// As many as an operation makes at most.
pub(super) const MAX_PIECES: usize = 8;

/// A part of a packet, by places behind its IP header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) identification: u16,
    start: usize,
    end: usize,
    more: bool,
}

/// Cuts a packet of so many bytes behind its IP header.
pub(super) fn cut(len: usize, size: usize, identification: u16) -> Vec<Piece> {
    let size = size.max(len.div_ceil(MAX_PIECES)).next_multiple_of(8);
    let piece = |start: usize| {
        let end = (start + size).min(len);
        Piece { identification, start, end, more: end < len }
    };
    (0..len).step_by(size).map(piece).collect()
}

/// A packet as a frame with the checksum of its TCP, without which nobody takes one in pieces.
pub(super) fn whole(packet: &Packet, ends: [SocketAddr; 2]) -> Vec<u8> {
    let mut frame = packet.frame(ends);
    // Addresses; protocol and length.
    let pseudo = [&frame[LINK + 12..LINK + IPV4], &[0, 6], &(len(&frame) as u16).to_be_bytes()];
    let sum = checksum(&[&pseudo.concat(), &frame[LINK + IPV4..]]);
    frame[LINK + IPV4 + 16..LINK + IPV4 + 18].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// RFC 1071; every part but the last is even.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let word = |it: &[u8]| u32::from(it[0]) << 8 | it.get(1).map_or(0, |it| u32::from(*it));
    let mut sum: u32 = words.map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // Folded to 16 bits above.
    !(sum as u16)
}

/// Length of a frame's packet behind its IP header.
pub(super) fn len(frame: &[u8]) -> usize {
    frame.len() - LINK - IPV4
}

impl Piece {
    /// Whether it is not the whole packet.
    pub(super) fn is_part(&self) -> bool {
        self.more || self.start > 0
    }

    /// The frame of this part of a frame's packet.
    pub(super) fn frame(&self, whole: &[u8]) -> Vec<u8> {
        let mut frame = whole[..LINK + IPV4].to_vec();
        // Less than a packet, in eights.
        let len = (IPV4 + self.end - self.start) as u16;
        let place = (self.start / 8) as u16 | if self.more { 0x2000 } else { 0 };
        frame[LINK + 2..LINK + 4].copy_from_slice(&len.to_be_bytes());
        frame[LINK + 4..LINK + 6].copy_from_slice(&self.identification.to_be_bytes());
        frame[LINK + 6..LINK + 8].copy_from_slice(&place.to_be_bytes());
        frame[LINK + 10..LINK + 12].fill(0);
        let sum = checksum(&[&frame[LINK..]]);
        frame[LINK + 10..LINK + 12].copy_from_slice(&sum.to_be_bytes());
        frame.extend_from_slice(&whole[LINK + IPV4..][self.start..self.end]);
        frame
    }
}

/// A part that has left the engine.
struct Left {
    from: usize,
    piece: Piece,
    at_ns: u64,
    /// The call of the engine that let it go.
    call: u64,
    bytes: Vec<u8>,
    /// Its receiver has it, and has not used it.
    waits: bool,
}

/// Parts that have left the engine.
#[derive(Default)]
pub(super) struct Pieces {
    left: Vec<Left>,
}

impl Pieces {
    /// A part leaves the engine. Whether it goes with all that its receiver may know under the same
    /// identification: those left together, and do not overlap.
    pub(super) fn leave(
        &mut self,
        from: usize,
        piece: Piece,
        whole: &[u8],
        (at_ns, call): (u64, u64),
        dies: bool,
    ) -> bool {
        self.left.retain(|it| it.at_ns + WAIT_NS > at_ns);
        let own = |it: &&Left| (it.from, it.piece.identification) == (from, piece.identification);
        let fits = self.left.iter().filter(own).all(|it| {
            it.call == call && (it.piece.end <= piece.start || piece.end <= it.piece.start)
        });
        let bytes = whole[LINK + IPV4..][piece.start..piece.end].to_vec();
        self.left.push(Left { from, piece, at_ns, call, bytes, waits: !dies });
        fits
    }

    /// What a receiver can put together now; the first copy of a byte counts.
    pub(super) fn take(&mut self, from: usize, identification: u16) -> Option<Packet> {
        let own =
            |it: &Left| it.waits && (it.from, it.piece.identification) == (from, identification);
        let len = self.left.iter().find(|it| own(it) && !it.piece.more)?.piece.end;
        let mut packet = vec![None; len];
        for it in self.left.iter().filter(|it| own(it)) {
            for (at, byte) in (it.piece.start..it.piece.end.min(len)).zip(&it.bytes) {
                packet[at].get_or_insert(*byte);
            }
        }
        let packet: Vec<u8> = packet.into_iter().collect::<Option<_>>()?;
        self.left.iter_mut().filter(|it| own(it)).for_each(|it| it.waits = false);
        Packet::from_tcp(from, &packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_parts_in_any_order() {
        let addresses = [([10, 0, 0, 2], 40_000).into(), ([10, 0, 0, 3], 443).into()];
        let mut packet = Packet::new(0, 7, 9, super::super::packet::ACK);
        packet.data = (0..100).collect();
        let whole = packet.frame(addresses);
        let mut pieces = Pieces::default();
        let parts = cut(len(&whole), 16, 3);
        assert_eq!(parts.len(), 8);
        for (n, piece) in parts.iter().rev().enumerate() {
            assert!(pieces.take(0, 3).is_none(), "{n}");
            assert!(pieces.leave(0, *piece, &whole, (1, 1), false));
        }
        assert_eq!(pieces.take(0, 3), Some(packet));
        assert!(pieces.take(0, 3).is_none());
        assert!(!pieces.leave(0, parts[0], &whole, (2, 2), false), "later");
        assert!(pieces.leave(0, parts[0], &whole, (WAIT_NS + 2, 2), false), "much later");
        assert!(!pieces.leave(0, parts[0], &whole, (WAIT_NS + 2, 2), false), "a copy");
    }
}
