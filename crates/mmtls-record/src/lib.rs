//! Record protection of TLS 1.2 and 1.3, the key schedules behind it, and the way from secrets to keys ([`keyring`]).
//!
//! Refuses to see packets or flows, to log, and to give secrets `Debug` or `Clone`. What can be
//! opened is listed in [`suite`]; everything else is refused with [`KeyError::UnsupportedSuite`]
//! or [`KeyError::UnsupportedVersion`].
#![forbid(unsafe_code)]

mod aead;
mod error;
pub mod key_schedule;
pub mod keyring;
mod locate;
mod open;
mod opening_key;
pub mod private_tag;
mod seal;
pub mod suite;
mod tls12;
mod tls13;
mod tls13_record;

pub use error::KeyError;
pub use keyring::{Keyring, SessionParameters};
pub use locate::record_locator;
pub use mmtls_tls::{
    ContentType, Direction, KeyEpoch, LocateRecord, OpenError, OpenRecord, Opened,
};
pub use open::open_record;
pub use private_tag::{PrivateTagOpener, PrivateTagSealer};
pub use seal::{Sealer, Tls13Sealer};
pub use tls13::Tls13Opener;
