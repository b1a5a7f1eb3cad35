//! How connections begin in copies of packets, which may be out of order or missing and prevent nothing: there the
//! latest SYN counts. Inline it is in [`super::opening`].
//!
//! Refuses to believe SYNs that their receiver would not believe.

use super::Engine;
use super::conclude::Passage;
use super::payload::Flow;
use crate::session::{EndReason, Handler, TcpAnomaly};
use crate::tcp::{Ends, FlowIndex, Origin, Phase, Syn};
use crate::tls::Direction;
use crate::wire::Segment;

impl<H: Handler> Engine<H> {
    /// The copy of a SYN or SYN-ACK.
    pub(super) fn handle_syn(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        segment: &Segment<'_>,
    ) -> Passage {
        if self.config.inline {
            return self.handle_syn_inline(index, direction, segment);
        }
        let Some(flow) = self.flows.get(index) else {
            return Passage::Refused;
        };
        let answer = segment.tcp.flags().ack();
        match flow.phase {
            Phase::Opening if answer => self.handle_syn_ack(index, direction, segment),
            Phase::Opening => self.handle_first_syn(index, direction, segment),
            Phase::Open if repeats(flow, direction, segment) => {
                self.compare_repeated(index, direction, segment);
            }
            // Of an open one, the copies of its end may have been lost.
            Phase::Open | Phase::Closed(_) | Phase::Dead { .. } if answer => {
                match flow.opening.answered_by(direction, segment.tcp.acknowledgment()) {
                    Some(syn) => self.replace(index, syn, segment),
                    None => self.stray(index, direction, TcpAnomaly::StraySyn),
                }
            }
            Phase::Open | Phase::Closed(_) | Phase::Dead { .. } => {
                flow.opening.push_syn(Syn {
                    direction,
                    sequence: segment.tcp.sequence(),
                    window: segment.tcp.window(),
                    window_scale: segment.tcp.window_scale(),
                });
            }
        }
        Passage::Free
    }

    /// A SYN of a connection whose answer has not been acknowledged: the latest one counts.
    fn handle_first_syn(&mut self, index: FlowIndex, direction: Direction, segment: &Segment<'_>) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let initial = segment.tcp.sequence().wrapping_add(1);
        let payload = segment.tcp.payload();
        let [half, other] = flow.halves_from(direction);
        if half.initial == Some(initial) && half.origin == Origin::Syn {
            return self.compare_repeated(index, direction, segment);
        }
        if half.assembler.next() > 0 || other.assembler.next() > 0 {
            // Data on the earlier SYN was acknowledged already.
            return self.stray(index, direction, TcpAnomaly::StraySyn);
        }
        let payload = self.admit_syn_data(payload);
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let [half, other] = flow.halves_from(direction);
        half.begin(initial, Origin::Syn, segment.tcp.window_scale());
        half.keep_syn_data(payload);
        // What answered another SYN does not answer this one.
        if other.origin != Origin::Syn {
            other.unlearn();
        }
        other.set_window_end(Some(u64::from(segment.tcp.window())));
        self.charge(index);
    }

    /// The answer to a SYN. Its sender is the server.
    fn handle_syn_ack(&mut self, index: FlowIndex, direction: Direction, segment: &Segment<'_>) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let initial = segment.tcp.sequence().wrapping_add(1);
        let acknowledged = segment.tcp.acknowledgment();
        let payload = segment.tcp.payload();
        let [half, other] = flow.halves_from(direction);
        let repeated = half.origin == Origin::SynAck && half.initial == Some(initial);
        let was_read = [&*half, &*other].map(|it| it.assembler.next() > 0);
        let turns_roles = direction == Direction::ClientToServer;
        let is_answer_to_nothing = matches!(other.origin, Origin::Unknown | Origin::Learned);
        if was_read[0] && !repeated
            || was_read[1] && is_answer_to_nothing
            || was_read != [false; 2] && turns_roles
        {
            // It would begin anew what was read already. Which of two answers the client took is known by that.
            return self.stray(index, direction, TcpAnomaly::StraySyn);
        }
        let beyond_syn = other.initial.map(|syn| u64::from(acknowledged.wrapping_sub(syn)));
        // Data on the SYN that an earlier answer has acknowledged are part of the stream.
        let sent = other.assembler.next().max(other.syn_data().len() as u64);
        match (other.origin, beyond_syn) {
            (Origin::Syn, Some(beyond)) if beyond <= sent => {}
            // It answers a SYN that was not seen; a SYN that is seen later counts more.
            (Origin::Unknown | Origin::Learned, _) => {
                other.begin(acknowledged, Origin::Learned, None);
            }
            // Its receiver refuses it with a RST.
            _ => return self.stray(index, direction, TcpAnomaly::StraySyn),
        }
        if repeated {
            self.compare_repeated(index, direction, segment);
        }
        let payload = self.admit_syn_data(payload);
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let [half, other] = flow.halves_from(direction);
        if !repeated {
            half.begin(initial, Origin::SynAck, segment.tcp.window_scale());
            half.keep_syn_data(payload);
        }
        half.last_ack = Some(acknowledged);
        if half.window_scale.is_none() || other.window_scale.is_none() {
            // Scaling needs both sides (RFC 7323, section 2.2).
            half.window_scale = None;
            other.window_scale = None;
        }
        // The window of a SYN-ACK is never scaled.
        other.set_window_end(Some(u64::from(segment.tcp.window())));
        if other.origin == Origin::Learned {
            other.set_window_end(None);
        }
        if turns_roles {
            flow.swap_roles();
        }
        self.accept_syn_data(index, Direction::ClientToServer, acknowledged);
        self.charge(index);
    }

