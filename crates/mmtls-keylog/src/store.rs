//! Where the secrets are: millions of them, compactly, and wiped in the end.
//!
//! Blocks of fixed size never move, so growing leaves no copies behind. Refuses more than 4 GiB.

use std::collections::HashMap;

use mmtls_keyshare::keylog::MAX_SECRET_BYTES;
use zeroize::Zeroize;

const BLOCK_LEN: usize = 64 << 10;
/// Label, length of the secret, room for it, position of the next older entry of the session.
const ENTRY_HEADER: usize = 7;
const NEXT: usize = 3;
/// Marks the oldest entry. No entry can be there: it would not fit into the block.
const NO_ENTRY: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Store {
    /// Client random to the session's newest entry.
    index: HashMap<[u8; 32], u32>,
    blocks: Vec<Box<[u8]>>,
    /// Bytes used of the last block.
    used: usize,
}

impl Store {
    /// Keeps a secret; false when there is no room.
    pub(super) fn insert(&mut self, random: [u8; 32], label: u8, secret: &[u8]) -> bool {
        let newest = self.index.get(&random).copied().unwrap_or(NO_ENTRY);
        let mut room = secret.len();
        if let Some(at) = self.find(newest, label) {
            if self.overwrite(at, secret) {
                return true;
            }
            // A newer entry hides the older one. It has room for every length, so that lines that
            // are repeated with one length after another take no more.
            room = room.max(MAX_SECRET_BYTES);
        }
        let (Ok(len), Ok(room)) = (u8::try_from(secret.len()), u8::try_from(room)) else {
            return false;
        };
        let size = ENTRY_HEADER + usize::from(room);
        if self.blocks.is_empty() || self.used + size > BLOCK_LEN {
            if (self.blocks.len() + 1) * BLOCK_LEN > u32::MAX as usize {
                return false;
            }
            self.blocks.push(vec![0; BLOCK_LEN].into_boxed_slice());
            self.used = 0;
        }
        let block = self.blocks.len() - 1;
        let Ok(position) = u32::try_from(block * BLOCK_LEN + self.used) else {
            return false;
        };
        let entry = &mut self.blocks[block][self.used..self.used + size];
        entry[0] = label;
        entry[1] = len;
        entry[2] = room;
        entry[NEXT..ENTRY_HEADER].copy_from_slice(&newest.to_ne_bytes());
        entry[ENTRY_HEADER..][..secret.len()].copy_from_slice(secret);
        self.used += size;
        self.index.insert(random, position);
        true
    }

    pub(super) fn get(&self, random: &[u8; 32], label: u8) -> Option<&[u8]> {
        let at = self.find(*self.index.get(random)?, label)?;
        let entry = self.entry(at)?;
        entry.get(ENTRY_HEADER..ENTRY_HEADER + usize::from(entry[1]))
    }

    pub(super) fn knows(&self, random: &[u8; 32]) -> bool {
        self.index.contains_key(random)
    }

    pub(super) fn sessions(&self) -> usize {
        self.index.len()
    }

    /// The newest entry with this label, from `at` on.
    fn find(&self, mut at: u32, label: u8) -> Option<u32> {
        // Every entry points to an older one, so this ends.
        while at != NO_ENTRY {
            let entry = self.entry(at)?;
            if entry[0] == label {
                return Some(at);
            }
            at = u32::from_ne_bytes(entry[NEXT..ENTRY_HEADER].try_into().ok()?);
        }
        None
    }

    fn entry(&self, at: u32) -> Option<&[u8]> {
        let at = at as usize;
        let entry = self.blocks.get(at / BLOCK_LEN)?.get(at % BLOCK_LEN..)?;
        (entry.len() >= ENTRY_HEADER).then_some(entry)
    }

    /// Puts a secret in the place of another; false when it has no room there.
    fn overwrite(&mut self, at: u32, secret: &[u8]) -> bool {
        let at = at as usize;
        let block = self.blocks.get_mut(at / BLOCK_LEN);
        let Some(entry) = block.and_then(|block| block.get_mut(at % BLOCK_LEN..)) else {
            return false;
        };
        let room = usize::from(entry[2]);
        let (Ok(len), Some(place)) =
            (u8::try_from(secret.len()), entry.get_mut(ENTRY_HEADER..ENTRY_HEADER + room))
        else {
            return false;
        };
        if secret.len() > room {
            return false;
        }
        place[..secret.len()].copy_from_slice(secret);
        place[secret.len()..].zeroize();
        entry[1] = len;
        true
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for block in &mut self.blocks {
            block.zeroize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_grow_from_lines_that_are_repeated() {
        let mut store = Store::default();
        for round in 0..100_000 {
            let secret = [round as u8; MAX_SECRET_BYTES];
            for label in [1, 2] {
                let secret = &secret[..32 + (round * 7) % 17];
                assert!(store.insert([9; 32], label, secret));
                assert_eq!(store.get(&[9; 32], label), Some(secret));
            }
        }
        assert_eq!((store.blocks.len(), store.sessions()), (1, 1));
        assert!(store.used < 1024, "{} bytes", store.used);
    }
}
