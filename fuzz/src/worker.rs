//! The whole worker on the in-memory back end: frames, keys, time, and what the handler answers, in any order.
//!
//! Two models of receivers look at what leaves: one keeps the first copy of every byte; one the latest that
//! it has not handed on, and may lose frames behind the worker. Neither may ever have the whole of a record that the handler has not been shown and let
//! pass. Where nobody was hostile, and keys came, everything must arrive.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use mmtls_engine::session::{EndReason, Handler, Record, Session as Followed, SessionError};
use mmtls_engine::tls::{Direction, KeyEpoch};
use mmtls_engine::{Config, Engine, Policies, Policy};
use mmtls_keyshare::message::{Message, NullKeys, SessionKeys};
use mmtls_keyshare::server::KeySink;
use mmtls_middlebox::Share;
use mmtls_middlebox::keys::{self, WorkerSink};
use mmtls_middlebox::worker::{KeyInput, Settings, Worker};
use mmtls_packet_io::memory::{self, Link, MemoryPorts, Network};
use mmtls_packet_io::{Port, VnetHeader};
use mmtls_testkit::frames::{CLIENT, Packet, SERVER, Session};
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;
use mmtls_testkit::wire::{RST, Segment};

use crate::input::Input;

/// Frames that may wait in the network.
const CAPACITY: usize = 512;
/// Operations of one input.
const MAX_OPERATIONS: usize = 200;
/// Longer than any honest input takes.
const STALL_NS: u64 = 3_000_000_000;
/// A connection rests after so much silence.
const REST_NS: u64 = 2_000_000;
/// What the last packets of an honest run have to arrive within, in turns.
const PATIENCE: usize = 400;

/// Bytes of content that are not read behind some records.
const PAUSE: usize = 2600;

/// A frame of more bytes can be cut into fragments.
const SMALLEST_IN_TWO: usize = 14 + 20 + 64;

/// What the handler does at its next events, and what it has seen.
struct Judge {
    answers: Vec<u8>,
    next: usize,
    /// Records of each direction that may arrive whole.
    allowed: [usize; 2],
    /// As many were, of sessions that are over.
    ended: [usize; 2],
    /// Records of this direction are not asked for any more.
    unjudged: [bool; 2],
    /// How much content the session's records have: what a pause passes over is known by that.
    lens: &'static [Vec<usize>; 2],
    reset: bool,
}

impl Default for Judge {
    fn default() -> Self {
        static NONE: [Vec<usize>; 2] = [const { Vec::new() }; 2];
        let (answers, next) = Default::default();
        let (allowed, ended, unjudged, reset) = Default::default();
        Self { answers, next, allowed, ended, unjudged, lens: &NONE, reset }
    }
}

impl Judge {
    /// A record was judged, and as much content behind it as `paused` need not be.
    fn allow(&mut self, side: usize, record: u64, mut paused: usize) {
        let mut next = record as usize + 1;
        while let Some(rest) = self.lens[side].get(next).and_then(|len| paused.checked_sub(*len)) {
            paused = rest;
            next += 1;
        }
        self.allowed[side] = self.allowed[side].max(next);
    }

    fn answer(&mut self) -> u8 {
        let answer = self.answers.get(self.next).copied().unwrap_or_default();
        self.next += 1;
        answer
    }
}

/// The judge as the worker has it; the model looks at it between turns.
#[derive(Clone, Default)]
struct Bench(Arc<Mutex<Judge>>);

impl Bench {
    fn with<T>(&self, work: impl FnOnce(&mut Judge) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// An event in which nothing is judged.
    fn event(&self, session: &mut Followed<'_>) {
        self.with(|judge| {
            if judge.answer() == 1 {
                judge.reset = true;
                session.reset();
            }
        });
    }
}

impl Handler for Bench {
    type State = ();

    fn session_start(&mut self, session: &mut Followed<'_>, (): &mut ()) {
        self.event(session);
    }

    fn handshake_end(&mut self, session: &mut Followed<'_>, (): &mut ()) {
        self.event(session);
    }

    fn stall(&mut self, session: &mut Followed<'_>, (): &mut (), _direction: Direction) {
        self.event(session);
    }

