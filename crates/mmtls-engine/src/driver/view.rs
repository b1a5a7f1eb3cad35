//! The table of connections for whoever looks at it from outside: a part at a time, by the places of the table.
//!
//! Refuses to change anything, and to look at more than it is asked for: an engine that is looked at moves no packets
//! meanwhile.

use core::net::SocketAddr;
use core::ops::Range;
use std::borrow::Cow;

use super::Engine;
use super::payload::{Flow, Payload};
use crate::session::{Disposition, EndReason, FlowPlace, Handler, SessionId, SessionInfo};
use crate::tcp::{FlowIndex, Phase, Unread};
use crate::tls::Direction;

/// A connection as it is now.
#[non_exhaustive]
pub struct FlowView<'a, S> {
    /// Where it is in the table.
    pub slot: usize,
    /// The flow; equal to the session's identity when it carries TLS.
    pub id: SessionId,
    /// Address and port that sent the SYN, as far as that was seen.
    pub client: SocketAddr,
    /// The other side.
    pub server: SocketAddr,
    /// Where the client is.
    pub place: FlowPlace,
    /// First packet, in the caller's nanoseconds.
    pub started_ns: u64,
    /// Last packet that the engine has seen, in the caller's nanoseconds.
    pub last_ns: u64,
    /// How it has ended; `None` while data may flow, or may come to.
    pub ended: Option<EndReason>,
    /// Frames per direction (client first), without those that the I/O layer forwards at the moment.
    pub packets: [u64; 2],
    /// TCP payload bytes per direction, the same.
    pub bytes: [u64; 2],
    /// Frames of it that are held.
    pub held_frames: usize,
    /// Bytes kept of it.
    pub kept_bytes: usize,
    /// Nothing of it is looked at, by a rule for its server or because the engine drains.
    pub is_left_alone: bool,
    /// The I/O layer forwards it.
    pub is_offloaded: bool,
    /// What it carries.
    pub carries: Carries<'a, S>,
}

/// What a connection carries.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, for as long as somebody looks at it"
)]
pub enum Carries<'a, S> {
    /// It cannot be told yet, or is looked at in the clear.
    Undecided,
    /// TLS, followed or not.
    Session {
        /// What is known of it.
        info: Cow<'a, SessionInfo>,
        /// What the application keeps of it.
        state: &'a S,
        /// Its records are looked at; otherwise they pass, or are dropped.
        is_followed: bool,
        /// Since when records wait for keys, per direction (client first).
        stalled_since_ns: [Option<u64>; 2],
    },
    /// Nothing that is followed. `waits`: it may be a session whose beginning was not seen, and its endpoints are asked.
    Other {
        /// See there.
        waits: bool,
    },
}

impl<S> FlowView<'_, S> {
    /// The session's records pass unread by the operator's decision.
    #[must_use]
    pub fn is_bypassed_by_operator(&self) -> bool {
        match &self.carries {
            Carries::Session { info, .. } => info.bypassed_by_operator && self.ended.is_none(),
            Carries::Undecided | Carries::Other { .. } => false,
        }
    }
}

impl<H: Handler> Engine<H> {
    /// Places of the table, those of flows that have gone included.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.flows.slots().len()
    }

    /// The flows in some places of the table; places behind its end are none.
    pub fn view_flows(&self, slots: Range<usize>) -> impl Iterator<Item = FlowView<'_, H::State>> {
        let all = self.flows.slots();
        let from = slots.start.min(all.len());
        let part = &all[from..slots.end.clamp(from, all.len())];
        let flows = part.iter().enumerate();
        flows.filter_map(move |(at, flow)| Some(self.view(from + at, flow.as_ref()?)))
    }

    /// Where in some places of the table a flow is.
    #[must_use]
    pub fn slot_of(&self, id: SessionId, slots: Range<usize>) -> Option<usize> {
        let all = self.flows.slots();
        let from = slots.start.min(all.len());
        let mut part = all[from..slots.end.clamp(from, all.len())].iter();
        let at = part.position(|flow| flow.as_ref().is_some_and(|flow| flow.id == id))?;
        Some(from + at)
    }

    fn view<'a>(&'a self, slot: usize, flow: &'a Flow<H::State>) -> FlowView<'a, H::State> {
        let [client, server] = &flow.halves;
        FlowView {
            slot,
            id: flow.id,
            client: flow.ends.client(),
            server: flow.ends.server(),
            place: flow.place(),
            started_ns: flow.started_ns,
            last_ns: flow.last_ns,
            ended: match flow.phase {
                Phase::Opening | Phase::Open => None,
                Phase::Closed(reason) | Phase::Dead { reason, .. } => Some(reason),
            },
            packets: [client.packets, server.packets],
            bytes: [client.bytes, server.bytes],
            held_frames: flow.held_frames(),
            kept_bytes: flow.charged,
            is_left_alone: flow.unread == Unread::Exempt,
            is_offloaded: flow.offload.is_on(),
            carries: match &flow.payload {
                Payload::Undecided(..) => Carries::Undecided,
                Payload::Resting(resting) => Carries::Session {
                    info: Cow::Owned(resting.session.info(flow.session_info())),
                    state: &resting.state,
                    is_followed: true,
                    stalled_since_ns: [None; 2],
                },
                Payload::Plain(_) => Carries::Other {
                    waits: FlowIndex::new(slot).and_then(|it| self.late.id(it)) == Some(flow.id),
                },
                Payload::Tls(tls) => Carries::Session {
                    info: Cow::Borrowed(tls.session.info()),
                    state: &tls.state,
                    is_followed: tls.session.disposition() == Disposition::Follow,
                    stalled_since_ns: Direction::BOTH
                        .map(|direction| tls.session.stalled_since_ns(direction)),
                },
            },
        }
    }
}
