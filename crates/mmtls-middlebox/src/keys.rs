//! From the key channel to the workers: messages become record openers on the key server's
//! thread, off the packet path, and wait in bounded queues.
//!
//! A delivery first goes to the worker that the connection's ends name. Where addresses are
//! translated between endpoint and monitor, or no ends are given, that worker does not know the
//! session and passes the delivery on to the next one, until it has gone round once: then it waits at
//! every worker, since its session may be yet to come, to any of them (keys of early data and null keys overtake their
//! ClientHello).
//!
//! Refuses to keep key bytes once their opener is set up, to share anything but queues between
//! workers, and to wait for a slow one. No sender fills a queue ([`Queue`]): of one that has
//! much in it nothing is read for a while, and what comes all the same is dropped and counted (the
//! session then meets the missing-key policy).

mod asked;
mod connections;
mod live;
mod questions;
pub mod sealed;
mod secrets;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, OpenRecord, ProtocolVersion};
use mmtls_engine::{KeyRefusal, KeySenders, KeysNeeded, LiveKeys, Share, SharedKeys};
use mmtls_keyshare::Flow;
use mmtls_keyshare::message::{
    EchKeyRequest, Epoch, KeyRequest, MAX_CLIENT_HELLO_BYTES, Message, Reason, Refused,
    SessionKeys, Steering,
};
use mmtls_keyshare::sealed::Secret;
use mmtls_keyshare::server::{ConnectionId, KeySink, Peer, Queue};
use mmtls_packet_io::WakeFd;
use mmtls_record::open_record;
use zeroize::Zeroizing;

use asked::Asked;
use connections::{Agent, Connections};
pub use secrets::SealedCounters;
use secrets::Secrets;

use crate::keylog::follow::LineSink;

/// Record keys that may wait for one worker, with other deliveries as one each.
const QUEUE: usize = 1 << 16;

/// Bytes of a key log's lines that may wait, for all workers together; then its follower waits.
const MAX_LINE_BYTES: usize = 4 << 20;

/// How long an agent has to connect again before its client is taken for one that shares nothing.
const RECONNECTING: Duration = Duration::from_secs(2);
/// Most addresses that are remembered for that.
const MAX_LOST: usize = 65_536;
/// What a delivery of lines is charged beside its text, so that short ones cannot fill the queues.
const LINES_COST: usize = 256;

/// Bytes of a key log that cost a worker as much as a delivery: the shortest line with a secret.
const BYTES_PER_DELIVERY: usize = 128;

/// A delivery on its way to a worker.
pub enum KeyDelivery {
    /// Record keys.
    Keys(SharedKeys),
    /// An endpoint's refusal.
    Null {
        /// Who refused.
        sender: IpAddr,
        /// The number of the connection that it came over.
        source: u64,
        /// For which session.
        client_random: [u8; 32],
        /// For which direction of it; `None`: both.
        direction: Option<Direction>,
    },
    /// Record keys of a session that is under way.
    Live(Box<LiveKeys>),
    /// Lines of a key log.
    Lines(Arc<Lines>),
    /// An endpoint has connected. Who takes it charges itself for the questions that are looked through.
    Opened {
        /// From there.
        address: IpAddr,
        /// Its connection.
        connection: ConnectionId,
    },
}

/// Lines of a key log that wait for the workers, and room that is free again when the last one has
/// them.
pub struct Lines {
    text: Zeroizing<Vec<u8>>,
    router: Arc<KeyRouter>,
}

impl Lines {
    fn new(text: Zeroizing<Vec<u8>>, router: Arc<KeyRouter>) -> Self {
        router.line_bytes.fetch_add(text.len() + LINES_COST, Ordering::Relaxed);
        Self { text, router }
    }

    /// Whole lines.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.router.line_bytes.fetch_sub(self.text.len() + LINES_COST, Ordering::Relaxed);
    }
}

impl KeyDelivery {
    /// Who sent it and for which session; `None` for what is every worker's.
    fn session(&self) -> Option<(Option<IpAddr>, [u8; 32])> {
        match self {
            Self::Keys(keys) => Some((keys.sender, keys.client_random)),
            Self::Null { sender, client_random, .. } => Some((Some(*sender), *client_random)),
            Self::Live(_) | Self::Lines(_) | Self::Opened { .. } => None,
        }
    }

    /// The same for another worker, where there can be a second one.
    fn share(&self) -> Option<Self> {
        match self {
            Self::Keys(keys) => keys.share().map(Self::Keys),
            &Self::Null { sender, source, client_random, direction } => {
                Some(Self::Null { sender, source, client_random, direction })
            }
            Self::Live(_) | Self::Lines(_) | Self::Opened { .. } => None,
        }
    }

