//! The messages of the key-sharing channel, specified byte for byte in `docs/key-sharing.md`.
//!
//! Frame: version (1), type (1), body length (2, big-endian), body. Refuses: other versions,
//! messages above [`MAX_MESSAGE_BYTES`], bodies that are too short, too long or out of range.
//! Unknown types of this version are skipped. No I/O, no clock, bounded memory.

mod codec;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

pub use codec::{Decoded, Decoder, decode, encode, encode_into, encode_relayed};

/// Who sends the records that a key protects.
pub use mmtls_tls::Direction;
use mmtls_tls::KeyEpoch;

use crate::{Flow, SecretBytes};

/// The version in every frame.
pub const VERSION: u8 = 1;
/// The application protocol name of the channel (RFC 7301).
pub const ALPN: &[u8] = b"mmtls-keys/1";
/// Length of the frame header.
pub const HEADER_BYTES: usize = 4;
/// Longest message, header included.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Most keys in one [`SessionKeys`].
pub const MAX_KEYS: usize = 16;
/// Longest ClientHello in [`EchKeyRequest`]: with all that is around it, also in [`Relayed`], it fits into a message.
pub const MAX_CLIENT_HELLO_BYTES: usize = MAX_MESSAGE_BYTES - 128;
/// Longest software name in [`Greeting`].
pub const MAX_SOFTWARE_BYTES: usize = 255;

/// The `random` field of a hello.
pub type Random = [u8; 32];

/// A period during which one direction uses one key.
///
/// 0 is early data, 1 the handshake, 2 + n the application traffic after n KeyUpdates
/// (RFC 8446, section 4.6.3). In TLS 1.2 it is always 2: a renegotiation has a client random of
/// its own, and with it keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u32);

impl Epoch {
    /// Early data (0-RTT).
    pub const EARLY_DATA: Self = Self(0);
    /// Encrypted handshake messages.
    pub const HANDSHAKE: Self = Self(1);
    /// Application traffic before any KeyUpdate.
    pub const APPLICATION: Self = Self(2);

    /// Application traffic after `updates` KeyUpdates; `None` above 2^32 - 3.
    #[must_use]
    pub fn application(updates: u32) -> Option<Self> {
        updates.checked_add(Self::APPLICATION.0).map(Self)
    }

    /// How many KeyUpdates came before, or `None` when this is not application traffic.
    #[must_use]
    pub fn updates(self) -> Option<u32> {
        self.0.checked_sub(Self::APPLICATION.0)
    }

    /// The number of an epoch; `None` above 2^32 - 3 KeyUpdates.
    #[must_use]
    pub fn from_key_epoch(epoch: KeyEpoch) -> Option<Self> {
        match epoch {
            KeyEpoch::EarlyData => Some(Self::EARLY_DATA),
            KeyEpoch::Handshake => Some(Self::HANDSHAKE),
            KeyEpoch::Application(updates) => Self::application(updates),
        }
    }
}

impl From<Epoch> for KeyEpoch {
    fn from(epoch: Epoch) -> Self {
        match epoch.updates() {
            Some(updates) => Self::Application(updates),
            None if epoch == Epoch::EARLY_DATA => Self::EarlyData,
            None => Self::Handshake,
        }
    }
}

/// The keys of one direction and epoch; wiped when dropped.
pub struct KeyEntry {
    /// Who sends with these keys.
    pub direction: Direction,
    /// When they are used.
    pub epoch: Epoch,
    /// AEAD or cipher key, not empty.
    pub key: SecretBytes<32>,
    /// Static IV (TLS 1.3, AEAD suites of TLS 1.2); may be empty.
    pub iv: SecretBytes<16>,
    /// MAC key of the CBC suites of TLS 1.2; else empty.
    pub mac_key: SecretBytes<64>,
}

impl KeyEntry {
    /// Copies the keys; `None` when one is too long for any suite.
    #[must_use]
    pub fn new(
        direction: Direction,
        epoch: Epoch,
        key: &[u8],
        iv: &[u8],
        mac_key: &[u8],
    ) -> Option<Self> {
        let (key, iv) = (SecretBytes::new(key)?, SecretBytes::new(iv)?);
        Some(Self { direction, epoch, key, iv, mac_key: SecretBytes::new(mac_key)? })
    }
}

/// Body of [`Message::Hello`] and [`Message::Welcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Name and version of the program, for people; at most 255 bytes without control characters.
    pub software: String,
    /// [`Self::FIRST_KEYS_ON_REQUEST`] and others. A sender sets only bits it knows; a receiver ignores others.
    pub capabilities: u32,
}

