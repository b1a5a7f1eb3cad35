//! Where the records of a direction begin, and which numbers they have, in a session whose beginning was not seen.
//!
//! Refuses to take bytes for a record before its tag has said so, and to hash for ever.

use crate::keys::LiveKey;
use crate::tls::{ContentType, MAX_CIPHERTEXT_LEN, RECORD_HEADER_LEN};

/// Shortest fragment of a protected record: a content type and a tag.
const MIN_FRAGMENT_LEN: usize = 1 + 16;

/// Bytes that are hashed in vain in one direction, and for one piece of its stream; then its keys are wrong.
const MAX_HASHED: usize = 16 << 20;
const MAX_HASHED_AT_ONCE: usize = 1 << 20;

/// What hashing costs at least, and how often a record is hashed at most.
const HASH_COST: usize = 512;
const HASHES: usize = 2;

/// The latest bytes of a direction, from the first one on that may begin a record.
#[derive(Default)]
pub(crate) struct RecordSearch {
    buffer: Vec<u8>,
    /// Where in them a record may begin.
    at: usize,
}

/// A record that may be one.
pub(crate) struct Found {
    pub(crate) header: [u8; RECORD_HEADER_LEN],
    pub(crate) fragment: core::ops::Range<usize>,
}

impl RecordSearch {
    /// Takes the next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next record that is complete; nothing where more bytes are needed.
    pub(crate) fn find(&mut self) -> Option<Found> {
        while self.buffer.len() - self.at >= RECORD_HEADER_LEN {
            let Some(found) = self.record_at(self.at) else {
                self.at += 1;
                continue;
            };
            return (found.fragment.end <= self.buffer.len()).then_some(found);
        }
        None
    }

    /// The record that begins there, if one may.
    fn record_at(&self, at: usize) -> Option<Found> {
        let header = *self.buffer.get(at..)?.first_chunk::<RECORD_HEADER_LEN>()?;
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let start = at + RECORD_HEADER_LEN;
        (header[..3] == [ContentType::APPLICATION_DATA.0, 3, 3]
            && (MIN_FRAGMENT_LEN..=MAX_CIPHERTEXT_LEN).contains(&len))
        .then_some(Found { header, fragment: start..start + len })
    }

    /// The bytes of a record that was found.
    pub(crate) fn fragment(&self, found: &Found) -> &[u8] {
        &self.buffer[found.fragment.clone()]
    }

    /// No key explains it: it is one all the same where another one follows it.
    pub(crate) fn pass_over(&mut self, found: &Found) {
        let end = found.fragment.end;
        let is_record = self.buffer.len() == end || self.record_at(end).is_some();
        self.at = if is_record { end } else { self.at + 1 };
    }

    /// There is a gap.
    pub(crate) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Takes the last bytes back.
    pub(crate) fn truncate(&mut self, by: usize) {
        self.buffer.truncate(self.buffer.len().saturating_sub(by));
        self.at = self.at.min(self.buffer.len());
    }

    /// Bytes from the first one on that may begin a record.
    pub(crate) fn into_pending(mut self) -> Vec<u8> {
        self.buffer.drain(..self.at);
        self.buffer
    }

    /// How many those are.
    pub(crate) fn pending_len(&self) -> usize {
        self.buffer.len() - self.at
    }

    /// Memory that is taken, in bytes.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.buffer.capacity()
    }
}

/// The search for the first record of a direction whose keys are known.
pub(super) struct Unlocated {
    pub(super) search: RecordSearch,
    /// None where the direction is not shared: nothing is sought then.
    keys: Vec<LiveKey>,
    hashed: usize,
}

/// What a search has come to.
pub(super) enum Outcome {
    /// More bytes are needed.
    Open,
    /// These keys are in use, and this is the number of the record at hand.
    Located(Located),
    /// None of the keys is in use.
    Hopeless,
}

pub(super) struct Located {
    pub(super) key: LiveKey,
    pub(super) number: u64,
}

impl Unlocated {
    pub(super) fn new(search: RecordSearch, keys: Vec<LiveKey>) -> Self {
        Self { search, keys, hashed: 0 }
    }

    /// Whether records have passed that these keys do not explain.
    pub(super) fn has_missed(&self) -> bool {
        self.hashed > 0
    }

    /// Takes the next bytes; `plaintext` is for the proof.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8], plaintext: &mut [u8]) -> Outcome {
        if self.keys.is_empty() {
            return Outcome::Open;
        }
        self.search.push(bytes);
        let mut left = MAX_HASHED_AT_ONCE;
        while let Some(found) = self.search.find() {
            let fragment = &self.search.buffer[found.fragment.clone()];
            for at in 0..self.keys.len() {
                let cost = HASHES * fragment.len().max(HASH_COST);
                if cost > left {
                    break;
                }
                left -= cost;
                self.hashed += cost;
                let key = &self.keys[at];
                if let Some(number) = key.locator.locate(found.header, fragment)
                    && key.opener.open(number, found.header, fragment, plaintext).is_ok()
                {
                    let key = self.keys.swap_remove(at);
                    return Outcome::Located(Located { key, number });
                }
            }
            self.search.pass_over(&found);
        }
        if self.hashed >= MAX_HASHED { Outcome::Hopeless } else { Outcome::Open }
    }
}
