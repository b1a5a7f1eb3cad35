//! TLS registry numbers as newtypes over the wire integer, so that unknown values survive.
//!
//! Refuses nothing: a number is not an error until somebody has to act on it.

use core::fmt;

macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        $name:ident($int:ty) { $($(#[$vmeta:meta])* $konst:ident = $value:expr, $text:expr;)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$vmeta])* pub const $konst: Self = Self($value);)*

            /// The registered name, when it is one of the values this project knows.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#06x}", self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

wire_enum! {
    /// Record content type (RFC 8446, section 5.1).
    ContentType(u8) {
        CHANGE_CIPHER_SPEC = 20, "change_cipher_spec";
        ALERT = 21, "alert";
        HANDSHAKE = 22, "handshake";
        APPLICATION_DATA = 23, "application_data";
    }
}

wire_enum! {
    /// Handshake message type (RFC 8446, section 4).
    HandshakeType(u8) {
        HELLO_REQUEST = 0, "hello_request";
        CLIENT_HELLO = 1, "client_hello";
        SERVER_HELLO = 2, "server_hello";
        NEW_SESSION_TICKET = 4, "new_session_ticket";
        END_OF_EARLY_DATA = 5, "end_of_early_data";
        ENCRYPTED_EXTENSIONS = 8, "encrypted_extensions";
        CERTIFICATE = 11, "certificate";
        CERTIFICATE_REQUEST = 13, "certificate_request";
        SERVER_HELLO_DONE = 14, "server_hello_done";
        CERTIFICATE_VERIFY = 15, "certificate_verify";
        FINISHED = 20, "finished";
        KEY_UPDATE = 24, "key_update";
        COMPRESSED_CERTIFICATE = 25, "compressed_certificate";
    }
}

wire_enum! {
    /// Protocol version (RFC 8446, section 4.1.2; draft and GREASE values survive as numbers).
    ProtocolVersion(u16) {
        SSL_2_0 = 0x0002, "SSLv2";
        SSL_3_0 = 0x0300, "SSLv3";
        TLS_1_0 = 0x0301, "TLS 1.0";
        TLS_1_1 = 0x0302, "TLS 1.1";
        TLS_1_2 = 0x0303, "TLS 1.2";
        TLS_1_3 = 0x0304, "TLS 1.3";
    }
}

wire_enum! {
    /// Cipher suite (RFC 8446, appendix B.4; `docs/private-tag.md`, section 2).
    CipherSuite(u16) {
        TLS_AES_128_GCM_SHA256 = 0x1301, "TLS_AES_128_GCM_SHA256";
        TLS_AES_256_GCM_SHA384 = 0x1302, "TLS_AES_256_GCM_SHA384";
        TLS_CHACHA20_POLY1305_SHA256 = 0x1303, "TLS_CHACHA20_POLY1305_SHA256";
        TLS_AES_128_CCM_SHA256 = 0x1304, "TLS_AES_128_CCM_SHA256";
        TLS_AES_128_CCM_8_SHA256 = 0x1305, "TLS_AES_128_CCM_8_SHA256";
        MMTLS_AES_128_GCM_SHA256 = 0xff31, "MMTLS_AES_128_GCM_SHA256";
        MMTLS_AES_256_GCM_SHA384 = 0xff32, "MMTLS_AES_256_GCM_SHA384";
        MMTLS_CHACHA20_POLY1305_SHA256 = 0xff33, "MMTLS_CHACHA20_POLY1305_SHA256";
        MMTLS_AES_128_CCM_SHA256 = 0xff34, "MMTLS_AES_128_CCM_SHA256";
        MMTLS_AES_128_CCM_8_SHA256 = 0xff35, "MMTLS_AES_128_CCM_8_SHA256";
    }
}

impl CipherSuite {
    /// Whether every record ends with a second tag whose key only the endpoints have.
    #[must_use]
    pub const fn has_private_tag(self) -> bool {
        matches!(self.0, 0xff31..=0xff35)
    }
}

wire_enum! {
    /// Extension type (RFC 8446, section 4.2), those that the observer reads.
    ExtensionType(u16) {
        SERVER_NAME = 0, "server_name";
        SUPPORTED_GROUPS = 10, "supported_groups";
        EC_POINT_FORMATS = 11, "ec_point_formats";
        SIGNATURE_ALGORITHMS = 13, "signature_algorithms";
        ALPN = 16, "application_layer_protocol_negotiation";
        ENCRYPT_THEN_MAC = 22, "encrypt_then_mac";
        PRE_SHARED_KEY = 41, "pre_shared_key";
        EARLY_DATA = 42, "early_data";
        SUPPORTED_VERSIONS = 43, "supported_versions";
        ENCRYPTED_CLIENT_HELLO = 0xfe0d, "encrypted_client_hello";
    }
}

/// One of the two byte streams of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// What the client sends: the side that sent the TCP SYN.
    ClientToServer,
    /// What the server sends.
    ServerToClient,
}

impl Direction {
    /// Both directions, client first.
    pub const BOTH: [Self; 2] = [Self::ClientToServer, Self::ServerToClient];

    /// The opposite direction.
    #[must_use]
    pub const fn reverse(self) -> Self {
        match self {
            Self::ClientToServer => Self::ServerToClient,
            Self::ServerToClient => Self::ClientToServer,
        }
    }

    pub const fn index(self) -> usize {
        match self {
            Self::ClientToServer => 0,
            Self::ServerToClient => 1,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClientToServer => "to_server",
            Self::ServerToClient => "to_client",
        })
    }
}

/// Which keys of a direction are meant (RFC 8446, section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum KeyEpoch {
    /// 0-RTT data, client to server only.
    EarlyData,
    /// The encrypted part of the handshake.
    Handshake,
    /// Application traffic keys; 0 at first, one more after each KeyUpdate.
    Application(u32),
}
