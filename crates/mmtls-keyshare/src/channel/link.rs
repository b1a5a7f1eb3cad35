//! One middlebox: its queue, its thread, its connection.
//!
//! The thread sleeps in one poll for the socket, for the caller's wake-up and for deadlines. A caller whose message can
//! leave at once sends it itself.
//! Nothing is taken from the queue before the middlebox has said welcome, so that a middlebox
//! that turns this endpoint away costs no keys. Where keys are refused for this side's address, which has changed meanwhile, or it
//! has changed and keys are only asked for, it connects again. Refuses to grow: a full queue drops its oldest.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use zeroize::Zeroizing;

use super::dial::{Jitter, connect_any};
use super::sending::{ClientCounters, RequestHandler, SendError, WelcomeHandler};
use super::socket;
use super::source::{self, Source};
use super::tls::{Output, export, read_messages};
use crate::message::{self, Decoder, Message, Reason};

/// Longest pause while keys wait that came after the last attempt.
const URGENT_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause where the middlebox was reached and did not welcome this endpoint: a certificate that it does not
/// take, too many of them.
const MAX_REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// How long the end of a connection is waited for in whose place another one comes: keys wait for that.
const CHANGE_PATIENCE: Duration = Duration::from_secs(1);
/// How long most attempts wait for the TCP handshake: two parts of it are one address's.
const SHORT_ATTEMPT: Duration = Duration::from_millis(800);
const SOCKET: Token = Token(0);
const WAKE: Token = Token(1);
/// Batches that a caller sends of what others have queued.
const MAX_BATCHES: usize = 2;
/// Plaintext handed to TLS at a time: what fits one record (RFC 8446, section 5.1).
const BATCH_BYTES: usize = 16 * 1024;
/// Answers that wait for a middlebox that does not read: beyond that nothing more is read from it,
/// so that one that only asks cannot make this side's memory grow.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Pause between two answers with the keys of all sessions; questions in between are passed over.
const LIVE_KEYS_PAUSE: Duration = Duration::from_secs(1);

/// Reads in a turn: whoever never stops sending must not keep this side from being stopped.
const MAX_READS: usize = 64;

type Bytes = Arc<Zeroizing<Vec<u8>>>;

pub(super) struct Settings {
    pub(super) address: String,
    pub(super) server_name: ServerName<'static>,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) hello: Bytes,
    pub(super) queue_messages: usize,
    pub(super) connect_timeout: Duration,
    pub(super) min_pause: Duration,
    pub(super) max_pause: Duration,
    /// Between two looks at this side's address without a refusal; never where there is none.
    pub(super) look_pause: Option<Duration>,
    pub(super) on_request: Arc<RequestHandler>,
    pub(super) on_welcome: Option<WelcomeHandler>,
}

/// The caller's handle of one middlebox.
pub(super) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    address: String,
    /// The process that has the connection. A fork of it has a copy, which must not send: records would be protected with
    /// numbers that are used already.
    process: u32,
    capacity: usize,
    state: Mutex<State>,
    changed: Condvar,
    waker: Waker,
    /// The connection, while there is one: whoever has a message sends it at once where nobody else is at it, which saves
    /// waking the thread, and waiting for it.
    session: Mutex<Option<Session>>,
    /// Set from a wake-up until the thread looks at the queue: saves a system call per message.
    woken: AtomicBool,
    sent: AtomicU64,
    dropped: AtomicU64,
    connects: AtomicU64,
    failures: AtomicU64,
    requests: AtomicU64,
    refusals: AtomicU64,
}

struct State {
    queue: VecDeque<Bytes>,
    connected: bool,
    finished: bool,
    /// When set, the thread ends once the queue is delivered, or at this time.
    stop_at: Option<Instant>,
    last_error: String,
}

