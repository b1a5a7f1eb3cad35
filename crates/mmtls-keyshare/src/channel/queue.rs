//! A bounded queue from several threads to one that serves networks in turn: of what they have sent, or are sent.
//!
//! Refuses to let one sender fill it: each may have as much as is left for all others, so that one
//! that floods has half of it, the next one half of the rest. Some fifteen who flood leave nothing to another.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::admission::network;

/// What waits, of one sender each.
struct Lanes<T> {
    lanes: HashMap<Option<IpAddr>, Lane<T>>,
    /// Senders of whom something waits, in the order of their turns.
    turns: VecDeque<Option<IpAddr>>,
}

/// What waits of one sender, and what each of it weighs.
struct Lane<T> {
    items: VecDeque<(usize, T)>,
    weight: usize,
}

/// The queue.
pub struct Queue<T> {
    lanes: Mutex<Lanes<T>>,
    /// The weight of what waits: whoever polls an empty queue needs no lock.
    waiting: AtomicUsize,
    /// Nobody takes anything any more.
    closed: AtomicBool,
    capacity: usize,
}

impl<T> Queue<T> {
    /// One in which so much weight may wait.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            lanes: Mutex::new(Lanes { lanes: HashMap::new(), turns: VecDeque::new() }),
            waiting: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            capacity,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lanes<T>> {
        // Consistent between any two statements, so poison means nothing here.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of a sender may wait now.
    fn allowance(&self) -> usize {
        self.capacity.saturating_sub(self.waiting.load(Ordering::Relaxed))
    }

    /// Whether a sender (an IPv6 network counts as one) has so much here that it should send no
    /// more for a while.
    #[must_use]
    pub fn is_backlogged(&self, sender: IpAddr) -> bool {
        // Whoever may have this much cannot be backlogged.
        let allowance = self.allowance();
        if self.waiting.load(Ordering::Relaxed) < allowance / 2 {
            return false;
        }
        let lanes = self.lock();
        lanes.lanes.get(&Some(network(sender))).is_some_and(|lane| lane.weight >= allowance / 2)
    }

    /// Adds what a sender sent; `None` is this host, whose lines are limited elsewhere. The weight is 1 or more.
    ///
    /// # Errors
    /// It, where the sender has too much here already.
    pub fn push(&self, sender: Option<IpAddr>, weight: usize, item: T) -> Result<(), T> {
        let lane = sender.map(network);
        if self.closed.load(Ordering::Relaxed) {
            return Err(item);
        }
        let mut lanes = self.lock();
        let allowance = self.allowance();
        let Lanes { lanes, turns } = &mut *lanes;
        let waits = lanes.get(&lane).map_or(0, |own| own.weight);
        if lane.is_some() && waits + weight > allowance {
            return Err(item);
        }
        let own = lanes.entry(lane).or_insert_with(|| {
            turns.push_back(lane);
            Lane { items: VecDeque::new(), weight: 0 }
        });
        own.items.push_back((weight, item));
        own.weight += weight;
        self.waiting.fetch_add(weight, Ordering::Relaxed);
        Ok(())
    }

    /// The next one of the sender whose turn it is.
    #[must_use]
    pub fn pop(&self) -> Option<T> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut lanes = self.lock();
        let Lanes { lanes, turns } = &mut *lanes;
        let lane = turns.pop_front()?;
        let own = lanes.get_mut(&lane)?;
        let (weight, item) = own.items.pop_front()?;
        own.weight -= weight;
        match own.items.is_empty() {
            true => drop(lanes.remove(&lane)),
            false => turns.push_back(lane),
        }
        self.waiting.fetch_sub(weight, Ordering::Relaxed);
        Some(item)
    }

    /// Nobody will take anything any more: what waits goes, and nothing is added.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let mut lanes = self.lock();
        lanes.lanes.clear();
        lanes.turns.clear();
        self.waiting.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_let_a_flood_take_the_place_of_others() {
        let queue = Queue::new(1000);
        let sender = |last: u8| Some(IpAddr::from([10, 0, 0, last]));
        let flood = |last, count| {
            (0..count).filter(|number| queue.push(sender(last), 1, *number).is_ok()).count()
        };
        assert_eq!(flood(1, 5000), 500);
        assert!(queue.is_backlogged([10, 0, 0, 1].into()));
        assert!(!queue.is_backlogged([10, 0, 0, 2].into()));
        assert_eq!(flood(2, 5000), 250);
        assert_eq!(flood(3, 5000), 125);
        // An honest one has room for more than it needs, and its turn soon.
        assert_eq!(flood(4, 20), 20);
        let first: Vec<u32> = (0..80).filter_map(|_| queue.pop()).collect();
        for number in 0..20 {
            assert_eq!(first.iter().filter(|it| **it == number).count(), 4, "{number}");
        }
        let rest = std::iter::from_fn(|| queue.pop()).count();
        assert_eq!(rest, 500 + 250 + 125 + 20 - 80);
        assert!(queue.lock().lanes.is_empty() && queue.lock().turns.is_empty());
    }

    #[test]
    fn refuses_to_count_addresses_of_a_network_apart() {
        let queue = Queue::new(1000);
        let taken = (0..5000u16).filter(|number| {
            let sender = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, *number]);
            queue.push(Some(sender), 1, ()).is_ok()
        });
        assert_eq!(taken.count(), 500);
    }

    #[test]
    fn refuses_more_weight_of_a_sender_than_is_left_for_others() {
        let queue = Queue::new(1000);
        let sender = IpAddr::from([10, 0, 0, 1]);
        let push = || queue.push(Some(sender), 16, ()).is_ok();
        assert_eq!((0..100).take_while(|_| push()).count(), 31);
        assert!(queue.is_backlogged(sender));
        (0..31).for_each(|_| queue.pop().unwrap());
        assert!(queue.pop().is_none() && !queue.is_backlogged(sender));
        assert!(push());
    }

    #[test]
    fn accepts_nothing_where_nobody_takes_it() {
        let queue = Queue::new(10);
        queue.push(None, 1, 1).unwrap();
        queue.close();
        assert_eq!(queue.push(None, 1, 2), Err(2));
        assert_eq!(queue.pop(), None);
    }
}
