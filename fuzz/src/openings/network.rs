//! The engine with its two sides, what is on its way, and the claims about what passes.
//!
//! Refuses to deliver what the engine has not let through.

use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

use mmtls_engine::tls::{Direction, KeyEpoch};
use mmtls_engine::{
    Config, Engine, Exit, FrameInput, HoldId, Link, Output, Policy, PortId, SharedKeys, Verdict,
};

use super::app::{self, App, PATTERN};
use super::packet::{ACK, Packet, SYN};
use super::pieces::{self, Piece, Pieces};
use super::proof::Proofs;
use super::tcp::Tcp;
use crate::material::{Witness, keys};
use crate::recorder::Recorder;

/// Frames that one operation may set in motion.
pub(super) const MANY: usize = 48;
/// Frames on their way; the oldest one gives way.
const MAX_QUEUE: usize = 96;

const MAX_FLOWS: usize = 8;
const MAX_BUFFERED: usize = 1 << 16;
/// Where ends say [`app::CLEAR_LEN`] bytes in one go: an eighth of what is left takes those of one.
const MAX_BUFFERED_IN_THE_CLEAR: usize = 1 << 19;
const MAX_HELD: usize = 64;

/// Small limits, that two ends with a short session stay below.
pub(super) fn limit(config: &mut Config, clear: bool) {
    config.limits.max_flows = MAX_FLOWS;
    config.limits.max_reassembly_bytes = if clear { 1 << 16 } else { 1 << 14 };
    config.limits.max_buffered_bytes = if clear { MAX_BUFFERED_IN_THE_CLEAR } else { MAX_BUFFERED };
    config.limits.max_held_frames = MAX_HELD;
    config.limits.max_handshake_bytes = 4096;
    config.limits.max_search_bytes = 4096;
    config.limits.stall_max_packets = 32;
    config.limits.stall_max_bytes = 1 << 14;
    config.limits.max_pending_keys = 64;
}

/// Which records must not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guard {
    Nothing,
    /// Those with the pattern.
    Pattern,
    /// All in the application epoch.
    Everything,
}

/// An honest end.
pub(super) struct End {
    pub(super) tcp: Tcp,
    pub(super) app: App,
    is_client: bool,
    pattern: bool,
    /// Its first connection begins with another protocol.
    clear: bool,
    connection: u32,
    /// The connection whose keys were shared.
    shared: u32,
    /// Bytes of its stream may have passed before there were keys, application data among them.
    early: bool,
}

impl End {
    pub(super) fn new(tcp: Tcp, is_client: bool, pattern: bool, clear: bool) -> Self {
        let app = App::new(is_client, pattern, clear);
        Self { tcp, app, is_client, pattern, clear, connection: 0, shared: 0, early: false }
    }

    /// Lets the program see what has come.
    fn run(&mut self) {
        if self.connection != self.tcp.connection {
            self.connection = self.tcp.connection;
            let clear = self.clear && self.connection == 1;
            self.app = App::new(self.is_client, self.pattern, clear);
        }
        if self.tcp.is_open() {
            // A program that has shut its side down may read on, but has nothing left to write.
            if !self.tcp.is_closing() || self.app.has_written() {
                self.app.run(&self.tcp.input.bytes, &mut self.tcp.output);
            }
            if self.tcp.peer_has_finished() {
                self.tcp.close();
            }
            self.tcp.transmit();
        }
    }
}

/// A frame on its way to the engine.
#[derive(Clone, Debug)]
pub(super) struct Flying {
    pub(super) packet: Packet,
    /// The side that it comes from.
    pub(super) port: usize,
    /// It is lost behind the engine.
    pub(super) dies: bool,
    /// The part of the packet that it carries, if not all.
    pub(super) piece: Option<Piece>,
}

/// What was forwarded of one connection of an honest end.
struct Passed {
    side: usize,
    connection: u32,
    /// By place in its stream.
    bytes: Vec<bool>,
    /// Where its first flight ends, without which no peer can make its own.
    first: Option<usize>,
    /// Where an application record ends that must not be forwarded. Bytes behind a hole may pass: no
    /// receiver that keeps to TCP can read them.
    record: Option<usize>,
}

impl Passed {
    fn is_whole(&self, end: Option<usize>) -> bool {
        let known = end.and_then(|end| self.bytes.get(..end));
        known.is_some_and(|bytes| !bytes.contains(&false))
    }
}

