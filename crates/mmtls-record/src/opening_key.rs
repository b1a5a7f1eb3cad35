//! The key of a direction, set up while it is in use.
//!
//! What the ciphers expand it to is ten times as long, and made in a microsecond: an idle session does without.
//! Refuses nothing; [`suite`](crate::suite) has checked lengths.

use core::cell::OnceCell;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use zeroize::ZeroizeOnDrop;

use crate::KeyError;
use crate::aead::AeadKey;
use crate::suite::Cipher;

/// Longest key of a cipher in bytes.
const MAX_KEY_LEN: usize = 32;

#[derive(Clone, ZeroizeOnDrop)]
struct KeyBytes([u8; MAX_KEY_LEN]);

/// A key that can be set up again. In two parts, so that what holds them pads nothing.
#[derive(Clone)]
pub(crate) struct OpeningKey {
    bytes: KeyBytes,
    cipher: Cipher,
    tag_len: u8,
}

/// What it is set up to, while it is in use.
#[derive(Clone)]
pub(crate) struct ReadyKey(OnceCell<Arc<AeadKey>>);

impl OpeningKey {
    /// Sets up a key whose length has been checked.
    ///
    /// # Errors
    /// Those of [`AeadKey::new`].
    pub(crate) fn new(cipher: Cipher, key: &[u8]) -> Result<(Self, ReadyKey), KeyError> {
        let ready = AeadKey::new(cipher, key)?;
        let mut bytes = KeyBytes([0; MAX_KEY_LEN]);
        bytes.0.get_mut(..key.len()).ok_or(KeyError::Library)?.copy_from_slice(key);
        let tag_len = ready.tag_len() as u8;
        Ok((Self { bytes, cipher, tag_len }, ReadyKey(OnceCell::from(Arc::new(ready)))))
    }

    /// Bytes of the tag.
    pub(crate) fn tag_len(&self) -> usize {
        self.tag_len.into()
    }

    /// See [`OpenRecord::fingerprint`](mmtls_tls::OpenRecord::fingerprint); `rest`: what else tells
    /// them apart.
    pub(crate) fn fingerprint(&self, iv: &[u8], rest: &[u8]) -> [u8; 32] {
        fingerprint(&[&[self.cipher as u8], &self.bytes.0, iv, rest])
    }
}

/// SHA-256 of these, each behind its length.
pub(crate) fn fingerprint(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Context::new(&SHA256);
    for part in parts {
        hash.update(&part.len().to_be_bytes());
        hash.update(part);
    }
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(hash.finish().as_ref());
    fingerprint
}

impl ReadyKey {
    /// The key, set up. `None` where the library has no memory for it.
    #[inline]
    pub(crate) fn get(&self, key: &OpeningKey) -> Option<&AeadKey> {
        match self.0.get() {
            Some(ready) => Some(ready),
            None => self.set_up(key),
        }
    }

    #[cold]
    fn set_up(&self, key: &OpeningKey) -> Option<&AeadKey> {
        let bytes = key.bytes.0.get(..key.cipher.key_len())?;
        let ready = Arc::new(AeadKey::new(key.cipher, bytes).ok()?);
        Some(self.0.get_or_init(|| ready))
    }

    /// Does without until the next record.
    pub(crate) fn rest(&mut self) {
        self.0.take();
    }
}
