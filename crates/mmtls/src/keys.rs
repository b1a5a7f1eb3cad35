//! From the key channel to the workers: messages become record openers on the key server's
//! thread, off the packet path, and wait in bounded queues.
//!
//! A delivery first goes to the worker that the connection's ends name. Where addresses are
//! translated between endpoint and monitor, or no ends are given, that worker does not know the
//! session and passes the delivery on to the next one, until it has gone round once: then it waits
//! where it came first, since its session may be yet to come.
//!
//! With several workers, what overtakes its ClientHello (keys of early data, null keys) and names other ends than the monitor
//! sees is kept by a worker that does not get the session, and not found.
//!
//! Refuses to keep key bytes once their opener is set up, to share anything but queues between
//! workers, and to wait for a slow one. No sender fills a queue ([`queue`]): of one that has much in it
//! nothing is read for a while, and what comes all the same is dropped and counted (the session then
//! meets the missing-key policy).

mod queue;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, OpenRecord, ProtocolVersion};
use mmtls_engine::{KeysNeeded, SharedKeys};
use mmtls_keyshare::Flow;
use mmtls_keyshare::message::{self, Epoch, KeyRequest, Message, SessionKeys};
use mmtls_keyshare::server::{ConnectionId, KeySink, Peer};
use mmtls_packet_io::WakeFd;
use mmtls_packet_io::af_packet::Steering;
use mmtls_record::open_record;
use zeroize::Zeroizing;

use queue::Queue;

use crate::keylog::follow::LineSink;

/// Deliveries that may wait for one worker.
const QUEUE: usize = 1 << 16;

/// Bytes of a key log's lines that may wait, for all workers together; then its follower waits.
const MAX_LINE_BYTES: usize = 4 << 20;

/// Most connections that are asked for the keys of one session: any client can make the monitor
/// ask, with one record.
const MAX_ASKED: usize = 256;

/// What a parcel of lines is charged beside its text, so that short ones cannot fill the queues.
const PARCEL_COST: usize = 256;

/// Bytes of a key log that cost a worker as much as a delivery: the shortest line with a secret.
const BYTES_PER_DELIVERY: usize = 128;

/// A delivery on its way to a worker.
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
    Lines(Arc<Lines>),
}

/// Lines of a key log that wait for the workers, and room that is free again when the last one has
/// them.
pub struct Lines {
    text: Zeroizing<Vec<u8>>,
    desk: Arc<KeyDesk>,
}

impl Lines {
    fn new(text: Zeroizing<Vec<u8>>, desk: Arc<KeyDesk>) -> Self {
        desk.line_bytes.fetch_add(text.len() + PARCEL_COST, Ordering::Relaxed);
        Self { text, desk }
    }

    /// Whole lines.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.desk.line_bytes.fetch_sub(self.text.len() + PARCEL_COST, Ordering::Relaxed);
    }
}

impl Delivery {
    /// Who sent it and for which session; `None` for what is every worker's.
    fn session(&self) -> Option<(Option<IpAddr>, [u8; 32])> {
        match self {
            Self::Keys(keys) => Some((keys.sender, keys.client_random)),
            Self::Null { sender, client_random } => Some((Some(*sender), *client_random)),
            Self::Lines(_) => None,
        }
    }

    /// What it takes of a turn. Lines are as many deliveries as there may be secrets in them.
    fn cost(&self) -> usize {
        match self {
            Self::Keys(_) | Self::Null { .. } => 1,
            Self::Lines(lines) => 1 + lines.text.len() / BYTES_PER_DELIVERY,
        }
    }
}

/// A delivery and how many workers have passed it on.
struct Parcel {
    delivery: Delivery,
    passed: usize,
}

/// The way into one worker's queue.
#[derive(Clone)]
struct Mailbox {
    queue: Arc<Queue<Parcel>>,
    wake: Arc<WakeFd>,
    /// The worker sleeps, or is about to: it has to be woken for a delivery.
    sleeps: Arc<AtomicBool>,
}

impl Mailbox {
    /// Wakes the worker, after what was put into its queue. One that is awake looks into the queue
    /// anyway, and a wake is two system calls.
    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleeps.swap(false, Ordering::Relaxed) {
            self.wake.wake();
        }
    }
}

/// One worker's end of the queues.
pub struct Inbox {
    own: Mailbox,
    /// Who gets what this worker does not know.
    next: Mailbox,
    workers: usize,
    desk: Arc<KeyDesk>,
}

