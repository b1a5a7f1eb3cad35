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
pub(crate) mod file;
mod frame;
mod session;
mod settings;
mod writer;

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mmtls_engine::session::SessionId;
use mmtls_engine::tls::Direction;
use mmtls_packet_io::af_packet::Sender;

use crate::behind::{Behind, ITEM_BYTES as EVENT_BYTES};
use file::RotatingFile;
pub use session::SessionMirror;
pub use settings::{MirrorConfig, ServerPort};
use writer::{Counters, Event, PATIENCE, Writer};
pub use writer::{MirrorError, Output};

/// Early data whose fate is not known may take one part in so many of what may be buffered.
const EARLY_SHARE: usize = 4;

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
    behind: Behind<Writer>,
}

struct Shared {
    port: ServerPort,
    max_buffered_bytes: usize,
    /// Bytes of early data whose fate is not known.
    early: AtomicUsize,
    counters: Arc<Counters>,
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
                RotatingFile::create(path, config.rotation())
                    .map_err(|error| OpenError::File(path.clone(), error))?,
            ),
            None => None,
        };
        if interface.is_none() && file.is_none() {
            return Ok(None);
        }
        let counters = Arc::<Counters>::default();
        let writer = Writer::new(file, interface, config, Arc::clone(&counters));
        let shared = Shared {
            port: config.port,
            max_buffered_bytes: config.max_buffered_bytes,
            early: AtomicUsize::new(0),
            counters,
        };
        let behind = Behind::new(writer, config.max_buffered_bytes);
        Ok(Some(Self { shared: Arc::new(shared), behind }))
    }

    /// Has a thread write from here on, with the privileges of the calling one: for all that share the mirror. Without it,
    /// whoever has something writes, and waits for the outputs.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn write_behind(&mut self) -> io::Result<()> {
        self.behind.start("mirror")
    }

    /// Waits until what was decrypted is written: see [`Behind::finish`].
    pub(crate) fn finish(&self, begun: Instant) {
        self.behind.finish(begun);
    }

    /// What was mirrored so far.
    pub(crate) fn read_counters(&self) -> MirrorCounters {
        let Counters { sessions, sessions_cut, gaps, bytes, bytes_lost } = &*self.shared.counters;
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
        self.behind.take_error()
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
        self.behind.push(0, || event)
    }

    /// Takes bytes if there is room for them: before they are copied.
    fn push_data(&self, id: SessionId, now_ns: u64, from: Direction, bytes: &[u8]) -> bool {
        self.behind.push(bytes.len(), || Event::Data { id, now_ns, from, bytes: bytes.to_vec() })
    }

    /// Takes the end of a conversation whose beginning was taken, for which there always is room: it has one at most.
    fn push_end(&self, event: Event) {
        self.behind.push_end(event);
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
    crate::streams::check(crate::sandbox::parent(file))
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

#[cfg(test)]
mod tests;