/// One line of the script that is printed when a claim fails.
enum Line {
    Operation(u8),
    Wait(u64),
    Frame(Flying, Verdict),
    Released(HoldId),
    Injected(usize, Packet),
    Keys(bool),
}

/// What a hostile end has seen of the honest one.
#[derive(Default)]
pub(super) struct Seen {
    /// Its first numbers behind SYN or SYN-ACK, in the order in which they came.
    pub(super) initials: Vec<u32>,
    /// What it acknowledged last, and in a SYN-ACK.
    pub(super) expected: u32,
    pub(super) answered: Option<(u32, u32)>,
    /// Behind what it sent last.
    pub(super) end: u32,
}

/// The engine, its sides, and what is on its way.
pub(super) struct Net {
    engine: Engine<Recorder>,
    pub(super) ends: [Option<End>; 2],
    pub(super) queue: VecDeque<Flying>,
    pub(super) seen: Seen,
    held: HashMap<HoldId, Flying>,
    pub(super) now_ns: u64,
    pub(super) guard: Guard,
    shares_keys: bool,
    passed: Vec<Passed>,
    released: u64,
    discarded: u64,
    longest: usize,
    max_buffered: usize,
    proofs: Proofs,
    pieces: Pieces,
    /// Calls of the engine.
    calls: u64,
    /// Policy lets nothing pass unseen; nor anything that is not TLS.
    is_strict: bool,
    is_followed: bool,
    lines: Vec<Line>,
}

/// Addresses of the two sides.
const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2)), 40000),
    SocketAddr::new(core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 3)), 443),
];

impl Net {
    pub(super) fn new(
        config: Config,
        guard: Guard,
        shares_keys: bool,
        ends: [Option<End>; 2],
    ) -> Self {
        let max_buffered = config.limits.max_buffered_bytes;
        let is_strict = matches!(config.policies.mid_stream, Policy::Reset | Policy::Drop);
        let is_followed = is_strict && !config.tls_ports.is_empty();
        let forbidden = (guard == Guard::Pattern).then_some(PATTERN);
        let mut recorder = Recorder::new(&[]);
        recorder.forbidden = forbidden;
        Self {
            engine: Engine::new(config, recorder),
            ends,
            queue: VecDeque::new(),
            seen: Seen::default(),
            held: HashMap::new(),
            now_ns: 1,
            guard,
            shares_keys,
            passed: Vec::new(),
            released: 0,
            discarded: 0,
            longest: 0,
            max_buffered,
            proofs: Proofs::default(),
            pieces: Pieces::default(),
            calls: 0,
            is_strict,
            is_followed,
            lines: Vec::new(),
        }
    }

    pub(super) fn begin_step(&mut self, operation: u8) {
        self.lines.push(Line::Operation(operation));
        self.ends.iter_mut().flatten().for_each(|end| end.tcp.step());
    }

    /// Puts a frame on its way.
    pub(super) fn send(&mut self, packet: Packet, port: usize, dies: bool) {
        self.send_flying(Flying { packet, port, dies, piece: None });
    }

    fn send_flying(&mut self, flying: Flying) {
        if self.queue.len() >= MAX_QUEUE {
            self.queue.pop_front();
        }
        self.queue.push_back(flying);
    }

    /// Puts a packet on its way in fragments of this size; `how`: which identification, in which order,
    /// and which of them is not sent, or alone is; `dying`: which of them die.
    pub(super) fn send_pieces(&mut self, packet: &Packet, size: usize, how: u8, dying: u8) {
        let len = pieces::len(&packet.frame(ADDRESSES));
        let parts = pieces::cut(len, size, u16::from(how & 3));
        let dies = |n: usize| dying >> n & 1 != 0;
        let mut parts: Vec<_> = parts.into_iter().enumerate().collect();
        if how & 4 != 0 {
            parts.reverse();
        }
        for (n, piece) in parts {
            let chosen = usize::from(how >> 3 & 0x0f) == n + 1;
            if chosen == (how & 0x80 != 0) {
                let (packet, port) = (packet.clone(), packet.from);
                self.send_flying(Flying {
                    packet,
                    port,
                    dies: dies(n),
                    piece: Some(piece).filter(Piece::is_part),
                });
            }
        }
    }

