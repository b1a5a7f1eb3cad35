//! What is known of one session. How it comes to be known is in the files beside this one: `follow` (records), `handshake`
//! (hellos), `early` and `search` (which keys), `opened` and `tls12` (what records hold).

use std::collections::VecDeque;

use super::buffer_pool::BufferPool;
use super::disposition::Disposition;
use super::stream::{KeyCandidates, Stream};
use super::{Control, Handler, SessionInfo};
use crate::config::Config;
use crate::counters::Counters;
use crate::output::Output;
use crate::tls::Direction;

/// What the engine lends to a session while it handles one input.
pub(crate) struct Context<'a, H: Handler> {
    pub(crate) handler: &'a mut H,
    pub(crate) counters: &'a mut Counters,
    pub(crate) config: &'a Config,
    pub(crate) plaintext: &'a mut [u8],
    pub(crate) outputs: &'a mut VecDeque<Output>,
    pub(crate) pool: &'a mut BufferPool,
    pub(crate) now_ns: u64,
}

/// What became of one record.
pub(super) enum Step {
    Done,
    NeedKeys,
    /// The session is no longer followed.
    Stop,
}

/// The client's early data.
#[derive(Default)]
pub(super) struct Early {
    pub(super) keys: KeyCandidates,
    /// Records of the client may be early data.
    pub(super) open: bool,
    /// The keys will not come, and policy lets the records pass.
    pub(super) waived: bool,
    /// No keys are tried any more.
    pub(super) keys_over: bool,
}

/// Which hello may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The first ClientHello of a handshake.
    ClientHello,
    /// The answer to it, which may be a HelloRetryRequest.
    ServerHello,
    /// The ClientHello after a HelloRetryRequest.
    SecondClientHello,
    /// The answer to that.
    FinalServerHello,
    /// None; in TLS 1.2 a renegotiation may begin.
    Settled,
}

/// What the handshake at hand has shown, where a renegotiation makes it differ from the session's
/// first one.
pub(super) struct Negotiation {
    pub(super) turn: Turn,
    /// 0 for the session's first handshake; its keys are those of this epoch (TLS 1.2).
    pub(super) number: u32,
    pub(super) client_random: [u8; 32],
    pub(super) server_random: Option<[u8; 32]>,
    pub(super) encrypt_then_mac: bool,
    /// ServerHelloDone was seen: a session is not being resumed (RFC 5246, section 7.3).
    pub(super) in_full: bool,
    pub(super) session_id: Vec<u8>,
}

impl Negotiation {
    pub(super) fn new() -> Self {
        Self {
            turn: Turn::ClientHello,
            number: 0,
            client_random: [0; 32],
            server_random: None,
            encrypt_then_mac: false,
            in_full: false,
            session_id: Vec::new(),
        }
    }
}

/// One session that is, or was, followed.
pub(crate) struct TlsSession<S> {
    pub(crate) info: SessionInfo,
    pub(super) disposition: Disposition,
    pub(super) control: Control,
    pub(super) state: S,
    pub(super) streams: [Stream; 2],
    pub(super) handshake_started: bool,
    pub(super) handshake_ended: bool,
    /// The client sent a protected record after the ServerHello: from here on the server's
    /// records may be application data in answer to it.
    pub(super) client_flight_seen: bool,
    pub(super) early: Early,
    pub(super) negotiation: Negotiation,
    /// Whose Finished has passed (TLS 1.2).
    pub(super) finished: [bool; 2],
    /// The endpoint refuses to share, which counts once the ServerHello is known.
    pub(super) refused: bool,
    pub(super) ended: bool,
}

impl<S> TlsSession<S> {
    /// What has been decided about its packets.
    pub(crate) fn disposition(&self) -> Disposition {
        self.disposition
    }

    /// The last so many bytes that are kept of a direction.
    pub(crate) fn partial(&self, direction: Direction, len: usize) -> &[u8] {
        let pending = self.streams[direction.index()].pending();
        debug_assert!(len <= pending.len(), "{len} of {}", pending.len());
        pending.get(pending.len().saturating_sub(len)..).unwrap_or(&[])
    }
}
