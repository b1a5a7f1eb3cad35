//! Packet input and output of mmTLS.
//!
//! * [`Ports`]: what a worker needs of a back end, which one of these implements:
//!   * [`af_packet`]: two Linux interfaces bridged by one worker thread, each frame passed, dropped or held.
//!   * [`memory`]: two ports in memory, for tests.
//! * [`guard`]: a program of the kernel that forwards between two interfaces for as long as no monitor does.
//! * [`capture`]: reading pcap and pcapng files, writing pcapng.
//!
//! Owns sockets, buffers and files. Refuses to keep anything about connections, and knows nothing of TLS or the engine; above
//! the link header only steering (addresses and ports) and joining (TCP headers) look. One of the few crates where
//! unsafe code is allowed (in `af_packet` and `guard`).

pub mod af_packet;
pub mod capture;
mod counters;
mod error;
mod frame;
pub mod guard;
pub mod memory;
mod offload;
mod ports;
mod receivers;
mod wake;

pub use counters::{Counters, PortCounters, SendErrors};
pub use error::Error;
pub use frame::{Action, Frame, HeldFrame, Port, VnetHeader};
pub use offload::{Extent, Forwarded, ForwardedRecords, OffloadFlow, OffloadSide, Records};
pub use ports::{Lease, Outbox, Ports, Ready};
pub use wake::WakeFd;
