//! Who is at the other end of a connection to the key server. Refuses nothing by itself.

use std::net::SocketAddr;

/// Names one connection for the life of the server; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(pub(super) u64);

impl ConnectionId {
    /// The one with this number, if there is or was one.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// A number for it, never 0.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Who sent a message.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address; IPv4-mapped addresses are given as IPv4.
    pub address: SocketAddr,
    /// For answers.
    pub connection: ConnectionId,
    /// What its hello offers: bits of [`Greeting`](crate::message::Greeting).
    pub capabilities: u32,
    /// Whether it showed a certificate that the configured authority signed.
    pub authenticated: bool,
}
