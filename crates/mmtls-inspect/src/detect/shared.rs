//! What rules remember beyond one connection: how often they matched (`threshold`, `detection_filter`),
//! and bits of addresses (`xbits`). All workers share it.
//!
//! Refuses to grow beyond [`MAX_ENTRIES`] of each kind: what a peer can make up, addresses, is the key.

use core::net::IpAddr;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use crate::rules::Id;
use crate::rules::flow::{BitAction, Threshold, ThresholdKind, Track, XBit, XBitTrack};

/// Most counters, and most bits.
const MAX_ENTRIES: usize = 65_536;
/// How long a bit stays set where its rule does not say.
const BIT_SECONDS: u32 = 30;
const SECOND_NS: u64 = 1_000_000_000;

/// Counters and bits.
#[derive(Default)]
pub struct Shared {
    counters: Mutex<HashMap<(Id, Counted), Counter>>,
    bits: Mutex<HashMap<(Box<str>, Counted), u64>>,
}

/// Whom something is counted for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Counted {
    Address(IpAddr),
    Pair(IpAddr, IpAddr),
    Flow(u64),
    All,
}

#[derive(Clone, Copy)]
struct Counter {
    since_ns: u64,
    count: u32,
    until_ns: u64,
}

/// Addresses of who sent what matched, and of who receives it; number of the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) flow: u64,
}

/// What becomes of a match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counts {
    /// It is reported, and acted upon.
    Reported,
    /// It is acted upon.
    Silent,
    /// It is no match.
    Not,
}

impl Shared {
    /// Counts a match; says what becomes of it.
    pub(super) fn count(&self, id: Id, threshold: &Threshold, ends: Ends, now_ns: u64) -> Counts {
        let counted = match threshold.track {
            Track::Source => Counted::Address(ends.source),
            Track::Destination => Counted::Address(ends.destination),
            Track::Both => Counted::pair(ends),
            Track::Rule => Counted::All,
            Track::Flow => Counted::Flow(ends.flow),
        };
        let length_ns = u64::from(threshold.seconds) * SECOND_NS;
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut counters, &(id, counted), |counter| counter.until_ns > now_ns);
        let fresh = Counter { since_ns: now_ns, count: 0, until_ns: now_ns + length_ns };
        let counter = counters.entry((id, counted)).or_insert(fresh);
        if now_ns.saturating_sub(counter.since_ns) >= length_ns {
            *counter = fresh;
        }
        counter.count = counter.count.saturating_add(1);
        let (count, limit) = (counter.count, threshold.count);
        match threshold.kind {
            ThresholdKind::Limit if count <= limit => Counts::Reported,
            ThresholdKind::Limit => Counts::Silent,
            ThresholdKind::Threshold if count >= limit => {
                counter.count = 0;
                Counts::Reported
            }
            ThresholdKind::Both if count == limit => Counts::Reported,
            ThresholdKind::Both if count > limit => Counts::Silent,
            ThresholdKind::Filter if count > limit => Counts::Reported,
            ThresholdKind::Threshold | ThresholdKind::Both | ThresholdKind::Filter => Counts::Not,
        }
    }

    /// Whether a condition on a bit holds; what is no condition always does.
    pub(super) fn bit_holds(&self, bit: &XBit, ends: Ends, now_ns: u64) -> bool {
        let wanted = match bit.action {
            BitAction::IsSet => true,
            BitAction::IsNotSet => false,
            BitAction::Set | BitAction::Unset | BitAction::Toggle => return true,
        };
        let bits = self.bits.lock().unwrap_or_else(PoisonError::into_inner);
        let is_set = bits.get(&key(bit, ends)).is_some_and(|until| *until > now_ns);
        is_set == wanted
    }

    /// Changes a bit behind a match.
    pub(super) fn change_bit(&self, bit: &XBit, ends: Ends, now_ns: u64) {
        let mut bits = self.bits.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(bit, ends);
        let seconds = bit.expire_seconds.unwrap_or(BIT_SECONDS);
        let until = now_ns.saturating_add(u64::from(seconds) * SECOND_NS);
        let is_set = bits.get(&key).is_some_and(|until| *until > now_ns);
        let set = match bit.action {
            BitAction::IsSet | BitAction::IsNotSet => return,
            BitAction::Set => true,
            BitAction::Unset => false,
            BitAction::Toggle => !is_set,
        };
        if set {
            make_room(&mut bits, &key, |until| *until > now_ns);
            bits.insert(key, until);
        } else {
            bits.remove(&key);
        }
    }
}

fn key(bit: &XBit, ends: Ends) -> (Box<str>, Counted) {
    let counted = match bit.track {
        XBitTrack::Source => Counted::Address(ends.source),
        XBitTrack::Destination => Counted::Address(ends.destination),
        XBitTrack::Pair => Counted::pair(ends),
    };
    (bit.name.clone(), counted)
}

impl Counted {
    /// Both directions are one pair.
    fn pair(ends: Ends) -> Self {
        let Ends { source, destination, .. } = ends;
        Self::Pair(source.min(destination), source.max(destination))
    }
}

