//! From the key channel to the worker: messages become record openers on the key server's
//! thread, off the packet path, and wait in a bounded queue.
//!
//! Refuses to keep key bytes once their opener is set up, and to wait for a slow worker: a full
//! queue drops the delivery and counts it (the session then meets the missing-key policy).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, OpenRecord, ProtocolVersion};
use mmtls_engine::{KeysNeeded, SharedKeys};
use mmtls_keyshare::message::{self, Epoch, KeyRequest, Message, SessionKeys};
use mmtls_keyshare::server::{ConnectionId, KeySink, Peer};
use mmtls_packet_io::af_packet::WakeFd;
use mmtls_record::open_record;
use zeroize::Zeroizing;

/// Deliveries that may wait for the worker.
const QUEUE: usize = 1 << 16;

/// A delivery on its way to the worker.
pub enum Delivery {
    /// Record keys.
    Keys(SharedKeys),
    /// An endpoint's refusal.
    Null {
        /// Who refused.
        sender: IpAddr,
        /// For which session.
        client_random: [u8; 32],
    },
    /// Lines of a key log.
    Lines(Zeroizing<Vec<u8>>),
}

/// Counters and the way back to the endpoints, shared with the worker.
#[derive(Default)]
pub struct KeyDesk {
    /// Deliveries dropped because the worker's queue was full.
    pub queue_full: AtomicU64,
    /// Deliveries whose keys fit no supported suite.
    pub unusable: AtomicU64,
    connections: Mutex<HashMap<IpAddr, Vec<ConnectionId>>>,
    /// The worker sleeps, or is about to: it has to be woken for a delivery.
    worker_sleeps: AtomicBool,
}

impl KeyDesk {
    /// What the worker says before it looks into the queue for the last time: any delivery that
    /// this look misses will wake it.
    pub fn announce_sleep(&self) {
        self.worker_sleeps.store(true, Ordering::Relaxed);
        // Pairs with the one in `batch_end`: either the worker sees the delivery, or the sink
        // sees that it sleeps.
        fence(Ordering::SeqCst);
    }

    /// The connections on which this address delivered something: one for each agent.
    #[must_use]
    pub fn connections_of(&self, address: IpAddr) -> Vec<ConnectionId> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.get(&address).cloned().unwrap_or_default()
    }
}

/// The key server's side of the queue.
pub struct WorkerSink {
    queue: SyncSender<Delivery>,
    wake: Arc<WakeFd>,
    desk: Arc<KeyDesk>,
    last_connection: Option<ConnectionId>,
    pending_wake: bool,
}

/// Versions and suites that can be opened.
#[must_use]
pub fn supports(version: ProtocolVersion, suite: CipherSuite) -> bool {
    mmtls_record::suite::is_supported(version.0, suite.0)
}

/// Makes the queue between key server and worker.
#[must_use]
pub fn queue(wake: Arc<WakeFd>) -> (WorkerSink, Receiver<Delivery>, Arc<KeyDesk>) {
    let (sender, receiver) = sync_channel(QUEUE);
    let desk = Arc::new(KeyDesk::default());
    let sink = WorkerSink {
        queue: sender,
        wake,
        desk: Arc::clone(&desk),
        last_connection: None,
        pending_wake: false,
    };
    (sink, receiver, desk)
}

