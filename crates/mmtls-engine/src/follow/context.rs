//! What goes into handling one record, and what comes out of it.

use std::collections::VecDeque;

use super::sink::SessionSink;
use crate::buffer_pool::BufferPool;
use crate::config::Config;
use crate::counters::Counters;
use crate::keys::Refusals;
use crate::output::Output;
use crate::tls::{ContentType, Direction, RecordHeader};

/// What the engine lends to a session while it handles one input.
pub(crate) struct Context<'a> {
    pub(crate) sink: &'a mut dyn SessionSink,
    pub(crate) counters: &'a mut Counters,
    pub(crate) config: &'a Config,
    pub(crate) plaintext: &'a mut [u8],
    pub(crate) outputs: &'a mut VecDeque<Output>,
    pub(crate) refusals: &'a mut Refusals,
    pub(crate) pool: &'a mut BufferPool,
    pub(crate) now_ns: u64,
}

/// A complete record as it stands in its stream.
#[derive(Clone, Copy)]
pub(super) struct RawRecord<'a> {
    pub(super) direction: Direction,
    pub(super) header: RecordHeader,
    pub(super) fragment: &'a [u8],
}

impl RawRecord<'_> {
    /// Whether it is protected in TLS 1.3, where the header says nothing else.
    pub(super) fn is_application_data(&self) -> bool {
        self.header.content_type == ContentType::APPLICATION_DATA
    }
}

/// What one record has led to.
#[derive(PartialEq, Eq)]
pub(super) enum Step {
    Done,
    /// It was not handled: it waits for keys.
    NeedKeys,
    /// The session is no longer followed.
    Stop,
    /// A HelloRetryRequest was read: what waits of the client's early data waits for nothing now, and is handled before
    /// the session goes on.
    Retry,
}