    /// Puts what the honest ends have to say on its way.
    pub(super) fn collect(&mut self) {
        for side in [0, 1] {
            let Some(end) = &mut self.ends[side] else {
                continue;
            };
            end.run();
            if end.connection != end.shared
                && let Some(session) = end.app.session
            {
                end.shared = end.connection;
                end.early = !end.app.got.is_empty() || end.tcp.input.has_ahead();
                self.share(session);
            }
            self.mark(side);
            let Some(end) = &mut self.ends[side] else {
                continue;
            };
            for packet in core::mem::take(&mut end.tcp.outbox) {
                self.send(packet, side, false);
            }
        }
    }

    /// Notes the first flight and the application record that the program has written.
    fn mark(&mut self, side: usize) {
        let Some(end) = &self.ends[side] else {
            return;
        };
        let concerned = match self.guard {
            Guard::Nothing => false,
            Guard::Pattern => end.pattern,
            Guard::Everything => true,
        };
        let first = end.app.first.as_ref().map(|it| it.end);
        let record = end.app.marked.as_ref().filter(|_| concerned).map(|it| it.end);
        let connection = end.connection;
        if first.is_some() {
            let passed = self.passed(side, connection);
            (passed.first, passed.record) = (first, record);
        }
    }

    fn passed(&mut self, side: usize, connection: u32) -> &mut Passed {
        let known = |it: &Passed| (it.side, it.connection) == (side, connection);
        let at = self.passed.iter().rposition(known).unwrap_or_else(|| {
            let (bytes, first, record) = (Vec::new(), None, None);
            self.passed.push(Passed { side, connection, bytes, first, record });
            self.passed.len() - 1
        });
        &mut self.passed[at]
    }

    /// Whether the first flight of an honest end has come through, so that its peer can answer.
    pub(super) fn is_heard(&self, side: usize) -> bool {
        let connection = self.ends[side].as_ref().map(|end| end.connection);
        let own = |it: &&Passed| it.side == side && Some(it.connection) == connection;
        self.passed.iter().find(own).is_some_and(|it| it.is_whole(it.first))
    }

    fn share(&mut self, (client_random, server_random): ([u8; 32], [u8; 32])) {
        if !self.shares_keys {
            return;
        }
        let epoch = KeyEpoch::Application(0);
        let key = |direction| -> (Direction, KeyEpoch, Box<dyn mmtls_engine::tls::OpenRecord>) {
            (direction, epoch, Box::new(Witness(Box::new(keys(direction, epoch)))))
        };
        let shared = SharedKeys {
            sender: None,
            source: 0,
            client_random,
            server_random: Some(server_random),
            cipher_suite: app::CHOSEN,
            keys: Direction::BOTH.map(key).into(),
        };
        self.calls += 1;
        let taken = self.engine.handle_keys(self.now_ns, shared).is_ok();
        self.lines.push(Line::Keys(taken));
        self.drain();
    }

    /// Lets frames through the engine, at most so many.
    pub(super) fn settle(&mut self, most: usize) {
        self.collect();
        for _ in 0..most {
            let Some(flying) = self.queue.pop_front() else {
                break;
            };
            self.pass(flying);
            self.collect();
        }
    }

    fn pass(&mut self, flying: Flying) {
        self.now_ns += 1000;
        let mut bytes = flying.packet.frame(ADDRESSES);
        if let Some(piece) = &flying.piece {
            bytes = piece.frame(&pieces::whole(&flying.packet, ADDRESSES));
        }
        let opens = self.proofs.see(&flying.packet, flying.port) && flying.piece.is_none();
        self.calls += 1;
        self.longest = self.longest.max(bytes.len());
        // One or the other.
        let port = PortId(flying.port as u8);
        let frame = FrameInput {
            port,
            link: Link::Ethernet,
            bytes: &bytes,
            memory: None,
            checksum_trusted: true,
        };
        let verdict = self.engine.handle_frame(self.now_ns, &frame);
        self.lines.push(Line::Frame(flying.clone(), verdict));
        let fine = !opens || verdict == Verdict::Forward;
        self.claim(fine, "the exact acknowledgment of an answer has not passed");
        match verdict {
            Verdict::Forward => self.forward(flying),
            Verdict::Drop => {}
            Verdict::Again => self.claim(false, "nothing was left to anybody"),
            Verdict::Hold(id) => {
                let known = self.held.insert(id, flying);
                self.claim(known.is_none(), "hold numbers are new");
            }
        }
        self.drain();
    }

