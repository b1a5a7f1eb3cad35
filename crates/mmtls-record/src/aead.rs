//! The AEAD ciphers behind one face, out of place: input and output are different buffers.
//!
//! GCM and ChaCha20-Poly1305 come from aws-lc-rs, CCM (which it does not expose) from RustCrypto.
//! Refuses to leave unverified plaintext in the output.

use aes::{Aes128Enc, Aes256Enc};
use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ccm::aead::inout::InOutBuf;
use ccm::consts::{U8, U12, U16};
use ccm::{AeadInOut, Ccm, KeyInit};
use zeroize::ZeroizeOnDrop;

use crate::KeyError;
use crate::suite::{Cipher, IV_LEN};

/// Longest tag of the ciphers here in bytes.
const MAX_TAG_LEN: usize = 16;

/// A tag that does not match its record.
pub(crate) struct BadTag;

/// A key ready for use. The libraries wipe it when it is dropped.
pub(crate) enum AeadKey {
    Library(LessSafeKey),
    Aes128Ccm(Box<Ccm<Aes128Enc, U16, U12>>),
    Aes256Ccm(Box<Ccm<Aes256Enc, U16, U12>>),
    Aes128Ccm8(Box<Ccm<Aes128Enc, U8, U12>>),
    Aes256Ccm8(Box<Ccm<Aes256Enc, U8, U12>>),
}

impl AeadKey {
    /// Sets up a key whose length has been checked.
    ///
    /// # Errors
    /// [`KeyError::Library`], which needs a CBC cipher or a wrong length.
    pub(crate) fn new(cipher: Cipher, key: &[u8]) -> Result<Self, KeyError> {
        Ok(match cipher {
            Cipher::Aes128Gcm => library(&aead::AES_128_GCM, key)?,
            Cipher::Aes256Gcm => library(&aead::AES_256_GCM, key)?,
            Cipher::ChaCha20Poly1305 => library(&aead::CHACHA20_POLY1305, key)?,
            Cipher::Aes128Ccm => Self::Aes128Ccm(ccm(key)?),
            Cipher::Aes256Ccm => Self::Aes256Ccm(ccm(key)?),
            Cipher::Aes128Ccm8 => Self::Aes128Ccm8(ccm(key)?),
            Cipher::Aes256Ccm8 => Self::Aes256Ccm8(ccm(key)?),
            Cipher::Aes128CbcSha1
            | Cipher::Aes256CbcSha1
            | Cipher::Aes128CbcSha256
            | Cipher::Aes256CbcSha256
            | Cipher::Aes256CbcSha384 => return Err(KeyError::Library),
        })
    }

    /// Bytes of the tag.
    pub(crate) fn tag_len(&self) -> usize {
        match self {
            Self::Library(_) | Self::Aes128Ccm(_) | Self::Aes256Ccm(_) => MAX_TAG_LEN,
            Self::Aes128Ccm8(_) | Self::Aes256Ccm8(_) => 8,
        }
    }

    /// Verifies `tag` and decrypts `ciphertext` into `plaintext`, which has the same length.
    // Inlined, with CCM kept apart: the usual ciphers open short records in 100 ns, of which a
    // call with this many arguments costs 10.
    #[inline(always)]
    pub(crate) fn open<const N: usize>(
        &self,
        nonce: [u8; IV_LEN],
        additional: [u8; N],
        ciphertext: &[u8],
        tag: &[u8],
        plaintext: &mut [u8],
    ) -> Result<(), BadTag> {
        let Self::Library(key) = self else {
            return self.open_slowly(&nonce, &additional, ciphertext, tag, plaintext);
        };
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.open_separate_gather(nonce, Aad::from(additional), ciphertext, tag, plaintext)
            .map_err(|_| BadTag)
    }

