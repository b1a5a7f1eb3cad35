//! The application behind the `mmtls` command: reads the configuration file, inspects what sessions carry, writes
//! reports.
//!
//! A middlebox of your own does not depend on this crate but on `mmtls-middlebox`; this one is the largest
//! example of that.
#![forbid(unsafe_code)]

// For the program, which calls this crate by its name, too.
extern crate self as mmtls;

mod behind;
pub mod capture;
pub mod certificate;
pub mod check;
/// The command line: of the program, and of those who describe it.
#[doc(hidden)]
pub mod cli;
pub mod config;
pub mod control;
pub mod eve;
pub mod fingerprint;
pub mod http;
pub mod mirror;
pub mod monitor;
pub mod patterns;
pub mod recent;
pub mod reload;
pub mod rotation;
pub mod rules;
pub mod sandbox;
mod secret_file;
mod serve;
pub mod stats;
pub mod streams;
pub mod summary;
pub mod web;
