//! The decrypted mirror: each session whose records were opened as a TCP conversation in the clear, in a pcapng file
//! (`-w FILE`) or on an interface (`--mirror IF`), for tools that read packets.
//!
//! Workers copy what was decrypted into a queue of bounded bytes (`session`); a thread of its own makes conversations of it
//! (`conversation`, `frame`) and writes them (`writer`, `file`). Addresses, link addresses, VLAN tags and the client's
//! port stay; the server's is replaced ([`ServerPort`]). Segments are as small as they were on the way to a host: tools take
//! what is in the mirror for what was in the network.
//!
//! Refuses to hold up traffic, and to leave holes. Where the queue is full, an output fails, or records are not opened, a
//! session's conversation ends there with a RST, whose comment says why.

mod conversation;
mod file;
mod frame;
mod session;
mod settings;
mod writer;

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mmtls_engine::session::SessionId;
use mmtls_engine::tls::Direction;
use mmtls_packet_io::af_packet::Sender;

use file::RotatingFile;
pub use session::SessionMirror;
pub use settings::{MirrorConfig, ServerPort};
use writer::{Counters, Event, PATIENCE, Writer};
pub use writer::{MirrorError, Output};

/// Early data whose fate is not known may take one part in so many of what may be buffered.
const EARLY_SHARE: usize = 4;
/// What an event costs of the queue beside its bytes.
const EVENT_BYTES: usize = 256;
/// How often the thread looks after its outputs while nothing comes.
const IDLE: Duration = Duration::from_millis(500);
/// How long the outputs are waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Why a mirror could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The file.
    File(PathBuf, io::Error),
    /// The interface.
    Interface(mmtls_packet_io::Error),
    /// Frames on this interface would be among those that are looked at.
    Watched(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, error) => write!(f, "mirror file {}: {error}", path.display()),
            Self::Interface(error) => write!(f, "mirror interface: {error}"),
            Self::Watched(name) => write!(
                f,
                "mirror interface is {name}, which carries the traffic itself: name another one"
            ),
        }
    }
}

impl std::error::Error for OpenError {}

/// What was mirrored so far, by all workers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MirrorCounters {
    /// Conversations that were begun.
    pub sessions: u64,
    /// Sessions that an output, or the queue, had no room for, or not to their end.
    pub sessions_cut: u64,
    /// Conversations that end where records were not opened.
    pub gaps: u64,
    /// Bytes in conversations.
    pub bytes: u64,
    /// Decrypted bytes that are in none.
    pub bytes_lost: u64,
}

/// A worker's way into the mirror; clones lead into the same one.
#[derive(Clone)]
pub struct Mirror {
    shared: Arc<Shared>,
    /// Lives as long as somebody has asked for it.
    thread: Option<Arc<Thread>>,
}

struct Shared {
    port: ServerPort,
    max_buffered_bytes: usize,
    /// Bytes of events that were not written yet.
    buffered: AtomicUsize,
    /// Bytes of early data whose fate is not known.
    early: AtomicUsize,
    counters: Counters,
    queue: Mutex<Queue>,
    /// There is something in the queue, or the thread is to end.
    work: Condvar,
    /// The thread has written what there was.
    done: Condvar,
    /// While there is no thread, whoever has an event writes.
    writer: Mutex<Option<Writer>>,
}

#[derive(Default)]
struct Queue {
    events: Vec<Event>,
    /// A thread writes.
    behind: bool,
    /// It is writing.
    busy: bool,
    end: bool,
    error: Option<MirrorError>,
}

/// What early data of a session take of the memory for those of all, a part of [`MirrorConfig::max_buffered_bytes`].
struct EarlyRoom {
    shared: Arc<Shared>,
    taken: usize,
}

