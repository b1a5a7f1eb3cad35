//! Which number a record has, by its tag alone: for sessions whose beginning was not seen.
//!
//! ```text
//!  tag = GHASH(header, ciphertext) xor AES(nonce, 1)        NIST SP 800-38D, section 7.1
//!  nonce = IV xor number                                    RFC 8446, section 5.3
//! ```
//! GHASH does not depend on the nonce, so what it leaves of the tag is one block of AES, which is turned back into the nonce.
//! A record of other keys leaves a block that is none: the counter and four bytes of the IV, 64 bits, tell.
//!
//! Refuses every other protection: in TLS 1.2 the number is among what GHASH covers, and ChaCha20-Poly1305 and CCM make
//! the whole tag depend on the nonce.

use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use mmtls_tls::{LocateRecord, RECORD_HEADER_LEN};
use zeroize::ZeroizeOnDrop;

use crate::KeyError;
use crate::private_tag::PRIVATE_TAG_LEN;
use crate::suite::{self, Cipher, IV_LEN, TLS13};
use crate::tls13_record::split;

/// Bytes of a block, and of a tag.
const BLOCK_LEN: usize = 16;

/// What GCM appends to a nonce of 96 bits for the tag's block.
const FIRST_COUNTER: [u8; 4] = [0, 0, 0, 1];

/// The bytes of an IV that no number changes.
const FIXED_LEN: usize = 4;

/// Sets up the read keys of one direction and epoch to find records' numbers; `None` for versions and suites whose
/// records do not tell.
///
/// # Errors
/// [`KeyError`] as [`crate::open_record`].
pub fn record_locator(
    version: u16,
    suite: u16,
    key: &[u8],
    iv: &[u8],
) -> Result<Option<Box<dyn LocateRecord>>, KeyError> {
    let found = suite::find(version, suite)?;
    if version != TLS13 {
        return Ok(None);
    }
    found.check(key, iv, &[])?;
    let private_tag_len = if suite::has_private_tag(suite) { PRIVATE_TAG_LEN } else { 0 };
    Ok(match found.cipher() {
        Cipher::Aes128Gcm => Some(Box::new(GcmLocator::<Aes128>::new(key, iv, private_tag_len)?)),
        Cipher::Aes256Gcm => Some(Box::new(GcmLocator::<Aes256>::new(key, iv, private_tag_len)?)),
        _ => None,
    })
}

/// The libraries wipe the keys, this type the IV.
struct GcmLocator<C> {
    cipher: C,
    hash: GHash,
    iv: WipedIv,
    private_tag_len: usize,
}

#[derive(ZeroizeOnDrop)]
struct WipedIv([u8; IV_LEN]);

impl<C: KeyInit + BlockCipherEncrypt> GcmLocator<C> {
    fn new(key: &[u8], iv: &[u8], private_tag_len: usize) -> Result<Self, KeyError> {
        let cipher = C::new_from_slice(key).map_err(|_| KeyError::Library)?;
        let mut hash_key = Block::<C>::default();
        cipher.encrypt_block(&mut hash_key);
        let hash = GHash::new_from_slice(&hash_key).map_err(|_| KeyError::Library)?;
        zeroize::Zeroize::zeroize(hash_key.as_mut_slice());
        let wrong = KeyError::IvLength { expected: IV_LEN, actual: iv.len() };
        let iv = WipedIv(iv.try_into().map_err(|_| wrong)?);
        Ok(Self { cipher, hash, iv, private_tag_len })
    }
}

