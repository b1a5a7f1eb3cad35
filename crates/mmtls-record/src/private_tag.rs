//! The private tag: a second tag on every record, under a key that middleboxes never get.
//! `docs/private-tag.md` specifies it byte by byte and says why it holds.
//!
//! Job: both tags of the endpoints' records, sealing and opening. What a middlebox does with the
//! same records, with the record key alone, is [`crate::Tls13Opener`]'s.
//!
//! Refuses to release a byte unless both tags match, and suites that have no private tag.

use aegis::aegis128x2::Aegis128X2Mac;
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use mmtls_tls::{ContentType, OpenError, Opened, RECORD_HEADER_LEN};
use zeroize::Zeroizing;

use crate::KeyError;
use crate::aead::{AeadKey, BadTag, Iv};
use crate::suite::{self, Cipher, IV_LEN, Suite, TLS13};
use crate::tls13_record::{self, MAX_CONTENT_LEN};

/// Bytes of the private tag, whatever the suite.
pub const PRIVATE_TAG_LEN: usize = 16;

/// Label of the key in the key schedule, without the "tls13 " in front of every label.
pub const LABEL: &[u8] = b"mmtls ptag";

/// The suites with a private tag, the one that most servers prefer first.
pub const SUITES: [u16; 5] = [0xff32, 0xff31, 0xff33, 0xff34, 0xff35];

const AEGIS_KEY_LEN: usize = 16;

/// Bytes of a suite's key for the private tag.
///
/// # Errors
/// [`KeyError`] when there is no such suite or it has no private tag.
pub fn key_len(suite: u16) -> Result<usize, KeyError> {
    Ok(match find(suite)?.cipher() {
        Cipher::ChaCha20Poly1305 => 32,
        _ => AEGIS_KEY_LEN,
    })
}

/// The key of the private tag, ready for use, and wiped when it is dropped. What the libraries leave
/// of a record's MAC on the stack is not: with that, the tag of this one nonce could be forged.
pub struct PrivateTagKey(Mac);

/// The MAC of a suite (`docs/private-tag.md`, section 4), with its key.
enum Mac {
    /// AEGISMAC-128X2 (RFC 10032), with the AES suites.
    /// In a place of its own: moves would leave copies.
    Aegis(Box<Zeroizing<[u8; AEGIS_KEY_LEN]>>),
    /// ChaCha20-Poly1305 without plaintext. The library wipes the key.
    ChaCha20Poly1305(LessSafeKey),
}

impl PrivateTagKey {
    /// Sets up a key of [`crate::key_schedule::private_tag_key`].
    ///
    /// # Errors
    /// [`KeyError`] when the suite has no private tag or the length is wrong.
    pub fn new(suite: u16, key: &[u8]) -> Result<Self, KeyError> {
        let (expected, actual) = (key_len(suite)?, key.len());
        if actual != expected {
            return Err(KeyError::KeyLength { expected, actual });
        }
        Ok(Self(match find(suite)?.cipher() {
            Cipher::ChaCha20Poly1305 => {
                let key = UnboundKey::new(&aead::CHACHA20_POLY1305, key);
                Mac::ChaCha20Poly1305(LessSafeKey::new(key.map_err(|_| KeyError::Library)?))
            }
            _ => {
                let mut own = Box::new(Zeroizing::new([0; AEGIS_KEY_LEN]));
                own.copy_from_slice(key);
                Mac::Aegis(own)
            }
        }))
    }

    /// The private tag of `text`: record header, ciphertext and tag. A nonce must not be used for
    /// two texts. `None` when the library refuses, which no length of a record can cause.
    #[must_use]
    pub fn tag(&self, nonce: [u8; IV_LEN], text: &[u8]) -> Option<[u8; PRIVATE_TAG_LEN]> {
        match &self.0 {
            Mac::Aegis(key) => Some(aegis(key, nonce, text).finalize()),
            Mac::ChaCha20Poly1305(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(text), &mut []).ok()?;
                tag.as_ref().try_into().ok()
            }
        }
    }

    /// Whether `tag` is the private tag of `text`, compared in constant time.
    #[must_use]
    pub fn verify(&self, nonce: [u8; IV_LEN], text: &[u8], tag: &[u8]) -> bool {
        // The libraries take other lengths for wrong ones too, but this must not depend on it.
        let Ok(tag) = <&[u8; PRIVATE_TAG_LEN]>::try_from(tag) else {
            return false;
        };
        match &self.0 {
            Mac::Aegis(key) => aegis(key, nonce, text).verify(tag).is_ok(),
            Mac::ChaCha20Poly1305(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_separate_gather(nonce, Aad::from(text), &[], tag, &mut []).is_ok()
            }
        }
    }
}

