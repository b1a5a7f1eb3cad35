//! What an application sees: sessions, records, events, and what it can ask for in return.
//!
//! Refuses to expose packets, keys, or bytes that have not been authenticated.

mod certificates;
mod disposition;
mod handler;
mod info;
mod record;

pub use certificates::{Certificates, MAX_CERTIFICATE_BYTES};
pub(crate) use disposition::Disposition;
pub(crate) use handler::Control;
pub use handler::{Handler, Session, TcpFrame};
pub use info::{
    EarlyData, EndReason, FlowAnomaly, FlowEnd, FlowPlace, KeyRefusal, KeyStatus, RefusedKeys,
    Resumption, SessionError, SessionId, SessionInfo, TcpAnomaly,
};
pub use record::{Plaintext, Record};

pub use crate::recognition::Upgrade;
