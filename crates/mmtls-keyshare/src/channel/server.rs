//! The middlebox's side of the channel: one thread, thousands of endpoints.
//!
//! Messages go to a [`KeySink`] on that thread, in order per connection, with one call at the end
//! of each batch. Refuses: peers without the configured certificate, other protocols, anything
//! before a hello, malformed messages (the connection is closed and counted), more connections
//! than the limit or than an address may have, handshakes that take too long, peers that do not
//! read what they are sent or do not answer a ping. Does not read on where the sink says that it has
//! enough of a peer.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
pub use rustls::pki_types::ServerName;
use slab::Slab;
use zeroize::Zeroizing;

pub use super::admission::network;
use super::admission::{Admission, Networks, Reads, connection_to_close, handshake_to_close};
use super::connection::{Connection, Disposition, Said, Terms};
use super::orders::{Noting, Orders};
pub use super::peer::{ConnectionId, Peer};
pub use super::queue::Queue;
use super::relay::Relay;
pub use super::sink::KeySink;
pub use super::tls::{Identity, TlsError, certificates};
use crate::message::{self, EncodeError, Greeting, Message};

const LISTENER: Token = Token(0);
const WAKE: Token = Token(1);
/// Tokens of connections start here.
const FIRST: usize = 2;
/// How soon it is asked again whether the sink takes more of a peer.
const PAUSE: Duration = Duration::from_millis(2);
/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Messages to peers that are sent before the others get their turn to be read.
const ORDER_TURN: usize = 1024;
/// Connections accepted before the others get their turn.
const ACCEPT_TURN: usize = 64;

/// What a server needs to know.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where to listen; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Own certificate and key.
    pub identity: Identity,
    /// When set, a peer must show a certificate from one of these authorities.
    pub client_ca_file: Option<PathBuf>,
    /// Names of key servers, as their certificates say: each speaks for whichever endpoints it tells of. They need
    /// `client_ca_file`.
    pub key_servers: Vec<ServerName<'static>>,
    /// Name and version of this program, for the peers' logs.
    pub software: String,
    /// When so many are open, one of whoever has the most gives way to a new one, or the new one is
    /// closed if that is its own: of sites (48 bits of IPv6, 24 of IPv4), in it of networks (56), in
    /// it of hosts (64, 32). Those without a hello go first. An IPv4 address may have a sixteenth
    /// of all, an IPv6 network of 64 bits a quarter, and either has at least 8; of more of them the oldest one without a
    /// hello gives way, or the new one is closed where all have said it.
    pub max_connections: usize,
    /// Limit from accepting a connection to its hello.
    pub handshake_timeout: Duration,
    /// Connections that are silent for half of this get a ping, and are closed at its end.
    pub idle_timeout: Duration,
}

impl ServerConfig {
    /// The defaults: 4096 connections, 10 s for the handshake, 10 minutes of silence.
    #[must_use]
    pub fn new(listen: SocketAddr, identity: Identity) -> Self {
        Self {
            listen,
            identity,
            client_ca_file: None,
            key_servers: Vec::new(),
            software: concat!("mmtls/", env!("CARGO_PKG_VERSION")).to_owned(),
            max_connections: 4096,
            handshake_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
        }
    }
}

impl ServerConfig {
    /// Reads certificates and keys as a start would, and opens nothing.
    ///
    /// # Errors
    /// [`StartError::Tls`].
    pub fn check(&self) -> Result<(), StartError> {
        super::tls::server_config(&self.identity, self.client_ca_file.as_deref())
            .map(drop)
            .map_err(StartError::Tls)
    }

    /// [`check_address`] of its own.
    ///
    /// # Errors
    /// [`StartError::Io`].
    pub fn check_address(&self) -> Result<(), StartError> {
        let listen = self.listen;
        check_address(listen).map_err(|error| StartError::Io { listen, error })
    }
}

