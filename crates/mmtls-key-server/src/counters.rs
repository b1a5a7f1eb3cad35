//! What a key server counts. Refuses nothing by itself.

use mmtls_keyshare::client::ClientCounters;
use mmtls_keyshare::server::ServerCounters;
use mmtls_packet_io::PortCounters;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Of the endpoints' connections.
    pub server: ServerCounters,
    /// Of the middlebox's connection.
    pub client: ClientCounters,
    /// Keys, and refusals, that were sealed into datagrams.
    pub sealed: u64,
    /// Messages that went over the middlebox's connection.
    pub relayed: u64,
    /// The interface's.
    pub interface: PortCounters,
}
