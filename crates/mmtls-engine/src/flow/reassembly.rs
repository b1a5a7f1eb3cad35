//! Bounded reassembly of one direction of a TCP connection, by ranges.
//!
//! Refuses to keep bytes beyond its cap and bytes that contradict buffered ones.
//!
//! ```text
//!   0 ............ next                     out-of-order pieces
//!   |── delivered ──|        hole      |████|   hole   |████████|
//! ```
//! Invariants: pieces do not overlap, none is empty, and every piece starts after `next`.

use std::collections::BTreeMap;

/// What a piece costs beyond its bytes: tree node and allocation.
const PIECE_OVERHEAD: usize = 96;

/// Answer to an inserted segment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Insert<'a> {
    /// Every byte was delivered before.
    Duplicate,
    /// These bytes start at `next`: deliver them, then call [`Assembler::advance`].
    InOrder(&'a [u8]),
    /// Kept until the hole before it is filled.
    OutOfOrder,
    /// Differs from bytes that are buffered: nothing was kept.
    Conflict,
    /// The cap is reached: nothing was kept.
    Full,
}

/// The reassembly state of one direction.
#[derive(Default)]
pub(crate) struct Assembler {
    /// Stream offset of the next in-order byte.
    next: u64,
    pieces: BTreeMap<u64, Vec<u8>>,
    buffered: usize,
}

impl Assembler {
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes charged against the cap.
    pub(crate) fn buffered(&self) -> usize {
        self.buffered
    }

    /// The offset behind the last byte buffered, `next` when nothing is.
    pub(crate) fn highest(&self) -> u64 {
        self.pieces
            .last_key_value()
            .map_or(self.next, |(&offset, piece)| offset + piece.len() as u64)
    }

    /// Offers the bytes at a stream offset; `room` is what may still be buffered.
    pub(crate) fn insert<'a>(&mut self, offset: u64, data: &'a [u8], room: usize) -> Insert<'a> {
        let end = offset + data.len() as u64;
        if end <= self.next {
            return Insert::Duplicate;
        }
        if !self.pieces.is_empty() && self.contradicts(offset, data) {
            return Insert::Conflict;
        }
        if offset <= self.next {
            // Within usize: the difference is at most data.len().
            let skip = (self.next - offset) as usize;
            return Insert::InOrder(&data[skip..]);
        }
        self.keep(offset, data, room)
    }

    /// Moves `next` behind bytes that were delivered.
    pub(crate) fn advance(&mut self, len: usize) {
        self.next += len as u64;
    }

    /// The next buffered piece that has become in order, without what was delivered already.
    /// It is removed; call [`Assembler::advance`] once it is delivered.
    pub(crate) fn pop_ready(&mut self) -> Option<Vec<u8>> {
        while !self.pieces.is_empty() {
            let entry = self.pieces.first_entry()?;
            let offset = *entry.key();
            if offset > self.next {
                return None;
            }
            let mut piece = entry.remove();
            self.buffered -= piece.len() + PIECE_OVERHEAD;
            let skip = (self.next - offset) as usize;
            if skip < piece.len() {
                piece.drain(..skip);
                return Some(piece);
            }
        }
        None
    }

    /// Forgets everything that is buffered.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.buffered = 0;
    }

    fn contradicts(&self, offset: u64, data: &[u8]) -> bool {
        let end = offset + data.len() as u64;
        self.overlapping(offset, end).any(|(&at, piece)| {
            let from = at.max(offset);
            let to = end.min(at + piece.len() as u64);
            piece[(from - at) as usize..(to - at) as usize]
                != data[(from - offset) as usize..(to - offset) as usize]
        })
    }

    fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = (&u64, &Vec<u8>)> {
        // The piece that starts before `from` may reach into the range.
        let start = self
            .pieces
            .range(..=from)
            .next_back()
            .filter(|(at, piece)| **at + piece.len() as u64 > from)
            .map_or(from, |(at, _)| *at);
        self.pieces.range(start..to.max(start))
    }

    /// Buffers the parts of `data` that no piece covers.
    fn keep(&mut self, offset: u64, data: &[u8], room: usize) -> Insert<'static> {
        let end = offset + data.len() as u64;
        let mut gaps = Vec::new();
        let mut at = offset;
        for (&start, piece) in self.overlapping(offset, end) {
            if start > at {
                gaps.push((at, start));
            }
            at = at.max(start + piece.len() as u64);
        }
        if at < end {
            gaps.push((at, end));
        }
        let cost: usize = gaps.iter().map(|(from, to)| (to - from) as usize + PIECE_OVERHEAD).sum();
        if cost > room {
            return Insert::Full;
        }
        for (from, to) in gaps {
            let piece = data[(from - offset) as usize..(to - offset) as usize].to_vec();
            self.pieces.insert(from, piece);
        }
        self.buffered += cost;
        Insert::OutOfOrder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: usize = 1 << 20;

    fn deliver(assembler: &mut Assembler, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if let Insert::InOrder(bytes) = assembler.insert(offset, data, ROOM) {
            out.extend_from_slice(bytes);
            assembler.advance(bytes.len());
            while let Some(piece) = assembler.pop_ready() {
                out.extend_from_slice(&piece);
                assembler.advance(piece.len());
            }
        }
        out
    }

    #[test]
    fn refuses_contradicting_bytes_whole() {
        let mut assembler = Assembler::default();
        assert_eq!(assembler.insert(10, b"abc", ROOM), Insert::OutOfOrder);
        assert_eq!(assembler.insert(8, b"xxabX", ROOM), Insert::Conflict);
        assert_eq!(assembler.insert(0, b"0123456789aX", ROOM), Insert::Conflict);
        assert_eq!(deliver(&mut assembler, 0, b"0123456789"), b"0123456789abc");
        assert_eq!(assembler.buffered(), 0);
    }

    #[test]
    fn refuses_bytes_beyond_the_cap() {
        let mut assembler = Assembler::default();
        assert_eq!(assembler.insert(10, &[0; 100], 150), Insert::Full);
        assert_eq!(assembler.insert(10, &[0; 50], 150), Insert::OutOfOrder);
        assert_eq!(assembler.buffered(), 50 + PIECE_OVERHEAD);
    }

    proptest! {
        #[test]
        fn accepts_any_order_and_overlap(
            cuts in proptest::collection::vec((0usize..400, 1usize..80), 1..200),
        ) {
            let stream: Vec<u8> = (0..500u32).map(|i| (i * 7 % 251) as u8).collect();
            let mut assembler = Assembler::default();
            let mut out = Vec::new();
            for (at, len) in cuts {
                let end = (at + len).min(stream.len());
                out.extend(deliver(&mut assembler, at as u64, &stream[at..end]));
                prop_assert_eq!(out.len() as u64, assembler.next());
            }
            out.extend(deliver(&mut assembler, 0, &stream));
            prop_assert_eq!(out, stream);
            prop_assert_eq!(assembler.buffered(), 0);
        }
    }
}
