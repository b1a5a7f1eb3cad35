//! Sets of addresses and ports, as sorted ranges. Refuses to hold overlapping or empty ones.

use core::net::{IpAddr, Ipv4Addr};

/// What a set is made of.
pub trait Number: Copy + Ord {
    /// The least one.
    const LEAST: Self;
    /// The greatest one.
    const GREATEST: Self;
    /// The next greater one.
    fn next(self) -> Option<Self>;
    /// The next lesser one.
    fn previous(self) -> Option<Self>;
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            const LEAST: Self = 0;
            const GREATEST: Self = <$type>::MAX;

            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }

            fn previous(self) -> Option<Self> {
                self.checked_sub(1)
            }
        }
    };
}

number!(u16);
number!(u128);

/// A set of numbers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ranges<T> {
    /// First and last of each range; sorted, and neither overlapping nor adjacent.
    ranges: Box<[(T, T)]>,
}

/// A set of ports.
pub type Ports = Ranges<u16>;

/// A set of addresses. IPv4 addresses stand in it as IPv6 ones, mapped (RFC 4291, section 2.5.5.2).
pub type Addresses = Ranges<u128>;

impl<T: Number> Ranges<T> {
    /// Every number.
    #[must_use]
    pub fn all() -> Self {
        Self { ranges: Box::new([(T::LEAST, T::GREATEST)]) }
    }

    /// The numbers of ranges in any order; those that end before they start are empty.
    pub(super) fn new(mut ranges: Vec<(T, T)>) -> Self {
        ranges.retain(|(first, last)| first <= last);
        ranges.sort_unstable();
        let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if before.1.next().is_none_or(|next| first <= next) => {
                    before.1 = before.1.max(last);
                }
                _ => merged.push((first, last)),
            }
        }
        Self { ranges: merged.into() }
    }

    /// Whether a number is in the set.
    #[must_use]
    pub fn contains(&self, number: T) -> bool {
        let behind = self.ranges.partition_point(|(first, _)| *first <= number);
        behind > 0 && number <= self.ranges[behind - 1].1
    }

    /// Whether every number is in the set.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.ranges.first() == Some(&(T::LEAST, T::GREATEST))
    }

    /// First and last number of each range, ascending.
    #[must_use]
    pub fn as_slice(&self) -> &[(T, T)] {
        &self.ranges
    }

    /// Every number that is not in the set.
    pub(super) fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        let mut from = Some(T::LEAST);
        for (first, last) in &self.ranges {
            if let (Some(from), Some(to)) = (from, first.previous())
                && from <= to
            {
                ranges.push((from, to));
            }
            from = last.next();
        }
        ranges.extend(from.map(|from| (from, T::GREATEST)));
        Self { ranges: ranges.into() }
    }

    /// The numbers that are in this set and not in the other one.
    pub(super) fn without(&self, other: &Self) -> Self {
        // Not in: neither outside of this one nor inside of the other one.
        let mut ranges = self.complement().ranges.into_vec();
        ranges.extend_from_slice(&other.ranges);
        Self::new(ranges).complement()
    }
}

impl Addresses {
    /// Whether an address is in the set.
    #[must_use]
    pub fn contains_address(&self, address: IpAddr) -> bool {
        self.contains(number(address))
    }
}

/// Where an address stands in a set.
pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Where the IPv4 addresses stand.
pub(super) fn all_ipv4() -> Addresses {
    let number = |address: Ipv4Addr| number(address.into());
    Ranges::new(vec![(number(Ipv4Addr::UNSPECIFIED), number(Ipv4Addr::BROADCAST))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ranges_in_any_order_and_merges_them() {
        let set = Ranges::new(vec![(5u16, 9), (1, 3), (4, 4), (20, 30), (25, 40), (8, 7)]);
        assert_eq!(set.as_slice(), [(1, 9), (20, 40)]);
        assert!(set.contains(1) && set.contains(9) && set.contains(40));
        assert!(!set.contains(0) && !set.contains(10) && !set.contains(41));
        assert!(Ranges::new(vec![(0u16, 5), (6, u16::MAX)]).is_all());
    }

    #[test]
    fn accepts_complements_and_differences() {
        let none = Ranges::<u16>::new(vec![]);
        assert_eq!(Ranges::<u16>::all().complement(), none);
        assert!(none.complement().is_all());
        let set = Ranges::new(vec![(0u16, 5), (9, 9), (u16::MAX, u16::MAX)]);
        assert_eq!(set.complement().as_slice(), [(6, 8), (10, u16::MAX - 1)]);
        assert_eq!(set.complement().complement(), set);
        let less = Ranges::new(vec![(1u16, 80)]).without(&Ranges::new(vec![(2, 2), (4, 4)]));
        assert_eq!(less.as_slice(), [(1, 1), (3, 3), (5, 80)]);
        assert_eq!(none.without(&set), none);
    }

    #[test]
    fn accepts_addresses_of_both_families() {
        let ipv4 = all_ipv4();
        assert!(ipv4.contains_address("255.255.255.255".parse().unwrap()));
        assert!(!ipv4.contains_address("2001:db8::1".parse().unwrap()));
        assert!(!ipv4.complement().contains_address("0.0.0.0".parse().unwrap()));
    }

    #[test]
    fn accepts_what_a_naive_set_accepts() {
        // Every subset of the eight least and the greatest port, cut in every way by another one.
        let set = |bits: u16| {
            let ports = (0..9).filter(|bit| bits >> bit & 1 == 1);
            Ranges::new(
                ports.map(|bit| if bit == 8 { u16::MAX } else { bit }).map(|it| (it, it)).collect(),
            )
        };
        for left in (0..512).step_by(7) {
            for right in (0..512).step_by(5) {
                let difference = set(left).without(&set(right));
                assert_eq!(difference, set(left & !right));
            }
        }
    }
}
