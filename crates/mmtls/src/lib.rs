//! Read-only inline TLS monitor: forwards packets, never terminates TLS.
//!
//! This crate wires the rooms together: interfaces or capture files, the engine, the key channel,
//! the application, the reports. Refuses to parse packets and to decrypt; the rooms do that.
#![forbid(unsafe_code)]

pub mod certificate;
pub mod config;
mod error;
pub mod eve;
pub mod exec;
pub mod harden;
pub mod inline;
pub mod keylog;
pub mod keys;
pub mod monitor;
pub mod offline;
pub mod patterns;
pub mod streams;
pub mod summary;

pub use error::Error;