/// Before a key is added: lets go of what has expired, and of a quarter of the rest, whichever that is, where that frees less
/// than that. An attacker who fills the table makes rules forget, which is better than to stop, and better than to
/// look for the oldest each time.
fn make_room<K: Eq + Hash, V>(table: &mut HashMap<K, V>, key: &K, is_alive: impl Fn(&V) -> bool) {
    if table.len() < MAX_ENTRIES || table.contains_key(key) {
        return;
    }
    table.retain(|_, value| is_alive(value));
    if table.len() > MAX_ENTRIES / 4 * 3 {
        // The order is another one in each table: nobody chooses whose these are.
        let mut place = 0_usize;
        table.retain(|_, _| {
            place += 1;
            !place.is_multiple_of(4)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(last: u8) -> Ends {
        Ends { source: [10, 0, 0, last].into(), destination: [10, 0, 1, 1].into(), flow: 1 }
    }

    fn threshold(kind: ThresholdKind, track: Track) -> Threshold {
        Threshold { kind, track, count: 2, seconds: 10 }
    }

    fn counts(kind: ThresholdKind) -> Vec<Counts> {
        let shared = Shared::default();
        let id = Id { gid: 1, sid: 1 };
        (0..6u64)
            .map(|at| {
                // The last two are in the next period.
                let now = at / 4 * 10 * SECOND_NS + at;
                shared.count(id, &threshold(kind, Track::Source), ends(1), now)
            })
            .collect()
    }

    #[test]
    fn accepts_every_kind_of_threshold() {
        use Counts::{Not, Reported, Silent};
        assert_eq!(
            counts(ThresholdKind::Limit),
            [Reported, Reported, Silent, Silent, Reported, Reported]
        );
        assert_eq!(counts(ThresholdKind::Threshold), [Not, Reported, Not, Reported, Not, Reported]);
        assert_eq!(counts(ThresholdKind::Both), [Not, Reported, Silent, Silent, Not, Reported]);
        assert_eq!(counts(ThresholdKind::Filter), [Not, Not, Reported, Reported, Not, Not]);
    }

    #[test]
    fn counts_apart_what_is_tracked_apart() {
        let shared = Shared::default();
        let id = |sid| Id { gid: 1, sid };
        let count = |sid, track, last| {
            shared.count(id(sid), &threshold(ThresholdKind::Both, track), ends(last), 1)
        };
        assert_eq!(count(1, Track::Source, 1), Counts::Not);
        assert_eq!(count(1, Track::Source, 2), Counts::Not);
        assert_eq!(count(2, Track::Source, 1), Counts::Not);
        assert_eq!(count(1, Track::Source, 1), Counts::Reported);
        assert_eq!(count(3, Track::Destination, 1), Counts::Not);
        assert_eq!(count(3, Track::Destination, 2), Counts::Reported);
        assert_eq!(count(4, Track::Rule, 1), Counts::Not);
        assert_eq!(count(4, Track::Rule, 2), Counts::Reported);
        assert_eq!(count(5, Track::Flow, 1), Counts::Not);
        assert_eq!(count(5, Track::Flow, 1), Counts::Reported);
    }

    #[test]
    fn counts_both_directions_of_a_pair_together() {
        let (shared, id) = (Shared::default(), Id { gid: 1, sid: 1 });
        let there = ends(1);
        let back = Ends { source: there.destination, destination: there.source, flow: 2 };
        let both = threshold(ThresholdKind::Both, Track::Both);
        assert_eq!(shared.count(id, &both, there, 1), Counts::Not);
        assert_eq!(shared.count(id, &both, back, 1), Counts::Reported);
    }

    #[test]
    fn accepts_bits_of_addresses_until_they_expire() {
        let shared = Shared::default();
        let bit = |action, track| XBit { action, name: "x".into(), track, expire_seconds: Some(5) };
        let holds =
            |action, track, last, now| shared.bit_holds(&bit(action, track), ends(last), now);
        assert!(holds(BitAction::IsNotSet, XBitTrack::Source, 1, 0));
        shared.change_bit(&bit(BitAction::Set, XBitTrack::Source), ends(1), 0);
        assert!(holds(BitAction::IsSet, XBitTrack::Source, 1, SECOND_NS));
        assert!(!holds(BitAction::IsSet, XBitTrack::Source, 2, SECOND_NS));
        assert!(!holds(BitAction::IsSet, XBitTrack::Pair, 1, SECOND_NS));
        assert!(!holds(BitAction::IsSet, XBitTrack::Source, 1, 5 * SECOND_NS));
        shared.change_bit(&bit(BitAction::Toggle, XBitTrack::Pair), ends(1), 0);
        let back = Ends { source: ends(1).destination, destination: ends(1).source, flow: 2 };
        assert!(shared.bit_holds(&bit(BitAction::IsSet, XBitTrack::Pair), back, 1));
        shared.change_bit(&bit(BitAction::Unset, XBitTrack::Pair), back, 1);
        assert!(!holds(BitAction::IsSet, XBitTrack::Pair, 1, 1));
    }

    #[test]
    fn refuses_to_grow_without_bound() {
        let mut table: HashMap<usize, u64> = (0..MAX_ENTRIES).map(|it| (it, it as u64)).collect();
        make_room(&mut table, &0, |_| false);
        assert_eq!(table.len(), MAX_ENTRIES);
        make_room(&mut table, &MAX_ENTRIES, |value| *value >= 60_000);
        assert_eq!(table.len(), MAX_ENTRIES - 60_000);
        let mut table: HashMap<usize, u64> = (0..MAX_ENTRIES).map(|it| (it, it as u64)).collect();
        make_room(&mut table, &MAX_ENTRIES, |value| *value >= 100);
        assert_eq!(table.len(), (MAX_ENTRIES - 100).div_ceil(4) * 3);
    }
}
