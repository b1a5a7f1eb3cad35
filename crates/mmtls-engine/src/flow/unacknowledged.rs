//! The bytes of one direction that were handed on and are not acknowledged: what a
//! retransmission is compared with.
//!
//! The receiver takes whichever copy reaches it, so a copy that differs is one nobody has looked
//! at. The bytes themselves are kept, not digests of them: a retransmission may begin and end
//! anywhere, and what cannot be compared could only be dropped, which hangs honest connections.
//!
//! Refuses to interpret, and to keep what the receiver has acknowledged.

use std::collections::VecDeque;

/// Literal bytes of a stream, the last of them at `end`.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    bytes: VecDeque<u8>,
    end: u64,
}

impl Unacknowledged {
    /// Bytes that are kept.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Memory that is taken, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    /// Adds the bytes at a stream offset: behind those that are kept, or after a gap, before which
    /// nothing can be compared any more.
    pub(crate) fn push(&mut self, offset: u64, data: &[u8]) {
        if offset != self.end {
            self.bytes.clear();
        }
        self.bytes.extend(data);
        self.end = offset + data.len() as u64;
    }

    /// The receiver has everything before a stream offset. Returns the memory, to be used again,
    /// once nothing is left.
    pub(crate) fn acknowledge(&mut self, offset: u64) -> Option<Vec<u8>> {
        let known = usize::try_from(offset.saturating_sub(self.start())).unwrap_or(usize::MAX);
        if known < self.bytes.len() {
            self.bytes.drain(..known);
            return None;
        }
        self.bytes.clear();
        (self.bytes.capacity() > 0).then(|| core::mem::take(&mut self.bytes).into())
    }

    /// Moves to other memory. Returns that which is not used any more.
    pub(crate) fn move_to(&mut self, memory: Vec<u8>) -> Vec<u8> {
        let mut larger = VecDeque::from(memory);
        larger.clear();
        let (front, back) = self.bytes.as_slices();
        larger.extend(front);
        larger.extend(back);
        core::mem::replace(&mut self.bytes, larger).into()
    }

    /// Forgets the oldest bytes until at most `len` are left.
    pub(crate) fn shrink_to(&mut self, len: usize) {
        self.bytes.drain(..self.bytes.len().saturating_sub(len));
    }

    /// Whether bytes at a stream offset differ from those that are kept.
    pub(crate) fn contradicts(&self, offset: u64, data: &[u8]) -> bool {
        let (from, to) = (offset.max(self.start()), (offset + data.len() as u64).min(self.end));
        if from >= to {
            return false;
        }
        // Within usize: both lie inside of what is in memory.
        let [kept_from, kept_to] = [from, to].map(|it| (it - self.start()) as usize);
        let [data_from, data_to] = [from, to].map(|it| (it - offset) as usize);
        !self.bytes.range(kept_from..kept_to).eq(&data[data_from..data_to])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refuses_other_bytes_until_they_are_acknowledged() {
        let mut sent = Unacknowledged::default();
        sent.push(10, b"abcdef");
        assert!(!sent.contradicts(8, b"xxabcd"));
        assert!(!sent.contradicts(14, b"efXX"));
        assert!(sent.contradicts(14, b"eX"));
        assert!(sent.acknowledge(12).is_none());
        assert!(!sent.contradicts(10, b"XXcd"));
        assert!(sent.contradicts(10, b"XXcX"));
        assert!(sent.acknowledge(16).is_some());
        assert!(!sent.contradicts(10, b"XXXXXX"));
        assert_eq!(sent.capacity(), 0);
    }

    #[test]
    fn refuses_to_compare_across_a_gap() {
        let mut sent = Unacknowledged::default();
        sent.push(0, b"abc");
        sent.push(10, b"def");
        assert!(!sent.contradicts(0, b"XXX"));
        assert!(sent.contradicts(0, b"..........dXf"));
        sent.shrink_to(1);
        assert!(!sent.contradicts(10, b"XX"));
        assert!(sent.contradicts(10, b"deX"));
    }

    #[test]
    fn accepts_larger_memory_and_returns_the_other() {
        let mut sent = Unacknowledged::default();
        sent.push(0, b"abc");
        sent.acknowledge(1);
        let capacity = sent.capacity();
        assert_eq!(sent.move_to(Vec::with_capacity(100)).capacity(), capacity);
        assert!((sent.len(), sent.capacity()) == (2, 100) && !sent.contradicts(1, b"bc"));
        assert!(sent.contradicts(1, b"bX"));
    }

    proptest! {
        #[test]
        fn accepts_any_part_of_what_was_sent(
            cuts in proptest::collection::vec((1usize..60, 0usize..100, 1usize..80), 1..60),
        ) {
            let stream: Vec<u8> = (0..4000u32).map(|i| (i * 7 % 251) as u8).collect();
            let (mut sent, mut end, mut acknowledged) = (Unacknowledged::default(), 0, 0);
            for (len, back, again) in cuts {
                sent.push(end as u64, &stream[end..end + len]);
                end += len;
                acknowledged = acknowledged.max(end.saturating_sub(back * 2));
                sent.acknowledge(acknowledged as u64);
                prop_assert_eq!(sent.len(), end - acknowledged);
                let from = end.saturating_sub(back);
                let to = (from + again).min(end);
                prop_assert!(!sent.contradicts(from as u64, &stream[from..to]));
                for at in from.max(acknowledged)..to {
                    let mut other = stream[from..to].to_vec();
                    other[at - from] ^= 1;
                    prop_assert!(sent.contradicts(from as u64, &other));
                }
            }
        }
    }
}
