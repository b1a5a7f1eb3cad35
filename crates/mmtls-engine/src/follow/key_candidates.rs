//! Keys that only trial opening can tell from others.

use super::context::RawRecord;
use super::contradiction::{Trials, is_contradicted, is_same};
use crate::counters::Counters;
use crate::keys::{Candidates, KeySource};
use crate::tls::{OpenRecord, Opened};

/// Keys of an epoch that only trial opening can find: several, until one of them has opened a
/// record.
#[derive(Default)]
pub(super) struct KeyCandidates {
    openers: Candidates<Box<dyn OpenRecord>>,
    /// Number of the next record.
    sequence: u32,
    trials: Trials,
}

/// What trying a record has come to.
pub(super) enum Trial {
    Failed,
    Opened(Opened),
    /// Others open it, too.
    Contradicted,
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
        self.sequence.into()
    }

    /// Whether a record has been opened.
    pub(super) fn is_confirmed(&self) -> bool {
        self.sequence > 0
    }

    /// Whether these are the ones that have opened records.
    pub(super) fn are_known_to_be(&self, keys: &dyn OpenRecord) -> bool {
        self.is_confirmed() && self.opener().is_some_and(|used| is_same(used, keys))
    }

    /// Adds keys; false when the right ones are known, or when they are too many.
    pub(super) fn add(&mut self, source: KeySource, opener: Box<dyn OpenRecord>) -> bool {
        if !self.is_confirmed() {
            return self.openers.add(source, opener).is_ok();
        }
        // Not needed, but others may contradict those that are in use.
        if !self.are_known_to_be(&*opener) {
            let _ = self.openers.add_behind_first(source, opener);
        }
        false
    }

    /// Opens the next record into `plaintext`, with the keys from number `from` on.
    pub(super) fn open(
        &mut self,
        from: usize,
        record: RawRecord<'_>,
        plaintext: &mut [u8],
        counters: &mut Counters,
    ) -> Trial {
        // Once one has opened a record it is the right one, and in front.
        let all = if self.is_confirmed() { 0..1 } else { from..self.openers.len() };
        let number = self.sequence();
        for at in all {
            let Some(opener) = self.openers.get_mut(at) else {
                break;
            };
            match opener.open(number, record.header.bytes, record.fragment, plaintext) {
                Ok(opened) => {
                    // 2^32 records do not happen under these keys; a wrapped number would only fail to open.
                    self.sequence = self.sequence.wrapping_add(1);
                    return self.settle(at, record, opened, counters);
                }
                Err(_) => counters.trials_failed += 1,
            }
        }
        Trial::Failed
    }

    /// The keys there opened a record: the others are tried on it, and forgotten.
    fn settle(
        &mut self,
        at: usize,
        record: RawRecord<'_>,
        opened: Opened,
        counters: &mut Counters,
    ) -> Trial {
        let others = self.openers.keep_only(at);
        let numbers = self.sequence().wrapping_sub(1)..self.sequence();
        let contradicted = !others.is_empty()
            && self.openers.get(0).is_some_and(|used| {
                is_contradicted(&**used, others, record, numbers, &mut self.trials, counters)
            });
        if contradicted { Trial::Contradicted } else { Trial::Opened(opened) }
    }
}
