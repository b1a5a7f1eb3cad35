//! Facts about a session and the flow that carries it.
//!
//! Refuses to interpret: names and numbers are as they stood on the wire.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use crate::port::PortId;
use crate::recognition::Upgrade;
use crate::tls::{CipherSuite, ClientOffer, Direction, Hellos, ProtocolVersion, ServerChoice};

/// Identifies a flow for the life of an engine, and of those that share interfaces with it; never
/// reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId(pub u64);

/// What the handshake says about resumption (RFC 8446, section 2.2; RFC 5246, section 7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Resumption {
    /// No pre-shared key, session or ticket was offered.
    #[default]
    None,
    /// The client offered a pre-shared key; the server did not take it (or has not answered).
    Offered,
    /// The server selected a pre-shared key, or went on with a session of TLS 1.2.
    Accepted,
}

/// What became of early data (0-RTT, RFC 8446, section 4.2.10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EarlyData {
    /// The client announced none.
    #[default]
    None,
    /// The client announced them; what the server makes of them is not known (yet).
    Offered,
    /// The server takes them.
    Accepted,
    /// The server drops them: its application never sees them.
    Rejected,
}

/// Where the keys of a session are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyStatus {
    /// None have come yet.
    #[default]
    Waiting,
    /// At least one direction can be opened.
    Shared,
    /// The endpoint refused ("null keys"): the session is bypassed.
    Exempt,
    /// None came within the stall limits: the missing-key policy was applied, unless the connection had ended.
    Missing,
    /// The session cannot be followed: unsupported version or suite, lost synchronisation.
    Unusable,
}

/// Where a flow's client is, seen from the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowPlace {
    /// The port that its frames come in on; of a capture without ports, any.
    pub port: PortId,
    /// VLAN identifiers (IEEE 802.1Q), the outer one first; 0 is none.
    pub vlans: [u16; 2],
}

/// What is known of one session. Grows while the handshake is observed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// This session.
    pub id: SessionId,
    /// Address and port that sent the SYN.
    pub client: SocketAddr,
    /// Address and port that received it.
    pub server: SocketAddr,
    /// Where the client is.
    pub place: FlowPlace,
    /// Link addresses, client's first: what the client's frames come from and go to, which may be routers. All zero where frames
    /// have none.
    pub link_addresses: [[u8; 6]; 2],
    /// An operator lets what is left of it pass unread ([`crate::Engine::bypass_flow`]).
    pub bypassed_by_operator: bool,
    /// When the first packet of the flow was seen, in the caller's nanoseconds.
    pub started_ns: u64,
    /// `ClientHello.random`; all zero before it was seen.
    pub client_random: [u8; 32],
    /// Whether a ClientHello was read, or its endpoint has told of it: otherwise that random means nothing. One that was may be all
    /// zero.
    pub client_hello: bool,
    /// `ServerHello.random`, not that of a HelloRetryRequest.
    pub server_random: Option<[u8; 32]>,
    /// Server name indication (RFC 6066), when it is a legal host name; the outer one under ECH.
    pub server_name: Option<String>,
    /// Protocols that the client offers (RFC 7301).
    pub alpn_offered: Vec<Vec<u8>>,
    /// The one that the server chose; in TLS 1.3 only where handshake keys are shared.
    pub alpn: Option<Vec<u8>>,
    /// The protocol that the client left for TLS; `None` where the connection begins with TLS.
    pub starttls: Option<Upgrade>,
    /// The negotiated version, from `supported_versions` where present.
    pub version: Option<ProtocolVersion>,
    /// The negotiated cipher suite.
    pub cipher_suite: Option<CipherSuite>,
    /// The server asked for another ClientHello (RFC 8446, section 4.1.4).
    pub hello_retry: bool,
    /// What the first ClientHello offers and the first answer to it chooses, where `Config::tell_hellos` asks for it:
    /// until the handshake has ended, or is not followed any more.
    pub hellos: Option<Box<Hellos>>,
    /// Resumption as the hellos show it.
    pub resumption: Resumption,
    /// Whether there are early data, and what the server does with them.
    pub early_data: EarlyData,
    /// Where the keys are.
    pub key_status: KeyStatus,
    /// Its beginning was not seen: what the hellos say is not known, and its records are read from somewhere on in each
    /// direction.
    pub is_mid_stream: bool,
    /// Directions that pass unread, since their endpoint refuses to share them (client first).
    pub refused: [bool; 2],
    /// Records of early data and application epochs opened, per direction (client first).
    pub records_opened: [u64; 2],
    /// Such records that were seen, opened or not, per direction (client first).
    pub records_seen: [u64; 2],
    /// Content bytes of opened application-data records, per direction (client first).
    pub plaintext_bytes: [u64; 2],
}

