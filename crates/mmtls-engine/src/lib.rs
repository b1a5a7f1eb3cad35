//! The sans-I/O engine of mmTLS: bytes and timestamps in, events and verdicts out.
//!
//! ```text
//! frame → wire view → flow lookup → in-order bytes → TLS records → session events → handler
//!                                                                                      │
//!            Forward | Hold(n) | Drop, Release(n), Discard(n), Inject  ◄── verdict ────┘
//! ```
//!
//! Refuses to read a clock, open anything, spawn, use unsafe, link crypto, or buffer without a cap.
#![forbid(unsafe_code)]

mod buffer_pool;
mod config;
mod counters;
mod driver;
mod follow;
mod keys;
mod output;
mod recognition;
pub mod session;
mod tcp;
mod wire;

/// TLS as it stands on the wire: what sessions, keys and records are made of.
pub use mmtls_tls as tls;

pub use config::{Awaited, Bypass, Config, Limits, Policies, Policy, Share, TLS_PORTS};
pub use counters::Counters;
pub use driver::Engine;
pub use keys::{KeyRefusal, SharedKeys};
pub use output::{Exit, FrameInput, HoldId, KeysNeeded, Output, PortId, Verdict};
pub use wire::{Link, finishes_in_place};
