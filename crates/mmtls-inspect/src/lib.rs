//! Application-layer inspection for mmTLS: HTTP/1.1 and literal patterns.
//!
//! Works on plain bytes in stream order, one connection at a time. Refuses to see keys, packets
//! or TLS types, to do I/O, to panic on anything a peer sent, and to buffer without a cap. Every
//! result is independent of how the input was cut into chunks.
#![forbid(unsafe_code)]

pub mod http1;
pub mod literal;
