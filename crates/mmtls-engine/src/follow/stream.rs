//! One direction of a session before its records are read: bytes of a partial record, or behind a stall.
//!
//! Refuses to act: what happens is decided by the session.

use super::search::Unlocated;
use crate::buffer_pool::{BufferPool, WORTH_A_LARGE_BUFFER};
use crate::tls::{Deframed, deframe};

/// What a buffer for one record is made for: the longest fragment of TLS 1.3 (RFC 8446, section 5.2).
const RECORD_BUFFER_LEN: usize = 16384 + 256;

pub(super) struct Stream {
    /// Bytes that are not processed yet, from `start` on: a partial record, or everything since a
    /// stall began.
    pub(super) buffer: Vec<u8>,
    start: u32,
    /// Stream offset of the first byte that is not processed.
    pub(super) position: u64,
    /// Set while a complete record at the front waits for keys, or a server's bytes wait for its client's.
    pub(super) stalled_since_ns: Option<u64>,
    /// The application knows of the stall.
    pub(super) stall_told: bool,
    pub(super) early_fin_raised: bool,
    /// Bytes of a record still to come whose content a pause skips.
    pub(super) passing: u16,
    /// Where its records begin is not known yet.
    pub(super) unlocated: Option<Box<Unlocated>>,
}

impl Stream {
    pub(super) fn new(position: u64) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            position,
            stalled_since_ns: None,
            stall_told: false,
            early_fin_raised: false,
            passing: 0,
            unlocated: None,
        }
    }

    /// The bytes that are not processed yet.
    pub(super) fn pending(&self) -> &[u8] {
        &self.buffer[self.start as usize..]
    }

    /// The session is idle: a buffer with nothing in it is given back.
    pub(super) fn rest(&mut self) {
        if self.pending().is_empty() {
            (self.buffer, self.start) = (Vec::new(), 0);
        }
    }

    /// Whether nothing is kept, waits or has been told: it can be made again.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_told = self.stall_told || self.early_fin_raised;
        self.pending().is_empty()
            && self.stalled_since_ns.is_none()
            && !is_told
            && self.unlocated.is_none()
    }

    /// Takes the buffer out for processing, and where its bytes begin.
    pub(super) fn take_buffer(&mut self) -> (Vec<u8>, usize) {
        (core::mem::take(&mut self.buffer), core::mem::take(&mut self.start) as usize)
    }

    /// Puts the buffer back with its front processed. Bytes are moved only when that frees half
    /// of it, so that many small steps through a long buffer stay cheap.
    pub(super) fn put_buffer(&mut self, mut buffer: Vec<u8>, start: usize) {
        self.start = match u32::try_from(start) {
            Ok(few) if start <= buffer.len() / 2 => few,
            _ => {
                buffer.drain(..start);
                0
            }
        };
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
            && buffer.capacity() < RECORD_BUFFER_LEN
            && let Some(mut large) = pool.take(RECORD_BUFFER_LEN)
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
        self.buffer.capacity() + self.unlocated.as_ref().map_or(0, |it| it.search.kept_bytes())
    }
}
