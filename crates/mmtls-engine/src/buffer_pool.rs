//! Memory that is used again: bytes in flight, and records that span packets.
//!
//! Refuses to keep more than some hundred buffers and 18 MB, very small and very large ones, and to
//! give much more than is needed.

/// Fewer bytes than these get memory of their own size.
pub(crate) const WORTH_A_LARGE_BUFFER: usize = 1024;

/// Some segments: receivers acknowledge every second one (RFC 9293, section 3.8.6.3). Such buffers
/// come and go so often that even the heap's work shows.
const SMALL: [usize; 2] = [4096, 8192];
/// Most small buffers of each size: a burst of as many connections.
const MAX_SMALL: usize = 128;

/// Most larger buffers, and their bytes.
const MAX_LARGE: usize = 32;
const MAX_LARGE_BYTES: usize = 1 << 24;
/// Bytes in flight on a fast path; what is larger goes back to the system, page by page.
const MAX_LARGE_CAPACITY: usize = 1 << 20;
/// Between small and large comes little, which would displace what is worth more.
const MIN_LARGE_CAPACITY: usize = 1 << 14;

/// Buffers that are not in use.
#[derive(Default)]
pub(crate) struct BufferPool {
    small: [Vec<Vec<u8>>; SMALL.len()],
    large: Vec<Vec<u8>>,
}

impl BufferPool {
    /// Memory for so many bytes, and not for many more: the connection that gets it is charged for all of it. A small
    /// buffer is made if there is none.
    pub(crate) fn take(&mut self, needed: usize) -> Option<Vec<u8>> {
        if needed >= WORTH_A_LARGE_BUFFER
            && let Some(at) = SMALL.iter().position(|&size| size >= needed)
        {
            return Some(self.small[at].pop().unwrap_or_else(|| Vec::with_capacity(SMALL[at])));
        }
        let fitting = self.large.iter().enumerate().map(|(at, buffer)| (buffer.capacity(), at));
        let (_, at) = fitting.filter(|(len, _)| (needed..=needed * 4).contains(len)).min()?;
        Some(self.large.swap_remove(at))
    }

    /// Keeps a buffer's allocation for the next bytes that have to be kept.
    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        buffer.clear();
        if let Some(at) = SMALL.iter().position(|&size| size == capacity) {
            if self.small[at].len() < MAX_SMALL {
                self.small[at].push(buffer);
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
        let mut pool = BufferPool::default();
        for len in [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 21] {
            pool.give(vec![1; len]);
        }
        assert_eq!(pool.large.len(), 3, "the smallest and the largest are not worth it");
        assert!(pool.take(1 << 9).is_none());
        let taken = pool.take(1 << 15);
        assert!(taken.is_some_and(|it| it.is_empty() && it.capacity() == 1 << 16));
        assert!(pool.take(1 << 19).is_none());
        for _ in 0..100 {
            pool.give(Vec::with_capacity(1 << 20));
        }
        assert!(pool.large.iter().map(Vec::capacity).sum::<usize>() <= 1 << 24);
        for _ in 0..100 {
            pool.give(Vec::with_capacity(1 << 14));
        }
        assert!(pool.large.len() <= 32);
    }

    #[test]
    fn accepts_small_buffers_of_two_sizes() {
        let mut pool = BufferPool::default();
        for (size, needed) in [(4096, 1448), (4096, 4096), (8192, 4097), (8192, 8192)] {
            let buffer = pool.take(needed).expect("made when there is none");
            assert_eq!(buffer.capacity(), size);
            pool.give(buffer);
        }
        assert_eq!(pool.small.each_ref().map(Vec::len), [1, 1]);
        assert!(pool.take(8193).is_none() && pool.take(1023).is_none());
        for size in [4096, 8192] {
            for _ in 0..=MAX_SMALL {
                pool.give(vec![1; size]);
            }
            assert!(pool.take(size).is_some_and(|it| it.is_empty()));
        }
        assert_eq!(pool.small.each_ref().map(Vec::len), [MAX_SMALL - 1; 2]);
    }
}
