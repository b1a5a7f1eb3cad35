//! How often clients refuse to share.
//!
//! Refuses to remember more than a minute, and more than [`MAX_CLIENTS`]: where that many refuse in a minute, those that come
//! later are not counted. What they refuse meets the policy that a first refusal does.

use core::net::IpAddr;
use std::collections::HashMap;

use crate::tcp::Client;

const MINUTE_NS: u64 = 60_000_000_000;
const MAX_CLIENTS: usize = 1 << 16;

#[derive(Clone, Copy)]
struct Minute {
    since_ns: u64,
    count: u32,
}

pub(crate) struct Refusals {
    of: HashMap<Client, Minute, ahash::RandomState>,
    /// When what is over was last looked for.
    tidied_ns: u64,
}

impl Refusals {
    pub(crate) fn new(hasher: ahash::RandomState) -> Self {
        Self { of: HashMap::with_hasher(hasher), tidied_ns: 0 }
    }

    /// Counts one; whether the client has had `limit` of them in this minute before it.
    pub(crate) fn is_one_too_many(&mut self, client: IpAddr, now_ns: u64, limit: u32) -> bool {
        if limit == 0 {
            return false;
        }
        let is_over = |minute: &Minute| now_ns.saturating_sub(minute.since_ns) >= MINUTE_NS;
        let client = Client::new(client);
        if self.of.len() >= MAX_CLIENTS && !self.of.contains_key(&client) {
            // Once in a while: each of them may come that many times.
            if now_ns.saturating_sub(self.tidied_ns) >= MINUTE_NS {
                self.tidied_ns = now_ns;
                self.of.retain(|_, minute| !is_over(minute));
            }
            if self.of.len() >= MAX_CLIENTS {
                return false;
            }
        }
        let begun = Minute { since_ns: now_ns, count: 0 };
        let minute = self.of.entry(client).or_insert(begun);
        if is_over(minute) {
            *minute = begun;
        }
        minute.count = minute.count.saturating_add(1);
        minute.count > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusals() -> Refusals {
        Refusals::new(ahash::RandomState::with_seeds(1, 2, 3, 4))
    }

    #[test]
    fn counts_each_client_for_a_minute() {
        let mut refusals = refusals();
        let [one, other] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut count = |client, now_ns| refusals.is_one_too_many(client, now_ns, 2);
        assert_eq!([1, 2, 3, MINUTE_NS].map(|now| count(one, now)), [false, false, true, true]);
        assert!(!count(other, 4));
        assert_eq!([1, 2, 3].map(|now| count(one, MINUTE_NS + now)), [false, false, true]);
        // Addresses of one network are one client.
        let of_network = |host: u128| IpAddr::from((0x2001_0db8_u128 << 96 | host).to_be_bytes());
        assert_eq!([1, 2, 3].map(|host| count(of_network(host), 5)), [false, false, true]);
    }

    #[test]
    fn keeps_no_more_than_its_cap() {
        let mut refusals = refusals();
        let client = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
        for number in 0..2 * MAX_CLIENTS as u32 {
            assert!(!refusals.is_one_too_many(client(number), MINUTE_NS, 1));
        }
        assert_eq!(refusals.of.len(), MAX_CLIENTS);
        assert!(refusals.is_one_too_many(client(0), MINUTE_NS + 1, 1));
        // Later others have room.
        assert!(!refusals.is_one_too_many(client(u32::MAX >> 8), 2 * MINUTE_NS, 1));
        assert!(refusals.is_one_too_many(client(u32::MAX >> 8), 2 * MINUTE_NS, 1));
        assert_eq!(refusals.of.len(), 1);
    }
}