/// Whether this process could listen at an address now. Nobody can connect meanwhile.
///
/// # Errors
/// Why it could not.
pub fn check_address(listen: SocketAddr) -> io::Result<()> {
    let family = if listen.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let kind = SocketType::STREAM;
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // As listeners do: connections that have just ended are not in their way.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(rustix::net::bind(&socket, &listen)?)
}

/// Why a server cannot start.
#[derive(Debug)]
pub enum StartError {
    /// Certificates or keys are unusable.
    Tls(TlsError),
    /// The software name breaks the specification.
    Software(EncodeError),
    /// The system refused the address, the thread or the poll.
    Io {
        /// The address that was asked for.
        listen: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(error) => error.fmt(f),
            Self::Software(error) => error.fmt(f),
            Self::Io { listen, error } => write!(f, "key server on {listen}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Why a message was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendToError {
    /// The message breaks the specification.
    Message(EncodeError),
    /// Too many messages wait already for this endpoint's network.
    QueueFull,
}

impl fmt::Display for SendToError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(error) => error.fmt(f),
            Self::QueueFull => {
                f.write_str("too many messages to endpoints of this network are waiting")
            }
        }
    }
}

impl std::error::Error for SendToError {}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections open now.
    pub open: u64,
    /// Connections closed because of a limit: new ones at once, or others instead.
    pub over_limit: u64,
    /// Connections that did not get to a hello: TLS failed, it took too long, or they gave way.
    pub failed_handshakes: u64,
    /// Connections closed because of a malformed or forbidden message.
    pub malformed: u64,
    /// Messages handed to the sink.
    pub messages: u64,
    /// Messages of unknown types, or of endpoints that no key server has told of: skipped.
    pub skipped: u64,
    /// Messages to peers that are gone or do not read.
    pub undelivered: u64,
}

#[derive(Default)]
struct Tally {
    accepted: AtomicU64,
    open: AtomicU64,
    over_limit: AtomicU64,
    failed_handshakes: AtomicU64,
    malformed: AtomicU64,
    messages: AtomicU64,
    skipped: AtomicU64,
    undelivered: AtomicU64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

struct Shared {
    /// What connections begin with.
    tls: Mutex<Arc<rustls::ServerConfig>>,
    orders: Arc<Orders>,
    stop: AtomicBool,
    woken: AtomicBool,
    waker: Waker,
    tally: Tally,
}

impl Shared {
    fn tls(&self) -> MutexGuard<'_, Arc<rustls::ServerConfig>> {
        // Consistent between any two statements, so poison means nothing here.
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // Fails only when the thread is gone.
            let _ = self.waker.wake();
        }
    }
}

/// Sends to endpoints and reads counters, from any thread.
#[derive(Clone)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

impl ServerHandle {
    /// Queues a message for one endpoint. Never waits; when the connection is gone by then, the
    /// message is counted as undelivered.
    ///
    /// # Errors
    /// [`SendToError`].
    pub fn send_to(&self, to: ConnectionId, message: &Message) -> Result<(), SendToError> {
        self.send_to_each(&[to], message)
    }

    /// The same for several endpoints. Each may have its own network: what is too much for one is queued for the others.
    ///
    /// # Errors
    /// [`SendToError`], where it is not queued for all of them.
    pub fn send_to_each(&self, to: &[ConnectionId], message: &Message) -> Result<(), SendToError> {
        // Written once, for all who are connected here.
        let mut direct = None;
        let mut queued = 0;
        for &to in to {
            let bytes = match (&direct, to.is_relayed()) {
                (_, true) => Arc::new(
                    message::encode_relayed(to.low(), message).map_err(SendToError::Message)?,
                ),
                (Some(bytes), false) => Arc::clone(bytes),
                (None, false) => {
                    let bytes = Arc::new(message::encode(message).map_err(SendToError::Message)?);
                    Arc::clone(direct.insert(bytes))
                }
            };
            queued += usize::from(self.shared.orders.push((to, bytes)).is_ok());
        }
        if queued > 0 {
            self.shared.wake();
        }
        if queued == to.len() { Ok(()) } else { Err(SendToError::QueueFull) }
    }