/// The MAC with the whole text taken in.
fn aegis(
    key: &[u8; AEGIS_KEY_LEN],
    nonce: [u8; IV_LEN],
    text: &[u8],
) -> Aegis128X2Mac<PRIVATE_TAG_LEN> {
    // AEGIS has longer nonces.
    let mut padded = [0; 16];
    for (to, from) in padded.iter_mut().zip(nonce) {
        *to = from;
    }
    let mut mac = Aegis128X2Mac::new_with_nonce(key, &padded);
    mac.update(text);
    mac
}

/// What both sides hold for one direction and epoch.
struct Keys {
    aead: AeadKey,
    iv: Iv,
    private: PrivateTagKey,
}

impl Keys {
    fn new(suite: u16, key: &[u8], iv: &[u8], private: &[u8]) -> Result<Self, KeyError> {
        find(suite)?;
        let (aead, iv) = tls13_record::aead_key(suite, key, iv)?;
        Ok(Self { aead, iv, private: PrivateTagKey::new(suite, private)? })
    }

    /// Bytes that a record adds to its inner plaintext.
    fn overhead(&self) -> usize {
        self.aead.tag_len() + PRIVATE_TAG_LEN
    }
}

/// The write keys of one direction and epoch at an endpoint.
pub struct PrivateTagSealer(Keys);

impl PrivateTagSealer {
    /// Sets up record key, IV and private-tag key of a suite.
    ///
    /// # Errors
    /// [`KeyError`] when the suite has no private tag or a length is wrong.
    pub fn new(suite: u16, key: &[u8], iv: &[u8], private: &[u8]) -> Result<Self, KeyError> {
        Keys::new(suite, key, iv, private).map(Self)
    }

    /// Bytes of a fragment (what follows the record header) with so many content bytes and no
    /// padding.
    #[must_use]
    pub fn fragment_len(&self, content_len: usize) -> usize {
        content_len.saturating_add(1 + self.0.overhead())
    }

    /// Seals one record into `out`, header included; what was there is gone.
    ///
    /// `padding` zero bytes follow the content type. `None` when content and padding together
    /// have more than 2^14 bytes; `out` must then not be sent.
    #[must_use]
    pub fn seal_into(
        &self,
        sequence: u64,
        content_type: ContentType,
        content: &[u8],
        padding: usize,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let content_len = content.len().checked_add(padding)?;
        if content_len > MAX_CONTENT_LEN {
            return None;
        }
        let fragment_len = self.fragment_len(content_len);
        let length = u16::try_from(fragment_len).ok()?.to_be_bytes();
        let header = [23, 3, 3, length[0], length[1]];
        // Not cleared first: a buffer of the right length needs no zeroes.
        out.resize(RECORD_HEADER_LEN + fragment_len, 0);
        let (record, private_tag) = out.split_last_chunk_mut::<PRIVATE_TAG_LEN>()?;
        let nonce = self.0.iv.nonce(sequence);
        let (start, protected) = record.split_first_chunk_mut::<RECORD_HEADER_LEN>()?;
        *start = header;
        if padding == 0 {
            self.0.aead.seal_apart(nonce, &header, content, &[content_type.0], protected)?;
        } else {
            let mut trailer = vec![0; padding + 1];
            *trailer.first_mut()? = content_type.0;
            self.0.aead.seal_apart(nonce, &header, content, &trailer, protected)?;
        }
        *private_tag = self.0.private.tag(nonce, record)?;
        Some(())
    }

    /// Seals one record and returns it whole, as [`PrivateTagSealer::seal_into`].
    #[must_use]
    pub fn seal(
        &self,
        sequence: u64,
        content_type: ContentType,
        content: &[u8],
        padding: usize,
    ) -> Option<Vec<u8>> {
        let mut record = Vec::new();
        self.seal_into(sequence, content_type, content, padding, &mut record)?;
        Some(record)
    }
}

/// The read keys of one direction and epoch at an endpoint.
pub struct PrivateTagOpener(Keys);

impl PrivateTagOpener {
    /// Sets up record key, IV and private-tag key of a suite.
    ///
    /// # Errors
    /// [`KeyError`] when the suite has no private tag or a length is wrong.
    pub fn new(suite: u16, key: &[u8], iv: &[u8], private: &[u8]) -> Result<Self, KeyError> {
        Keys::new(suite, key, iv, private).map(Self)
    }