    #[inline(never)]
    fn open_slowly(
        &self,
        nonce: &[u8; IV_LEN],
        additional: &[u8],
        ciphertext: &[u8],
        tag: &[u8],
        plaintext: &mut [u8],
    ) -> Result<(), BadTag> {
        match self {
            // Opened by the only caller.
            Self::Library(_) => Err(BadTag),
            Self::Aes128Ccm(key) => open_ccm(&**key, nonce, additional, ciphertext, tag, plaintext),
            Self::Aes256Ccm(key) => open_ccm(&**key, nonce, additional, ciphertext, tag, plaintext),
            Self::Aes128Ccm8(key) => {
                open_ccm(&**key, nonce, additional, ciphertext, tag, plaintext)
            }
            Self::Aes256Ccm8(key) => {
                open_ccm(&**key, nonce, additional, ciphertext, tag, plaintext)
            }
        }
    }

    /// Encrypts the bytes of `record` from `start` in place and appends the tag. `None` when the
    /// library refuses, which the record limits rule out.
    pub(crate) fn seal(
        &self,
        nonce: [u8; IV_LEN],
        additional: &[u8],
        record: &mut Vec<u8>,
        start: usize,
    ) -> Option<()> {
        let content = record.get_mut(start..)?;
        match self {
            Self::Library(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag =
                    key.seal_in_place_separate_tag(nonce, Aad::from(additional), content).ok()?;
                record.extend_from_slice(tag.as_ref());
            }
            Self::Aes128Ccm(key) => {
                let tag = seal_ccm(key.as_ref(), nonce, additional, content)?;
                record.extend_from_slice(&tag);
            }
            Self::Aes256Ccm(key) => {
                let tag = seal_ccm(key.as_ref(), nonce, additional, content)?;
                record.extend_from_slice(&tag);
            }
            Self::Aes128Ccm8(key) => {
                let tag = seal_ccm(key.as_ref(), nonce, additional, content)?;
                record.extend_from_slice(&tag);
            }
            Self::Aes256Ccm8(key) => {
                let tag = seal_ccm(key.as_ref(), nonce, additional, content)?;
                record.extend_from_slice(&tag);
            }
        }
        Some(())
    }

    /// Encrypts `content` and then `trailer` into `out`, whose length is that of both and the
    /// tag, which comes last. Input and output are apart. `None` as in [`AeadKey::seal`], and for
    /// a wrong length.
    pub(crate) fn seal_apart(
        &self,
        nonce: [u8; IV_LEN],
        additional: &[u8],
        content: &[u8],
        trailer: &[u8],
        out: &mut [u8],
    ) -> Option<()> {
        let (ciphertext, rest) = out.split_at_mut_checked(content.len())?;
        if let Self::Library(key) = self {
            let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(additional));
            return key
                .seal_out_of_place_scatter(nonce, aad, content, ciphertext, trailer, rest)
                .ok();
        }
        ciphertext.copy_from_slice(content);
        rest.get_mut(..trailer.len())?.copy_from_slice(trailer);
        let inner_len = content.len() + trailer.len();
        let (inner, tag) = out.split_at_mut_checked(inner_len)?;
        match self {
            // Sealed above.
            Self::Library(_) => None,
            Self::Aes128Ccm(key) => copy(tag, &seal_ccm(key.as_ref(), nonce, additional, inner)?),
            Self::Aes256Ccm(key) => copy(tag, &seal_ccm(key.as_ref(), nonce, additional, inner)?),
            Self::Aes128Ccm8(key) => copy(tag, &seal_ccm(key.as_ref(), nonce, additional, inner)?),
            Self::Aes256Ccm8(key) => copy(tag, &seal_ccm(key.as_ref(), nonce, additional, inner)?),
        }
    }
}

fn copy(to: &mut [u8], from: &[u8]) -> Option<()> {
    (to.len() == from.len()).then(|| to.copy_from_slice(from))
}

/// The static IV of a direction where the nonce is IV xor sequence number: TLS 1.3 (RFC 8446,
/// section 5.3), and ChaCha20-Poly1305 in TLS 1.2 (RFC 7905, section 2).
#[derive(Clone, ZeroizeOnDrop)]
pub(crate) struct Iv([u8; IV_LEN]);

impl Iv {
    /// Takes an IV whose length has been checked.
    pub(crate) fn new(iv: &[u8]) -> Result<Self, KeyError> {
        let wrong = KeyError::IvLength { expected: IV_LEN, actual: iv.len() };
        iv.try_into().map(Self).map_err(|_| wrong)
    }

