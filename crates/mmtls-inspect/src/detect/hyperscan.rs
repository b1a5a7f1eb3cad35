//! The search by Hyperscan, in a stream.
//!
//! Each piece is searched as a block, and before it the border: what may be the start of a pattern, with what
//! follows. So a stream needs no memory of the library's. Refuses to miss a pattern in silence.

use core::ops::ControlFlow;

use mmtls_hyperscan::{Case, Database, Error};

use super::pattern_part::MAX_PATTERN;

/// Most bytes that a pattern can have in the piece before.
const MAX_TAIL: usize = MAX_PATTERN - 1;
/// Up to this length a piece is searched together with its border.
const BORDER: usize = 256;

/// Patterns, compiled for searching.
pub(super) struct Hyperscan {
    database: Database,
    /// Bytes of the longest pattern but one: as many can matter later.
    tail: usize,
}

/// Where the search in a stream stands: its last bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    len: u8,
    bytes: [u8; MAX_TAIL],
}

impl Default for Tail {
    fn default() -> Self {
        Self { len: 0, bytes: [0; MAX_TAIL] }
    }
}

impl Tail {
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&[])
    }

    /// The last `most` bytes of these and those that followed.
    fn push(&mut self, more: &[u8], most: usize) {
        let more = &more[more.len().saturating_sub(most)..];
        let kept = usize::from(self.len).min(most - more.len());
        self.bytes.copy_within(usize::from(self.len) - kept..usize::from(self.len), 0);
        self.bytes[kept..kept + more.len()].copy_from_slice(more);
        // It fits: there are MAX_TAIL bytes at most.
        self.len = (kept + more.len()) as u8;
    }
}

impl Hyperscan {
    /// Compiles patterns of [`MAX_PATTERN`] bytes at most, in lower case.
    pub(super) fn new(patterns: &[&[u8]]) -> Result<Self, Error> {
        let longest = patterns.iter().map(|pattern| pattern.len()).max().unwrap_or(0);
        let database = Database::new(patterns.iter().copied(), Case::Ignored)?;
        Ok(Self { database, tail: longest.saturating_sub(1).min(MAX_TAIL) })
    }

    /// Searches the next bytes of a stream; `found` gets each pattern that ends in them, once or more often.
    ///
    /// # Errors
    /// The library failed: patterns may be missing.
    pub(super) fn search(
        &self,
        tail: &mut Tail,
        bytes: &[u8],
        found: &mut impl FnMut(usize),
    ) -> Result<(), Error> {
        let before = tail.bytes();
        let mut is_done = false;
        let mut searched = Ok(());
        if !before.is_empty() {
            let mut border = [0; BORDER];
            is_done = before.len() + bytes.len() <= BORDER;
            let after = if is_done { bytes } else { &bytes[..self.tail.min(bytes.len())] };
            let len = before.len() + after.len();
            border[..before.len()].copy_from_slice(before);
            border[before.len()..len].copy_from_slice(after);
            // What ends before was found with the piece before.
            searched = self.block(&border[..len], before.len(), found);
        }
        if !is_done {
            searched = searched.and(self.block(bytes, 0, found));
        }
        tail.push(bytes, self.tail);
        searched
    }

    /// Searches a block for what ends behind a place.
    fn block(
        &self,
        block: &[u8],
        behind: usize,
        found: &mut impl FnMut(usize),
    ) -> Result<(), Error> {
        self.database.search(block, &mut |pattern, end| {
            if end > behind {
                found(pattern);
            }
            ControlFlow::Continue(())
        })
    }

    /// Bytes of memory.
    pub(super) const fn memory(&self) -> usize {
        self.database.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_bytes() {
        let mut tail = Tail::default();
        let mut kept = |more: &[u8], most| {
            tail.push(more, most);
            String::from_utf8_lossy(tail.bytes()).into_owned()
        };
        assert_eq!(kept(b"ab", 3), "ab");
        assert_eq!(kept(b"", 3), "ab");
        assert_eq!(kept(b"cd", 3), "bcd");
        assert_eq!(kept(b"efghijk", 3), "ijk");
        assert_eq!(kept(&[b'x'; 40], MAX_TAIL), "x".repeat(MAX_TAIL));
        assert_eq!(kept(b"y", 0), "");
    }
}
