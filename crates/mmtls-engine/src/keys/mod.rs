//! Keys before their use: deliveries whose session has not been seen, and the choice among several for one thing.
//!
//! Refuses to open anything with them.

mod candidates;
mod pending;

pub(crate) use candidates::Candidates;
pub use pending::SharedKeys;
pub(crate) use pending::{Delivery, PendingKeys};
