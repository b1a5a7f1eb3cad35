//! Where something with a key is: flows by four-tuple, sessions by client random, clients by address.
//!
//! Refuses to stop traffic while it grows: a table that is moved at once holds up every packet behind it, so these are many small
//! ones, and an entry carries its hash.
//!
//! Lists beside it ask [`room_to_reserve`].

use core::hash::Hash;

use hashbrown::HashTable;

/// Of a million entries each has 16,000, which are moved within a millisecond.
const SHARDS: usize = 64;

struct Entry<V> {
    hash: u32,
    value: V,
}

/// Values that can be found by a key which they, or what they name, know: it is not kept here.
pub(crate) struct Index<V> {
    shards: [HashTable<Entry<V>>; SHARDS],
    hasher: ahash::RandomState,
    len: usize,
}

impl<V: Copy + PartialEq> Index<V> {
    pub(crate) fn new(hasher: ahash::RandomState) -> Self {
        Self { shards: [const { HashTable::new() }; SHARDS], hasher, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The value of a key, if one of those that may have it does.
    #[inline]
    pub(crate) fn find<K: Hash>(&self, key: &K, has_it: impl Fn(V) -> bool) -> Option<V> {
        let hash = self.hash(key);
        let is_it = |entry: &Entry<V>| entry.hash == hash && has_it(entry.value);
        self.shards[shard(hash)].find(spread(hash), is_it).map(|entry| entry.value)
    }

    /// Adds a value whose key no other one has.
    pub(crate) fn insert<K: Hash>(&mut self, key: &K, value: V) {
        let hash = self.hash(key);
        let rehash = |entry: &Entry<V>| spread(entry.hash);
        self.shards[shard(hash)].insert_unique(spread(hash), Entry { hash, value }, rehash);
        self.len += 1;
    }

    /// Takes a value out, if it is there; tells whether it was.
    pub(crate) fn remove<K: Hash>(&mut self, key: &K, value: V) -> bool {
        let hash = self.hash(key);
        let is_it = |entry: &Entry<V>| entry.value == value;
        let Ok(entry) = self.shards[shard(hash)].find_entry(spread(hash), is_it) else {
            return false;
        };
        entry.remove();
        self.len -= 1;
        true
    }

    fn hash<K: Hash>(&self, key: &K) -> u32 {
        // The upper half.
        (self.hasher.hash_one(key) >> 32) as u32
    }
}

/// The table finds a place by the lower bits and tells entries apart by the upper seven.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

/// Of bits between those of a small table.
fn shard(hash: u32) -> usize {
    (hash >> 19) as usize % SHARDS
}

/// From here on a list has room for all that may come.
const FEW: usize = 4096;

/// For how many more a list that may have so many should have room now: to move all of them when it grows would hold up
/// traffic, and what is not touched takes no memory. Where it cannot be had, the list grows as others do.
pub(crate) fn room_to_reserve(len: usize, capacity: usize, max: usize) -> Option<usize> {
    (len == capacity && len >= FEW && len < max).then(|| max - len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_added_until_it_is_removed() {
        let mut index = Index::new(ahash::RandomState::with_seeds(1, 2, 3, 4));
        let numbers = 0..100_000_u32;
        for number in numbers.clone() {
            index.insert(&number, number);
        }
        for number in numbers.clone().step_by(2) {
            assert!(index.remove(&number, number));
            assert!(!index.remove(&number, number));
        }
        assert_eq!(index.len(), 50_000);
        for number in numbers {
            let expected = (number % 2 == 1).then_some(number);
            assert_eq!(index.find(&number, |it| it == number), expected);
        }
        let sizes: Vec<usize> = index.shards.iter().map(HashTable::len).collect();
        // 781 on average.
        assert!(sizes.iter().all(|it| (500..1100).contains(it)), "{sizes:?}");
    }
}
