//! The key of a direction, set up while it is in use.
//!
//! What the ciphers expand it to is ten times as long, and made in a microsecond: an idle session does without.
//! Refuses nothing; [`suite`](crate::suite) has checked lengths.

use core::cell::OnceCell;
use std::sync::Arc;

use zeroize::ZeroizeOnDrop;

use crate::KeyError;
use crate::aead::AeadKey;
use crate::suite::Cipher;

/// Longest key of a cipher in bytes.
const MAX_KEY_LEN: usize = 32;

#[derive(Clone, ZeroizeOnDrop)]
struct KeyBytes([u8; MAX_KEY_LEN]);

/// A key that can be set up again.
#[derive(Clone)]
pub(crate) struct OpeningKey {
    bytes: KeyBytes,
    cipher: Cipher,
    tag_len: u8,
    ready: OnceCell<Arc<AeadKey>>,
}

impl OpeningKey {
    /// Sets up a key whose length has been checked.
    ///
    /// # Errors
    /// Those of [`AeadKey::new`].
    pub(crate) fn new(cipher: Cipher, key: &[u8]) -> Result<Self, KeyError> {
        let ready = AeadKey::new(cipher, key)?;
        let mut bytes = KeyBytes([0; MAX_KEY_LEN]);
        bytes.0.get_mut(..key.len()).ok_or(KeyError::Library)?.copy_from_slice(key);
        let tag_len = ready.tag_len() as u8;
        Ok(Self { bytes, cipher, tag_len, ready: OnceCell::from(Arc::new(ready)) })
    }

    /// Bytes of the tag.
    pub(crate) fn tag_len(&self) -> usize {
        self.tag_len.into()
    }

    /// The key, set up. `None` where the library has no memory for it.
    #[inline]
    pub(crate) fn get(&self) -> Option<&AeadKey> {
        match self.ready.get() {
            Some(ready) => Some(ready),
            None => self.set_up(),
        }
    }

    #[cold]
    fn set_up(&self) -> Option<&AeadKey> {
        let key = self.bytes.0.get(..self.cipher.key_len())?;
        let ready = Arc::new(AeadKey::new(self.cipher, key).ok()?);
        Some(self.ready.get_or_init(|| ready))
    }

    /// Does without until the next record.
    pub(crate) fn rest(&mut self) {
        self.ready.take();
    }
}
