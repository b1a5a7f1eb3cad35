//! What a client and its links to middleboxes share: why a message is not queued, what is counted,
//! and who answers a middlebox. Refuses nothing by itself.

use std::fmt;
use std::sync::Arc;

use crate::message::{EncodeError, Message};
use crate::sealed::Secret;

/// Why a message was not simply queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The message was queued, and older ones gave way to it in at least one full queue.
    QueueFull,
    /// The message breaks the specification; nothing was queued.
    Message(EncodeError),
    /// The client is shutting down, or of the process that this one was forked from; nothing was queued.
    Closed,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull => f.write_str("key queue full, the oldest message was dropped"),
            Self::Message(error) => error.fmt(f),
            Self::Closed => f.write_str("key-sharing client is shut down"),
        }
    }
}

impl std::error::Error for SendError {}

/// Sums over all middleboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// Messages written to a connection in full.
    pub sent: u64,
    /// Messages that gave way in a full queue, or were left at shutdown.
    pub dropped: u64,
    /// Messages waiting now.
    pub queued: u64,
    /// Connections that reached a welcome.
    pub connects: u64,
    /// Attempts that failed, and connections that broke.
    pub failures: u64,
    /// Key requests received.
    pub requests: u64,
    /// Refusals received.
    pub refusals: u64,
    /// Middleboxes connected now.
    pub connected: u64,
}

/// Answers messages of a middlebox: requests and refusals. Called from the background thread
/// of that middlebox; what it returns goes to that middlebox only. It must not block.
pub type RequestHandler = Box<dyn Fn(Message) -> Vec<Message> + Send + Sync>;

/// A key server's: called with what datagrams to this middlebox are sealed with, each time it is welcomed, and with `None`
/// when that connection is over. What it returns goes ahead of all that waits. Called from the background thread; it must
/// not block.
pub type WelcomeHandler = Arc<dyn Fn(Option<Secret>) -> Vec<Message> + Send + Sync>;
