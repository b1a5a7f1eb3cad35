//! Early data (0-RTT, RFC 8446, sections 2.3 and 4.2.10): what the client sends under keys of an
//! earlier session, before it has heard from the server. So they are here before TLS 1.3 is agreed on.
//!
//! A protected record of the client is early data when the early keys open it, until
//! EndOfEarlyData or a record that they do not open. Refuses to let early data pass uninspected
//! while their keys may still come: an endpoint shares them before its application keys, or not
//! at all.
//!
//! What the server does with early data is reported once. Accepted: EndOfEarlyData was opened, or EncryptedExtensions say
//! so. Rejected: HelloRetryRequest, a ServerHello without the first pre-shared key, EncryptedExtensions, or later keys that
//! open a record with no EndOfEarlyData before it. A record that nothing opens proves nothing. Rejected early data reach
//! no application: what was shown is void, what still comes passes unshown. So early keys are tried up to the first record
//! that they do not open.
//!
//! Without early keys the records wait until the stall limit or until the client's application keys have come; then
//! policy `missing_keys` decides. Behind the ServerHello up to 64 KB can pass that way, since they cannot be told from the
//! client's last flight. The suite is that of the pre-shared key and may differ from the negotiated one when early data are
//! rejected; nothing on the wire tells it, so from key logs every suite whose hash fits the secret is tried.

use std::sync::Arc;

use super::search::FINISHED_LEN;
use crate::follow::context::{Context, RawRecord, Step};
use crate::follow::key_candidates::{KeyCandidates, Trial};
use crate::follow::reporter::Reporter;
use crate::keys::KeySource;
use crate::session::{EarlyData, Record, SessionError};
use crate::tls::{ContentType, Direction, HandshakeType, OpenRecord, Opened};

/// The client's early data.
#[derive(Default)]
pub(in crate::follow) struct Early {
    keys: KeyCandidates,
    /// Records of the client may be early data.
    open: bool,
    /// The keys will not come, and policy lets the records pass.
    waived: bool,
    /// No keys are tried any more.
    keys_over: bool,
}

impl Early {
    /// Early data were announced: they follow the ClientHello.
    pub(in crate::follow) fn begin(
        &mut self,
        ech_hello: Option<&Arc<[u8]>>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        self.open = true;
        reporter.info.early_data = EarlyData::Offered;
        reporter.want_early(ech_hello, ctx);
    }

    /// Whether a record of the client may be early data.
    pub(in crate::follow) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether no early data can come any more, and nothing is known of any.
    pub(super) fn is_over(&self) -> bool {
        !self.open && self.keys.is_unused()
    }

    /// Whether a record of the client may be early data that nothing can open. Keys count when they
    /// have opened one: before that they may be anything.
    pub(super) fn misses_keys(&self) -> bool {
        self.open && !self.keys.is_confirmed()
    }

    /// The client sent something else: its early data are over.
    pub(super) fn close(&mut self) {
        self.open = false;
    }

    /// No early data can come any more.
    pub(in crate::follow) fn end(&mut self) {
        *self = Self::default();
    }

    /// A record of the client behind the ServerHello has passed unopened. Early data come first and in order: keys that
    /// have not opened this record open no later one, unless they are an application epoch's, whose content would pass
    /// for refused early data.
    pub(super) fn end_keys(&mut self) {
        if !self.keys.is_confirmed() {
            self.keys = KeyCandidates::default();
            self.keys_over = true;
        }
    }

    /// Adds keys; false when they are not needed.
    pub(in crate::follow) fn add_keys(
        &mut self,
        direction: Direction,
        source: KeySource,
        opener: Box<dyn OpenRecord>,
    ) -> bool {
        direction == Direction::ClientToServer
            && self.open
            && !self.waived
            && !self.keys_over
            && self.keys.add(source, opener)
    }

    /// Later keys opened a record of the client: a server that takes early data would have been
    /// told where they end.
    pub(super) fn end_unmarked(&mut self, reporter: &mut Reporter, ctx: &mut Context<'_>) {
        if self.keys.is_confirmed() {
            reporter.answer_early_data(false, ctx);
        }
        self.end();
    }

