//! The sans-I/O engine of mmTLS: bytes and timestamps in, events and verdicts out.
//!
//! Refuses to read a clock, open anything, spawn, use unsafe, link crypto, or buffer without a cap.
#![forbid(unsafe_code)]

pub mod session;
pub mod tls;
