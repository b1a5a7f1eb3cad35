//! What middleboxes are built on: an application's [`session::Handler`] on interfaces or captures, with the
//! keys that endpoints share.
//!
//! ```text
//! interfaces ─ Ports ─► worker ─► engine ─► Handler          one worker per processor, nothing shared
//! endpoints ── keyshare ─► key router ─► worker's queue
//! key log ──── follower ─┘
//! captures ─── offline ─► engine ─► Handler
//! ```
//!
//! Implement [`session::Handler`] and give it to a [`Middlebox`], or to [`offline::replay`];
//! `docs/writing-a-middlebox.md` is the tutorial. [`inspect`] and [`literal`] help with what is inside.
//!
//! Reads no configuration format and no command line: that is for the program. Refuses to parse packets
//! and to decrypt; the crates below do that.
#![forbid(unsafe_code)]

pub mod config;
mod error;
pub mod harden;
pub mod keylog;
pub mod keys;
mod middlebox;
pub mod offline;
mod settings;
mod status;
pub mod worker;

pub use error::Error;
pub use middlebox::{
    Finished, KeyCertificates, KeyCounters, KeyMeter, Middlebox, ReadCertificates,
};
pub use mmtls_engine::{
    Bypass, Config, Counters, Engine, Histogram, KeySenders, Limits, Link, Network, Policies,
    Policy, Share, session, tls,
};
pub use mmtls_inspect as inspect;
pub use mmtls_inspect::literal;
pub use mmtls_keyshare::server::ServerConfig;
pub use mmtls_packet_io::Ports;
pub use mmtls_packet_io::af_packet::{BridgeConfig, Warning};
pub use settings::{Findings, Settings};
pub use status::Status;
