//! The whole packet path under hostile frames, hostile keys and time, with small limits.
//!
//! The input is a sequence of operations on a few connections, some of which share a client random
//! or an address. Claims, after each operation:
//! * every held frame is released or discarded once, and hold numbers are new;
//! * what is buffered, and how many flows there are, stays below the caps;
//! * no bytes of a connection that was reset are forwarded;
//! * nobody but a session's client can give it keys;
//! * no stall outlives its limit;
//! * the counters add up;
//! * in the end nothing is left.

use core::net::{IpAddr, SocketAddr};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mmtls_engine::session::EndReason;
use mmtls_engine::tls::{CipherSuite, ContentType, Direction, KeyEpoch};
use mmtls_engine::{
    Awaited, Cleartext, Config, Engine, FrameInput, HoldId, KeySenders, Link, Output, Policy,
    PortId, SharedKeys, Verdict,
};
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::{NullKeys, side};

use crate::input::Input;
use crate::material::{SCRIPTS, SERVER_RANDOM, SUITE, Witness, delivery, epoch, random, seal};
use crate::recorder::Recorder;

/// So that every run is short.
const MAX_STEPS: usize = 300;
const MAX_FLOWS: usize = 4;
const MAX_REASSEMBLY: usize = 4096;
const MAX_SEARCH: usize = 4096;
const STALL_MAX_BYTES: usize = 4096;
const STALL_TIMEOUT_NS: u64 = 500_000_000;
const UNSHARED_TIMEOUT_NS: u64 = 50_000_000;
const REST_NS: u64 = 20_000_000;
const TOMBSTONE_TIMEOUT_NS: u64 = 180_000_000_000;
const MAX_BUFFERED: usize = 4 * MAX_REASSEMBLY;
const MAX_HELD: usize = 12;
const CONNECTIONS: usize = 6;

const POLICIES: [Policy; 4] = [Policy::Reset, Policy::Bypass, Policy::Forward, Policy::Drop];

/// Input: policies, settings, perhaps more of both, VLANs, eight actions of the handler, then
/// operations.
pub fn packet_path(data: &[u8]) {
    let _ = drive(data);
}

/// Runs an input; how many records were opened.
fn drive(data: &[u8]) -> u64 {
    let mut input = Input::new(data);
    let mut path = Path::new(&mut input);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        path.step(&mut input);
        path.check();
    }
    path.finish()
}

fn config(input: &mut Input<'_>) -> Config {
    let mut config = Config::new(Policy::Reset);
    let [first, second, settings] = [input.u8(), input.u8(), input.u8()];
    let policy = |of: u8, shift: u8| POLICIES[usize::from(of >> shift & 3)];
    config.policies.missing_keys = policy(first, 0);
    config.policies.null_keys = policy(first, 2);
    config.policies.unsupported = policy(first, 4);
    config.policies.integrity_failure = policy(first, 6);
    config.policies.lost_synchronisation = policy(second, 0);
    config.policies.mid_stream = policy(second, 2);
    config.policies.table_full = policy(second, 4);
    config.policies.fragments = policy(second, 6);
    config.inline = settings & 1 == 0;
    config.verify_checksums = settings & 2 == 0;
    config.mid_stream_grace_ns = if settings & 8 == 0 { 0 } else { 60_000_000_000 };
    config.policies.memory_cap = policy(settings, 6);
    if settings & 4 != 0 {
        config.key_senders = KeySenders::ANY;
    }
    if settings & 0x10 == 0 {
        config.supports = |_, _| true;
    }
    if settings & 0x20 != 0 {
        let more = input.u8();
        config.policies.require_private_tag = policy(more, 0);
        config.policies.multipath = policy(more, 2);
        config.policies.udp_tls = policy(more, 4);
        config.policies.encapsulated = policy(more, 4);
        config.awaited = (more & 0x40 != 0).then(|| Awaited(Arc::new(is_awaited)));
        if more & 0x80 != 0 {
            let ports = input.u8();
            config.policies.not_tls = policy(ports, 0);
            // All those of the defaults, or none, or one that is never the server's.
            config.cleartext = [Cleartext::Ignored, Cleartext::FromBeginning, Cleartext::Anywhere]
                [usize::from(ports >> 4 & 3) % 3];
            match ports >> 2 & 3 {
                0 | 1 => {}
                2 => config.tls_ports.clear(),
                _ => config.tls_ports = vec![40000],
            }
        }
    }
    config.tell_hellos = true;
    config.limits.max_flows = MAX_FLOWS;
    config.limits.max_reassembly_bytes = MAX_REASSEMBLY;
    config.limits.max_buffered_bytes = MAX_BUFFERED;
    config.limits.max_held_frames = MAX_HELD;
    config.limits.max_handshake_bytes = 2048;
    config.limits.max_search_bytes = MAX_SEARCH;
    config.limits.stall_max_packets = 6;
    config.limits.stall_max_bytes = STALL_MAX_BYTES;
    config.limits.stall_timeout_ns = STALL_TIMEOUT_NS;
    config.limits.unshared_stall_timeout_ns = UNSHARED_TIMEOUT_NS;
    config.limits.max_pending_keys = 40;
    config.limits.rest_after_ns = REST_NS;
    config.limits.tombstone_timeout_ns = TOMBSTONE_TIMEOUT_NS;
    config
}

