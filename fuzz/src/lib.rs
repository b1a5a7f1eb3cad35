//! The bodies of the fuzz targets: each takes any bytes and panics when an invariant is broken.
//!
//! Plain functions without libFuzzer, so that `cargo test` replays the committed seeds with them.
//! Refuses to read anything but its argument: the same bytes always do the same.
#![forbid(unsafe_code)]

mod agent_datagram;
mod capture_reader;
mod codings;
mod detect;
mod http1;
mod http2;
mod input;
mod key_message;
mod keylog;
mod keylog_line;
mod literal;
mod material;
mod openings;
mod packet_path;
mod recognition;
mod record_open;
mod recorder;
mod rules;
pub mod seeds;
mod session;
mod tls_deframer;
mod websocket;
mod worker;

pub use agent_datagram::agent_datagram;
pub use capture_reader::capture_reader;
pub use codings::codings;
pub use detect::detect;
pub use http1::http1;
pub use http2::http2;
pub use key_message::key_message;
pub use keylog::keylog;
pub use keylog_line::keylog_line;
pub use literal::literal;
pub use openings::openings;
pub use packet_path::packet_path;
pub use recognition::recognition;
pub use record_open::record_open;
pub use rules::rules;
pub use session::session;
pub use tls_deframer::tls_deframer;
pub use websocket::websocket;
pub use worker::worker;

/// A target: its name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, in the order in which `cargo xtask fuzz` runs them.
pub const TARGETS: [Target; 19] = [
    ("packet_path", packet_path),
    ("openings", openings),
    ("worker", worker),
    ("session", session),
    ("tls_deframer", tls_deframer),
    ("recognition", recognition),
    ("record_open", record_open),
    ("http1", http1),
    ("http2", http2),
    ("websocket", websocket),
    ("codings", codings),
    ("literal", literal),
    ("rules", rules),
    ("detect", detect),
    ("key_message", key_message),
    ("agent_datagram", agent_datagram),
    ("capture_reader", capture_reader),
    ("keylog", keylog),
    ("keylog_line", keylog_line),
];
