//! Following one TLS session: from contiguous bytes to records, keys and events.
//!
//! Refuses to know packets: it answers with a [`crate::session::Disposition`], and says which direction waits for keys.

mod early;
mod handshake;
mod opened;
mod records;
mod search;
mod sink;
mod state;
mod stream;
mod tls12;

pub(crate) use sink::SessionSink;
pub(crate) use state::{Context, TlsSession};