/// Where some clients have nobody to share their keys.
fn is_awaited(client: IpAddr, _server: IpAddr) -> bool {
    client.is_ipv6()
}

/// Connection `at`, and the number of the script whose bytes it carries.
fn connection(at: usize) -> (Endpoints, usize) {
    let v4 = |last: u8, port: u16| SocketAddr::from(([10, 0, 0, last], port));
    let v6 = |last: u16, port: u16| SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, last], port));
    let (client, server, script) = match at {
        0 => (v4(2, 40000), v4(3, 443), 0),
        1 => (v6(2, 40000), v6(3, 443), 1),
        // The same random again: from the same client, then from another.
        2 => (v4(2, 40001), v4(3, 443), 0),
        3 => (v4(9, 40000), v4(3, 443), 0),
        // From an endpoint to itself.
        4 => (v4(2, 443), v4(2, 443), 8),
        // The server's port is the higher one.
        _ => (v4(2, 80), v4(3, 8443), 9),
    };
    // Close to the wrap.
    let initial = [0u32.wrapping_sub(500), 0u32.wrapping_sub(1000)];
    (Endpoints { client, server, initial }, script)
}

/// Both ends, in one order.
fn pair(a: SocketAddr, b: SocketAddr) -> (SocketAddr, SocketAddr) {
    if a <= b { (a, b) } else { (b, a) }
}

/// One TCP segment to be built.
struct Segment {
    at: usize,
    direction: Direction,
    offset: i64,
    acknowledged: u64,
    flags: u8,
    payload: Vec<u8>,
    /// Without a link header, where there is no VLAN.
    bare: bool,
}

struct Path {
    engine: Engine<Recorder>,
    inline: bool,
    any_sender: bool,
    /// Clients without an agent wait less.
    knows_agents: bool,
    /// Two bits for each connection, going round: its VLAN, which does not change.
    vlans: u8,
    /// A raw frame has begun a flow: what ends is perhaps not one of ours.
    foreign: bool,
    /// Bytes of the longest frame so far.
    longest: usize,
    now_ns: u64,
    held: HashSet<HoldId>,
    /// Connections of which somebody has sent a RST.
    reset: HashSet<usize>,
    released: u64,
    discarded: u64,
    /// Connections that the engine reset.
    dead: HashSet<(SocketAddr, SocketAddr)>,
    /// When the last packet of a connection came: the silence of a tombstone counts from there.
    last_ns: HashMap<(SocketAddr, SocketAddr), u64>,
    /// Where each sender stands: connection, side.
    sent: [[usize; 2]; CONNECTIONS],
    /// Sequence number and epoch of the next made-up record: connection, side.
    sealed: [[(u64, u32); 2]; CONNECTIONS],
}