    /// Reads certificates, key and authorities again, for connections that begin from now on: those that are there
    /// stay.
    ///
    /// # Errors
    /// [`TlsError`]; then the last ones stay, too.
    pub fn reload(&self, identity: &Identity, client_ca: Option<&Path>) -> Result<(), TlsError> {
        self.exchange(Certificates::read(identity, client_ca)?);
        Ok(())
    }

    /// Puts certificates in force for connections that begin from now on.
    pub fn exchange(&self, certificates: Certificates) {
        *self.shared.tls() = certificates.0;
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        let tally = &self.shared.tally;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerCounters {
            accepted: read(&tally.accepted),
            open: read(&tally.open),
            over_limit: read(&tally.over_limit),
            failed_handshakes: read(&tally.failed_handshakes),
            malformed: read(&tally.malformed),
            messages: read(&tally.messages),
            skipped: read(&tally.skipped),
            undelivered: read(&tally.undelivered),
        }
    }
}

/// Certificates, key and authorities that were read and fit together.
pub struct Certificates(Arc<rustls::ServerConfig>);

impl Certificates {
    /// Reads them.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn read(identity: &Identity, client_ca: Option<&Path>) -> Result<Self, TlsError> {
        super::tls::server_config(identity, client_ca).map(Self)
    }
}

/// A server that listens and does not answer yet.
pub struct BoundServer {
    worker: Worker,
    shared: Arc<Shared>,
    local_addr: SocketAddr,
}

impl BoundServer {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`StartError::Io`].
    pub fn start(self) -> Result<Server, StartError> {
        self.start_with(|| ())
    }

    /// As [`Self::start`]; `prepare` is the first that the thread does.
    ///
    /// # Errors
    /// [`StartError::Io`].
    pub fn start_with(self, prepare: impl FnOnce() + Send + 'static) -> Result<Server, StartError> {
        let Self { mut worker, shared, local_addr } = self;
        let thread = std::thread::Builder::new()
            .name("mmtls-keyserver".to_owned())
            .spawn(move || {
                prepare();
                worker.run();
            })
            .map_err(|error| StartError::Io { listen: local_addr, error })?;
        Ok(Server { handle: ServerHandle { shared }, local_addr, thread: Some(thread) })
    }
}

/// A running server. Dropping it stops it.
pub struct Server {
    handle: ServerHandle,
    local_addr: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens and starts the thread.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: ServerConfig, sink: impl KeySink + 'static) -> Result<Self, StartError> {
        Self::bind(config, sink)?.start()
    }

    /// Listens without a thread: what a process does before it gives up its privileges, which
    /// belong to threads.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn bind(
        config: ServerConfig,
        sink: impl KeySink + 'static,
    ) -> Result<BoundServer, StartError> {
        let tls = super::tls::server_config(&config.identity, config.client_ca_file.as_deref())
            .map_err(StartError::Tls)?;
        let welcome = message::encode(&Message::Welcome(Greeting {
            software: config.software.clone(),
            capabilities: 0,
        }))
        .map_err(StartError::Software)?;
        let listen = config.listen;
        Self::listen(config, tls, welcome, Box::new(sink))
            .map_err(|error| StartError::Io { listen, error })
    }

    fn listen(
        config: ServerConfig,
        tls: Arc<rustls::ServerConfig>,
        welcome: Zeroizing<Vec<u8>>,
        sink: Box<dyn KeySink>,
    ) -> io::Result<BoundServer> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(config.listen)?;
        let local_addr = listener.local_addr()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let orders = Arc::new(Orders::new());
        let sink = Box::new(Noting { sink, orders: Arc::clone(&orders) });
        let shared = Arc::new(Shared {
            tls: Mutex::new(tls),
            orders,
            stop: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            waker: Waker::new(poll.registry(), WAKE)?,
            tally: Tally::default(),
        });
        let worker = Worker {
            config,
            welcome,
            sink,
            poll,
            listener,
            shared: Arc::clone(&shared),
            connections: Slab::new(),
            networks: Networks::default(),
            unfinished: HashSet::new(),
            reads: Reads::default(),
            paused: HashSet::new(),
            accept_again: false,
            generation: 0,
            relay: Relay::default(),
        };
        Ok(BoundServer { worker, shared, local_addr })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// For other threads.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> ServerCounters {
        self.handle.counters()
    }

    /// Closes every connection and ends the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.handle.shared.stop.store(true, Ordering::Release);
        self.handle.shared.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the sink was reported by its own thread already.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

