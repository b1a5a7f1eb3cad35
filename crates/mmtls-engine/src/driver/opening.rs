//! How connections begin, inline: what two stacks could read differently is not let through.
//!
//! Each endpoint's numbers are proven by its own packet: the answerer's by a SYN-ACK that acknowledges
//! a SYN exactly, those of the side that sent the SYN by the acknowledgment of that. Everything before is a
//! candidate, in whose name it comes, and blocks no other.
//!
//! | known of the four-tuple | segment | what happens | source |
//! |---|---|---|---|
//! | anything | SYN with data, FIN or RST | dropped; senders repeat it without | RFC 7413, section 4.1.3; RFC 9293, section 3.10.7.2 |
//! | nothing | SYN | a flow, and a candidate | RFC 9293, section 3.5 |
//! | nothing | SYN-ACK, data | policy `mid_stream` | section 3.10.7.1 |
//! | nothing | RST, empty ACK or FIN | forwarded | section 3.10.7.1 |
//! | opening | SYN, from either side | one more candidate (simultaneous open is two of them) | section 3.5 |
//! | opening | SYN-ACK that acknowledges a candidate's number + 1 | a candidate answer | section 3.5 |
//! | opening | other SYN-ACK | dropped, and its sender reset as its receiver would | section 3.10.7.3 |
//! | opening | ACK of exactly an answer's number + 1, exactly at that SYN's number + 1 | open, with these numbers; the rest is void | section 3.10.7.4 |
//! | opening | RST in answer to a candidate | that candidate is over, and with the last one the flow | section 3.10.7.3; Linux obeys any RST in the window there, and is left with fewer candidates than are kept here |
//! | opening | data, FIN, or the ACK of an answer, beside these | dropped | section 3.10.7.3 |
//! | opening | empty ACK beside these | forwarded: its receiver resets what is not its own | section 3.10.7.3 |
//! | open, the answerer has not spoken since | segment of the other side before or beyond what is next | dropped: senders repeat it | Linux takes numbers close to a SYN cookie's |
//! | open, while its bytes are looked at | acknowledgment of what was never sent, or from before the stream | dropped | section 3.10.7.4 |
//! | open | copy of its SYN or SYN-ACK | forwarded | section 3.10.7.4 |
//! | open | other SYN | forwarded, a candidate: a live peer answers with a challenge | RFC 5961, section 4 |
//! | open or over, for three minutes, of the side that sent the SYN | numbers that fit a SYN cookie, but where the stream goes on or is compared; bytes with an older acknowledgment than its latest, in the place of others or once the other side has finished | dropped: a server that has lost the connection would begin another one | RFC 4987, section 3.6 |
//! | open, both sides proven | other SYN-ACK | dropped | RFC 5961, section 4 |
//! | open, picked up mid-stream; closed; reset | SYN-ACK that acknowledges a candidate | a new flow, opening | RFC 9293, section 3.6.1 |
//!
//! Refuses to take one side's word for the other's numbers, and to keep state for segments that
//! policy does not let pass.

use core::net::SocketAddr;

use super::Engine;
use super::conclude::Passage;
use super::end::rst;
use super::payload::{Payload, waits_for_keys_only};
use crate::config::Policy;
use crate::output::{Exit, Verdict};
use crate::port::PortId;
use crate::session::{EndReason, Handler, SessionError, TcpAnomaly};
use crate::tcp::{Ends, FlowIndex, FlowKey, Opening, Origin, Phase, Syn, SynAck};
use crate::tls::Direction;
use crate::wire::{Reset, Segment};

impl<H: Handler> Engine<H> {
    /// Creates the flow of a segment whose four-tuple is new.
    pub(super) fn new_flow_inline(
        &mut self,
        port: PortId,
        segment: &Segment<'_>,
    ) -> Result<FlowIndex, Verdict> {
        let flags = segment.tcp.flags();
        let payload = segment.tcp.payload();
        let (from, to) = (segment.source, segment.destination);
        let turned = FlowKey::of(segment.vlan, from, to, port).is_turned();
        let ends = Ends::new(segment.vlan, from, to, turned);
        if flags.syn() && !flags.ack() {
            return self.insert(ends);
        }
        let other = FlowKey::new(segment.vlan, from, to).turned(!turned);
        if let Some(index) = self.flows.find(&other)
            && let Some(flow) = self.flows.get(index)
            && flow.is_established()
        {
            let direction = flow.direction_from(from);
            self.counters.wrong_side += 1;
            self.note(index, direction, TcpAnomaly::WrongSide);
            return Err(Verdict::Drop);
        }
        if flags.rst() || (payload.is_empty() && !flags.syn()) {
            return Err(Verdict::Forward);
        }
        if !flags.syn() && self.is_added(from, to) {
            self.counters.bypassed += 1;
            return Err(Verdict::Forward);
        }
        self.counters.mid_stream += 1;
        let policy = self.config.policies.mid_stream;
        if matches!(policy, Policy::Drop | Policy::Reset) && !self.is_in_grace(from, to) {
            if policy == Policy::Reset && !flags.syn() {
                self.reset_both(port, segment);
            }
            return Err(Verdict::Drop);
        }
        if flags.syn() {
            return Err(Verdict::Forward);
        }
        let index = self.pick_up(segment, ends)?;
        if let Some(flow) = self.flows.get(index) {
            flow.one_sided = true;
        }
        Ok(index)
    }

