//! Finding where application keys begin: by authentication, never by length.
//!
//! Refuses to search on beyond its limit.

use core::mem;

use super::follow::{Context, Step, TlsSession};
use super::stream::Read;
use super::{Handler, SessionError};
use crate::tls::{Deframed, Direction, OpenRecord, RECORD_HEADER_LEN, RecordHeader, deframe};

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
        // The client shares keys when it has the server's whole flight, so that flight must
        // pass; it is kept, and searched when the keys come. Everything else can wait.
        let must_pass = direction == Direction::ServerToClient && !self.client_flight_seen;
        let stream = &mut self.streams[direction.index()];
        let Read::Searching { opener, backlog, searched, records } = &mut stream.read else {
            return Step::Done;
        };
        if opener.is_none() && !must_pass {
            return Step::NeedKeys;
        }
        *searched += RECORD_HEADER_LEN + fragment.len();
        *records += 1;
        if *searched > ctx.config.limits.max_search_bytes {
            let error = match opener {
                Some(_) => SessionError::KeysDoNotFit,
                None => SessionError::LostSynchronisation,
            };
            self.fail(direction, error, ctx);
            return self.step();
        }
        match opener.take() {
            None => {
                backlog.extend_from_slice(&header.bytes);
                backlog.extend_from_slice(fragment);
                Step::Done
            }
            Some(opener) => {
                self.try_switch(direction, opener, header, fragment, ctx);
                self.step()
            }
        }
    }

    /// Tries a record as number 0 of the application epoch.
    fn try_switch<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        opener: Box<dyn OpenRecord>,
        header: RecordHeader,
        fragment: &[u8],
        ctx: &mut Context<'_, H>,
    ) {
        let outcome = opener.open(0, header.bytes, fragment, ctx.plaintext);
        let stream = &mut self.streams[direction.index()];
        if outcome.is_err() {
            ctx.counters.trials_failed += 1;
            if let Read::Searching { opener: slot, .. } = &mut stream.read {
                *slot = Some(opener);
            }
            return;
        }
        stream.read = Read::Application { opener: Some(opener), epoch: 0, sequence: 0 };
        if direction == Direction::ClientToServer {
            self.client_flight_seen = true;
        }
        self.deliver(direction, header, fragment, Some(outcome), ctx);
    }

    /// Searches the records that passed before the keys came.
    pub(super) fn search_backlog<H: Handler<State = S>>(
        &mut self,
        direction: Direction,
        ctx: &mut Context<'_, H>,
    ) {
        let stream = &mut self.streams[direction.index()];
        let Read::Searching { opener: Some(_), backlog, .. } = &mut stream.read else {
            return;
        };
        let backlog = mem::take(backlog);
        let mut rest = &backlog[..];
        while let Deframed::Record { header, fragment } = deframe(rest) {
            rest = &rest[RECORD_HEADER_LEN + fragment.len()..];
            match &mut self.streams[direction.index()].read {
                Read::Searching { opener, .. } => {
                    if let Some(opener) = opener.take() {
                        self.try_switch(direction, opener, header, fragment, ctx);
                    }
                }
                _ => self.handle_application_record(direction, header, fragment, ctx),
            }
            if !self.following() {
                return;
            }
        }
    }
}
