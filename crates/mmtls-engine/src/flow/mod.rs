//! TCP connections: who talks to whom, what has been seen of either direction, which frames are
//! held, and what the connection carries.
//!
//! Refuses to look into TLS.

mod half;
mod reassembly;
mod table;

pub(crate) use half::{Half, Held};
pub(crate) use reassembly::{Assembler, Insert};
pub(crate) use table::{FlowIndex, FlowKey, FlowTable};

use core::net::SocketAddr;

use crate::session::{EndReason, FlowEnd, SessionId, TlsSession};
use crate::tls::Direction;

/// What a connection carries.
pub(crate) enum Carries<S> {
    /// The client has sent too little to tell; its first bytes.
    Undecided(Vec<u8>),
    /// TLS, followed or not.
    Tls(Box<TlsSession<S>>),
    /// Something that is not followed.
    Plain,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// A SYN was seen, the answer was not.
    Opening,
    /// Data may flow.
    Open,
    /// Both sides have finished, or one has reset it.
    Closed(EndReason),
    /// Reset by the monitor: a tombstone. `answers` more packets are answered with a RST.
    Dead { reason: EndReason, answers: u8 },
}

/// One TCP connection.
pub(crate) struct Flow<S> {
    pub(crate) id: SessionId,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) started_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) phase: Phase,
    /// Client to server first.
    pub(crate) halves: [Half; 2],
    pub(crate) carries: Carries<S>,
    /// Sequence number of a SYN that may begin a new connection on this four-tuple; believed
    /// only when the other side answers it.
    pub(crate) pending_syn: Option<u32>,
    /// Bytes this flow is charged for in the engine's total.
    pub(crate) charged: usize,
    pub(crate) end_reported: bool,
}

impl<S> Flow<S> {
    pub(crate) fn new(id: SessionId, client: SocketAddr, server: SocketAddr, now_ns: u64) -> Self {
        Self {
            id,
            client,
            server,
            started_ns: now_ns,
            last_ns: now_ns,
            phase: Phase::Opening,
            halves: [Half::default(), Half::default()],
            carries: Carries::Undecided(Vec::new()),
            pending_syn: None,
            charged: 0,
            end_reported: false,
        }
    }

    pub(crate) fn direction_from(&self, source: SocketAddr) -> Direction {
        if source == self.client { Direction::ClientToServer } else { Direction::ServerToClient }
    }

    pub(crate) fn half(&mut self, direction: Direction) -> &mut Half {
        &mut self.halves[direction.index()]
    }

    pub(crate) fn end(&self, reason: EndReason) -> FlowEnd {
        FlowEnd {
            id: self.id,
            client: self.client,
            server: self.server,
            tls: matches!(self.carries, Carries::Tls(_)),
            started_ns: self.started_ns,
            last_ns: self.last_ns,
            packets: [self.halves[0].packets, self.halves[1].packets],
            bytes: [self.halves[0].bytes, self.halves[1].bytes],
            reason,
        }
    }

    /// Both FINs have been reached and each has been acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        Direction::BOTH.into_iter().all(|direction| {
            let half = &self.halves[direction.index()];
            let acknowledged = self.halves[direction.reverse().index()].last_ack;
            half.fin_reached()
                && half.fin_sequence().is_some_and(|fin| acknowledged == Some(fin.wrapping_add(1)))
        })
    }
}