    /// Data on a SYN counts when it is acknowledged (RFC 7413), and only then.
    pub(super) fn accept_syn_data(
        &mut self,
        index: FlowIndex,
        direction: Direction,
        acknowledged: u32,
    ) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let half = flow.half(direction);
        if half.syn_data().is_empty() {
            return;
        }
        let data = half.take_syn_data();
        let accepted = half.offset_of(acknowledged).is_some_and(|it| it >= data.len() as i64);
        if accepted {
            // It was on the SYN; a ClientHello or a greeting.
            self.reassemble(index, direction, 0, &data);
        }
    }

    /// A SYN or SYN-ACK again: with other data than before, which its receiver took is not known.
    fn compare_repeated(&mut self, index: FlowIndex, direction: Direction, segment: &Segment<'_>) {
        let payload = segment.tcp.payload();
        if self.flows.get(index).is_some_and(|flow| !repeats_data(flow, direction, payload)) {
            self.counters.conflicting_overlaps += 1;
            self.note(index, direction, TcpAnomaly::ConflictingOverlap);
        }
    }

    /// What to keep of the data on a SYN or SYN-ACK: anybody can send them in anybody's name.
    fn admit_syn_data<'p>(&mut self, payload: &'p [u8]) -> &'p [u8] {
        let cap = self.config.limits.max_buffered_bytes / 4;
        if payload.is_empty() || self.buffered + payload.len() <= cap {
            return payload;
        }
        self.counters.buffer_full += 1;
        &[]
    }

    /// A new connection has taken over the four-tuple of an old one.
    fn replace(&mut self, index: FlowIndex, syn: Syn, segment: &Segment<'_>) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let (client, server) = (segment.destination, segment.source);
        let ends = Ends::new(segment.vlan, client, server, false);
        let same_sides = flow.ends.client() == client;
        let mut paths = Direction::BOTH
            .map(|way| flow.half(way).path().map(|(port, header)| (port, header.to_vec())));
        if !same_sides {
            paths.swap(0, 1);
        }
        self.remove(index, EndReason::Replaced);
        let Ok(index) = self.insert_in_place(ends) else {
            return;
        };
        if let Some(flow) = self.flows.get(index) {
            for (half, path) in flow.halves.iter_mut().zip(paths) {
                half.packets = 1;
                if let Some((port, header)) = path {
                    half.remember_path(port, &header);
                }
            }
            let initial = syn.sequence.wrapping_add(1);
            flow.halves[0].begin(initial, Origin::Syn, syn.window_scale);
            flow.halves[1].set_window_end(Some(u64::from(syn.window)));
        }
        self.handle_syn_ack(index, Direction::ServerToClient, segment);
    }
}

/// Whether the data of a repeated SYN or SYN-ACK are those of the first one, or none.
fn repeats_data<S>(flow: &Flow<S>, direction: Direction, payload: &[u8]) -> bool {
    let half = &flow.halves[direction.index()];
    let known = payload.len() as u64 <= half.assembler.next();
    payload.is_empty()
        || half.syn_data() == payload
        || known && !flow.contradicts(direction, 0, payload)
}

/// Whether a SYN or SYN-ACK is a copy of the one that this connection began with.
fn repeats<S>(flow: &Flow<S>, direction: Direction, segment: &Segment<'_>) -> bool {
    let half = &flow.halves[direction.index()];
    let origin = if segment.tcp.flags().ack() { Origin::SynAck } else { Origin::Syn };
    half.origin == origin && half.initial == Some(segment.tcp.sequence().wrapping_add(1))
}