impl EarlyRoom {
    /// Takes so many bytes more, up to `most` in all; false where there is no room.
    fn take(&mut self, bytes: usize, most: usize) -> bool {
        if self.taken + bytes > most {
            return false;
        }
        let Shared { early, max_buffered_bytes, .. } = &*self.shared;
        let before = early.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > max_buffered_bytes / EARLY_SHARE {
            early.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        self.taken += bytes;
        true
    }
}

impl Drop for EarlyRoom {
    fn drop(&mut self) {
        self.shared.early.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

/// Ends the thread when the last one that has it goes.
struct Thread(Arc<Shared>);

impl Mirror {
    /// Opens the outputs. `None` where nothing is to be mirrored.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &MirrorConfig) -> Result<Option<Self>, OpenError> {
        // The interface first: a mistake must leave no new file behind.
        let interface = open_interface(config)?;
        let file = match &config.file {
            Some(path) => Some(
                RotatingFile::create(path, config)
                    .map_err(|error| OpenError::File(path.clone(), error))?,
            ),
            None => None,
        };
        if interface.is_none() && file.is_none() {
            return Ok(None);
        }
        let shared = Shared {
            port: config.port,
            max_buffered_bytes: config.max_buffered_bytes,
            buffered: AtomicUsize::new(0),
            early: AtomicUsize::new(0),
            counters: Counters::default(),
            queue: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            writer: Mutex::new(Some(Writer::new(file, interface, config))),
        };
        Ok(Some(Self { shared: Arc::new(shared), thread: None }))
    }

    /// Has a thread write from here on, with the privileges of the calling one: for all that share the mirror. Without it,
    /// whoever has something writes, and waits for the outputs.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn write_behind(&mut self) -> io::Result<()> {
        let mut queue = lock(&self.shared.queue);
        let Some(writer) = lock(&self.shared.writer).take() else {
            return Ok(());
        };
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name("mirror".to_owned()).spawn(move || shared.write_on(writer))?;
        queue.behind = true;
        drop(queue);
        self.thread = Some(Arc::new(Thread(Arc::clone(&self.shared))));
        Ok(())
    }

    /// Waits until what was decrypted is written, but not for outputs that do nothing for five seconds.
    pub(crate) fn finish(&self) {
        if let Some(writer) = &mut *lock(&self.shared.writer) {
            writer.flush(&self.shared.counters);
        } else {
            self.shared.wait();
        }
    }

    /// What was mirrored so far.
    pub(crate) fn read_counters(&self) -> MirrorCounters {
        let Counters { sessions, sessions_cut, gaps, bytes, bytes_lost } = &self.shared.counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        MirrorCounters {
            sessions: read(sessions),
            sessions_cut: read(sessions_cut),
            gaps: read(gaps),
            bytes: read(bytes),
            bytes_lost: read(bytes_lost),
        }
    }

    /// Trouble that was not told yet.
    pub(crate) fn take_error(&self) -> Option<MirrorError> {
        let of_writer = lock(&self.shared.writer).as_mut().and_then(Writer::take_error);
        of_writer.or_else(|| lock(&self.shared.queue).error.take())
    }

    /// For early data of a session.
    fn early_room(&self) -> EarlyRoom {
        EarlyRoom { shared: Arc::clone(&self.shared), taken: 0 }
    }

    fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    fn port(&self) -> ServerPort {
        self.shared.port
    }

    /// Takes an event if there is room for it.
    fn push(&self, event: Event) -> bool {
        self.shared.reserve(EVENT_BYTES) && self.shared.push(event)
    }

    /// Takes bytes if there is room for them: before they are copied.
    fn push_data(&self, id: SessionId, now_ns: u64, from: Direction, bytes: &[u8]) -> bool {
        self.shared.reserve(EVENT_BYTES + bytes.len())
            && self.shared.push(Event::Data { id, now_ns, from, bytes: bytes.to_vec() })
    }

