//! Key logs in NSS format (RFC 9850): a file, a capture's own secrets blocks, or one that is still being written.
//!
//! A key log tells labels, client randoms and secrets. Neither version nor suite nor server random are in it, so record
//! keys are made for who asks with these: the engine that wants them, or a middlebox over the key channel.
//!
//! With Encrypted Client Hello (RFC 9849) the secrets have a random that is not on the wire: where the log has what opens the
//! hello inside, the session is found all the same.
//!
//! Refuses to print a secret or to leave one in freed memory.

#![forbid(unsafe_code)]

mod ech;
mod ech_lines;
pub mod follow;
pub mod inner;
pub mod live;
mod log;
mod store;

pub use log::{KeyLog, KeyLogReport, MAX_EPOCH};
