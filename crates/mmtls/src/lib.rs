//! Read-only inline TLS monitor: forwards packets, never terminates TLS.
//!
//! This crate wires the rooms together: interfaces or capture files, the engine, the key channel,
//! the application, the reports. Refuses to parse packets and to decrypt; the rooms do that.
//!
//! It is the one crate that a middlebox of your own depends on: implement [`session::Handler`] and
//! give it to [`middlebox::Middlebox`], or to [`offline::replay`]; `docs/writing-a-middlebox.md` is the tutorial. [`http1`] and
//! [`literal`] help with what is inside.
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
pub mod middlebox;
pub mod monitor;
pub mod offline;
pub mod patterns;
pub mod streams;
pub mod summary;

pub use error::Error;
pub use mmtls_engine::{Counters, session, tls};
pub use mmtls_inspect::{http1, literal};
