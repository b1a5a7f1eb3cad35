//! Following one TLS session: from contiguous bytes to records, keys and events.
//!
//! ```text
//!  session      bytes to records, stalls
//!  protocol     what records mean: handshake, keys; hands each record to the version that reads it
//!  negotiation  the hellos: what was agreed
//!  tls12 tls13  how records are read once it is known which version it is: one state each
//!  search       the first record of a direction, where the beginning was not seen
//!  resting      a session that is idle
//!  reporter     what is known and was decided; raises the events, applies the policies
//! ```
//!
//! Refuses to know packets, and the application: it answers with a [`crate::session::Disposition`], says which direction
//! waits for keys, and talks through a [`SessionSink`].

mod ahead;
mod context;
mod contradiction;
mod epoch;
mod key_candidates;
mod negotiation;
mod protocol;
mod reporter;
mod resting;
mod search;
mod session;
mod sink;
mod stream;
mod tls12;
mod tls13;

pub(crate) use context::Context;
pub(crate) use resting::RestingSession;
pub(crate) use search::RecordSearch;
pub(crate) use session::TlsSession;
pub(crate) use sink::SessionSink;
