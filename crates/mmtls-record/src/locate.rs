//! Which number a record has, by its tag alone: for sessions whose beginning was not seen.
//!
//! ```text
//!  tag   = GHASH(additional data, ciphertext) xor AES(nonce, 1)    NIST SP 800-38D, section 7.1
//!  TLS 1.3: nonce = IV xor number                                  RFC 8446, section 5.3
//!  TLS 1.2: additional data = number, type, version, length        RFC 5246, section 6.2.3.3
//! ```
//! In TLS 1.3 GHASH does not depend on the number, so what it leaves of the tag is one block of AES, which is turned back into
//! the nonce. In TLS 1.2 the record carries its nonce. There GHASH is a polynomial in a value of the key, whose first
//! coefficient alone has the number: what all others leave of it is divided by the power that belongs to it.
//!
//! A record of other keys leaves bytes that are none; 64 of their bits are known beforehand.
//!
//! Refuses every other protection: ChaCha20-Poly1305 and CCM make the whole tag depend on the nonce, and MACs on everything.

use std::sync::{Arc, OnceLock};

use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;
use mmtls_tls::{LocateRecord, RECORD_HEADER_LEN};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::KeyError;
use crate::private_tag::PRIVATE_TAG_LEN;
use crate::suite::{self, Cipher, IV_LEN, SALT_LEN, TLS13};
use crate::tls12::{EXPLICIT_NONCE_LEN, additional_data};
use crate::tls13_record::split;

/// Bytes of a block, and of a tag.
const BLOCK_LEN: usize = 16;

/// What GCM appends to a nonce of 96 bits for the tag's block.
const FIRST_COUNTER: [u8; 4] = [0, 0, 0, 1];

/// The bytes of an IV that no number changes.
const FIXED_LEN: usize = 4;

/// Blocks that are fed at once to multiply by a power.
const ZEROS: [u8; 64 * BLOCK_LEN] = [0; 64 * BLOCK_LEN];

/// Sets up the read keys of one direction and epoch to find records' numbers; `None` for suites whose records do not tell.
///
/// # Errors
/// [`KeyError`] as [`crate::open_record`].
pub fn record_locator(
    version: u16,
    suite: u16,
    key: &[u8],
    iv: &[u8],
) -> Result<Option<Arc<dyn LocateRecord>>, KeyError> {
    let found = suite::find(version, suite)?;
    let is_tls13 = version == TLS13;
    if !matches!(found.cipher(), Cipher::Aes128Gcm | Cipher::Aes256Gcm) {
        return Ok(None);
    }
    found.check(key, iv, &[])?;
    let private_tag_len = if suite::has_private_tag(suite) { PRIVATE_TAG_LEN } else { 0 };
    Ok(Some(match (found.cipher(), is_tls13) {
        (Cipher::Aes128Gcm, true) => Arc::new(Tls13::<Aes128>::new(key, iv, private_tag_len)?),
        (_, true) => Arc::new(Tls13::<Aes256>::new(key, iv, private_tag_len)?),
        (Cipher::Aes128Gcm, false) => Arc::new(Tls12::<Aes128>::new(key, iv)?),
        (_, false) => Arc::new(Tls12::<Aes256>::new(key, iv)?),
    }))
}

/// AES and GHASH under one key. The libraries wipe it.
struct Gcm<C> {
    cipher: C,
    hash: GHash,
}

impl<C: KeyInit + BlockCipherEncrypt> Gcm<C> {
    /// Also the value that GHASH multiplies by.
    fn new(key: &[u8]) -> Result<(Self, WipedBlock), KeyError> {
        let cipher = C::new_from_slice(key).map_err(|_| KeyError::Library)?;
        let mut block = Block::<C>::default();
        cipher.encrypt_block(&mut block);
        let hash = GHash::new_from_slice(&block).map_err(|_| KeyError::Library)?;
        let mut value = WipedBlock([0; BLOCK_LEN]);
        value.0.copy_from_slice(&block);
        block.as_mut_slice().zeroize();
        Ok((Self { cipher, hash }, value))
    }
}

#[derive(ZeroizeOnDrop)]
struct WipedBlock([u8; BLOCK_LEN]);