    /// A frame leaves the engine, away from where it came from.
    fn forward(&mut self, flying: Flying) {
        let Flying { packet, port, dies, piece } = flying;
        if let Some(piece) = piece {
            return self.forward_piece(&packet, piece, dies);
        }
        self.claim_proven(&packet);
        if packet.from != port {
            return;
        }
        self.proofs.pass(&packet);
        if let Some((connection, at)) = packet.place {
            self.note_passed(packet.from, connection, at, packet.data.len());
        }
        if !dies {
            self.deliver(1 - port, &packet);
        }
    }

    fn claim_proven(&self, packet: &Packet) {
        let allowed = !self.is_strict || self.proofs.allows(packet, self.is_followed);
        self.claim(allowed, "data have passed where no numbers were proven");
    }

    /// A fragment leaves the engine, and may be what its receiver has waited for.
    fn forward_piece(&mut self, packet: &Packet, piece: Piece, dies: bool) {
        let (from, when) = (packet.from, (self.now_ns, self.calls));
        let fits = self.pieces.leave(from, piece, &pieces::whole(packet, ADDRESSES), when, dies);
        let fine = fits || !self.is_strict;
        self.claim(fine, "receivers can put fragments together that were not judged together");
        if let Some(packet) = self.pieces.take(from, piece.identification) {
            self.claim_proven(&packet);
            self.deliver(1 - from, &packet);
        }
    }

    fn note_passed(&mut self, side: usize, connection: u32, at: usize, len: usize) {
        let end = at + len;
        let passed = self.passed(side, connection);
        let len = passed.bytes.len().max(end);
        passed.bytes.resize(len, false);
        passed.bytes[at..end].fill(true);
        let whole = passed.is_whole(passed.record);
        self.claim(!whole, "an application record of an honest end was forwarded");
    }

    fn deliver(&mut self, side: usize, packet: &Packet) {
        let now_ns = self.now_ns;
        let Some(end) = &mut self.ends[side] else {
            return self.learn(packet);
        };
        end.tcp.handle(packet, now_ns);
        end.run();
        let early = end.tcp.reads_syn_data();
        let got = &end.app.got;
        let read = match self.guard {
            Guard::Nothing => false,
            // A server's first flight passes before there can be keys, and what it sends in it.
            Guard::Pattern if end.is_client && (end.early || end.shared != end.connection) => false,
            Guard::Pattern => got.windows(PATTERN.len()).any(|it| it == PATTERN),
            Guard::Everything => !end.is_client && !got.is_empty(),
        };
        self.claim(!read, "an honest end has read an application record");
        self.claim(!early, "an honest program can read what came on a SYN");
    }

    /// A hostile end sees what comes to it.
    fn learn(&mut self, packet: &Packet) {
        let seen = &mut self.seen;
        seen.end = packet.end();
        if packet.has(SYN) {
            seen.initials.push(packet.end());
        }
        if packet.has(ACK) {
            seen.expected = packet.acknowledgment;
            if packet.has(SYN) {
                seen.answered = Some((packet.acknowledgment, packet.end()));
            }
        }
    }

    /// Time passes; the engine is called whenever it asked for that.
    pub(super) fn wait(&mut self, ns: u64) {
        self.lines.push(Line::Wait(ns));
        self.proofs.disturb();
        let until_ns = self.now_ns + ns;
        while let Some(due_ns) = self.engine.next_timeout().filter(|due_ns| *due_ns < until_ns) {
            self.now_ns = self.now_ns.max(due_ns);
            self.calls += 1;
            self.engine.handle_timeout(self.now_ns);
            self.drain();
        }
        self.now_ns = until_ns;
        self.calls += 1;
        self.engine.handle_timeout(until_ns);
        self.drain();
        let later = self.engine.next_timeout().is_none_or(|due_ns| due_ns > until_ns);
        self.claim(later, "due at once again");
    }

