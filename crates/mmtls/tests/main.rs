//! The programs of this crate, between real TLS programs and alone.

mod agent;
mod browsers;
mod capture;
mod chain;
mod check;
mod cli;
mod common;
mod confined;
mod consent;
mod control;
mod dashboard;
mod early;
mod ech;
mod guard;
mod init;
// Makes calls for threads: registers are those of one architecture.
#[cfg(target_arch = "x86_64")]
mod inject;
mod inspection;
mod kernel_forwarding;
mod key_server;
mod keys;
mod load;
mod logs;
mod metrics;
mod mirror;
mod outputs;
mod passive;
mod pki;
mod plaintext;
mod post_handshake;
mod private_tag;
mod read;
mod reload;
mod reset;
mod restart;
mod rules;
#[cfg(target_arch = "x86_64")]
mod sandbox;
mod servers;
mod service;
mod share;
mod signals;
mod starttls;
mod transparent;
mod tunnels;
mod upgrade;
mod web;
mod workers;