    fn error(&mut self, session: &mut Followed<'_>, (): &mut (), _: Direction, _: SessionError) {
        self.event(session);
    }

    fn session_end(&mut self, _: &mut Followed<'_>, (): &mut (), _: EndReason) {
        self.with(|judge| judge.ended = judge.allowed);
    }

    fn new_record(&mut self, session: &mut Followed<'_>, (): &mut (), record: &mut Record<'_>) {
        self.with(|judge| {
            let answer = judge.answer();
            let direction = record.direction();
            if answer != 2 && record.open().is_err() {
                // Its policy resets the session; the record must not arrive.
                return;
            }
            match answer {
                1 => {
                    judge.reset = true;
                    return session.reset();
                }
                3 => {
                    judge.unjudged[side(direction)] = true;
                    session.pause(direction, None);
                }
                4 => session.pause(direction, Some(PAUSE as u64)),
                _ => {}
            }
            if !judge.reset {
                let paused = if answer == 4 { PAUSE } else { 0 };
                judge.allow(side(direction), record.sequence(), paused);
            }
        });
    }
}

/// One direction's stream as a receiver has it.
#[derive(Default)]
struct Receiver {
    /// What came, that behind a hole, too.
    bytes: Vec<u8>,
    /// Which of them did.
    came: Vec<bool>,
    /// As many are handed on: nothing changes them any more.
    handed_on: usize,
    /// Records of connections before this one, which do not count for it.
    before: usize,
    latest_counts: bool,
}

impl Receiver {
    /// What it has handed on.
    fn stream(&self) -> &[u8] {
        &self.bytes[..self.handed_on]
    }

    fn take(&mut self, offset: i64, payload: &[u8]) {
        let from = offset.max(self.handed_on as i64);
        let payload = payload.get((from - offset) as usize..).unwrap_or(&[]);
        if payload.is_empty() {
            return;
        }
        let from = from as usize;
        let end = from + payload.len();
        assert!(end < 1 << 20, "nobody sends what belongs there: {from}");
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
            self.came.resize(end, false);
        }
        let places = self.bytes[from..end].iter_mut().zip(&mut self.came[from..end]);
        for ((byte, came), new) in places.zip(payload) {
            if self.latest_counts || !*came {
                (*byte, *came) = (*new, true);
            }
        }
        self.handed_on += self.came[self.handed_on..].iter().take_while(|came| **came).count();
    }

    /// A RST came. One in its exact place ends the connection (RFC 9293, section 3.10.7.4): what waited for
    /// a hole to be filled is gone, and a connection with the same numbers begins with nothing.
    fn reset(&mut self, offset: i64, ended: usize) {
        if offset == self.handed_on as i64 {
            self.before = ended;
            self.bytes.clear();
            self.came.clear();
            self.handed_on = 0;
        }
    }

    /// The headers of records behind the handshake, and whether the record is complete.
    fn headers(&self, handshake_len: usize) -> impl Iterator<Item = ([u8; 5], bool)> {
        let mut rest = self.stream().get(handshake_len..).unwrap_or(&[]);
        std::iter::from_fn(move || {
            let (header, behind) = rest.split_first_chunk::<5>()?;
            let next = behind.get(usize::from(u16::from_be_bytes([header[3], header[4]]))..);
            rest = next.unwrap_or(&[]);
            Some((*header, next.is_some()))
        })
    }

    /// How many records are complete behind the handshake.
    fn records(&self, handshake_len: usize) -> usize {
        self.headers(handshake_len).filter(|(_, is_complete)| *is_complete).count()
    }
}