impl<C: BlockCipherDecrypt + Send> LocateRecord for GcmLocator<C> {
    fn locate(&self, header: [u8; RECORD_HEADER_LEN], fragment: &[u8]) -> Option<u64> {
        let (ciphertext, tag) = split(fragment, BLOCK_LEN, self.private_tag_len)?;
        let mut hash = self.hash.clone();
        hash.update_padded(&header);
        hash.update_padded(ciphertext);
        let mut lengths = [0; BLOCK_LEN];
        let bits = |len: usize| (len as u64 * 8).to_be_bytes();
        lengths[..8].copy_from_slice(&bits(header.len()));
        lengths[8..].copy_from_slice(&bits(ciphertext.len()));
        hash.update_padded(&lengths);
        let mut block = Block::<C>::default();
        for ((byte, of_tag), of_hash) in block.iter_mut().zip(tag).zip(hash.finalize()) {
            *byte = of_tag ^ of_hash;
        }
        self.cipher.decrypt_block(&mut block);
        let (nonce, counter) = block.split_at(IV_LEN);
        let (fixed, number) = nonce.split_at(FIXED_LEN);
        if counter != FIRST_COUNTER || fixed != &self.iv.0[..FIXED_LEN] {
            return None;
        }
        let mut sequence = [0; 8];
        for ((byte, of_nonce), of_iv) in
            sequence.iter_mut().zip(number).zip(&self.iv.0[FIXED_LEN..])
        {
            *byte = of_nonce ^ of_iv;
        }
        Some(u64::from_be_bytes(sequence))
    }
}

#[cfg(test)]
mod tests {
    use mmtls_tls::ContentType;

    use super::*;
    use crate::Tls13Sealer;

    const GCM: [(u16, usize); 2] = [(0x1301, 16), (0x1302, 32)];

    #[test]
    fn accepts_every_number_of_its_own_records() {
        for (suite, key_len) in GCM {
            let key = vec![7; key_len];
            let sealer = Tls13Sealer::new(suite, &key, &[9; 12]).unwrap();
            let locator = record_locator(TLS13, suite, &key, &[9; 12]).unwrap().unwrap();
            for number in [0, 1, 255, 256, 70_000, 1 << 40, u64::MAX - 1] {
                for len in [0, 1, 15, 16, 17, 1000, 16_384] {
                    let content = vec![3; len];
                    let record =
                        sealer.seal(number, ContentType::APPLICATION_DATA, &content, 0).unwrap();
                    let header = record[..5].try_into().unwrap();
                    assert_eq!(locator.locate(header, &record[5..]), Some(number), "{len}");
                }
            }
        }
    }

    #[test]
    fn refuses_changed_records_and_those_of_other_keys() {
        for (suite, key_len) in GCM {
            let sealer = Tls13Sealer::new(suite, &vec![7; key_len], &[9; 12]).unwrap();
            let record = sealer.seal(5, ContentType::APPLICATION_DATA, b"hello", 0).unwrap();
            let header: [u8; 5] = record[..5].try_into().unwrap();
            let locator = |key, iv: [u8; 12]| {
                record_locator(TLS13, suite, &vec![key; key_len], &iv).unwrap().unwrap()
            };
            assert_eq!(locator(8, [9; 12]).locate(header, &record[5..]), None);
            assert_eq!(locator(7, [8; 12]).locate(header, &record[5..]), None);
            let own = locator(7, [9; 12]);
            for at in 0..record.len() {
                let mut changed = record.clone();
                changed[at] ^= 1;
                let header = changed[..5].try_into().unwrap();
                assert_eq!(own.locate(header, &changed[5..]), None, "byte {at}");
            }
            for len in 0..16 {
                assert_eq!(own.locate(header, &record[5..5 + len]), None);
            }
        }
    }

    #[test]
    fn refuses_what_does_not_tell() {
        let none = |version, suite, key_len, iv_len| {
            record_locator(version, suite, &vec![7; key_len], &vec![9; iv_len]).unwrap().is_none()
        };
        assert!(none(TLS13, 0x1303, 32, 12));
        assert!(none(TLS13, 0x1304, 16, 12));
        assert!(none(suite::TLS12, 0xc02f, 16, 4));
        assert!(record_locator(TLS13, 0x1301, &[7; 15], &[9; 12]).is_err());
        assert!(record_locator(TLS13, 0x1399, &[7; 16], &[9; 12]).is_err());
    }
}
