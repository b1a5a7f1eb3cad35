//! Memory that many connections share.
//!
//! Refuses what is not left: whoever asks then has to do without, and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that all who have a clone of it may take together.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<AtomicUsize>);

impl MemoryBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(bytes)))
    }

    /// Bytes that nobody has taken.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes bytes out; `None` where there are not so many.
    pub(crate) fn take(&self, bytes: usize) -> Option<Charge> {
        let mut charge = self.charge();
        charge.set(bytes).then_some(charge)
    }

    /// Nothing of it yet.
    pub(crate) fn charge(&self) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }
}

impl Default for MemoryBudget {
    /// 512 MiB.
    fn default() -> Self {
        Self::new(512 << 20)
    }
}

/// Bytes of a budget, which gets them back in the end.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: MemoryBudget,
    bytes: usize,
}

impl Charge {
    /// Has so many bytes; where there are not so many it keeps what it has.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if let Some(more) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) {
            let left = &self.budget.0;
            let taken = left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(more));
            if taken.is_err() {
                return false;
            }
        } else {
            self.budget.0.fetch_add(self.bytes.saturating_sub(bytes), Ordering::Relaxed);
        }
        self.bytes = bytes;
        true
    }

    /// Has so many bytes at least.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.set(self.bytes.max(bytes))
    }

    /// Gives all of them back.
    pub(crate) fn release(&mut self) {
        self.set(0);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

/// What the application layer of many connections may keep together.
#[derive(Clone, Debug)]
pub struct AppBudget {
    /// For decoders of bodies.
    pub(crate) decoders: MemoryBudget,
    /// For heads and header blocks that are under way, where they are long.
    pub(crate) heads: MemoryBudget,
}

impl AppBudget {
    /// So many bytes for the decoders of bodies, and for long heads.
    #[must_use]
    pub fn new(decoders: usize, heads: usize) -> Self {
        Self { decoders: MemoryBudget::new(decoders), heads: MemoryBudget::new(heads) }
    }
}

impl Default for AppBudget {
    /// 256 MiB each.
    fn default() -> Self {
        Self::new(256 << 20, 256 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_is_left_and_gives_it_back() {
        let budget = MemoryBudget::new(10);
        let (mut one, mut other) = (budget.charge(), budget.charge());
        assert!(one.set(6) && other.grow(4) && other.grow(2));
        assert_eq!(budget.left(), 0);
        assert!(!one.set(7) && one.set(5) && other.set(5));
        drop(one);
        assert_eq!(budget.left(), 5);
        other.release();
        assert_eq!(budget.left(), 10);
    }
}
