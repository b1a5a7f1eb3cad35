//! Finding where application keys begin: by authentication, never by length.
//!
//! A client can share its keys only when it has the server's whole flight. So the server's encrypted records pass until
//! the client has sent its own protected record; they are kept, within limits, and searched when keys come. The client's
//! records wait for keys from the first one on, its Finished included: sharing does not depend on it.
//!
//! Before the switch a changed record 0 cannot be told from a handshake record. It passes, its receiver refuses it, and a
//! session in which nothing ever opened although keys were there ends with `nothing_opened`.
//!
//! Refuses to let more than a handshake's worth of records pass that nothing opens: the rest
//! waits for keys that do.

use core::mem;

use super::state::{Context, Step, TlsSession};
use super::stream::{KeyCandidates, Read, Search};
use super::{Handler, SessionError};
use crate::tls::{
    Deframed, Direction, KeyEpoch, OpenRecord, RECORD_HEADER_LEN, RecordHeader, deframe,
};

/// Protected records of a client's last flight: EndOfEarlyData, Certificate, CertificateVerify,
/// Finished, and some room for fragments (RFC 8446, section 2).
const MAX_CLIENT_RECORDS: u32 = 8;

/// Protected records of a server's first flight, however it is cut: each key that comes is tried on
/// all of them.
const MAX_SERVER_RECORDS: u32 = 1024;

impl<S: Default> TlsSession<S> {
    /// A protected record before the switch is known: it is a handshake record under keys that
    /// were not shared, or number 0 of the application epoch. Its tag tells.
    pub(super) fn handle_search_record<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> Step {
        let of_client = direction == Direction::ClientToServer;
        let settled = (of_client && self.try_early(header, fragment, ctx))
            || self.try_handshake(direction, 0, header, fragment, ctx);
        if settled {
            return self.step();
        }
        // Without their keys early data look the same; then only the switch itself marks the
        // client's flight.
        if of_client && !self.early_keys_missing() {
            self.close_early_data();
            self.client_flight_seen = true;
            self.end_handshake(ctx);
            if !self.following() {
                return Step::Stop;
            }
        }
        if self.try_switch(direction, 0, header, fragment, ctx) {
            return self.step();
        }
        if of_client {
            match self.handle_unopened_early_record(fragment, ctx) {
                Step::Done => {}
                waiting_or_over => return waiting_or_over,
            }
        }
        let early = of_client && self.early_data_open();
        let (max_records, max_client_bytes) = match early {
            // Early data that nobody opens may be among them.
            true => (u32::MAX, ctx.config.limits.max_search_bytes),
            false => (MAX_CLIENT_RECORDS, ctx.config.limits.max_search_bytes / 2),
        };
        let max_bytes = ctx.config.limits.max_search_bytes;
        let Read::Searching(search) = &mut self.streams[direction.index()].read else {
            return self.step();
        };
        let len = RECORD_HEADER_LEN + fragment.len();
        let may_pass = match direction {
            // The client's flight waits for keys; with them, what does not open is Finished.
            Direction::ClientToServer => {
                !search.candidates.is_empty()
                    && !search.finished
                    && search.records < max_records
                    && search.backlog.len() + len <= max_client_bytes
            }
            // The client shares keys when it has the server's whole flight, so that flight must
            // pass. It was complete when the client's came.
            Direction::ServerToClient => {
                let is_application = search.finished && !search.candidates.is_empty();
                !self.client_flight_seen
                    && !is_application
                    && search.records < MAX_SERVER_RECORDS
                    && search.backlog.len() + len <= max_bytes
            }
        };
        if !may_pass {
            return Step::NeedKeys;
        }
        if of_client {
            // Its keys are here, so the server's flight is complete, whatever this record is.
            self.client_flight_seen = true;
            // Early data come first and in order: keys that have not opened this record open no later one, unless
            // they are an application epoch's, whose content would pass for refused early data.
            if !self.early.keys.is_confirmed() {
                self.early.keys = KeyCandidates::default();
                self.early.keys_over = true;
            }
        }
        search.records += 1;
        search.backlog.extend_from_slice(&header.bytes);
        search.backlog.extend_from_slice(fragment);
        Step::Done
    }

    /// Tries a record as number 0 of the application epoch, with the candidates from number `from`
    /// on; true when it was.
    fn try_switch<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        from: usize,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> bool {
        let stream = &mut self.streams[direction.index()];
        let Read::Searching(Search { candidates, .. }) = &mut stream.read else {
            return false;
        };
        for at in from..candidates.len() {
            let Some(candidate) = candidates.get_mut(at) else {
                break;
            };
            let outcome = candidate.open(0, header.bytes, fragment, ctx.plaintext);
            if outcome.is_err() {
                ctx.counters.trials_failed += 1;
                continue;
            }
            let opener = candidates.take(at);
            stream.read = Read::Application { opener, epoch: 0, sequence: 0 };
            stream.drop_handshake_keys();
            if direction == Direction::ClientToServer {
                self.client_flight_seen = true;
                self.early_data_was_not_ended(ctx);
            }
            self.handle_application_record(direction, header, fragment, Some(outcome), ctx);
            return true;
        }
        false
    }

