//! Between the endpoints' connections and the middlebox's: who is connected, and which way each message takes.
//!
//! Refuses to wait for the middlebox: where much waits for it, endpoints are read no further.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use mmtls_keyshare::Flow;
use mmtls_keyshare::client::{Client, ClientConfig, StartError};
use mmtls_keyshare::message::{EndpointOpened, Message, Relayed, Steering};
use mmtls_keyshare::sealed::{Delivery, Sealer, Secret};
use mmtls_keyshare::server::{ConnectionId, KeySink, Peer, ServerHandle};
use mmtls_packet_io::PortCounters;

use crate::counters::Counters;
use crate::packets::Packets;

/// What may wait for the middlebox before endpoints are read no further; half of what the queue holds.
const BACKLOG: u64 = 4096;

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
    /// The last message went over the middlebox's connection.
    relays: bool,
}

impl RelaySink {
    pub(crate) fn new(relay: Arc<Relay>, packets: Option<Packets>) -> Self {
        Self { relay, packets, relays: false }
    }

    fn send(&self, message: &Message) {
        if let Some(client) = self.relay.client() {
            // What is dropped is counted there.
            let _ = client.send(message);
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
        self.send(&Message::EndpointOpened(opened));
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
                self.send(&Message::Relayed(Relayed { endpoint, message: Box::new(message) }));
            }
        }
        None
    }

    fn is_backlogged(&self, _: &Peer) -> bool {
        let waiting = || self.relay.client().map_or(0, |client| client.counters().queued);
        self.relays && waiting() >= BACKLOG
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
        self.send(&Message::EndpointClosed(endpoint));
    }
}