    /// The honest ends' retransmission timers.
    pub(super) fn time_out(&mut self) {
        self.ends.iter_mut().flatten().for_each(|end| end.tcp.time_out());
        self.collect();
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Release(id) => {
                    self.released += 1;
                    self.lines.push(Line::Released(id));
                    match self.held.remove(&id) {
                        Some(flying) => self.forward(flying),
                        None => self.claim(false, "released without being held"),
                    }
                }
                Output::Discard(id) => {
                    self.discarded += 1;
                    let known = self.held.remove(&id);
                    self.claim(known.is_some(), "discarded without being held");
                }
                Output::Inject { exit, frame } => {
                    let packet = Packet::parse(&frame, ADDRESSES);
                    let side = match exit {
                        Exit::AwayFrom(port) => 1 - usize::from(port.0),
                        Exit::Through(port) => usize::from(port.0),
                    };
                    self.lines.push(Line::Injected(side, packet.clone()));
                    if side != packet.from {
                        self.deliver(side, &packet);
                    }
                }
                Output::KeysNeeded(_) | Output::KeysOpenNothing(_) | Output::LiveKeysNeeded(_) => {}
                Output::Offload(_) | Output::TakeBack(_) => {
                    self.claim(false, "nothing can be left to anybody");
                }
            }
        }
        self.engine.handler_mut().ended.clear();
    }

    /// What packet_path claims, too.
    pub(super) fn check(&self) {
        let buffered = self.engine.buffered_bytes();
        self.claim(buffered <= self.max_buffered + self.longest, "too many bytes are buffered");
        // Fragments wait beside them, as many as an input can send.
        let whole = self.held.values().filter(|it| it.piece.is_none()).count();
        self.claim(whole <= MAX_HELD + 1, "too many frames are held");
        self.claim(self.engine.flow_count() <= MAX_FLOWS, "too many flows");
        let it = self.engine.counters();
        self.claim(it.records_opened <= it.records_seen, "records add up");
        let held = self.held.len() as u64;
        self.claim(it.held == it.released + self.discarded + held, "held frames add up");
        self.claim(it.released == self.released, "released frames add up");
        let judged = it.forwarded + it.held + it.dropped - self.discarded;
        self.claim(it.frames == judged, "frames add up");
    }

    pub(super) fn finish(mut self) {
        // What is let go in the end is not on its way any more.
        self.ends = [None, None];
        self.passed.clear();
        self.calls += 1;
        self.engine.finish();
        self.drain();
        self.check();
        self.claim(self.held.is_empty(), "what is held is released or discarded");
        self.claim(self.engine.buffered_bytes() == 0, "nothing stays buffered");
        self.claim(self.engine.flow_count() == 0, "no flow stays");
        self.claim(self.engine.handler().open_sessions() == 0, "every session ends");
    }

    /// Panics with the script where a claim does not hold.
    pub(super) fn claim(&self, holds: bool, what: &str) {
        assert!(holds, "{what}\n{}", self.script());
    }

    pub(super) fn script(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let _ = match line {
                Line::Operation(it) => writeln!(text, "operation {it:#04x}"),
                Line::Wait(ns) => writeln!(text, "    wait {} ms", ns / 1_000_000),
                Line::Frame(it, verdict) => {
                    let dies = if it.dies { ", dies behind it" } else { "" };
                    let piece = it.piece.map(|it| format!(" {it:?}")).unwrap_or_default();
                    let (port, packet) = (it.port, told(&it.packet));
                    writeln!(text, "    port {port} {packet}{piece}: {verdict:?}{dies}")
                }
                Line::Released(id) => writeln!(text, "    released {id:?}"),
                Line::Injected(side, packet) => {
                    writeln!(text, "    injected to side {side} {}", told(packet))
                }
                Line::Keys(taken) => writeln!(text, "    keys, taken: {taken}"),
            };
        }
        for end in self.ends.iter().flatten() {
            let _ = writeln!(text, "{:?} {:?}", end.tcp, end.app);
        }
        let _ = writeln!(text, "{:?}", self.engine.handler().events);
        text
    }
}

/// A segment in a few words.
fn told(it: &Packet) -> String {
    let flags: String =
        [(SYN, 'S'), (super::packet::FIN, 'F'), (super::packet::RST, 'R'), (ACK, 'A')]
            .iter()
            .filter_map(|(flag, name)| it.has(*flag).then_some(*name))
            .collect();
    let data = it.data.get(..it.data.len().min(12)).unwrap_or(&[]);
    format!(
        "from {} {flags} seq {:#x} ack {:#x} window {} len {} {data:02x?} {:?}",
        it.from,
        it.sequence,
        it.acknowledgment,
        it.window,
        it.data.len(),
        it.place,
    )
}