struct Worker {
    config: ServerConfig,
    welcome: Zeroizing<Vec<u8>>,
    sink: Box<dyn KeySink>,
    poll: Poll,
    listener: TcpListener,
    shared: Arc<Shared>,
    /// The token is the slot + [`FIRST`].
    connections: Slab<Connection>,
    networks: Networks,
    /// Slots that used up their turn with input left, or found none. A set, so that nobody has two turns in one; its order
    /// changes from loop to loop.
    unfinished: HashSet<usize>,
    reads: Reads,
    /// Slots from which nothing is read, since enough of them waits.
    paused: HashSet<usize>,
    /// The listener used up its turn, or the system had no descriptor left.
    accept_again: bool,
    /// Upper half of the last connection's id.
    generation: u32,
    relay: Relay,
}

impl Drop for Worker {
    /// However its thread ends: nothing waits for it any more.
    fn drop(&mut self) {
        self.shared.orders.close();
    }
}

impl Worker {
    fn run(&mut self) {
        let mut events = Events::with_capacity(1024);
        let mut next_tick = Instant::now() + TICK;
        while !self.shared.stop.load(Ordering::Acquire) {
            let tick = next_tick.saturating_duration_since(Instant::now());
            let timeout = match (self.unfinished.is_empty(), self.paused.is_empty()) {
                (false, _) => Duration::ZERO,
                (true, false) => tick.min(PAUSE),
                (true, true) => tick,
            };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => events.clear(),
                // Nothing can be received any more; the counters show that nobody is served.
                Err(_) => break,
                Ok(()) => {}
            }
            // Not just a store: what is pushed before whoever pushes finds this set must be seen below.
            self.shared.woken.swap(false, Ordering::AcqRel);
            let now = Instant::now();
            let mut delivered = 0;
            self.reads.begin();
            for slot in std::mem::take(&mut self.paused) {
                delivered += self.serve(slot, true, now);
            }
            for slot in std::mem::take(&mut self.unfinished) {
                delivered += self.serve(slot, true, now);
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept_again = true,
                    WAKE => {}
                    Token(token) => {
                        let slot = token - FIRST;
                        if !self.unfinished.contains(&slot) && !self.paused.contains(&slot) {
                            let ending = event.is_read_closed() || event.is_error();
                            delivered += self.serve(slot, ending, now);
                        }
                    }
                }
            }
            if delivered > 0 {
                self.sink.batch_end();
            }
            if self.accept_again {
                self.accept(now);
            }
            self.send_orders();
            if now >= next_tick {
                self.enforce_deadlines(now);
                next_tick = now + TICK;
            }
        }
        let all: Vec<usize> = self.connections.iter().map(|(slot, _)| slot).collect();
        all.into_iter().for_each(|slot| self.close(slot));
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPT_TURN {
            match self.listener.accept() {
                Ok((stream, address)) => self.admit(stream, address, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accept_again = false;
                    return;
                }
                // The peer is gone already, or there is no descriptor left: the latter is tried
                // again at the next tick, because the edge-triggered poll will not report it.
                Err(_) => return,
            }
        }
        // More may wait: look at the others first, then go on.
        self.shared.wake();
    }

    fn admit(&mut self, mut stream: mio::net::TcpStream, address: SocketAddr, now: Instant) {
        let ip = address.ip().to_canonical();
        if !self.make_room_in_network(ip) || !self.make_room(ip) {
            add(&self.shared.tally.over_limit, 1);
            return;
        }
        super::socket::tune(&stream);
        let entry = self.connections.vacant_entry();
        let slot = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut stream, Token(slot + FIRST), interest);
        // A number of 31 bits, never 0.
        self.generation = self.generation % i32::MAX as u32 + 1;
        let peer = Peer {
            address: SocketAddr::new(ip, address.port()),
            connection: ConnectionId::of_place(self.generation, slot),
            capabilities: 0,
            authenticated: false,
            is_key_server: false,
        };
        let tls = Arc::clone(&self.shared.tls());
        let connection = registered.ok().and_then(|()| Connection::new(stream, tls, peer, now));
        if let Some(connection) = connection {
            self.networks.begin(connection.peer());
            entry.insert(connection);
            add(&self.shared.tally.accepted, 1);
            add(&self.shared.tally.open, 1);
        }
    }

    /// Whether the newcomer's network may have one more. Where it has all that it may, its oldest one that has not said hello
    /// gives way: connections cost whoever opens them next to nothing, and others of that network need theirs.
    fn make_room_in_network(&mut self, newcomer: IpAddr) -> bool {
        let slot = match self.networks.admits(newcomer, self.config.max_connections) {
            Admission::Free => return true,
            Admission::InPlaceOf(oldest) => oldest.low() as usize,
            Admission::Full => return false,
        };
        add(&self.shared.tally.failed_handshakes, 1);
        self.close(slot);
        true
    }

    /// Whether there is a slot for a newcomer. One that has not said hello costs its owner next to
    /// nothing, so it gives way; else one of whoever has the most.
    fn make_room(&mut self, newcomer: IpAddr) -> bool {
        if self.connections.len() < self.config.max_connections {
            return true;
        }
        let mut all: Vec<(usize, &Connection)> = self.connections.iter().collect();
        all.sort_by_key(|(_, connection)| connection.opened());
        let slots = |is_open: bool| -> Vec<(usize, IpAddr)> {
            let these = all.iter().filter(|(_, connection)| connection.is_open() == is_open);
            these.map(|(slot, connection)| (*slot, connection.peer().address.ip())).collect()
        };
        let tally = &self.shared.tally;
        let slot = match handshake_to_close(slots(false)) {
            Some(slot) => {
                add(&tally.failed_handshakes, 1);
                slot
            }
            None => match connection_to_close(slots(true), newcomer) {
                Some(slot) => {
                    add(&tally.over_limit, 1);
                    slot
                }
                None => return false,
            },
        };
        self.close(slot);
        true
    }

    /// Reads, delivers and writes what one connection has; returns how many messages there were.
    fn serve(&mut self, slot: usize, ending: bool, now: Instant) -> u64 {
        let Some(connection) = self.connections.get_mut(slot) else {
            return 0;
        };
        let mut count = 0;
        let mut answers = Vec::new();
        let (sink, relay) = (&mut *self.sink, &mut self.relay);
        let is_key_server = connection.peer().is_key_server;
        if connection.is_open() && !is_key_server && sink.is_backlogged(connection.peer()) {
            self.paused.insert(slot);
            return 0;
        }
        let was_open = connection.is_open();
        let mut of_key_server = Reads::of_key_server();
        let reads = match is_key_server {
            true => &mut of_key_server,
            false => self.reads.left(connection.peer().address.ip()),
        };
        if *reads == 0 {
            self.unfinished.insert(slot);
            return 0;
        }
        let mut unknown = 0;
        let terms = Terms { welcome: &self.welcome, key_servers: &self.config.key_servers };
        let disposition = connection.turn(now, ending, reads, &terms, |peer, said| {
            match said {
                Said::Hello(None) => sink.opened(peer),
                Said::Hello(Some(secret)) => {
                    relay.opened(peer);
                    answers.extend(sink.key_server_opened(peer, secret));
                }
                Said::Message(message) if peer.is_key_server => {
                    count += 1;
                    // Of those whom it speaks for none can make it wait: the sink refuses what is too much.
                    match relay.message(peer, message, sink) {
                        Some(answer) => answers.extend(answer),
                        None => unknown += 1,
                    }
                }
                Said::Message(message) => {
                    count += 1;
                    answers.extend(sink.message(peer, message));
                }
            }
            peer.is_key_server || !sink.is_backlogged(peer)
        });
        if connection.is_open() && !was_open {
            self.networks.end_handshake(connection.peer());
        }
        let tally = &self.shared.tally;
        if matches!(disposition, Disposition::Keep | Disposition::Again) {
            for answer in answers {
                let sent = message::encode(&answer).is_ok_and(|bytes| connection.send(&bytes));
                add(&tally.undelivered, u64::from(!sent));
            }
            add(&tally.undelivered, connection.send_rest());
        }
        add(&tally.messages, count);
        add(&tally.skipped, connection.take_skipped() + unknown);
        match disposition {
            Disposition::Keep => {}
            Disposition::Again => {
                self.unfinished.insert(slot);
            }
            Disposition::Gone => self.close(slot),
            Disposition::HandshakeFailed => {
                add(&tally.failed_handshakes, 1);
                self.close(slot);
            }
            Disposition::Malformed => {
                add(&tally.malformed, 1);
                self.close(slot);
            }
        }
        count
    }

    fn close(&mut self, slot: usize) {
        let Some(mut connection) = self.connections.try_remove(slot) else {
            return;
        };
        self.unfinished.remove(&slot);
        self.paused.remove(&slot);
        self.networks.end(connection.peer());
        add(&self.shared.tally.open, u64::MAX);
        let _ = self.poll.registry().deregister(connection.stream());
        connection.say_goodbye();
        let peer = connection.peer();
        if connection.is_open() && peer.is_key_server {
            self.relay.closed(peer, &mut *self.sink);
            self.sink.key_server_closed(peer);
        } else if connection.is_open() {
            self.sink.closed(peer);
        }
    }

    fn send_orders(&mut self) {
        let mut written_to = HashSet::new();
        let mut count = 0;
        while count < ORDER_TURN
            && let Some((to, bytes)) = self.shared.orders.pop()
        {
            count += 1;
            let to = if to.is_relayed() { self.relay.way(to) } else { Some(to) };
            let sent = to
                .and_then(|to| self.connections.get_mut(to.low() as usize).zip(Some(to)))
                .filter(|(connection, to)| {
                    connection.peer().connection == *to && connection.is_open()
                })
                .is_some_and(|(connection, to)| {
                    written_to.insert(to.low() as usize);
                    connection.send(&bytes)
                });
            if !sent {
                add(&self.shared.tally.undelivered, 1);
            }
        }
        for slot in written_to {
            if let Some(connection) = self.connections.get_mut(slot) {
                add(&self.shared.tally.undelivered, connection.send_rest());
            }
        }
        if count == ORDER_TURN {
            // More may wait: look at the others first, then go on.
            self.shared.wake();
        }
    }

    fn enforce_deadlines(&mut self, now: Instant) {
        let ServerConfig { idle_timeout, handshake_timeout, .. } = self.config;
        let mut over = Vec::new();
        for (slot, connection) in &mut self.connections {
            let silent = now.saturating_duration_since(connection.last_heard());
            if connection.is_open() {
                if silent > idle_timeout {
                    over.push(slot);
                } else if silent > idle_timeout / 2 {
                    connection.ping();
                }
            } else if now.saturating_duration_since(connection.opened()) > handshake_timeout {
                add(&self.shared.tally.failed_handshakes, 1);
                over.push(slot);
            }
        }
        over.into_iter().for_each(|slot| self.close(slot));
    }
}