impl Path {
    fn new(input: &mut Input<'_>) -> Self {
        let config = config(input);
        let (inline, any_sender) = (config.inline, config.key_senders.any);
        let knows_agents = config.awaited.is_some();
        let vlans = input.u8();
        let actions = input.take(8);
        Self {
            vlans,
            foreign: false,
            longest: 0,
            engine: Engine::new(config, Recorder::new(actions)),
            inline,
            any_sender,
            knows_agents,
            now_ns: 1,
            held: HashSet::new(),
            reset: HashSet::new(),
            released: 0,
            discarded: 0,
            dead: HashSet::new(),
            last_ns: HashMap::new(),
            sent: [[0; 2]; CONNECTIONS],
            sealed: [[(0, 0); 2]; CONNECTIONS],
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        self.now_ns += 1000;
        let operation = input.u8();
        if operation & 0x0f == 0 {
            return self.raw(operation, input);
        }
        let who = input.u8();
        let at = usize::from(who & 0x0f) % CONNECTIONS;
        let direction = Direction::BOTH[usize::from(who >> 7)];
        let mut segment = Segment {
            at,
            direction,
            offset: self.sent[at][side(direction)] as i64,
            acknowledged: self.sent[at][1 - side(direction)] as u64,
            flags: flag::ACK,
            payload: Vec::new(),
            bare: who & 0x10 != 0,
        };
        match operation & 0x0f {
            1 => {
                segment.payload = self.next_bytes(&segment, usize::from(input.u8()) + 1);
                self.send(segment);
            }
            2 => {
                segment.payload = self.next_bytes(&segment, usize::from(input.u16()));
                self.send(segment);
            }
            // The other side's next stretch, and this one's: a round trip in one operation.
            3 => {
                for direction in [direction, direction.reverse()] {
                    let mut segment = Segment { direction, ..segment_of(&segment) };
                    segment.offset = self.sent[at][side(direction)] as i64;
                    segment.acknowledged = self.sent[at][1 - side(direction)] as u64;
                    segment.payload = self.next_bytes(&segment, usize::from(input.u16() % 3000));
                    self.send(segment);
                }
            }
            // Genuine bytes from some other place.
            4 => {
                let from = (segment.offset + i64::from(input.i16() >> 3)).max(0);
                let stream = stream(at, direction);
                let from_at = usize::try_from(from).unwrap_or(0).min(stream.len());
                let to = (from_at + usize::from(input.u8())).min(stream.len());
                segment.offset = from;
                segment.payload = stream[from_at..to].to_vec();
                self.send(segment);
            }
            // Anything at all.
            5 => {
                segment.offset += i64::from(input.i16() >> 3);
                segment.flags = input.u8();
                let len = usize::from(input.u8());
                segment.payload = input.take(len).to_vec();
                self.send(segment);
            }
            6 => self.open(at, segment.bare),
            7 => {
                segment.offset = -1 + i64::from(input.u8().cast_signed() >> 4);
                segment.flags = flag::SYN | if who & 0x40 == 0 { 0 } else { flag::ACK };
                segment.acknowledged = u64::from(input.u8() & 1);
                let len = usize::from(input.u8() & 0x1f);
                segment.payload = input.take(len).to_vec();
                self.send(segment);
            }
            8 => {
                segment.flags = input.u8();
                segment.offset += i64::from(input.u8().cast_signed());
                segment.acknowledged =
                    segment.acknowledged.wrapping_add_signed(i64::from(input.u8().cast_signed()));
                self.send(segment);
            }
            9 => {
                const MS: u64 = 1_000_000;
                let wait = [MS, 100 * MS, 499 * MS, 1000 * MS, 31_000 * MS, 61_000 * MS];
                let wait = wait.get(at).copied().unwrap_or(0);
                let long = [0, 0, 0, 200_000 * MS, 4_000_000 * MS][usize::from(who >> 4) % 5];
                self.wait(wait + long);
            }
            10 => {
                let sender = (operation & 0x10 != 0).then(|| connection(at).0.client.ip());
                self.deliver(at, sender, direction, epoch(who >> 4));
            }
            11 => self.strange_keys(at, direction, input),
            12 => {
                let (endpoints, script) = connection(at);
                let sender = (who & 0x10 != 0).then(|| endpoints.client.ip());
                let refused = (who & 0x20 != 0).then_some(direction);
                let random = random(script);
                let _ = self.engine.handle_null_keys(self.now_ns, sender, random, refused);
                // No event tells that a stall ended so.
                self.engine.handler_mut().stalls.clear();
                self.drain();
            }
            13 => {
                if let Some(due_ns) = self.engine.next_timeout() {
                    self.wait(due_ns.saturating_sub(self.now_ns));
                }
            }
            // A record of any content under the right keys.
            14 => {
                let (sequence, epoch) = self.sealed[at][side(direction)];
                let kind = ContentType(input.u8());
                let len = usize::from(input.u8());
                let padding = usize::from(input.u8() & 0x7f);
                let content = input.take(len);
                let script = connection(at).1;
                segment.payload = seal(script, direction, epoch, sequence, kind, content, padding);
                self.sealed[at][side(direction)] = match (kind, content) {
                    (ContentType::HANDSHAKE, [24, 0, 0, 1, _]) => (0, epoch + 1),
                    _ => (sequence + 1, epoch),
                };
                self.sent[at][side(direction)] += segment.payload.len();
                self.send(segment);
            }
            // All that the script has left in this direction, and its end.
            _ => {
                segment.payload = self.next_bytes(&segment, usize::MAX);
                segment.flags |= if who & 0x40 == 0 { flag::FIN } else { 0 };
                self.send(segment);
            }
        }
    }

    /// The next bytes of a connection's script; the sender moves on behind them.
    fn next_bytes(&mut self, segment: &Segment, len: usize) -> Vec<u8> {
        let sent = &mut self.sent[segment.at][side(segment.direction)];
        let stream = stream(segment.at, segment.direction);
        let from = (*sent).min(stream.len());
        let to = from.saturating_add(len).min(stream.len());
        *sent = to.max(*sent);
        stream[from..to].to_vec()
    }

    fn open(&mut self, at: usize, bare: bool) {
        self.reset.remove(&at);
        self.sent[at] = [0; 2];
        self.sealed[at] = [(0, 0); 2];
        for (direction, flags) in [
            (Direction::ClientToServer, flag::SYN),
            (Direction::ServerToClient, flag::SYN | flag::ACK),
        ] {
            let payload = Vec::new();
            self.send(Segment { at, direction, offset: -1, acknowledged: 0, flags, payload, bare });
        }
    }

    fn send(&mut self, segment: Segment) {
        let Segment { at, direction, offset, acknowledged, flags, payload, bare } = segment;
        let (endpoints, _) = connection(at);
        let mut bytes = endpoints.frame(direction, offset, acknowledged, flags, &payload);
        let mut link = Link::Ethernet;
        match self.vlans >> (at % 4 * 2) & 3 {
            1 => drop(bytes.splice(12..12, [0x81, 0, 0, 5])),
            2 => drop(bytes.splice(12..12, [0x88, 0xa8, 0, 7, 0x81, 0, 0, 5])),
            _ if bare => {
                bytes.drain(..14);
                link = Link::Ip;
            }
            _ => {}
        }
        let port = PortId(side(direction) as u8);
        let bytes: Arc<[u8]> = bytes.into();
        let memory = (bytes.len().is_multiple_of(2)).then_some(&bytes);
        let frame = FrameInput { port, link, bytes: &bytes, memory, checksum_trusted: true };
        self.longest = self.longest.max(bytes.len());
        let key = pair(endpoints.client, endpoints.server);
        let was_dead = self.dead.contains(&key) && !self.foreign;
        let refused = |engine: &Engine<Recorder>| {
            let it = engine.counters();
            (it.wrong_side, it.syn_data)
        };
        let refused_before = refused(&self.engine);
        let verdict = self.engine.handle_frame(self.now_ns, &frame);
        self.note_ends();
        let is_refused = refused(&self.engine) != refused_before;
        // One that nobody takes resets nothing.
        if flags & flag::RST != 0 && !is_refused && self.reset.insert(at) {
            self.wait_anew(endpoints.client.ip());
        }
        if !is_refused {
            // What comes from the wrong side, or with data on a SYN, is no packet of the connection.
            self.last_ns.insert(key, self.now_ns);
        }
        if self.dead.contains(&key) && !self.foreign {
            let answer = flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK;
            if was_dead && answer && verdict == Verdict::Forward {
                // A new connection has replaced the dead one.
                self.dead.remove(&key);
            } else if verdict == Verdict::Forward && self.inline {
                // Elsewhere nobody obeys: it has arrived already.
                assert!(payload.is_empty(), "bytes of a reset connection were forwarded");
            }
        }
        self.obey(verdict);
    }

    /// A session whose connection was reset waits for the keys of what has been delivered, from then on; of what was held, which is
    /// discarded, nobody is told.
    fn wait_anew(&mut self, client: IpAddr) {
        for (since_ns, of) in self.engine.handler_mut().stalls.values_mut() {
            if *of == client {
                *since_ns = self.now_ns;
            }
        }
    }

    /// A frame that says what it likes.
    fn raw(&mut self, operation: u8, input: &mut Input<'_>) {
        let link = if operation & 0x10 == 0 { Link::Ethernet } else { Link::Ip };
        let len = if operation & 0x20 == 0 { usize::from(input.u8()) } else { input.u16().into() };
        let bytes = input.take(len);
        let port = PortId(operation >> 7);
        let checksum_trusted = operation & 0x40 != 0;
        let flows = self.engine.counters().flows;
        self.longest = self.longest.max(bytes.len());
        let frame = FrameInput { port, link, bytes, memory: None, checksum_trusted };
        let verdict = self.engine.handle_frame(self.now_ns, &frame);
        self.note_ends();
        self.foreign |= self.engine.counters().flows != flows;
        self.obey(verdict);
    }

    fn strange_keys(&mut self, at: usize, direction: Direction, input: &mut Input<'_>) {
        let what = input.u8();
        let (endpoints, script) = connection(at);
        let stranger: IpAddr = [192, 0, 2, 1].into();
        let opener = NullKeys(u64::from(input.u8()));
        let number = input.u32();
        let epoch = match what >> 4 & 3 {
            0 => KeyEpoch::EarlyData,
            1 => KeyEpoch::Handshake,
            2 => KeyEpoch::Application(number),
            _ => KeyEpoch::Application(number & 3),
        };
        let sender = match what & 3 {
            0 => None,
            1 => Some(stranger),
            2 => Some(endpoints.server.ip()),
            _ => Some(endpoints.client.ip()),
        };
        let shared = SharedKeys {
            sender,
            source: 0,
            client_random: if what & 4 == 0 { random(script) } else { [input.u8(); 32] },
            server_random: match what >> 6 {
                0 => None,
                1 => Some(SERVER_RANDOM),
                _ => Some([input.u8(); 32]),
            },
            cipher_suite: if what & 8 == 0 { SUITE } else { CipherSuite(input.u16()) },
            keys: vec![
                (direction, epoch, Box::new(Witness(Box::new(opener)))),
                (direction.reverse(), epoch, Box::new(Witness(Box::new(opener)))),
            ],
        };
        let outcome = self.engine.handle_keys(self.now_ns, shared);
        assert!(
            outcome != Ok(true) || self.any_sender || sender != Some(stranger),
            "a stranger's keys were taken"
        );
        self.drain();
    }

    fn deliver(
        &mut self,
        at: usize,
        sender: Option<IpAddr>,
        direction: Direction,
        epoch: KeyEpoch,
    ) {
        let (client_random, number, opener) = delivery(connection(at).1, direction, epoch);
        let shared = SharedKeys {
            sender,
            source: 0,
            client_random,
            server_random: Some(SERVER_RANDOM),
            cipher_suite: SUITE,
            keys: vec![(direction, number, opener)],
        };
        let _ = self.engine.handle_keys(self.now_ns, shared);
        self.drain();
    }

    /// Lets time pass; the engine is called whenever it asked for that.
    fn wait(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while let Some(due_ns) = self.engine.next_timeout().filter(|due_ns| *due_ns < until_ns) {
            self.now_ns = self.now_ns.max(due_ns);
            self.timeout();
        }
        self.now_ns = until_ns;
        self.timeout();
    }

    fn timeout(&mut self) {
        let now_ns = self.now_ns;
        self.engine.handle_timeout(now_ns);
        self.drain();
        let last_ns = &self.last_ns;
        self.dead.retain(|key| {
            last_ns.get(key).is_some_and(|last_ns| last_ns + TOMBSTONE_TIMEOUT_NS > now_ns)
        });
        for (stall, (since_ns, client)) in &self.engine.handler().stalls {
            let awaited = !self.knows_agents || is_awaited(*client, *client);
            let limit_ns = if awaited { STALL_TIMEOUT_NS } else { UNSHARED_TIMEOUT_NS };
            assert!(since_ns + limit_ns > now_ns, "stall {stall:?} outlived its limit");
        }
        assert!(self.engine.next_timeout().is_none_or(|due| due > now_ns), "due at once again");
    }

    fn obey(&mut self, verdict: Verdict) {
        if let Verdict::Hold(id) = verdict {
            assert!(self.held.insert(id), "hold numbers are new");
        }
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Release(id) => {
                    assert!(self.held.remove(&id), "released without being held");
                    self.released += 1;
                }
                Output::Discard(id) => {
                    assert!(self.held.remove(&id), "discarded without being held");
                    self.discarded += 1;
                }
                Output::Inject { frame, .. } => {
                    // Link header, IP header, TCP header with RST and ACK, nothing else; or one with ACK and options.
                    let header = frame.len().checked_sub(20).expect("a TCP header");
                    let is_reset = frame.len() <= 22 + 60 && frame[header + 13] == 0x14;
                    let is_probe = frame.len() <= 22 + 40 + 60 && !is_reset;
                    assert!(is_reset || is_probe && self.inline);
                }
                Output::KeysOpenNothing(_) | Output::LiveKeysNeeded(_) => {}
                Output::Offload(_) | Output::TakeBack(_) => {
                    panic!("nothing can be left to anybody")
                }
                Output::KeysNeeded(wish) => {
                    let early = wish.epoch == KeyEpoch::EarlyData;
                    assert_eq!(wish.cipher_suite.is_none(), early);
                }
            }
        }
        self.note_ends();
    }

    fn note_ends(&mut self) {
        for (client, server, reason) in self.engine.handler_mut().ended.drain(..) {
            // From an endpoint to itself there are two, one on each side, and no end says which.
            if client != server
                && let EndReason::ResetByHandler | EndReason::ResetByPolicy(_) = reason
            {
                self.dead.insert(pair(client, server));
            }
        }
    }

    fn check(&self) {
        let buffered = self.engine.buffered_bytes();
        assert!(buffered <= MAX_BUFFERED + self.longest, "{buffered} bytes are buffered");
        assert!(self.held.len() <= MAX_HELD + 1, "{} frames are held", self.held.len());
        assert!(self.engine.flow_count() <= MAX_FLOWS);
        let it = self.engine.counters();
        assert_eq!(it.held, it.released + self.discarded + self.held.len() as u64);
        assert_eq!(it.released, self.released);
        assert_eq!(it.frames, it.forwarded + it.held + it.dropped - self.discarded);
        assert!(it.records_opened <= it.records_seen);
    }

    fn finish(mut self) -> u64 {
        self.engine.finish();
        self.drain();
        self.check();
        assert!(self.held.is_empty(), "what is held is released or discarded");
        assert_eq!(self.engine.buffered_bytes(), 0, "nothing stays buffered");
        assert_eq!(self.engine.flow_count(), 0);
        assert_eq!(self.engine.handler().open_sessions(), 0, "every session ends");
        self.engine.counters().records_opened
    }
}

/// The same place, flags and wrapping, without the bytes.
fn segment_of(it: &Segment) -> Segment {
    Segment { payload: Vec::new(), ..*it }
}

/// One direction's bytes of a connection's script.
fn stream(at: usize, direction: Direction) -> Vec<u8> {
    let turns = SCRIPTS[connection(at).1].turns.iter();
    turns.filter(|turn| turn.direction == direction).flat_map(|it| it.bytes.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_seeds_that_open_every_record() {
        let seeds = crate::seeds::all();
        for at in [0, 1, 3, 5] {
            let script = &SCRIPTS[connection(at).1];
            let name = format!("calm-{at}");
            let seed = seeds.iter().find(|it| it.target == "packet_path" && it.name == name);
            let all = script.records.iter().flatten().count() as u64;
            assert!(drive(&seed.unwrap().bytes) >= all, "{name}");
        }
    }
}
