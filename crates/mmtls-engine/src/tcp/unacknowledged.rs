//! The bytes of one direction that were handed on and are not acknowledged: what a
//! retransmission is compared with.
//!
//! The receiver takes whichever copy reaches it, so a copy that differs is one that was not looked
//! at. The bytes themselves are kept, not digests of them: a retransmission may begin and end
//! anywhere, and what cannot be compared could only be dropped, which hangs honest connections.
//!
//! To keep a frame's memory (`Arc<[u8]>`, which is never written to) spares a copy and wastes what of it is not payload. So it is
//! kept where at least half of it is used, and below that while little is kept here and in all connections together.
//!
//! Refuses to interpret, and to keep what the receiver has acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::buffer_pool::{BufferPool, WORTH_A_LARGE_BUFFER};

/// Fewer bytes are copied faster than they are lent. Fuzzing is to see both ways with what it has.
const MIN_LENT: usize = if cfg!(fuzzing) { 16 } else { 4096 };

/// Below this much memory a direction keeps that of a frame also where less than half of it is used.
const GENEROUS: usize = 1 << 20;

/// What is left of lists that are longer goes back to the system.
const MAX_SPARE_LENT: usize = 16;

/// Bytes in the memory that their frame came in. It is kept instead of a copy of them.
pub(crate) struct SharedBytes {
    memory: Arc<[u8]>,
    start: usize,
    len: usize,
    /// Copied bytes between these and the lent ones before them.
    copied_before: usize,
}

impl SharedBytes {
    /// Whether there may be reason to keep the memory.
    pub(crate) fn is_possible(bytes: &[u8]) -> bool {
        bytes.len() >= MIN_LENT
    }

    /// Lends bytes that are in this memory, if most of it is used, or a waste of it is affordable.
    pub(crate) fn new(memory: &Arc<[u8]>, bytes: &[u8], waste: bool) -> Option<Self> {
        if !Self::is_possible(bytes) || !(waste || bytes.len() >= memory.len().div_ceil(2)) {
            return None;
        }
        let start = bytes.as_ptr().addr().checked_sub(memory.as_ptr().addr())?;
        memory.get(start..start.checked_add(bytes.len())?)?;
        Some(Self { memory: memory.clone(), start, len: bytes.len(), copied_before: 0 })
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

/// Literal bytes of a stream, the last of them at `end`. Those that are copied or lent come first. Behind
/// them come those that only continue an incomplete record: what puts that together has them.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    /// Copies, in order.
    copied: VecDeque<u8>,
    /// How many of them are behind everything that is lent.
    copied_last: usize,
    lent: VecDeque<SharedBytes>,
    /// How many bytes at the end are not here, but where their record is put together.
    partial: usize,
    len: usize,
    /// Memory that is lent, in bytes.
    lent_memory: usize,
    end: u64,
}

impl Unacknowledged {
    /// Bytes that are kept.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of them at the end that are not here, but where their record is put together.
    pub(crate) fn partial_len(&self) -> usize {
        self.partial
    }

    /// Memory that is taken, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.copied.capacity() + self.lent_memory
    }

    /// Whether so little is kept here that more of it may be wasted, rather than time.
    pub(crate) fn is_small(&self) -> bool {
        self.capacity() < GENEROUS
    }

    /// Stream offset of the first of them.
    pub(crate) fn start(&self) -> u64 {
        self.end - self.len as u64
    }

    /// Stream offset behind the last of them.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Adds a copy of the bytes at a stream offset: behind those that are kept, or after a gap,
    /// before which nothing can be compared any more.
    pub(crate) fn push(&mut self, offset: u64, data: &[u8]) {
        self.extend_to(offset, data.len());
        debug_assert_eq!(self.partial, 0, "copied before");
        self.copied.extend(data);
        self.copied_last += data.len();
    }

