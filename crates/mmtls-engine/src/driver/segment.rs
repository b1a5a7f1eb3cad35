//! What happens to a TCP segment: which connection it belongs to, and what its flags mean there.
//!
//! Refuses to forward the segment that completes a record before the record was inspected.

use super::Engine;
use super::acknowledgment::Fit;
use super::conclude::Passage;
use super::payload::{Flow, Payload, is_watched};
use crate::config::Policy;
use crate::output::Verdict;
use crate::port::PortId;
use crate::session::{Disposition, Handler, TcpAnomaly};
use crate::tcp::{FlowIndex, FlowKey, Phase};
use crate::tls::Direction;
use crate::wire::Segment;

impl<H: Handler> Engine<H> {
    pub(super) fn handle_segment(&mut self, port: PortId, segment: &Segment<'_>) -> Verdict {
        if segment.tcp.flags().syn() && segment.tcp.is_multipath() {
            self.counters.multipath += 1;
            let policy = self.config.policies.multipath;
            if self.config.inline && matches!(policy, Policy::Drop | Policy::Reset) {
                return Verdict::Drop;
            }
        }
        let flags = segment.tcp.flags();
        if self.config.inline
            && flags.syn()
            && (flags.fin() || flags.rst() || !segment.tcp.payload().is_empty())
        {
            // Which of it counts, its receiver alone knows.
            self.counters.syn_data += 1;
            return Verdict::Drop;
        }
        let (index, is_new) = match self.find_flow(port, segment) {
            Ok(found) => found,
            Err(verdict) => return verdict,
        };
        if self.config.offload && self.flows.get(index).is_some_and(|flow| flow.offload.is_on()) {
            return self.handle_offloaded(index, segment);
        }
        let passage = self.handle_segment_of(index, is_new, port, segment);
        let verdict = self.verdict_for(index, passage);
        if self.config.offload {
            let payload = match passage {
                Passage::Ordered(direction) if verdict == Verdict::Forward => Some(direction),
                _ => None,
            };
            self.offer(index, payload);
        }
        verdict
    }