impl SessionInfo {
    /// Whether records of a direction have passed that were not opened, as far as its application keys were in use.
    pub(crate) fn was_passed_over(&self, direction: Direction) -> bool {
        let side = direction.index();
        self.is_mid_stream
            || self.refused[side]
            || self.records_seen[side] > self.records_opened[side]
    }

    pub(crate) fn new(
        id: SessionId,
        client: SocketAddr,
        server: SocketAddr,
        place: FlowPlace,
        started_ns: u64,
    ) -> Self {
        Self {
            id,
            client,
            server,
            place,
            link_addresses: [[0; 6]; 2],
            bypassed_by_operator: false,
            started_ns,
            client_random: [0; 32],
            client_hello: false,
            server_random: None,
            server_name: None,
            alpn_offered: Vec::new(),
            alpn: None,
            starttls: None,
            version: None,
            cipher_suite: None,
            hello_retry: false,
            hellos: None,
            resumption: Resumption::None,
            early_data: EarlyData::None,
            key_status: KeyStatus::Waiting,
            is_mid_stream: false,
            refused: [false; 2],
            records_opened: [0; 2],
            records_seen: [0; 2],
            plaintext_bytes: [0; 2],
        }
    }

    /// What the first ClientHello offers, as long as [`Self::hellos`] are told.
    #[must_use]
    pub fn client_offer(&self) -> Option<&ClientOffer> {
        self.hellos.as_deref().map(|hellos| &hellos.offer)
    }

    /// What the first answer to it chooses, as long as [`Self::hellos`] are told.
    #[must_use]
    pub fn server_choice(&self) -> Option<&ServerChoice> {
        self.hellos.as_deref().and_then(|hellos| hellos.choice.as_ref())
    }

    /// Whether every record carries a private tag (`docs/private-tag.md`); `None` before version
    /// and suite were negotiated.
    #[must_use]
    pub fn private_tag(&self) -> Option<bool> {
        let (version, suite) = (self.version?, self.cipher_suite?);
        Some(version == ProtocolVersion::TLS_1_3 && suite.has_private_tag())
    }
}

/// Why ON_TLS_ERROR was raised. The integer is stable: it is the C API's code, and for the
/// published prototype's errors it is the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[repr(i32)]
pub enum SessionError {
    /// A record's tag did not verify, or it was authentic but illegal.
    Integrity = -20,
    /// TCP ended inside a record.
    EarlyFin = -17,
    /// The negotiated version cannot be followed.
    UnsupportedVersion = -16,
    /// The negotiated suite cannot be followed.
    UnsupportedCipherSuite = -15,
    /// A record header announces an impossible length, type or version.
    MalformedRecord = -14,
    /// A handshake message could not be parsed, or exceeded the limit.
    MalformedHandshake = -30,
    /// The shared keys open no record of this session.
    KeysDoNotFit = -31,
    /// Bytes were lost to the monitor, or a buffer cap was reached: the stream has a gap.
    LostSynchronisation = -32,
    /// The same stream bytes were sent twice with different content.
    ConflictingOverlap = -33,
    /// Early data (0-RTT) whose keys did not come: passed or refused by policy.
    EarlyDataNotInspected = -34,
    /// Keys were shared and protected records seen, but none opened until the session's end.
    NothingOpened = -35,
    /// The cap on buffered bytes was reached.
    MemoryCap = -36,
    /// The server sent application data before the client's last flight (0.5-RTT): it had been
    /// forwarded when keys came, and was inspected then.
    JudgedLate = -37,
    /// The session has no private tag where `Policies::require_private_tag` asks for one.
    NoPrivateTag = -38,
    /// Compression was negotiated (RFC 3749), which nobody should use (RFC 9325, section 3.3).
    UnsupportedCompression = -40,
    /// More than Finished of a client's handshake passed under keys that were not shared (`Policies::unread_flight`).
    UnreadFlight = -41,
    /// A connection to one of `Config::tls_ports` that does not carry TLS. Reported of flows only.
    NotTls = -39,
    /// No keys within the stall limits.
    MissingKeys = -1,
}

