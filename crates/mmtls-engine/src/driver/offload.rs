//! Connections that nobody reads, and that the I/O layer may therefore forward by itself.
//!
//! Of those it shows what changes their state (SYN, FIN, RST) and what is unusual. Before the engine judges that, it takes the
//! connection back, so as to know where its two directions stand; afterwards it may be left to the I/O layer again.
//!
//! Refuses to let go of a connection of which something waits, and of one that may come to be looked at.

use super::Engine;
use super::payload::Flow;
use crate::output::{ForwardedElsewhere, OffloadedFlow, Output, Verdict};
use crate::session::{Disposition, Handler};
use crate::tcp::{FlowIndex, FlowKey, Phase, Unread};
use crate::tls::Direction;
use crate::wire::Segment;

/// How often a connection is left to the I/O layer at most: each time costs more than a segment.
const MAX_OFFERS: u8 = 8;

/// Bytes of an Ethernet header without tags.
const UNTAGGED: usize = 14;

/// How long the answer of the I/O layer is waited for, which comes at once.
const ANSWER_NS: u64 = 1_000_000;

impl<H: Handler> Engine<H> {
    /// Leaves a connection to the I/O layer if nothing of it is looked at.
    pub(super) fn offer(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        if flow.offload.count() == MAX_OFFERS || !is_left_alone(flow) {
            return;
        }
        if let Some(offloaded) = offloaded(flow) {
            flow.offload.begin();
            self.outputs.push_back(Output::Offload(Box::new(offloaded)));
        }
    }

    /// A segment of a connection that was left to the I/O layer.
    pub(super) fn handle_offloaded(&mut self, index: FlowIndex, segment: &Segment<'_>) -> Verdict {
        let flags = segment.tcp.flags();
        let is_plain = !(flags.syn() || flags.fin() || flags.rst() || flags.urg());
        // What was put together of fragments is not there any more to be handed in again.
        let is_whole = self.frame_count == 1;
        let now_ns = self.now_ns;
        let Some(flow) = self.flows.get(index) else {
            return self.lost_flow();
        };
        if !is_plain {
            self.take_back(index);
            // Its sender repeats it, and then it is judged where it stands.
            return if is_whole { Verdict::Again } else { Verdict::Drop };
        }
        let direction = flow.direction_from(segment.source);
        flow.last_ns = now_ns;
        let half = flow.half(direction);
        let len = segment.tcp.payload().len();
        half.packets += 1;
        half.bytes += len as u64;
        half.keep_up(segment.tcp.sequence(), len, false);
        self.counters.bypassed += u64::from(flow.is_exempt());
        // It has come before the I/O layer could begin, perhaps: then that begins behind it.
        if let Some(offloaded) = offloaded(flow) {
            self.outputs.push_back(Output::Offload(Box::new(offloaded)));
        }
        Verdict::Forward
    }

    /// Asks for what the I/O layer has forwarded; [`Engine::handle_taken_back`] is the answer.
    pub(super) fn take_back(&mut self, index: FlowIndex) {
        if let Some(flow) = self.flows.get(index)
            && flow.offload.is_on()
            && let Some(offloaded) = offloaded(flow)
        {
            self.outputs.push_back(Output::TakeBack(Box::new(offloaded)));
        }
    }

    /// The time of such a connection is up, as far as the engine has seen it: it is looked at again once it is known what the
    /// I/O layer has seen.
    pub(super) fn ask_whether_idle(&mut self, index: FlowIndex) {
        self.take_back(index);
        let at = self.now_ns.saturating_add(ANSWER_NS);
        if let Some(flow) = self.flows.get(index) {
            let id = flow.id;
            self.flows.check_at(at, index, id);
        }
    }

    /// Takes back all connections that are left to the I/O layer ([`Output::TakeBack`]): before the end, so that what is told of them
    /// is whole.
    pub fn take_all_back(&mut self) {
        for index in self.flows.all() {
            self.take_back(index);
        }
    }

    /// What the I/O layer has forwarded by itself of a connection that it forwards no more ([`Output::TakeBack`]).
    pub fn handle_taken_back(
        &mut self,
        now_ns: u64,
        flow: &OffloadedFlow,
        forwarded: [ForwardedElsewhere; 2],
    ) {
        self.now_ns = self.now_ns.max(now_ns);
        let key = FlowKey::of(0, flow.ends[0], flow.ends[1], flow.ports[0]);
        let Some(index) = self.flows.find(&key) else {
            return;
        };
        let now_ns = self.now_ns;
        let Some(known) = self.flows.get(index).filter(|known| known.id == flow.id) else {
            return;
        };
        known.offload.end();
        if known.is_exempt() {
            self.counters.bypassed += forwarded.iter().map(|of| of.packets).sum::<u64>();
        }
        for (half, of) in known.halves.iter_mut().zip(forwarded) {
            if of.packets > 0 {
                known.last_ns = now_ns;
            }
            half.packets += of.packets;
            half.bytes += of.bytes;
            half.stand_at(of.position);
        }
    }
}

/// Whether nothing of a connection is looked at, now or later.
fn is_left_alone<S>(flow: &Flow<S>) -> bool {
    // Another connection may begin on its four-tuple, which is not to be left alone.
    let is_open = flow.phase == Phase::Open && flow.opening.is_over();
    let may_go = !flow.offload.is_on() && flow.reset_seen.is_none();
    let is_unread = match flow.unread {
        Unread::No => false,
        Unread::Exempt => true,
        // A handler may have asked for its reset since.
        Unread::Bypassed => flow.payload.disposition() == Disposition::Bypass,
    };
    let nothing_waits = |direction: Direction| {
        let half = &flow.halves[direction.index()];
        // Priority tags are unusual, too.
        let is_untagged = half.path().is_some_and(|(_, header)| header.len() == UNTAGGED);
        is_untagged
            && half.fin().is_none()
            && half.first_held().is_none()
            && half.assembler.buffered() == 0
    };
    is_open && may_go && is_unread && Direction::BOTH.into_iter().all(nothing_waits)
}

/// A connection as the I/O layer knows it; `None` where not both directions have been seen.
fn offloaded<S>(flow: &Flow<S>) -> Option<OffloadedFlow> {
    let [client, server] = &flow.halves;
    let ports = [client.path()?.0, server.path()?.0];
    (ports[0] != ports[1]).then_some(())?;
    Some(OffloadedFlow {
        id: flow.id,
        ends: [flow.client, flow.server],
        ports,
        initial: [client.initial?, server.initial?],
        positions: [client.assembler.next(), server.assembler.next()],
    })
}
