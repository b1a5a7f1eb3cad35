//! `flow_id`: the engine's numbers of flows, made unlike those of every other run.
//!
//! Consumers join records by it, also over restarts of the monitor and over several monitors that write to one
//! index: numbers that begin at 0 would join what does not belong together. Refuses to give two flows of a run the
//! same number. It is no secret, and nothing relies on its being hard to guess.

use std::hash::{BuildHasher, RandomState};

/// As Suricata's: readers that have no integers but doubles (JavaScript) would round longer ones, and join
/// nothing.
const BITS: u32 = 51;
const LIMIT: u64 = 1 << BITS;
/// Bits of each half in the network.
const HALF: u32 = BITS.div_ceil(2);
/// Fewer would let patterns of the input through.
const ROUNDS: u32 = 4;

/// A permutation of the numbers from 1 to 2^51 - 1, another one in each run. Copies are the same one.
#[derive(Clone, Default)]
pub(crate) struct FlowIds(RandomState);

impl FlowIds {
    /// The number of a flow in reports.
    pub(crate) fn of(&self, number: u64) -> u64 {
        // Applied until the result is within the limits again: the inputs are, so this ends, and what is within
        // them is permuted.
        let mut id = (number.wrapping_add(1) % LIMIT).max(1);
        loop {
            id = self.permute(id);
            if (1..LIMIT).contains(&id) {
                return id;
            }
        }
    }

    /// The engine's number of the flow with this number in reports; `None` for what is none.
    pub(crate) fn number_of(&self, mut id: u64) -> Option<u64> {
        if !(1..LIMIT).contains(&id) {
            return None;
        }
        loop {
            id = self.permute_back(id);
            if (1..LIMIT).contains(&id) {
                return Some(id - 1);
            }
        }
    }

    /// A Feistel network, which is a permutation whatever its function is.
    fn permute(&self, id: u64) -> u64 {
        let mask = (1 << HALF) - 1;
        let [mut left, mut right] = [id >> HALF, id & mask];
        for round in 0..ROUNDS {
            let mixed = self.0.hash_one((round, right)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << HALF | right
    }

    fn permute_back(&self, id: u64) -> u64 {
        let mask = (1 << HALF) - 1;
        let [mut left, mut right] = [id >> HALF, id & mask];
        for round in (0..ROUNDS).rev() {
            let mixed = self.0.hash_one((round, left)) & mask;
            (left, right) = (right ^ mixed, left);
        }
        left << HALF | right
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn accepts_every_number_once_within_its_bits() {
        let ids = FlowIds::default();
        let copy = ids.clone();
        let all: BTreeSet<u64> = (0..100_000).map(|number| ids.of(number)).collect();
        assert_eq!(all.len(), 100_000);
        assert!(all.iter().all(|id| (1..LIMIT).contains(id)));
        assert!((0..1000).all(|number| copy.of(number) == ids.of(number)));
        assert!((0..1000).all(|number| copy.number_of(ids.of(number)) == Some(number)));
        assert_eq!([0, LIMIT, u64::MAX].map(|id| ids.number_of(id)), [None; 3]);
        // Spread over the whole range, and not where those of another run are.
        assert!(
            all.first().unwrap() < &(LIMIT >> 8) && all.last().unwrap() > &(LIMIT - (LIMIT >> 8))
        );
        // One meets by chance in one of 200,000 runs of this test.
        let other = FlowIds::default();
        assert!((0..100_000).filter(|number| all.contains(&other.of(*number))).count() < 3);
    }
}
