//! Where the records of a direction begin, and which numbers they have, in a session whose beginning was not seen.
//!
//! Refuses to take bytes for a record before its tag has said so, and to try for ever.

use crate::keys::LiveKey;
use crate::tls::{ContentType, RECORD_HEADER_LEN};

/// Shortest fragment of a protected record: a content type and the shortest tag.
const MIN_FRAGMENT_LEN: usize = 1 + 8;

/// Longest one (RFC 5246, section 6.2.3).
const MAX_FRAGMENT_LEN: usize = 16384 + 2048;

/// Bytes that are opened in vain for one record, where its protection does not tell its number.
const MAX_TRIED: usize = 4 << 20;

/// The same for one direction: about 50 ms.
const MAX_TRIED_IN_ALL: usize = 256 << 20;

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
        while let Some(header) = self.buffer[self.at..].first_chunk::<RECORD_HEADER_LEN>() {
            let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
            let is_legal = header[..3] == [ContentType::APPLICATION_DATA.0, 3, 3]
                && (MIN_FRAGMENT_LEN..=MAX_FRAGMENT_LEN).contains(&len);
            if !is_legal {
                self.at += 1;
                continue;
            }
            let start = self.at + RECORD_HEADER_LEN;
            let fragment = start..start + len;
            return (fragment.end <= self.buffer.len())
                .then_some(Found { header: *header, fragment });
        }
        None
    }

    /// The bytes of a record that was found.
    pub(crate) fn fragment(&self, found: &Found) -> &[u8] {
        &self.buffer[found.fragment.clone()]
    }

    /// That was none.
    pub(crate) fn go_on(&mut self) {
        self.at += 1;
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
    keys: Vec<LiveKey>,
    /// Records so far that were none of these keys, or whose numbers were not among those tried.
    records: u64,
    next_number: u64,
    tried: usize,
}

/// Which keys are in use, and the number of the record at hand.
pub(super) struct Located {
    pub(super) key: LiveKey,
    pub(super) number: u64,
}

impl Unlocated {
    pub(super) fn new(search: RecordSearch, keys: Vec<LiveKey>) -> Self {
        Self { search, keys, records: 0, next_number: 0, tried: 0 }
    }

    /// Nothing is searched for where there are no keys.
    pub(super) fn is_refused(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether records have passed that were not found.
    pub(super) fn has_missed(&self) -> bool {
        !self.is_refused() && self.records > 0
    }

    /// Takes the next bytes. What is known once the first record was found; `plaintext` is for trials.
    pub(super) fn handle_bytes(&mut self, bytes: &[u8], plaintext: &mut [u8]) -> Option<Located> {
        if self.is_refused() {
            return None;
        }
        self.search.push(bytes);
        while let Some(found) = self.search.find() {
            if let Some((at, number)) = self.number_of(&found, plaintext) {
                return Some(Located { key: self.keys.swap_remove(at), number });
            }
            self.records += 1;
            self.search.go_on();
        }
        None
    }

    fn number_of(&mut self, found: &Found, plaintext: &mut [u8]) -> Option<(usize, u64)> {
        let fragment = &self.search.buffer[found.fragment.clone()];
        let mut by_trial = false;
        for (at, key) in self.keys.iter().enumerate() {
            let Some(locator) = &key.locator else {
                by_trial = true;
                continue;
            };
            if let Some(number) = locator.locate(found.header, fragment)
                && key.opener.open(number, found.header, fragment, plaintext).is_ok()
            {
                return Some((at, number));
            }
        }
        if !by_trial {
            return None;
        }
        // The first record's number goes on from trial to trial; by now so many have come behind it.
        let mut left = MAX_TRIED.min(MAX_TRIED_IN_ALL.saturating_sub(self.tried));
        while left >= fragment.len() {
            let number = self.next_number + self.records;
            for (at, key) in self.keys.iter().enumerate() {
                self.tried += fragment.len();
                left = left.saturating_sub(fragment.len());
                let opened = key.opener.open(number, found.header, fragment, plaintext);
                if key.locator.is_none() && opened.is_ok() {
                    return Some((at, number));
                }
            }
            self.next_number += 1;
        }
        None
    }
}
