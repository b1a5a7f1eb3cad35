//! TLS as an observer of the wire sees it: record framing, handshake messages, hellos, key epochs.
//!
//! No cryptography: how records are opened is behind [`OpenRecord`], which `mmtls-record` implements.
//! No dependencies, no unsafe code, nothing that waits; what is parsed is bounded by what TLS allows.
#![forbid(unsafe_code)]

mod deframer;
mod ech;
mod enums;
mod handshake;
mod hello;
mod offer;
mod protection;

pub use deframer::{Deframed, RecordHeader, deframe};
pub use ech::{EchConfig, SealedHello};
pub use enums::{
    CipherSuite, ContentType, Direction, ExtensionType, HandshakeType, KeyEpoch, ProtocolVersion,
};
pub use handshake::{MessageBuffer, TooLong};
pub use hello::{ClientHello, EncryptedExtensions, Malformed, Reader, ServerHello};
pub use offer::{ClientOffer, Hellos, MAX_LISTED, ServerChoice, is_grease};
pub use protection::{
    LocateRecord, MAX_CIPHERTEXT_LEN, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN,
};
