//! Streams that a side gives up (RFC 9113, section 5.4.2).
//!
//! What the server has sent before it learns that its client has reset a stream still arrives, and a client may read it.
//! So such a stream is followed until the server ends it, or answers what the client has asked behind the reset: by
//! then it knows, and an honest one sends nothing more of it. Refuses to follow these where they leave no room for others.

use std::collections::BTreeSet;

use super::{FEW_RESETS, Http2, MAX_STREAMS};
use crate::event::{Anomaly, Event, Side};
use crate::transaction::MAX_STREAM_TEXT;

/// Streams that the client has reset and the server has not ended.
#[derive(Default)]
pub(super) struct Resets {
    /// Each behind the highest stream that the client had opened by then, so that the longest ago come first.
    pending: BTreeSet<(u32, u32)>,
    /// Some were given up for want of room.
    forgotten: bool,
    /// Requests that their client has reset before a response.
    unanswered: u64,
}

impl Http2 {
    /// A side gives a stream up. A response that is complete may be followed by this.
    pub(super) fn reset(&mut self, side: Side, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        let Some(it) = self.streams.get_mut(&stream) else {
            return;
        };
        if side == Side::Server || it.response_over {
            return self.remove(stream, sink);
        }
        if it.reset_behind.is_some() {
            return;
        }
        // The stream of an upgrade was not opened.
        let latest = self.opened[1].max(stream);
        it.reset_behind = Some(latest);
        self.resets.pending.insert((latest, stream));
        if it.transaction.response.is_none() {
            self.resets.unanswered += 1;
            let unanswered = self.resets.unanswered;
            if unanswered > FEW_RESETS && unanswered > self.requests / 2 {
                self.report(side, Anomaly::Http2RapidReset, sink);
            }
        }
    }

    /// The server answers a stream: it knows of all resets before that was opened.
    pub(super) fn answered(&mut self, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        if stream.is_multiple_of(2) || !self.streams.contains_key(&stream) {
            return;
        }
        while let Some(&(behind, reset)) = self.resets.pending.first()
            && behind < stream
        {
            self.remove(reset, sink);
        }
    }

    /// Whether a side has reset a stream that is still followed.
    pub(super) fn is_reset(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(|it| it.reset_behind.is_some())
    }

    /// Gives up streams that were reset, the longest ago first, until another one with so much text has room.
    pub(super) fn make_room(&mut self, text_bytes: usize, sink: &mut impl FnMut(Event<'_>)) {
        while self.streams.len() >= MAX_STREAMS || self.text_bytes + text_bytes > MAX_STREAM_TEXT {
            let Some(&(_, reset)) = self.resets.pending.first() else {
                return;
            };
            self.resets.forgotten = true;
            self.remove(reset, sink);
        }
    }

    /// The server sends something of a stream that is not followed. It may be one that was given up.
    pub(super) fn unfollowed(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        if self.resets.forgotten {
            self.report(Side::Server, Anomaly::Http2TooManyStreams, sink);
        }
    }

    /// Nothing more of a stream is followed.
    pub(super) fn remove(&mut self, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(it) = self.streams.remove(&stream) {
            if let Some(behind) = it.reset_behind {
                self.resets.pending.remove(&(behind, stream));
            }
            self.text_bytes -= it.transaction.text_bytes();
            sink(Event::Complete(&it.transaction));
        }
    }
}
