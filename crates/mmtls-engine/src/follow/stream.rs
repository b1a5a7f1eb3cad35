//! The TLS state of one direction.
//!
//! Refuses to act: what happens is decided by the session.

use crate::buffer_pool::{BufferPool, WORTH_A_LARGE_BUFFER};
use crate::counters::Counters;
use crate::keys::Candidates;
use crate::tls::{
    Deframed, MessageBuffer, MessageWalker, OpenRecord, Opened, RecordHeader, deframe,
};

/// Longest fragment of TLS 1.3 in bytes: 2^14 + 256 (RFC 8446, section 5.2).
pub(super) const MAX_TLS13_FRAGMENT_LEN: usize = 16384 + 256;

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
    pub(super) candidates: Candidates<Box<dyn OpenRecord>>,
    /// Records that did not open, or came before keys, whole, in order. They were forwarded.
    pub(super) backlog: Vec<u8>,
    /// How many they are.
    pub(super) records: u32,
    /// Finished was opened: the next record is number 0 of the application epoch.
    pub(super) finished: bool,
}

/// Keys of an epoch that only trial opening can find: several, until one of them has opened a
/// record.
#[derive(Default)]
pub(super) struct KeyCandidates {
    openers: Candidates<Box<dyn OpenRecord>>,
    /// Number of the next record.
    pub(super) sequence: u64,
}

impl KeyCandidates {
    /// The keys that opened the latest record.
    pub(super) fn opener(&self) -> Option<&dyn OpenRecord> {
        self.openers.get(0).map(|opener| &**opener)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.openers.is_empty()
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.openers.len()
    }

    /// Whether a record has been opened.
    pub(super) fn is_confirmed(&self) -> bool {
        self.sequence > 0
    }

    /// Adds keys; false when the right ones are known, or when they are too many.
    pub(super) fn add(&mut self, source: u64, opener: Box<dyn OpenRecord>) -> bool {
        !self.is_confirmed() && self.openers.add(source, opener).is_ok()
    }

    /// Opens the next record into `plaintext`, with the keys from number `from` on.
    pub(super) fn open(
        &mut self,
        from: usize,
        header: RecordHeader,
        fragment: &[u8],
        plaintext: &mut [u8],
        counters: &mut Counters,
    ) -> Option<Opened> {
        // Once one has opened a record it is the only one.
        let from = if self.is_confirmed() { 0 } else { from };
        for at in from..self.openers.len() {
            let Some(opener) = self.openers.get_mut(at) else {
                break;
            };
            match opener.open(self.sequence, header.bytes, fragment, plaintext) {
                Ok(opened) => {
                    self.openers.keep_only(at);
                    self.sequence += 1;
                    return Some(opened);
                }
                Err(_) => counters.trials_failed += 1,
            }
        }
        None
    }
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
    /// Keys of the encrypted handshake (TLS 1.3), where an endpoint shares them.
    pub(super) handshake_keys: KeyCandidates,
    /// Keys that came ahead of their epoch.
    future: Candidates<(u32, Box<dyn OpenRecord>)>,
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
            handshake_keys: KeyCandidates::default(),
            future: Candidates::default(),
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
        if buffer.len() < buffer.capacity() / 8 {
            // What waited behind a stall has gone.
            buffer.shrink_to(buffer.len() * 2);
        }
        self.buffer = buffer;
    }

    /// Buffers bytes. A small beginning gets a small buffer, since capacity is what is charged.
    pub(super) fn keep(&mut self, bytes: &[u8], pool: &mut BufferPool) {
        let buffer = &mut self.buffer;
        if buffer.len() + bytes.len() >= WORTH_A_LARGE_BUFFER
            && buffer.capacity() < MAX_TLS13_FRAGMENT_LEN
            && let Some(mut large) = pool.take(MAX_TLS13_FRAGMENT_LEN)
        {
            large.extend_from_slice(buffer);
            *buffer = large;
        }
        buffer.extend_from_slice(bytes);
    }

    /// Buffers bytes, if they continue an incomplete record and do not complete it. Returns whether
    /// other memory is taken now; `None`, and nothing done, if they do more than that.
    pub(super) fn keep_partial(&mut self, bytes: &[u8], pool: &mut BufferPool) -> Option<bool> {
        let only_kept = self.stalled_since_ns.is_none()
            && !self.buffer.is_empty()
            && matches!(deframe(self.pending()), Deframed::NeedMore(it) if it > bytes.len());
        only_kept.then(|| {
            let before = self.buffer.capacity();
            self.keep(bytes, pool);
            self.buffer.capacity() != before
        })
    }

    /// Memory that is taken, in bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        let searched = match &self.read {
            Read::Searching(search) => search.backlog.capacity(),
            _ => 0,
        };
        self.buffer.capacity() + self.messages.capacity() + searched
    }

    /// The handshake is over, or its keys are of no use.
    pub(super) fn drop_handshake_keys(&mut self) {
        self.handshake_keys = KeyCandidates::default();
    }

    /// Keeps keys for an epoch that has not begun; false when there are too many already.
    pub(super) fn add_future_keys(
        &mut self,
        epoch: u32,
        source: u64,
        opener: Box<dyn OpenRecord>,
    ) -> bool {
        self.future.add(source, (epoch, opener)).is_ok()
    }

    /// Whether keys of this epoch came ahead of it.
    pub(super) fn has_future_keys(&self, epoch: u32) -> bool {
        self.future.iter().any(|(of, _)| *of == epoch)
    }

    /// Takes the keys of an epoch that came ahead of it; those of earlier ones are forgotten.
    pub(super) fn future_keys(&mut self, epoch: u32) -> Candidates<Box<dyn OpenRecord>> {
        let mut now = Candidates::default();
        for (source, (of, opener)) in core::mem::take(&mut self.future).into_items() {
            // As many as there were: each of them finds a place.
            if of == epoch {
                let _ = now.add(source, opener);
            } else if of > epoch {
                let _ = self.future.add(source, (of, opener));
            }
        }
        now
    }
}
