//! Streams that their client gives up (RFC 9113, section 5.4.2).
//!
//! What the server has sent before it learns that its client has reset a stream still arrives, and a client may read it.
//! So the transaction is over for reports, but its response is followed until the server ends it. Most servers end none:
//! they just stop. Refuses to follow more than [`MAX_RESETS`]: those that were reset longest ago are given up.

use std::collections::VecDeque;

use crate::event::Event;
use crate::transaction::Transaction;

/// Most responses that are followed behind a reset; each may have a decoder, which can be megabytes.
pub(super) const MAX_RESETS: usize = 16;
/// Most bytes of text in their requests.
pub(super) const MAX_RESET_TEXT: usize = 64 << 10;

/// Streams that the client has reset and the server has not ended.
#[derive(Default)]
pub(super) struct Resets {
    /// The latest one comes last.
    streams: VecDeque<(u32, Transaction)>,
    /// Requests that their client has reset before a response.
    pub(super) unanswered: u64,
}

impl Resets {
    pub(super) fn get(&self, stream: u32) -> Option<&Transaction> {
        self.streams.iter().find(|(number, _)| *number == stream).map(|(_, it)| it)
    }

    pub(super) fn get_mut(&mut self, stream: u32) -> Option<&mut Transaction> {
        self.streams.iter_mut().find(|(number, _)| *number == stream).map(|(_, it)| it)
    }

    /// The server has ended a stream in order.
    pub(super) fn end(&mut self, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        let Some(it) = self.get_mut(stream) else {
            return;
        };
        if let Some(response) = &mut it.response {
            response.complete = true;
        }
        sink(Event::ResponseEnd(Some(it)));
        self.forget(stream, sink);
    }

    /// Nothing more is followed of a stream.
    pub(super) fn forget(&mut self, stream: u32, sink: &mut impl FnMut(Event<'_>)) {
        if let Some(at) = self.streams.iter().position(|(number, _)| *number == stream)
            && let Some((_, it)) = self.streams.remove(at)
        {
            sink(Event::ResetOver(&it));
        }
    }

    /// Nor of any.
    pub(super) fn clear(&mut self, sink: &mut impl FnMut(Event<'_>)) {
        for (_, it) in core::mem::take(&mut self.streams) {
            sink(Event::ResetOver(&it));
        }
    }

    /// Follows the response of a stream that its client has just reset.
    pub(super) fn follow(
        &mut self,
        stream: u32,
        it: Transaction,
        sink: &mut impl FnMut(Event<'_>),
    ) {
        self.streams.push_back((stream, it));
        while self.streams.len() > MAX_RESETS || self.text_bytes() > MAX_RESET_TEXT {
            let Some((_, oldest)) = self.streams.pop_front() else {
                return;
            };
            sink(Event::ResetOver(&oldest));
        }
    }

    pub(super) fn text_bytes(&self) -> usize {
        self.streams.iter().map(|(_, it)| it.text_bytes()).sum()
    }
}