impl Shared {
    fn new(address: String, process: u32, capacity: usize, waker: Waker) -> Self {
        let state = State {
            queue: VecDeque::new(),
            connected: false,
            finished: false,
            stop_at: None,
            last_error: "not connected yet".to_owned(),
        };
        Self {
            address,
            process,
            capacity,
            state: Mutex::new(state),
            changed: Condvar::new(),
            waker,
            session: Mutex::new(None),
            woken: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements, so poison means nothing here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self) -> MutexGuard<'_, Option<Session>> {
        // One that a panic has left in the middle of something is given up by the thread: TLS says that it is broken.
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            // Fails only when the poll is gone, and with it the thread.
            let _ = self.waker.wake();
        }
    }
}

impl Link {
    pub(super) fn push(&self, bytes: Bytes) -> Result<(), SendError> {
        if self.shared.process != std::process::id() {
            return Err(SendError::Closed);
        }
        let mut state = self.shared.lock();
        if state.stop_at.is_some() {
            return Err(SendError::Closed);
        }
        let full = state.queue.len() >= self.shared.capacity;
        if full {
            state.queue.pop_front();
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        state.queue.push_back(bytes);
        drop(state);
        if !self.send_now() {
            self.shared.wake();
        }
        if full { Err(SendError::QueueFull) } else { Ok(()) }
    }

    /// Sends what is queued, as far as the network takes it and for a moment; `false` where the thread has to look after
    /// the rest.
    fn send_now(&self) -> bool {
        let Ok(mut session) = self.shared.session.try_lock() else {
            return false;
        };
        match &mut *session {
            // What failed fails again for the thread, which knows what to do.
            Some(session) if session.welcome => session.send_batches(MAX_BATCHES) == Ok(true),
            _ => false,
        }
    }

    pub(super) fn stop(&self, deadline: Instant) {
        let mut state = self.shared.lock();
        state.stop_at = Some(state.stop_at.map_or(deadline, |at| at.min(deadline)));
        drop(state);
        self.shared.wake();
    }

    pub(super) fn address(&self) -> &str {
        &self.shared.address
    }

    pub(super) fn wait_connected(&self, deadline: Instant) -> bool {
        self.wait(deadline, |state| state.connected)
    }

    pub(super) fn wait_finished(&self, deadline: Instant) {
        // A little more than the deadline, because the thread needs a moment to notice it.
        if !self.wait(deadline + Duration::from_millis(20), |state| state.finished) {
            // Left behind in a blocking look-up; it holds no caller up.
            let mut state = self.shared.lock();
            abandon(&self.shared, &mut state);
        }
    }

    fn wait(&self, deadline: Instant, done: impl Fn(&State) -> bool) -> bool {
        let mut state = self.shared.lock();
        while !done(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self
                .shared
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    pub(super) fn last_error(&self) -> Option<(String, String)> {
        let state = self.shared.lock();
        (!state.connected).then(|| (self.shared.address.clone(), state.last_error.clone()))
    }

    pub(super) fn add_counters(&self, sum: &mut ClientCounters) {
        let shared = &self.shared;
        sum.sent += shared.sent.load(Ordering::Relaxed);
        sum.dropped += shared.dropped.load(Ordering::Relaxed);
        sum.connects += shared.connects.load(Ordering::Relaxed);
        sum.failures += shared.failures.load(Ordering::Relaxed);
        sum.requests += shared.requests.load(Ordering::Relaxed);
        sum.refusals += shared.refusals.load(Ordering::Relaxed);
        let state = shared.lock();
        sum.queued += state.queue.len() as u64;
        sum.connected += u64::from(state.connected);
    }
}

fn abandon(shared: &Shared, state: &mut State) {
    let left = state.queue.len() as u64;
    state.queue.clear();
    shared.dropped.fetch_add(left, Ordering::Relaxed);
}

pub(super) fn start(settings: Settings) -> io::Result<Link> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKE)?;
    let address = settings.address.clone();
    let shared = Arc::new(Shared::new(address, std::process::id(), settings.queue_messages, waker));
    let mut worker = Worker {
        jitter: Jitter::new(&settings.address),
        source: Source::new(settings.look_pause),
        settings,
        shared: Arc::clone(&shared),
        poll,
        events: Events::with_capacity(8),
        attempts: 0,
        was_reached: false,
    };
    std::thread::Builder::new().name("mmtls-keys".to_owned()).spawn(move || worker.run())?;
    Ok(Link { shared })
}

/// Why a connection ended.
enum End {
    /// The caller asked for it and everything was delivered, or its deadline passed.
    Stopped,
    /// This side has another address now.
    Moved,
    /// Anything else, in words for people.
    Broken(String),
}

struct Worker {
    settings: Settings,
    shared: Arc<Shared>,
    poll: Poll,
    events: Events,
    jitter: Jitter,
    /// Connections that were tried.
    attempts: u32,
    /// The latest one came as far as to a TCP connection.
    was_reached: bool,
    source: Source,
}

impl Worker {
    fn run(&mut self) {
        let mut pause = self.settings.min_pause;
        while !self.must_stop(true) {
            let before = self.shared.connects.load(Ordering::Relaxed);
            let end = self.connect_and_serve();
            self.attempts = self.attempts.wrapping_add(1);
            let mut state = self.shared.lock();
            state.connected = false;
            match end {
                End::Stopped => break,
                End::Moved => {
                    state.last_error = "connecting from another address".to_owned();
                    continue;
                }
                End::Broken(reason) => state.last_error = reason,
            }
            drop(state);
            self.shared.failures.fetch_add(1, Ordering::Relaxed);
            let was_welcome = self.shared.connects.load(Ordering::Relaxed) != before;
            if was_welcome {
                pause = self.settings.min_pause;
            }
            // Somebody was there and would not have this endpoint: that does not mend itself soon.
            let is_refused = self.was_reached && !was_welcome;
            let longest = if is_refused { MAX_REFUSED_PAUSE } else { self.settings.max_pause };
            pause = pause.min(longest);
            let pause_now = self.jitter.of(pause);
            self.sleep(pause_now, is_refused);
            pause = (pause * 2).min(longest);
        }
        let mut state = self.shared.lock();
        abandon(&self.shared, &mut state);
        state.finished = true;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Whether to end: the deadline passed or, with `when_idle`, nothing is left to deliver.
    fn must_stop(&self, when_idle: bool) -> bool {
        let state = self.shared.lock();
        state
            .stop_at
            .is_some_and(|at| (when_idle && state.queue.is_empty()) || Instant::now() >= at)
    }

    /// Keys that come meanwhile are tried soon: sessions wait for them.
    fn sleep(&mut self, pause: Duration, is_refused: bool) {
        let begun = Instant::now();
        let waiting = self.shared.lock().queue.len();
        while !self.must_stop(true) {
            let has_more = !is_refused && self.shared.lock().queue.len() > waiting;
            let end = begun + if has_more { pause.min(URGENT_PAUSE) } else { pause };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.wait(Some(left)).is_err() {
                return;
            }
        }
    }

    /// Waits for the socket or the caller, at most for `limit` and never past the stop deadline.
    fn wait(&mut self, limit: Option<Duration>) -> io::Result<()> {
        let stop = self.shared.lock().stop_at;
        let until_stop = stop.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = match (limit, until_stop) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.events.clear(),
            other => other?,
        }
        self.shared.woken.store(false, Ordering::Release);
        Ok(())
    }

