//! Memory that many connections share.
//!
//! Refuses what is not left: whoever asks then has to do without, and says so.

use core::net::IpAddr;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes that all who have a clone of it may take together.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Account>);

/// What one client takes of a budget, or whoever has none.
#[derive(Debug)]
struct Account {
    pool: Arc<Pool>,
    client: Option<IpAddr>,
    taken: AtomicUsize,
}

#[derive(Debug)]
struct Pool {
    left: AtomicUsize,
    /// Those who have an account.
    clients: Mutex<HashMap<IpAddr, Weak<Account>>>,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let pool = Pool { left: AtomicUsize::new(bytes), clients: Mutex::default() };
        Self(Arc::new(Account { pool: Arc::new(pool), client: None, taken: AtomicUsize::new(0) }))
    }

    /// The same budget for the sessions of a client: together they may take no more than they leave to all others.
    /// An IPv6 host has as many addresses of its /64 as it likes, so that counts as one client.
    #[must_use]
    pub fn for_client(&self, address: IpAddr) -> Self {
        let client = match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(ip) => IpAddr::from((ip.to_bits() & !u128::from(u64::MAX)).to_be_bytes()),
        };
        let pool = &self.0.pool;
        let mut clients = pool.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = clients.get(&client).and_then(Weak::upgrade) {
            return Self(account);
        }
        let pool = Arc::clone(pool);
        let account = Account { pool, client: Some(client), taken: AtomicUsize::new(0) };
        let account = Arc::new(account);
        clients.insert(client, Arc::downgrade(&account));
        Self(account)
    }

    /// Bytes that nobody has taken.
    #[must_use]
    pub fn left(&self) -> usize {
        self.0.pool.left.load(Ordering::Relaxed)
    }

    /// Takes bytes out; `None` where there are not so many.
    #[cfg(any(test, feature = "detect"))]
    pub(crate) fn take(&self, bytes: usize) -> Option<Charge> {
        let mut charge = self.charge();
        charge.set(bytes).then_some(charge)
    }

    /// Nothing of it yet.
    pub(crate) fn charge(&self) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }
}

impl Account {
    fn take(&self, bytes: usize) -> bool {
        // Workers that take at the same moment may see the account before each other; the pool is exact.
        let taken = self.taken.load(Ordering::Relaxed).saturating_add(bytes);
        let pool = self.pool.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            let left = left.checked_sub(bytes)?;
            (self.client.is_none() || taken <= left).then_some(left)
        });
        if pool.is_ok() {
            self.taken.fetch_add(bytes, Ordering::Relaxed);
        }
        pool.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        self.pool.left.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            let mut clients = self.pool.clients.lock().unwrap_or_else(PoisonError::into_inner);
            // Another one may have taken its place.
            if clients.get(&client).is_some_and(|account| account.strong_count() == 0) {
                clients.remove(&client);
            }
        }
    }
}

impl Default for MemoryBudget {
    /// 512 MiB.
    fn default() -> Self {
        Self::new(512 << 20)
    }
}

/// Bytes of a budget, which gets them back in the end.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: MemoryBudget,
    bytes: usize,
}

impl Charge {
    /// Has so many bytes; where there are not so many it keeps what it has.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let account = &self.budget.0;
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) if !account.take(more) => return false,
            Some(_) => {}
            None => account.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        true
    }

    /// Has so many bytes at least.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.set(self.bytes.max(bytes))
    }

    /// Gives all of them back.
    pub(crate) fn release(&mut self) {
        self.set(0);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

/// Bytes that are put together, and charged where they are long.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    charge: Charge,
}

impl Kept {
    /// So many bytes cost nothing, and are the most that an empty one holds on to.
    const FREE: usize = 2048;

