//! A search for many literal patterns at once, by the system's Hyperscan, or Vectorscan where that is
//! not to be had (both are `libhs`).
//!
//! `Database` is the way in. Owns databases, and a scratch space for each thread. Refuses expressions, and
//! to know anything of streams: each search is of one block. One of the few crates where unsafe code is
//! allowed. Empty without the feature `library`.
#![cfg(feature = "library")]

mod database;
mod error;
mod ffi;
mod scratch;

pub use database::{Case, Database};
pub use error::Error;

/// What the library says it is, such as `5.4.0 2021-01-26`.
#[must_use]
pub fn version() -> String {
    let text = ffi::hs_version();
    if text.is_null() {
        return String::new();
    }
    // SAFETY: `hs_version` returns a constant string that ends with a null byte.
    let text = unsafe { core::ffi::CStr::from_ptr(text) };
    text.to_string_lossy().trim().to_owned()
}
