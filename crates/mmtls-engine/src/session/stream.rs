//! The TLS state of one direction.
//!
//! Refuses to act: what happens is decided by the session.

use crate::tls::{MessageBuffer, MessageWalker, OpenRecord};

/// Keys kept ahead of their epoch.
const MAX_FUTURE_KEYS: usize = 8;

/// How one direction's records are read.
pub(super) enum Read {
    /// Nothing is encrypted yet.
    Plaintext,
    /// Protected, but the record that begins the application epoch has not been found.
    Searching(Search),
    /// Application keys are in use; `None` until this epoch's keys come.
    Application { opener: Option<Box<dyn OpenRecord>>, epoch: u32, sequence: u64 },
}

/// The search for the first application record.
#[derive(Default)]
pub(super) struct Search {
    /// Keys that have not opened anything yet. Several, since junk may be delivered before the
    /// right ones.
    pub(super) candidates: Vec<Box<dyn OpenRecord>>,
    /// Records that did not open, or came before keys, whole, in order. They were forwarded.
    pub(super) backlog: Vec<u8>,
    /// How many they are.
    pub(super) records: u32,
}

/// One direction's bytes and keys.
pub(super) struct Stream {
    /// Bytes that are not processed yet, from `start` on: a partial record, or everything since a
    /// stall began.
    pub(super) buffer: Vec<u8>,
    start: usize,
    /// Stream offset of the first byte that is not processed.
    pub(super) position: u64,
    pub(super) messages: MessageBuffer,
    pub(super) walker: MessageWalker,
    /// Content bytes skipped since the last delivered record.
    pub(super) skipped: u64,
    pub(super) read: Read,
    future: Vec<(u32, Box<dyn OpenRecord>)>,
    /// Set while a complete record at the front waits for keys.
    pub(super) stalled_since_ns: Option<u64>,
    pub(super) early_fin_raised: bool,
}

impl Stream {
    pub(super) fn new(position: u64) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            position,
            messages: MessageBuffer::default(),
            walker: MessageWalker::default(),
            skipped: 0,
            read: Read::Plaintext,
            future: Vec::new(),
            stalled_since_ns: None,
            early_fin_raised: false,
        }
    }

    /// The bytes that are not processed yet.
    pub(super) fn pending(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Takes the buffer out for processing, and where its bytes begin.
    pub(super) fn take_buffer(&mut self) -> (Vec<u8>, usize) {
        (core::mem::take(&mut self.buffer), core::mem::take(&mut self.start))
    }

    /// Puts the buffer back with its front processed. Bytes are moved only when that frees half
    /// of it, so that many small steps through a long buffer stay cheap.
    pub(super) fn put_buffer(&mut self, mut buffer: Vec<u8>, start: usize) {
        self.start = start;
        if start > buffer.len() / 2 {
            buffer.drain(..start);
            self.start = 0;
        }
        self.buffer = buffer;
    }

    /// Bytes that are kept.
    pub(super) fn kept_bytes(&self) -> usize {
        let searched = match &self.read {
            Read::Searching(search) => search.backlog.len(),
            _ => 0,
        };
        self.buffer.len() + self.messages.len() + searched
    }

    /// Keeps keys for an epoch that has not begun; false when there are too many already.
    pub(super) fn add_future_keys(&mut self, epoch: u32, opener: Box<dyn OpenRecord>) -> bool {
        let room = self.future.len() < MAX_FUTURE_KEYS;
        if room {
            self.future.push((epoch, opener));
        }
        room
    }

    /// Whether keys of this epoch came ahead of it.
    pub(super) fn has_future_keys(&self, epoch: u32) -> bool {
        self.future.iter().any(|(of, _)| *of == epoch)
    }

    /// Takes the keys of an epoch that came ahead of it; those of earlier ones are forgotten.
    pub(super) fn future_keys(&mut self, epoch: u32) -> Vec<Box<dyn OpenRecord>> {
        let mut now = Vec::new();
        for (of, opener) in core::mem::take(&mut self.future) {
            if of == epoch {
                now.push(opener);
            } else if of > epoch {
                self.future.push((of, opener));
            }
        }
        now
    }
}
