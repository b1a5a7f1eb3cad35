//! mmTLS in programs that use rustls: cipher suites with a private tag, and key sharing.
//!
//! One line before the first connection, on clients and servers alike, gives a program the five
//! suites of `docs/private-tag.md` in front of the ordinary ones; peers that do not know them get
//! an ordinary suite, without another round trip:
//!
//! ```
//! mmtls_endpoint::provider().install_default().expect("no other provider was installed");
//! ```
//!
//! A client that also shares its record keys with a middlebox asks [`Sharing`] for its
//! configuration per connection:
//!
//! ```no_run
//! # use std::{error::Error, path::PathBuf, sync::Arc};
//! # use mmtls_endpoint::Sharing;
//! # use mmtls_keyshare::{client::ClientConfig as Channel, policy::ServerNames};
//! # fn connect(config: &rustls::ClientConfig) -> Result<(), Box<dyn Error>> {
//! let channel = Channel::new(vec!["middlebox.test@192.0.2.1:4433".parse()?], "ca.pem".into());
//! let sharing = Sharing::start(channel, ServerNames::parse("*.bank.test")?)?;
//! let name = "server.test".try_into()?;
//! let connection = rustls::ClientConnection::new(sharing.client_config(config, &name), name)?;
//! # Ok(())
//! # }
//! ```
//!
//! Refuses: to give away a traffic secret or a private-tag key, QUIC (its packets are no TLS
//! records), handing these suites' keys to the kernel, and to work through anything but rustls'
//! published crypto-provider interface.

#![forbid(unsafe_code)]

mod hkdf;
mod protection;
mod sessions;
mod sharing;
mod suites;

pub use sharing::Sharing;
pub use suites::{PRIVATE_TAG_SUITES, has_private_tag, provider};