impl Inbox {
    /// The next delivery that is this worker's, of at most `limit` that are looked at; a key log's
    /// lines count as many, and the last ones may go beyond the limit. `knows` says whether a
    /// sender's session is.
    pub fn take(
        &mut self,
        limit: &mut usize,
        mut knows: impl FnMut(Option<IpAddr>, &[u8; 32]) -> bool,
    ) -> Option<Delivery> {
        while *limit > 0
            && let Some(Parcel { delivery, passed }) = self.own.queue.pop()
        {
            *limit = limit.saturating_sub(delivery.cost());
            let round = self.workers == 1 || passed >= self.workers;
            match delivery.session() {
                Some((sender, random)) if !round && !knows(sender, &random) => {
                    let parcel = Parcel { delivery, passed: passed + 1 };
                    match self.next.queue.push(sender, parcel) {
                        Ok(()) => self.next.ring(),
                        Err(_) => self.desk.count_lost(),
                    }
                }
                _ => return Some(delivery),
            }
        }
        None
    }

    /// What the worker says before it looks into the queue for the last time: any delivery that
    /// this look misses will wake it.
    pub fn announce_sleep(&self) {
        self.own.sleeps.store(true, Ordering::Relaxed);
        // Pairs with the one in `ring`: either the worker sees the delivery, or its sender sees that
        // it sleeps.
        fence(Ordering::SeqCst);
    }

    /// Fires when there are deliveries for a worker that sleeps.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.own.wake.as_fd()
    }

    /// Takes note that it fired.
    pub fn woken(&self) {
        self.own.wake.drain();
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.own.queue.close();
    }
}

/// Counters and the way back to the endpoints, shared by the workers.
#[derive(Default)]
pub struct KeyDesk {
    /// Deliveries dropped because a worker's queue was full.
    pub queue_full: AtomicU64,
    /// Deliveries whose keys fit no supported suite.
    pub unusable: AtomicU64,
    /// What the lines take that wait for workers.
    line_bytes: AtomicUsize,
    /// Why the key log cannot be read; not told yet.
    log_error: Mutex<Option<io::Error>>,
    connections: Mutex<HashMap<IpAddr, Vec<ConnectionId>>>,
}

impl KeyDesk {
    /// The connections from this address: one for each agent.
    #[must_use]
    pub fn connections_of(&self, address: IpAddr) -> Vec<ConnectionId> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.get(&address).cloned().unwrap_or_default()
    }

    /// Who is asked for keys of a client at this address: the connections from there; where there
    /// are none and any sender may deliver, some of the others.
    #[must_use]
    pub fn connections_to_ask(&self, address: IpAddr, any_sender: bool) -> Vec<ConnectionId> {
        let own = self.connections_of(address);
        if !own.is_empty() || !any_sender {
            return own;
        }
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.values().flatten().take(MAX_ASKED).copied().collect()
    }

    /// Whether anybody could deliver keys of a client at this address, or at any.
    #[must_use]
    pub fn is_connected(&self, address: Option<IpAddr>) -> bool {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        address.map_or(!connections.is_empty(), |address| connections.contains_key(&address))
    }

    /// Why the key log cannot be read, once.
    #[must_use]
    pub fn take_log_error(&self) -> Option<io::Error> {
        self.log_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn count_lost(&self) {
        self.queue_full.fetch_add(1, Ordering::Relaxed);
    }
}

/// The key server's side of the queues.
pub struct WorkerSink {
    mailboxes: Vec<Mailbox>,
    /// Which of them have deliveries that they may not know of.
    unrung: Vec<bool>,
    steering: Steering,
    desk: Arc<KeyDesk>,
}

/// Versions and suites that can be opened.
#[must_use]
pub fn supports(version: ProtocolVersion, suite: CipherSuite) -> bool {
    mmtls_record::suite::is_supported(version.0, suite.0)
}

