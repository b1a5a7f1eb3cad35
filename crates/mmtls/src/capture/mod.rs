//! The original packets of TLS sessions in a pcapng file (`--capture FILE`), with the key log's secrets before the packets that
//! they open, where the operator asks for them (`capture.secrets`): other tools read what is inside.
//!
//! Workers copy frames into a queue of bounded bytes; a thread of its own sorts and writes them (`writer`). Since secrets come
//! later than the first packets, those of a connection are held back until they are there, or some seconds have passed: across
//! sessions the file is not in the order of time. Refuses to hold up traffic: frames without room are lost, and counted; and
//! connections that carry no TLS.

mod flows;
mod secrets;
mod settings;
mod writer;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mmtls_engine::session::{SessionInfo, TcpFrame};
use mmtls_middlebox::keys::KeyLogTap;
use zeroize::Zeroizing;

use crate::behind::Behind;
use crate::mirror::file::RotatingFile;
use flows::Ends;
pub use settings::CaptureConfig;
pub use writer::CaptureError;
use writer::{Counters, Item, Writer, count};

fn ends(one: SocketAddr, other: SocketAddr) -> Ends {
    if one <= other { [one, other] } else { [other, one] }
}

/// What was captured so far, by all workers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CaptureCounters {
    /// Sessions in the file.
    pub sessions: u64,
    /// Sessions that are not: there was no room when they began.
    pub sessions_lost: u64,
    /// Of those that are, those whose secrets were to be there and did not come in time.
    pub without_secrets: u64,
    /// Frames in the file.
    pub frames: u64,
    /// Frames that there was no room for, or that could not be written.
    pub frames_lost: u64,
}

/// A worker's way to the file; clones lead to the same one.
#[derive(Clone)]
pub struct Capture {
    behind: Behind<Writer>,
    counters: Arc<Counters>,
    takes_secrets: bool,
}

impl Capture {
    /// Begins the file; `None` where there is to be none.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn open(config: &CaptureConfig) -> Result<Option<Self>, CaptureError> {
        let Some(path) = &config.file else {
            return Ok(None);
        };
        let file = RotatingFile::create(path, config.rotation())
            .map_err(|error| CaptureError { path: path.clone(), error })?;
        let counters = Arc::<Counters>::default();
        let writer = Writer::new(file, path.clone(), config, Arc::clone(&counters));
        let behind = Behind::new(writer, config.max_buffered_bytes);
        Ok(Some(Self { behind, counters, takes_secrets: config.secrets }))
    }

    /// What sees the key log's lines, where secrets are asked for.
    pub(crate) fn key_log_tap(&self) -> Option<KeyLogTap> {
        let capture = self.clone();
        let see = move |lines: &[u8]| {
            let bytes = lines.len();
            let item = || Item::Lines(Zeroizing::new(lines.to_vec()));
            // Without room its sessions are told as those without secrets.
            let _ = capture.behind.push(bytes, item);
        };
        self.takes_secrets.then(|| KeyLogTap(Arc::new(see)))
    }

    /// Has a thread write from here on, with the privileges of the calling one: for all clones.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn write_behind(&mut self) -> io::Result<()> {
        self.behind.start("capture")
    }

    /// Writes what is held back, and waits for it: see [`Behind::finish`].
    pub(crate) fn finish(&self, begun: Instant) {
        self.behind.push_end(Item::Release);
        self.behind.finish(begun);
    }

    pub(crate) fn frame(&self, frame: &TcpFrame<'_>) {
        let item = || Item::Frame {
            ends: ends(frame.source, frame.destination),
            now_ns: frame.now_ns,
            opens: frame.opens,
            bytes: frame.bytes.into(),
        };
        if !self.behind.push(frame.bytes.len(), item) {
            count(&self.counters.frames_lost, 1);
        }
    }

    /// A connection carries TLS, and this is its random; false where there is no room for it.
    pub(crate) fn session(&self, info: &SessionInfo) -> bool {
        let (ends, random) = (ends(info.client, info.server), info.client_random);
        let is_taken = self.behind.push(0, || Item::Session { ends, random });
        if !is_taken {
            count(&self.counters.sessions_lost, 1);
        }
        is_taken
    }

    /// A session that was taken is over.
    pub(crate) fn session_end(&self, info: &SessionInfo) {
        self.behind.push_end(Item::End(ends(info.client, info.server)));
    }

    pub(crate) fn read_counters(&self) -> CaptureCounters {
        let Counters { sessions, sessions_lost, without_secrets, frames, frames_lost } =
            &*self.counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        CaptureCounters {
            sessions: read(sessions),
            sessions_lost: read(sessions_lost),
            without_secrets: read(without_secrets),
            frames: read(frames),
            frames_lost: read(frames_lost),
        }
    }

    pub(crate) fn take_error(&self) -> Option<CaptureError> {
        self.behind.take_error()
    }
}

#[cfg(test)]
mod tests;