    /// Connections that were there before the monitor, or before it was to read them, are left alone.
    pub(super) fn is_in_grace(&self, one: SocketAddr, other: SocketAddr) -> bool {
        let grace = self.config.mid_stream_grace_ns;
        self.started_ns.is_some_and(|started| self.now_ns.saturating_sub(started) < grace)
            || self.is_newly_read(one, other)
    }

    /// Sends a RST to both ends of a segment that no flow is kept for.
    fn reset_both(&mut self, port: PortId, segment: &Segment<'_>) {
        let (source, destination) = (segment.source, segment.destination);
        let tcp = &segment.tcp;
        // Bounded: less than a packet.
        let end = tcp.sequence().wrapping_add(tcp.payload().len() as u32);
        let to_sender = Reset {
            source: destination,
            destination: source,
            sequence: tcp.acknowledgment(),
            acknowledgment: end,
        };
        let to_receiver = Reset {
            source,
            destination,
            sequence: tcp.sequence(),
            acknowledgment: tcp.acknowledgment(),
        };
        self.inject(rst(Exit::Through(port), segment.link_header, &to_sender));
        self.inject(rst(Exit::AwayFrom(port), segment.link_header, &to_receiver));
    }

    /// A SYN or SYN-ACK without data.
    pub(super) fn handle_syn_inline(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let syn = Syn {
            direction,
            sequence: segment.tcp.sequence(),
            window: segment.tcp.window(),
            window_scale: segment.tcp.window_scale(),
        };
        let half = &flow.halves[direction.index()];
        let is_open = flow.phase == Phase::Open && !waits_for_keys_only(flow);
        let is_established = is_open && flow.is_established();
        let answer = segment.tcp.flags().ack();
        if !answer {
            let copy = half.origin == Origin::Syn && half.initial == Some(syn.initial());
            if is_open && copy {
                return Passage::Free;
            }
            flow.opening.push_syn(syn);
            if is_open {
                self.stray(index, direction, TcpAnomaly::StraySyn);
            }
            return Passage::Free;
        }
        let acknowledgment = segment.tcp.acknowledgment();
        let known = half.origin == Origin::SynAck && half.initial == Some(syn.initial());
        let answered = flow.opening.answered_by(direction, acknowledgment);
        match (flow.phase, answered) {
            _ if is_open && known => Passage::Free,
            (Phase::Opening, Some(begun)) => {
                if !flow.opening.push_syn_ack(SynAck { syn: begun, answer: syn }) {
                    self.stray(index, direction, TcpAnomaly::StraySyn);
                    return Passage::Refused;
                }
                Passage::Free
            }
            (_, Some(begun)) if !is_established => {
                self.replace_inline(index, SynAck { syn: begun, answer: syn })
            }
            (phase, _) => {
                self.stray(index, direction, TcpAnomaly::StraySyn);
                if phase == Phase::Opening {
                    // What its receiver would answer, who may be waiting for another one: a server
                    // remembers an earlier attempt.
                    let end = syn.initial();
                    self.inject_reset(index, direction.reverse(), acknowledgment, end);
                }
                Passage::Refused
            }
        }
    }

    /// A new connection takes over the four-tuple of one that has ended, or that was never proven.
    fn replace_inline(&mut self, index: FlowIndex, answered: SynAck) -> Passage {
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let mut ends = flow.ends;
        let mut paths = Direction::BOTH
            .map(|way| flow.half(way).path().map(|(port, header)| (port, header.to_vec())));
        if answered.syn.direction == Direction::ServerToClient {
            ends.swap();
            paths.swap(0, 1);
        }
        self.remove(index, EndReason::Replaced);
        let index = match self.insert_in_place(ends) {
            Ok(index) => index,
            Err(Verdict::Forward) => return Passage::Free,
            Err(_) => return Passage::Refused,
        };
        if let Some(flow) = self.flows.get(index) {
            let towards = |direction, syn| Syn { direction, ..syn };
            flow.opening = Opening::answered(SynAck {
                syn: towards(Direction::ClientToServer, answered.syn),
                answer: towards(Direction::ServerToClient, answered.answer),
            });
            for (half, path) in flow.halves.iter_mut().zip(paths) {
                half.packets = 1;
                if let Some((port, header)) = path {
                    half.remember_path(port, &header);
                }
            }
        }
        Passage::Free
    }

