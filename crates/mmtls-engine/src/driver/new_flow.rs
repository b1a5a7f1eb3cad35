//! Flows for segments whose four-tuple is new, and room for them.
//!
//! Refuses flows beyond the cap: the oldest attempt, or a connection that is over or has long been silent, makes room, or
//! policy `table_full` decides.

use core::net::IpAddr;

use super::Engine;
use super::payload::Payload;
use crate::config::{Cleartext, Policy};
use crate::output::Verdict;
use crate::port::PortId;
use crate::recognition::begins_hello;
use crate::session::{EndReason, Handler, SessionError};
use crate::tcp::{Ends, FlowIndex, Origin, Phase};
use crate::wire::Segment;

/// Where connections have taken the whole table, they make room for one attempt for so many places of it.
const ATTEMPT_SHARE: usize = 8;

impl<H: Handler> Engine<H> {
    /// Creates the flow of a segment whose four-tuple is new.
    pub(super) fn new_flow(
        &mut self,
        port: PortId,
        segment: &Segment<'_>,
    ) -> Result<FlowIndex, Verdict> {
        if self.config.inline {
            return self.new_flow_inline(port, segment);
        }
        let flags = segment.tcp.flags();
        let payload = segment.tcp.payload();
        let (from, to) = (segment.source, segment.destination);
        let ends = |client, server| Ends::new(segment.vlan, client, server, false);
        if flags.syn() {
            let index = self.insert(if flags.ack() { ends(to, from) } else { ends(from, to) })?;
            self.leave_alone_from_start(index);
            return Ok(index);
        }
        if payload.is_empty() || flags.rst() {
            return Err(Verdict::Forward);
        }
        if self.is_added(from, to) {
            self.counters.bypassed += 1;
            return Err(Verdict::Forward);
        }
        self.counters.mid_stream += 1;
        self.pick_up(segment, ends(from, to))
    }

    /// Creates the flow of a connection whose beginning was not seen; `ends` are as if the segment's sender
    /// were the client.
    pub(super) fn pick_up(
        &mut self,
        segment: &Segment<'_>,
        mut ends: Ends,
    ) -> Result<FlowIndex, Verdict> {
        // Its keys may be shared and its beginning be lost: only a real ClientHello tells.
        let at_hello = begins_hello(segment.tcp.payload());
        let [from, to] = ends.both();
        // Without a SYN the lower port is taken for the server's.
        if !(at_hello || from.port() > to.port()) {
            ends.swap();
        }
        let index = self.insert(ends)?;
        let Some(flow) = self.flows.get(index) else {
            return Err(Verdict::Drop);
        };
        flow.phase = Phase::Open;
        let direction = flow.direction_from(from);
        flow.half(direction).begin(segment.tcp.sequence(), Origin::Learned, None);
        if segment.tcp.flags().ack() {
            let reverse = flow.half(direction.reverse());
            reverse.begin(segment.tcp.acknowledgment(), Origin::Learned, None);
        }
        let shows = !self.config.inline && self.config.cleartext == Cleartext::Anywhere;
        if !at_hello && (!shows || is_record(segment.tcp.payload())) {
            flow.payload = Payload::Plain(Box::default());
        }
        self.await_live_keys(index);
        Ok(index)
    }

    /// A connection whose copies began behind its start meets its policy.
    pub(super) fn apply_mid_stream_policy(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let [client, server] = flow.ends.both();
        if matches!(self.config.policies.mid_stream, Policy::Drop | Policy::Reset)
            && !self.is_in_grace(client, server)
        {
            let reason = EndReason::ResetByPolicy(SessionError::LostSynchronisation);
            self.kill(index, true, reason);
        }
    }

    pub(super) fn insert(&mut self, ends: Ends) -> Result<FlowIndex, Verdict> {
        let max_flows = self.config.limits.max_flows;
        let client = ends.client().ip();
        if self.flows.has_most_tombstones(client, max_flows) {
            return Err(self.refuse_flow());
        }
        if self.flows.len() >= max_flows {
            self.make_room_for(client);
        }
        self.insert_in_place(ends)
    }

    /// The table is full: one flow goes for the new one of a client, if there is one that may.
    fn make_room_for(&mut self, newcomer: IpAddr) {
        // Anybody can make attempts in any number, so they make room for each other. But where connections have taken
        // the whole table, so few are left that each would put out the one before it, and nobody connect.
        let few_attempts =
            self.flows.attempt_count() < self.config.limits.max_flows / ATTEMPT_SHARE;
        let goes = if few_attempts {
            self.put_out_closed() || self.put_out_idle(newcomer) || self.put_out_attempt()
        } else {
            self.put_out_attempt() || self.put_out_closed() || self.put_out_idle(newcomer)
        };
        self.counters.evicted += u64::from(goes);
    }

    fn put_out_closed(&mut self) -> bool {
        let oldest = self.flows.oldest_closed();
        oldest.map(|(oldest, reason)| self.remove(oldest, reason)).is_some()
    }

    fn put_out_attempt(&mut self) -> bool {
        let oldest = self.flows.oldest_opening();
        oldest.map(|oldest| self.remove(oldest, EndReason::TimedOut)).is_some()
    }

    fn put_out_idle(&mut self, newcomer: IpAddr) -> bool {
        let idle = self.flows.longest_idle(newcomer);
        // Its handler hears of it, and may reset it; then it stays.
        idle.map(|idle| self.expire(idle, EndReason::TimedOut)).is_some()
    }

    /// As `insert`, where a flow was just removed for this one: the table does not grow.
    pub(super) fn insert_in_place(&mut self, ends: Ends) -> Result<FlowIndex, Verdict> {
        match self.flows.insert(ends, self.now_ns, &self.config.limits) {
            Some(index) => {
                self.counters.flows += 1;
                Ok(index)
            }
            None => Err(self.refuse_flow()),
        }
    }

    fn refuse_flow(&mut self) -> Verdict {
        self.counters.table_full += 1;
        match self.config.policies.table_full {
            Policy::Forward | Policy::Bypass => Verdict::Forward,
            Policy::Drop | Policy::Reset => Verdict::Drop,
        }
    }
}

/// Whether these bytes can be the beginning of a record of TLS.
fn is_record(bytes: &[u8]) -> bool {
    matches!(bytes, [20..=23, 3, ..])
}