    /// Takes the end of a conversation, for which there always is room: it has one at most.
    fn push_end(&self, event: Event) {
        self.shared.buffered.fetch_add(EVENT_BYTES, Ordering::Relaxed);
        self.shared.push(event);
    }
}

/// Finds what [`Mirror::open`] would find wrong with the interface, without sending anything.
///
/// # Errors
/// [`OpenError`].
pub fn check_interface(config: &MirrorConfig) -> Result<(), OpenError> {
    open_interface(config).map(drop)
}

/// Finds what [`Mirror::open`] would find wrong with a file, without writing anything.
///
/// # Errors
/// Why it could not be begun.
pub fn check_file(path: &Path) -> io::Result<()> {
    file::check(path)?;
    check_directory(path)
}

/// Whether this process may create files beside a mirror's file, as it does for each further one.
///
/// # Errors
/// Why it may not.
pub fn check_directory(file: &Path) -> io::Result<()> {
    // A device or a FIFO is the only one.
    if file.exists() && !file.is_file() {
        return Ok(());
    }
    let directory = file.parent().filter(|it| !it.as_os_str().is_empty());
    crate::streams::check(directory.unwrap_or(Path::new(".")))
}

fn open_interface(config: &MirrorConfig) -> Result<Option<Sender>, OpenError> {
    let Some(name) = &config.interface else {
        return Ok(None);
    };
    let sender = Sender::open(name).map_err(OpenError::Interface)?;
    match config.watched.iter().find(|it| sender.sends_to(it)) {
        Some(same) => Err(OpenError::Watched(same.clone())),
        None => Ok(Some(sender.with_patience(PATIENCE))),
    }
}

impl Event {
    /// What it takes of the queue.
    fn cost(&self) -> usize {
        match self {
            Self::Data { bytes, .. } => EVENT_BYTES + bytes.len(),
            Self::Begin(_) | Self::End { .. } => EVENT_BYTES,
        }
    }
}

impl Shared {
    fn reserve(&self, bytes: usize) -> bool {
        let before = self.buffered.fetch_add(bytes, Ordering::Relaxed);
        let fits = before + bytes <= self.max_buffered_bytes;
        if !fits {
            self.buffered.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Queues an event whose room was reserved, or writes it where no thread does.
    fn push(&self, event: Event) -> bool {
        let mut queue = lock(&self.queue);
        if queue.behind {
            queue.events.push(event);
            if queue.events.len() == 1 {
                self.work.notify_one();
            }
            return true;
        }
        drop(queue);
        self.buffered.fetch_sub(event.cost(), Ordering::Relaxed);
        if let Some(writer) = &mut *lock(&self.writer) {
            writer.handle(event, &self.counters);
        }
        true
    }

    /// The thread's life.
    fn write_on(&self, mut writer: Writer) {
        let mut events = Vec::new();
        loop {
            let mut queue = lock(&self.queue);
            queue.busy = false;
            self.done.notify_all();
            if queue.events.is_empty() && !queue.end {
                let is_idle = |queue: &mut Queue| queue.events.is_empty() && !queue.end;
                let waited = self.work.wait_timeout_while(queue, IDLE, is_idle);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            std::mem::swap(&mut events, &mut queue.events);
            let is_last = events.is_empty() && queue.end;
            queue.busy = true;
            drop(queue);
            for event in events.drain(..) {
                let cost = event.cost();
                writer.handle(event, &self.counters);
                self.buffered.fetch_sub(cost, Ordering::Relaxed);
            }
            writer.flush(&self.counters);
            if let Some(error) = writer.take_error() {
                lock(&self.queue).error = Some(error);
            }
            if is_last {
                break;
            }
        }
        let mut queue = lock(&self.queue);
        queue.behind = false;
        queue.busy = false;
        *lock(&self.writer) = Some(writer);
        self.done.notify_all();
    }

    /// Waits for the thread, but not for ever.
    fn wait(&self) {
        let is_working = |queue: &mut Queue| {
            queue.behind && (queue.busy || queue.end || !queue.events.is_empty())
        };
        // What is not written by then is lost, and so is what would have told so.
        let _ = self.done.wait_timeout_while(lock(&self.queue), LAST_WAIT, is_working);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        lock(&self.0.queue).end = true;
        self.0.work.notify_one();
        self.0.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
