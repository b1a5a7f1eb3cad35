//! The key-sharing channel of mmTLS: messages, client, server, and key-log lines.
//!
//! An endpoint that wants its sessions inspected sends the *record keys* of each direction and
//! epoch to the middlebox over TLS 1.3. Traffic secrets never leave the endpoint's host: they
//! would give away every later epoch and the private-tag key (RFC 8446, section 7).
//!
//! * [`message`]: what goes over the channel, specified in `docs/key-sharing.md`.
//! * [`agent`]: what goes from a program to the agent on its own host.
//! * [`keylog`]: lines of key logs.
//! * [`ech`]: requests for sessions with Encrypted Client Hello.
//! * [`policy`]: which server names are exempt.
//! * [`sealed`]: datagrams from a key server to a middlebox's worker.
//! * [`channel`]: `client` and `server` (features of these names), over TLS 1.3. It is the only
//!   module that touches sockets, threads and clocks.
//!
//! Refuses: unbounded queues, messages above 4 KiB, blocking or panicking in a sender.

#![forbid(unsafe_code)]

pub mod agent;
#[cfg(any(feature = "client", feature = "server"))]
pub mod channel;
pub mod ech;
mod flow;
pub mod keylog;
pub mod message;
pub mod policy;
#[cfg(any(feature = "client", feature = "server"))]
pub mod sealed;
mod secret;
mod wire;

#[cfg(feature = "client")]
pub use channel::client;
#[cfg(feature = "server")]
pub use channel::server;
pub use flow::Flow;
pub use secret::SecretBytes;
