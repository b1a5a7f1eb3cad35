//! How flows name each other.

/// A slot of the slab. May be reused: compare [`Flow::id`] when it was kept for later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct FlowIndex(pub(super) u32);

impl FlowIndex {
    pub(super) const MAX: Self = Self(u32::MAX);
}

/// The ends of a list.
#[derive(Clone, Copy, Default)]
pub(crate) struct List {
    pub(crate) first: Option<FlowIndex>,
    pub(super) last: Option<FlowIndex>,
}

/// Who stands before and behind a flow.
#[derive(Clone, Copy, Default)]
pub(crate) struct Neighbours {
    pub(super) before: Option<FlowIndex>,
    pub(super) behind: Option<FlowIndex>,
}
