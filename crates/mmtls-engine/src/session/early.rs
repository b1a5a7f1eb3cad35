//! Early data (0-RTT, RFC 8446, sections 2.3 and 4.2.10): what the client sends under keys of an
//! earlier session, before it has heard from the server.
//!
//! A protected record of the client is early data when the early keys open it, until
//! EndOfEarlyData or a record that they do not open. Refuses to let early data pass unjudged
//! while their keys may still come: an endpoint shares them before its application keys, or not
//! at all.
//!
//! What the server does with early data is reported once. Accepted: EndOfEarlyData was opened, or EncryptedExtensions say
//! so. Rejected: HelloRetryRequest, a ServerHello without the first pre-shared key, EncryptedExtensions, or later keys that
//! open a record with no EndOfEarlyData before it. A record that nothing opens proves nothing. Rejected early data reach
//! nobody: what was shown is void, what still comes passes unshown. So early keys are tried up to the first record
//! that they do not open.
//!
//! Without early keys the records wait until the stall limit or until the client's application keys have come; then
//! policy `missing_keys` decides. Behind the ServerHello up to 64 KB can pass that way, since they cannot be told from the
//! client's last flight. The suite is that of the pre-shared key and may differ from the negotiated one when early data are
//! rejected; nothing on the wire tells it, so from key logs every suite whose hash fits the secret is tried.

use super::state::{Context, Early, Step, TlsSession};
use super::stream::Read;
use super::{EarlyData, Handler, Record, Session, SessionError};
use crate::tls::{ContentType, Direction, HandshakeType, OpenRecord, Opened, RecordHeader};

/// Lengths of Finished with its header: SHA-256 and SHA-384 (RFC 8446, section 4.4.4).
const FINISHED_LEN: [usize; 2] = [4 + 32, 4 + 48];

impl<S: Default> TlsSession<S> {
    /// Early data were announced: they follow the ClientHello.
    pub(super) fn begin_early_data(&mut self) {
        self.early.open = true;
        self.info.early_data = EarlyData::Offered;
    }

    /// Whether a record of the client may be early data.
    pub(super) fn early_data_open(&self) -> bool {
        self.early.open
    }

    /// Whether a record of the client may be early data that nobody can open. Keys count when they
    /// have opened one: before that they may be anything.
    pub(super) fn early_keys_missing(&self) -> bool {
        self.early.open && !self.early.keys.is_confirmed()
    }

    /// The client sent something else: its early data are over.
    pub(super) fn close_early_data(&mut self) {
        self.early.open = false;
    }

    /// No early data can come any more.
    pub(super) fn end_early_data(&mut self) {
        self.early = Early::default();
    }

    /// Adds keys; false when they are not needed.
    pub(super) fn add_early_keys(&mut self, source: u64, opener: Box<dyn OpenRecord>) -> bool {
        let early = &mut self.early;
        early.open && !early.waived && !early.keys_over && early.keys.add(source, opener)
    }

    /// What the server does with the early data has become known.
    pub(super) fn settle_early_data<H: Handler<State = S>>(
        &mut self,
        accepted: bool,
        ctx: &mut Context<'_, H>,
    ) {
        if self.info.early_data == EarlyData::Offered {
            self.info.early_data = if accepted { EarlyData::Accepted } else { EarlyData::Rejected };
            self.event(ctx, |handler, session, state| handler.early_data(session, state, accepted));
        }
    }

    /// Later keys opened a record of the client: a server that takes early data would have been
    /// told where they end.
    pub(super) fn early_data_was_not_ended<H: Handler<State = S>>(
        &mut self,
        ctx: &mut Context<'_, H>,
    ) {
        if self.early.keys.is_confirmed() {
            self.settle_early_data(false, ctx);
        }
        self.end_early_data();
    }

