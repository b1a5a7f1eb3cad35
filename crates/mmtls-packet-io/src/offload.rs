//! Connections that are left to the ports, whole or in part: what they are to forward by themselves, and what they have.

use std::net::SocketAddr;

use crate::Port;

/// A connection of which a back end may forward plain segments without showing them to anybody. SYN, FIN and RST, and what is
/// unusual, it shows as before.
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
    /// The same of the other direction.
    pub peer_initial: u32,
    /// Stream offset up to which everything has been forwarded: only once a segment stands exactly there may the back end
    /// begin, since others may still wait to be decided about.
    pub position: u64,
    /// Which of its segments may go.
    pub extent: Extent,
}

/// By how many numbers the distances of a segment's two numbers from the beginnings of the two directions may differ, either way,
/// if a SYN cookie is to take it for the beginning of another connection (RFC 4987, section 3.6): Linux has a segment size in them.
pub(crate) const COOKIE_SLACK: u32 = 3;

/// Which plain segments of a direction a back end may forward by itself. Of the last two none whose numbers are as far from the
/// beginnings of the two directions, within 3: a receiver that has lost the connection may begin another one with it,
/// which has to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of them, in any order.
    Everything,
    /// Those without payload: of the direction across from one of [`Extent::Records`].
    Acknowledgments,
    /// Those without payload, and those that go on exactly where the last one ended, as long as only records begin in
    /// them that may pass.
    Records(Records),
}

/// TLS records that nobody reads: of application data, with a version of 3.3 in their header and fragments of
/// [`Records::FRAGMENT`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Records {
    /// Stream offset of the next one's header.
    pub next: u64,
    /// Bytes of content that may pass.
    pub content: u64,
    /// What of a fragment is not content, in bytes: fewer than the shortest fragment has.
    pub overhead: u16,
}

impl Records {
    /// How long their fragments are.
    pub const FRAGMENT: core::ops::RangeInclusive<u16> = 1024..=16384 + 256;
}

/// What of a direction was forwarded so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Frames; a super-frame is one.
    pub frames: u64,
    /// Bytes of TCP payload in them.
    pub payload_bytes: u64,
    /// Stream offset behind the last byte; where nothing was 0, or what was asked for.
    pub position: u64,
    /// The latest acknowledgment number in them, where [`Extent::Acknowledgments`] went.
    pub acknowledgment: Option<u32>,
    /// Records that began in them, where [`Extent::Records`] did.
    pub records: ForwardedRecords,
}

/// Records that were forwarded by a back end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedRecords {
    /// How many.
    pub count: u64,
    /// Bytes of content in them.
    pub content: u64,
    /// Stream offset behind the last one, which is perhaps further than was forwarded.
    pub next: u64,
    /// How long the fragments of the latest ones are, in order: of all, unless they are too many.
    pub fragment_lens: Vec<u16>,
}
