//! The engine: one per worker thread, driven by frames, keys and the passage of time.
//!
//! Refuses to share anything with another engine.

mod acknowledgment;
mod changed_rules;
mod cleartext;
mod conclude;
mod end;
mod feed;
mod fragment_store;
mod fragments;
mod keys;
mod late_flows;
mod live;
mod new_flow;
mod offload;
mod opening;
mod opening_copies;
mod operator;
mod passing;
mod payload;
mod reassemble;
mod reconfigure;
mod room;
mod segment;
mod shown;
mod sink;
mod stalls;
mod view;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub use view::{Carries, FlowView};

use changed_rules::ChangedRules;
use fragment_store::Fragments;
use late_flows::LateFlows;
use payload::{Flow, Payload};

use crate::buffer_pool::BufferPool;
use crate::config::{Config, Policy};
use crate::counters::Counters;
use crate::keys::{LiveSessions, PendingKeys, Refusals};
use crate::output::{FrameInput, HoldId, Output, Verdict};
use crate::port::PortId;
use crate::recognition::{Datagram, classify};
use crate::session::{EndReason, Handler, SessionId, TcpFrame};
use crate::tcp::{Due, FlowIndex, FlowTable, Index, Phase, SharedBytes};
use crate::tls::{Direction, MAX_CIPHERTEXT_LEN};
use crate::wire::{Parsed, Segment, parse};

/// How much of what is due at the same time is done in one go: connections that rest or end; of each queue of stalls, those that end
/// and the frames that they let go.
const MAX_DUE: usize = 256;

/// Follows every connection whose packets it is given.
///
/// # Calling order
///
/// Act on the verdict of [`Engine::handle_frame`] first (a held frame must be stored before it can
/// be released). Then, and after each other input ([`Engine::handle_keys`],
/// [`Engine::handle_null_keys`], [`Engine::handle_timeout`]), take every output with
/// [`Engine::poll_output`] and act on it in order. Call [`Engine::handle_timeout`] when [`Engine::next_timeout`] says so, and
/// [`Engine::finish`] once at the end.
///
/// Time is the caller's: nanoseconds that never decrease.
pub struct Engine<H: Handler> {
    config: Config,
    handler: H,
    counters: Counters,
    flows: FlowTable<Payload<H::State>>,
    /// Sessions by the client random of their latest handshake.
    by_random: Index<FlowIndex>,
    /// Others with the same one, while that is open: copies of a connection, such as behind a NAT.
    twins: HashMap<[u8; 32], Vec<(FlowIndex, SessionId)>, ahash::RandomState>,
    pending: PendingKeys,
    refusals: Refusals,
    /// Keys of sessions whose beginning was not seen, and connections that wait for them.
    live: LiveSessions,
    late: LateFlows,
    /// Of clients that may share, and of others; see [`StallCheck`].
    stalls: [VecDeque<StallCheck>; 2],
    fragments: Fragments,
    outputs: VecDeque<Output>,
    plaintext: Vec<u8>,
    pool: BufferPool,
    buffered: usize,
    /// Of these, those of connections of which it is not known yet what they carry.
    undecided: usize,
    held_frames: usize,
    next_hold: u64,
    /// The I/O layer takes no records of paused connections before then.
    no_offers_until_ns: u64,
    /// Frames of the packet that is being handled: one, or its fragments.
    frame_count: usize,
    /// Their bytes.
    frame_len: usize,
    /// Memory of the frame that is being handled, where it may be kept.
    frame_memory: Option<Arc<[u8]>>,
    /// See [`Engine::coalescing_limit`].
    coalescing_limit: Option<u32>,
    /// Time of the first frame, or of the first one behind others that were not shown.
    started_ns: Option<u64>,
    now_ns: u64,
    /// Connections that begin are left alone.
    drains: bool,
    changed_rules: ChangedRules,
}

/// A stall that must be looked at when its time is up. In a queue they are in order of time: all have the same duration,
/// unless limits have been exchanged.
struct StallCheck {
    deadline_ns: u64,
    index: FlowIndex,
    id: SessionId,
    stall: Stall,
}

/// What waits.
enum Stall {
    /// Records of a direction, since then.
    Records(Direction, u64),
    /// The end of the session.
    End,
}

impl<H: Handler> Engine<H> {
    /// An engine without flows.
    #[must_use]
    pub fn new(config: Config, handler: H) -> Self {
        let [a, b, c, d] = config.hash_seed;
        let hasher = ahash::RandomState::with_seeds(a, b, c, d);
        let (first_id, id_step) =
            config.share.map_or((0, 1), |share| (share.own.into(), share.engines.into()));
        Self {
            handler,
            counters: Counters::default(),
            flows: FlowTable::new(hasher.clone(), first_id, id_step),
            by_random: Index::new(hasher.clone()),
            twins: HashMap::with_hasher(hasher.clone()),
            pending: PendingKeys::new(hasher.clone()),
            refusals: Refusals::new(hasher.clone()),
            live: LiveSessions::new(hasher.clone()),
            late: LateFlows::new(hasher.clone()),
            fragments: Fragments::new(hasher),
            stalls: Default::default(),
            outputs: VecDeque::new(),
            plaintext: vec![0; MAX_CIPHERTEXT_LEN],
            pool: BufferPool::default(),
            buffered: 0,
            undecided: 0,
            held_frames: 0,
            next_hold: 0,
            no_offers_until_ns: 0,
            frame_count: 0,
            frame_len: 0,
            frame_memory: None,
            coalescing_limit: None,
            started_ns: None,
            now_ns: 0,
            drains: false,
            changed_rules: ChangedRules::default(),
            config,
        }
    }

