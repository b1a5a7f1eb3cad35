//! The `side` arguments: one direction each. Refuses other numbers.

use std::ffi::c_int;

use mmtls_middlebox::tls::Direction;

use crate::error::{Failure, MMTLS_ERR_ARGUMENT};
use crate::types::{MMTLS_TO_CLIENT, MMTLS_TO_SERVER};

/// The direction of a `side` argument.
pub(crate) fn direction(side: c_int) -> Result<Direction, Failure> {
    match side {
        MMTLS_TO_SERVER => Ok(Direction::ClientToServer),
        MMTLS_TO_CLIENT => Ok(Direction::ServerToClient),
        _ => Err(MMTLS_ERR_ARGUMENT.into()),
    }
}

/// The `side` of a direction.
pub(crate) fn side(direction: Direction) -> c_int {
    match direction {
        Direction::ClientToServer => MMTLS_TO_SERVER,
        Direction::ServerToClient => MMTLS_TO_CLIENT,
    }
}

/// A `side` argument as an index.
pub(crate) fn side_index(side: c_int) -> Result<usize, Failure> {
    direction(side)?;
    usize::try_from(side).map_err(|_| Failure::Code(MMTLS_ERR_ARGUMENT))
}
