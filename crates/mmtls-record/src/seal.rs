//! Sealing TLS 1.3 records: what tests, benchmarks and later endpoints need.
//!
//! The inline monitor never seals. Refuses content over 2^14 bytes.

use aws_lc_rs::aead::{Aad, LessSafeKey};
use mmtls_engine::tls::{ContentType, RECORD_HEADER_LEN};

use crate::KeyError;
use crate::suite::TAG_LEN;
use crate::tls13::{Iv, aead_key};

/// The write keys of one direction and epoch of a TLS 1.3 session.
pub struct Tls13Sealer {
    key: LessSafeKey,
    iv: Iv,
}

impl Tls13Sealer {
    /// Sets up the keys of a suite.
    ///
    /// # Errors
    /// [`KeyError`] when the suite is not supported or a length is wrong.
    pub fn new(suite: u16, key: &[u8], iv: &[u8]) -> Result<Self, KeyError> {
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
        let inner_len = content
            .len()
            .checked_add(padding)
            .filter(|&len| len <= 16384)?
            + 1;
        let fragment_len = u16::try_from(inner_len + TAG_LEN).ok()?.to_be_bytes();
        let header = [23, 3, 3, fragment_len[0], fragment_len[1]];
        let mut record = Vec::with_capacity(RECORD_HEADER_LEN + inner_len + TAG_LEN);
        record.extend_from_slice(&header);
        record.extend_from_slice(content);
        record.push(content_type.0);
        record.resize(RECORD_HEADER_LEN + inner_len, 0);
        let tag = self
            .key
            .seal_in_place_separate_tag(
                self.iv.nonce(sequence),
                Aad::from(header),
                &mut record[RECORD_HEADER_LEN..],
            )
            .ok()?;
        record.extend_from_slice(tag.as_ref());
        Some(record)
    }
}
