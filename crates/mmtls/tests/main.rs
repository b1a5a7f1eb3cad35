//! The programs of this crate, between real TLS programs and alone.

mod agent;
mod browsers;
mod chain;
mod cli;
mod common;
mod consent;
mod early;
mod ech;
mod inspection;
mod kernel_forwarding;
mod key_server;
mod keys;
mod load;
mod logs;
mod passive;
mod pki;
mod plaintext;
mod private_tag;
mod reset;
mod restart;
mod rules;
mod servers;
mod share;
mod starttls;
mod transparent;
mod workers;
