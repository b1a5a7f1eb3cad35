//! What [`reconfigure`](super::Engine::reconfigure) has to know of the reloads before.
//!
//! Refuses nothing.

use crate::config::Bypass;

/// Rules of `Config::bypass` that have come or gone.
#[derive(Default)]
pub(super) struct ChangedRules {
    /// Have come.
    pub(super) added: Vec<Bypass>,
    /// Have gone, and when.
    pub(super) removed: Vec<(Bypass, u64)>,
}
