//! Other keys than those that open a direction's records: whether they open them, too.
//!
//! Neither AEADs nor a MAC beside a cipher commit to a key, so that whoever knows two can make records that are authentic under
//! both. Then nobody can tell which of the contents the peer reads. The right keys open all of an epoch's records, so one
//! record tells.
//!
//! Refuses more trials than each end's share: each costs what opening a record costs, and whoever shares keys causes them.

use core::ops::Range;

use super::context::RawRecord;
use crate::counters::Counters;
use crate::keys::{KeyEnd, KeySource};
use crate::tls::{OpenError, OpenRecord};

/// Most trials with keys of one end, in a direction of a session.
const MAX_TRIALS: u8 = 64;

/// How many there have been, with keys of each end.
#[derive(Clone, Copy, Default)]
pub(super) struct Trials([u8; KeyEnd::COUNT]);

impl Trials {
    /// Whether one more may be made; that counts as done.
    fn may_try(&mut self, source: KeySource) -> bool {
        let trials = &mut self.0[source.end as usize];
        let is_left = *trials < MAX_TRIALS;
        *trials += u8::from(is_left);
        is_left
    }
}

/// Whether these are the same keys.
pub(super) fn is_same(keys: &dyn OpenRecord, other: &dyn OpenRecord) -> bool {
    keys.fingerprint() == other.fingerprint()
}

/// Whether one of these keys opens a record that `used` have opened, although they are others: as any of these `numbers`.
pub(super) fn is_contradicted(
    used: &dyn OpenRecord,
    others: Vec<(KeySource, Box<dyn OpenRecord>)>,
    record: RawRecord<'_>,
    numbers: Range<u64>,
    trials: &mut Trials,
    counters: &mut Counters,
) -> bool {
    let mut content = vec![0; record.fragment.len()];
    for (source, other) in others {
        if is_same(used, &*other) {
            continue;
        }
        for number in numbers.clone().take_while(|_| trials.may_try(source)) {
            match other.open(number, record.header.bytes, record.fragment, &mut content) {
                Ok(_) | Err(OpenError::Malformed) => return true,
                // Of whom they are, nobody knows.
                Err(OpenError::Authentication) => counters.trials_failed += 1,
            }
        }
    }
    false
}
