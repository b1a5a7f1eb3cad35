//! The trait that middlebox applications implement, and what they may ask of the engine.
//!
//! Refuses to block: a handler decides synchronously, while the packet that completed the record
//! is held.

use core::net::SocketAddr;
use core::time::Duration;

use super::certificates::Certificates;
use super::info::{EndReason, FlowAnomaly, FlowEnd, RefusedKeys, SessionError, SessionInfo};
use super::record::Record;
use crate::tls::{Direction, KeyEpoch};

/// A middlebox application: the events of the paper's table 3, plus STALL, KEYS and more.
///
/// Per session the order is: `session_start`, `handshake_start`, `server_hello`, `handshake_end`, then
/// `new_record` any number of times, and `session_end`, each of the others at most once. Records
/// of early data come before `handshake_end`. `error`, `stall`, `keys`, `early_data` and
/// `certificates` can come anywhere between start and end. Sessions that are
/// [under way](SessionInfo::is_mid_stream) have neither `handshake_start` nor `server_hello` nor
/// `handshake_end`: what is known of them is known at `session_start`. Every method has an
/// empty default. Handlers must not panic; the engine does not catch panics.
pub trait Handler {
    /// The application's own state, one value per session.
    type State: Default;

    /// ON_TLS_SESSION_START: a flow turned out to carry TLS.
    fn session_start(&mut self, session: &mut Session<'_>, state: &mut Self::State) {
        let _ = (session, state);
    }

    /// ON_TLS_HANDSHAKE_START: the (first) ClientHello is complete; name and random are known.
    fn handshake_start(&mut self, session: &mut Session<'_>, state: &mut Self::State) {
        let _ = (session, state);
    }

    /// SERVER HELLO: the first answer to the ClientHello is complete; it may be a HelloRetryRequest. Version and suite
    /// are known, and perhaps not followed: then `error` comes next.
    fn server_hello(&mut self, session: &mut Session<'_>, state: &mut Self::State) {
        let _ = (session, state);
    }

    /// ON_TLS_HANDSHAKE_END: version, suite and both randoms are known, and the client has sent
    /// its last flight or a record of the application epoch has been authenticated.
    fn handshake_end(&mut self, session: &mut Session<'_>, state: &mut Self::State) {
        let _ = (session, state);
    }

    /// EARLY DATA: what the server does with the early data (0-RTT) has become known, at most
    /// once. Rejected ones never reach its application: what was shown of them is void, and no
    /// more of them is shown. Not raised when it never becomes known.
    fn early_data(&mut self, session: &mut Session<'_>, state: &mut Self::State, accepted: bool) {
        let _ = (session, state, accepted);
    }

    /// CERTIFICATES: one side's Certificate message. In TLS 1.3 only where handshake keys are
    /// shared, and perhaps after `handshake_end`, as those keys may come late. The endpoints
    /// have not finished verifying when this is raised.
    fn certificates(
        &mut self,
        session: &mut Session<'_>,
        state: &mut Self::State,
        direction: Direction,
        certificates: &Certificates<'_>,
    ) {
        let _ = (session, state, direction, certificates);
    }

    /// ON_TLS_NEW_RECORD: a protected record is complete. The packet that completed it is held
    /// until this returns.
    fn new_record(
        &mut self,
        session: &mut Session<'_>,
        state: &mut Self::State,
        record: &mut Record<'_>,
    ) {
        let _ = (session, state, record);
    }

    /// ON_TLS_ERROR. The configured policy is applied after this returns.
    fn error(
        &mut self,
        session: &mut Session<'_>,
        state: &mut Self::State,
        direction: Direction,
        error: SessionError,
    ) {
        let _ = (session, state, direction, error);
    }

    /// STALL: application records of this direction are held because their keys are missing.
    fn stall(&mut self, session: &mut Session<'_>, state: &mut Self::State, direction: Direction) {
        let _ = (session, state, direction);
    }

    /// KEYS: keys of a direction and epoch arrived; `waited` is how long packets were held for
    /// them, zero when nothing was.
    fn keys(
        &mut self,
        session: &mut Session<'_>,
        state: &mut Self::State,
        direction: Direction,
        epoch: KeyEpoch,
        waited: Duration,
    ) {
        let _ = (session, state, direction, epoch, waited);
    }

    /// ON_TLS_SESSION_END. A reset still stops the packet that ended the session, and what is held; where
    /// another connection has taken the session's place ([`EndReason::Replaced`]) it has no effect.
    fn session_end(&mut self, session: &mut Session<'_>, state: &mut Self::State, why: EndReason) {
        let _ = (session, state, why);
    }

    /// CLEARTEXT START: a TCP connection, seen from its beginning, does not begin with TLS. Only where
    /// `Config::cleartext` asks for it. Its state is one of its own: TLS that begins behind it (STARTTLS) is a
    /// session with the same identity and another state, which may start before `cleartext_end`.
    fn cleartext_start(&mut self, session: &mut Session<'_>, state: &mut Self::State) {
        let _ = (session, state);
    }

