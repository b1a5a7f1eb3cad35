//! Keys that only trial opening can tell from others.

use crate::counters::Counters;
use crate::keys::Candidates;
use crate::tls::{OpenRecord, Opened};

use super::context::RawRecord;

/// Keys of an epoch that only trial opening can find: several, until one of them has opened a
/// record.
#[derive(Default)]
pub(super) struct KeyCandidates {
    openers: Candidates<Box<dyn OpenRecord>>,
    /// Number of the next record.
    sequence: u64,
}

impl KeyCandidates {
    /// Whether none have come.
    pub(super) fn is_unused(&self) -> bool {
        self.openers.is_unused()
    }

    /// The keys that opened the latest record.
    pub(super) fn opener(&self) -> Option<&dyn OpenRecord> {
        self.openers.get(0).map(|opener| &**opener)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.openers.is_empty()
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.openers.len()
    }

    /// Number of the next record.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether a record has been opened.
    pub(super) fn is_confirmed(&self) -> bool {
        self.sequence > 0
    }

    /// Adds keys; false when the right ones are known, or when they are too many.
    pub(super) fn add(&mut self, source: u64, opener: Box<dyn OpenRecord>) -> bool {
        !self.is_confirmed() && self.openers.add(source, opener).is_ok()
    }

    /// Opens the next record into `plaintext`, with the keys from number `from` on.
    pub(super) fn open(
        &mut self,
        from: usize,
        record: RawRecord<'_>,
        plaintext: &mut [u8],
        counters: &mut Counters,
    ) -> Option<Opened> {
        // Once one has opened a record it is the only one.
        let from = if self.is_confirmed() { 0 } else { from };
        for at in from..self.openers.len() {
            let Some(opener) = self.openers.get_mut(at) else {
                break;
            };
            match opener.open(self.sequence, record.header.bytes, record.fragment, plaintext) {
                Ok(opened) => {
                    self.openers.keep_only(at);
                    self.sequence += 1;
                    return Some(opened);
                }
                Err(_) => counters.trials_failed += 1,
            }
        }
        None
    }
}