    /// The per-record nonce.
    pub(crate) fn nonce(&self, sequence: u64) -> [u8; IV_LEN] {
        let mut nonce = self.0;
        for (byte, seq) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
            *byte ^= seq;
        }
        nonce
    }
}

fn library(algorithm: &'static aead::Algorithm, key: &[u8]) -> Result<AeadKey, KeyError> {
    let unbound = UnboundKey::new(algorithm, key).map_err(|_| KeyError::Library)?;
    Ok(AeadKey::Library(LessSafeKey::new(unbound)))
}

fn ccm<K: KeyInit>(key: &[u8]) -> Result<Box<K>, KeyError> {
    K::new_from_slice(key).map(Box::new).map_err(|_| KeyError::Library)
}

fn open_ccm<K: AeadInOut<NonceSize = U12>>(
    key: &K,
    nonce: &[u8; IV_LEN],
    additional: &[u8],
    ciphertext: &[u8],
    tag: &[u8],
    plaintext: &mut [u8],
) -> Result<(), BadTag> {
    let tag = tag.try_into().map_err(|_| BadTag)?;
    let buffer = InOutBuf::new(ciphertext, plaintext).map_err(|_| BadTag)?;
    let opened = key.decrypt_inout_detached(&(*nonce).into(), additional, buffer, &tag);
    opened.map_err(|_| {
        // CCM decrypts before it knows whether the tag matches.
        plaintext.fill(0);
        BadTag
    })
}

fn seal_ccm<K: AeadInOut<NonceSize = U12>>(
    key: &K,
    nonce: [u8; IV_LEN],
    additional: &[u8],
    content: &mut [u8],
) -> Option<ccm::aead::Tag<K>> {
    key.encrypt_inout_detached(&nonce.into(), additional, content.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NIST SP 800-38C, appendix C.3: the example whose nonce and tag are as long as those of
    /// AES_128_CCM_8.
    #[test]
    fn accepts_nist_sp_800_38c_example_3() {
        let key: [u8; 16] = core::array::from_fn(|at| 0x40 + at as u8);
        let nonce: [u8; 12] = core::array::from_fn(|at| 0x10 + at as u8);
        let additional: [u8; 20] = core::array::from_fn(|at| at as u8);
        let content: [u8; 24] = core::array::from_fn(|at| 0x20 + at as u8);
        let expected = [
            0xe3, 0xb2, 0x01, 0xa9, 0xf5, 0xb7, 0x1a, 0x7a, 0x9b, 0x1c, 0xea, 0xec, 0xcd, 0x97,
            0xe7, 0x0b, 0x61, 0x76, 0xaa, 0xd9, 0xa4, 0x42, 0x8a, 0xa5, 0x48, 0x43, 0x92, 0xfb,
            0xc1, 0xb0, 0x99, 0x51,
        ];
        let key = AeadKey::new(Cipher::Aes128Ccm8, &key).unwrap();
        let mut record = content.to_vec();
        key.seal(nonce, &additional, &mut record, 0).unwrap();
        assert_eq!(record, expected);
        let mut out = [0; 24];
        assert!(key.open(nonce, additional, &expected[..24], &expected[24..], &mut out).is_ok());
        assert_eq!(out, content);
    }

    #[test]
    fn refuses_wrong_tags_and_leaves_no_plaintext() {
        for cipher in [Cipher::Aes256Ccm, Cipher::Aes256Ccm8] {
            let key = AeadKey::new(cipher, &[3; 32]).unwrap();
            let mut record = b"unverified".to_vec();
            key.seal([5; 12], &[], &mut record, 0).unwrap();
            let (ciphertext, tag) = record.split_at(10);
            let mut out = [9; 10];
            assert!(key.open([5; 12], [1], ciphertext, tag, &mut out).is_err());
            assert_eq!(out, [0; 10]);
            assert!(key.open([5; 12], [], ciphertext, &tag[1..], &mut out).is_err());
        }
        assert!(AeadKey::new(Cipher::Aes128CbcSha1, &[3; 16]).is_err());
    }
}
