//! Bounded reassembly of one direction of a TCP connection, by ranges.
//!
//! Refuses to keep bytes beyond its cap, more pieces than honest loss leaves, and bytes that
//! contradict buffered ones.
//!
//! ```text
//!   0 ............ next                     out-of-order pieces
//!   |── delivered ──|        hole      |████|   hole   |████████|
//! ```
//! Invariants: pieces do not overlap, none is empty, every piece starts after `next`, and of two
//! that touch each other one is long: short ones are put together, so that what is compared later
//! is not in as many pieces as its sender liked.

use std::collections::BTreeMap;

/// What a piece costs beyond its bytes: tree node and allocation.
const PIECE_OVERHEAD: usize = 96;

/// Pieces that touch each other become one of at most so many bytes: what moving them may cost.
const MAX_MERGED: usize = 2048;

/// What a piece that is put together grows by.
const GROWTH: usize = 256;

/// Pieces that there may be, whatever they are; beyond them, one for each [`BYTES_PER_PIECE`]
/// buffered. Honest senders leave as many holes as they lose segments.
const MAX_PIECES: usize = 1024;
const BYTES_PER_PIECE: usize = 1024;

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
    /// A cap is reached: nothing was kept.
    Full,
}

/// The reassembly state of one direction.
#[derive(Default)]
pub(crate) struct Assembler {
    /// Stream offset of the next in-order byte.
    next: u64,
    /// What is out of order: nothing, as a rule.
    ahead: Option<Box<Ahead>>,
}

/// Pieces behind a hole.
#[derive(Default)]
struct Ahead {
    pieces: BTreeMap<u64, Vec<u8>>,
    buffered: usize,
}

impl Assembler {
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Bytes charged against the cap.
    pub(crate) fn buffered(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.buffered)
    }

    /// The offset behind the last byte buffered, `next` when nothing is.
    pub(crate) fn highest(&self) -> u64 {
        let last = self.ahead.as_ref().and_then(|ahead| ahead.pieces.last_key_value());
        last.map_or(self.next, |(&offset, piece)| offset + piece.len() as u64)
    }

    /// Offers the bytes at a stream offset; `room` is what may still be buffered.
    pub(crate) fn insert<'a>(&mut self, offset: u64, data: &'a [u8], room: usize) -> Insert<'a> {
        let end = offset + data.len() as u64;
        if end <= self.next {
            return Insert::Duplicate;
        }
        if self.ahead.as_ref().is_some_and(|ahead| ahead.contradicts(offset, data)) {
            return Insert::Conflict;
        }
        if offset <= self.next {
            // Within usize: the difference is at most data.len().
            let skip = (self.next - offset) as usize;
            return Insert::InOrder(&data[skip..]);
        }
        let ahead = self.ahead.get_or_insert_default();
        let answer = ahead.keep(offset, data, room);
        self.ahead.take_if(|ahead| ahead.pieces.is_empty());
        answer
    }

    /// Moves `next` behind bytes that were delivered.
    pub(crate) fn advance(&mut self, len: usize) {
        self.next += len as u64;
    }

    /// The next buffered piece that has become in order, without what was delivered already.
    /// It is removed; call [`Assembler::advance`] once it is delivered.
    pub(crate) fn pop_ready(&mut self) -> Option<Vec<u8>> {
        while let Some(ahead) = &mut self.ahead {
            let Some(entry) = ahead.pieces.first_entry() else {
                self.ahead = None;
                break;
            };
            let offset = *entry.key();
            if offset > self.next {
                return None;
            }
            let mut piece = entry.remove();
            ahead.buffered -= cost_of(&piece);
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
        self.ahead = None;
    }

    /// Puts nothing in order any more: the stream goes on behind what is buffered, which has passed. What that was, by
    /// stream offset.
    pub(crate) fn skip_buffered(&mut self) -> BTreeMap<u64, Vec<u8>> {
        self.next = self.highest();
        self.ahead.take().map(|ahead| ahead.pieces).unwrap_or_default()
    }
}

impl Ahead {
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

