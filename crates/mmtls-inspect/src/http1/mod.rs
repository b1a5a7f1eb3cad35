//! HTTP/1.0 and HTTP/1.1 as an observer of one connection sees it (RFC 9112).
//!
//! Feed both directions in stream order; events come out as soon as the bytes are there. Bodies
//! are passed on without being copied. Refuses to guess: where the endpoints could disagree about
//! where a message ends, it says so with an [`Anomaly`](crate::Anomaly) and takes everything that
//! follows in that direction as body, so that a search of bodies misses nothing.
//!
//! Not followed: what a connection becomes after CONNECT or an upgrade, content codings, multipart
//! bodies.

pub(crate) mod chunked;
pub(crate) mod fields;
mod head;
pub(crate) mod loose;
mod observer;
#[cfg(test)]
mod tests;

pub(crate) use head::is_same_host;
pub use head::{MAX_FIELDS, MAX_HEAD_LEN};
pub use observer::{BodyLeft, Http1};
