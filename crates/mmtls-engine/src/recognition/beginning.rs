//! What a reading of a connection comes to when it finds TLS.

use super::upgrade::Upgrade;

/// Bytes of a direction that are looked at in order, and kept at most.
pub(crate) const MAX_BYTES: usize = 16 << 10;

/// The first bytes of a TLS stream inside a connection; everything that was given before them is
/// another protocol's.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The client's bytes so far.
    pub(crate) client: Vec<u8>,
    /// The server's, since the client's first one, or since the connection began.
    pub(crate) server: Vec<u8>,
    /// The server has said more than is kept.
    pub(crate) server_lost: bool,
    /// The protocol in front.
    pub(crate) upgrade: Option<Upgrade>,
    /// The hello is one of SSL 2.0.
    pub(crate) ssl2: bool,
    /// The client of TLS is not the one that the flow has for its client: both of its directions are
    /// meant the other way round.
    pub(crate) reversed: bool,
}
