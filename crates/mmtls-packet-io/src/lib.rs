//! Packet input and output of mmTLS.
//!
//! * [`af_packet`]: two Linux interfaces bridged by one worker thread, each frame passed, dropped or held.
//! * [`capture`]: reading pcap and pcapng files, writing pcapng.
//! * [`memory`]: two ports made of vectors, for tests.
//!
//! This room owns sockets, buffers and files. It refuses to look above the link header and knows nothing of TCP, TLS
//! or the engine; it is one of the few rooms where unsafe code is allowed (in `af_packet`).

pub mod af_packet;
pub mod capture;
mod frame;
pub mod memory;

pub use frame::{Action, Frame, HeldFrame, Port, VnetHeader};
