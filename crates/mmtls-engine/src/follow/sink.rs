//! What a session says to the outside while it handles an input.
//!
//! Refuses to know an application: the driver pairs its handler with its state of this session. Every call is an
//! event, so that packets without one cost no virtual call.

use core::time::Duration;

use crate::session::{Certificates, EndReason, Record, RefusedKeys, Session, SessionError};
use crate::tls::{Direction, KeyEpoch};

/// The events of one session, as [`crate::session::Handler`] has them.
pub(crate) trait SessionSink {
    fn session_start(&mut self, session: &mut Session<'_>);
    fn handshake_start(&mut self, session: &mut Session<'_>);
    fn server_hello(&mut self, session: &mut Session<'_>);
    fn handshake_end(&mut self, session: &mut Session<'_>);
    fn early_data(&mut self, session: &mut Session<'_>, accepted: bool);
    fn certificates(
        &mut self,
        session: &mut Session<'_>,
        direction: Direction,
        certificates: &Certificates<'_>,
    );
    fn new_record(&mut self, session: &mut Session<'_>, record: &mut Record<'_>);
    fn error(&mut self, session: &mut Session<'_>, direction: Direction, error: SessionError);
    fn stall(&mut self, session: &mut Session<'_>, direction: Direction);
    fn keys(
        &mut self,
        session: &mut Session<'_>,
        direction: Direction,
        epoch: KeyEpoch,
        waited: Duration,
    );
    fn keys_refused(&mut self, refused: &RefusedKeys<'_>);
    fn session_end(&mut self, session: &mut Session<'_>, why: EndReason);
}
