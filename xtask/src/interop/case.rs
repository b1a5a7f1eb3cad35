//! One case of the matrix: who talks to whom, how, and what of it must be seen.

use super::stacks::STACKS;
use super::suite::{Suite, Version};

/// What a case is about. Most are proved to have happened: by the endpoints, which fail when they
/// did not, and where mmTLS reports them, by the report. Sizes, paddings and the extensions behind
/// `MacThenEncrypt` and `NoExtendedMasterSecret` are asked for, and stacks may do as they like.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Feature {
    /// A full handshake, and data both ways.
    Full,
    /// Megabytes both ways: full records, many packets.
    Large,
    /// Records of seven bytes.
    SmallRecords,
    /// A second connection with a ticket.
    Ticket,
    /// A second connection with a session id (TLS 1.2).
    SessionId,
    /// A second connection whose first bytes are 0-RTT data.
    EarlyData,
    /// The client has a certificate.
    ClientCertificate,
    /// The client's certificate is asked for after the handshake.
    PostHandshakeAuth,
    /// Both sides update their keys, several times; the client asks for the server's too.
    KeyUpdate,
    /// The client's first key share is of a group that the server does not take.
    HelloRetry,
    /// Records are padded.
    Padding,
    /// The sides share a key, in TLS 1.3 outside of resumption.
    Psk,
    /// The client renegotiates, several times.
    Renegotiation,
    /// Without the extended master secret.
    NoExtendedMasterSecret,
    /// CBC, MAC-then-encrypt.
    MacThenEncrypt,
    /// max_fragment_length 512.
    MaxFragment,
    /// record_size_limit 600.
    RecordSizeLimit,
    /// A hybrid key share with ML-KEM: the ClientHello is larger than a packet.
    PostQuantum,
    /// A browser asks a server over HTTP; it offers post-quantum key shares and GREASE, of
    /// extensions and of ECH.
    Http,
}

impl Feature {
    /// In the order of the table.
    pub const ALL: [Self; 19] = [
        Self::Full,
        Self::Large,
        Self::SmallRecords,
        Self::Ticket,
        Self::SessionId,
        Self::EarlyData,
        Self::ClientCertificate,
        Self::PostHandshakeAuth,
        Self::KeyUpdate,
        Self::HelloRetry,
        Self::Padding,
        Self::Psk,
        Self::Renegotiation,
        Self::NoExtendedMasterSecret,
        Self::MacThenEncrypt,
        Self::MaxFragment,
        Self::RecordSizeLimit,
        Self::PostQuantum,
        Self::Http,
    ];

    /// As it stands in the table and in names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Large => "large",
            Self::SmallRecords => "small-records",
            Self::Ticket => "ticket",
            Self::SessionId => "session-id",
            Self::EarlyData => "early-data",
            Self::ClientCertificate => "client-certificate",
            Self::PostHandshakeAuth => "post-handshake-auth",
            Self::KeyUpdate => "key-update",
            Self::HelloRetry => "hello-retry",
            Self::Padding => "padding",
            Self::Psk => "psk",
            Self::Renegotiation => "renegotiation",
            Self::NoExtendedMasterSecret => "no-extended-master-secret",
            Self::MacThenEncrypt => "mac-then-encrypt",
            Self::MaxFragment => "max-fragment-length",
            Self::RecordSizeLimit => "record-size-limit",
            Self::PostQuantum => "post-quantum",
            Self::Http => "http",
        }
    }

    /// Whether the feature exists in a version.
    pub fn fits(self, version: Version) -> bool {
        match self {
            Self::EarlyData
            | Self::PostHandshakeAuth
            | Self::KeyUpdate
            | Self::HelloRetry
            | Self::Padding
            | Self::Psk
            | Self::PostQuantum => version == Version::V13,
            Self::SessionId
            | Self::Renegotiation
            | Self::NoExtendedMasterSecret
            | Self::MacThenEncrypt => version == Version::V12,
            _ => true,
        }
    }

    /// What both programs are told.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::SmallRecords => &["chunk=7"],
            Self::Ticket => &["resume=ticket"],
            Self::SessionId => &["resume=id"],
            Self::EarlyData => &["resume=ticket", "early=300"],
            Self::PostHandshakeAuth => &["pha=1", "rounds=2"],
            Self::KeyUpdate => &["rounds=4"],
            Self::Renegotiation => &["rounds=4", "reneg=1"],
            Self::Padding => &["pad=512"],
            Self::Psk => &["psk=000102030405060708090a0b0c0d0e0f"],
            Self::NoExtendedMasterSecret => &["ems=0"],
            Self::MacThenEncrypt => &["etm=0"],
            Self::MaxFragment => &["mfl=512"],
            Self::RecordSizeLimit => &["rsl=600"],
            Self::PostQuantum => &["groups=X25519MLKEM768"],
            _ => &[],
        }
    }

    /// What only the server is told.
    pub fn server_arguments(self) -> &'static [&'static str] {
        match self {
            Self::ClientCertificate => &["auth=1"],
            _ => &[],
        }
    }

    /// Whether the second connection resumes the first.
    pub fn resumes(self) -> bool {
        matches!(self, Self::Ticket | Self::SessionId | Self::EarlyData)
    }

    /// Connections of the case, one after the other.
    pub fn connections(self) -> usize {
        match self {
            Self::Ticket | Self::SessionId | Self::EarlyData => 2,
            // At most: the browser decides.
            Self::Http => 4,
            _ => 1,
        }
    }

    /// Bytes that client and server send on each connection.
    pub fn sizes(self) -> [usize; 2] {
        match self {
            Self::Large => [1_000_003, 2_000_003],
            Self::SmallRecords => [701, 1401],
            _ => [3001, 40_007],
        }
    }
}

/// One case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// Index of the client's stack.
    pub client: usize,
    /// Index of the server's stack.
    pub server: usize,
    /// Both are restricted to it.
    pub version: Version,
    /// Both are restricted to it, where they can be; `None` leaves the choice to them.
    pub suite: Option<Suite>,
    /// What it is about.
    pub feature: Feature,
}

impl Case {
    /// Whether the records must have a private tag: both sides know it.
    pub fn has_private_tag(&self) -> bool {
        self.version == Version::V13
            && STACKS[self.client].private_tag
            && STACKS[self.server].private_tag
            && self.suite.is_none_or(Suite::has_private_tag)
    }

    /// Whether a side knows the private tag, so that this is not a case of the ordinary matrix.
    pub fn knows_private_tag(&self) -> bool {
        [self.client, self.server].iter().any(|index| STACKS[*index].private_tag)
    }

    /// Whether the sides share a key instead of the server having a certificate.
    pub fn has_psk(&self) -> bool {
        self.feature == Feature::Psk || self.suite.is_some_and(Suite::is_psk)
    }
}
