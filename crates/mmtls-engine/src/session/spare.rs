//! Memory that is used again: bytes in flight, and records that span packets.
//!
//! Refuses to keep more than a few buffers, very small and very large ones, and to give much more
//! than is needed.

/// Fewer bytes than these get memory of their own size.
pub(crate) const WORTH_A_LARGE_BUFFER: usize = 1024;

/// Two full segments: their receivers acknowledge every second one (RFC 9293, section 3.8.6.3).
const PAIR: usize = 4096;

/// Most buffers for a pair of segments: a burst of as many connections.
const MAX_PAIRS: usize = 256;
/// Most larger buffers, and their bytes.
const MAX_LARGE: usize = 32;
const MAX_LARGE_BYTES: usize = 1 << 24;
/// Bytes in flight on a fast path; what is larger goes back to the system, page by page.
const MAX_LARGE_CAPACITY: usize = 1 << 20;
/// What is smaller comes cheaply from the heap, and would take the place of what does not.
const MIN_LARGE_CAPACITY: usize = 1 << 14;

/// Buffers that nobody uses at the moment.
#[derive(Default)]
pub(crate) struct Spare {
    pairs: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl Spare {
    /// Memory for so many bytes, and not for many more: who gets it is charged for all of it.
    pub(crate) fn take(&mut self, needed: usize) -> Option<Vec<u8>> {
        if (WORTH_A_LARGE_BUFFER..=PAIR).contains(&needed) {
            return Some(self.pairs.pop().unwrap_or_else(|| Vec::with_capacity(PAIR)));
        }
        let fitting = self.large.iter().enumerate().map(|(at, buffer)| (buffer.capacity(), at));
        let (_, at) = fitting.filter(|(len, _)| (needed..=needed * 4).contains(len)).min()?;
        Some(self.large.swap_remove(at))
    }

    /// Keeps a buffer's allocation for the next bytes that have to be kept.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        buffer.clear();
        if capacity == PAIR {
            if self.pairs.len() < MAX_PAIRS {
                self.pairs.push(buffer);
            }
            return;
        }
        let room = MAX_LARGE_BYTES - self.large.iter().map(Vec::capacity).sum::<usize>();
        if self.large.len() < MAX_LARGE
            && (MIN_LARGE_CAPACITY..=MAX_LARGE_CAPACITY.min(room)).contains(&capacity)
        {
            self.large.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_fits_and_keeps_within_limits() {
        let mut spare = Spare::default();
        for len in [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 21] {
            spare.give(vec![1; len]);
        }
        assert_eq!(spare.large.len(), 3, "the smallest and the largest are not worth it");
        assert!(spare.take(1 << 9).is_none());
        let taken = spare.take(1 << 15);
        assert!(taken.is_some_and(|it| it.is_empty() && it.capacity() == 1 << 16));
        assert!(spare.take(1 << 19).is_none());
        for _ in 0..100 {
            spare.give(Vec::with_capacity(1 << 20));
        }
        assert!(spare.large.iter().map(Vec::capacity).sum::<usize>() <= 1 << 24);
        for _ in 0..100 {
            spare.give(Vec::with_capacity(1 << 14));
        }
        assert!(spare.large.len() <= 32);
    }

    #[test]
    fn accepts_pairs_of_segments_apart_from_the_rest() {
        let mut spare = Spare::default();
        let pair = spare.take(1448).expect("made when there is none");
        assert_eq!(pair.capacity(), PAIR);
        spare.give(pair);
        assert!(spare.take(PAIR + 1).is_none());
        assert!(spare.take(2 * 1448).is_some() && spare.pairs.is_empty());
        for _ in 0..=MAX_PAIRS {
            spare.give(vec![1; PAIR]);
        }
        assert_eq!(spare.pairs.len(), MAX_PAIRS);
        assert!(spare.take(1448).is_some_and(|it| it.is_empty()));
    }
}
