//! Messages to endpoints, on their way to the server's thread.
//!
//! Refuses to let those for one network take the place of the others': refusals of what one endpoint floods with must not
//! keep questions from the rest.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zeroize::Zeroizing;

use super::peer::{ConnectionId, Peer};
use super::queue::Queue;
use super::sink::KeySink;
use crate::message::Message;
use crate::sealed::Secret;

/// Messages that may wait for the thread.
const MAX_ORDERS: usize = 16 * 1024;

/// An encoded message, of which others may have the same, and for whom.
pub(super) type Order = (ConnectionId, Arc<Zeroizing<Vec<u8>>>);

/// What waits, and where the endpoints are.
pub(super) struct Orders {
    queue: Queue<Order>,
    addresses: Mutex<HashMap<ConnectionId, IpAddr>>,
}

impl Orders {
    pub(super) fn new() -> Self {
        Self { queue: Queue::new(MAX_ORDERS), addresses: Mutex::default() }
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<ConnectionId, IpAddr>> {
        // Consistent between any two statements, so poison means nothing here.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message; gives it back where too much waits for that endpoint's network.
    pub(super) fn push(&self, order: Order) -> Result<(), Order> {
        // What is for nobody any more counts together: the thread is soon done with it.
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let address = self.addresses().get(&order.0).copied().unwrap_or(nobody);
        self.queue.push(Some(address), 1, order)
    }

    /// Nobody will send them any more.
    pub(super) fn close(&self) {
        self.queue.close();
    }

    /// The next one.
    pub(super) fn pop(&self) -> Option<Order> {
        self.queue.pop()
    }
}

/// A sink that takes note of where endpoints are.
pub(super) struct Noting {
    pub(super) sink: Box<dyn KeySink>,
    pub(super) orders: Arc<Orders>,
}

impl KeySink for Noting {
    fn opened(&mut self, peer: &Peer) {
        self.orders.addresses().insert(peer.connection, peer.address.ip());
        self.sink.opened(peer);
    }

    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        self.sink.message(peer, message)
    }

    fn is_backlogged(&self, peer: &Peer) -> bool {
        self.sink.is_backlogged(peer)
    }

    fn batch_end(&mut self) {
        self.sink.batch_end();
    }

    fn closed(&mut self, peer: &Peer) {
        self.sink.closed(peer);
        self.orders.addresses().remove(&peer.connection);
    }

    fn key_server_opened(&mut self, peer: &Peer, secret: Secret) -> Option<Message> {
        self.sink.key_server_opened(peer, secret)
    }

    fn key_server_closed(&mut self, peer: &Peer) {
        self.sink.key_server_closed(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl KeySink for Nobody {
        fn message(&mut self, _: &Peer, _: Message) -> Option<Message> {
            None
        }
    }

    #[test]
    fn refuses_to_let_messages_for_one_network_take_the_place_of_others() {
        let orders = Arc::new(Orders::new());
        let mut sink = Noting { sink: Box::new(Nobody), orders: Arc::clone(&orders) };
        let peer = |number: u32, last: u8| Peer {
            address: ([10, 0, 0, last], 50_000).into(),
            connection: ConnectionId::of_place(number, 0),
            capabilities: 0,
            authenticated: false,
            is_key_server: false,
        };
        // One address with many connections, another with one.
        let flooded: Vec<Peer> = (1..=256).map(|number| peer(number, 2)).collect();
        let honest = peer(257, 3);
        flooded.iter().chain([&honest]).for_each(|peer| sink.opened(peer));
        let to =
            |peer: &Peer| orders.push((peer.connection, Arc::new(Zeroizing::new(vec![0])))).is_ok();
        let taken = (0..2 * MAX_ORDERS).filter(|at| to(&flooded[at % 256])).count();
        assert_eq!(taken, MAX_ORDERS / 2);
        assert!((0..100).all(|_| to(&honest)));
        // What is for nobody has its limit, too.
        let taken = (0..MAX_ORDERS).filter(|_| to(&peer(300, 4))).count();
        assert!((1000..MAX_ORDERS / 2).contains(&taken), "{taken}");
        // Its turn comes soon.
        let first: Vec<Order> = (0..2).filter_map(|_| orders.pop()).collect();
        assert!(first.iter().any(|(it, _)| *it == honest.connection));
        flooded.iter().chain([&honest]).for_each(|peer| sink.closed(peer));
        assert!(orders.addresses().is_empty());
    }
}