/// The sessions that inputs choose from, and how much content their records have: made once, since they are sealed.
fn sessions() -> &'static [(Session, [Vec<usize>; 2])] {
    static SESSIONS: OnceLock<Vec<(Session, [Vec<usize>; 2])>> = OnceLock::new();
    SESSIONS.get_or_init(|| {
        let of = |records: &[(Direction, usize)]| {
            let content = records.iter().map(|(direction, len)| (*direction, vec![b'r'; *len]));
            let session = Session::new(&content.collect::<Vec<_>>());
            let lens = [CLIENT, SERVER].map(|direction| {
                records.iter().filter(|it| it.0 == direction).map(|it| it.1).collect()
            });
            (session, lens)
        };
        vec![
            of(&[(CLIENT, 30), (SERVER, 2500)]),
            of(&[(CLIENT, 10), (SERVER, 40), (SERVER, 3000), (CLIENT, 1500), (SERVER, 5)]),
            of(&[(SERVER, 1000), (CLIENT, 1000), (SERVER, 1), (CLIENT, 1), (SERVER, 1200)]),
            // Some of them are long enough to go by the ports in a pause.
            of(&[
                (CLIENT, 30),
                (SERVER, 40),
                (SERVER, 1200),
                (SERVER, 1300),
                (SERVER, 20),
                (SERVER, 2000),
                (CLIENT, 1100),
                (CLIENT, 1200),
                (SERVER, 600),
                (SERVER, 1500),
            ]),
        ]
    })
}

/// Where a segment's payload stands in its stream.
fn offset_of(segment: &Segment<'_>, direction: Direction) -> i64 {
    let first = [1001u32, 2001][side(direction)];
    i64::from(segment.sequence.wrapping_sub(first) as i32)
}

struct Stage {
    session: &'static Session,
    worker: Worker<Bench, MemoryPorts>,
    network: Network,
    keys: WorkerSink,
    bench: Bench,
    start: Instant,
    elapsed: Duration,
    /// First and latest copy, of what goes to the server and to the client.
    receivers: [[Receiver; 2]; 2],
    resets: [bool; 2],
    /// Offsets up to which the sender of each direction has acknowledged the other one, behind the handshake.
    acknowledged: [u64; 2],
    /// Streams of which their receiver has acknowledged what had not come to both of its models. Whoever does so has no use for
    /// that, and takes any copy of it: the second model may not lose frames then.
    acknowledged_too_much: [bool; 2],
    /// What leaves does not come to the second of them.
    loses: bool,
    /// Frames that were sent, and as many as may be held.
    sent: usize,
    max_held_frames: usize,
    /// Something was done that an honest network and honest endpoints do not.
    hostile: bool,
    handshake_keys: bool,
    /// Sessions whose keys are refused pass unread, and are left to the ports.
    bypasses: bool,
}

impl Stage {
    fn new(session: &'static Session, bypasses: bool, input: &mut Input<'_>) -> Self {
        let batch = 1 + usize::from(input.u8() % 32);
        let bench = Bench::default();
        let (ports, network) = memory::pair(CAPACITY, batch).expect("descriptors");
        let ports = ports.with_offload();
        let (keys, mut receivers, router) = keys::queues(Share::ALL).expect("descriptors");
        let receiver = receivers.pop().expect("one worker");
        let mut config = Config::new(Policy::Reset);
        let policies = Policies::new(Policy::Reset);
        let null_keys = if bypasses { Policy::Bypass } else { Policy::Reset };
        config.policies = Policies { null_keys, ..policies };
        config.offload = true;
        config.tell_hellos = true;
        config.asks_for_live_keys = true;
        config.supports = keys::supports;
        config.limits.stall_timeout_ns = STALL_NS;
        config.limits.unshared_stall_timeout_ns = STALL_NS;
        // Sessions go to rest all the time, which changes nothing.
        config.limits.rest_after_ns = REST_NS;
        config.limits.max_held_frames = 1 + usize::from(input.u8());
        config.mid_stream_grace_ns = 0;
        let max_held_frames = config.limits.max_held_frames;
        let engine = Engine::new(config, bench.clone());
        let input = KeyInput::new(receiver, router);
        let settings = Settings { batch, moderation: Duration::ZERO, passive: false };
        let receiver = |latest_counts| Receiver { latest_counts, ..Receiver::default() };
        Self {
            session,
            worker: Worker::new(ports, engine, input, settings),
            network,
            keys,
            bench,
            start: Instant::now(),
            elapsed: Duration::ZERO,
            receivers: [[receiver(false), receiver(true)], [receiver(false), receiver(true)]],
            resets: [false; 2],
            acknowledged: [0; 2],
            acknowledged_too_much: [false; 2],
            loses: false,
            sent: 0,
            max_held_frames,
            hostile: false,
            handshake_keys: false,
            bypasses,
        }
    }

