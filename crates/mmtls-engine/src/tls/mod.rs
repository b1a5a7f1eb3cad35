//! TLS as an observer sees it: record framing, handshake messages, hellos, key epochs.
//!
//! Refuses to decrypt; that is behind [`OpenRecord`].

mod enums;
mod protection;

pub use enums::{
    CipherSuite, ContentType, Direction, ExtensionType, HandshakeType, KeyEpoch, ProtocolVersion,
};
pub use protection::{MAX_CIPHERTEXT_LEN, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN};