    /// Adds keys of the application epochs: the present one's, the next ones', or candidates for the
    /// first.
    pub(super) fn add_application_keys<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        number: u32,
        source: u64,
        mut opener: Box<dyn OpenRecord>,
        ctx: &mut Context<'_, H>,
    ) -> bool {
        // In TLS 1.2 each handshake has its own random, and one epoch.
        let number = match self.negotiation.number {
            0 => number,
            renegotiated => renegotiated,
        };
        let encrypt_then_mac = self.negotiation.encrypt_then_mac;
        let stream = &mut self.streams[direction.index()];
        match &mut stream.read {
            Read::Searching(_) if number == 0 => self.add_candidate(direction, source, opener, ctx),
            Read::Application { opener: slot @ None, epoch, .. } if number == *epoch => {
                if encrypt_then_mac {
                    opener.set_encrypt_then_mac();
                }
                *slot = Some(opener);
                true
            }
            Read::Application { epoch, .. } if number <= *epoch => false,
            _ => stream.add_future_keys(number, source, opener),
        }
    }

    /// Adds keys to a search, and searches what has passed already; false when they are too many.
    fn add_candidate<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        source: u64,
        opener: Box<dyn OpenRecord>,
        ctx: &mut Context<'_, H>,
    ) -> bool {
        let added = match &mut self.streams[direction.index()].read {
            Read::Searching(search) => search.candidates.add(source, opener).is_ok(),
            _ => false,
        };
        ctx.counters.keys_refused += u64::from(!added);
        added
    }

    /// Adds keys of the handshake; false when they are of no use (any more).
    pub(super) fn add_handshake_keys(
        &mut self,
        direction: Direction,
        source: u64,
        opener: Box<dyn OpenRecord>,
    ) -> bool {
        let stream = &mut self.streams[direction.index()];
        let awaited = match &stream.read {
            Read::Plaintext => !self.handshake_ended,
            Read::Searching(search) => !search.finished,
            Read::Application { .. } => false,
        };
        awaited && stream.handshake_keys.add(source, opener)
    }

    /// Searches the records that have passed, with the keys that have come last. All others were
    /// tried on them.
    pub(super) fn search_backlog<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        ctx: &mut Context<'_, H>,
    ) {
        let stream = &mut self.streams[direction.index()];
        let Read::Searching(search) = &mut stream.read else {
            return;
        };
        let (candidates, handshake_keys) = (search.candidates.len(), stream.handshake_keys.len());
        let (candidate, handshake_key) = match epoch {
            KeyEpoch::EarlyData => return,
            KeyEpoch::Handshake => (candidates, handshake_keys.saturating_sub(1)),
            KeyEpoch::Application(_) => (candidates.saturating_sub(1), handshake_keys),
        };
        let backlog = mem::take(&mut search.backlog);
        let mut unknown = Vec::new();
        let mut rest = &backlog[..];
        let mut records = 0;
        let before = self.content(direction);
        while let Deframed::Record { header, fragment } = deframe(rest) {
            let (whole, behind) = rest.split_at(RECORD_HEADER_LEN + fragment.len());
            rest = behind;
            let searching = matches!(self.streams[direction.index()].read, Read::Searching(_));
            let read = &self.streams[direction.index()].read;
            if matches!(read, Read::Application { opener: None, .. }) {
                // Behind a KeyUpdate: the rest has passed, and nothing will ever open it.
                return self.fail(direction, SessionError::LostSynchronisation, ctx);
            }
            if !searching {
                self.handle_application_record(direction, header, fragment, None, ctx);
            } else if self.try_handshake(direction, handshake_key, header, fragment, ctx) {
                // It is known now, and need not be kept.
            } else if !self.try_switch(direction, candidate, header, fragment, ctx) {
                unknown.extend_from_slice(whole);
                records += 1;
            }
            if !self.following() {
                return;
            }
        }
        if let Read::Searching(search) = &mut self.streams[direction.index()].read {
            search.backlog = unknown;
            search.records = records;
        }
        // Offline everything has passed, and tickets (Go sends them with its Finished) are not the
        // application's.
        if ctx.config.inline && self.content(direction) != before {
            self.raise(direction, SessionError::JudgedLate, ctx);
        }
    }

    /// What changes when a record with application content is delivered, or may have been.
    fn content(&self, direction: Direction) -> (u64, u64) {
        let (info, side) = (&self.info, direction.index());
        (info.plaintext_bytes[side], info.records_seen[side] - info.records_opened[side])
    }
}