impl SessionError {
    /// The stable integer of this error.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// A stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integrity => "integrity_failure",
            Self::EarlyFin => "early_fin",
            Self::UnsupportedVersion => "unsupported_version",
            Self::UnsupportedCipherSuite => "unsupported_cipher_suite",
            Self::MalformedRecord => "malformed_record",
            Self::MalformedHandshake => "malformed_handshake",
            Self::KeysDoNotFit => "keys_do_not_fit",
            Self::LostSynchronisation => "lost_synchronisation",
            Self::ConflictingOverlap => "conflicting_overlap",
            Self::EarlyDataNotInspected => "early_data_not_inspected",
            Self::NothingOpened => "nothing_opened",
            Self::MemoryCap => "memory_cap",
            Self::JudgedLate => "judged_late",
            Self::NoPrivateTag => "no_private_tag",
            Self::UnsupportedCompression => "unsupported_compression",
            Self::UnreadFlight => "unread_flight",
            Self::NotTls => "not_tls",
            Self::MissingKeys => "missing_keys",
        }
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a session or flow ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndReason {
    /// FIN in both directions.
    Closed,
    /// An endpoint's RST.
    ResetByPeer(Direction),
    /// An application called [`super::Session::reset`].
    ResetByHandler,
    /// An operator asked for it ([`crate::Engine::reset_flow`]).
    ResetByOperator,
    /// A policy dropped or reset it.
    ResetByPolicy(SessionError),
    /// Idle for longer than the timeout.
    TimedOut,
    /// A new connection took over the four-tuple.
    Replaced,
    /// The engine was finished while the flow was open.
    Shutdown,
    /// Frames passed that it was not shown ([`crate::Engine::forget_flows`]).
    FailedOpen,
}

impl EndReason {
    /// Whether this side has ended it: an application, an operator, or a policy.
    #[must_use]
    pub const fn is_reset_by_monitor(self) -> bool {
        matches!(self, Self::ResetByHandler | Self::ResetByOperator | Self::ResetByPolicy(_))
    }

    /// A stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::ResetByPeer(Direction::ClientToServer) => "reset_by_client",
            Self::ResetByPeer(Direction::ServerToClient) => "reset_by_server",
            Self::ResetByHandler => "reset_by_application",
            Self::ResetByOperator => "reset_by_operator",
            Self::ResetByPolicy(_) => "reset_by_policy",
            Self::TimedOut => "timeout",
            Self::Replaced => "replaced",
            Self::Shutdown => "shutdown",
            Self::FailedOpen => "failed_open",
        }
    }
}

