//! Opening TLS 1.3 records (RFC 8446, section 5.2). Out of place: the packet stays as it was.
//!
//! Refuses to release a byte before its tag has been verified.

use mmtls_tls::{OpenError, OpenRecord, Opened, RECORD_HEADER_LEN};

use crate::KeyError;
use crate::aead::Iv;
use crate::opening_key::{OpeningKey, ReadyKey};
use crate::private_tag::PRIVATE_TAG_LEN;
use crate::suite::{self, TLS13};
use crate::tls13_record::{content, split};

/// The read keys of one direction and epoch of a TLS 1.3 session.
///
/// Of a suite with the private tag it verifies the AEAD's tag only, since the other key is not
/// for middleboxes. What the AEAD key is expanded to is wiped by the crypto library, key and IV by these types.
#[derive(Clone)]
pub struct Tls13Opener {
    key: OpeningKey,
    ready: ReadyKey,
    iv: Iv,
    private_tag_len: u8,
}

impl Tls13Opener {
    /// Sets up the keys of a suite.
    ///
    /// # Errors
    /// [`KeyError`] when the suite is not supported or a length is wrong.
    pub fn new(suite: u16, key: &[u8], iv: &[u8]) -> Result<Self, KeyError> {
        let private_tag_len = if suite::has_private_tag(suite) { PRIVATE_TAG_LEN as u8 } else { 0 };
        let suite = suite::find(TLS13, suite)?;
        suite.check(key, iv, &[])?;
        let (key, ready) = OpeningKey::new(suite.cipher(), key)?;
        Ok(Self { key, ready, iv: Iv::new(iv)?, private_tag_len })
    }

    fn private_tag_len(&self) -> usize {
        self.private_tag_len.into()
    }
}

impl OpenRecord for Tls13Opener {
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let (ciphertext, tag) = split(fragment, self.key.tag_len(), self.private_tag_len())
            .ok_or(OpenError::Authentication)?;
        let inner_len = ciphertext.len();
        let inner = plaintext.get_mut(..inner_len).ok_or(OpenError::Malformed)?;
        let key = self.ready.get(&self.key).ok_or(OpenError::Authentication)?;
        key.open(self.iv.nonce(sequence), header, ciphertext, tag, inner)
            .map_err(|_| OpenError::Authentication)?;
        content(inner)
    }

    fn fingerprint(&self) -> [u8; 32] {
        self.key.fingerprint(&self.iv.nonce(0), &[self.private_tag_len])
    }

    fn content_len(&self, fragment_len: usize) -> usize {
        // The content type takes one byte.
        fragment_len.saturating_sub(1 + self.key.tag_len() + self.private_tag_len())
    }

    fn rest(&mut self) {
        self.ready.rest();
    }

    fn share(&self) -> Option<Box<dyn OpenRecord>> {
        Some(Box::new(self.clone()))
    }
}

#[cfg(test)]
mod tests {
    use mmtls_tls::ContentType;

    use super::*;
    use crate::Tls13Sealer;

    const SUITES: [(u16, usize); 5] =
        [(0x1301, 16), (0x1302, 32), (0x1303, 32), (0x1304, 16), (0x1305, 16)];

    fn pair(suite: u16, key_len: usize) -> (Tls13Sealer, Tls13Opener) {
        let key = vec![7; key_len];
        (
            Tls13Sealer::new(suite, &key, &[9; 12]).unwrap(),
            Tls13Opener::new(suite, &key, &[9; 12]).unwrap(),
        )
    }

    fn header(record: &[u8]) -> [u8; 5] {
        record[..5].try_into().unwrap()
    }

    #[test]
    fn accepts_every_suite_with_and_without_padding() {
        for (suite, key_len) in SUITES {
            let (sealer, mut opener) = pair(suite, key_len);
            for padding in [0, 1, 300, 16384 - 5] {
                let record =
                    sealer.seal(3, ContentType::APPLICATION_DATA, b"hello", padding).unwrap();
                let mut out = vec![0; record.len()];
                let opened = opener.open(3, header(&record), &record[5..], &mut out).unwrap();
                assert_eq!(opened.content_type, ContentType::APPLICATION_DATA);
                assert_eq!(&out[..opened.len], b"hello");
                opener.rest();
                assert_eq!(opener.content_len(record.len() - 5), opened.len + padding);
            }
        }
    }

