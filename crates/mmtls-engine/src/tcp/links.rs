//! How flows name each other.

use core::num::NonZeroU32;

/// A slot of the slab. May be reused: compare [`Flow::id`] when it was kept for later.
///
/// One more than the slot's number, so that an `Option` takes no more memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct FlowIndex(NonZeroU32);

impl FlowIndex {
    pub(super) const MAX: Self = Self(NonZeroU32::MAX);

    /// `None` beyond what can be numbered.
    pub(crate) fn new(slot: usize) -> Option<Self> {
        NonZeroU32::new(u32::try_from(slot.checked_add(1)?).ok()?).map(Self)
    }

    pub(super) fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The ends of a list.
#[derive(Clone, Copy, Default)]
pub(crate) struct List {
    pub(crate) first: Option<FlowIndex>,
    pub(super) last: Option<FlowIndex>,
}

/// Where a flow stands.
pub(crate) enum Standing {
    Nowhere,
    /// Among those that only one side vouches for: of everybody, and of its client.
    Attempt([Neighbours; 2]),
    /// Both do: among those of its client.
    Settled(Neighbours),
    /// Among everybody's that are over.
    Closed(Neighbours),
}

/// Who stands before and behind a flow.
#[derive(Clone, Copy, Default)]
pub(crate) struct Neighbours {
    pub(super) before: Option<FlowIndex>,
    pub(super) behind: Option<FlowIndex>,
}
