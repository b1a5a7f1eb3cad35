//! Sorts frames by connection, holds them back until their secrets are there, and writes them.
//!
//! Refuses more connections than a table has places for, and to hold back more than some bytes of each and of all.

use core::fmt;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::secrets::{Log, Random};
use super::settings::CaptureConfig;
use crate::behind::{self, ITEM_BYTES};
use crate::mirror::file::RotatingFile;

/// Most connections that are known.
const MAX_FLOWS: usize = 65_536;
/// Most bytes of a connection that are held back before it is known whether it carries TLS: more than a ClientHello and its
/// copies have.
const MAX_UNKNOWN_BYTES: usize = 256 << 10;
/// Most bytes of one that wait for secrets.
const MAX_HELD_BYTES: usize = 4 << 20;
/// How long nothing has come of a connection that is forgotten, and how often such ones are looked for.
const FORGET: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(10);
/// The same where the table is full.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Between whom, whoever sends.
pub(super) type Ends = [SocketAddr; 2];

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
    Lines(Zeroizing<Vec<u8>>),
    /// Nothing more comes: what is held back is written.
    Release,
}

/// Counters of a capture, whoever counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) sessions: AtomicU64,
    pub(super) without_secrets: AtomicU64,
    pub(super) frames: AtomicU64,
    pub(super) frames_lost: AtomicU64,
}

