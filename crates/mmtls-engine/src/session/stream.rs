//! The TLS state of one direction.
//!
//! Refuses to act: what happens is decided by the session.

use crate::tls::{MessageBuffer, MessageWalker, OpenRecord};

/// How one direction's records are read.
pub(super) enum Read {
    /// Nothing is encrypted yet.
    Plaintext,
    /// Protected, but the record that begins the application epoch has not been found.
    Searching {
        opener: Option<Box<dyn OpenRecord>>,
        /// Records that were forwarded before keys came, whole, in order.
        backlog: Vec<u8>,
        /// Bytes of records that did not open, or wait in the backlog.
        searched: usize,
        /// How many records that were.
        records: u32,
    },
    /// Application keys are in use; `None` until this epoch's keys come.
    Application { opener: Option<Box<dyn OpenRecord>>, epoch: u32, sequence: u64 },
}

/// One direction's bytes and keys.
pub(super) struct Stream {
    /// Bytes that are not processed yet: a partial record, or everything since a stall began.
    pub(super) buffer: Vec<u8>,
    /// Stream offset of the first byte that is not processed.
    pub(super) position: u64,
    pub(super) messages: MessageBuffer,
    pub(super) walker: MessageWalker,
    /// Content bytes skipped since the last delivered record.
    pub(super) skipped: u64,
    pub(super) read: Read,
    pub(super) future: Vec<(u32, Box<dyn OpenRecord>)>,
    /// Set while a complete record at the front of `buffer` waits for keys.
    pub(super) stalled_since_ns: Option<u64>,
}

impl Stream {
    pub(super) fn new(position: u64) -> Self {
        Self {
            buffer: Vec::new(),
            position,
            messages: MessageBuffer::default(),
            walker: MessageWalker::default(),
            skipped: 0,
            read: Read::Plaintext,
            future: Vec::new(),
            stalled_since_ns: None,
        }
    }

    /// Whether keys of this epoch came ahead of it.
    pub(super) fn has_future_keys(&self, epoch: u32) -> bool {
        self.future.iter().any(|(of, _)| *of == epoch)
    }

    /// Takes the keys of an epoch that came ahead of it.
    pub(super) fn future_keys(&mut self, epoch: u32) -> Option<Box<dyn OpenRecord>> {
        let at = self.future.iter().position(|(of, _)| *of == epoch)?;
        Some(self.future.swap_remove(at).1)
    }
}