impl Greeting {
    /// Of a hello: this endpoint has secrets, and does not know of which version, suite and server random their
    /// sessions are (a key log tells none of it). It is asked for the first application keys, too, and answers when
    /// it has the secret.
    pub const FIRST_KEYS_ON_REQUEST: u32 = 1;
    /// The same for the handshake's keys.
    pub const HANDSHAKE_KEYS_ON_REQUEST: u32 = 2;
    /// Of a hello: this is a key server, which speaks for the endpoints that have connected to it. It needs a certificate
    /// with a name that the middlebox was told.
    pub const KEY_SERVER: u32 = 4;
}

/// A key server tells of an endpoint that has connected to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointOpened {
    /// What the key server calls it; used for one endpoint in the life of a connection.
    pub endpoint: u32,
    /// Where it connects from.
    pub address: SocketAddr,
    /// Of its hello.
    pub capabilities: u32,
    /// Whether it has shown a certificate to the key server.
    pub authenticated: bool,
}

/// How a middlebox shares connections out among its workers: with the addresses and ports of one, and these, a key server
/// knows which worker has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Workers, at least one.
    pub workers: u32,
    /// What nobody else knows.
    pub seed: u32,
}

/// A message from or for an endpoint of a key server.
pub struct Relayed {
    /// Which endpoint.
    pub endpoint: u32,
    /// [`Message::SessionKeys`], [`Message::NullKeys`], [`Message::LiveKeys`], [`Message::KeyRequest`],
    /// [`Message::EchKeyRequest`], [`Message::LiveKeysRequest`] or [`Message::Refused`].
    pub message: Box<Message>,
}

/// Record keys of one session; wiped when dropped.
pub struct SessionKeys {
    /// From the ClientHello that the server answered with its ServerHello.
    pub client_random: Random,
    /// From the ServerHello, where the sender knows it.
    pub server_random: Option<Random>,
    /// Negotiated version, such as 0x0304.
    pub version: u16,
    /// Negotiated cipher suite.
    pub cipher_suite: u16,
    /// The connection's ends, where the sender knows them.
    pub flow: Option<Flow>,
    /// One to [`MAX_KEYS`] keys.
    pub keys: Vec<KeyEntry>,
}

impl SessionKeys {
    /// A copy for a session of another random: see [`EchKeyRequest`].
    #[must_use]
    pub fn renamed(&self, client_random: Random) -> Self {
        let &Self { server_random, version, cipher_suite, flow, .. } = self;
        let copy = |entry: &KeyEntry| KeyEntry {
            direction: entry.direction,
            epoch: entry.epoch,
            key: entry.key.copy(),
            iv: entry.iv.copy(),
            mac_key: entry.mac_key.copy(),
        };
        let keys = self.keys.iter().map(copy).collect();
        Self { client_random, server_random, version, cipher_suite, flow, keys }
    }
}

/// "This session is private": no keys will come, the monitor is to let it pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullKeys {
    /// From the ClientHello.
    pub client_random: Random,
    /// Only what is sent this way is private; `None`: all of it.
    pub direction: Option<Direction>,
    /// The connection's ends, where the sender knows them.
    pub flow: Option<Flow>,
}

/// The monitor asks an endpoint for the keys of one direction and epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// From the ClientHello.
    pub client_random: Random,
    /// From the ServerHello.
    pub server_random: Random,
    /// Negotiated version.
    pub version: u16,
    /// Negotiated cipher suite.
    pub cipher_suite: u16,
    /// Whose keys.
    pub direction: Direction,
    /// Which keys.
    pub epoch: Epoch,
}

/// As [`KeyRequest`], of a session whose ClientHello has an encrypted one in it (Encrypted Client Hello): the endpoint may
/// know it by the random of that one. Answers have the random of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EchKeyRequest {
    /// What is asked for.
    pub request: KeyRequest,
    /// The connection's ends.
    pub flow: Option<Flow>,
    /// The body of the session's first ClientHello, at most [`MAX_CLIENT_HELLO_BYTES`]: an endpoint that has the shared secret of
    /// the hello inside finds its random. Empty where it is longer, and in all but the first
    /// question of each epoch before any KeyUpdate.
    pub client_hello: Arc<[u8]>,
}

/// "I will not": the answer to keys that are not accepted or to a request that is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The session that is meant.
    pub client_random: Random,
    /// Why.
    pub reason: Reason,
}

/// Why something was refused. Unknown numbers survive as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(pub u16);

impl Reason {
    /// The sender may not share keys for this flow's client address.
    pub const ADDRESS: Self = Self(1);
    /// No room for more sessions.
    pub const CAPACITY: Self = Self(2);
    /// Version, suite or key lengths are not supported.
    pub const UNSUPPORTED: Self = Self(3);
    /// The session is not known here (any more).
    pub const UNKNOWN_SESSION: Self = Self(4);
    /// Policy of this side forbids it.
    pub const POLICY: Self = Self(5);
    /// The session has another server random or suite.
    pub const MISMATCH: Self = Self(6);
    /// The keys open no record of the session.
    pub const OPEN_NOTHING: Self = Self(7);
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ADDRESS => f.write_str("not the sender's address"),
            Self::CAPACITY => f.write_str("no capacity"),
            Self::UNSUPPORTED => f.write_str("not supported"),
            Self::UNKNOWN_SESSION => f.write_str("unknown session"),
            Self::POLICY => f.write_str("forbidden by policy"),
            Self::MISMATCH => f.write_str("the session has another server random or suite"),
            Self::OPEN_NOTHING => f.write_str("the keys open no record of the session"),
            Self(other) => write!(f, "reason {other}"),
        }
    }
}