    /// A segment without SYN of a connection that is not open: its verdict, or `None` when it has
    /// opened it and is to be handled further.
    pub(super) fn handle_opening(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Option<Passage> {
        let flags = segment.tcp.flags();
        if flags.rst() {
            return Some(self.handle_refusal(index, direction, segment));
        }
        if flags.ack() && self.open(index, direction, segment) {
            return None;
        }
        let acknowledgment = segment.tcp.acknowledgment();
        let almost = self.flows.get(index).is_some_and(|flow| {
            flow.opening.answers_to(direction).any(|it| it.answer.initial() == acknowledgment)
        });
        if segment.tcp.payload().is_empty() && !flags.fin() && !almost {
            return Some(Passage::Free);
        }
        Some(self.out_of_window(index, direction))
    }

    /// Opens a connection if this is the acknowledgment of a SYN-ACK by the side that sent the SYN.
    fn open(&mut self, index: FlowIndex, direction: Direction, segment: &Segment<'_>) -> bool {
        let now_ns = self.now_ns;
        let Some(flow) = self.flows.get(index) else {
            return false;
        };
        let (sequence, acknowledgment) = (segment.tcp.sequence(), segment.tcp.acknowledgment());
        // Servers behind SYN cookies take other numbers close by (Linux: up to three more), and go on
        // from there: nothing but the exact one opens a connection.
        let exact =
            |it: &SynAck| it.syn.initial() == sequence && it.answer.initial() == acknowledgment;
        let Some(SynAck { syn, answer }) = flow.opening.answers_to(direction).copied().find(exact)
        else {
            return false;
        };
        flow.open(now_ns);
        flow.opening = Opening::default();
        // Scaling needs both sides (RFC 7323, section 2.2).
        let scaled = syn.window_scale.is_some() && answer.window_scale.is_some();
        let scale = |of: &Syn| of.window_scale.filter(|_| scaled);
        let [half, other] = flow.halves_from(direction);
        half.begin(syn.initial(), Origin::Syn, scale(&syn));
        other.begin(answer.initial(), Origin::SynAck, scale(&answer));
        // The windows of a SYN and its answer are never scaled.
        half.set_window_end(Some(u64::from(answer.window)));
        other.set_window_end(Some(u64::from(syn.window)));
        if direction == Direction::ServerToClient {
            flow.swap_roles();
        }
        let server = flow.ends.server();
        if self.config.bypass.iter().any(|rule| rule.port.is_some() && rule.contains(server)) {
            self.leave_alone(index);
        }
        self.leave_alone_from_start(index);
        true
    }

    /// A RST of a connection that is not open.
    fn handle_refusal(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let (sequence, acknowledgment) = (segment.tcp.sequence(), segment.tcp.acknowledgment());
        let own = flow.opening.reset(direction, sequence);
        // In answer to a SYN it has sequence number 0 and acknowledges the SYN.
        let refused =
            segment.tcp.flags().ack() && flow.opening.reset(direction.reverse(), acknowledgment);
        // The side that has answered may change its mind.
        let begun = flow
            .opening
            .answers_to(direction.reverse())
            .find(|it| it.answer.initial() == sequence)
            .map(|it| it.syn.initial());
        let taken_back = begun.is_some_and(|it| flow.opening.reset(direction.reverse(), it));
        if !(own || refused || taken_back) {
            self.stray(index, direction, TcpAnomaly::StrayReset);
        } else if flow.opening.is_over() {
            self.close(index, EndReason::ResetByPeer(direction));
        }
        Passage::Free
    }

    /// A flow that does not carry TLS, as far as is known, meets a policy.
    pub(super) fn refuse(
        &mut self,
        index: FlowIndex,
        policy: Policy,
        direction: Direction,
        error: SessionError,
    ) {
        let reason = EndReason::ResetByPolicy(error);
        match policy {
            Policy::Forward | Policy::Bypass => {
                if !self.leave_cleartext(index, direction, error) {
                    return;
                }
                if let Some(flow) = self.flows.get(index) {
                    flow.payload = Payload::Plain(Box::default());
                }
                self.bypass(index);
            }
            Policy::Drop => self.kill(index, false, reason),
            Policy::Reset => self.kill(index, true, reason),
        }
    }
}