    /// CLEARTEXT: the next bytes of one direction, in order. The packet that completed them goes on when this
    /// returns, and nowhere after [`Session::reset`]; only what may have been the beginning of TLS has
    /// gone on before. What a pause skips is not shown at all; once both directions are paused until
    /// they are resumed, `cleartext_end` follows with the next bytes. [`Handler::error`] tells of gaps.
    fn cleartext(
        &mut self,
        session: &mut Session<'_>,
        state: &mut Self::State,
        direction: Direction,
        bytes: &[u8],
    ) {
        let _ = (session, state, direction, bytes);
    }

    /// CLEARTEXT FIN: one direction is over, and nothing more of it will be shown. Its FIN goes on when
    /// this returns; the other direction may go on for long.
    fn cleartext_fin(
        &mut self,
        session: &mut Session<'_>,
        state: &mut Self::State,
        direction: Direction,
    ) {
        let _ = (session, state, direction);
    }

    /// CLEARTEXT END: no more of it is shown. `why` is absent where something else tells how the connection
    /// ends, or it goes on: a server has answered as TLS does, it is not followed any more, or both
    /// directions are paused.
    fn cleartext_end(
        &mut self,
        session: &mut Session<'_>,
        state: &mut Self::State,
        why: Option<EndReason>,
    ) {
        let _ = (session, state, why);
    }

    /// TLS begins behind cleartext: what the application knows of that can be taken over. Before the session looks at
    /// bytes, until a server has answered: more may be shown as cleartext meanwhile. `info` is the session's.
    fn tls_behind_cleartext(
        &mut self,
        info: &SessionInfo,
        before: &Self::State,
        state: &mut Self::State,
    ) {
        let _ = (info, before, state);
    }

    /// Keys of a session, or an endpoint's refusal to share them, are not taken.
    fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        let _ = refused;
    }

    /// A TCP flow, TLS or not, carried something that honest peers do not send. Once per flow,
    /// direction and kind.
    fn flow_anomaly(&mut self, anomaly: &FlowAnomaly) {
        let _ = anomaly;
    }

    /// A TCP flow ended, TLS or not; after `session_end` where there was a session.
    fn flow_end(&mut self, flow: &FlowEnd) {
        let _ = flow;
    }

    /// Whether frames are to be shown: nothing is done for them otherwise.
    fn wants_frames(&self) -> bool {
        false
    }

    /// A frame with a TCP segment, after all that it has raised, whatever was decided about it. Fragments are not shown, nor
    /// frames that were not handed in.
    fn tcp_frame(&mut self, frame: &TcpFrame<'_>) {
        let _ = frame;
    }
}

/// A frame as it arrived, and between whom.
#[derive(Clone, Copy, Debug)]
pub struct TcpFrame<'a> {
    /// When, nanoseconds since 1970.
    pub now_ns: u64,
    /// Address and port of its sender.
    pub source: SocketAddr,
    /// Those of its receiver.
    pub destination: SocketAddr,
    /// It opens a connection: SYN without ACK.
    pub opens: bool,
    /// All of it.
    pub bytes: &'a [u8],
}

/// What a handler asked for, read by the engine after each event.
#[derive(Default)]
pub(crate) struct Control {
    pub(crate) reset: bool,
    /// Content bytes still to be skipped, per direction; `u64::MAX` until resumed.
    pub(crate) paused: [u64; 2],
}

/// A session as a handler sees it inside an event.
pub struct Session<'a> {
    pub(crate) info: &'a SessionInfo,
    pub(crate) control: &'a mut Control,
    pub(crate) now_ns: u64,
}

impl Session<'_> {
    /// What is known so far.
    #[must_use]
    pub fn info(&self) -> &SessionInfo {
        self.info
    }

    /// The time of the input that caused this event, in the caller's nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Resets the session: the held packet is dropped, both endpoints get a RST, and every later
    /// packet of the connection is dropped. Repeating it changes nothing.
    pub fn reset(&mut self) {
        self.control.reset = true;
    }

    /// Skips `bytes` of application content in one direction without decrypting; the record that
    /// crosses the edge is delivered whole. `None` skips until [`Session::resume`]. Replaces an
    /// earlier pause of that direction.
    ///
    /// Content is counted without opening the records, so padding and post-handshake messages
    /// count as content (TLS 1.3 hides both, the CBC suites of TLS 1.2 the padding): the count is
    /// an upper bound, and exact in the other suites of TLS 1.2 only. What is known to be no content
    /// there, alerts, is delivered.
    pub fn pause(&mut self, direction: Direction, bytes: Option<u64>) {
        self.control.paused[direction.index()] = bytes.unwrap_or(u64::MAX);
    }

    /// Ends a pause: the next record is delivered.
    pub fn resume(&mut self, direction: Direction) {
        self.control.paused[direction.index()] = 0;
    }
}