impl WorkerSink {
    /// A second way into the queue, for the lines of a key log; false when the worker is gone.
    pub fn lines(&self) -> impl FnMut(Zeroizing<Vec<u8>>) -> bool + Send + use<> {
        let (queue, wake, desk) =
            (self.queue.clone(), Arc::clone(&self.wake), Arc::clone(&self.desk));
        move |lines| match queue.try_send(Delivery::Lines(lines)) {
            Ok(()) => {
                wake.wake();
                true
            }
            Err(TrySendError::Full(_)) => {
                desk.queue_full.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

impl KeySink for WorkerSink {
    fn message(&mut self, peer: &Peer, message: Message) {
        let sender = peer.address.ip();
        if self.last_connection != Some(peer.connection) {
            self.last_connection = Some(peer.connection);
            let mut known = self.desk.connections.lock().unwrap_or_else(PoisonError::into_inner);
            let known = known.entry(sender).or_default();
            if !known.contains(&peer.connection) {
                known.push(peer.connection);
            }
        }
        let delivery = match message {
            Message::SessionKeys(keys) => match open_keys(sender, &keys) {
                Some(keys) => Delivery::Keys(keys),
                None => {
                    self.desk.unusable.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            },
            Message::NullKeys(null) => Delivery::Null { sender, client_random: null.client_random },
            _ => return,
        };
        match self.queue.try_send(delivery) {
            Ok(()) => self.pending_wake = true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.desk.queue_full.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn batch_end(&mut self) {
        if std::mem::take(&mut self.pending_wake) {
            fence(Ordering::SeqCst);
            // A worker that is awake looks into the queue anyway, and a wake is two system calls.
            if self.desk.worker_sleeps.swap(false, Ordering::Relaxed) {
                self.wake.wake();
            }
        }
    }

    fn closed(&mut self, peer: &Peer) {
        let mut known = self.desk.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = known.get_mut(&peer.address.ip()) {
            connections.retain(|connection| *connection != peer.connection);
            if connections.is_empty() {
                known.remove(&peer.address.ip());
            }
        }
        self.last_connection = None;
    }
}

/// Sets up the openers of a message; `None` when nothing in it can be used.
fn open_keys(sender: IpAddr, message: &SessionKeys) -> Option<SharedKeys> {
    let mut keys: Vec<(Direction, KeyEpoch, Box<dyn OpenRecord>)> = Vec::new();
    for entry in &message.keys {
        let direction = match entry.direction {
            message::Direction::ClientToServer => Direction::ClientToServer,
            message::Direction::ServerToClient => Direction::ServerToClient,
        };
        let epoch = match entry.epoch {
            Epoch::EARLY_DATA => KeyEpoch::EarlyData,
            Epoch::HANDSHAKE => KeyEpoch::Handshake,
            other => match other.updates() {
                Some(updates) => KeyEpoch::Application(updates),
                None => continue,
            },
        };
        let opener = open_record(
            message.version,
            message.cipher_suite,
            entry.key.as_bytes(),
            entry.iv.as_bytes(),
            entry.mac_key.as_bytes(),
        );
        // One that cannot be used does not spoil the others.
        if let Ok(opener) = opener {
            keys.push((direction, epoch, opener));
        }
    }
    (!keys.is_empty()).then_some(SharedKeys {
        sender: Some(sender),
        client_random: message.client_random,
        server_random: message.server_random,
        cipher_suite: CipherSuite(message.cipher_suite),
        keys,
    })
}

/// The request that asks an endpoint for what the engine wants; only for keys after a KeyUpdate,
/// since the first ones come unasked.
#[must_use]
pub fn request(wanted: &KeysNeeded) -> Option<Message> {
    let KeyEpoch::Application(updates @ 1..) = wanted.epoch else {
        return None;
    };
    Some(Message::KeyRequest(KeyRequest {
        client_random: wanted.client_random,
        server_random: wanted.server_random?,
        version: wanted.version.0,
        cipher_suite: wanted.cipher_suite?.0,
        direction: match wanted.direction {
            Direction::ClientToServer => message::Direction::ClientToServer,
            Direction::ServerToClient => message::Direction::ServerToClient,
        },
        epoch: Epoch::application(updates)?,
    }))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mmtls_keyshare::client::{Client, ClientConfig};
    use mmtls_keyshare::message::NullKeys;
    use mmtls_keyshare::server::{Identity, Server, ServerConfig};
    use mmtls_testkit::{Pki, require_program};

    use super::*;

    #[test]
    fn accepts_two_agents_of_one_address() {
        if !require_program("openssl") {
            return;
        }
        let pki = Pki::shared().unwrap();
        let (sink, _queue, desk) = queue(Arc::new(WakeFd::new().unwrap()));
        let identity = Identity {
            certificate_file: pki.middlebox.certificate.clone(),
            key_file: pki.middlebox.key.clone(),
        };
        let server =
            Server::start(ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity), sink)
                .unwrap();
        let address = server.local_addr();
        let connect = || {
            let middlebox = address.to_string().parse().unwrap();
            let config = ClientConfig::new(vec![middlebox], pki.ca.clone());
            let client = Client::start(config, Box::new(|_| None)).unwrap();
            for number in 0..3 {
                let message = NullKeys { client_random: [number; 32], flow: None };
                client.send(&Message::NullKeys(message)).unwrap();
            }
            client
        };
        let known = |count| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while desk.connections_of(address.ip()).len() != count {
                assert!(Instant::now() < deadline, "{:?}", desk.connections_of(address.ip()));
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let (first, second) = (connect(), connect());
        known(2);
        drop(second);
        known(1);
        drop(first);
        known(0);
    }
}
