//! Memory that is used again: bytes in flight, and records that span packets.
//!
//! Refuses to keep more than a few buffers, very small and very large ones, and to give much more
//! than is needed.

/// Fewer bytes than these get memory of their own size.
pub(crate) const WORTH_A_LARGE_BUFFER: usize = 1024;

/// Memory for so many bytes, and not for many more: who gets it is charged for all of it.
pub(crate) fn take_spare(spare: &mut Vec<Vec<u8>>, needed: usize) -> Option<Vec<u8>> {
    let fitting = spare.iter().enumerate().map(|(at, buffer)| (buffer.capacity(), at));
    let (_, at) = fitting.filter(|(len, _)| (needed..=needed * 4).contains(len)).min()?;
    Some(spare.swap_remove(at))
}

/// Keeps a buffer's allocation for the next bytes that have to be kept.
pub(crate) fn recycle(spare: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    const MAX_SPARE: usize = 32;
    const MAX_SPARE_BYTES: usize = 1 << 24;
    /// Bytes in flight on a fast path; what is larger goes back to the system, page by page.
    const MAX_SPARE_CAPACITY: usize = 1 << 20;
    /// What is smaller comes cheaply from the heap, and would take the place of what does not.
    const MIN_SPARE_CAPACITY: usize = 1 << 14;
    let capacity = buffer.capacity();
    let room = MAX_SPARE_BYTES - spare.iter().map(Vec::capacity).sum::<usize>();
    if spare.len() < MAX_SPARE
        && (MIN_SPARE_CAPACITY..=MAX_SPARE_CAPACITY.min(room)).contains(&capacity)
    {
        buffer.clear();
        spare.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_fits_and_keeps_within_limits() {
        let mut spare = Vec::new();
        for len in [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 21] {
            recycle(&mut spare, vec![1; len]);
        }
        assert_eq!(spare.len(), 3, "the smallest and the largest are not worth it");
        assert!(take_spare(&mut spare, 1 << 9).is_none());
        let taken = take_spare(&mut spare, 1 << 15);
        assert!(taken.is_some_and(|it| it.is_empty() && it.capacity() == 1 << 16));
        assert!(take_spare(&mut spare, 1 << 19).is_none());
        for _ in 0..100 {
            recycle(&mut spare, Vec::with_capacity(1 << 20));
        }
        assert!(spare.iter().map(Vec::capacity).sum::<usize>() <= 1 << 24);
        for _ in 0..100 {
            recycle(&mut spare, Vec::with_capacity(1 << 14));
        }
        assert!(spare.len() <= 32);
    }
}
