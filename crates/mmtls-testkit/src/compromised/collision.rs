//! Other plaintext, same tag: what a holder of the record key can do to GCM, CCM and Poly1305.
//!
//! Each needs 16 bytes that may become garbage (Poly1305: 32), somewhere behind what is changed:
//! inside a comment, a header that nobody reads, padding of an image. Hence a second tag that
//! covers only header and first tag, as in the paper, notices nothing. `docs/private-tag.md`,
//! section 8, has the equations.
//!
//! Refuses nothing: the caller holds the key.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128Enc, Aes256Enc};
use mmtls_record::suite::{self, Cipher, TLS13};

use super::RecordKey;
use super::field::{Gf128, P1305};

const BLOCK: usize = 16;

/// Changes a whole record, header included: its content begins with `wanted` instead of `known`
/// (same length), what is at `garbage` (an offset in the content, a multiple of 16, behind
/// `wanted`) becomes garbage of 16 bytes, 32 with Poly1305, and the AEAD's tag stays as it is and
/// right. `None` when there is no room for that.
pub fn collide(
    keys: &RecordKey,
    sequence: u64,
    record: &mut [u8],
    known: &[u8],
    wanted: &[u8],
    garbage: usize,
) -> Option<()> {
    let found = suite::find(TLS13, keys.suite).ok()?;
    let tags = keys.overhead()?;
    let (header, fragment) = record.split_first_chunk_mut::<5>()?;
    let len = fragment.len().checked_sub(tags)?;
    let ciphertext = fragment.get_mut(..len)?;
    if !garbage.is_multiple_of(BLOCK) || garbage < wanted.len() || garbage + 2 * BLOCK > len {
        return None;
    }
    let nonce = keys.nonce(sequence);
    let before = ciphertext.to_vec();
    for ((byte, known), wanted) in ciphertext.iter_mut().zip(known).zip(wanted) {
        *byte ^= known ^ wanted;
    }
    match found.cipher() {
        Cipher::ChaCha20Poly1305 => {
            poly1305(&poly1305_key(&keys.key, &nonce)?, *header, &before, ciphertext, garbage)
        }
        Cipher::Aes128Gcm | Cipher::Aes256Gcm => {
            let hash_key = Gf128::from_block(Aes::new(&keys.key)?.encrypt([0; BLOCK]));
            ghash(hash_key, &before, ciphertext, garbage)
        }
        cipher => {
            let tag_len = if cipher == Cipher::Aes128Ccm8 { 8 } else { BLOCK };
            let aes = Aes::new(&keys.key)?;
            cbc_mac(&aes, (nonce, *header), tag_len, &before, ciphertext, garbage)
        }
    }
}

/// The 16 bytes at `at`, filled up with zeroes.
fn block(bytes: &[u8], at: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    for (to, from) in block.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    block
}

/// GHASH is a polynomial of the ciphertext's blocks at a point that the key gives away: the
/// repaired block makes up for what the others changed.
fn ghash(hash_key: Gf128, before: &[u8], after: &mut [u8], garbage: usize) -> Option<()> {
    let blocks = after.len().div_ceil(BLOCK) as u128;
    // The block of the lengths comes behind the last one.
    let power = |at: usize| hash_key.power(blocks - (at / BLOCK) as u128 + 1);
    let difference = |at: usize, after: &[u8]| {
        Gf128::from_block(block(before, at)) + Gf128::from_block(block(after, at))
    };
    let changed = (0..garbage)
        .step_by(BLOCK)
        .map(|at| difference(at, after) * power(at))
        .fold(Gf128(0), |sum, term| sum + term);
    let repair = (changed * power(garbage).inverse()).to_block();
    xor(after.get_mut(garbage..)?, &repair);
    Some(())
}

fn xor(bytes: &mut [u8], with: &[u8]) {
    for (byte, with) in bytes.iter_mut().zip(with) {
        *byte ^= with;
    }
}

/// CBC-MAC chains the plaintext's blocks with a cipher that the key lets one compute: the
/// repaired block leads the chain back to where it was (NIST SP 800-38C, section 6.2).
fn cbc_mac(
    aes: &Aes,
    (nonce, header): ([u8; 12], [u8; 5]),
    tag_len: usize,
    before: &[u8],
    after: &mut [u8],
    garbage: usize,
) -> Option<()> {
    let counter = |flags: u8, number: usize| {
        let mut block = [flags; BLOCK];
        block[1..13].copy_from_slice(&nonce);
        block[13..].copy_from_slice(&u32::try_from(number).unwrap_or(0).to_be_bytes()[1..]);
        block
    };
    // The chain begins with flags, nonce and length, then the header behind its length.
    let tags = u8::try_from((tag_len - 2) / 2).ok()?;
    let first = aes.encrypt(counter(0x40 | tags << 3 | 2, after.len()));
    let mut second = [0; BLOCK];
    second[1] = 5;
    second[2..7].copy_from_slice(&header);
    let state = |ciphertext: &[u8]| {
        let start = std::array::from_fn(|at| first[at] ^ second[at]);
        (0..garbage).step_by(BLOCK).fold(aes.encrypt(start), |mut state, at| {
            xor(&mut state, &block(ciphertext, at));
            xor(&mut state, &aes.encrypt(counter(2, at / BLOCK + 1)));
            aes.encrypt(state)
        })
    };
    let (was, is) = (state(before), state(after));
    xor(after.get_mut(garbage..garbage + BLOCK)?, &was);
    xor(after.get_mut(garbage..garbage + BLOCK)?, &is);
    Some(())
}

