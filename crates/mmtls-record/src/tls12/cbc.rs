//! Opening TLS 1.2 records of the CBC suites (RFC 5246, section 6.2.3.2): explicit IV, padding,
//! HMAC; MAC-then-encrypt, or encrypt-then-MAC (RFC 7366) once the hellos agreed on it.
//!
//! Every padding byte and the whole MAC are verified. Refuses to say which of the two was wrong,
//! and to leave unverified plaintext in the output. With MAC-then-encrypt a wrong padding costs
//! the time of a MAC too, as RFC 5246 asks of endpoints; the number of hashed bytes still depends
//! on the padding, as in any code that is not constant-time throughout.

use std::sync::Arc;

use aws_lc_rs::cipher::{AES_128, AES_256, Algorithm, DecryptingKey, DecryptionContext};
use aws_lc_rs::cipher::{EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{constant_time, hmac};
use mmtls_tls::{OpenError, OpenRecord, Opened, RECORD_HEADER_LEN};

use super::{additional_data, check_length, opened};
use crate::KeyError;
use crate::opening_key::fingerprint;
use crate::suite::{Cipher, Suite};

/// Bytes of an AES block and of the IV that every record carries.
pub(crate) const BLOCK_LEN: usize = 16;

/// The read keys of one direction of a TLS 1.2 session with a CBC suite.
pub(crate) struct CbcOpener {
    key: Arc<DecryptingKey>,
    mac: Mac,
    encrypt_then_mac: bool,
}

impl CbcOpener {
    /// Takes keys whose lengths have been checked against the suite.
    pub(crate) fn new(suite: &Suite, key: &[u8], mac_key: &[u8]) -> Result<Self, KeyError> {
        let unbound = unbound(key)?;
        let key = Arc::new(DecryptingKey::cbc(unbound).map_err(|_| KeyError::Library)?);
        Ok(Self { key, mac: Mac::new(suite.cipher(), mac_key)?, encrypt_then_mac: false })
    }

    /// Decrypts whole blocks into `out`, which has the length of `ciphertext`.
    fn decrypt(
        &self,
        iv: [u8; BLOCK_LEN],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<(), OpenError> {
        out.copy_from_slice(ciphertext);
        let context = DecryptionContext::Iv128(FixedLength::from(iv));
        self.key.decrypt(out, context).map(|_| ()).map_err(|_| OpenError::Authentication)
    }

    fn open_mac_then_encrypt(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        (iv, ciphertext): ([u8; BLOCK_LEN], &[u8]),
        out: &mut [u8],
    ) -> Result<usize, OpenError> {
        let without_padding =
            ciphertext.len().checked_sub(self.mac.len + 1).ok_or(OpenError::Authentication)?;
        self.decrypt(iv, ciphertext, out)?;
        let padding = padding(out).filter(|&padding| padding <= without_padding);
        // A wrong padding counts as none, so that the MAC is computed all the same.
        let len = without_padding - padding.unwrap_or(0);
        let (content, rest) = out.split_at(len);
        let mac = rest.get(..self.mac.len).ok_or(OpenError::Authentication)?;
        let authentic = self.mac.verify(&additional_data(sequence, header, len)?, content, mac);
        if authentic && padding.is_some() { Ok(len) } else { Err(OpenError::Authentication) }
    }

    fn open_encrypt_then_mac(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<usize, OpenError> {
        let len = fragment.len().checked_sub(self.mac.len).ok_or(OpenError::Authentication)?;
        let (encrypted, mac) = fragment.split_at(len);
        // The length is that of IV and ciphertext here (RFC 7366, section 3).
        if !self.mac.verify(&additional_data(sequence, header, len)?, encrypted, mac) {
            return Err(OpenError::Authentication);
        }
        let (iv, ciphertext) = blocks(encrypted).ok_or(OpenError::Malformed)?;
        let out = plaintext.get_mut(..ciphertext.len()).ok_or(OpenError::Malformed)?;
        self.decrypt(iv, ciphertext, out)?;
        let padding = padding(out).ok_or(OpenError::Malformed)?;
        Ok(out.len() - 1 - padding)
    }
}

impl OpenRecord for CbcOpener {
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        check_length(header, fragment)?;
        let len = if self.encrypt_then_mac {
            self.open_encrypt_then_mac(sequence, header, fragment, plaintext)?
        } else {
            let (iv, ciphertext) = blocks(fragment).ok_or(OpenError::Authentication)?;
            let out = plaintext.get_mut(..ciphertext.len()).ok_or(OpenError::Malformed)?;
            self.open_mac_then_encrypt(sequence, header, (iv, ciphertext), out)
                .inspect_err(|_| out.fill(0))?
        };
        opened(header, len)
    }

    fn fingerprint(&self) -> [u8; 32] {
        // The keys themselves are the library's: by what they do.
        let mut block = [0; BLOCK_LEN];
        let decrypted = self.decrypt([0; BLOCK_LEN], &[0; BLOCK_LEN], &mut block);
        let tag = self.mac.sign(&[u8::from(decrypted.is_ok())], &block);
        fingerprint(&[tag.as_ref()])
    }

    fn content_len(&self, fragment_len: usize) -> usize {
        // Padding is hidden, but for the byte that tells how much: an upper bound.
        fragment_len.saturating_sub(BLOCK_LEN + self.mac.len + 1)
    }

    fn set_encrypt_then_mac(&mut self) {
        self.encrypt_then_mac = true;
    }

    fn share(&self) -> Option<Box<dyn OpenRecord>> {
        let (key, mac) = (Arc::clone(&self.key), self.mac.clone());
        Some(Box::new(Self { key, mac, encrypt_then_mac: false }))
    }
}

/// Splits IV and ciphertext; `None` when they are not whole blocks, at least one of each.
fn blocks(encrypted: &[u8]) -> Option<([u8; BLOCK_LEN], &[u8])> {
    let (iv, ciphertext) = encrypted.split_first_chunk()?;
    let whole = !ciphertext.is_empty() && ciphertext.len().is_multiple_of(BLOCK_LEN);
    whole.then_some((*iv, ciphertext))
}

/// Padding bytes before the last byte, which tells their number; `None` when one of them is not
/// that number or they do not fit.
fn padding(decrypted: &[u8]) -> Option<usize> {
    let (&padding_length, rest) = decrypted.split_last()?;
    let padding = rest.get(rest.len().checked_sub(usize::from(padding_length))?..)?;
    // No early end: how many bytes were right must not show in the time.
    let wrong = padding.iter().fold(0, |wrong, byte| wrong | (byte ^ padding_length));
    (wrong == 0).then_some(padding.len())
}

/// The MAC of a CBC suite; the library wipes its key.
#[derive(Clone)]
pub(crate) struct Mac {
    key: hmac::Key,
    len: usize,
}

impl Mac {
    pub(crate) fn new(cipher: Cipher, mac_key: &[u8]) -> Result<Self, KeyError> {
        let algorithm = match cipher {
            Cipher::Aes128CbcSha1 | Cipher::Aes256CbcSha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            Cipher::Aes128CbcSha256 | Cipher::Aes256CbcSha256 => hmac::HMAC_SHA256,
            Cipher::Aes256CbcSha384 => hmac::HMAC_SHA384,
            _ => return Err(KeyError::Library),
        };
        Ok(Self { key: hmac::Key::new(algorithm, mac_key), len: cipher.mac_key_len() })
    }

    pub(crate) fn sign(&self, additional: &[u8], data: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(additional);
        context.update(data);
        context.sign()
    }

    fn verify(&self, additional: &[u8], data: &[u8], mac: &[u8]) -> bool {
        let expected = self.sign(additional, data);
        constant_time::verify_slices_are_equal(expected.as_ref(), mac).is_ok()
    }
}

/// Sets up the write key.
pub(crate) fn encrypting_key(key: &[u8]) -> Result<EncryptingKey, KeyError> {
    EncryptingKey::cbc(unbound(key)?).map_err(|_| KeyError::Library)
}

/// Encrypts whole blocks in place.
pub(crate) fn encrypt(key: &EncryptingKey, iv: [u8; BLOCK_LEN], blocks: &mut [u8]) -> Option<()> {
    let context = EncryptionContext::Iv128(FixedLength::from(iv));
    key.less_safe_encrypt(blocks, context).ok().map(|_| ())
}

fn unbound(key: &[u8]) -> Result<UnboundCipherKey, KeyError> {
    let algorithm: &'static Algorithm = if key.len() == 16 { &AES_128 } else { &AES_256 };
    UnboundCipherKey::new(algorithm, key).map_err(|_| KeyError::Library)
}
