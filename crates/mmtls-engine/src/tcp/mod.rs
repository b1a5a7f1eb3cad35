//! TCP connections: who talks to whom, what has been seen of either direction, and which frames are held.
//!
//! Refuses to know what a connection carries, besides what [`Carried`] says of it.

mod attempts;
mod connection;
mod index;
mod key;
mod links;
mod opening;
mod passed;
mod reassembly;
mod shares;
mod table;
mod tcp_direction;
mod unacknowledged;

pub(crate) use connection::{Carried, Flow, Phase, Unread};
pub(crate) use index::Index;
pub(crate) use key::{Ends, FlowKey};
pub(crate) use links::FlowIndex;
pub(crate) use opening::{Opening, Syn, SynAck};
pub(crate) use passed::Passed;
pub(crate) use reassembly::{Assembler, Insert};
pub(crate) use shares::{Client, Resource};
pub(crate) use table::{Due, FlowTable};
pub(crate) use tcp_direction::{Held, Origin, TcpDirection};
pub(crate) use unacknowledged::SharedBytes;
