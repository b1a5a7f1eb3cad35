//! Sorts frames by connection, holds them back until their secrets are there, and writes them.
//!
//! Refuses more connections without a live session than some, and to hold back more than some bytes of each and of all.

use core::fmt;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::flows::{Ends, Flow, Flows, Held, Phase, Queue};
use super::secrets::{Log, Random};
use super::settings::CaptureConfig;
use crate::behind::{self, ITEM_BYTES};
use crate::mirror::file::RotatingFile;

/// Most connections without a live session that are known.
const MAX_OTHERS: usize = 65_536;
/// Most bytes of a connection that are held back before it is known whether it carries TLS: more than a ClientHello and its
/// copies have.
const MAX_UNKNOWN_BYTES: usize = 256 << 10;
/// Most bytes of one that wait for secrets.
const MAX_HELD_BYTES: usize = 4 << 20;
/// How long what follows the end of a session goes into the file.
const CLOSING: Duration = Duration::from_secs(10);
/// How long nothing has come of a connection without TLS that is forgotten: should it go on, it is looked at anew.
const FORGET: Duration = Duration::from_secs(10);

/// The file could not be written.
#[derive(Debug)]
pub struct CaptureError {
    /// Its name.
    pub path: PathBuf,
    /// Why.
    pub error: io::Error,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "writing the capture {}: {}", self.path.display(), self.error)
    }
}

/// Something for the file, or about what is in it.
pub(super) enum Item {
    Frame {
        ends: Ends,
        now_ns: u64,
        opens: bool,
        bytes: Box<[u8]>,
    },
    Session {
        ends: Ends,
        random: Random,
    },
    /// It is over.
    End(Ends),
    Lines(Zeroizing<Vec<u8>>),
    /// Nothing more comes: what is held back is written.
    Release,
}

/// Counters of a capture, whoever counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) sessions: AtomicU64,
    pub(super) sessions_lost: AtomicU64,
    pub(super) without_secrets: AtomicU64,
    pub(super) frames: AtomicU64,
    pub(super) frames_lost: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// Writes the file.
pub(super) struct Writer {
    file: RotatingFile,
    path: PathBuf,
    secrets: Option<Log>,
    wait: Duration,
    flows: Flows,
    /// Which connection a random is of: those of `flows`, where secrets are waited for.
    sessions: HashMap<Random, Ends>,
    held_bytes: usize,
    max_held_bytes: usize,
    counters: Arc<Counters>,
    /// Frames in what the file has yet to write.
    gathered: u64,
    error: Option<CaptureError>,
    /// The trouble at hand was told.
    told: bool,
}

