//! What an application sees: sessions, records, events, and what it can ask for in return.
//!
//! Refuses to expose packets, keys, or bytes that have not been authenticated.

mod follow;
mod handler;
mod handshake;
mod info;
mod record;
mod search;
mod stream;
mod tls12;

pub(crate) use follow::{Context, Fate, TlsSession, recycle};
pub(crate) use handler::Control;
pub use handler::{Handler, Session};
pub use info::{
    EndReason, FlowAnomaly, FlowEnd, KeyStatus, Resumption, SessionError, SessionId, SessionInfo,
    TcpAnomaly,
};
pub use record::{Plaintext, Record};

pub use crate::recognition::Upgrade;
