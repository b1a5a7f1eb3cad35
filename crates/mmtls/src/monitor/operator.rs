//! What a monitor keeps for an operator who asks: the numbers of flows in reports, and the last keys that were not taken.
//!
//! Refuses to keep more than the last refusals of keys.

use std::collections::VecDeque;
use std::net::IpAddr;

use mmtls_engine::session::{KeyRefusal, RefusedKeys, SessionId};

use crate::eve::{EveWriter, FlowIds};

/// Refusals that are kept: who asks for a session asks soon.
const MAX_REFUSED: usize = 1024;

/// What is kept for an operator.
#[derive(Default)]
pub(crate) struct Operated {
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

    /// The numbers that flows have in reports.
    pub(super) fn flow_ids(&self) -> FlowIds {
        self.ids.clone()
    }

    pub(super) fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        if self.refused.len() == MAX_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back((refused.session.id, refused.sender, refused.why));
    }

    /// The `flow_id` of a flow in reports.
    pub(crate) fn flow_id(&self, id: SessionId) -> u64 {
        self.ids.of(id.0)
    }

    /// The flow that has this `flow_id` in reports; `None` for what is none.
    pub(crate) fn flow_of(&self, flow_id: u64) -> Option<SessionId> {
        self.ids.number_of(flow_id).map(SessionId)
    }

    /// The last keys of a session that were not taken: who sent them, and why.
    pub(crate) fn last_refused(&self, id: SessionId) -> Option<(Option<IpAddr>, KeyRefusal)> {
        let last = self.refused.iter().rev().find(|(of, ..)| *of == id);
        last.map(|(_, sender, why)| (*sender, *why))
    }
}
