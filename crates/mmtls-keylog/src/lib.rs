//! Key logs in NSS format (RFC 9850): a file, a capture's own secrets blocks, or one that is still being written.
//!
//! A key log tells labels, client randoms and secrets. Neither version nor suite nor server random are in it, so record
//! keys are made for who asks with these: the engine that wants them, or a middlebox over the key channel.
//!
//! Refuses to print a secret or to leave one in freed memory.

#![forbid(unsafe_code)]

pub mod follow;
pub mod live;
mod log;
mod store;

pub use log::{KeyLog, KeyLogReport, MAX_EPOCH};