    /// A protected record of the client before the ServerHello: nothing but early data. `late`: keys of the
    /// application epoch are there.
    pub(in crate::follow) fn handle_record(
        &mut self,
        record: RawRecord<'_>,
        late: bool,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Step {
        if !self.open {
            reporter.fail(record.direction, SessionError::MalformedRecord, ctx);
            return reporter.step();
        }
        // A server that refused them drops them (section 4.2.10): they reach no application.
        if self.waived || reporter.early_data_is_void() {
            ctx.counters.early_records_passed += 1;
            return Step::Done;
        }
        if self.try_record(record, reporter, ctx) {
            return reporter.step();
        }
        if self.keys.is_confirmed() {
            reporter.fail(record.direction, SessionError::Integrity, ctx);
            return reporter.step();
        }
        if !late || !self.keys.is_empty() {
            return Step::NeedKeys;
        }
        self.waive(reporter, ctx);
        ctx.counters.early_records_passed += u64::from(reporter.following());
        reporter.step()
    }

    /// Behind the ServerHello, when nothing else opened a record of the client that may be early
    /// data whose keys are not there. `keys` are of the application epoch, if they are there; `is_first`: no
    /// other record has passed unopened.
    ///
    /// A client may announce early data, send none, and be refused: its next record is Finished.
    /// One record of just that length may pass. Were it early data, the next one were
    /// EndOfEarlyData, which no application key opens either.
    pub(super) fn handle_unopened(
        &mut self,
        fragment: &[u8],
        keys: Option<&dyn OpenRecord>,
        is_first: bool,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> Step {
        let known = !self.open || self.waived || reporter.early_data_is_void();
        if known || self.keys.is_confirmed() {
            return Step::Done;
        }
        let Some(keys) = keys else {
            return Step::NeedKeys;
        };
        if is_first && FINISHED_LEN.contains(&keys.content_len(fragment.len())) {
            return Step::Done;
        }
        self.waive(reporter, ctx);
        reporter.step()
    }

    /// The keys have not come and will not: policy decides.
    fn waive(&mut self, reporter: &mut Reporter, ctx: &mut Context<'_>) {
        self.waived = true;
        reporter.fail(Direction::ClientToServer, SessionError::EarlyDataNotInspected, ctx);
    }

    /// A stall limit was reached before the ServerHello; true when it was early data that waited for their keys.
    pub(in crate::follow) fn handle_missing_keys(
        &mut self,
        direction: Direction,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> bool {
        let is_early = direction == Direction::ClientToServer && self.open;
        if is_early && self.keys.is_empty() {
            self.waive(reporter, ctx);
        } else if is_early {
            reporter.fail(direction, SessionError::KeysDoNotFit, ctx);
        }
        is_early
    }

    /// Tries a record of the client as the next one of early data; true when it was.
    pub(super) fn try_record(
        &mut self,
        record: RawRecord<'_>,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) -> bool {
        if !self.open {
            return false;
        }
        let sequence = self.keys.sequence();
        let opened = match self.keys.open(0, record, ctx.plaintext, ctx.counters) {
            Trial::Opened(opened) => opened,
            Trial::Failed => return false,
            Trial::Contradicted => {
                reporter.fail(record.direction, SessionError::Integrity, ctx);
                return true;
            }
        };
        match opened.content_type {
            ContentType::HANDSHAKE => {
                ctx.counters.handshake_records_opened += 1;
                // EndOfEarlyData, an empty message (section 4.5), and nothing else.
                if ctx.plaintext[..opened.len] == [HandshakeType::END_OF_EARLY_DATA.0, 0, 0, 0] {
                    reporter.answer_early_data(true, ctx);
                    self.end();
                } else {
                    reporter.fail(record.direction, SessionError::MalformedHandshake, ctx);
                }
            }
            _ if reporter.early_data_is_void() => ctx.counters.early_records_passed += 1,
            _ => self.deliver(sequence, record, opened, reporter, ctx),
        }
        true
    }

    /// Raises NEW_RECORD for early data, unless it is paused.
    fn deliver(
        &self,
        sequence: u64,
        RawRecord { direction, header, fragment }: RawRecord<'_>,
        opened: Opened,
        reporter: &mut Reporter,
        ctx: &mut Context<'_>,
    ) {
        let Some(opener) = self.keys.opener() else {
            return;
        };
        let content = opened.len as u64;
        let is_skipped = reporter.skips(direction, content, ctx);
        let mut record = Record {
            direction,
            early: true,
            sequence,
            skipped: if is_skipped { 0 } else { reporter.take_skipped(direction) },
            header: header.bytes,
            fragment,
            opener,
            plaintext: ctx.plaintext,
            outcome: Some(Ok(opened)),
        };
        ctx.counters.records_seen += 1;
        ctx.counters.records_opened += 1;
        if !is_skipped {
            ctx.sink.new_record(&mut reporter.session(ctx.now_ns), &mut record);
        }
        record.count(&mut reporter.info);
        reporter.apply_control();
    }
}
