//! Finding where application keys begin: by authentication, never by length.
//!
//! Refuses to let more than a handshake's worth of records pass that nothing opens: the rest
//! waits for keys that do.

use core::mem;

use super::follow::{Context, Step, TlsSession};
use super::stream::{Read, Search};
use super::{Handler, SessionError};
use crate::tls::{Deframed, Direction, OpenRecord, RECORD_HEADER_LEN, RecordHeader, deframe};

/// Keys that are tried side by side.
pub(super) const MAX_CANDIDATES: usize = 4;

/// Protected records of a client's last flight: EndOfEarlyData, Certificate, CertificateVerify,
/// Finished, and some room for fragments (RFC 8446, section 2).
const MAX_CLIENT_RECORDS: u32 = 8;

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
        // Early data looks the same; with it, only the switch itself marks the client's flight.
        if direction == Direction::ClientToServer && !self.info.early_data_offered {
            self.client_flight_seen = true;
            self.end_handshake(ctx);
            if !self.following() {
                return Step::Stop;
            }
        }
        if self.try_switch(direction, header, fragment, ctx) {
            return self.step();
        }
        let max_bytes = ctx.config.limits.max_search_bytes;
        let Read::Searching(search) = &mut self.streams[direction.index()].read else {
            return self.step();
        };
        let len = RECORD_HEADER_LEN + fragment.len();
        let may_pass = match direction {
            // The client's flight waits for keys; with them, what does not open is Finished.
            Direction::ClientToServer => {
                !search.candidates.is_empty()
                    && search.records < MAX_CLIENT_RECORDS
                    && search.backlog.len() + len <= max_bytes / 2
            }
            // The client shares keys when it has the server's whole flight, so that flight must
            // pass. It was complete when the client's came.
            Direction::ServerToClient => {
                !self.client_flight_seen && search.backlog.len() + len <= max_bytes
            }
        };
        if !may_pass {
            return Step::NeedKeys;
        }
        search.records += 1;
        search.backlog.extend_from_slice(&header.bytes);
        search.backlog.extend_from_slice(fragment);
        Step::Done
    }

    /// Tries a record as number 0 of the application epoch; true when it was.
    fn try_switch<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) -> bool {
        let stream = &mut self.streams[direction.index()];
        let Read::Searching(Search { candidates, .. }) = &mut stream.read else {
            return false;
        };
        for at in 0..candidates.len() {
            let outcome = candidates[at].open(0, header.bytes, fragment, ctx.plaintext);
            if outcome.is_err() {
                ctx.counters.trials_failed += 1;
                continue;
            }
            let opener = candidates.swap_remove(at);
            stream.read = Read::Application { opener: Some(opener), epoch: 0, sequence: 0 };
            if direction == Direction::ClientToServer {
                self.client_flight_seen = true;
            }
            self.deliver(direction, header, fragment, Some(outcome), ctx);
            return true;
        }
        false
    }

    /// Adds keys to a search, and searches what has passed already; false when they are too many.
    pub(super) fn add_candidate<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        opener: Box<dyn OpenRecord>,
        ctx: &mut Context<'_, H>,
    ) -> bool {
        match &mut self.streams[direction.index()].read {
            Read::Searching(search) if search.candidates.len() < MAX_CANDIDATES => {
                search.candidates.push(opener);
                true
            }
            _ => {
                ctx.counters.keys_refused += 1;
                false
            }
        }
    }

    /// Searches the records that have passed with the keys that came last.
    pub(super) fn search_backlog<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        let Read::Searching(search) = &mut self.streams[direction.index()].read else {
            return;
        };
        let Some(latest) = search.candidates.pop() else {
            return;
        };
        // The others were tried on these records already.
        let others = mem::replace(&mut search.candidates, vec![latest]);
        let backlog = mem::take(&mut search.backlog);
        let mut rest = &backlog[..];
        let mut late = false;
        while let Deframed::Record { header, fragment } = deframe(rest) {
            rest = &rest[RECORD_HEADER_LEN + fragment.len()..];
            match &self.streams[direction.index()].read {
                Read::Searching(_) => late |= self.try_switch(direction, header, fragment, ctx),
                _ => self.handle_application_record(direction, header, fragment, ctx),
            }
            if !self.following() {
                return;
            }
        }
        if let Read::Searching(search) = &mut self.streams[direction.index()].read {
            search.backlog = backlog;
            search.candidates.extend(others);
        }
        if late {
            self.raise(direction, SessionError::JudgedLate, ctx);
        }
    }
}
