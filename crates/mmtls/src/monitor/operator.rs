//! What an operator asks a monitor: the numbers of flows in reports, what is known of one session, and a note in
//! `eve.json` of what the operator has decided.
//!
//! Refuses to keep more than the last refusals of keys.

use std::collections::VecDeque;
use std::net::IpAddr;

use mmtls_engine::session::{KeyRefusal, RefusedKeys, SessionError, SessionId};
use mmtls_engine::tls::Direction;

use super::{Monitor, MonitorState};
use crate::eve::{EveWriter, FlowIds, FlowKey};

/// Refusals that are kept: who asks for a session asks soon.
const MAX_REFUSED: usize = 1024;

/// What is kept for an operator.
#[derive(Default)]
pub(super) struct Operated {
    ids: FlowIds,
    refused: VecDeque<(SessionId, Option<IpAddr>, KeyRefusal)>,
}

impl Operated {
    /// With the numbers that the log has.
    pub(super) fn new(eve: Option<&EveWriter>) -> Self {
        Self { ids: eve.map(EveWriter::ids).unwrap_or_default(), refused: VecDeque::new() }
    }

    /// That of another worker.
    pub(super) fn share(&self) -> Self {
        Self { ids: self.ids.clone(), refused: VecDeque::new() }
    }

    pub(super) fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        if self.refused.len() == MAX_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back((refused.session.id, refused.sender, refused.why));
    }
}

impl Monitor {
    /// The `flow_id` of a flow in reports.
    #[must_use]
    pub fn flow_id(&self, id: SessionId) -> u64 {
        self.operated.ids.of(id.0)
    }

    /// The flow that has this `flow_id` in reports; `None` for what is none.
    #[must_use]
    pub fn flow_of(&self, flow_id: u64) -> Option<SessionId> {
        self.operated.ids.number_of(flow_id).map(SessionId)
    }

    /// The last keys of a session that were not taken: who sent them, and why.
    #[must_use]
    pub fn last_refused(&self, id: SessionId) -> Option<(Option<IpAddr>, KeyRefusal)> {
        let last = self.operated.refused.iter().rev().find(|(of, ..)| *of == id);
        last.map(|(_, sender, why)| (*sender, *why))
    }

    /// Notes in the log what an operator, known by user number, decides about a flow.
    pub fn operator_decides(&mut self, flow: FlowKey, action: &'static str, uid: Option<u32>) {
        let now_ns = self.reports.now_ns;
        if let Some(eve) = &mut self.reports.eve {
            eve.control(now_ns, flow, action, uid);
        }
    }
}

impl MonitorState {
    /// The errors that the session has raised.
    #[must_use]
    pub fn errors(&self) -> &[(SessionError, Direction)] {
        &self.reported
    }
}
