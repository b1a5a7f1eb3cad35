//! The application's side of one session: its handler, and the state that it keeps of this session.
//!
//! Refuses to do anything but pass events on.

use core::time::Duration;

use crate::follow::SessionSink;
use crate::session::{
    Certificates, EndReason, Handler, Record, RefusedKeys, Session, SessionError,
};
use crate::tls::{Direction, KeyEpoch};

/// A handler, bound to its state of one session.
pub(super) struct Sink<'a, H: Handler> {
    pub(super) handler: &'a mut H,
    pub(super) state: &'a mut H::State,
}

impl<H: Handler> SessionSink for Sink<'_, H> {
    fn session_start(&mut self, session: &mut Session<'_>) {
        self.handler.session_start(session, self.state);
    }

    fn handshake_start(&mut self, session: &mut Session<'_>) {
        self.handler.handshake_start(session, self.state);
    }

    fn server_hello(&mut self, session: &mut Session<'_>) {
        self.handler.server_hello(session, self.state);
    }

    fn handshake_end(&mut self, session: &mut Session<'_>) {
        self.handler.handshake_end(session, self.state);
    }

    fn early_data(&mut self, session: &mut Session<'_>, accepted: bool) {
        self.handler.early_data(session, self.state, accepted);
    }

    fn certificates(
        &mut self,
        session: &mut Session<'_>,
        direction: Direction,
        certificates: &Certificates<'_>,
    ) {
        self.handler.certificates(session, self.state, direction, certificates);
    }

    fn new_record(&mut self, session: &mut Session<'_>, record: &mut Record<'_>) {
        self.handler.new_record(session, self.state, record);
    }

    fn error(&mut self, session: &mut Session<'_>, direction: Direction, error: SessionError) {
        self.handler.error(session, self.state, direction, error);
    }

    fn stall(&mut self, session: &mut Session<'_>, direction: Direction) {
        self.handler.stall(session, self.state, direction);
    }

    fn keys(
        &mut self,
        session: &mut Session<'_>,
        direction: Direction,
        epoch: KeyEpoch,
        waited: Duration,
    ) {
        self.handler.keys(session, self.state, direction, epoch, waited);
    }

    fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        self.handler.keys_refused(refused);
    }

    fn session_end(&mut self, session: &mut Session<'_>, why: EndReason) {
        self.handler.session_end(session, self.state, why);
    }
}