fn count(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// A connection.
struct Flow {
    phase: Phase,
    /// Of the session, once it is known to be one.
    random: Option<Random>,
    latest: Instant,
}

enum Phase {
    /// Its frames are held back.
    Held { frames: Vec<(u64, Box<[u8]>)>, bytes: usize, since: Instant },
    /// They go into the file.
    Written { has_secrets: bool },
    /// It carries no TLS.
    Ignored,
}

/// Writes the file.
pub(super) struct Writer {
    file: RotatingFile,
    path: PathBuf,
    secrets: Option<Log>,
    wait: Duration,
    flows: HashMap<Ends, Flow>,
    /// Which connection a random is of.
    sessions: HashMap<Random, Ends>,
    /// Connections that are, or were, held back, in the order in which they began.
    held: VecDeque<(Instant, Ends)>,
    held_bytes: usize,
    max_held_bytes: usize,
    looked: Instant,
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
            flows: HashMap::new(),
            sessions: HashMap::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            max_held_bytes: config.max_buffered_bytes,
            looked: Instant::now(),
            counters,
            gathered: 0,
            error: None,
            told: false,
        }
    }

    fn frame(&mut self, ends: Ends, now_ns: u64, opens: bool, bytes: Box<[u8]>) {
        let now = Instant::now();
        // Between the same ends another connection begins; a SYN that is repeated does not.
        let is_over = |flow: &Flow| opens && !matches!(flow.phase, Phase::Held { .. });
        if self.flows.get(&ends).is_some_and(is_over) {
            self.forget(&ends);
        }
        if !self.flows.contains_key(&ends) {
            if self.flows.len() >= MAX_FLOWS && self.looked.elapsed() >= LOOK_AGAIN {
                self.tidy();
            }
            if self.flows.len() >= MAX_FLOWS {
                count(&self.counters.frames_lost, 1);
                return;
            }
            let phase = Phase::Held { frames: Vec::new(), bytes: 0, since: now };
            self.flows.insert(ends, Flow { phase, random: None, latest: now });
            self.held.push_back((now, ends));
        }
        let Some(flow) = self.flows.get_mut(&ends) else {
            return;
        };
        flow.latest = now;
        match &mut flow.phase {
            Phase::Written { .. } => self.write(now_ns, &bytes),
            Phase::Ignored => {}
            Phase::Held { frames, bytes: held, .. } => {
                let cost = ITEM_BYTES + bytes.len();
                *held += cost;
                self.held_bytes += cost;
                frames.push((now_ns, bytes));
                let most = if flow.random.is_some() { MAX_HELD_BYTES } else { MAX_UNKNOWN_BYTES };
                if *held > most {
                    self.release(&ends);
                }
            }
        }
        while self.held_bytes > self.max_held_bytes
            && let Some(oldest) = self.held.pop_front()
        {
            self.release_held(oldest);
        }
    }

    fn session(&mut self, ends: Ends, random: Random) {
        let Some(flow) = self.flows.get_mut(&ends) else {
            // Its frames had no room.
            return;
        };
        flow.random = Some(random);
        let is_ready = match &self.secrets {
            None => true,
            Some(log) => {
                self.sessions.insert(random, ends);
                log.get(&random).is_some_and(|secrets| secrets.is_complete())
            }
        };
        if let Phase::Ignored = flow.phase {
            // Found late: what came before is not there any more.
            count(&self.counters.sessions, 1);
            flow.phase = Phase::Written { has_secrets: false };
        } else if is_ready {
            self.release(&ends);
        }
    }

    fn lines(&mut self, lines: &[u8]) {
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
                self.release(&ends);
            }
        }
    }

    /// Writes what is held back of a connection, with its secrets before it as far as they are known; forgets it where no
    /// session is known.
    fn release(&mut self, ends: &Ends) {
        let Some(flow) = self.flows.get_mut(ends) else {
            return;
        };
        let Phase::Held { frames, bytes, .. } = &mut flow.phase else {
            return;
        };
        let frames = std::mem::take(frames);
        self.held_bytes -= *bytes;
        let Some(random) = flow.random else {
            flow.phase = Phase::Ignored;
            return;
        };
        flow.phase = Phase::Written { has_secrets: false };
        count(&self.counters.sessions, 1);
        if let Some(log) = &self.secrets {
            let has_secrets = log.get(&random).is_some_and(|secrets| secrets.is_complete());
            if let Some(Flow { phase, .. }) = self.flows.get_mut(ends) {
                *phase = Phase::Written { has_secrets };
            }
            if !has_secrets {
                count(&self.counters.without_secrets, 1);
            }
            // Those of the handshake alone open something, too.
            self.write_secrets(&random);
        }
        for (now_ns, bytes) in frames {
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
        if let Some(Flow { random: Some(random), .. }) = self.flows.remove(ends) {
            self.sessions.remove(&random);
        }
    }

    /// Writes what has waited long enough.
    fn expire(&mut self) {
        while let Some(&(since, ends)) = self.held.front()
            && since.elapsed() >= self.wait
        {
            self.held.pop_front();
            self.release_held((since, ends));
        }
        if self.looked.elapsed() >= LOOK {
            self.tidy();
        }
    }

    /// Forgets connections of which nothing has come for long, and those without TLS: should they go on, they are looked at
    /// anew.
    fn tidy(&mut self) {
        self.looked = Instant::now();
        let Self { flows, sessions, .. } = self;
        flows.retain(|_, flow| {
            let is_ignored = matches!(flow.phase, Phase::Ignored);
            let stays = flow.latest.elapsed() < if is_ignored { LOOK } else { FORGET };
            if let (false, Some(random)) = (stays, flow.random) {
                sessions.remove(&random);
            }
            stays
        });
    }

    /// As [`Self::release`], unless another connection is between the same ends by now.
    fn release_held(&mut self, (since, ends): (Instant, Ends)) {
        let is_same =
            |flow: &Flow| matches!(flow.phase, Phase::Held { since: it, .. } if it == since);
        if self.flows.get(&ends).is_some_and(is_same) {
            self.release(&ends);
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
            Item::Session { .. } | Item::Release => 0,
        }
    }

    fn handle(&mut self, item: Item) {
        match item {
            Item::Frame { ends, now_ns, opens, bytes } => self.frame(ends, now_ns, opens, bytes),
            Item::Session { ends, random } => self.session(ends, random),
            Item::Lines(lines) => self.lines(&lines),
            Item::Release => {
                while let Some(held) = self.held.pop_front() {
                    self.release_held(held);
                }
            }
        }
    }

    fn flush(&mut self) {
        self.expire();
        self.commit();
    }

    fn take_error(&mut self) -> Option<CaptureError> {
        self.error.take()
    }
}