    fn connect_and_serve(&mut self) -> End {
        let deadline = Instant::now() + self.settings.connect_timeout;
        let connected = self.connect(deadline);
        self.was_reached = connected.is_ok();
        let mut stream = match connected {
            Ok(stream) => stream,
            Err(error) => return End::Broken(error.to_string()),
        };
        if let Ok(own) = stream.local_addr() {
            self.source.comes_from(own.ip());
        }
        let name = self.settings.server_name.clone();
        let tls = match ClientConnection::new(Arc::clone(&self.settings.tls), name) {
            Ok(tls) => tls,
            Err(error) => return End::Broken(error.to_string()),
        };
        let registered = self.poll.registry().register(
            &mut stream,
            SOCKET,
            Interest::READABLE | Interest::WRITABLE,
        );
        if let Err(error) = registered {
            return End::Broken(error.to_string());
        }
        *self.shared.session() = Some(Session {
            shared: Arc::clone(&self.shared),
            on_request: Arc::clone(&self.settings.on_request),
            on_welcome: self.settings.on_welcome.clone(),
            stream,
            tls,
            decoder: Decoder::new(),
            welcome: false,
            address_refused: false,
            under_way: Vec::new(),
            answers: VecDeque::new(),
            answer_bytes: 0,
            live_asked: None,
            live: VecDeque::new(),
            pongs: Vec::new(),
        });
        let end = self.serve(deadline);
        let session = self.shared.session().take();
        if let Some(mut session) = session {
            match end {
                End::Stopped => {
                    // A caller may have begun to send just now.
                    let _ = session.send();
                    self.say_goodbye(&mut session, None);
                }
                // What waits goes by the next connection.
                End::Moved => {
                    self.say_goodbye(&mut session, Some(Instant::now() + CHANGE_PATIENCE));
                }
                End::Broken(_) => {}
            }
            if session.welcome
                && let Some(on_welcome) = &self.settings.on_welcome
            {
                on_welcome(None);
            }
            session.give_back();
            let _ = self.poll.registry().deregister(&mut session.stream);
        }
        end
    }

