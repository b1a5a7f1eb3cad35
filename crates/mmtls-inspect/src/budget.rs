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

/// Bytes that are put together, and charged where they are long.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    charge: Charge,
}

impl Kept {
    /// So many bytes cost nothing, and are the most that an empty one holds on to.
    const FREE: usize = 2048;

    /// Nothing yet.
    pub(crate) fn new(budget: &MemoryBudget) -> Self {
        Self { bytes: Vec::new(), charge: budget.charge() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds bytes; without room for them nothing changes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> bool {
        let needed = self.bytes.len().saturating_add(bytes.len());
        if needed > Self::FREE {
            // In steps that double, and no more than is paid for.
            let capacity = needed.next_power_of_two();
            if !self.charge.grow(capacity) {
                return false;
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Is empty from here on.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > Self::FREE {
            self.bytes = Vec::new();
        }
        self.charge.release();
    }

    /// Hands everything over.
    pub(crate) fn take(&mut self) -> Self {
        let nothing = Self::new(&self.charge.budget);
        core::mem::replace(self, nothing)
    }
}

/// What the application layer of many connections may keep together.
#[derive(Clone, Debug)]
pub struct AppBudget {
    /// For decoders of bodies.
    pub(crate) decoders: MemoryBudget,
    /// For heads, trailers and header blocks that are under way, where they are long.
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

    #[test]
    fn accepts_short_bytes_for_nothing_and_long_ones_as_far_as_there_is_room() {
        let budget = MemoryBudget::new(8192);
        let mut kept = Kept::new(&budget);
        assert!(kept.extend(&[1; 2048]) && budget.left() == 8192);
        assert!(kept.extend(&[2; 1]) && budget.left() == 4096 && kept.bytes.capacity() == 4096);
        assert!(kept.extend(&[3; 2048]) && budget.left() == 0 && kept.bytes.capacity() == 8192);
        assert!(!kept.extend(&[4; 8192]) && kept.bytes().len() == 4097);
        let taken = kept.take();
        assert!(taken.bytes().len() == 4097 && kept.bytes().is_empty() && budget.left() == 0);
        assert!(!kept.extend(&[5; 2049]) && kept.extend(&[5; 2048]));
        drop(taken);
        assert!(kept.extend(&[6; 1]));
        kept.clear();
        assert_eq!((budget.left(), kept.bytes.capacity()), (8192, 0));
    }
}