    /// As [`Self::push`], without copying.
    pub(crate) fn push_shared(&mut self, offset: u64, lent: SharedBytes) {
        self.extend_to(offset, lent.len);
        debug_assert_eq!(self.partial, 0, "copied before");
        self.lent_memory += lent.memory.len();
        let copied_before = core::mem::take(&mut self.copied_last);
        self.lent.push_back(SharedBytes { copied_before, ..lent });
    }

    /// As [`Self::push`], of bytes that stay where their record is put together.
    pub(crate) fn push_partial(&mut self, offset: u64, len: usize) {
        self.extend_to(offset, len);
        self.partial += len;
    }

    /// Copies those bytes, which will not be there any more.
    pub(crate) fn copy_partial(&mut self, partial: &[u8]) {
        debug_assert_eq!(self.partial, partial.len(), "all of them");
        if self.partial != partial.len() {
            // Cannot be. What is not there cannot be compared; refusing it would hang the connection.
            return self.forget_all();
        }
        self.copied.extend(partial);
        self.copied_last += partial.len();
        self.partial = 0;
    }

    fn extend_to(&mut self, offset: u64, len: usize) {
        if offset != self.end {
            self.forget_all();
        }
        self.len += len;
        self.end = offset + len as u64;
    }

    /// The receiver has everything before a stream offset. Returns the memory of copies, to be
    /// used again, once there are none.
    pub(crate) fn acknowledge(&mut self, offset: u64) -> Option<Vec<u8>> {
        if offset >= self.end {
            self.forget_all();
        } else {
            let known = usize::try_from(offset.saturating_sub(self.start())).unwrap_or(usize::MAX);
            self.forget(known);
        }
        (self.copied.is_empty() && self.copied.capacity() > 0)
            .then(|| core::mem::take(&mut self.copied).into())
    }

    /// Makes room for so many copies more.
    pub(crate) fn make_room(&mut self, len: usize, pool: &mut BufferPool) {
        let needed = self.copied.len() + len;
        if needed > self.copied.capacity()
            && needed >= WORTH_A_LARGE_BUFFER
            && let Some(memory) = pool.take(needed)
        {
            let mut larger = VecDeque::from(memory);
            let (front, back) = self.copied.as_slices();
            larger.extend(front);
            larger.extend(back);
            let mut smaller = core::mem::replace(&mut self.copied, larger);
            smaller.clear();
            pool.give(smaller.into());
        }
    }

    /// Forgets the oldest bytes until at most `len` are left.
    pub(crate) fn shrink_to(&mut self, len: usize) {
        self.forget(self.len.saturating_sub(len));
    }

    fn forget_all(&mut self) {
        self.len = 0;
        self.partial = 0;
        if !self.copied.is_empty() {
            self.copied.clear();
            self.copied_last = 0;
        }
        if !self.lent.is_empty() {
            self.lent.clear();
            self.lent.shrink_to(MAX_SPARE_LENT);
            self.lent_memory = 0;
        }
    }

    /// Forgets the oldest bytes, at most as many as there are.
    fn forget(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(lent) = self.lent.front_mut() {
            let copied = count.min(lent.copied_before);
            self.copied.drain(..copied);
            lent.copied_before -= copied;
            count -= copied;
            let from_lent = count.min(lent.len);
            lent.start += from_lent;
            lent.len -= from_lent;
            count -= from_lent;
            if lent.len > 0 {
                return;
            }
            self.lent_memory -= lent.memory.len();
            self.lent.pop_front();
        }
        if self.lent.capacity() > MAX_SPARE_LENT {
            self.lent = VecDeque::new();
        }
        let copied = count.min(self.copied_last);
        self.copied.drain(..copied);
        self.copied_last -= copied;
        self.partial -= count - copied;
    }