    fn send(&mut self, packet: &Packet) {
        self.sent += 1;
        // What does not fit is lost, as in any network.
        let _ = self.network.put(packet.port, VnetHeader::default(), &packet.frame);
    }

    fn turn(&mut self) {
        let result = self.worker.turn(self.start + self.elapsed);
        assert!(result.is_ok(), "{:?}", result.err());
        self.look();
    }

    /// Takes out what has left, and judges it.
    fn look(&mut self) {
        let (allowed, ended, unjudged) =
            self.bench.with(|judge| (judge.allowed, judge.ended, judge.unjudged));
        for (port, direction) in [(Port::Right, CLIENT), (Port::Left, SERVER)] {
            while let Some(frame) = self.network.take(port, Duration::ZERO) {
                let Some(segment) = Segment::of(&frame.bytes) else {
                    continue;
                };
                self.resets[side(direction)] |= segment.flags & RST != 0;
                let offset = offset_of(&segment, direction);
                for receiver in &mut self.receivers[side(direction)] {
                    if self.loses && receiver.latest_counts {
                        continue;
                    }
                    if segment.flags & RST != 0 {
                        // What it carries is not part of the stream (RFC 9293, section 3.5.3).
                        receiver.reset(offset, ended[side(direction)]);
                    } else {
                        receiver.take(offset, segment.payload);
                    }
                }
            }
        }
        for at in 0..2 {
            let models = if self.acknowledged_too_much[at] { 1 } else { 2 };
            for receiver in self.receivers[at][..models].iter().filter(|_| !unjudged[at]) {
                let arrived = receiver.records(self.session.handshake_len[at]);
                let judged = allowed[at] - receiver.before;
                assert!(arrived <= judged, "{arrived} records, {judged} judged");
            }
            // Whichever copy reaches a receiver, it finds the same records.
            let headers = |receiver: &Receiver| {
                let all = receiver.headers(self.session.handshake_len[at]);
                all.map(|(header, _)| header).collect::<Vec<_>>()
            };
            let [first, latest] = self.receivers[at].each_ref().map(headers);
            let common = first.len().min(latest.len());
            let before = self.receivers[at].iter().any(|it| it.before > 0);
            let counts = !unjudged[at] && !before && models == 2;
            assert!(!counts || first[..common] == latest[..common], "{first:02x?} {latest:02x?}");
        }
    }

    fn deliver(&mut self, epoch: KeyEpoch) {
        let _ = self.keys.deliver(self.session.sender(), 1, self.session.keys(epoch));
        self.keys.batch_end();
    }

    /// Without the handshake's keys what does not open may be a Finished: a few changed records pass, which
    /// their receiver refuses, and a few of whoever shares wrong keys (SECURITY.md).
    fn excuse(&self, direction: Direction) {
        self.bench.with(|judge| judge.unjudged[side(direction)] |= !self.handshake_keys);
    }

    /// Keys that are not the session's, or not its client's.
    fn deliver_odd(&mut self, choice: u8) {
        self.hostile = true;
        let Message::SessionKeys(mut keys) = self.session.keys(KeyEpoch::Application(0)) else {
            return;
        };
        let stranger = [10, 0, 0, 9].into();
        let own = self.session.sender();
        let (sender, message) = match choice % 4 {
            // Of what is under way: nothing of it is, but the queues and what waits are the same.
            _ if choice & 0x80 != 0 => (own, Message::LiveKeys(keys)),
            0 => (stranger, Message::SessionKeys(keys)),
            1 => {
                // Those of the other direction.
                self.excuse(CLIENT);
                let swapped: Vec<_> = keys.keys.drain(..).rev().collect();
                keys.keys = swapped;
                for key in &mut keys.keys {
                    key.direction = key.direction.reverse();
                }
                (own, Message::SessionKeys(SessionKeys { flow: None, ..keys }))
            }
            2 => {
                let direction = [None, Some(CLIENT), Some(SERVER)][usize::from(choice >> 2) % 3];
                let client_random = keys.client_random;
                // Of one direction, the other one is still read.
                for (at, of) in [CLIENT, SERVER].into_iter().enumerate() {
                    let refused = self.bypasses && direction.is_none_or(|it| it == of);
                    self.bench.with(|judge| judge.unjudged[at] |= refused);
                }
                (own, Message::NullKeys(NullKeys { client_random, direction, flow: None }))
            }
            _ => {
                let flow = keys.flow;
                (
                    stranger,
                    Message::NullKeys(NullKeys {
                        client_random: keys.client_random,
                        direction: None,
                        flow,
                    }),
                )
            }
        };
        let _ = self.keys.deliver(sender, 2, message);
        self.keys.batch_end();
    }

