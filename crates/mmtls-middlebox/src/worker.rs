//! The inline worker: one thread, a pair of ports, one engine. Which back end the ports are of ([`Ports`]) is for the
//! caller to choose.
//!
//! A link that goes down is waited for: to end would take every session with it. An interface that is deleted is an error,
//! since nothing can come back on its socket.
//!
//! Refuses to look into packets; it moves them as the engine says. Frames whose offload header
//! would change more than a checksum are dropped.

mod clock;
mod control;
mod held;
mod key_input;
mod lease;
mod links;
mod moderation;
mod settings;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mmtls_engine::session::Handler;
use mmtls_engine::{
    Engine, Exit, ForwardedElsewhere, FrameInput, KeyRefusal, Link, OffloadedFlow,
    OffloadedRecords, Output, PortId, RecordsElsewhere, Verdict, cuts_in_place, finishes_in_place,
};
use mmtls_packet_io::{
    Action, Error as PortsError, Extent, Forwarded, ForwardedRecords, Frame, Lease, OffloadFlow,
    OffloadSide, Outbox, Port, Ports, Records, VnetHeader,
};

use crate::keys::KeyDelivery;
use crate::keys::sealed::SealedInput;
use crate::{Error, Status, harden};
use clock::Clock;
pub use control::{SLOTS_PER_TICK, TICK_PAUSE};
use held::HeldFrames;
pub use key_input::KeyInput;
use lease::Outage;
use links::Links;
use moderation::Moderation;
pub use settings::Settings;

/// Longest sleep: how late a stop or a periodic task can be.
const TICK: Duration = Duration::from_millis(250);

/// Deliveries taken between two looks at the interfaces.
const KEYS_PER_TURN: usize = 1024;

/// What part of the guard's lease deliveries may take between two looks at the interfaces: each may open all that its session holds.
const KEYS_PART_OF_LEASE: u32 = 8;

/// Messages that wait to be told; later ones are lost.
const MAX_MESSAGES: usize = 8;

/// What is told of more frames than can be discarded, see [`Lease::Flooded`].
const FLOODED: &str = "the kernel goes on forwarding: more frames come than this monitor can discard of those that have passed \
                       (more processors, more workers)";

/// What a turn came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Frames received.
    pub frames: usize,
    /// Neither keys came nor was any time up.
    pub idle: bool,
}

/// One inline worker.
pub struct Worker<H: Handler, P> {
    ports: P,
    engine: Engine<H>,
    held: HeldFrames,
    keys: KeyInput,
    clock: Clock,
    moderation: Moderation,
    batch: usize,
    passive: bool,
    faults: PortFaults,
    outage: Outage,
    /// The next tick is to come so soon.
    tick_again: Option<Duration>,
}

/// What went wrong without ending the worker.
#[derive(Default)]
struct PortFaults {
    /// Frames dropped because finishing their checksum would have changed them.
    refused_offloads: u64,
    /// That has been told.
    told_offloads: bool,
    /// How often the guard's lease was lost.
    leases_lost: u64,
    links: Links,
    /// Not printed yet, the oldest first.
    messages: VecDeque<String>,
}

impl PortFaults {
    /// Nobody may ever ask a worker for what it has to tell. Whether there was room.
    fn tell(&mut self, message: String) -> bool {
        let has_room = self.messages.len() < MAX_MESSAGES;
        if has_room {
            self.messages.push_back(message);
        }
        has_room
    }

    fn refused_offload(&mut self) {
        self.refused_offloads += 1;
        if !self.told_offloads {
            self.told_offloads = self.tell(REFUSED_OFFLOAD.to_owned());
        }
    }
}

impl<H: Handler, P: Ports> Worker<H, P> {
    /// A worker that will move frames between the ports.
    #[must_use]
    pub fn new(ports: P, engine: Engine<H>, keys: KeyInput, settings: Settings) -> Self {
        let links = Links::new(&ports);
        Self {
            ports,
            engine,
            held: HeldFrames::default(),
            keys,
            clock: Clock::new(),
            moderation: Moderation::new(settings),
            batch: settings.batch,
            passive: settings.passive,
            faults: PortFaults { links, ..PortFaults::default() },
            outage: Outage::default(),
            tick_again: None,
        }
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine<H> {
        &self.engine
    }

    /// The application.
    pub fn handler_mut(&mut self) -> &mut H {
        self.engine.handler_mut()
    }

    /// The worker's time: nanoseconds since 1970.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.ns_at(Instant::now())
    }

