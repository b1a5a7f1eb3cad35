//! The latest part of a stream that rules look into: a body, or one direction of a connection.
//!
//! Checks that belong together may lie in different records, chunks or frames: this is where they are put
//! together. Refuses to keep more than [`MOST`] bytes of a stream, and more than the budget of all streams.

use super::view::View;
use crate::budget::{Charge, MemoryBudget};

/// Least number of bytes that are kept before the latest ones.
const KEPT: usize = 32 << 10;
/// Most bytes that are kept.
const MOST: usize = 2 * KEPT;
/// Most bytes that are added at a time.
pub(super) const STEP: usize = 16 << 10;
/// What may be looked at again without regard to what has come.
const FREE_WORK: u64 = 16 << 20;
/// How often each byte may be looked at again.
const WORK_PER_BYTE: u64 = 64;

/// The latest bytes of a stream.
pub(super) struct Window {
    bytes: Vec<u8>,
    /// Bytes before them that are not kept.
    start: u64,
    /// Nothing follows, or what follows does not count.
    is_whole: bool,
    /// It had to let go of its start.
    has_slid: bool,
    charge: Charge,
    /// Bytes of memory that its owner has beside it, which count, too.
    beside: usize,
    /// Bytes that were looked at again.
    work: u64,
    /// Length of the stream when rules that wait were last applied.
    applied_at: u64,
}

impl Window {
    pub(super) fn new(budget: &MemoryBudget, beside: usize) -> Self {
        Self {
            beside,
            bytes: Vec::new(),
            start: 0,
            is_whole: false,
            has_slid: false,
            charge: budget.charge(),
            work: 0,
            applied_at: 0,
        }
    }

    /// Whether so many more bytes make it lose its start.
    pub(super) fn is_full(&self, more: usize) -> bool {
        self.bytes.len() + more > MOST
    }

    /// Whether it no longer holds all that came.
    pub(super) fn has_slid(&self) -> bool {
        self.has_slid
    }

    /// Adds bytes, [`STEP`] at most; false when the budget is used up. Nothing is kept then.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        if self.bytes.len() + bytes.len() > MOST {
            let surplus = self.bytes.len().saturating_sub(KEPT);
            self.bytes.drain(..surplus);
            self.start += surplus as u64;
            self.has_slid = true;
        }
        let needed = self.bytes.len() + bytes.len();
        // In steps that double. By itself the vector would double what it has, and come to twice what is kept.
        let room = needed.next_power_of_two().max(512);
        if !self.charge.grow(self.beside + room) {
            self.bytes = Vec::new();
            self.charge.release();
            self.start += needed as u64;
            self.has_slid = true;
            return false;
        }
        if self.bytes.capacity() < needed {
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Nothing follows.
    pub(super) fn end(&mut self) {
        self.is_whole = true;
    }

    /// Bytes are missing: what comes has nothing to do with what was.
    pub(super) fn restart(&mut self) {
        self.start += self.bytes.len() as u64;
        self.has_slid = true;
        self.bytes.clear();
    }

    /// What checks look at.
    pub(super) fn view(&self) -> View<'_> {
        let is_whole = self.is_whole && !self.has_slid;
        let (bytes, start) = (&*self.bytes, self.start);
        View { bytes, start, is_whole, starts_here: false, goes_on: false }
    }

    /// As [`Self::view`], as if nothing followed: of what is about to lose its start, or is over. Nothing had been before what
    /// is at hand, either.
    pub(super) fn filled(&self) -> View<'_> {
        let goes_on = !self.is_whole;
        View { is_whole: true, starts_here: self.has_slid, goes_on, ..self.view() }
    }

    /// The same of a connection, of which nobody can say that nothing follows: whoever waited for its end could be kept
    /// waiting for ever.
    pub(super) fn so_far(&self) -> View<'_> {
        View { is_whole: true, starts_here: true, ..self.view() }
    }

    /// Whether it is over.
    pub(super) fn has_ended(&self) -> bool {
        self.is_whole
    }

    pub(super) fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Whether rules that wait may be applied again: what one sender can make rules look at again is
    /// bounded by what it sends. False means that they are applied late.
    pub(super) fn may_apply(&mut self) -> bool {
        let len = self.len();
        let within = self.work <= FREE_WORK.saturating_add(len.saturating_mul(WORK_PER_BYTE));
        let grown = len - self.applied_at > len / 8;
        if within || grown || self.is_whole {
            self.applied_at = len;
            return true;
        }
        false
    }

    /// So many bytes were looked at again.
    pub(super) fn worked(&mut self, bytes: u64) {
        self.work = self.work.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_latest_bytes_and_says_where_they_are() {
        let mut window = Window::new(&MemoryBudget::default(), 0);
        for step in 0..4u8 {
            assert!(!window.is_full(STEP));
            assert!(window.push(&[step; STEP]));
        }
        assert!(window.is_full(1));
        assert!(window.push(b"x"));
        let view = window.view();
        assert_eq!((view.start, view.bytes.len()), (KEPT as u64, KEPT + 1));
        assert_eq!((view.bytes.first(), view.bytes.last()), (Some(&2), Some(&b'x')));
        window.end();
        assert!(!window.view().is_whole && window.so_far().is_whole);
        window.restart();
        assert_eq!((window.len(), window.view().bytes.len()), ((4 * STEP + 1) as u64, 0));
    }

    #[test]
    fn takes_no_more_memory_than_it_counts() {
        let budget = MemoryBudget::default();
        let all = budget.left();
        for step in [1, 100, 1000, 1448, 9000, STEP] {
            let mut window = Window::new(&budget, 0);
            for _ in 0..200 {
                assert!(window.push(&vec![0; step]));
                assert!(window.bytes.capacity() <= all - budget.left(), "{step}");
                assert!(window.bytes.capacity() <= MOST, "{step}");
            }
        }
    }

    #[test]
    fn refuses_more_than_the_budget_and_gives_back() {
        let budget = MemoryBudget::new(2048);
        let mut first = Window::new(&budget, 0);
        assert!(first.push(&[0; 1000]) && first.push(&[0; 1000]));
        let mut second = Window::new(&budget, 0);
        assert!(!second.push(&[0; 1]));
        assert_eq!((second.len(), second.view().start), (1, 1));
        drop(first);
        assert!(second.push(&[0; 1]));
        drop(second);
        assert_eq!(budget.left(), 2048);
        let mut third = Window::new(&budget, 1536);
        assert!(third.push(&[0; 512]) && !third.push(&[0; 1]));
    }

    #[test]
    fn bounds_what_is_looked_at_again() {
        let mut window = Window::new(&MemoryBudget::default(), 0);
        window.push(&[0; 100]);
        assert!(window.may_apply());
        window.worked(32 << 20);
        window.push(&[0; 10]);
        assert!(!window.may_apply());
        window.push(&[0; 10]);
        assert!(window.may_apply());
        window.end();
        assert!(window.may_apply());
    }
}
