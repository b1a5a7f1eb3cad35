//! Handles of contexts and the numbers in them. Refuses to follow a handle.

use std::ptr::without_provenance_mut;

use crate::types::mmctx_t;

/// The number in a handle.
pub(crate) fn number_of(handle: mmctx_t) -> usize {
    handle.addr()
}

/// The handle with a number.
pub(crate) fn handle_of(number: usize) -> mmctx_t {
    without_provenance_mut(number)
}
