//! Application-layer inspection for mmTLS: what a connection carries, its transactions, literal
//! patterns, and rules.
//!
//! [`AppLayer`] is the way in. Works on plain bytes in stream order, one connection at a time.
//! Refuses to see keys, packets or TLS types, to do I/O, to panic on anything a peer sent, and to
//! buffer without a cap. Every result is independent of how the input was cut into chunks.
#![forbid(unsafe_code)]

mod app;
mod body;
mod budget;
mod decode;
#[cfg(feature = "detect")]
pub mod detect;
mod event;
pub mod http1;
mod http2;
pub mod literal;
mod protocol;
pub mod rules;
pub mod transaction;
mod uninspected;
mod websocket;

pub use app::{AppLayer, Wants};
pub use budget::{AppBudget, MemoryBudget};
pub use event::{Anomaly, Body, Event, Fields, Form, Frame, Side};
pub use protocol::AppProto;
pub use uninspected::Uninspected;