    /// Verifies both tags of a whole record, header included, and decrypts it.
    ///
    /// The content is then at the start of `plaintext`, which needs room for the record's inner
    /// plaintext: the fragment without its tags. On failure `plaintext` must not be used.
    ///
    /// # Errors
    /// As [`PrivateTagOpener::decrypt`]; and [`OpenError::Malformed`] for an authentic record
    /// without a content type or with too much content.
    pub fn open(
        &self,
        sequence: u64,
        record: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let len = self.decrypt(sequence, record, plaintext)?;
        tls13_record::content(plaintext.get(..len).ok_or(OpenError::Malformed)?)
    }

    /// As [`PrivateTagOpener::open`], but leaves content type and padding behind the content: for
    /// TLS stacks that look at those themselves. Returns the length of all three.
    ///
    /// # Errors
    /// [`OpenError::Authentication`] when a tag does not match, whichever, or is not there: the
    /// receiver's alert is `bad_record_mac` in all these cases. [`OpenError::Malformed`] when
    /// `inner` is too small.
    pub fn decrypt(
        &self,
        sequence: u64,
        record: &[u8],
        inner: &mut [u8],
    ) -> Result<usize, OpenError> {
        let nonce = self.0.iv.nonce(sequence);
        let (text, private_tag) =
            record.split_last_chunk::<PRIVATE_TAG_LEN>().ok_or(OpenError::Authentication)?;
        // First, so that nothing of a record is decrypted that only a middlebox vouches for.
        if !self.0.private.verify(nonce, text, private_tag) {
            return Err(OpenError::Authentication);
        }
        let (header, fragment) =
            text.split_first_chunk::<RECORD_HEADER_LEN>().ok_or(OpenError::Authentication)?;
        let (ciphertext, tag) = tls13_record::split(fragment, self.0.aead.tag_len(), 0)
            .ok_or(OpenError::Authentication)?;
        let inner = inner.get_mut(..ciphertext.len()).ok_or(OpenError::Malformed)?;
        self.0
            .aead
            .open(nonce, *header, ciphertext, tag, inner)
            .map_err(|BadTag| OpenError::Authentication)?;
        Ok(ciphertext.len())
    }
}

