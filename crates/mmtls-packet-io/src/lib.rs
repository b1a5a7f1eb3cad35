//! Packet input and output of mmTLS.
//!
//! * [`Ports`]: what a worker needs of a back end, which one of these implements:
//!   * [`af_packet`]: two Linux interfaces bridged by one worker thread, each frame passed, dropped or held.
//!   * [`memory`]: two ports in memory, for tests.
//! * [`capture`]: reading pcap and pcapng files, writing pcapng.
//!
//! This room owns sockets, buffers and files. It refuses to look above the link header and knows nothing of TCP, TLS
//! or the engine; it is one of the few rooms where unsafe code is allowed (in `af_packet`).

pub mod af_packet;
pub mod capture;
mod counters;
mod error;
mod frame;
pub mod memory;
mod ports;
mod wake;

pub use counters::{Counters, PortCounters, SendErrors};
pub use error::Error;
pub use frame::{Action, Frame, HeldFrame, Port, VnetHeader};
pub use ports::{Outbox, Ports, Ready};
pub use wake::WakeFd;