    /// Whether bytes at a stream offset differ from those that are kept; `partial` are those that are not
    /// here, [`Self::partial_len`] of them.
    pub(crate) fn contradicts(&self, offset: u64, data: &[u8], partial: &[u8]) -> bool {
        if offset + data.len() as u64 <= self.start() || offset >= self.end {
            return false;
        }
        // The bytes of `data` that overlap so many at a stream offset, and where in those they are.
        let overlap = |at: u64, len: usize| {
            let from = offset.max(at);
            let to = (offset + data.len() as u64).min(at + len as u64);
            // Within usize: both lie inside of what is in memory.
            (from < to).then(|| {
                let [kept_from, kept_to] = [from, to].map(|it| (it - at) as usize);
                (&data[(from - offset) as usize..(to - offset) as usize], kept_from, kept_to)
            })
        };
        let copy_differs = |at: u64, first: usize, len: usize| {
            overlap(at, len).is_some_and(|(part, from, to)| {
                !self.copied.range(first + from..first + to).eq(part)
            })
        };
        let (mut at, mut copied) = (self.start(), 0);
        for lent in &self.lent {
            if copy_differs(at, copied, lent.copied_before) {
                return true;
            }
            at += lent.copied_before as u64;
            copied += lent.copied_before;
            let bytes = lent.bytes();
            if overlap(at, bytes.len()).is_some_and(|(part, from, to)| bytes[from..to] != *part) {
                return true;
            }
            at += bytes.len() as u64;
        }
        if copy_differs(at, copied, self.copied_last) {
            return true;
        }
        at += self.copied_last as u64;
        overlap(at, self.partial)
            .is_some_and(|(part, from, to)| partial.get(from..to) != Some(part))
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
        assert!(!sent.contradicts(8, b"xxabcd", &[]));
        assert!(!sent.contradicts(14, b"efXX", &[]));
        assert!(sent.contradicts(14, b"eX", &[]));
        assert!(sent.acknowledge(12).is_none());
        assert!(!sent.contradicts(10, b"XXcd", &[]));
        assert!(sent.contradicts(10, b"XXcX", &[]));
        assert!(sent.acknowledge(16).is_some());
        assert!(!sent.contradicts(10, b"XXXXXX", &[]));
        assert_eq!(sent.capacity(), 0);
    }

    #[test]
    fn refuses_to_compare_across_a_gap() {
        let mut sent = Unacknowledged::default();
        sent.push(0, b"abc");
        sent.push(10, b"def");
        assert!(!sent.contradicts(0, b"XXX", &[]));
        assert!(sent.contradicts(0, b"..........dXf", &[]));
        sent.shrink_to(1);
        assert!(!sent.contradicts(10, b"XX", &[]));
        assert!(sent.contradicts(10, b"deX", &[]));
    }

    #[test]
    fn accepts_larger_memory_and_returns_the_other() {
        let (mut sent, mut pool) = (Unacknowledged::default(), BufferPool::default());
        sent.push(0, b"abc");
        sent.acknowledge(1);
        sent.make_room(WORTH_A_LARGE_BUFFER, &mut pool);
        assert!((sent.len(), sent.capacity()) == (2, 4096) && !sent.contradicts(1, b"bc", &[]));
        assert!(sent.contradicts(1, b"bX", &[]));
        pool.give(Vec::with_capacity(1 << 14));
        sent.push(3, &[b'd'; 4000]);
        sent.make_room(5000, &mut pool);
        assert_eq!(sent.capacity(), 1 << 14);
        assert!(!sent.contradicts(1, b"bcd", &[]) && sent.contradicts(1, b"bcX", &[]));
    }

    #[test]
    fn refuses_other_bytes_of_an_incomplete_record() {
        let mut sent = Unacknowledged::default();
        sent.push(0, b"abc");
        sent.push_partial(3, 2);
        sent.push_partial(5, 1);
        assert!(!sent.contradicts(2, b"cdef", b"def"));
        assert!(sent.contradicts(2, b"cdeX", b"def"));
        assert!(sent.contradicts(2, b"cdef", b"de"), "what is not there cannot be compared");
        assert!(sent.acknowledge(4).is_some(), "the copies are not needed");
        assert_eq!((sent.len(), sent.partial_len(), sent.capacity()), (2, 2, 0));
        assert!(!sent.contradicts(2, b"XXef", b"ef") && sent.contradicts(2, b"XXeX", b"ef"));
        sent.copy_partial(b"ef");
        assert!(!sent.contradicts(2, b"XXef", &[]) && sent.contradicts(2, b"XXeX", &[]));
        assert_eq!((sent.len(), sent.partial_len()), (2, 0));
    }