    fn connect(&self, deadline: Instant) -> io::Result<TcpStream> {
        let addresses: Vec<_> = self.settings.address.to_socket_addrs()?.collect();
        // A middlebox that restarts leaves SYNs unanswered, and the kernel repeats them after a second. Where
        // that is how far the way is, every fourth attempt has the whole time.
        let deadline = if self.attempts.is_multiple_of(4) {
            deadline
        } else {
            deadline.min(Instant::now() + SHORT_ATTEMPT)
        };
        let stream = connect_any(&addresses, deadline, || self.must_stop(true))?;
        socket::tune(&stream);
        stream.set_nonblocking(true)?;
        Ok(TcpStream::from_std(stream))
    }

    fn serve(&mut self, deadline: Instant) -> End {
        let hello = Arc::clone(&self.settings.hello);
        let mut said_hello = false;
        let mut has_moved = false;
        loop {
            let mut session = self.shared.session();
            let Some(open) = &mut *session else {
                // Nobody else takes it out.
                return End::Broken("no connection".to_owned());
            };
            if !std::mem::replace(&mut said_hello, true)
                && let Err(error) = open.tls.writer().write_all(&hello)
            {
                return End::Broken(error.to_string());
            }
            let more = match open.turn() {
                Ok(more) => more,
                Err(reason) => return End::Broken(reason),
            };
            let (is_idle, welcome) = (open.is_idle(), open.welcome);
            let refused = std::mem::take(&mut open.address_refused);
            let looks = refused || (welcome && self.source.is_due(Instant::now()));
            let ends = looks.then(|| (open.stream.local_addr(), open.stream.peer_addr()));
            drop(session);
            if self.must_stop(is_idle) {
                return End::Stopped;
            }
            if let Some((Ok(own), Ok(peer))) = ends {
                let now = Instant::now();
                has_moved |= self.source.has_changed(own.ip(), peer, now, source::present);
            }
            if has_moved && is_idle {
                return End::Moved;
            }
            let limit = if welcome {
                self.source.until_due(Instant::now())
            } else {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return End::Broken("no welcome in time".to_owned());
                }
                Some(left)
            };
            if !more && let Err(error) = self.wait(limit) {
                return End::Broken(error.to_string());
            }
        }
    }