/// Poly1305 is a polynomial modulo 2^130 - 5 at a point that the key gives away (RFC 8439,
/// section 2.5). A block is a number of 128 of the 130 bits, so a repaired one exists for about
/// each second choice of the block behind it.
fn poly1305(
    key: &[u8; 32],
    header: [u8; 5],
    before: &[u8],
    after: &mut [u8],
    garbage: usize,
) -> Option<()> {
    const CLAMP: u128 = 0x0fff_fffc_0fff_fffc_0fff_fffc_0fff_ffff;
    let r = P1305::new(0, u128::from_le_bytes(*key.first_chunk()?) & CLAMP);
    let hash = |ciphertext: &[u8]| {
        let mut lengths = [0; BLOCK];
        lengths[..8].copy_from_slice(&(header.len() as u64).to_le_bytes());
        lengths[8..].copy_from_slice(&(ciphertext.len() as u64).to_le_bytes());
        let blocks = (0..ciphertext.len()).step_by(BLOCK).map(|at| block(ciphertext, at));
        [block(&header, 0)]
            .into_iter()
            .chain(blocks)
            .chain([lengths])
            .fold(P1305::new(0, 0), |sum, block| (sum + P1305::from_block(block)) * r)
    };
    let wanted = hash(before);
    let blocks = after.len().div_ceil(BLOCK) as u128;
    let power = r.power(blocks - (garbage / BLOCK) as u128 + 1);
    let inverse = power.inverse();
    // For some r, choices with a pattern all lead to the same quarter.
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..256 {
        let bytes = random.u64(..).to_le_bytes();
        after.get_mut(garbage + BLOCK..garbage + BLOCK + bytes.len())?.copy_from_slice(&bytes);
        let is = hash(after);
        let old = P1305::from_block(block(after, garbage));
        // The sum of the key's other half makes the tag of 128 bits; what is above is lost.
        let repaired = wanted.same_tag().find_map(|aim| (old + (aim + -is) * inverse).to_block());
        if let Some(repaired) = repaired {
            after.get_mut(garbage..garbage + BLOCK)?.copy_from_slice(&repaired);
            return Some(());
        }
    }
    None
}

/// The one-time key of Poly1305: the first half of ChaCha20's block 0 (RFC 8439, sections 2.3 and
/// 2.6).
fn poly1305_key(key: &[u8], nonce: &[u8; 12]) -> Option<[u8; 32]> {
    const SIGMA: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut start = [0; 16];
    let words = key.chunks_exact(4).map(word).chain([0]).chain(nonce.chunks_exact(4).map(word));
    for (to, from) in start.iter_mut().zip(SIGMA.into_iter().chain(words)) {
        *to = from;
    }
    let mut state = start;
    for round in 0..20 {
        for at in 0..4 {
            let shift = |by: usize| if round % 2 == 0 { at } else { (at + by) % 4 };
            quarter(&mut state, [at, 4 + shift(1), 8 + shift(2), 12 + shift(3)]);
        }
    }
    let mut out = [0; 32];
    for (bytes, (word, first)) in out.chunks_exact_mut(4).zip(state.into_iter().zip(start)) {
        bytes.copy_from_slice(&word.wrapping_add(first).to_le_bytes());
    }
    (key.len() == 32).then_some(out)
}

fn quarter(state: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    for (to, with, turned, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        state[to] = state[to].wrapping_add(state[with]);
        state[turned] = (state[turned] ^ state[to]).rotate_left(by);
    }
}

/// The block cipher of GCM and CCM.
pub enum Aes {
    Aes128(Box<Aes128Enc>),
    Aes256(Box<Aes256Enc>),
}

impl Aes {
    pub fn new(key: &[u8]) -> Option<Self> {
        match key.len() {
            16 => Aes128Enc::new_from_slice(key).ok().map(|aes| Self::Aes128(Box::new(aes))),
            _ => Aes256Enc::new_from_slice(key).ok().map(|aes| Self::Aes256(Box::new(aes))),
        }
    }

    pub fn encrypt(&self, block: [u8; BLOCK]) -> [u8; BLOCK] {
        let mut block = block.into();
        match self {
            Self::Aes128(aes) => aes.encrypt_block(&mut block),
            Self::Aes256(aes) => aes.encrypt_block(&mut block),
        }
        block.into()
    }
}
