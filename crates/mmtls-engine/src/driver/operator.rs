//! What an operator decides about a connection, or about all that are to come.
//!
//! Refuses what is over already, and to read again what was bypassed.

use super::Engine;
use super::payload::Payload;
use crate::session::{Disposition, EndReason, Handler, SessionId};
use crate::tcp::{FlowIndex, Phase};

impl<H: Handler> Engine<H> {
    /// Resets a connection: both endpoints get a RST, and every later packet of it is dropped. False where it is not in this
    /// place of the table, or over.
    pub fn reset_flow(&mut self, now_ns: u64, slot: usize, id: SessionId) -> bool {
        let Some(index) = self.open_flow(now_ns, slot, id) else {
            return false;
        };
        let reason = EndReason::ResetByOperator;
        if let Some(flow) = self.flows.get(index)
            && let Payload::Tls(tls) = &mut flow.payload
        {
            // First of all: nothing more of it is to be shown.
            tls.session.decide(Disposition::Kill { reset: true, reason });
            self.conclude(index);
        } else {
            self.kill(index, true, reason);
        }
        true
    }

    /// Lets a session pass unread from here on. False where it is not in this place of the table, or over, or not followed.
    pub fn bypass_flow(&mut self, now_ns: u64, slot: usize, id: SessionId) -> bool {
        let Some(index) = self.open_flow(now_ns, slot, id) else {
            return false;
        };
        let Some(flow) = self.flows.get(index) else {
            return false;
        };
        let Payload::Tls(tls) = &mut flow.payload else {
            return false;
        };
        if !tls.session.following() {
            return false;
        }
        tls.session.note_operator_bypass();
        tls.session.decide(Disposition::Bypass);
        self.conclude(index);
        true
    }

    /// Connections that begin from here on are left alone, and counted; those that are there go on as before.
    pub fn drain(&mut self) {
        self.drains = true;
    }

    fn open_flow(&mut self, now_ns: u64, slot: usize, id: SessionId) -> Option<FlowIndex> {
        self.now_ns = self.now_ns.max(now_ns);
        let index = FlowIndex::new(slot)?;
        let flow = self.flows.get_if(index, id)?;
        matches!(flow.phase, Phase::Opening | Phase::Open).then_some(index)
    }
}
