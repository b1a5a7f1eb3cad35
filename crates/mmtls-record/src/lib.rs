//! Record protection of TLS 1.3 and the key schedule behind it.
//!
//! Refuses to see packets or flows, to log, and to give secrets `Debug` or `Clone`. TLS 1.2 and
//! the CCM suites have their place in [`suite`]: known by name, refused with
//! [`KeyError::UnsupportedSuite`] until they are built.
#![forbid(unsafe_code)]

mod error;
pub mod key_schedule;
mod seal;
pub mod suite;
mod tls13;

pub use error::KeyError;
pub use seal::Tls13Sealer;
pub use tls13::Tls13Opener;
