//! Between the endpoints' connections and the middlebox's: who is connected, and which way each message takes.
//!
//! Refuses to wait for the middlebox: where much waits for it, those endpoints are read no further whose messages these are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use mmtls_keyshare::Flow;
use mmtls_keyshare::client::{Client, ClientConfig, StartError};
use mmtls_keyshare::message::{EndpointOpened, Message, Relayed, Steering};
use mmtls_keyshare::sealed::{Delivery, Sealer, Secret};
use mmtls_keyshare::server::{ConnectionId, KeySink, Peer, ServerHandle};
use mmtls_packet_io::PortCounters;

use crate::backlog::Backlog;
use crate::counters::Counters;
use crate::packets::Packets;

/// What the threads share.
#[derive(Default)]
pub(crate) struct Relay {
    endpoints: Mutex<HashMap<u32, Endpoint>>,
    /// While the middlebox is connected: what seals packets, and how it shares connections out.
    way: Mutex<Option<Way>>,
    client: OnceLock<Client>,
    server: OnceLock<ServerHandle>,
    sealed: AtomicU64,
    relayed: AtomicU64,
    interface: Mutex<PortCounters>,
}

struct Way {
    sealer: Sealer,
    steering: Option<Steering>,
}

struct Endpoint {
    connection: ConnectionId,
    opened: EndpointOpened,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All of them are consistent between any two statements, so poison means nothing here.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Relay {
    pub(crate) fn client(&self) -> Option<&Client> {
        self.client.get()
    }

    /// Begins to connect to the middlebox.
    pub(crate) fn connect(self: &Arc<Self>, config: ClientConfig) -> Result<(), StartError> {
        // The client is a part of this.
        let [asked, welcomed] = [(); 2].map(|()| Weak::clone(&Arc::downgrade(self)));
        let on_request = Box::new(move |message| {
            if let Some(relay) = asked.upgrade() {
                relay.middlebox_says(&message);
            }
            Vec::new()
        });
        let on_welcome = Arc::new(move |secret: Option<Secret>| {
            welcomed.upgrade().map(|relay| relay.welcomed(secret)).unwrap_or_default()
        });
        let client = Client::start_key_server(config, on_request, on_welcome)?;
        // Nobody else sets it.
        let _ = self.client.set(client);
        Ok(())
    }

    /// The way back to the endpoints.
    pub(crate) fn answer_through(&self, server: ServerHandle) {
        let _ = self.server.set(server);
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            sealed: self.sealed.load(Ordering::Relaxed),
            relayed: self.relayed.load(Ordering::Relaxed),
            interface: *lock(&self.interface),
            ..Counters::default()
        }
    }

    /// The middlebox is there, or has gone. One that has started again knows nobody yet.
    fn welcomed(&self, secret: Option<Secret>) -> Vec<Message> {
        let sealer = secret.and_then(Sealer::new);
        *lock(&self.way) = sealer.map(|sealer| Way { sealer, steering: None });
        let endpoints = lock(&self.endpoints);
        let opened = endpoints.values().map(|it| Message::EndpointOpened(it.opened.clone()));
        opened.collect()
    }

    fn middlebox_says(&self, message: &Message) {
        if let Message::Steering(steering) = message
            && let Some(way) = &mut *lock(&self.way)
        {
            way.steering = Some(*steering);
        }
        let Message::Relayed(Relayed { endpoint, message }) = message else {
            return;
        };
        let to = lock(&self.endpoints).get(endpoint).map(|it| it.connection);
        if let (Some(to), Some(server)) = (to, self.server.get()) {
            // A full queue means that endpoints are slow; what is for those that are gone is counted there.
            let _ = server.send_to(to, message);
        }
    }
}

/// What the endpoints' server hands over; on its thread.
pub(crate) struct RelaySink {
    relay: Arc<Relay>,
    packets: Option<Packets>,
    /// Whose messages wait for that connection. Nobody else has it.
    backlog: Mutex<Backlog>,
    /// The last message went over the middlebox's connection.
    relays: bool,
}

impl RelaySink {
    /// `queue`: how many messages may wait for the middlebox.
    pub(crate) fn new(relay: Arc<Relay>, packets: Option<Packets>, queue: usize) -> Self {
        Self { relay, packets, backlog: Mutex::new(Backlog::new(queue)), relays: false }
    }

    fn send(&self, of: &Peer, message: &Message) {
        if let Some(client) = self.relay.client() {
            // What is dropped is counted there.
            let _ = client.send(message);
            lock(&self.backlog).push(of.address.ip());
        }
    }