/// Makes the queues between key server and workers, as many as `steering` has bridges.
///
/// # Errors
/// The system's, when out of descriptors.
pub fn queues(steering: Steering) -> io::Result<(WorkerSink, Vec<Inbox>, Arc<KeyDesk>)> {
    let desk = Arc::new(KeyDesk::default());
    let mut mailboxes = Vec::new();
    for _ in 0..steering.bridges.max(1) {
        let queue = Arc::new(Queue::new(QUEUE));
        let wake = Arc::new(WakeFd::new()?);
        mailboxes.push(Mailbox { queue, wake, sleeps: Arc::default() });
    }
    let workers = mailboxes.len();
    let inboxes = (0..workers).map(|at| Inbox {
        own: mailboxes[at].clone(),
        next: mailboxes[(at + 1) % workers].clone(),
        workers,
        desk: Arc::clone(&desk),
    });
    let inboxes = inboxes.collect();
    let sink =
        WorkerSink { mailboxes, unrung: vec![false; workers], steering, desk: Arc::clone(&desk) };
    Ok((sink, inboxes, desk))
}

impl WorkerSink {
    /// A second way into the queues, for the lines of a key log.
    #[must_use]
    pub fn lines(&self) -> WorkerLines {
        WorkerLines { mailboxes: self.mailboxes.clone(), desk: Arc::clone(&self.desk) }
    }

    /// The worker that a delivery goes to first.
    fn home(&self, flow: Option<&Flow>, random: &[u8; 32]) -> usize {
        match flow {
            Some(flow) => self.steering.bridge_of(flow.client(), flow.server()) as usize,
            None => usize::from(random[0]) % self.mailboxes.len(),
        }
    }