/// One message. Not `Debug` or `Clone`, because it may hold keys.
pub enum Message {
    /// First message of an endpoint.
    Hello(Greeting),
    /// The middlebox's answer; the endpoint sends nothing else before it.
    Welcome(Greeting),
    /// Endpoint to middlebox.
    SessionKeys(SessionKeys),
    /// Endpoint to middlebox.
    NullKeys(NullKeys),
    /// Middlebox to endpoint.
    KeyRequest(KeyRequest),
    /// Either way.
    Refused(Refused),
    /// Either way; answered by a pong with the same number.
    Ping(u64),
    /// Answer to a ping.
    Pong(u64),
    /// Middlebox to endpoint: there are connections whose beginning it has not seen.
    LiveKeysRequest,
    /// Endpoint to middlebox: the answer, one of each session that may be under way.
    LiveKeys(SessionKeys),
    /// Key server to middlebox.
    EndpointOpened(EndpointOpened),
    /// Key server to middlebox: this endpoint is gone.
    EndpointClosed(u32),
    /// Between a key server and a middlebox, either way.
    Relayed(Relayed),
    /// Middlebox to endpoint.
    EchKeyRequest(EchKeyRequest),
    /// Middlebox to key server.
    Steering(Steering),
}

impl Message {
    /// The type number on the wire.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 1,
            Self::Welcome(_) => 2,
            Self::SessionKeys(_) => 3,
            Self::NullKeys(_) => 4,
            Self::KeyRequest(_) => 5,
            Self::Refused(_) => 6,
            Self::Ping(_) => 7,
            Self::Pong(_) => 8,
            Self::LiveKeysRequest => 9,
            Self::LiveKeys(_) => 10,
            Self::EndpointOpened(_) => 11,
            Self::EndpointClosed(_) => 12,
            Self::Relayed(_) => 13,
            Self::EchKeyRequest(_) => 14,
            Self::Steering(_) => 15,
        }
    }

    /// Whether a key server may relay it.
    fn is_relayable(&self) -> bool {
        match self {
            Self::SessionKeys(_)
            | Self::NullKeys(_)
            | Self::KeyRequest(_)
            | Self::EchKeyRequest(_)
            | Self::Refused(_)
            | Self::LiveKeysRequest
            | Self::LiveKeys(_) => true,
            Self::Hello(_)
            | Self::Welcome(_)
            | Self::Ping(_)
            | Self::Pong(_)
            | Self::EndpointOpened(_)
            | Self::EndpointClosed(_)
            | Self::Relayed(_)
            | Self::Steering(_) => false,
        }
    }
}

/// Why bytes are not a message: the peer's fault, and the channel must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A version other than [`VERSION`].
    Version(u8),
    /// The announced message is longer than [`MAX_MESSAGE_BYTES`].
    TooLong {
        /// Announced length, header included.
        bytes: usize,
    },
    /// The body ends inside a field of a message of this type.
    Truncated(u8),
    /// The body goes on after the last field of a message of this type.
    Trailing(u8),
    /// A field of a message of this type has a value that is not allowed.
    Value {
        /// Type of the message.
        kind: u8,
        /// Name of the field in the specification.
        field: &'static str,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "version {version} of key messages is unknown"),
            Self::TooLong { bytes } => write!(f, "key message of {bytes} bytes is too long"),
            Self::Truncated(kind) => write!(f, "key message of type {kind} is cut short"),
            Self::Trailing(kind) => write!(f, "key message of type {kind} has bytes left over"),
            Self::Value { kind, field } => {
                write!(f, "key message of type {kind}: bad value of {field}")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

/// Why a message cannot be sent: the caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// [`SessionKeys`] with no key, an empty key, or more than [`MAX_KEYS`] keys.
    Keys,
    /// A software name that is too long or has control characters.
    Software,
    /// A message that is not relayed.
    Relayed,
    /// A ClientHello that is too long.
    ClientHello,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys => f.write_str("a key message needs 1 to 16 keys, none of them empty"),
            Self::Software => f.write_str("software name is too long or has control characters"),
            Self::Relayed => f.write_str("a message of this type is not relayed"),
            Self::ClientHello => f.write_str("ClientHello is too long"),
        }
    }
}

impl std::error::Error for EncodeError {}