    /// Nothing yet.
    pub(crate) fn new(budget: &MemoryBudget) -> Self {
        Self { bytes: Vec::new(), charge: budget.charge() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds bytes; without room for them nothing changes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> bool {
        let needed = self.bytes.len().saturating_add(bytes.len());
        if needed > Self::FREE {
            // In steps that double, and no more than is paid for.
            let capacity = needed.next_power_of_two();
            if !self.charge.grow(capacity) {
                return false;
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        true
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Is empty from here on.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > Self::FREE {
            self.bytes = Vec::new();
        }
        self.charge.release();
    }

    /// Hands everything over.
    pub(crate) fn take(&mut self) -> Self {
        let nothing = Self::new(&self.charge.budget);
        core::mem::replace(self, nothing)
    }
}

/// What the application layer of many connections may keep together.
#[derive(Clone, Debug)]
pub struct AppBudget {
    /// For decoders of bodies.
    pub(crate) decoders: MemoryBudget,
    /// For heads, trailers and header blocks that are under way, where they are long.
    pub(crate) heads: MemoryBudget,
}

impl AppBudget {
    /// So many bytes for the decoders of bodies, and for long heads.
    #[must_use]
    pub fn new(decoders: usize, heads: usize) -> Self {
        Self { decoders: MemoryBudget::new(decoders), heads: MemoryBudget::new(heads) }
    }

    /// See [`MemoryBudget::for_client`].
    #[must_use]
    pub fn for_client(&self, address: IpAddr) -> Self {
        let Self { decoders, heads } = self;
        Self { decoders: decoders.for_client(address), heads: heads.for_client(address) }
    }
}

impl Default for AppBudget {
    /// 256 MiB each.
    fn default() -> Self {
        Self::new(256 << 20, 256 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_is_left_and_gives_it_back() {
        let budget = MemoryBudget::new(10);
        let (mut one, mut other) = (budget.charge(), budget.charge());
        assert!(one.set(6) && other.grow(4) && other.grow(2));
        assert_eq!(budget.left(), 0);
        assert!(!one.set(7) && one.set(5) && other.set(5));
        drop(one);
        assert_eq!(budget.left(), 5);
        other.release();
        assert_eq!(budget.left(), 10);
    }

    #[test]
    fn refuses_a_client_more_than_it_leaves_to_others() {
        let budget = MemoryBudget::new(1000);
        let of = |text: &str| budget.for_client(text.parse().unwrap());
        let first = of("2001:db8::1");
        let taken = first.take(500).unwrap();
        assert!(first.take(1).is_none() && of("2001:db8::2").take(1).is_none());
        let others = of("2001:db8:0:1::1").take(250).unwrap();
        assert!(of("192.0.2.1").take(126).is_none() && of("192.0.2.1").take(125).is_some());
        assert!(budget.take(250).is_some(), "who is no client may take everything");
        drop(taken);
        let mut again = of("2001:db8::3").take(375).unwrap();
        assert!(!again.set(376) && again.set(100) && again.set(375));
        drop((others, again, first));
        assert_eq!(budget.left(), 1000);
        assert!(budget.0.pool.clients.lock().unwrap().is_empty());
    }

    #[test]
    fn accepts_short_bytes_for_nothing_and_long_ones_as_far_as_there_is_room() {
        let budget = MemoryBudget::new(8192);
        let mut kept = Kept::new(&budget);
        assert!(kept.extend(&[1; 2048]) && budget.left() == 8192);
        assert!(kept.extend(&[2; 1]) && budget.left() == 4096 && kept.bytes.capacity() == 4096);
        assert!(kept.extend(&[3; 2048]) && budget.left() == 0 && kept.bytes.capacity() == 8192);
        assert!(!kept.extend(&[4; 8192]) && kept.bytes().len() == 4097);
        let taken = kept.take();
        assert!(taken.bytes().len() == 4097 && kept.bytes().is_empty() && budget.left() == 0);
        assert!(!kept.extend(&[5; 2049]) && kept.extend(&[5; 2048]));
        drop(taken);
        assert!(kept.extend(&[6; 1]));
        kept.clear();
        assert_eq!((budget.left(), kept.bytes.capacity()), (8192, 0));
    }
}
