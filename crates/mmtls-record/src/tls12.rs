//! Opening TLS 1.2 records (RFC 5246, section 6.2.3) with AEAD ciphers: GCM (RFC 5288), CCM
//! (RFC 6655) and ChaCha20-Poly1305 (RFC 7905). The CBC ciphers are in [`cbc`].
//!
//! The content type is the header's, the sequence number is authenticated with the content.
//! Refuses to release a byte before its tag has been verified.

pub(crate) mod cbc;

use mmtls_tls::{ContentType, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN};
use zeroize::ZeroizeOnDrop;

use crate::KeyError;
use crate::aead::Iv;
use crate::opening_key::{OpeningKey, ReadyKey};
use crate::suite::{Cipher, IV_LEN, SALT_LEN, Suite};
use crate::tls13_record::MAX_CONTENT_LEN;

/// Longest protected fragment in bytes (RFC 5246, section 6.2.3).
pub(crate) const MAX_FRAGMENT_LEN: usize = 16384 + 2048;

/// Nonce bytes that a GCM or CCM record carries (RFC 5288, section 3).
pub(crate) const EXPLICIT_NONCE_LEN: usize = 8;

/// Bytes of the additional data and of a MAC's prefix.
const ADDITIONAL_LEN: usize = 13;

/// The read keys of one direction of a TLS 1.2 session with an AEAD suite.
#[derive(Clone)]
pub(crate) struct AeadOpener {
    key: OpeningKey,
    ready: ReadyKey,
    nonces: Nonces,
}

impl AeadOpener {
    /// Takes keys whose lengths have been checked against the suite.
    pub(crate) fn new(suite: &Suite, key: &[u8], iv: &[u8]) -> Result<Self, KeyError> {
        let (key, ready) = OpeningKey::new(suite.cipher(), key)?;
        Ok(Self { key, ready, nonces: Nonces::new(suite, iv)? })
    }
}

impl OpenRecord for AeadOpener {
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        check_length(header, fragment)?;
        let (nonce, protected) =
            self.nonces.split(sequence, fragment).ok_or(OpenError::Authentication)?;
        let len =
            protected.len().checked_sub(self.key.tag_len()).ok_or(OpenError::Authentication)?;
        let (ciphertext, tag) = protected.split_at(len);
        let content = plaintext.get_mut(..len).ok_or(OpenError::Malformed)?;
        let key = self.ready.get(&self.key).ok_or(OpenError::Authentication)?;
        key.open(nonce, additional_data(sequence, header, len)?, ciphertext, tag, content)
            .map_err(|_| OpenError::Authentication)?;
        opened(header, len)
    }

    fn fingerprint(&self) -> [u8; 32] {
        let nonce = match &self.nonces {
            Nonces::Explicit(salt) => salt.nonce([0; EXPLICIT_NONCE_LEN]),
            Nonces::Sequence(iv) => iv.nonce(0),
        };
        self.key.fingerprint(&nonce, &[])
    }

    fn content_len(&self, fragment_len: usize) -> usize {
        let explicit = match self.nonces {
            Nonces::Explicit(_) => EXPLICIT_NONCE_LEN,
            Nonces::Sequence(_) => 0,
        };
        fragment_len.saturating_sub(explicit + self.key.tag_len())
    }

    fn content_len_is_exact(&self) -> bool {
        true
    }

    fn rest(&mut self) {
        self.ready.rest();
    }

    fn share(&self) -> Option<Box<dyn OpenRecord>> {
        Some(Box::new(self.clone()))
    }
}

/// How a record's nonce is made.
#[derive(Clone)]
pub(crate) enum Nonces {
    /// Four secret bytes, then eight that the record carries.
    Explicit(Salt),
    /// IV xor sequence number; the record carries nothing.
    Sequence(Iv),
}

/// The implicit part of a nonce of GCM and CCM.
#[derive(Clone, ZeroizeOnDrop)]
pub(crate) struct Salt([u8; SALT_LEN]);

impl Salt {
    /// The nonce of a record that carries `explicit`.
    pub(crate) fn nonce(&self, explicit: [u8; EXPLICIT_NONCE_LEN]) -> [u8; IV_LEN] {
        let mut nonce = [0; IV_LEN];
        let (salt, rest) = nonce.split_at_mut(SALT_LEN);
        salt.copy_from_slice(&self.0);
        rest.copy_from_slice(&explicit);
        nonce
    }
}

impl Nonces {
    pub(crate) fn new(suite: &Suite, iv: &[u8]) -> Result<Self, KeyError> {
        if suite.cipher() == Cipher::ChaCha20Poly1305 {
            return Iv::new(iv).map(Self::Sequence);
        }
        let wrong = KeyError::IvLength { expected: SALT_LEN, actual: iv.len() };
        iv.try_into().map(|salt| Self::Explicit(Salt(salt))).map_err(|_| wrong)
    }

    /// The nonce of a record and the rest of its fragment; `None` when the fragment is too short.
    fn split<'a>(&self, sequence: u64, fragment: &'a [u8]) -> Option<([u8; IV_LEN], &'a [u8])> {
        match self {
            Self::Explicit(salt) => {
                let (explicit, rest) = fragment.split_first_chunk()?;
                Some((salt.nonce(*explicit), rest))
            }
            Self::Sequence(iv) => Some((iv.nonce(sequence), fragment)),
        }
    }
}

/// The additional data of an AEAD and what a MAC covers before the content: sequence number,
/// content type, version, length (RFC 5246, sections 6.2.3.1 and 6.2.3.3).
pub(crate) fn additional_data(
    sequence: u64,
    header: [u8; RECORD_HEADER_LEN],
    len: usize,
) -> Result<[u8; ADDITIONAL_LEN], OpenError> {
    let len = u16::try_from(len).map_err(|_| OpenError::Malformed)?;
    let mut data = [0; ADDITIONAL_LEN];
    data[..8].copy_from_slice(&sequence.to_be_bytes());
    data[8..11].copy_from_slice(&header[..3]);
    data[11..].copy_from_slice(&len.to_be_bytes());
    Ok(data)
}

/// Checks what no tag covers: the header's length is not authenticated, only the content's is.
fn check_length(header: [u8; RECORD_HEADER_LEN], fragment: &[u8]) -> Result<(), OpenError> {
    let declared = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if declared != fragment.len() || declared > MAX_FRAGMENT_LEN {
        return Err(OpenError::Malformed);
    }
    Ok(())
}

/// The answer for a record that is authentic: legal only up to 2^14 bytes of content.
fn opened(header: [u8; RECORD_HEADER_LEN], len: usize) -> Result<Opened, OpenError> {
    if len > MAX_CONTENT_LEN {
        return Err(OpenError::Malformed);
    }
    Ok(Opened { content_type: ContentType(header[0]), len })
}

#[cfg(test)]
mod tests;