/// What TCP segments may show that honest peers do not send, or rarely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TcpAnomaly {
    /// The same bytes were sent twice with different content, where no session says so: before
    /// it was clear what the flow carries. Dropped.
    ConflictingOverlap,
    /// Urgent data, which receivers take out of the stream, or not. Dropped.
    UrgentData,
    /// A segment came from the other side than its sender's. Dropped.
    WrongSide,
    /// Data or a FIN where no receiver takes it: before the stream, beyond the window, behind a
    /// FIN or RST, without ACK. Dropped.
    OutOfWindow,
    /// A RST that its receiver does not obey (RFC 5961, section 3). Forwarded, without effect.
    StrayReset,
    /// A SYN or SYN-ACK that does not belong to the connection. Forwarded without effect where
    /// its receiver answers with a challenge, else dropped.
    StraySyn,
    /// An empty segment that is far from the stream, or acknowledges what was never sent, while the
    /// connection's bytes are looked at. Dropped; before both sides are proven, forwarded without effect.
    StrayAcknowledgment,
    /// The receiver has acknowledged bytes that were never seen, before it was clear what the flow
    /// carries. It meets `Policies::lost_synchronisation`.
    UnseenBytes,
    /// An answer as TLS servers give it, to something that was not recognised as TLS. It meets
    /// `Policies::lost_synchronisation`.
    MissedTls,
    /// Something else than TLS on a port of `Config::tls_ports`. It meets `Policies::not_tls`.
    NotTls,
}

impl TcpAnomaly {
    /// A stable name for logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConflictingOverlap => "conflicting_overlap",
            Self::UrgentData => "urgent_data",
            Self::WrongSide => "wrong_side",
            Self::OutOfWindow => "out_of_window",
            Self::StrayReset => "stray_reset",
            Self::StraySyn => "stray_syn",
            Self::StrayAcknowledgment => "stray_acknowledgment",
            Self::UnseenBytes => "unseen_bytes",
            Self::MissedTls => "missed_tls",
            Self::NotTls => "not_tls",
        }
    }

    /// One bit per kind.
    pub(crate) const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A flow and what was strange about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowAnomaly {
    /// The flow; equal to the session's identity when it carries TLS.
    pub id: SessionId,
    /// As [`FlowEnd::client`].
    pub client: SocketAddr,
    /// The other side.
    pub server: SocketAddr,
    /// Where the client is.
    pub place: FlowPlace,
    /// The direction of the segment, as its addresses say.
    pub direction: Direction,
    /// What it was.
    pub kind: TcpAnomaly,
    /// When, in the caller's nanoseconds.
    pub now_ns: u64,
}

/// Why a delivery was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyRefusal {
    /// The sender is not the session's client.
    WrongSender,
    /// The server random or the suite differs from what was observed.
    Mismatch,
    /// They open no record.
    OpenNothing,
    /// Too many are kept for sessions that have not been seen.
    Capacity,
    /// The session has these keys already, is over, or is not followed.
    NotNeeded,
    /// It is none of keys, but the client's refusal to share: one of too many.
    TooManyNullKeys,
}

impl KeyRefusal {
    /// Stable name, for logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WrongSender => "wrong_sender",
            Self::Mismatch => "mismatch",
            Self::OpenNothing => "open_nothing",
            Self::Capacity => "capacity",
            Self::NotNeeded => "not_needed",
            Self::TooManyNullKeys => "too_many_null_keys",
        }
    }
}

/// Keys that a session does not take.
#[derive(Clone, Copy, Debug)]
pub struct RefusedKeys<'a> {
    /// Whose they would be.
    pub session: &'a SessionInfo,
    /// Who has sent them; `None` for a key log.
    pub sender: Option<IpAddr>,
    /// Why.
    pub why: KeyRefusal,
    /// When, in the caller's nanoseconds.
    pub now_ns: u64,
}

/// The end of a TCP flow, TLS or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEnd {
    /// The flow; equal to the session's identity when it carried TLS.
    pub id: SessionId,
    /// Address and port that sent the SYN (or the first packet, when picked up mid-stream).
    pub client: SocketAddr,
    /// The other side.
    pub server: SocketAddr,
    /// Where the client is.
    pub place: FlowPlace,
    /// Whether TLS was recognised on it.
    pub tls: bool,
    /// Whether both sides have vouched for it: what one side alone sends is an attempt.
    pub established: bool,
    /// First packet, in the caller's nanoseconds.
    pub started_ns: u64,
    /// Last packet, in the caller's nanoseconds.
    pub last_ns: u64,
    /// Frames per direction (client first).
    pub packets: [u64; 2],
    /// TCP payload bytes per direction, retransmissions included (client first).
    pub bytes: [u64; 2],
    /// How it ended.
    pub reason: EndReason,
}