#[derive(ZeroizeOnDrop)]
struct Wiped<const N: usize>([u8; N]);

impl<const N: usize> Wiped<N> {
    fn new(iv: &[u8]) -> Result<Self, KeyError> {
        let wrong = KeyError::IvLength { expected: N, actual: iv.len() };
        iv.try_into().map(Self).map_err(|_| wrong)
    }
}

/// Additional data of so many bytes, in whole blocks, and a ciphertext, behind what was hashed before.
fn finish(mut hash: GHash, additional_len: usize, ciphertext: &[u8]) -> [u8; BLOCK_LEN] {
    hash.update_padded(ciphertext);
    let mut lengths = [0; BLOCK_LEN];
    let bits = |len: usize| (len as u64 * 8).to_be_bytes();
    lengths[..8].copy_from_slice(&bits(additional_len));
    lengths[8..].copy_from_slice(&bits(ciphertext.len()));
    hash.update_padded(&lengths);
    hash.finalize().into()
}

fn xor(one: [u8; BLOCK_LEN], other: &[u8]) -> [u8; BLOCK_LEN] {
    let mut all = one;
    all.iter_mut().zip(other).for_each(|(byte, it)| *byte ^= it);
    all
}

struct Tls13<C> {
    gcm: Gcm<C>,
    iv: Wiped<IV_LEN>,
    private_tag_len: usize,
}

impl<C: KeyInit + BlockCipherEncrypt> Tls13<C> {
    fn new(key: &[u8], iv: &[u8], private_tag_len: usize) -> Result<Self, KeyError> {
        Ok(Self { gcm: Gcm::new(key)?.0, iv: Wiped::new(iv)?, private_tag_len })
    }
}