    /// What has been counted, and what is kept.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            engine: *self.engine.counters(),
            bridge: self.ports.counters(),
            flows: self.engine.flow_count() as u64,
            buffered_bytes: self.engine.buffered_bytes() as u64,
            held_frames: self.held.len() as u64,
            held_times: *self.held.times(),
            refused_offloads: self.faults.refused_offloads,
            interface_downs: self.faults.links.downs(),
            ports_down: self.faults.links.are_down(),
            leases_lost: self.faults.leases_lost,
        }
    }

    /// What is to be reported to the operator, once: the next of it.
    pub fn take_message(&mut self) -> Option<String> {
        self.faults.messages.pop_front()
    }

    /// Moves frames until `stop` is set. `each_tick` runs several times a second, also under
    /// load.
    ///
    /// # Errors
    /// [`Error::Interface`] when an interface vanishes. One that goes down is waited for.
    pub fn run(
        &mut self,
        stop: &AtomicBool,
        mut each_tick: impl FnMut(&mut Self),
    ) -> Result<(), Error> {
        // Pauses are shorter than the timer slack that threads start with.
        harden::precise_timers()?;
        let mut next_tick = Instant::now() + TICK;
        while !stop.load(Ordering::Relaxed) {
            // One look at the clock per turn.
            let now = Instant::now();
            let lease = self.renew(now)?;
            if lease == Lease::Lost && stop.load(Ordering::Relaxed) {
                // Another worker has let go of it, since all are to end: nobody was silent.
                break;
            }
            let Turn { frames, idle } = self.turn_with(lease, now)?;
            if now >= next_tick {
                next_tick = now + TICK;
                let checked = self.ports.check();
                self.tolerate_down(checked, now)?;
                for message in self.faults.links.look(&self.ports, now) {
                    self.faults.tell(message);
                }
                each_tick(self);
                if let Some(pause) = self.tick_again.take() {
                    next_tick = now + pause;
                }
            }
            // Waiting is a system call that says nothing new while frames keep coming.
            if frames > 0 {
                self.moderation.turn(now, frames, self.batch);
            } else if idle {
                let slept = self.sleep(now, next_tick);
                self.tolerate_down(slept, now)?;
            }
        }
        Ok(())
    }

    /// One turn: deliveries of keys, a batch of frames in each direction, timeouts that are due. For those
    /// who have a loop of their own; [`Worker::run`] is the usual one. `now` must not go back.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub fn turn(&mut self, now: Instant) -> Result<Turn, Error> {
        let lease = self.renew(now)?;
        self.turn_with(lease, now)
    }

    fn turn_with(&mut self, lease: Lease, now: Instant) -> Result<Turn, Error> {
        let now_ns = self.clock.ns_at(now);
        match lease {
            Lease::Lost => {
                self.lose_track(now_ns);
                return Ok(Turn { frames: 0, idle: false });
            }
            // However long that took, connections that were there have the time of a start from now on to be found again.
            Lease::Held if self.outage.end() => {
                self.engine.forget_flows(now_ns);
                self.act(now_ns);
            }
            Lease::Flooded if self.faults.messages.is_empty() && self.outage.is_flood(now) => {
                self.faults.tell(FLOODED.to_owned());
            }
            Lease::Held | Lease::Flooded | Lease::Waiting => {}
        }
        let mut idle = self.take_keys(now_ns) == 0;
        let mut frames = 0;
        let shown = if lease == Lease::Held { &Port::BOTH[..] } else { &[] };
        for &port in shown {
            let received = self.receive(port, now_ns);
            frames += self.tolerate_down(received, now)?;
            if self.keys.sealed.as_mut().is_some_and(SealedInput::has_come) {
                self.take_keys(now_ns);
            }
        }
        if self.engine.next_timeout().is_some_and(|due| due <= now_ns) {
            self.engine.handle_timeout(now_ns);
            self.act(now_ns);
            idle = false;
        }
        Ok(Turn { frames, idle })
    }

    fn renew(&mut self, now: Instant) -> Result<Lease, Error> {
        self.ports.renew().map_or_else(
            // Which counts as waiting: an interface that is down has no frames.
            |error| self.tolerate_down(Err(error), now).map(|()| Lease::Waiting),
            Ok,
        )
    }

    /// The guard has forwarded frames that were not shown: what is held was sent again, and of no connection it is known where
    /// it stands.
    fn lose_track(&mut self, now_ns: u64) {
        self.faults.leases_lost += 1;
        self.outage.begin();
        self.engine.take_all_back();
        self.act(now_ns);
        let flows = self.engine.counters().failed_open;
        self.engine.forget_flows(now_ns);
        self.act(now_ns);
        let flows = self.engine.counters().failed_open - flows;
        self.held.clear();
        self.faults.tell(format!(
            "failed open: this monitor was silent for longer than the guard's lease, and the kernel has forwarded in its place; \
             {flows} connections have to be found again, as after a start"
        ));
    }

    /// Lets go of everything: held frames are dropped, sessions end, and what their handlers have reset
    /// then is signalled to both ends. Where a guard forwards from now on, it does so at once.
    pub fn finish(&mut self) {
        self.ports.release();
        let now_ns = self.now_ns();
        self.engine.take_all_back();
        self.act(now_ns);
        self.engine.finish();
        self.act(now_ns);
        self.held.clear();
        // Sends what is queued; a port that is down takes nothing.
        let _ = self.ports.wait(Some(Duration::ZERO), None);
    }

    /// Gives the handler back.
    #[must_use]
    pub fn into_handler(self) -> H {
        self.engine.into_handler()
    }

    /// Takes note of an interface that is down: a driver that resets itself, or an operator who
    /// changes it, must not end everybody's sessions. The sockets go on when it is up again.
    fn tolerate_down<T: Default>(
        &mut self,
        outcome: Result<T, PortsError>,
        now: Instant,
    ) -> Result<T, Error> {
        match outcome {
            Err(error @ PortsError::InterfaceDown { .. }) => {
                if let Some(message) = self.faults.links.found_down(&error, now) {
                    self.faults.tell(message);
                }
                Ok(T::default())
            }
            other => other.map_err(Error::Interface),
        }
    }

    /// Waits for frames, keys, the next tick or the engine's next timeout.
    fn sleep(&mut self, now: Instant, next_tick: Instant) -> Result<(), PortsError> {
        let now_ns = self.clock.ns_at(now);
        self.keys.receiver.announce_sleep();
        if self.take_keys(now_ns) > 0 {
            return Ok(());
        }
        let tick = next_tick.saturating_duration_since(now);
        let timeout = match self.engine.next_timeout() {
            Some(due) => tick.min(Duration::from_nanos(due.saturating_sub(now_ns))),
            None => tick,
        };
        let ready = self.ports.wait(Some(timeout), Some(self.keys.receiver.wake_fd()))?;
        if ready.woken {
            self.keys.receiver.woken();
        }
        Ok(())
    }

    fn receive(&mut self, port: Port, now_ns: u64) -> Result<usize, PortsError> {
        let Self { ports, engine, held, keys, faults, passive, .. } = self;
        ports.receive_with(port, |frame, outbox| {
            if keys.takes(frame.bytes) {
                return Action::Drop;
            }
            if !*passive && !leaves_as_judged(frame) {
                faults.refused_offload();
                return Action::Drop;
            }
            let input = FrameInput {
                port: port_id(port),
                link: Link::Ethernet,
                bytes: frame.bytes,
                memory: frame.memory,
                checksum_trusted: checksum_trusted(frame),
            };
            let mut verdict = engine.handle_frame(now_ns, &input);
            if verdict == Verdict::Again {
                drain(now_ns, engine, held, keys, outbox);
                verdict = engine.handle_frame(now_ns, &input);
            }
            let action = match verdict {
                // It is on its way already.
                _ if *passive => Action::Drop,
                Verdict::Forward => {
                    if let Some(bytes) = engine.coalescing_limit() {
                        outbox.limit_coalescing(usize::try_from(bytes).unwrap_or(usize::MAX));
                    }
                    Action::Forward
                }
                // The second time its connection is the engine's.
                Verdict::Drop | Verdict::Again => Action::Drop,
                Verdict::Hold(id) => {
                    held.insert(id, frame.hold(), now_ns);
                    Action::Taken
                }
            };
            drain(now_ns, engine, held, keys, outbox);
            action
        })
    }

    /// Takes deliveries, but not for ever, since packets wait too, and the guard. Returns how many were looked
    /// at.
    fn take_keys(&mut self, now_ns: u64) -> usize {
        let mut left = KEYS_PER_TURN;
        let end = self.ports.lease().map(|lease| Instant::now() + lease / KEYS_PART_OF_LEASE);
        while let Some(delivery) = {
            let engine = &mut self.engine;
            self.keys.receiver.take(&mut left, |sender, random| engine.has_session(sender, random))
        } {
            // The engine counts refusals.
            match delivery {
                KeyDelivery::Keys(keys) => {
                    let (sender, source, random) = (keys.sender, keys.source, keys.client_random);
                    if let Err(why) = self.engine.handle_keys(now_ns, keys) {
                        self.keys.refuse(sender, source, random, why);
                    }
                }
                KeyDelivery::Null { sender, source, client_random, direction } => {
                    let sender = Some(sender);
                    if let Err(why) =
                        self.engine.handle_null_keys(now_ns, sender, client_random, direction)
                    {
                        self.keys.refuse(sender, source, client_random, why);
                    }
                }
                KeyDelivery::Live(keys) => {
                    // Too many are counted.
                    let _ = self.engine.handle_live_keys(now_ns, *keys);
                }
                KeyDelivery::Opened { address, connection } => {
                    let cost = self.keys.ask_again(address, connection, now_ns);
                    left = left.saturating_sub(cost);
                    let of = self.keys.senders.identity(Some(address));
                    if self.engine.awaits_live_keys(of) {
                        self.keys.ask_for_live_keys([connection]);
                    }
                }
                KeyDelivery::Lines(lines) => {
                    for keys in self.keys.log.iter_mut().flat_map(|log| log.add(lines.text())) {
                        let _ = self.engine.handle_keys(now_ns, keys);
                    }
                }
            }
            // Each key may cause questions.
            left = left.saturating_sub(self.act(now_ns));
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
        }
        KEYS_PER_TURN - left
    }

    /// Acts on outputs that no frame caused. Returns how many endpoints were asked for keys.
    fn act(&mut self, now_ns: u64) -> usize {
        let outbox = self.ports.outbox();
        drain(now_ns, &mut self.engine, &mut self.held, &mut self.keys, outbox)
    }
}

