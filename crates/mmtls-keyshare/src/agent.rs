//! What a program tells the agent on its own host: secrets of its sessions, or that a session is
//! exempt. Local only: the socket is private to one user, and this format never goes on a wire.
//!
//! Refuses what is no such datagram.

pub(crate) mod datagram;

pub use self::datagram::{
    Datagram, DatagramError, Exempt, MAX_DATAGRAM_BYTES, MAX_SECRET_BYTES, Role, SecretKind,
    TrafficSecret, VERSION,
};
#[cfg(feature = "client")]
pub use crate::channel::agent_socket as socket;

/// Names the agent's socket in a program's environment.
pub const SOCKET_VARIABLE: &str = "MMTLS_AGENT";
/// Names the exempt servers in a program's environment (see [`crate::policy::ServerNames`]).
pub const EXEMPT_VARIABLE: &str = "MMTLS_EXEMPT";
/// When it is `1`, a program shares also the sessions in which it is the server.
pub const SHARE_SERVER_VARIABLE: &str = "MMTLS_SHARE_SERVER";
/// When it is `1`, a program shares also its handshake secrets, which show certificates.
pub const SHARE_HANDSHAKE_VARIABLE: &str = "MMTLS_SHARE_HANDSHAKE";
