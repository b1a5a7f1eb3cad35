//! Sealing records: what tests, benchmarks and later endpoints need.
//!
//! The inline monitor never seals. Refuses content over 2^14 bytes.

use aws_lc_rs::cipher::EncryptingKey;
use aws_lc_rs::rand;
use mmtls_tls::{ContentType, RECORD_HEADER_LEN};

use crate::KeyError;
use crate::aead::{AeadKey, Iv};
use crate::suite::{self, Suite, TLS13};
use crate::tls12::cbc::{self, BLOCK_LEN, Mac};
use crate::tls12::{MAX_FRAGMENT_LEN, Nonces, additional_data};
use crate::tls13_record::{MAX_CONTENT_LEN, aead_key};

/// The write keys of one direction and epoch, of any supported version and suite.
pub struct Sealer {
    keys: WriteKeys,
}

enum WriteKeys {
    Tls13(Tls13Sealer),
    Aead { key: AeadKey, nonces: Nonces },
    Cbc { key: Box<EncryptingKey>, mac: Box<Mac>, encrypt_then_mac: bool },
}

impl Sealer {
    /// Sets up keys, as [`crate::open_record`] does for reading.
    ///
    /// # Errors
    /// [`KeyError`] when version or suite is not supported or a length is wrong.
    pub fn new(
        version: u16,
        suite: u16,
        key: &[u8],
        iv: &[u8],
        mac_key: &[u8],
    ) -> Result<Self, KeyError> {
        let found: &Suite = suite::find(version, suite)?;
        found.check(key, iv, mac_key)?;
        let cipher = found.cipher();
        let keys = if version == TLS13 {
            WriteKeys::Tls13(Tls13Sealer::new(suite, key, iv)?)
        } else if cipher.is_cbc() {
            let key = Box::new(cbc::encrypting_key(key)?);
            let mac = Box::new(Mac::new(cipher, mac_key)?);
            WriteKeys::Cbc { key, mac, encrypt_then_mac: false }
        } else {
            WriteKeys::Aead { key: AeadKey::new(cipher, key)?, nonces: Nonces::new(found, iv)? }
        };
        Ok(Self { keys })
    }

    /// The hellos agreed on encrypt-then-MAC (RFC 7366); means nothing but for CBC suites.
    pub fn set_encrypt_then_mac(&mut self) {
        if let WriteKeys::Cbc { encrypt_then_mac, .. } = &mut self.keys {
            *encrypt_then_mac = true;
        }
    }

    /// Seals one record and returns it whole, header included.
    ///
    /// `padding` is that of [`Tls13Sealer::seal`]; for CBC it is the number of padding bytes that
    /// are asked for, which grows to whole blocks. AEAD suites of TLS 1.2 have none. `None` when
    /// the content is longer than 2^14 bytes or the padding is impossible: over 255 bytes for
    /// CBC, not 0 for AEAD suites of TLS 1.2.
    #[must_use]
    pub fn seal(
        &self,
        sequence: u64,
        content_type: ContentType,
        content: &[u8],
        padding: usize,
    ) -> Option<Vec<u8>> {
        if content.len() > MAX_CONTENT_LEN {
            return None;
        }
        let mut record = vec![content_type.0, 3, 3, 0, 0];
        match &self.keys {
            WriteKeys::Tls13(sealer) => {
                return sealer.seal(sequence, content_type, content, padding);
            }
            WriteKeys::Aead { .. } if padding != 0 => return None,
            WriteKeys::Aead { key, nonces } => {
                let additional = prefix(sequence, &record, content.len())?;
                let nonce = match nonces {
                    Nonces::Explicit(salt) => {
                        // The sequence number is the simplest nonce that never repeats.
                        record.extend_from_slice(&sequence.to_be_bytes());
                        salt.nonce(sequence.to_be_bytes())
                    }
                    Nonces::Sequence(iv) => iv.nonce(sequence),
                };
                let start = record.len();
                record.extend_from_slice(content);
                key.seal(nonce, &additional, &mut record, start)?;
            }
            WriteKeys::Cbc { key, mac, encrypt_then_mac } => {
                // Unpredictable, as CBC needs it (RFC 5246, section 6.2.3.2).
                let mut iv = [0; BLOCK_LEN];
                rand::fill(&mut iv).ok()?;
                record.extend_from_slice(&iv);
                let start = record.len();
                record.extend_from_slice(content);
                if !encrypt_then_mac {
                    let additional = prefix(sequence, &record, content.len())?;
                    record.extend_from_slice(mac.sign(&additional, content).as_ref());
                }
                let unpadded = record.len() - start;
                let padded = (unpadded + 1 + padding).next_multiple_of(BLOCK_LEN);
                let padding_length = u8::try_from(padded - unpadded - 1).ok()?;
                record.resize(start + padded, padding_length);
                cbc::encrypt(key, iv, record.get_mut(start..)?)?;
                if *encrypt_then_mac {
                    let encrypted = record.get(RECORD_HEADER_LEN..)?;
                    let additional = prefix(sequence, &record, encrypted.len())?;
                    let tag = mac.sign(&additional, encrypted);
                    record.extend_from_slice(tag.as_ref());
                }
            }
        }
        let len = record.len().checked_sub(RECORD_HEADER_LEN).filter(|&l| l <= MAX_FRAGMENT_LEN)?;
        let len = u16::try_from(len).ok()?;
        record.get_mut(3..RECORD_HEADER_LEN)?.copy_from_slice(&len.to_be_bytes());
        Some(record)
    }
}

/// The additional data of a record that begins with its header.
fn prefix(sequence: u64, record: &[u8], len: usize) -> Option<[u8; 13]> {
    additional_data(sequence, *record.first_chunk()?, len).ok()
}

/// The write keys of one direction and epoch of a TLS 1.3 session.
pub struct Tls13Sealer {
    key: AeadKey,
    iv: Iv,
}

impl Tls13Sealer {
    /// Sets up the keys of a suite without a private tag; the others need
    /// [`crate::PrivateTagSealer`].
    ///
    /// # Errors
    /// [`KeyError`] when the suite is not supported, has a private tag or a length is wrong.
    pub fn new(suite: u16, key: &[u8], iv: &[u8]) -> Result<Self, KeyError> {
        if suite::has_private_tag(suite) {
            return Err(KeyError::PrivateTag(suite));
        }
        let (key, iv) = aead_key(suite, key, iv)?;
        Ok(Self { key, iv })
    }

    /// Seals one record and returns it whole, header included.
    ///
    /// `padding` zero bytes follow the content type. Content and padding together may have at
    /// most 2^14 bytes, else `None`.
    #[must_use]
    pub fn seal(
        &self,
        sequence: u64,
        content_type: ContentType,
        content: &[u8],
        padding: usize,
    ) -> Option<Vec<u8>> {
        let inner_len =
            content.len().checked_add(padding).filter(|&len| len <= MAX_CONTENT_LEN)? + 1;
        let fragment_len = inner_len + self.key.tag_len();
        let length = u16::try_from(fragment_len).ok()?.to_be_bytes();
        let header = [23, 3, 3, length[0], length[1]];
        let mut record = Vec::with_capacity(RECORD_HEADER_LEN + fragment_len);
        record.extend_from_slice(&header);
        record.extend_from_slice(content);
        record.push(content_type.0);
        record.resize(RECORD_HEADER_LEN + inner_len, 0);
        self.key.seal(self.iv.nonce(sequence), &header, &mut record, RECORD_HEADER_LEN)?;
        Some(record)
    }
}