    /// Buffers what no piece covers of `data`, which contradicts none of them.
    fn keep(&mut self, offset: u64, data: &[u8], room: usize) -> Insert<'static> {
        let end = offset + data.len() as u64;
        let reach = |at: u64, piece: &Vec<u8>| at + piece.len() as u64;
        // Pieces at its ends stay; those inside of it are replaced, and what is between them with
        // them.
        let (mut from, mut to) = (offset, end);
        let mut covered = Vec::new();
        let mut freed = 0;
        for (&at, piece) in self.overlapping(offset, end) {
            if at <= offset {
                from = reach(at, piece);
            } else if reach(at, piece) >= end {
                to = at;
            } else {
                covered.push(at);
                freed += cost_of(piece);
            }
        }
        if from >= to {
            return Insert::OutOfOrder;
        }
        // Within usize: both lie inside of `data`.
        let new = &data[(from - offset) as usize..(to - offset) as usize];
        let mut len = new.len();
        let mut touching = [None; 2];
        let before = self.pieces.range(..from).next_back();
        let behind = self.pieces.get_key_value(&to);
        for (side, found) in [before, behind].into_iter().enumerate() {
            if let Some((&at, piece)) = found
                && (reach(at, piece) == from || at == to)
                && len + piece.len() <= MAX_MERGED
            {
                touching[side] = Some(at);
                len += piece.len();
                freed += cost_of(piece);
            }
        }
        let merged = touching.into_iter().flatten().count();
        let room_for = if merged > 0 { len.next_multiple_of(GROWTH) } else { len };
        let more = (room_for + PIECE_OVERHEAD).saturating_sub(freed);
        let is_one_more = covered.is_empty() && merged == 0;
        let max_pieces = MAX_PIECES + (self.buffered + more) / BYTES_PER_PIECE;
        if more > room || (is_one_more && self.pieces.len() >= max_pieces) {
            return Insert::Full;
        }
        for at in covered {
            self.take(at);
        }
        let [before, behind] = touching.map(|at| Some((at?, self.take(at?)?)));
        let (start, mut piece) = before.unwrap_or((from, Vec::new()));
        if piece.capacity() < len {
            piece.reserve_exact(room_for - piece.len());
        }
        piece.extend_from_slice(new);
        if let Some((_, behind)) = behind {
            piece.extend_from_slice(&behind);
        }
        self.buffered += cost_of(&piece);
        self.pieces.insert(start, piece);
        Insert::OutOfOrder
    }

    /// Takes a piece out.
    fn take(&mut self, at: u64) -> Option<Vec<u8>> {
        let piece = self.pieces.remove(&at)?;
        self.buffered -= cost_of(&piece);
        Some(piece)
    }
}

/// What a piece takes.
fn cost_of(piece: &Vec<u8>) -> usize {
    piece.capacity() + PIECE_OVERHEAD
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

    /// Pieces, and bytes that are charged for them.
    fn kept(assembler: &Assembler) -> (usize, usize) {
        (assembler.ahead.as_ref().map_or(0, |ahead| ahead.pieces.len()), assembler.buffered())
    }

    #[test]
    fn refuses_to_keep_what_is_together_in_pieces() {
        const BYTES: u64 = 30_000;
        let stream: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        let forwards: Vec<u64> = (1..BYTES).collect();
        let backwards: Vec<u64> = (1..BYTES).rev().collect();
        // Every other one, and then those between.
        let apart: Vec<u64> = (1..2000).step_by(2).chain((2..2000).step_by(2)).collect();
        for order in [forwards, backwards, apart] {
            let mut assembler = Assembler::default();
            for &at in &order {
                let byte = &stream[at as usize..=at as usize];
                assert_eq!(assembler.insert(at, byte, ROOM), Insert::OutOfOrder);
            }
            let (pieces, charged) = kept(&assembler);
            // What a repetition of all of it is compared with.
            assert!(pieces <= 2 * order.len() / 2048 + 1, "{pieces} pieces");
            assert!(charged < 2 * order.len() + 10_000, "{charged} bytes charged");
            assert_eq!(deliver(&mut assembler, 0, &stream[..1]), stream[..=order.len()]);
            assert_eq!(kept(&assembler), (0, 0));
        }
    }

    #[test]
    fn refuses_more_pieces_than_honest_loss_leaves() {
        let mut assembler = Assembler::default();
        let mut full = 0;
        for at in (1..60_000).step_by(2) {
            full += usize::from(assembler.insert(at, b"x", 8 << 20) == Insert::Full);
        }
        let (pieces, _) = kept(&assembler);
        assert!((1024..1300).contains(&pieces), "{pieces} pieces");
        assert_eq!(pieces + full, 30_000);
        // One that covers them takes their place.
        assert_eq!(assembler.insert(1, &[b'x'; 1 << 16], ROOM), Insert::OutOfOrder);
        assert_eq!(kept(&assembler).0, 2);
        // Every other segment of a long flight that is lost.
        let mut assembler = Assembler::default();
        for at in (1..5000).step_by(2) {
            assert_eq!(assembler.insert(at * 536, &[0; 536], 8 << 20), Insert::OutOfOrder);
        }
    }

    proptest! {
        #[test]
        fn accepts_any_order_and_overlap(
            cuts in proptest::collection::vec((0usize..400, 1usize..80), 1..200),
            // Up to pieces that are not put together any more.
            scale in 1usize..40,
        ) {
            let stream: Vec<u8> = (0..500 * scale as u32).map(|i| (i * 7 % 251) as u8).collect();
            let mut assembler = Assembler::default();
            let mut out = Vec::new();
            for (at, len) in cuts {
                let (at, len) = (at * scale, len * scale - scale / 2);
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
