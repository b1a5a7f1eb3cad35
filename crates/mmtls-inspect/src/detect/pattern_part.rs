//! The part of a pattern that is searched for. Refuses to know how.

/// Longest part that is searched for. What is longer is rarely told apart later, and costs memory.
pub(super) const MAX_PATTERN: usize = 24;

/// The part of a long pattern that is searched for: the end, since many begin alike.
pub(super) fn part(pattern: &[u8]) -> &[u8] {
    &pattern[pattern.len().saturating_sub(MAX_PATTERN)..]
}
