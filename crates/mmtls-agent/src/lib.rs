//! The agent on an endpoint: programs that cannot share their record keys themselves hand their traffic secrets to
//! it, and it gives record keys to the middleboxes. `mmtls exec` is the way to it: [`run`].
//!
//! Secrets never leave this host. Refuses to hold a program up, and to know packets.
#![forbid(unsafe_code)]

mod advice;
mod agent;
mod error;
mod exec;
mod paths;
mod sessions;

pub use error::Error;
pub use exec::{ExecOptions, run};
