//! The handler that turns the engine's events into callbacks.
//!
//! Refuses to decide anything: what a callback asks for goes to the engine as it stands.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use mmtls_middlebox::session::{Certificates, EndReason, Handler, Record, Session, SessionError};
use mmtls_middlebox::tls::{Direction, KeyEpoch};

use crate::current::{self, Current, Entries, Entry};
use crate::handle;
use crate::side::side;
use crate::types::{
    EVENTS, MMTLS_TO_SERVER, ON_TLS_EARLY_DATA, ON_TLS_ERROR, ON_TLS_HANDSHAKE_END,
    ON_TLS_HANDSHAKE_START, ON_TLS_KEYS, ON_TLS_NEW_RECORD, ON_TLS_SESSION_END,
    ON_TLS_SESSION_START, ON_TLS_STALL, UserPointer, mmtls_cb,
};

/// The callbacks of a context, by event.
pub(crate) type Callbacks = [mmtls_cb; EVENTS];

/// What the engine keeps of it.
#[derive(Default)]
pub(crate) struct State {
    cid: c_int,
    /// The server's own certificate (DER), empty when not known. At most 64 KiB.
    certificate: Vec<u8>,
}

/// One context's application.
pub(crate) struct Application {
    context: usize,
    callbacks: Callbacks,
    sessions: Entries,
    last_cid: c_int,
    /// Bytes of all certificates that are kept.
    certificate_bytes: usize,
}

/// Bytes of certificates that one context keeps: of sessions beyond that, they are not known.
const MAX_CERTIFICATE_BYTES: usize = 64 << 20;

impl Application {
    /// The application of the context with this number.
    pub(crate) fn new(context: usize, callbacks: Callbacks) -> Self {
        // Nobody else chooses the keys.
        let sessions = HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4));
        Self { context, callbacks, sessions, last_cid: 0, certificate_bytes: 0 }
    }

    /// A number that no living session has: the next one, so that none comes back soon.
    fn next_cid(&mut self) -> c_int {
        loop {
            self.last_cid = self.last_cid.checked_add(1).unwrap_or(1);
            if !self.sessions.contains_key(&self.last_cid) {
                return self.last_cid;
            }
        }
    }

    fn raise<'s, 'r>(
        &mut self,
        event: c_int,
        side: c_int,
        session: &mut Session<'s>,
        state: &State,
        record: Option<&mut Record<'r>>,
    ) {
        let Some(callback) = self.callbacks[event as usize] else {
            return;
        };
        let (context, cid) = (self.context, state.cid);
        let mut current = Current {
            context,
            cid,
            event,
            session,
            record,
            certificate: &state.certificate,
            sessions: &mut self.sessions,
        };
        current::during(&mut current, || {
            // SAFETY: the application registered it as a function of this type.
            unsafe { callback(handle::handle_of(context), cid, side) }
        });
    }
}

impl Handler for Application {
    type State = State;

    fn session_start(&mut self, session: &mut Session<'_>, state: &mut State) {
        state.cid = self.next_cid();
        let uctx = UserPointer(null_mut::<c_void>());
        let entry = Entry { uctx, last_error: 0, buffers: [(0, 0); 2], reset: false };
        self.sessions.insert(state.cid, entry);
        self.raise(ON_TLS_SESSION_START, MMTLS_TO_SERVER, session, state, None);
    }

    fn handshake_start(&mut self, session: &mut Session<'_>, state: &mut State) {
        self.raise(ON_TLS_HANDSHAKE_START, MMTLS_TO_SERVER, session, state, None);
    }

    fn handshake_end(&mut self, session: &mut Session<'_>, state: &mut State) {
        self.raise(ON_TLS_HANDSHAKE_END, MMTLS_TO_SERVER, session, state, None);
    }

    fn early_data(&mut self, session: &mut Session<'_>, state: &mut State, _: bool) {
        self.raise(ON_TLS_EARLY_DATA, MMTLS_TO_SERVER, session, state, None);
    }

    fn certificates(
        &mut self,
        _: &mut Session<'_>,
        state: &mut State,
        direction: Direction,
        certificates: &Certificates<'_>,
    ) {
        if direction == Direction::ServerToClient {
            self.certificate_bytes -= state.certificate.len();
            let room = MAX_CERTIFICATE_BYTES - self.certificate_bytes;
            let own = certificates.chain().first().filter(|der| der.len() <= room);
            state.certificate = own.map_or(Vec::new(), |der| der.to_vec());
            self.certificate_bytes += state.certificate.len();
        }
    }

    fn new_record(
        &mut self,
        session: &mut Session<'_>,
        state: &mut State,
        record: &mut Record<'_>,
    ) {
        let side = side(record.direction());
        self.raise(ON_TLS_NEW_RECORD, side, session, state, Some(record));
    }

    fn error(
        &mut self,
        session: &mut Session<'_>,
        state: &mut State,
        direction: Direction,
        error: SessionError,
    ) {
        if let Some(entry) = self.sessions.get_mut(&state.cid) {
            entry.last_error = error.code();
        }
        self.raise(ON_TLS_ERROR, side(direction), session, state, None);
    }

    fn stall(&mut self, session: &mut Session<'_>, state: &mut State, direction: Direction) {
        self.raise(ON_TLS_STALL, side(direction), session, state, None);
    }

    fn keys(
        &mut self,
        session: &mut Session<'_>,
        state: &mut State,
        direction: Direction,
        _: KeyEpoch,
        _: Duration,
    ) {
        self.raise(ON_TLS_KEYS, side(direction), session, state, None);
    }

    fn session_end(&mut self, session: &mut Session<'_>, state: &mut State, _: EndReason) {
        self.raise(ON_TLS_SESSION_END, MMTLS_TO_SERVER, session, state, None);
        self.sessions.remove(&state.cid);
        self.certificate_bytes -= std::mem::take(&mut state.certificate).len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_numbers_beyond_the_last_one_and_refuses_living_ones() {
        let mut application = Application::new(9, [None; EVENTS]);
        application.last_cid = c_int::MAX - 1;
        let entry = || Entry {
            uctx: UserPointer(null_mut()),
            last_error: 0,
            buffers: [(0, 0); 2],
            reset: false,
        };
        application.sessions.insert(1, entry());
        application.sessions.insert(2, entry());
        assert_eq!([(); 3].map(|()| application.next_cid()), [c_int::MAX, 3, 4]);
    }
}
