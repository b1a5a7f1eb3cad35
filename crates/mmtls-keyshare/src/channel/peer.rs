//! Who is at the other end of a connection to the key server. Refuses nothing by itself.

use std::net::SocketAddr;

/// Names one connection for the life of the server; never used twice. Later ones are greater (until 2^31 have been).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Whether it is a key server, which speaks for others.
    pub is_key_server: bool,
}

/// A connection's number has the connection's own in the upper half (never its highest bit) and its place in the lower
/// one; that of an endpoint behind a key server has the highest bit, the number of the key server's connection, and what
/// the key server calls it.
const RELAYED: u64 = 1 << 63;

impl ConnectionId {
    /// The `count`-th connection, at this place.
    pub(super) fn of_place(count: u32, slot: usize) -> Self {
        Self(u64::from(count & i32::MAX as u32) << 32 | slot as u64 & u64::from(u32::MAX))
    }

    /// An endpoint of a key server with this connection.
    #[must_use]
    pub fn of_endpoint(key_server: Self, endpoint: u32) -> Self {
        Self(RELAYED | key_server.count() << 32 | u64::from(endpoint))
    }

    /// The number of the connection itself, or of the key server's.
    pub(super) fn count(self) -> u64 {
        (self.0 & !RELAYED) >> 32
    }

    /// A number for the connection that no other connection of this server's has had lately.
    #[must_use]
    pub fn serial(self) -> u32 {
        self.count() as u32
    }

    /// The place, or what the key server calls it.
    pub(super) fn low(self) -> u32 {
        self.0 as u32
    }

    pub(super) fn is_relayed(self) -> bool {
        self.0 & RELAYED != 0
    }
}