fn drain<H: Handler>(
    now_ns: u64,
    engine: &mut Engine<H>,
    held: &mut HeldFrames,
    keys: &mut KeyInput,
    out: &mut impl Outbox,
) -> usize {
    let mut asked = 0;
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Release(id) => {
                if let Some(frame) = held.take(id, now_ns) {
                    out.send_held(frame);
                }
            }
            Output::Discard(id) => {
                held.take(id, now_ns);
            }
            Output::Inject { exit, frame } => {
                let port = match exit {
                    Exit::AwayFrom(port) => port_of(port).other(),
                    Exit::Through(port) => port_of(port),
                };
                // The engine's frames have a header and a legal length.
                let _ = out.inject(port, &frame);
            }
            Output::Offload(flow) => {
                if !out.offload(&left_to_ports(&flow)) {
                    engine.handle_offload_refused(now_ns, &flow);
                }
            }
            Output::TakeBack(flow) => {
                let forwarded = out.take_back(&left_to_ports(&flow)).map(forwarded_by_ports);
                engine.handle_taken_back(now_ns, &flow, forwarded);
            }
            Output::KeysOpenNothing(of) => {
                keys.refuse(None, of.source, of.client_random, KeyRefusal::OpenNothing);
            }
            Output::LiveKeysNeeded(of) => {
                let addresses = of.ends.map(|end| end.ip());
                let connections = keys.router.connections_at(addresses, &keys.senders);
                keys.ask_for_live_keys(connections);
            }
            Output::KeysNeeded(wanted) => {
                if let Some(found) = keys.find(&wanted) {
                    // What comes of it is taken up by the next turn of this loop.
                    let _ = engine.handle_keys(now_ns, found);
                } else {
                    asked += keys.ask(wanted, now_ns);
                }
            }
        }
    }
    asked
}

