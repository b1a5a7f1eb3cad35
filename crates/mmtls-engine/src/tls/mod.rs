//! TLS as an observer sees it: record framing, handshake messages, hellos, key epochs.
//!
//! Refuses to decrypt; that is behind [`OpenRecord`].

mod deframer;
mod enums;
mod handshake;
mod hello;
mod protection;

pub(crate) use deframer::{Deframed, RecordHeader, deframe};
pub use enums::{
    CipherSuite, ContentType, Direction, ExtensionType, HandshakeType, KeyEpoch, ProtocolVersion,
};
pub(crate) use handshake::{MessageBuffer, MessageWalker};
pub(crate) use hello::{ClientHello, EncryptedExtensions, Malformed, Reader, ServerHello};
pub use protection::{MAX_CIPHERTEXT_LEN, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN};