    /// Seals a message for the worker of its connection; gives it back where that cannot be.
    fn seal(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        let (Some(packets), Some(flow)) = (&mut self.packets, flow_of(&message)) else {
            return Some(message);
        };
        let mut way = lock(&self.relay.way);
        let Some(Way { sealer, steering }) = &mut *way else {
            packets.forget();
            return Some(message);
        };
        let delivery =
            Delivery { endpoint: peer.connection.serial(), address: peer.address, message };
        match packets.push(sealer, *steering, flow, &delivery) {
            true => None,
            false => Some(delivery.message),
        }
    }
}

fn flow_of(message: &Message) -> Option<Flow> {
    match message {
        Message::SessionKeys(keys) => keys.flow,
        Message::NullKeys(null) => null.flow,
        _ => None,
    }
}

impl KeySink for RelaySink {
    fn opened(&mut self, peer: &Peer) {
        let &Peer { address, connection, capabilities, authenticated, .. } = peer;
        let endpoint = connection.serial();
        let opened = EndpointOpened { endpoint, address, capabilities, authenticated };
        let known = Endpoint { connection, opened: opened.clone() };
        lock(&self.relay.endpoints).insert(endpoint, known);
        // The middlebox may hear of it twice, if it connects just now.
        self.send(peer, &Message::EndpointOpened(opened));
    }

    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        match self.seal(peer, message) {
            None => {
                self.relays = false;
                self.relay.sealed.fetch_add(1, Ordering::Relaxed);
            }
            Some(message) => {
                self.relays = true;
                self.relay.relayed.fetch_add(1, Ordering::Relaxed);
                let endpoint = peer.connection.serial();
                let message = Message::Relayed(Relayed { endpoint, message: Box::new(message) });
                self.send(peer, &message);
            }
        }
        None
    }

    fn is_backlogged(&self, peer: &Peer) -> bool {
        let mut backlog = lock(&self.backlog);
        if backlog.is_empty() {
            return false;
        }
        let queued = self.relay.client().map_or(0, |client| client.counters().queued);
        backlog.keep(usize::try_from(queued).unwrap_or(usize::MAX));
        let own = backlog.of(peer.address.ip());
        // Of whom nothing waits, what comes may go as packets.
        own >= backlog.allowance() && (own > 0 || self.relays)
    }

    fn batch_end(&mut self) {
        if let Some(packets) = &mut self.packets {
            match &mut *lock(&self.relay.way) {
                Some(way) => packets.flush(&mut way.sealer),
                None => packets.forget(),
            }
            *lock(&self.relay.interface) = packets.counters();
        }
    }

    fn closed(&mut self, peer: &Peer) {
        let endpoint = peer.connection.serial();
        lock(&self.relay.endpoints).remove(&endpoint);
        self.send(peer, &Message::EndpointClosed(endpoint));
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use mmtls_keyshare::message::NullKeys;
    use mmtls_testkit::{Pki, require_program};

    use super::*;

    fn peer(last: u8) -> Peer {
        Peer {
            address: (IpAddr::from([10, 0, 0, last]), 50_000).into(),
            connection: ConnectionId::from_number(u64::from(last) << 32),
            capabilities: 0,
            authenticated: false,
            is_key_server: false,
        }
    }

    /// How many messages are taken of a peer that sends so many, if they are.
    fn flood(sink: &mut RelaySink, peer: &Peer, count: usize) -> usize {
        let null = NullKeys { client_random: [1; 32], direction: None, flow: None };
        let takes = |_: &usize| {
            let takes = !sink.is_backlogged(peer);
            if takes {
                sink.message(peer, Message::NullKeys(null.clone()));
            }
            takes
        };
        (0..count).take_while(takes).count()
    }

    /// While the middlebox takes nothing.
    #[test]
    fn refuses_to_read_on_from_whoever_floods_and_reads_on_from_others() {
        if !require_program("openssl") {
            return;
        }
        let pki = Pki::shared().unwrap();
        // Nobody listens there.
        let middlebox = "127.0.0.1:1".parse().unwrap();
        let config = ClientConfig::new(vec![middlebox], pki.ca.clone());
        let (relay, queue) = (Arc::new(Relay::default()), config.queue_messages);
        relay.connect(config).unwrap();
        let mut sink = RelaySink::new(Arc::clone(&relay), None, queue);
        (1..=3).for_each(|last| sink.opened(&peer(last)));
        let taken = flood(&mut sink, &peer(1), 2 * queue);
        assert!((queue / 8..queue / 2).contains(&taken), "{taken}");
        assert_eq!(flood(&mut sink, &peer(2), 100), 100);
        assert!(sink.is_backlogged(&peer(1)));
        // Several who flood leave something to others, and nothing is lost.
        let taken = [4, 5, 6].map(|last| flood(&mut sink, &peer(last), 2 * queue));
        assert!(taken.is_sorted_by(|one, next| one > next), "{taken:?}");
        assert_eq!(flood(&mut sink, &peer(3), 100), 100);
        assert_eq!(relay.client().unwrap().counters().dropped, 0);
    }
}
