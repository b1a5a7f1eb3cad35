//! Read-only inline TLS monitor: forwards packets, never terminates TLS.

pub mod eve;
pub mod keylog;
pub mod monitor;
pub mod patterns;
pub mod streams;
pub mod summary;