impl<C: BlockCipherDecrypt + Send + Sync> LocateRecord for Tls13<C> {
    fn locate(&self, header: [u8; RECORD_HEADER_LEN], fragment: &[u8]) -> Option<u64> {
        let (ciphertext, tag) = split(fragment, BLOCK_LEN, self.private_tag_len)?;
        let mut hash = self.gcm.hash.clone();
        hash.update_padded(&header);
        let mut block = Block::<C>::default();
        block.copy_from_slice(&xor(finish(hash, header.len(), ciphertext), tag));
        self.gcm.cipher.decrypt_block(&mut block);
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

struct Tls12<C> {
    gcm: Gcm<C>,
    value: WipedBlock,
    /// Multiplies by the inverse of that value; made when it is needed, since most keys come to nothing.
    divide: OnceLock<GHash>,
    salt: Wiped<SALT_LEN>,
}

impl<C: KeyInit + BlockCipherEncrypt> Tls12<C> {
    fn new(key: &[u8], iv: &[u8]) -> Result<Self, KeyError> {
        let (gcm, value) = Gcm::new(key)?;
        Ok(Self { gcm, value, divide: OnceLock::new(), salt: Wiped::new(iv)? })
    }
}

impl<C: BlockCipherEncrypt + Send + Sync> LocateRecord for Tls12<C> {
    fn locate(&self, header: [u8; RECORD_HEADER_LEN], fragment: &[u8]) -> Option<u64> {
        let (explicit, protected) = fragment.split_first_chunk::<EXPLICIT_NONCE_LEN>()?;
        let (ciphertext, tag) = split(protected, BLOCK_LEN, 0)?;
        let mut block = Block::<C>::default();
        block[..SALT_LEN].copy_from_slice(&self.salt.0);
        block[SALT_LEN..IV_LEN].copy_from_slice(explicit);
        block[IV_LEN..].copy_from_slice(&FIRST_COUNTER);
        self.gcm.cipher.encrypt_block(&mut block);
        // As if the block of additional data were zero: what is missing is its part.
        let known = additional_data(0, header, ciphertext.len()).ok()?;
        let mut hash = self.gcm.hash.clone();
        hash.update_padded(&ZEROS[..BLOCK_LEN]);
        let missing = xor(xor(finish(hash, known.len(), ciphertext), tag), &block);
        // It was multiplied once for each block behind it, and for itself.
        let mut divide =
            self.divide.get_or_init(|| GHash::new(&inverse(&self.value).0.into())).clone();
        divide.update_padded(&missing);
        let mut blocks = ciphertext.len().div_ceil(BLOCK_LEN) + 1;
        while blocks > 0 {
            let some = blocks.min(ZEROS.len() / BLOCK_LEN);
            divide.update_padded(&ZEROS[..some * BLOCK_LEN]);
            blocks -= some;
        }
        let additional: [u8; BLOCK_LEN] = divide.finalize().into();
        let (number, rest) = additional.split_first_chunk::<8>()?;
        let (expected, padding) = rest.split_at(known.len() - number.len());
        let is_it = expected == &known[number.len()..] && padding.iter().all(|byte| *byte == 0);
        is_it.then(|| u64::from_be_bytes(*number))
    }
}

/// The inverse in the field of GHASH: the power 2^128 - 2, since the field has 2^128 - 1 elements but zero.
fn inverse(value: &WipedBlock) -> WipedBlock {
    let times = |one: &WipedBlock, other: &WipedBlock| {
        let mut hash = GHash::new(&one.0.into());
        hash.update_padded(&other.0);
        WipedBlock(hash.finalize().into())
    };
    let mut square = times(value, value);
    let mut product = WipedBlock(square.0);
    for _ in 2..128 {
        square = times(&square, &square);
        product = times(&product, &square);
    }
    product
}

#[cfg(test)]
mod tests {
    use mmtls_tls::ContentType;

    use super::*;
    use crate::Sealer;

    /// Version, suite, bytes of key and IV.
    const GCM: [(u16, u16, usize, usize); 4] = [
        (TLS13, 0x1301, 16, 12),
        (TLS13, 0x1302, 32, 12),
        (suite::TLS12, 0xc02f, 16, 4),
        (suite::TLS12, 0xc030, 32, 4),
    ];

    fn sealed(of: (u16, u16, usize, usize), number: u64, content: &[u8]) -> Vec<u8> {
        let (version, suite, key_len, iv_len) = of;
        let sealer = Sealer::new(version, suite, &vec![7; key_len], &vec![9; iv_len], &[]).unwrap();
        sealer.seal(number, ContentType::APPLICATION_DATA, content, 0).unwrap()
    }

    fn locate(locator: &dyn LocateRecord, record: &[u8]) -> Option<u64> {
        locator.locate(record[..5].try_into().unwrap(), &record[5..])
    }

    fn locator(
        (version, suite, key_len, iv_len): (u16, u16, usize, usize),
        key: u8,
        iv: u8,
    ) -> Arc<dyn LocateRecord> {
        record_locator(version, suite, &vec![key; key_len], &vec![iv; iv_len]).unwrap().unwrap()
    }

    #[test]
    fn accepts_every_number_of_its_own_records() {
        for of in GCM {
            let own = locator(of, 7, 9);
            for number in [0, 1, 255, 256, 70_000, 1 << 40, u64::MAX - 1] {
                for len in [0, 1, 15, 16, 17, 1000, 16_384] {
                    let record = sealed(of, number, &vec![3; len]);
                    assert_eq!(locate(&*own, &record), Some(number), "{of:x?} {len}");
                }
            }
        }
    }

    #[test]
    fn refuses_changed_records_and_those_of_other_keys() {
        for of in GCM {
            let record = sealed(of, 5, b"hello");
            assert_eq!(locate(&*locator(of, 8, 9), &record), None);
            assert_eq!(locate(&*locator(of, 7, 8), &record), None);
            let own = locator(of, 7, 9);
            for at in 0..record.len() {
                let mut changed = record.clone();
                changed[at] ^= 1;
                // In TLS 1.2 the length that is authenticated is that of the content, not the header's.
                let in_length = of.0 == suite::TLS12 && (3..5).contains(&at);
                assert_eq!(locate(&*own, &changed).is_some(), in_length, "{of:x?}: byte {at}");
            }
            for len in 0..16 {
                assert_eq!(locate(&*own, &record[..5 + len]), None);
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
        assert!(none(suite::TLS12, 0xcca8, 32, 12));
        assert!(record_locator(TLS13, 0x1301, &[7; 15], &[9; 12]).is_err());
        assert!(record_locator(TLS13, 0x1399, &[7; 16], &[9; 12]).is_err());
    }
}