    /// One operation on the packets that carry records.
    fn operate(&mut self, packets: &[Packet], next: &mut usize, input: &mut Input<'_>) {
        let operation = input.u8();
        let chosen =
            |input: &mut Input<'_>| packets.get(usize::from(input.u8()) % packets.len().max(1));
        match operation % 16 {
            0..=3 => {
                if let Some(packet) = packets.get(*next) {
                    self.send(packet);
                    *next += 1;
                }
            }
            4 => *next += usize::from(*next < packets.len()),
            5 => {
                if let Some(packet) = chosen(input) {
                    self.send(packet);
                }
            }
            6 => {
                if let Some(packet) = chosen(input).filter(|it| it.frame.len() > SMALLEST_IN_TWO) {
                    let mut pieces = packet.fragments();
                    if operation & 16 != 0 {
                        pieces.reverse();
                    }
                    for piece in &pieces[..1 + usize::from(operation & 32 == 0)] {
                        self.send(piece);
                    }
                }
            }
            7 => self.deliver(KeyEpoch::Application(0)),
            8 => self.deliver_odd(input.u8()),
            9 => {
                if operation & 16 != 0 {
                    self.acknowledge(if operation & 32 == 0 { SERVER } else { CLIENT });
                }
                self.turn();
            }
            10 => {
                self.loses = operation & 16 != 0;
                self.turn();
                self.loses = false;
            }
            11 => {
                let ms = u64::from(input.u8()) * u64::from(operation >> 4);
                self.elapsed += Duration::from_millis(ms);
                self.hostile |= self.elapsed >= Duration::from_nanos(STALL_NS / 2);
            }
            12 => self.forge(packets, input),
            13 => {
                self.hostile = true;
                let port = if operation & 16 == 0 { Port::Left } else { Port::Right };
                self.network
                    .set_link(port, if operation & 32 == 0 { Link::Down } else { Link::Up });
            }
            14 => {
                self.hostile = true;
                let direction = if operation & 16 == 0 { CLIENT } else { SERVER };
                self.excuse(direction);
                let at = i64::from(input.u16()) - 64;
                let flags = [flag::RST, flag::FIN | flag::ACK, flag::ACK, flag::SYN | flag::ACK]
                    [usize::from(operation >> 6)];
                let acknowledged = u64::from(input.u16());
                let other = 1 - side(direction);
                let [arrived, other_arrived] =
                    self.receivers[other].each_ref().map(|it| it.handed_on);
                let sendable = self.session.streams[other].len() as u64 + 1;
                self.acknowledged_too_much[other] |= flags & flag::ACK != 0
                    && acknowledged > arrived.min(other_arrived) as u64
                    && acknowledged <= sendable;
                let payload = input.take(usize::from(operation & 32));
                let packet = self.session.packet(direction, at, acknowledged, flags, payload);
                self.send(&packet);
            }
            _ => self.deliver(KeyEpoch::Handshake),
        }
    }

    /// A direction's receiver says how far it is: as far as both of them are.
    fn acknowledge(&mut self, direction: Direction) {
        let len = |receiver: &Receiver| receiver.handed_on;
        let [of, other] = [side(direction), 1 - side(direction)];
        let arrived = self.receivers[of].iter().map(len).min().unwrap_or(0) as u64;
        let sent = self.receivers[other].iter().map(len).max().unwrap_or(0) as i64;
        let reverse = if direction == CLIENT { SERVER } else { CLIENT };
        self.acknowledged[other] = self.acknowledged[other].max(arrived);
        let packet = self.session.packet(reverse, sent, arrived, flag::ACK, &[]);
        self.send(&packet);
    }