    /// Closes in order and waits for the peer's close: closing a socket with unread input would
    /// reset the connection, and a reset may overtake keys that the peer has not read yet.
    fn say_goodbye(&mut self, session: &mut Session, deadline: Option<Instant>) {
        session.tls.send_close_notify();
        while session.flush().is_ok() && session.tls.wants_write() {
            if self.is_over(deadline) || self.wait_until(deadline).is_err() {
                return;
            }
        }
        if !session.tls.wants_write() {
            session.count_sent();
        }
        let _ = session.stream.shutdown(std::net::Shutdown::Write);
        let mut scratch = [0; 512];
        loop {
            match session.stream.read(&mut scratch) {
                Ok(0) => return,
                Ok(_) if self.is_over(deadline) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.is_over(deadline) || self.wait_until(deadline).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn is_over(&self, deadline: Option<Instant>) -> bool {
        self.must_stop(false) || deadline.is_some_and(|at| Instant::now() >= at)
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        self.wait(deadline.map(|at| at.saturating_duration_since(Instant::now())))
    }
}

/// One connection.
struct Session {
    shared: Arc<Shared>,
    on_request: Arc<RequestHandler>,
    on_welcome: Option<WelcomeHandler>,
    stream: TcpStream,
    tls: ClientConnection,
    decoder: Decoder,
    welcome: bool,
    /// Keys were refused for this side's address.
    address_refused: bool,
    /// Taken from the queue but not yet written to the socket in full.
    under_way: Vec<Bytes>,
    /// Answers to key requests, before what is queued.
    answers: VecDeque<Bytes>,
    answer_bytes: usize,
    /// When the keys of all sessions were asked for last.
    live_asked: Option<Instant>,
    /// What is left of the answer. Others go first, whose sessions wait, and it means nothing to the next connection.
    live: VecDeque<Bytes>,
    /// Answers to pings. Unlike the others they mean nothing to the next connection.
    pongs: Vec<u8>,
}

impl Session {
    /// Reads what there is and writes what can be written; `true` when there may be more to read.
    fn turn(&mut self) -> Result<bool, String> {
        for _ in 0..MAX_READS {
            // Answers go out before more is read: a burst of requests must not pile them up.
            self.send()?;
            // When there is no room, the poll reports the socket once it takes more.
            if self.answer_bytes + self.pongs.len() > MAX_ANSWER_BYTES || !self.receive()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes what can be written.
    fn send(&mut self) -> Result<(), String> {
        self.send_batches(usize::MAX).map(|_| ())
    }

    /// The same, of so many batches; `false` where there may be more.
    fn send_batches(&mut self, most: usize) -> Result<bool, String> {
        for _ in 0..most {
            self.flush().map_err(|error| error.to_string())?;
            if self.tls.wants_write() {
                // The poll says when there is room.
                return Ok(true);
            }
            self.count_sent();
            if !self.welcome || !self.take_batch()? {
                return Ok(true);
            }
        }
        self.flush().map_err(|error| error.to_string())?;
        Ok(false)
    }

    /// All that was taken is on its way.
    fn count_sent(&mut self) {
        let done = self.under_way.len() as u64;
        self.under_way.clear();
        self.shared.sent.fetch_add(done, Ordering::Relaxed);
    }

    /// Nothing is left of what was taken from the queue or answered.
    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.answers.is_empty()
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Output(&mut self.stream)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Moves answers and what is queued, up to one record, into TLS; `false` when there was nothing.
    fn take_batch(&mut self) -> Result<bool, String> {
        let pongs = self.pongs.len().min(BATCH_BYTES);
        let mut size = pongs;
        while let Some(next) = self.answers.front()
            && size + next.len() <= BATCH_BYTES
            && let Some(bytes) = self.answers.pop_front()
        {
            size += bytes.len();
            self.answer_bytes -= bytes.len();
            self.under_way.push(bytes);
        }
        let mut state = self.shared.lock();
        while let Some(next) = state.queue.front()
            && size + next.len() <= BATCH_BYTES
            && let Some(bytes) = state.queue.pop_front()
        {
            size += bytes.len();
            self.under_way.push(bytes);
        }
        drop(state);
        let mut live = Vec::new();
        while let Some(next) = self.live.front()
            && size + next.len() <= BATCH_BYTES
            && let Some(bytes) = self.live.pop_front()
        {
            size += bytes.len();
            live.push(bytes);
        }
        if size == 0 {
            return Ok(false);
        }
        // Of the right size at once: growing would leave copies behind.
        let mut plain = Zeroizing::new(Vec::with_capacity(size));
        plain.extend(self.pongs.drain(..pongs));
        for bytes in self.under_way.iter().chain(&live) {
            plain.extend_from_slice(bytes);
        }
        // The TLS buffer is empty here and its limit is above one batch, so all of it fits.
        self.tls.writer().write_all(&plain).map_err(|error| error.to_string())?;
        Ok(true)
    }

    /// Reads once; `false` when there is nothing to read.
    fn receive(&mut self) -> Result<bool, String> {
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => return Err("closed by the middlebox".to_owned()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error.to_string()),
        }
        if let Err(error) = self.tls.process_new_packets() {
            // Tell the peer why, as TLS asks for, before giving up.
            let _ = self.flush();
            return Err(error.to_string());
        }
        let mut incoming = Vec::new();
        read_messages(&mut self.tls, &mut self.decoder, |m| incoming.push(m))
            .map_err(|error| error.to_string())?;
        for message in incoming {
            self.handle(message)?;
        }
        Ok(true)
    }

    fn handle(&mut self, message: Message) -> Result<(), String> {
        let answers = match message {
            Message::Welcome(_) if !self.welcome => {
                self.welcome = true;
                let first = self.say_first()?;
                self.shared.connects.fetch_add(1, Ordering::Relaxed);
                let mut state = self.shared.lock();
                state.connected = true;
                state.last_error.clear();
                drop(state);
                self.shared.changed.notify_all();
                first
            }
            Message::Ping(number) => {
                let pong = message::encode(&Message::Pong(number));
                self.pongs.extend_from_slice(&pong.map_err(|error| error.to_string())?);
                Vec::new()
            }
            Message::LiveKeysRequest
                if self.live_asked.is_some_and(|it| it.elapsed() < LIVE_KEYS_PAUSE) =>
            {
                Vec::new()
            }
            Message::LiveKeysRequest => {
                self.live_asked = Some(Instant::now());
                self.shared.requests.fetch_add(1, Ordering::Relaxed);
                self.live.clear();
                for answer in (self.on_request)(message) {
                    let bytes = message::encode(&answer).map_err(|error| error.to_string())?;
                    self.live.push_back(Arc::new(bytes));
                }
                Vec::new()
            }
            Message::Relayed(_) | Message::Steering(_) if self.on_welcome.is_some() => {
                (self.on_request)(message)
            }
            Message::KeyRequest(_) | Message::EchKeyRequest(_) => {
                self.shared.requests.fetch_add(1, Ordering::Relaxed);
                (self.on_request)(message)
            }
            Message::Refused(ref refused) => {
                self.shared.refusals.fetch_add(1, Ordering::Relaxed);
                // A key server's is not that of the sessions.
                self.address_refused |=
                    refused.reason == Reason::ADDRESS && self.welcome && self.on_welcome.is_none();
                (self.on_request)(message)
            }
            Message::Pong(_) => Vec::new(),
            other => return Err(format!("unexpected message of type {}", other.kind())),
        };
        for answer in answers {
            let bytes = message::encode(&answer).map_err(|error| error.to_string())?;
            self.answer_bytes += bytes.len();
            self.answers.push_back(Arc::new(bytes));
        }
        Ok(())
    }

    /// What this side has to say to whoever welcomes it, ahead of all that waits.
    fn say_first(&self) -> Result<Vec<Message>, String> {
        let Some(on_welcome) = &self.on_welcome else {
            return Ok(Vec::new());
        };
        let secret = export(&self.tls).map_err(|error| error.to_string())?;
        Ok(on_welcome(Some(secret)))
    }

    /// Puts what was under way back in front of the queue, for the next connection.
    fn give_back(&mut self) {
        let mut state = self.shared.lock();
        for bytes in self.under_way.drain(..).chain(self.answers.drain(..)).rev() {
            if state.queue.len() >= self.shared.capacity {
                self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            } else {
                state.queue.push_front(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_messages_of_a_process_that_was_forked() {
        let push = |process| {
            let waker = Waker::new(Poll::new().unwrap().registry(), WAKE).unwrap();
            let shared = Arc::new(Shared::new(String::new(), process, 1, waker));
            Link { shared }.push(Arc::new(Zeroizing::new(vec![1])))
        };
        assert_eq!(push(std::process::id() + 1), Err(SendError::Closed));
        assert_eq!(push(std::process::id()), Ok(()));
    }
}
