//! Secret bytes with a length limit: wiped when dropped; no `Debug`, `Clone` or `Display`.
//!
//! They live on the heap, so that moving a message does not leave copies behind. Refuses more
//! bytes than the limit.

use zeroize::Zeroizing;

/// At most `MAX` secret bytes, wiped when dropped. Empty is allowed and allocates nothing.
pub struct SecretBytes<const MAX: usize>(Zeroizing<Vec<u8>>);

impl<const MAX: usize> SecretBytes<MAX> {
    /// Copies `bytes`; `None` when there are more than `MAX`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        // `to_vec` allocates exactly once, so that no smaller copy is left in freed memory.
        (bytes.len() <= MAX).then(|| Self(Zeroizing::new(bytes.to_vec())))
    }

    /// No bytes at all, for example the MAC key of an AEAD suite.
    #[must_use]
    pub fn empty() -> Self {
        Self(Zeroizing::new(Vec::new()))
    }

    /// The same bytes once more: on purpose, and so not `Clone`.
    #[must_use]
    pub(crate) fn copy(&self) -> Self {
        Self(Zeroizing::new(self.0.to_vec()))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