    /// Handles a segment of a connection: what it may do, if the connection allows it.
    fn handle_segment_of(
        &mut self,
        index: FlowIndex,
        is_new: bool,
        port: PortId,
        segment: &Segment<'_>,
    ) -> Passage {
        let flags = segment.tcp.flags();
        // Looked up again only behind what may have changed the table.
        let Some(mut flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let mut direction = flow.direction_from(segment.source);
        flow.last_ns = self.now_ns;
        let half = flow.half(direction);
        self.coalescing_limit = half.coalescing_limit();
        half.packets += 1;
        half.bytes += segment.tcp.payload().len() as u64;
        half.remember_path(port, segment.link_header);
        if flow.one_sided {
            flow.one_sided = flow.halves.iter().any(|half| half.packets == 0);
        }
        if flow.is_attempt() {
            self.flows.settle_attempt(index);
            match self.flows.get(index) {
                Some(it) => flow = it,
                None => return Passage::Refused,
            }
        }
        if is_new && !self.config.inline && matches!(flow.payload, Payload::Plain(_)) {
            self.apply_mid_stream_policy(index);
            return Passage::Free;
        }

        if flags.syn() {
            return match self.handle_syn(index, direction, segment) {
                Passage::Free => Passage::Beginning,
                other => other,
            };
        }
        if let Phase::Dead { .. } = flow.phase {
            return self.handle_tombstone(index, direction, segment);
        }
        if flow.phase == Phase::Opening && self.config.inline {
            if let Some(passage) = self.handle_opening(index, direction, segment) {
                return passage;
            }
            match self.flows.get(index) {
                Some(it) => flow = it,
                None => return Passage::Refused,
            }
            // The sender of the SYN is the client now.
            direction = flow.direction_from(segment.source);
        }
        let inline = self.config.inline;
        self.counters.bypassed += u64::from(flow.is_exempt());
        // Receivers take urgent bytes out of the stream, or not: two streams. TLS has none.
        if flags.urg() && refuses_urgent(flow, direction, segment.tcp.payload()) {
            self.counters.urgent += 1;
            self.note(index, direction, TcpAnomaly::UrgentData);
            return Passage::Refused;
        }
        let fit = match flags.ack() {
            true => self.handle_ack(index, direction, segment),
            false => Fit::Fits,
        };
        let fits = fit == Fit::Fits;
        if self.is_over(index) || fit == Fit::BeginsAnew {
            return Passage::Refused;
        }
        if !self.config.inline {
            // Data on a SYN, acknowledged just now, may have shown that roles are the other way round.
            direction = self.direction_of(index, segment);
        }
        if flags.rst() {
            return self.handle_rst(index, direction, segment);
        }
        if segment.tcp.payload().is_empty() && !flags.fin() {
            match fits {
                true => Passage::Free,
                false => self.stray_acknowledgment(index, direction),
            }
        } else if inline && self.flows.get(index).is_some_and(|it| it.waits_behind_reset()) {
            // Its sender or its receiver is gone.
            Passage::Refused
        } else if (!fits || !flags.ack())
            && self.flows.get(index).is_some_and(|it| is_watched(it, inline))
        {
            // No receiver takes it (RFC 9293, section 3.10.7.4), and what stands there would be read in its
            // place.
            self.out_of_window(index, direction)
        } else {
            self.handle_payload(index, direction, segment)
        }
    }

    fn direction_of(&mut self, index: FlowIndex, segment: &Segment<'_>) -> Direction {
        let flow = self.flows.get(index);
        flow.map_or(Direction::ClientToServer, |flow| flow.direction_from(segment.source))
    }

    /// The flow of a segment, new or known, and whether it is new.
    fn find_flow(
        &mut self,
        port: PortId,
        segment: &Segment<'_>,
    ) -> Result<(FlowIndex, bool), Verdict> {
        let (from, to) = (segment.source, segment.destination);
        let key = match self.config.inline {
            true => FlowKey::of(segment.vlan, from, to, port),
            false => FlowKey::new(segment.vlan, from, to),
        };
        match self.flows.find(&key) {
            Some(index) => Ok((index, false)),
            None => self.new_flow(port, segment).map(|index| (index, true)),
        }
    }

    /// A packet of a connection that was reset: never forwarded, answered a few times.
    fn handle_tombstone(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        let flags = segment.tcp.flags();
        if let Some(flow) = self.flows.get(index)
            && let Phase::Dead { answers, .. } = &mut flow.phase
            && answers[direction.index()] > 0
            && flags.ack()
            && !flags.rst()
        {
            answers[direction.index()] -= 1;
            // What a sender acknowledges is exactly what it accepts in a RST (RFC 5961).
            let sequence = segment.tcp.acknowledgment();
            let end = segment.tcp.sequence().wrapping_add(segment.tcp.payload().len() as u32);
            self.inject_reset(index, direction.reverse(), sequence, end);
        }
        Passage::Refused
    }

    /// Whether the connection has been reset, or will be.
    pub(super) fn is_over(&mut self, index: FlowIndex) -> bool {
        self.flows.get(index).is_some_and(|flow| {
            flow.payload.disposition().is_kill() || matches!(flow.phase, Phase::Dead { .. })
        })
    }
}

/// Whether urgent data must not pass: where TLS is followed or may begin, perhaps behind a byte that
/// the receiver takes out. Telnet, FTP and others use them.
fn refuses_urgent<S>(flow: &Flow<S>, direction: Direction, payload: &[u8]) -> bool {
    let from_client = direction == Direction::ClientToServer;
    let begins = (0..if from_client { 4 } else { 1 }).any(|at| {
        matches!(payload.get(at), Some(20..=22)) && matches!(payload.get(at + 1), None | Some(3))
    });
    match &flow.payload {
        // An application would be shown another stream than its receiver takes.
        Payload::Undecided(recogniser, clear) => {
            clear.is_shown() || recogniser.refuses_urgent() || begins
        }
        Payload::Plain(watch) => !flow.is_exempt() && (watch.refuses_urgent() || begins),
        Payload::Resting(_) => true,
        Payload::Tls(tls) => tls.session.disposition() != Disposition::Bypass,
    }
}
