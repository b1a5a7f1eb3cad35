//! Keys before their use: deliveries whose session has not been seen, and the choice among several for one thing.
//!
//! Refuses to open anything with them.

mod candidates;
mod live;
mod pending;
mod refusals;

pub(crate) use candidates::{Candidates, KeyEnd, KeySource};
pub(crate) use live::{Effort, LiveSessions};
pub use live::{LiveKey, LiveKeys};
pub use pending::SharedKeys;
pub(crate) use pending::{Delivery, PendingKeys};
pub(crate) use refusals::Refusals;