fn port_id(port: Port) -> PortId {
    match port {
        Port::Left => PortId(0),
        Port::Right => PortId(1),
    }
}

fn port_of(id: PortId) -> Port {
    if id == port_id(Port::Left) { Port::Left } else { Port::Right }
}

/// A connection that nobody reads, or not all of, as the ports know it.
fn left_to_ports(flow: &OffloadedFlow) -> OffloadFlow {
    let extent = |at: usize| match flow.records {
        None => Extent::Everything,
        Some(OffloadedRecords { direction, next, content, overhead })
            if direction.index() == at =>
        {
            Extent::Records(Records { next, content, overhead })
        }
        Some(_) => Extent::Acknowledgments,
    };
    let side = |at: usize| OffloadSide {
        extent: extent(at),
        ingress: port_of(flow.ports[at]),
        source: flow.ends[at],
        destination: flow.ends[1 - at],
        initial: flow.initial[at],
        peer_initial: flow.initial[1 - at],
        position: flow.positions[at],
    };
    OffloadFlow { sides: [side(0), side(1)] }
}

/// What they have forwarded of a direction, as the engine knows it.
fn forwarded_by_ports(of: Forwarded) -> ForwardedElsewhere {
    let ForwardedRecords { count, content, next, fragment_lens } = of.records;
    ForwardedElsewhere {
        packets: of.frames,
        bytes: of.payload_bytes,
        position: of.position,
        acknowledgment: of.acknowledgment,
        records: RecordsElsewhere { count, content, next, fragment_lens },
    }
}

