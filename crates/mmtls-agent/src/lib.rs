//! The agent on an endpoint: programs that cannot share their record keys themselves hand their traffic secrets to
//! it, and it gives record keys to the middleboxes. `mmtls exec` starts a program with an agent of its own: [`run`]. `mmtls
//! agent` stays, and reads what programs write to key logs: [`serve`].
//!
//! Secrets never leave this host. Refuses to hold a program up, and to know packets.
#![forbid(unsafe_code)]

mod advice;
mod agent;
mod audit;
mod channel;
mod consent;
mod daemon;
mod error;
mod exec;
mod guard;
mod key_logs;
mod paths;
mod programs;
mod rules;
mod say;
mod sessions;
mod signals;
mod status;

pub use channel::Channel;
pub use daemon::{AgentOptions, serve};
pub use error::Error;
pub use exec::{ExecOptions, run};
pub use guard::guard;
pub use mmtls_keyshare::agent::socket::Users;
pub use mmtls_keyshare::client::Pin;
pub use mmtls_record::Direction;
pub use rules::{AgentFile, Rules, Share};
pub use signals::survive;
pub use status::Status;
