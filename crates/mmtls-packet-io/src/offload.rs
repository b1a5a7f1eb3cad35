//! Connections that are left to the ports: what they are to forward by themselves, and what they have.

use std::net::SocketAddr;

use crate::Port;

/// A connection whose plain segments a back end may forward without showing them to anybody, in both directions. SYN, FIN and
/// RST, and what is unusual, it shows as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadFlow {
    /// Its directions.
    pub sides: [OffloadSide; 2],
}

/// One direction of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadSide {
    /// Where its frames come in.
    pub ingress: Port,
    /// Who sends them.
    pub source: SocketAddr,
    /// To whom.
    pub destination: SocketAddr,
    /// Sequence number of stream offset 0.
    pub initial: u32,
    /// Stream offset up to which everything has been forwarded: only once a segment stands exactly there may the back end
    /// begin, since others may still wait to be decided about.
    pub position: u64,
}

/// What of a direction was forwarded so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Frames; a super-frame is one.
    pub frames: u64,
    /// Bytes of TCP payload in them.
    pub payload_bytes: u64,
    /// Stream offset behind the last byte; 0 where nothing was.
    pub position: u64,
}