    /// A packet with other bytes, before or after the right one.
    fn forge(&mut self, packets: &[Packet], input: &mut Input<'_>) {
        self.hostile = true;
        let Some(packet) = packets.get(usize::from(input.u8()) % packets.len().max(1)) else {
            return;
        };
        let Some(segment) = Segment::of(&packet.frame) else {
            return;
        };
        let direction = if packet.port == Port::Left { CLIENT } else { SERVER };
        self.excuse(direction);
        let offset = offset_of(&segment, direction);
        let mut payload = segment.payload.to_vec();
        let from = usize::from(input.u8()) % payload.len().max(1);
        let change = input.u8();
        if let Some(byte) = payload.get_mut(from) {
            *byte ^= change;
        }
        let cut = usize::from(input.u8());
        payload.drain(..cut.min(payload.len()));
        let at = offset + cut as i64;
        let acknowledged = self.session.handshake_len[1 - side(direction)] as u64;
        let forged = self.session.packet(direction, at, acknowledged, flag::ACK, &payload);
        self.send(&forged);
    }

    /// A packet as its sender repeats it: with its latest acknowledgment.
    fn repeated(&self, packet: &Packet) -> Packet {
        let direction = if packet.port == Port::Left { CLIENT } else { SERVER };
        let Some(segment) = Segment::of(&packet.frame).filter(|it| !it.payload.is_empty()) else {
            return packet.clone();
        };
        let (at, offset) = (side(direction), offset_of(&segment, direction));
        let latest = self.acknowledged[at].max(self.session.handshake_len[1 - at] as u64);
        self.session.packet(direction, offset, latest, segment.flags, segment.payload)
    }

    /// Everything is sent again until it is there; honest networks come to that.
    fn settle(&mut self, packets: &[Packet]) {
        let whole = |stage: &Self| {
            (0..2).all(|at| stage.receivers[at][0].stream() == stage.session.streams[at])
        };
        for _ in 0..PATIENCE {
            if whole(self) {
                return;
            }
            for packet in packets {
                self.send(&self.repeated(packet));
                self.turn();
            }
            self.deliver(KeyEpoch::Application(0));
            self.turn();
            self.turn();
            // Fragments that wait for their others go first.
            self.elapsed += Duration::from_millis(1);
        }
        assert!(whole(self), "an honest session has not come through");
    }
}

/// The target.
pub fn worker(data: &[u8]) {
    let mut input = Input::new(data);
    let (session, lens) = &sessions()[usize::from(input.u8()) % sessions().len()];
    let how = input.u8();
    let mut stage = Stage::new(session, how & 4 != 0, &mut input);
    let answers = input.take(usize::from(how >> 3)).to_vec();
    let resets = answers.contains(&1) || answers.contains(&2) || answers.contains(&3);
    stage.bench.with(|judge| (judge.answers, judge.lens) = (answers, lens));
    // The handshake in order, with or without its keys.
    if how & 1 == 0 {
        stage.deliver(KeyEpoch::Handshake);
        stage.handshake_keys = true;
    }
    for packet in &session.handshake {
        stage.send(packet);
        stage.turn();
        if how & 2 != 0 {
            stage.send(packet);
        }
    }
    stage.turn();
    let packets: Vec<Packet> = session.records.concat();
    let mut next = 0;
    for _ in 0..MAX_OPERATIONS {
        if input.is_empty() {
            break;
        }
        stage.operate(&packets, &mut next, &mut input);
    }
    stage.turn();
    stage.turn();
    let all = [&session.handshake[..], &packets].concat();
    // A cap that is met ends sessions: everything sent so far may be held, and so may what is sent again.
    stage.hostile |= stage.sent + all.len() > stage.max_held_frames;
    if !stage.hostile && !resets {
        stage.settle(&all);
    }
    stage.worker.finish();
    stage.look();
    assert_eq!(stage.worker.status().held_frames, 0, "held for ever");
    let reset = stage.bench.with(|judge| judge.reset);
    if reset && !stage.hostile {
        assert_eq!(stage.resets, [true; 2], "a reset that one end was not told");
    }
}