    /// A protected record of the client before the ServerHello: nothing but early data.
    pub(super) fn handle_first_flight_record<H: Handler<State = S>>(
        &mut self,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> Step {
        if !self.early.open {
            self.fail(Direction::ClientToServer, SessionError::MalformedRecord, ctx);
            return self.step();
        }
        // A server that refused them drops them (section 4.2.10), and so nobody reads them.
        if self.early.waived || self.info.early_data == EarlyData::Rejected {
            ctx.counters.early_records_passed += 1;
            return Step::Done;
        }
        if self.try_early(header, fragment, ctx) {
            return self.step();
        }
        if self.early.keys.is_confirmed() {
            self.fail(Direction::ClientToServer, SessionError::Integrity, ctx);
            return self.step();
        }
        let late = self.early.keys.is_empty()
            && self.streams[Direction::ClientToServer.index()].has_future_keys(0);
        if !late {
            return Step::NeedKeys;
        }
        self.waive_early_data(ctx);
        ctx.counters.early_records_passed += u64::from(self.following());
        self.step()
    }

    /// Behind the ServerHello, when nothing else opened a record of the client that may be early
    /// data whose keys are not there.
    ///
    /// A client may announce early data, send none, and be refused: its next record is Finished.
    /// One record of just that length may pass. Were it early data, the next one were
    /// EndOfEarlyData, which no application key opens either.
    pub(super) fn handle_unopened_early_record<H: Handler<State = S>>(
        &mut self,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> Step {
        let early = &self.early;
        let known = !early.open || early.waived || self.info.early_data == EarlyData::Rejected;
        if known || early.keys.is_confirmed() {
            return Step::Done;
        }
        let Read::Searching(search) = &self.streams[Direction::ClientToServer.index()].read else {
            return Step::NeedKeys;
        };
        let Some(keys) = search.candidates.get(0) else {
            return Step::NeedKeys;
        };
        if search.records == 0 && FINISHED_LEN.contains(&keys.content_len(fragment.len())) {
            return Step::Done;
        }
        self.waive_early_data(ctx);
        self.step()
    }

    /// The keys have not come and will not: policy decides.
    fn waive_early_data<H: Handler<State = S>>(&mut self, ctx: &mut Context<'_, H>) {
        self.early.waived = true;
        self.fail(Direction::ClientToServer, SessionError::EarlyDataNotInspected, ctx);
    }

    /// A stall limit was reached; true when it was early data that waited for their keys, before
    /// there was anything else to wait for.
    pub(super) fn handle_missing_early_keys<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) -> bool {
        let stream = &self.streams[direction.index()];
        let is_early = direction == Direction::ClientToServer
            && self.early.open
            && matches!(stream.read, Read::Plaintext);
        if is_early && self.early.keys.is_empty() {
            self.waive_early_data(ctx);
        } else if is_early {
            self.fail(direction, SessionError::KeysDoNotFit, ctx);
        }
        is_early
    }

    /// Tries a record of the client as the next one of early data; true when it was.
    pub(super) fn try_early<H: Handler<State = S>>(
        &mut self,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> bool {
        if !self.early.open {
            return false;
        }
        let sequence = self.early.keys.sequence;
        let Some(opened) = self.early.keys.open(0, header, fragment, ctx.plaintext, ctx.counters)
        else {
            return false;
        };
        match opened.content_type {
            ContentType::HANDSHAKE => {
                ctx.counters.handshake_records_opened += 1;
                // EndOfEarlyData, an empty message (section 4.5), and nothing else.
                if ctx.plaintext[..opened.len] == [HandshakeType::END_OF_EARLY_DATA.0, 0, 0, 0] {
                    self.settle_early_data(true, ctx);
                    self.end_early_data();
                } else {
                    let direction = Direction::ClientToServer;
                    self.fail(direction, SessionError::MalformedHandshake, ctx);
                }
            }
            _ if self.info.early_data == EarlyData::Rejected => {
                ctx.counters.early_records_passed += 1;
            }
            _ => self.judge_early(sequence, header, fragment, opened, ctx),
        }
        true
    }

    /// Raises NEW_RECORD for early data, unless it is paused.
    fn judge_early<H: Handler<State = S>>(
        &mut self,
        sequence: u64,
        header: RecordHeader,
        fragment: &[u8],
        opened: Opened,
        ctx: &mut Context<'_, H>,
    ) {
        let direction = Direction::ClientToServer;
        let Some(opener) = self.early.keys.opener() else {
            return;
        };
        let stream = &mut self.streams[direction.index()];
        let mut record = Record {
            direction,
            early: true,
            sequence,
            skipped: stream.skipped,
            header: header.bytes,
            fragment,
            opener,
            plaintext: ctx.plaintext,
            outcome: Some(Ok(opened)),
        };
        ctx.counters.records_seen += 1;
        ctx.counters.records_opened += 1;
        let content = opened.len as u64;
        let left = &mut self.control.paused[direction.index()];
        if *left > 0 && content <= *left {
            if *left != u64::MAX {
                *left -= content;
            }
            stream.skipped = stream.skipped.saturating_add(content);
            ctx.counters.records_paused += 1;
        } else {
            *left = 0;
            stream.skipped = 0;
            let mut session =
                Session { info: &self.info, control: &mut self.control, now_ns: ctx.now_ns };
            ctx.handler.new_record(&mut session, &mut self.state, &mut record);
        }
        record.count(&mut self.info);
        self.apply_control();
    }
}
