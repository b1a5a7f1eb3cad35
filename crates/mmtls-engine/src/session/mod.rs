//! What an application sees: sessions, records, events, and what it can ask for in return.
//!
//! Refuses to expose packets, keys, or bytes that have not been authenticated.

mod buffer_pool;
mod candidates;
mod certificates;
mod disposition;
mod early;
mod follow;
mod handler;
mod handshake;
mod info;
mod opened;
mod record;
mod search;
mod state;
mod stream;
mod tls12;

pub(crate) use buffer_pool::{BufferPool, WORTH_A_LARGE_BUFFER};
pub(crate) use candidates::Candidates;
pub use certificates::{Certificates, MAX_CERTIFICATE_BYTES};
pub(crate) use disposition::Disposition;
pub(crate) use handler::Control;
pub use handler::{Handler, Session};
pub use info::{
    EarlyData, EndReason, FlowAnomaly, FlowEnd, KeyStatus, Resumption, SessionError, SessionId,
    SessionInfo, TcpAnomaly,
};
pub use record::{Plaintext, Record};
pub(crate) use state::{Context, TlsSession};

pub use crate::recognition::Upgrade;