/// A suite with a private tag.
fn find(suite: u16) -> Result<&'static Suite, KeyError> {
    let found = suite::find(TLS13, suite)?;
    if found.has_private_tag() { Ok(found) } else { Err(KeyError::PrivateTag(suite)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::TLS12;
    use crate::{Sealer, Tls13Sealer, key_schedule, open_record};

    const DATA: ContentType = ContentType::APPLICATION_DATA;

    struct Side {
        sealer: PrivateTagSealer,
        opener: PrivateTagOpener,
        middlebox: Box<dyn mmtls_tls::OpenRecord>,
    }

    fn side(suite: u16) -> Side {
        let secret = vec![7; find(suite).unwrap().hash().output_len()];
        let keys = key_schedule::traffic_keys(suite, &secret).unwrap();
        let private = key_schedule::private_tag_key(suite, &secret).unwrap();
        let (key, iv, private) = (keys.key(), keys.iv(), private.as_bytes());
        assert_ne!(key, private);
        Side {
            sealer: PrivateTagSealer::new(suite, key, iv, private).unwrap(),
            opener: PrivateTagOpener::new(suite, key, iv, private).unwrap(),
            middlebox: open_record(TLS13, suite, key, iv, &[]).unwrap(),
        }
    }

    #[test]
    fn accepts_records_at_the_endpoint_and_in_the_middle() {
        for suite in SUITES {
            let side = side(suite);
            for (content, padding) in [(0, 0), (1, 0), (5, 300), (16384, 0), (1, 16383)] {
                let content = vec![b'x'; content];
                let record = side.sealer.seal(9, DATA, &content, padding).unwrap();
                let mut out = vec![0; record.len()];
                let opened = side.opener.open(9, &record, &mut out).unwrap();
                assert_eq!((opened.content_type, &out[..opened.len]), (DATA, &content[..]));
                let (header, fragment) = record.split_first_chunk().unwrap();
                assert!(fragment.len() <= 16384 + 256, "RFC 8446, section 5.2");
                let mut out = vec![0; record.len()];
                let opened = side.middlebox.open(9, *header, fragment, &mut out).unwrap();
                assert_eq!((opened.content_type, &out[..opened.len]), (DATA, &content[..]));
                assert_eq!(side.middlebox.content_len(fragment.len()), content.len() + padding);
                assert_eq!(side.sealer.fragment_len(content.len() + padding), fragment.len());
            }
        }
    }

    #[test]
    fn refuses_any_changed_byte_and_other_sequence_numbers() {
        for suite in SUITES {
            let side = side(suite);
            let record = side.sealer.seal(0, ContentType::HANDSHAKE, b"abc", 2).unwrap();
            let mut out = vec![0; record.len()];
            for at in 0..record.len() {
                for bit in 0..8 {
                    let mut changed = record.clone();
                    changed[at] ^= 1 << bit;
                    let answer = side.opener.open(0, &changed, &mut out);
                    assert_eq!(answer, Err(OpenError::Authentication), "byte {at}");
                }
            }
            assert_eq!(side.opener.open(1, &record, &mut out), Err(OpenError::Authentication));
            for len in 0..record.len() {
                assert!(side.opener.open(0, &record[..len], &mut out).is_err(), "{len} bytes");
            }
        }
    }

    /// With the record key one can make the first tag, and nothing else.
    #[test]
    fn refuses_records_that_a_holder_of_the_record_key_made() {
        for suite in SUITES {
            let side = side(suite);
            let secret = vec![7; find(suite).unwrap().hash().output_len()];
            let keys = key_schedule::traffic_keys(suite, &secret).unwrap();
            let len = key_len(suite).unwrap();
            for wrong in [keys.key()[..len].to_vec(), vec![0; len]] {
                let forger = PrivateTagSealer::new(suite, keys.key(), keys.iv(), &wrong).unwrap();
                let record = forger.seal(0, DATA, b"forged", 0).unwrap();
                let (header, fragment) = record.split_first_chunk().unwrap();
                let mut out = vec![0; record.len()];
                assert!(side.middlebox.open(0, *header, fragment, &mut out).is_ok());
                let answer = side.opener.open(0, &record, &mut out);
                assert_eq!(answer, Err(OpenError::Authentication));
            }
        }
    }

    /// RFC 10032, appendix A: the tag of 128 bits of AEGISMAC-128X2. The nonce there ends in
    /// zeroes, as ours do.
    #[test]
    fn accepts_the_test_vector_of_the_rfc() {
        let data: Vec<u8> = (0..=0x22).collect();
        let (mut key, mut nonce) = ([0; AEGIS_KEY_LEN], [0; IV_LEN]);
        (key[0], key[1]) = (0x10, 0x01);
        (nonce[0], nonce[2]) = (0x10, 0x02);
        let tag = 0x6873_ee34_e6b5_c591_43b6_d35c_5e4f_2c6e_u128;
        let key = PrivateTagKey::new(0xff32, &key).unwrap();
        assert_eq!(key.tag(nonce, &data), Some(tag.to_be_bytes()));
        assert!(key.verify(nonce, &data, &tag.to_be_bytes()));
        assert!(!key.verify(nonce, &data, &(tag ^ 1).to_be_bytes()));
        assert!(!key.verify(nonce, &data, &tag.to_be_bytes()[..15]));
    }

    #[test]
    fn refuses_wrong_suites_and_lengths() {
        let (key, iv) = ([0; 16], [0; 12]);
        let error = PrivateTagSealer::new(0x1301, &key, &iv, &key).err();
        assert_eq!(error, Some(KeyError::PrivateTag(0x1301)));
        for (suite, record, wrong, expected) in
            [(0xff31, 16, 32, 16), (0xff32, 32, 32, 16), (0xff33, 32, 16, 32)]
        {
            let error = PrivateTagOpener::new(suite, &vec![0; record], &iv, &vec![0; wrong]).err();
            assert_eq!(error, Some(KeyError::KeyLength { expected, actual: wrong }));
        }
        assert_eq!(
            key_schedule::private_tag_key(0x1301, &[0; 32]).err(),
            Some(KeyError::PrivateTag(0x1301))
        );
        // A sealer that has no key for the private tag must not leave it out.
        assert_eq!(Tls13Sealer::new(0xff31, &key, &iv).err(), Some(KeyError::PrivateTag(0xff31)));
        assert!(Sealer::new(TLS13, 0xff31, &key, &iv, &[]).is_err());
        assert!(!suite::is_supported(TLS12, 0xff31));
        let sealer = PrivateTagSealer::new(0xff31, &key, &iv, &key).unwrap();
        assert!(sealer.seal(0, DATA, &[0; 16385], 0).is_none());
        assert!(sealer.seal(0, DATA, &[0; 16384], 1).is_none());
        assert!(sealer.seal(0, DATA, &[], usize::MAX).is_none());
    }
}
