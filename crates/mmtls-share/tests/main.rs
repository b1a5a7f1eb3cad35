//! The C library as it is installed: a client on OpenSSL that shares its sessions, misuse, the header.

#[path = "../../mmtls-preload/tests/common/mod.rs"]
#[allow(dead_code, reason = "the preload library's tests need more of it")]
mod common;
mod header;
mod misuse;
mod sessions;
mod stage;