    #[test]
    fn refuses_any_changed_byte_and_other_sequence_numbers() {
        for (suite, key_len) in SUITES {
            let (sealer, opener) = pair(suite, key_len);
            let record = sealer.seal(0, ContentType::HANDSHAKE, b"abc", 2).unwrap();
            let mut out = vec![0; record.len()];
            for at in 0..record.len() {
                let mut changed = record.clone();
                changed[at] ^= 1;
                assert_eq!(
                    opener.open(0, header(&changed), &changed[5..], &mut out),
                    Err(OpenError::Authentication),
                    "byte {at}"
                );
            }
            assert!(opener.open(1, header(&record), &record[5..], &mut out).is_err());
        }
    }

    #[test]
    fn refuses_records_of_padding_only_and_short_fragments() {
        let (sealer, opener) = pair(0x1301, 16);
        let record = sealer.seal(0, ContentType(0), b"", 4).unwrap();
        let mut out = [0; 64];
        assert_eq!(
            opener.open(0, header(&record), &record[5..], &mut out),
            Err(OpenError::Malformed)
        );
        for len in 0..16 {
            assert!(opener.open(0, [23, 3, 3, 0, 0], &record[5..5 + len], &mut out).is_err());
        }
        assert!(opener.open(0, header(&record), &record[5..], &mut out[..2]).is_err());
    }

    #[test]
    fn refuses_what_no_peer_takes() {
        let (sealer, opener) = pair(0x1301, 16);
        let open = |content_type: ContentType, content: &[u8]| {
            let record = sealer.seal(0, content_type, content, 4).unwrap();
            let mut out = [0; 64];
            let opened = opener.open(0, header(&record), &record[5..], &mut out);
            opened.map(|opened| opened.content_type)
        };
        let legal: Vec<u8> = (1..=255).filter(|it| open(ContentType(*it), b"ab").is_ok()).collect();
        assert_eq!(
            legal.iter().map(|it| ContentType(*it)).collect::<Vec<_>>(),
            [ContentType::ALERT, ContentType::HANDSHAKE, ContentType::APPLICATION_DATA]
        );
        for (content_type, content) in [
            (ContentType::ALERT, &b"abc"[..]),
            (ContentType::ALERT, b""),
            (ContentType::HANDSHAKE, b""),
        ] {
            assert_eq!(open(content_type, content), Err(OpenError::Malformed), "{content_type:?}");
        }
        assert_eq!(open(ContentType::APPLICATION_DATA, b""), Ok(ContentType::APPLICATION_DATA));
    }

    #[test]
    fn tells_keys_apart() {
        let of = |suite: u16, key: u8, iv: u8| {
            let key_len = SUITES.iter().find(|(it, _)| *it == suite).unwrap().1;
            Tls13Opener::new(suite, &vec![key; key_len], &[iv; 12]).unwrap().fingerprint()
        };
        let all: Vec<_> = SUITES.iter().map(|(suite, _)| of(*suite, 7, 9)).collect();
        for (at, (suite, _)) in SUITES.into_iter().enumerate() {
            assert_eq!(all[at], of(suite, 7, 9));
            assert!(all.iter().skip(at + 1).all(|it| *it != all[at]), "{suite:04x}");
            assert!(all[at] != of(suite, 8, 9) && all[at] != of(suite, 7, 8), "{suite:04x}");
        }
    }

    #[test]
    fn refuses_keys_of_wrong_length() {
        assert_eq!(
            Tls13Opener::new(0x1302, &[0; 16], &[0; 12]).err(),
            Some(KeyError::KeyLength { expected: 32, actual: 16 })
        );
        assert_eq!(
            Tls13Opener::new(0x1301, &[0; 16], &[0; 8]).err(),
            Some(KeyError::IvLength { expected: 12, actual: 8 })
        );
    }
}