    /// Bytes in the middle of memory of their own.
    fn lent(bytes: &[u8]) -> SharedBytes {
        let memory = [b"head", bytes, b"tail"].concat().into();
        SharedBytes { memory, start: 4, len: bytes.len(), copied_before: 0 }
    }

    #[test]
    fn accepts_memory_that_is_mostly_used() {
        let memory: Arc<[u8]> = vec![0; 10_000].into();
        assert!(SharedBytes::new(&memory, &memory[54..], false).is_some_and(|it| it.start == 54));
        assert!(
            SharedBytes::new(&memory, &memory[5_001..], false).is_none(),
            "less than half of it"
        );
        assert!(SharedBytes::new(&memory, &memory[5_001..], true).is_some(), "a waste");
        assert!(SharedBytes::new(&memory, &memory[5_905..], true).is_none(), "copied faster");
        assert!(SharedBytes::new(&memory, &[0; 10_000], true).is_none(), "somewhere else");
        let small: Arc<[u8]> = vec![0; MIN_LENT - 1].into();
        assert!(SharedBytes::new(&small, &small, true).is_none());
    }

    #[test]
    fn accepts_memory_back_when_its_bytes_are_acknowledged() {
        let mut sent = Unacknowledged::default();
        let bytes = lent(b"0123456789");
        let memory = bytes.memory.clone();
        sent.push_shared(0, bytes);
        sent.push(10, b"copied");
        assert!(sent.capacity() >= 18 + 6);
        assert!(sent.acknowledge(9).is_none());
        assert_eq!(Arc::strong_count(&memory), 2);
        assert!(sent.acknowledge(10).is_none());
        assert_eq!(Arc::strong_count(&memory), 1);
        assert_eq!((sent.len(), sent.copied.len()), (6, 6));
        sent.push_shared(100, lent(b"behind a gap"));
        assert_eq!((sent.len(), sent.copied.len()), (12, 0));
        assert!(sent.contradicts(100, b"before", &[]) && !sent.contradicts(10, b"COPIED", &[]));
        assert!(sent.acknowledge(112).is_some());
        assert_eq!(sent.capacity(), 0);
    }

    proptest! {
        #[test]
        fn accepts_any_part_of_what_was_sent(
            cuts in proptest::collection::vec(
                (1usize..60, 0usize..100, 1usize..80, 0..3), 1..60,
            ),
        ) {
            let stream: Vec<u8> = (0..4000u32).map(|i| (i * 7 % 251) as u8).collect();
            let (mut sent, mut end, mut acknowledged) = (Unacknowledged::default(), 0, 0);
            for (len, back, again, way) in cuts {
                let bytes = &stream[end..end + len];
                if way < 2 && sent.partial_len() > 0 {
                    sent.copy_partial(&stream[end - sent.partial_len()..end]);
                }
                match way {
                    0 => sent.push_shared(end as u64, lent(bytes)),
                    1 => sent.push(end as u64, bytes),
                    _ => sent.push_partial(end as u64, len),
                }
                end += len;
                acknowledged = acknowledged.max(end.saturating_sub(back * 2));
                sent.acknowledge(acknowledged as u64);
                prop_assert_eq!(sent.len(), end - acknowledged);
                let from = end.saturating_sub(back);
                let to = (from + again).min(end);
                let partial = &stream[end - sent.partial_len()..end];
                prop_assert!(!sent.contradicts(from as u64, &stream[from..to], partial));
                for at in from.max(acknowledged)..to {
                    let mut other = stream[from..to].to_vec();
                    other[at - from] ^= 1;
                    prop_assert!(sent.contradicts(from as u64, &other, partial));
                }
            }
        }
    }
}