    // Getters.

    /// What has been counted so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Flows in the table, tombstones included.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Sessions that were not seen yet and have keys waiting for them.
    #[must_use]
    pub fn pending_claims(&self) -> usize {
        self.pending.len()
    }

    /// Bytes buffered for reassembly, stalls and searches.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered
    }

    /// The application.
    #[must_use]
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// The application, to be given something outside of events.
    pub fn handler_mut(&mut self) -> &mut H {
        &mut self.handler
    }

    /// Gives the application back.
    #[must_use]
    pub fn into_handler(self) -> H {
        self.handler
    }

    // Inputs.

    /// The verdict on one frame. Handlers run inside.
    pub fn handle_frame(&mut self, now_ns: u64, frame: &FrameInput<'_>) -> Verdict {
        self.now_ns = self.now_ns.max(now_ns);
        self.counters.frames += 1;
        self.started_ns.get_or_insert(self.now_ns);
        self.frame_count = 1;
        self.frame_len = frame.bytes.len();
        self.coalescing_limit = None;
        self.frame_memory = frame.memory.filter(|_| SharedBytes::is_possible(frame.bytes)).cloned();
        // What its receiver drops need not pass: it may be meant to mislead.
        let unacceptable = if self.config.inline { Verdict::Drop } else { Verdict::Forward };
        let verdict = match parse(frame.link, frame.bytes, self.config.inline) {
            Parsed::Tcp(segment) => {
                let verdict = self.handle_parsed(frame.port, &segment, frame.checksum_trusted);
                if verdict != Verdict::Again && self.handler.wants_frames() {
                    self.handler.tcp_frame(&TcpFrame {
                        now_ns: self.now_ns,
                        source: segment.source,
                        destination: segment.destination,
                        opens: segment.tcp.flags().syn() && !segment.tcp.flags().ack(),
                        bytes: frame.bytes,
                    });
                }
                verdict
            }
            Parsed::Fragment(fragment, link_header) => {
                self.handle_fragment(frame.port, &fragment, link_header)
            }
            Parsed::Udp(payload) => {
                self.counters.not_tcp += 1;
                let kind = classify(payload);
                self.counters.dtls_packets += u64::from(kind == Datagram::Dtls);
                self.counters.quic_packets += u64::from(kind == Datagram::Quic);
                match self.config.policies.udp_tls {
                    Policy::Drop | Policy::Reset if kind != Datagram::Other => Verdict::Drop,
                    _ => Verdict::Forward,
                }
            }
            Parsed::Encapsulated => {
                self.counters.not_tcp += 1;
                self.handle_encapsulated()
            }
            Parsed::Other => {
                self.counters.not_tcp += 1;
                Verdict::Forward
            }
            Parsed::Malformed => {
                self.counters.malformed_frames += 1;
                unacceptable
            }
        };
        self.frame_memory = None;
        match verdict {
            Verdict::Forward => self.counters.forwarded += 1,
            Verdict::Hold(_) => self.counters.held += 1,
            Verdict::Drop => self.counters.dropped += 1,
            // It will be counted then.
            Verdict::Again => self.counters.frames -= 1,
        }
        verdict
    }

    fn handle_encapsulated(&mut self) -> Verdict {
        self.counters.encapsulated += 1;
        match self.config.policies.encapsulated {
            Policy::Forward | Policy::Bypass => Verdict::Forward,
            Policy::Drop | Policy::Reset => Verdict::Drop,
        }
    }

    /// The verdict on a segment, wherever it was found.
    #[inline]
    fn handle_parsed(
        &mut self,
        port: PortId,
        segment: &Segment<'_>,
        checksum_trusted: bool,
    ) -> Verdict {
        if self.is_bypassed(segment) {
            self.counters.bypassed += 1;
            return Verdict::Forward;
        }
        if self.is_misplaced(segment) {
            self.counters.misplaced += 1;
            return Verdict::Drop;
        }
        if self.config.verify_checksums && !checksum_trusted && !segment.checksum_ok() {
            self.counters.bad_checksums += 1;
            return if self.config.inline { Verdict::Drop } else { Verdict::Forward };
        }
        self.handle_segment(port, segment)
    }

    /// Whether a segment is of a connection that is left alone, from either side. Inline, rules
    /// with a port mean a server and are looked at when a connection opens: otherwise any client could
    /// take that port for its own.
    fn is_bypassed(&self, segment: &Segment<'_>) -> bool {
        let Segment { source, destination, .. } = segment;
        self.config.bypass.iter().any(|rule| {
            (rule.port.is_none() || !self.config.inline) && rule.meets(*source, *destination)
        })
    }

    fn is_misplaced(&self, segment: &Segment<'_>) -> bool {
        let share = self.config.share.as_ref();
        share.is_some_and(|share| !share.contains(segment.source, segment.destination))
    }

    /// Lets time pass: ends stalls and forgets idle flows. Of many that are due together, only a part: frames wait meanwhile, and
    /// [`Engine::next_timeout`] says that it is due again.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        for queue in 0..self.stalls.len() {
            let mut left = MAX_DUE;
            while left > 0
                && let Some(check) = self.stalls[queue].front()
                && check.deadline_ns <= self.now_ns
            {
                if let Some(check) = self.stalls[queue].pop_front() {
                    let held = self.held_frames;
                    self.end_stall(&check);
                    left = left.saturating_sub(1 + held.saturating_sub(self.held_frames));
                }
            }
        }
        let mut left = MAX_DUE;
        while left > 0
            && let Some((index, due)) = self.flows.pop_expired(self.now_ns, &self.config.limits)
        {
            match due {
                Due::Rest => self.rest(index),
                Due::End(_) if self.flows.get(index).is_some_and(|flow| flow.offload.is_on()) => {
                    self.ask_whether_idle(index);
                }
                Due::End(reason) => self.expire(index, reason),
            }
            left -= 1;
        }
        self.counters.keys_expired += self.pending.expire(self.now_ns);
        self.live.expire(self.now_ns);
        self.expire_fragments(Some(self.now_ns));
    }

    /// A connection is idle: gives back what can be made again with its next packet.
    fn rest(&mut self, index: FlowIndex) {
        if let Some(flow) = self.flows.peek(index)
            && !flow.is_resting()
        {
            flow.rest();
            if let Payload::Tls(tls) = &mut flow.payload {
                tls.session.rest();
            }
            self.charge(index);
        }
        // It is charged as it was before.
        if let Some(flow) = self.flows.peek(index)
            && !flow.offload.is_on()
        {
            let info = flow.session_info();
            flow.payload.rest(&info);
        }
    }

    /// Frames have passed that were not shown, or are lost: every session ends, and every flow is forgotten but for those that
    /// were reset, which stay so. What goes on is a connection whose beginning was not seen, as after a start. Call
    /// [`Engine::take_all_back`] before, and act on what comes of it.
    pub fn forget_flows(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.expire_fragments(None);
        for index in self.flows.all() {
            let dead = |flow: &mut Flow<H::State>| matches!(flow.phase, Phase::Dead { .. });
            if self.flows.get(index).is_some_and(|flow| !dead(flow)) {
                self.counters.failed_open += 1;
                self.expire(index, EndReason::FailedOpen);
            }
        }
        self.started_ns = Some(self.now_ns);
    }

    /// Ends every session and forgets every flow.
    pub fn finish(&mut self) {
        self.expire_fragments(None);
        for index in self.flows.all() {
            self.expire(index, EndReason::Shutdown);
            if self.flows.get(index).is_some() {
                self.remove(index, EndReason::Shutdown);
            }
        }
    }

    // Polls.

    /// How many bytes of payload the frame that was handled last should become at most where it leaves in one with others of
    /// its connection, where that is known. A receiver that gets a large part of its window at once acknowledges that before
    /// its program has read any of it. The window that it announces then is what is left, its sender sends no more than
    /// that in the next round trip, and the receiver measures that it needs no larger one.
    #[must_use]
    pub const fn coalescing_limit(&self) -> Option<u32> {
        self.coalescing_limit
    }

    /// When [`Engine::handle_timeout`] is due.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        let [shared, unshared] =
            self.stalls.each_ref().map(|queue| queue.front().map(|check| check.deadline_ns));
        let [flows, keys] = [self.flows.next_deadline(), self.pending.next_deadline()];
        let [live, fragments] = [self.live.next_deadline(), self.fragments.next_deadline()];
        [shared, unshared, flows, keys, live, fragments].into_iter().flatten().min()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        let output = self.outputs.pop_front()?;
        // Fragments of a packet go where the last one goes.
        let (id, act): (_, fn(HoldId) -> Output) = match output {
            Output::Release(id) => (id, Output::Release),
            Output::Discard(id) => (id, Output::Discard),
            _ => return Some(output),
        };
        for other in self.fragments.together_with(id) {
            self.outputs.push_front(act(other));
        }
        Some(output)
    }

    fn next_hold(&mut self) -> HoldId {
        self.next_hold += 1;
        HoldId(self.next_hold)
    }
}

/// Splits an engine into the flows and what a session needs while it handles an input.
macro_rules! context {
    ($engine:expr, $state:expr) => {
        $crate::follow::Context {
            sink: &mut $crate::driver::sink::Sink {
                handler: &mut $engine.handler,
                state: &mut $state,
            },
            counters: &mut $engine.counters,
            config: &$engine.config,
            plaintext: &mut $engine.plaintext,
            outputs: &mut $engine.outputs,
            refusals: &mut $engine.refusals,
            pool: &mut $engine.pool,
            now_ns: $engine.now_ns,
        }
    };
}
use context;