impl Writer {
    pub(super) fn new(
        file: RotatingFile,
        path: PathBuf,
        config: &CaptureConfig,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            file,
            path,
            secrets: config.secrets.then(Log::default),
            wait: Duration::from_secs(config.secrets_wait_seconds),
            flows: Flows::default(),
            sessions: HashMap::new(),
            held_bytes: 0,
            max_held_bytes: config.max_buffered_bytes,
            counters,
            gathered: 0,
            error: None,
            told: false,
        }
    }

    fn frame(&mut self, ends: Ends, now_ns: u64, opens: bool, bytes: Box<[u8]>, now: Instant) {
        // A SYN alone ends no session: whether it counts is the engine's to say.
        if opens && self.flows.get(&ends).is_some_and(Flow::is_over) {
            self.forget(&ends);
        }
        self.begin(ends, now);
        let Some(flow) = self.flows.get_mut(&ends) else {
            return;
        };
        flow.latest = now;
        match &mut flow.phase {
            Phase::Written { .. } => self.write(now_ns, &bytes),
            Phase::Ignored => {}
            Phase::Held(held) => {
                let cost = ITEM_BYTES + bytes.len();
                held.bytes += cost;
                held.frames.push((now_ns, bytes));
                self.held_bytes += cost;
                let most = if flow.random.is_some() { MAX_HELD_BYTES } else { MAX_UNKNOWN_BYTES };
                if held.bytes > most {
                    self.release(&ends, now);
                }
            }
        }
        while self.held_bytes > self.max_held_bytes
            && let Some(oldest) = self.flows.oldest_held()
        {
            self.release(&oldest, now);
        }
    }

    /// Knows a connection from here on, and makes room for it.
    fn begin(&mut self, ends: Ends, now: Instant) {
        if self.flows.get(&ends).is_none() {
            self.limit(MAX_OTHERS - 1, now);
            self.flows.insert(ends, now);
        }
    }

    /// Lets connections without a live session go until there are no more than so many.
    fn limit(&mut self, most: usize, now: Instant) {
        while self.flows.others() > most && self.make_room(now) {}
    }

    fn make_room(&mut self, now: Instant) -> bool {
        // Neither a scan is to push out what follows the ends of sessions, nor many short sessions those that begin.
        let more = match self.flows.len(Queue::Ended) > self.flows.len(Queue::Unknown) {
            true => Queue::Ended,
            false => Queue::Unknown,
        };
        let oldest = [Queue::Ignored, more].into_iter().find_map(|queue| self.flows.oldest(queue));
        if let Some(oldest) = oldest {
            self.forget(&oldest);
            return true;
        }
        let oldest = self.flows.oldest(Queue::Secrets);
        oldest.inspect(|oldest| self.release(oldest, now)).is_some()
    }

    /// A session has begun. The frame that has told so comes next: it may be the first one of its connection.
    fn session(&mut self, ends: Ends, random: Random, now: Instant) {
        let before = self.flows.get(&ends).and_then(|flow| flow.random);
        if let Some(before) = before.filter(|before| *before != random) {
            // What is held back is the earlier session's.
            self.release(&ends, now);
            self.unlink(&before, &ends);
        }
        self.begin(ends, now);
        self.flows.change(&ends, now, |flow| {
            flow.live = flow.live.saturating_add(1);
            let is_known = flow.random.replace(random) == Some(random);
            if !is_known && !matches!(flow.phase, Phase::Held(_)) {
                // What came before, if anything, is gone.
                flow.phase = Phase::Held(Held::default());
            }
        });
        let is_ready = match &self.secrets {
            None => true,
            Some(log) => {
                self.sessions.insert(random, ends);
                log.get(&random).is_some_and(|secrets| secrets.is_complete())
            }
        };
        if is_ready {
            self.release(&ends, now);
        }
    }

    fn end(&mut self, ends: &Ends, now: Instant) {
        self.flows.change(ends, now, |flow| flow.live = flow.live.saturating_sub(1));
        self.limit(MAX_OTHERS, now);
    }

    fn lines(&mut self, lines: &[u8], now: Instant) {
        let complete = self.secrets.as_mut().map(|log| log.add(lines)).unwrap_or_default();
        for random in complete {
            let Some(ends) = self.sessions.get(&random).copied() else {
                continue;
            };
            let written = self.flows.get_mut(&ends).map(|flow| &mut flow.phase);
            if let Some(Phase::Written { has_secrets }) = written {
                // Late, for what comes now.
                if !std::mem::replace(has_secrets, true) {
                    self.write_secrets(&random);
                }
            } else {
                self.release(&ends, now);
            }
        }
    }

    /// Writes what is held back of a connection, with its secrets before it as far as they are known; drops it where no
    /// session is known.
    fn release(&mut self, ends: &Ends, now: Instant) {
        let Self { flows, secrets, .. } = self;
        let released = flows.change(ends, now, |flow| {
            let Phase::Held(held) = &mut flow.phase else {
                return None;
            };
            let held = std::mem::take(held);
            let known = flow.random.zip(secrets.as_ref()).and_then(|(it, log)| log.get(&it));
            let has_secrets = known.is_some_and(|secrets| secrets.is_complete());
            flow.phase = match flow.random {
                Some(_) => Phase::Written { has_secrets },
                None => Phase::Ignored,
            };
            Some((held, flow.random, has_secrets))
        });
        let Some((held, random, has_secrets)) = released.flatten() else {
            return;
        };
        self.held_bytes -= held.bytes;
        let Some(random) = random else {
            return;
        };
        count(&self.counters.sessions, 1);
        if self.secrets.is_some() {
            if !has_secrets {
                count(&self.counters.without_secrets, 1);
            }
            // Those of the handshake alone open something, too.
            self.write_secrets(&random);
        }
        for (now_ns, bytes) in held.frames {
            self.write(now_ns, &bytes);
        }
    }

    fn write_secrets(&mut self, random: &Random) {
        if let Some(secrets) = self.secrets.as_ref().and_then(|log| log.get(random)) {
            self.file.push_secrets(&secrets.lines);
        }
    }

    fn write(&mut self, now_ns: u64, bytes: &[u8]) {
        if !self.file.is_ready() {
            count(&self.counters.frames_lost, 1);
            return;
        }
        self.file.push(now_ns, bytes, None);
        self.gathered += 1;
        if self.file.is_due() {
            self.commit();
        }
    }

    fn commit(&mut self) {
        if !self.file.is_ready() {
            return;
        }
        let frames = std::mem::take(&mut self.gathered);
        match self.file.commit() {
            Ok(()) => {
                count(&self.counters.frames, frames);
                self.told = false;
            }
            Err(error) => {
                count(&self.counters.frames_lost, frames);
                self.tell(error);
                return;
            }
        }
        if self.file.is_full()
            && let Err(error) = self.file.rotate()
        {
            self.tell(error);
        }
    }

    fn tell(&mut self, error: io::Error) {
        if !std::mem::replace(&mut self.told, true) {
            self.error = Some(CaptureError { path: self.path.clone(), error });
        }
    }

    fn forget(&mut self, ends: &Ends) {
        let Some(flow) = self.flows.remove(ends) else {
            return;
        };
        if let Phase::Held(held) = &flow.phase {
            self.held_bytes -= held.bytes;
        }
        if let Some(random) = &flow.random {
            self.unlink(random, ends);
        }
    }

    /// A random is not this connection's any more; it may be another one's, of a client that repeats it.
    fn unlink(&mut self, random: &Random, ends: &Ends) {
        if self.sessions.get(random) == Some(ends) {
            self.sessions.remove(random);
        }
    }

    /// Writes what has waited long enough, and forgets what nothing is to come of.
    fn expire(&mut self, now: Instant) {
        for queue in [Queue::Secrets, Queue::Unknown] {
            while let Some(ends) = self.flows.due(queue, self.wait, now) {
                self.release(&ends, now);
            }
        }
        while let Some(ends) = self.flows.due(Queue::Ended, CLOSING, now) {
            self.forget(&ends);
        }
        while let Some(ends) = self.flows.due(Queue::Ignored, FORGET, now) {
            let is_silent = |flow: &Flow| now.saturating_duration_since(flow.latest) >= FORGET;
            if self.flows.get(&ends).is_none_or(is_silent) {
                self.forget(&ends);
            } else {
                self.flows.wait_anew(&ends, now);
            }
        }
    }
}

impl behind::Writer for Writer {
    type Item = Item;
    type Error = CaptureError;

    fn bytes(item: &Item) -> usize {
        match item {
            Item::Frame { bytes, .. } => bytes.len(),
            Item::Lines(lines) => lines.len(),
            Item::Session { .. } | Item::End(_) | Item::Release => 0,
        }
    }

    fn handle(&mut self, item: Item) {
        let now = Instant::now();
        match item {
            Item::Frame { ends, now_ns, opens, bytes } => {
                self.frame(ends, now_ns, opens, bytes, now);
            }
            Item::Session { ends, random } => self.session(ends, random, now),
            Item::End(ends) => self.end(&ends, now),
            Item::Lines(lines) => self.lines(&lines, now),
            Item::Release => {
                while let Some(held) = self.flows.oldest_held() {
                    self.release(&held, now);
                }
            }
        }
    }

    fn flush(&mut self) {
        self.expire(Instant::now());
        self.commit();
    }

    fn take_error(&mut self) -> Option<CaptureError> {
        self.error.take()
    }
}

#[cfg(test)]
mod tests;