    /// Puts the keys, or their refusal, of an endpoint at `sender` into a worker's queue; `source` is the number of its
    /// connection. The worker hears of them with the next [`KeySink::batch_end`]. Other messages are ignored, and what
    /// cannot be used or queued is counted ([`KeyDesk`]).
    pub fn deliver(&mut self, sender: IpAddr, source: u64, message: Message) {
        let (home, delivery) = match message {
            Message::SessionKeys(keys) => {
                let home = self.home(keys.flow.as_ref(), &keys.client_random);
                match open_keys(sender, source, &keys) {
                    Some(keys) => (home, Delivery::Keys(keys)),
                    None => {
                        self.desk.unusable.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
            }
            Message::NullKeys(null) => {
                let home = self.home(null.flow.as_ref(), &null.client_random);
                (home, Delivery::Null { sender, client_random: null.client_random })
            }
            _ => return,
        };
        match self.mailboxes[home].queue.push(Some(sender), Parcel { delivery, passed: 0 }) {
            Ok(()) => self.unrung[home] = true,
            Err(_) => self.desk.count_lost(),
        }
    }
}

/// The key log's side of the queues: every worker gets every line.
pub struct WorkerLines {
    mailboxes: Vec<Mailbox>,
    desk: Arc<KeyDesk>,
}

impl LineSink for WorkerLines {
    fn has_room(&self) -> bool {
        self.desk.line_bytes.load(Ordering::Relaxed) < MAX_LINE_BYTES
    }

    fn lines(&mut self, lines: Zeroizing<Vec<u8>>) {
        let lines = Arc::new(Lines::new(lines, Arc::clone(&self.desk)));
        for mailbox in &self.mailboxes {
            let delivery = Delivery::Lines(Arc::clone(&lines));
            // What of these waits is limited by its bytes; a worker that is gone takes none.
            if mailbox.queue.push(None, Parcel { delivery, passed: 0 }).is_ok() {
                mailbox.ring();
            }
        }
    }

    fn failed(&mut self, error: io::Error) {
        *self.desk.log_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl KeySink for WorkerSink {
    fn opened(&mut self, peer: &Peer) {
        let mut known = self.desk.connections.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(peer.address.ip()).or_default().push(peer.connection);
    }

    fn message(&mut self, peer: &Peer, message: Message) {
        self.deliver(peer.address.ip(), peer.connection.number(), message);
    }

    fn is_crowded(&self, peer: &Peer) -> bool {
        let sender = peer.address.ip();
        self.mailboxes.iter().any(|mailbox| mailbox.queue.is_crowded(sender))
    }

    fn batch_end(&mut self) {
        for (mailbox, unrung) in self.mailboxes.iter().zip(&mut self.unrung) {
            if std::mem::take(unrung) {
                mailbox.ring();
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
    }
}

/// Sets up the openers of a message; `None` when nothing in it can be used.
fn open_keys(sender: IpAddr, source: u64, message: &SessionKeys) -> Option<SharedKeys> {
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
        source,
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

    const SENDER: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)));

    fn null(random: u8) -> Parcel {
        let sender = [10, 0, 0, 2].into();
        Parcel { delivery: Delivery::Null { sender, client_random: [random; 32] }, passed: 0 }
    }

    #[test]
    fn accepts_deliveries_at_whichever_worker_knows_the_session() {
        let (sink, mut inboxes, desk) = queues(Steering { bridges: 3, seed: 0 }).unwrap();
        for home in 0..3 {
            for owner in 0..3 {
                sink.mailboxes[home].queue.push(SENDER, null(7)).ok().unwrap();
                let mut taken = Vec::new();
                for turn in 0..6 {
                    let at = turn % 3;
                    let mut limit = 10;
                    while let Some(it) = inboxes[at].take(&mut limit, |_, _| at == owner) {
                        taken.push((at, it.session()));
                    }
                }
                let session = Some((Some([10, 0, 0, 2].into()), [7; 32]));
                assert_eq!(taken, [(owner, session)], "from {home}");
            }
        }
        assert_eq!(desk.queue_full.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn accepts_deliveries_for_sessions_that_nobody_knows_yet_where_they_came_first() {
        let (sink, mut inboxes, _desk) = queues(Steering { bridges: 3, seed: 0 }).unwrap();
        sink.mailboxes[1].queue.push(SENDER, null(7)).ok().unwrap();
        let mut taken = Vec::new();
        for turn in 0..9 {
            let mut limit = 10;
            if inboxes[turn % 3].take(&mut limit, |_, _| false).is_some() {
                taken.push(turn % 3);
            }
        }
        assert_eq!(taken, [1]);
    }

    #[test]
    fn refuses_to_look_at_more_than_the_limit() {
        let (sink, mut inboxes, desk) = queues(Steering { bridges: 2, seed: 0 }).unwrap();
        for _ in 0..10 {
            sink.mailboxes[0].queue.push(SENDER, null(1)).ok().unwrap();
        }
        let mut limit = 4;
        assert!(inboxes[0].take(&mut limit, |_, _| false).is_none());
        assert_eq!(limit, 0);
        // Who is told of what does not fit is the operator.
        for _ in 0..QUEUE {
            let _ = sink.mailboxes[1].queue.push(SENDER, null(2));
        }
        let mut limit = 6;
        assert!(inboxes[0].take(&mut limit, |_, _| false).is_none());
        assert_eq!(desk.queue_full.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn refuses_more_of_a_key_log_than_workers_take() {
        let (sink, mut inboxes, desk) = queues(Steering { bridges: 2, seed: 0 }).unwrap();
        let mut log = sink.lines();
        let mut parcels = 0;
        while log.has_room() {
            log.lines(Zeroizing::new(vec![b'\n'; 64 << 10]));
            parcels += 1;
        }
        assert!((60..=64).contains(&parcels), "{parcels} parcels of 64 KB");
        // A turn is not spent on them: packets wait.
        for inbox in &mut inboxes {
            let mut left = parcels;
            while left > 0 {
                let mut limit = 1024;
                let mut turn = 0;
                while inbox.take(&mut limit, |_, _| true).is_some() {
                    turn += 1;
                }
                assert!((1..=2).contains(&turn), "{turn} in a turn");
                left -= turn;
            }
        }
        assert!(log.has_room());
        assert_eq!(desk.line_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(desk.queue_full.load(Ordering::Relaxed), 0);
        // Not even the shortest lines take the place of keys.
        parcels = 0;
        while log.has_room() {
            log.lines(Zeroizing::new(vec![b'\n']));
            parcels += 1;
        }
        assert!(parcels < QUEUE / 2, "{parcels} parcels");
        // A worker that is gone keeps nothing.
        drop(inboxes);
        assert!(log.has_room());
    }

    #[test]
    fn accepts_two_agents_of_one_address() {
        if !require_program("openssl") {
            return;
        }
        let pki = Pki::shared().unwrap();
        let (sink, _inboxes, desk) = queues(Steering { bridges: 1, seed: 0 }).unwrap();
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
        let elsewhere = [192, 0, 2, 1].into();
        assert_eq!(desk.connections_to_ask(address.ip(), false).len(), 2);
        assert_eq!(desk.connections_to_ask(elsewhere, false).len(), 0);
        // Behind address translation the key channel has another address than the session.
        assert_eq!(desk.connections_to_ask(elsewhere, true).len(), 2);
        drop(second);
        known(1);
        drop(first);
        known(0);
    }
}
