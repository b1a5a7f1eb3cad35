//! The channel itself: the only module of this crate that touches sockets, threads and clocks.
//!
//! TLS 1.3 only, ALPN `mmtls-keys/1`. Refuses other versions and other protocols.

#[cfg(feature = "server")]
mod admission;
#[cfg(feature = "client")]
pub mod agent_socket;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
mod connection;
#[cfg(feature = "client")]
mod dial;
#[cfg(feature = "client")]
mod link;
#[cfg(feature = "server")]
mod orders;
#[cfg(feature = "server")]
mod peer;
#[cfg(feature = "client")]
mod pin;
#[cfg(feature = "server")]
mod queue;
#[cfg(feature = "server")]
mod relay;
#[cfg(feature = "client")]
mod sending;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
mod sink;
mod socket;
#[cfg(feature = "client")]
mod source;
mod tls;
