//! Whose messages wait for the middlebox.
//!
//! Refuses to let those of one network take the place of the others': nothing more is read from one that has half of what is left
//! of three quarters of the queue. (That endpoints come and go is told in any case, two messages each time.)

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use mmtls_keyshare::server::network;

/// The networks of what waits in a queue, in its order.
pub(crate) struct Backlog {
    waits: VecDeque<IpAddr>,
    of_networks: HashMap<IpAddr, usize>,
    capacity: usize,
}

impl Backlog {
    /// Of a queue in which so many may wait.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { waits: VecDeque::new(), of_networks: HashMap::new(), capacity }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// One more waits, from this address. The queue drops its oldest where it is full.
    pub(crate) fn push(&mut self, address: IpAddr) {
        let network = network(address);
        self.waits.push_back(network);
        *self.of_networks.entry(network).or_default() += 1;
        self.keep(self.capacity);
    }

    /// Only so many are left in the queue, the latest ones.
    pub(crate) fn keep(&mut self, count: usize) {
        while self.waits.len() > count
            && let Some(network) = self.waits.pop_front()
        {
            if let Some(own) = self.of_networks.get_mut(&network) {
                *own -= 1;
                if *own == 0 {
                    self.of_networks.remove(&network);
                }
            }
        }
    }

    /// How many are from this address' network.
    pub(crate) fn of(&self, address: IpAddr) -> usize {
        self.of_networks.get(&network(address)).copied().unwrap_or(0)
    }

    /// How many a network may have here before no more is to be read from it: half of what is left, of which the last quarter
    /// is for what has been read already.
    pub(crate) fn allowance(&self) -> usize {
        let room = self.capacity - self.capacity / 4;
        room.saturating_sub(self.waits.len()) / 2
    }
}