/// Whether what leaves, once it is cut and its checksum finished, is what the engine judges.
fn leaves_as_judged(frame: &Frame<'_>) -> bool {
    let vnet = frame.vnet;
    let places = (usize::from(vnet.checksum_start), usize::from(vnet.checksum_offset));
    let checksum = frame.checksum_partial().then_some(places);
    if frame.gso_size().is_some() {
        return cuts_in_place(Link::Ethernet, frame.bytes, vnet.is_of_datagrams(), checksum);
    }
    checksum
        .is_none_or(|(start, offset)| finishes_in_place(Link::Ethernet, frame.bytes, start, offset))
}

/// Said once: what is dropped is counted.
const REFUSED_OFFLOAD: &str = "a super-frame inside a tunnel, or one whose checksum is to be written elsewhere than into a \
     checksum, was dropped, as all of them are (offloads_refused): `ethtool -K IF gro off` on both ports lets tunnels pass, and `tso \
     off` where a neighbour on this host sends them";

/// Unfinished checksums must not be verified, verified ones need not be.
fn checksum_trusted(frame: &Frame<'_>) -> bool {
    frame.vnet.flags & (VnetHeader::NEEDS_CHECKSUM | VnetHeader::DATA_VALID) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_offload_headers_that_rewrite_the_payload() {
        let mut bytes = vec![0; 14 + 20 + 20 + 10];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34]
            .copy_from_slice(&[0x45, 0, 0, 50, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[46] = 0x50;
        let judged = |flags, checksum_start, checksum_offset| {
            let vnet =
                VnetHeader { flags, checksum_start, checksum_offset, ..VnetHeader::default() };
            leaves_as_judged(&Frame { bytes: &bytes, memory: None, vnet, ingress: Port::Left })
        };
        assert!(judged(VnetHeader::NEEDS_CHECKSUM, 34, 16));
        // Into the first bytes of the payload.
        assert!(!judged(VnetHeader::NEEDS_CHECKSUM, 34, 20));
        assert!(!judged(VnetHeader::NEEDS_CHECKSUM, 54, 0));
        // Without the flag the numbers mean nothing.
        assert!(judged(VnetHeader::DATA_VALID, 54, 0));
    }

    #[test]
    fn tells_of_refused_offloads_once_there_is_room() {
        let mut faults = PortFaults::default();
        while faults.tell("a link is down".to_owned()) {}
        faults.refused_offload();
        faults.messages.pop_front();
        faults.refused_offload();
        faults.messages.pop_front();
        faults.refused_offload();
        let told = faults.messages.iter().filter(|it| *it == REFUSED_OFFLOAD).count();
        assert_eq!((faults.refused_offloads, told), (3, 1));
    }

    #[test]
    fn refuses_super_frames_that_the_kernel_would_not_cut() {
        let mut bytes = vec![0; 14 + 20 + 20 + 20 + 10];
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14..34]
            .copy_from_slice(&[0x45, 0, 0, 70, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[46] = 0x50;
        let judged = |protocol, gso_type, checksum_start| {
            let mut bytes = bytes.clone();
            bytes[23] = protocol;
            let vnet = VnetHeader {
                flags: VnetHeader::NEEDS_CHECKSUM,
                gso_type,
                gso_size: 10,
                checksum_start,
                checksum_offset: 16,
                ..VnetHeader::default()
            };
            leaves_as_judged(&Frame { bytes: &bytes, memory: None, vnet, ingress: Port::Left })
        };
        // With congestion notification, too.
        for of_tcp in [1, 4, 0x81] {
            assert!(judged(6, of_tcp, 34) && !judged(6, of_tcp, 54));
            // IP in IP: as one frame it could be forwarded.
            assert!(!judged(4, of_tcp, 54) && judged(4, VnetHeader::GSO_NONE, 54));
        }
        assert!(!judged(6, 5, 34) && !judged(17, 1, 34));
    }
}