    /// What it takes of a queue: each record key has an opener. What lines take is limited apart.
    fn weight(&self) -> usize {
        match self {
            Self::Keys(keys) => keys.keys.len().max(1),
            Self::Live(keys) => keys.keys.len().max(1),
            Self::Null { .. } | Self::Lines(_) | Self::Opened { .. } => 1,
        }
    }

    /// What it takes of a turn. Lines are as many deliveries as there may be secrets in them.
    fn cost(&self) -> usize {
        match self {
            Self::Lines(lines) => 1 + lines.text.len() / BYTES_PER_DELIVERY,
            other => other.weight(),
        }
    }
}

/// A delivery on its way round the workers, and how many have passed it on.
struct Routed {
    delivery: KeyDelivery,
    passed: usize,
}

/// The way into one worker's queue.
#[derive(Clone)]
struct WorkerQueue {
    queue: Arc<Queue<Routed>>,
    wake: Arc<WakeFd>,
    /// The worker sleeps, or is about to: it has to be woken for a delivery.
    sleeps: Arc<AtomicBool>,
}

impl WorkerQueue {
    /// Adds a delivery of a sender; `false` where too much of it waits already, or nobody takes it any more.
    fn push(&self, sender: Option<IpAddr>, routed: Routed) -> bool {
        let weight = routed.delivery.weight();
        self.queue.push(sender, weight, routed).is_ok()
    }

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
pub struct KeyReceiver {
    own: WorkerQueue,
    /// Who gets what this worker does not know.
    next: WorkerQueue,
    workers: usize,
    router: Arc<KeyRouter>,
}

impl KeyReceiver {
    /// The next delivery that is this worker's, of at most `limit` that are looked at; several keys and a key log's
    /// lines count as many, and the last ones may go beyond the limit. `knows` says whether a
    /// sender's session is.
    pub fn take(
        &mut self,
        limit: &mut usize,
        mut knows: impl FnMut(Option<IpAddr>, &[u8; 32]) -> bool,
    ) -> Option<KeyDelivery> {
        while *limit > 0
            && let Some(Routed { delivery, passed }) = self.own.queue.pop()
        {
            *limit = limit.saturating_sub(delivery.cost());
            let Some((sender, random)) = delivery.session() else {
                return Some(delivery);
            };
            let is_last = self.workers == 1 || passed + 1 >= 2 * self.workers;
            if is_last || knows(sender, &random) {
                return Some(delivery);
            }
            let mut kept = None;
            if passed >= self.workers {
                // Nobody knows it: on the second round it is left with everybody.
                kept = delivery.share();
                if kept.is_none() {
                    return Some(delivery);
                }
            }
            match self.next.push(sender, Routed { delivery, passed: passed + 1 }) {
                true => self.next.ring(),
                false => self.router.count_lost(),
            }
            if kept.is_some() {
                return kept;
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

impl Drop for KeyReceiver {
    fn drop(&mut self) {
        self.own.queue.close();
    }
}

/// Counters and the way back to the endpoints, shared by the workers.
#[derive(Default)]
pub struct KeyRouter {
    /// Deliveries dropped because a worker's queue was full.
    pub queue_full: AtomicU64,
    /// Deliveries whose keys fit no supported suite.
    pub unusable: AtomicU64,
    /// What the lines take that wait for workers.
    line_bytes: AtomicUsize,
    /// Why the key log cannot be read; not reported yet.
    log_error: Mutex<Option<io::Error>>,
    connections: Mutex<Connections>,
    /// Messages of each of them with keys, or refusals.
    messages: Mutex<HashMap<ConnectionId, u64>>,
    /// How many of them are asked for first keys: where none is, no session costs a look at the table.
    answering: AtomicUsize,
    lost: Mutex<Lost>,
    /// Who was asked for the keys of what is under way.
    live_asked: Mutex<Asked>,
    sealed: Secrets,
}

/// An endpoint that is connected.
#[derive(Clone, Copy, Debug)]
pub struct ConnectedAgent {
    /// Where from.
    pub address: SocketAddr,
    /// Since when.
    pub since: SystemTime,
    /// Whether a certificate says who it is.
    pub authenticated: bool,
    /// Messages of it with keys, or refusals.
    pub messages: u64,
}

/// Addresses whose last connection has ended, and when: their agents connect again.
struct Lost {
    since: HashMap<IpAddr, Instant>,
    /// Of all of them.
    latest: Instant,
    /// When those of long ago were forgotten.
    tidied: Instant,
    started: Instant,
}

impl Default for Lost {
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

impl Lost {
    fn new(now: Instant) -> Self {
        Self { since: HashMap::new(), latest: now, tidied: now, started: now }
    }

    fn note(&mut self, address: IpAddr, now: Instant) {
        // Not for each one: whoever makes many of them must not make each dear.
        if now.duration_since(self.tidied) >= RECONNECTING {
            self.tidied = now;
            self.since.retain(|_, since| now.duration_since(*since) < RECONNECTING);
        }
        self.latest = now;
        if self.since.len() < MAX_LOST {
            self.since.insert(address, now);
        }
    }

    /// Whether an agent of this address, or any, may be about to connect again.
    fn is_expected(&self, address: Option<IpAddr>, now: Instant) -> bool {
        let is_recent = |since: &Instant| now.duration_since(*since) < RECONNECTING;
        // Those of before a restart are not known.
        let last = match &address {
            Some(address) => self.since.get(address),
            None => Some(&self.latest),
        };
        is_recent(&self.started) || last.is_some_and(is_recent)
    }
}

impl KeyRouter {
    /// The connection with this number, from this address or, without one, from any.
    #[must_use]
    pub fn connection(&self, number: u64, address: Option<IpAddr>) -> Option<ConnectionId> {
        let connection = ConnectionId::from_number(number);
        let agent = *self.connections().get(connection)?;
        address.is_none_or(|it| it == agent.address.ip()).then_some(connection)
    }

    /// Who is connected.
    #[must_use]
    pub fn agents(&self) -> Vec<ConnectedAgent> {
        let agents: Vec<Agent> = self.connections().all().copied().collect();
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        agents
            .into_iter()
            .map(|Agent { connection, authenticated, address, since, .. }| {
                let messages = messages.get(&connection).copied().unwrap_or(0);
                ConnectedAgent { address, since, authenticated, messages }
            })
            .collect()
    }

    /// Whether anybody could deliver keys of a session between these addresses: also whose connection has just
    /// broken, and everybody just after the start.
    #[must_use]
    pub fn is_awaited(&self, client: IpAddr, server: IpAddr, senders: &KeySenders) -> bool {
        senders.has_trusted() && self.is_expected(None)
            || senders.ends(client, server).any(|it| self.is_expected(Some(it)))
    }

    /// The same of one address, or of any.
    #[must_use]
    pub fn is_expected(&self, address: Option<IpAddr>) -> bool {
        let connections = self.connections();
        if address.map_or(!connections.is_empty(), |address| connections.are_at(address)) {
            return true;
        }
        drop(connections);
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.is_expected(address, Instant::now())
    }

    /// What came of the packets of key servers.
    #[must_use]
    pub fn sealed_counters(&self) -> SealedCounters {
        self.sealed.counters()
    }

    /// Why the key log cannot be read, once.
    #[must_use]
    pub fn take_log_error(&self) -> Option<io::Error> {
        self.log_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        // Consistent between any two statements, so poison means nothing here.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count_lost(&self) {
        self.queue_full.fetch_add(1, Ordering::Relaxed);
    }
}

/// The key server's side of the queues; another source of record keys has a clone.
#[derive(Clone)]
pub struct WorkerSink {
    queues: Vec<WorkerQueue>,
    /// Which of them have deliveries that they may not know of.
    dirty: Vec<bool>,
    share: Share,
    /// For key servers, where they can know what `share` says.
    steering: Option<Steering>,
    router: Arc<KeyRouter>,
}

/// Versions and suites that can be opened.
#[must_use]
pub fn supports(version: ProtocolVersion, suite: CipherSuite) -> bool {
    mmtls_record::suite::is_supported(version.0, suite.0)
}

/// Makes the queues between key server and workers, as many as `share` has engines; it says which one's a
/// connection is.
///
/// # Errors
/// The system's, when out of descriptors.
pub fn queues(share: Share) -> io::Result<(WorkerSink, Vec<KeyReceiver>, Arc<KeyRouter>)> {
    let router = Arc::new(KeyRouter::default());
    let mut queues = Vec::new();
    for _ in 0..share.engines.max(1) {
        let queue = Arc::new(Queue::new(QUEUE));
        let wake = Arc::new(WakeFd::new()?);
        queues.push(WorkerQueue { queue, wake, sleeps: Arc::default() });
    }
    let workers = queues.len();
    let receivers = (0..workers).map(|at| KeyReceiver {
        own: queues[at].clone(),
        next: queues[(at + 1) % workers].clone(),
        workers,
        router: Arc::clone(&router),
    });
    let receivers = receivers.collect();
    let sink = WorkerSink {
        queues,
        dirty: vec![false; workers],
        share,
        steering: None,
        router: Arc::clone(&router),
    };
    Ok((sink, receivers, router))
}

impl WorkerSink {
    /// Lets key servers know how connections are shared out: as [`mmtls_packet_io::af_packet::Steering`] does.
    #[must_use]
    pub fn steered(self, steering: Steering) -> Self {
        Self { steering: Some(steering), ..self }
    }

    /// A second way into the queues, for the lines of a key log.
    #[must_use]
    pub fn lines(&self) -> WorkerLines {
        WorkerLines { queues: self.queues.clone(), router: Arc::clone(&self.router), tap: None }
    }

    /// The worker that a delivery goes to first.
    fn home(&self, flow: Option<&Flow>, random: &[u8; 32]) -> usize {
        match flow {
            Some(flow) => {
                let Share { engines, seed, owner, .. } = self.share;
                owner(engines, seed, flow.client(), flow.server()) as usize % self.queues.len()
            }
            None => usize::from(random[0]) % self.queues.len(),
        }
    }

    /// Puts the keys, or their refusal, of an endpoint at `sender` into a worker's queue; `source` is the number of its
    /// connection. The worker hears of them with the next [`KeySink::batch_end`]. Other messages are ignored.
    ///
    /// # Errors
    /// What its sender is told where it cannot be used or queued, which is counted, too ([`KeyRouter`]).
    pub fn deliver(
        &mut self,
        sender: IpAddr,
        source: u64,
        message: Message,
    ) -> Result<(), Refused> {
        let (home, delivery) = match message {
            Message::SessionKeys(keys) => {
                let home = self.home(keys.flow.as_ref(), &keys.client_random);
                match open_keys(sender, source, &keys) {
                    Some(keys) => (home, KeyDelivery::Keys(keys)),
                    None => {
                        self.router.unusable.fetch_add(1, Ordering::Relaxed);
                        let (client_random, reason) = (keys.client_random, Reason::UNSUPPORTED);
                        return Err(Refused { client_random, reason });
                    }
                }
            }
            Message::NullKeys(null) => {
                let home = self.home(null.flow.as_ref(), &null.client_random);
                let (client_random, direction) = (null.client_random, null.direction);
                (home, KeyDelivery::Null { sender, source, client_random, direction })
            }
            Message::LiveKeys(keys) => return self.deliver_live(sender, source, &keys),
            _ => return Ok(()),
        };
        let session = delivery.session();
        match self.queues[home].push(Some(sender), Routed { delivery, passed: 0 }) {
            true => self.dirty[home] = true,
            false => {
                self.router.count_lost();
                if let Some((_, client_random)) = session {
                    return Err(Refused { client_random, reason: Reason::CAPACITY });
                }
            }
        }
        Ok(())
    }
}

/// What is done with whole lines of a key log, on the thread that reads it.
type SeeLines = dyn Fn(&[u8]) + Send + Sync;

/// Sees whole lines of a key log. They are secrets.
#[derive(Clone)]
pub struct KeyLogTap(pub Arc<SeeLines>);

impl fmt::Debug for KeyLogTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyLogTap").finish_non_exhaustive()
    }
}

/// The key log's side of the queues: every worker gets every line.
pub struct WorkerLines {
    queues: Vec<WorkerQueue>,
    router: Arc<KeyRouter>,
    tap: Option<KeyLogTap>,
}

impl WorkerLines {
    /// Shows the lines to somebody else, too.
    #[must_use]
    pub fn tapped(self, tap: Option<KeyLogTap>) -> Self {
        Self { tap, ..self }
    }
}

impl LineSink for WorkerLines {
    fn has_room(&self) -> bool {
        self.router.line_bytes.load(Ordering::Relaxed) < MAX_LINE_BYTES
    }

    fn lines(&mut self, lines: Zeroizing<Vec<u8>>) {
        if let Some(KeyLogTap(see)) = &self.tap {
            see(&lines);
        }
        let lines = Arc::new(Lines::new(lines, Arc::clone(&self.router)));
        for queue in &self.queues {
            let delivery = KeyDelivery::Lines(Arc::clone(&lines));
            // What of these waits is limited by its bytes; a worker that is gone takes none.
            if queue.push(None, Routed { delivery, passed: 0 }) {
                queue.ring();
            }
        }
    }

    fn failed(&mut self, error: io::Error) {
        *self.router.log_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl KeySink for WorkerSink {
    fn opened(&mut self, peer: &Peer) {
        let agent = Agent::new(peer);
        let (connection, address) = (agent.connection, agent.address.ip());
        let mut known = self.router.connections();
        known.add(agent);
        if agent.answers_first_requests() {
            self.router.answering.fetch_add(1, Ordering::Relaxed);
        }
        drop(known);
        let mut messages = self.router.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.insert(connection, 0);
        drop(messages);
        for queue in &self.queues {
            let delivery = KeyDelivery::Opened { address, connection };
            match queue.push(Some(address), Routed { delivery, passed: 0 }) {
                true => queue.ring(),
                false => self.router.count_lost(),
            }
        }
    }

    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        // Nobody but whoever asks for the list takes this lock, too.
        let mut messages = self.router.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = messages.get_mut(&peer.connection) {
            *count += 1;
        }
        drop(messages);
        let refused = self.deliver(peer.address.ip(), peer.connection.number(), message);
        refused.err().map(Message::Refused)
    }

    fn is_backlogged(&self, peer: &Peer) -> bool {
        let sender = peer.address.ip();
        self.queues.iter().any(|queue| queue.queue.is_backlogged(sender))
    }

    fn key_server_opened(&mut self, peer: &Peer, secret: Secret) -> Option<Message> {
        self.router.sealed.add(peer.connection, secret);
        self.steering.map(Message::Steering)
    }

    fn key_server_closed(&mut self, peer: &Peer) {
        self.router.sealed.remove(peer.connection);
    }

    fn batch_end(&mut self) {
        for (queue, dirty) in self.queues.iter().zip(&mut self.dirty) {
            if std::mem::take(dirty) {
                queue.ring();
            }
        }
    }

    fn closed(&mut self, peer: &Peer) {
        let mut asked = self.router.live_asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.forget(peer.connection);
        drop(asked);
        let mut messages = self.router.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.remove(&peer.connection);
        drop(messages);
        let mut known = self.router.connections();
        let Some(agent) = known.remove(peer.connection) else {
            return;
        };
        if agent.answers_first_requests() {
            self.router.answering.fetch_sub(1, Ordering::Relaxed);
        }
        let address = agent.address.ip();
        if !known.are_at(address) {
            let mut lost = self.router.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.note(address, Instant::now());
        }
    }
}

/// Sets up the openers of a message; `None` when nothing in it can be used.
fn open_keys(sender: IpAddr, source: u64, message: &SessionKeys) -> Option<SharedKeys> {
    let mut keys: Vec<(Direction, KeyEpoch, Box<dyn OpenRecord>)> = Vec::new();
    for entry in &message.keys {
        let opener = open_record(
            message.version,
            message.cipher_suite,
            entry.key.as_bytes(),
            entry.iv.as_bytes(),
            entry.mac_key.as_bytes(),
        );
        // One that cannot be used does not spoil the others.
        if let Ok(opener) = opener {
            keys.push((entry.direction, entry.epoch.into(), opener));
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

/// What an endpoint is told whose keys the engine refuses; nothing where that is no fault of anybody.
#[must_use]
pub fn reason(why: KeyRefusal) -> Option<Reason> {
    match why {
        KeyRefusal::WrongSender => Some(Reason::ADDRESS),
        KeyRefusal::Mismatch => Some(Reason::MISMATCH),
        KeyRefusal::OpenNothing => Some(Reason::OPEN_NOTHING),
        KeyRefusal::Capacity => Some(Reason::CAPACITY),
        KeyRefusal::TooManyNullKeys => Some(Reason::POLICY),
        _ => None,
    }
}

/// What the engine keeps fits into a question.
const _: () = assert!(KeysNeeded::MAX_CLIENT_HELLO_BYTES <= MAX_CLIENT_HELLO_BYTES);

/// The request that asks an endpoint for what the engine wants; `None` before version and suite are known.
#[must_use]
pub fn request(wanted: &KeysNeeded) -> Option<Message> {
    // Of a session that was under way nobody here has seen it, and who has sent keys without it does not look at it.
    let unknown = matches!(wanted.epoch, KeyEpoch::Application(1..)).then_some([0; 32]);
    let request = KeyRequest {
        client_random: wanted.client_random,
        server_random: wanted.server_random.or(unknown)?,
        version: wanted.version.0,
        cipher_suite: wanted.cipher_suite?.0,
        direction: wanted.direction,
        epoch: Epoch::from_key_epoch(wanted.epoch)?,
    };
    Some(match wanted.offers_ech {
        true => {
            let flow = Flow::new(wanted.client, wanted.server);
            let client_hello = wanted.client_hello.clone().unwrap_or_default();
            Message::EchKeyRequest(EchKeyRequest { request, flow, client_hello })
        }
        false => Message::KeyRequest(request),
    })
}

#[cfg(test)]
mod tests;
