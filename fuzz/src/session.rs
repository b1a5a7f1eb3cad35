//! Whole sessions under the null cipher, through a hostile network.
//!
//! A session's packets are cut, reordered, repeated, changed and lost as the input says; a model
//! of both receivers stands behind the engine. Claims:
//! * what is opened is what was sent, in its order; without losses before it when every policy
//!   is to reset;
//! * no receiver gets a whole record that no handler has judged (same condition);
//! * no receiver gets two versions of one byte to choose from;
//! * behind a reset nothing passes.

use std::collections::HashMap;
use std::sync::Arc;

use mmtls_engine::tls::{Direction, KeyEpoch};
use mmtls_engine::{
    Config, Engine, FrameInput, HoldId, Link, Output, Policy, PortId, SharedKeys, Verdict,
};
use mmtls_testkit::segments::{Endpoints, flag, is_reset};
use mmtls_testkit::synthesis::{NullKeys, Placed, Script, side};

use crate::input::Input;
use crate::material::{
    FIRST_EARLY, SCRIPT_COUNT, SCRIPTS, SERVER_RANDOM, SUITE, Witness, delivery, epoch, is_shown,
    random,
};
use crate::recorder::{Event, Recorder};

/// So that every run is short.
const MAX_STEPS: usize = 400;
/// The flow must not be forgotten on the way: what comes behind would be another session.
const MAX_TIME_NS: u64 = 20_000_000_000;

const POLICIES: [Policy; 4] = [Policy::Reset, Policy::Bypass, Policy::Forward, Policy::Drop];

/// Input: script and strictness, actions or policies, then operations.
pub fn session(data: &[u8]) {
    let _ = drive(data);
}

/// Runs an input; how many records were opened, client first.
fn drive(data: &[u8]) -> [usize; 2] {
    let mut input = Input::new(data);
    let choice = input.u8();
    let strict = choice & 0x80 == 0;
    let number = usize::from(choice & 0x3f) % SCRIPT_COUNT;
    let mut config = Config::new(Policy::Reset);
    config.tell_hellos = true;
    config.limits.max_reassembly_bytes = 6000;
    config.limits.stall_max_bytes = 1 << 14;
    config.limits.rest_after_ns = 50_000_000;
    config.policies.unsupported = Policy::Reset;
    config.policies.null_keys = Policy::Reset;
    config.policies.mid_stream = Policy::Reset;
    config.mid_stream_grace_ns = 0;
    config.supports = |_, suite| suite == SUITE;
    let mut actions: &[u8] = &[];
    if !strict {
        let policies = input.u8();
        let policy = |shift: u8| POLICIES[usize::from(policies >> shift & 3)];
        config.policies.missing_keys = policy(0);
        config.policies.integrity_failure = policy(2);
        config.policies.lost_synchronisation = policy(4);
        config.policies.null_keys = policy(6);
        config.inline = input.u8() & 1 == 0;
        actions = input.take(4);
    } else if choice & 0x40 != 0 {
        // Resets only: a pause would leave records unjudged.
        actions = &[0, 0, 0, 0, 0, 0, 0, 0x75];
    }
    let mut path = Path::new(number, strict, Engine::new(config, Recorder::new(actions)));
    path.open();
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        path.step(&mut input);
        path.check_events();
    }
    path.engine.finish();
    path.act();
    path.check_events();
    assert!(path.held.is_empty(), "what is held is released or discarded");
    assert_eq!(path.engine.buffered_bytes(), 0);
    assert_eq!(path.engine.handler().open_sessions(), 0);
    path.expected
}

/// One direction as its receiver has it: the first copy of a byte stays.
struct Receiver {
    bytes: Vec<Option<u8>>,
    contiguous: usize,
}

/// A packet on its way.
#[derive(Clone)]
struct Packet {
    direction: Direction,
    from: usize,
    bytes: Vec<u8>,
    flags: u8,
}

struct Path {
    engine: Engine<Recorder>,
    endpoints: Endpoints,
    number: usize,
    script: &'static Script,
    /// Both streams whole, client first.
    streams: [Vec<u8>; 2],
    strict: bool,
    receivers: [Receiver; 2],
    held: HashMap<HoldId, Packet>,
    sent: [usize; 2],
    last: Option<Packet>,
    now_ns: u64,
    dead: bool,
    events_checked: usize,
    /// Records judged, and the next record that may be opened, client first.
    judged: [usize; 2],
    expected: [usize; 2],
}

impl Path {
    fn new(number: usize, strict: bool, engine: Engine<Recorder>) -> Self {
        let script = &SCRIPTS[number];
        let streams = Direction::BOTH.map(|direction| {
            let turns = script.turns.iter().filter(|turn| turn.direction == direction);
            turns.flat_map(|turn| turn.bytes.iter().copied()).collect::<Vec<u8>>()
        });
        let receivers = [0, 1]
            .map(|at: usize| Receiver { bytes: vec![None; streams[at].len()], contiguous: 0 });
        Self {
            engine,
            endpoints: Endpoints {
                client: ([10, 0, 0, 2], 40000).into(),
                server: ([10, 0, 0, 3], 443).into(),
                initial: [0u32.wrapping_sub(700), 5],
            },
            number,
            script,
            streams,
            strict,
            receivers,
            held: HashMap::new(),
            sent: [0; 2],
            last: None,
            now_ns: 1,
            dead: false,
            events_checked: 0,
            judged: [0; 2],
            expected: [0; 2],
        }
    }

    fn open(&mut self) {
        let syn = self.endpoints.frame(Direction::ClientToServer, -1, 0, flag::SYN, &[]);
        self.frame(Direction::ClientToServer, &syn);
        let flags = flag::SYN | flag::ACK;
        let answer = self.endpoints.frame(Direction::ServerToClient, -1, 0, flags, &[]);
        self.frame(Direction::ServerToClient, &answer);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let head = input.u8();
        let direction = Direction::BOTH[usize::from(head >> 7)];
        let at = side(direction);
        let limit = self.limit(direction);
        let contiguous = self.receivers[at].contiguous;
        match head & 0x0f {
            // The next bytes, or the rest of what may be sent.
            kind @ 0..=3 => {
                let len = match kind {
                    0 | 1 => usize::from(input.u8()) + 1,
                    2 => usize::from(input.u16()),
                    _ => usize::MAX,
                };
                let from = self.sent[at].min(limit);
                let to = from.saturating_add(len).min(limit);
                self.sent[at] = to;
                self.send(direction, from, to, None, flag::ACK);
            }
            // A retransmission of what the receiver lacks, as TCP does it.
            4 => {
                let to = (contiguous + usize::from(input.u16() % 2000) + 1).min(limit);
                self.send(direction, contiguous.min(to), to, None, flag::ACK);
            }
            // Older bytes with other boundaries.
            5 => {
                let from = self.sent[at].saturating_sub(usize::from(input.u16() % 4096));
                let to = (from + usize::from(input.u16() % 2048)).min(limit);
                self.send(direction, from.min(to), to, None, flag::ACK);
            }
            // Bytes further on.
            6 => {
                let from = (self.sent[at] + usize::from(input.u16() % 2048)).min(limit);
                let to = (from + usize::from(input.u8())).min(limit);
                self.send(direction, from, to, None, flag::ACK);
            }
            // Bytes that were changed.
            7 => {
                let back = usize::from(input.u8());
                let from = (self.sent[at] + 16).saturating_sub(back).min(limit);
                let to = (from + usize::from(input.u8()) + 1).min(limit);
                let change = (usize::from(input.u8()), input.u8());
                self.send(direction, from, to, Some(change), flag::ACK);
            }
            // Lost on its way to the engine.
            8 => {
                self.sent[at] = self.sent[at].saturating_add(usize::from(input.u8())).min(limit);
            }
            9 => self.keys(direction, epoch(head >> 4)),
            10 => {
                let ms = [1, 100, 400, 3000][usize::from(head >> 4 & 3)];
                self.now_ns = (self.now_ns + ms * 1_000_000).min(MAX_TIME_NS);
                self.engine.handle_timeout(self.now_ns);
                self.act();
            }
            // An acknowledgment, right or up to 100 off.
            11 => {
                let off = i64::from(input.u8().cast_signed());
                let off = if head & 0x40 == 0 { 0 } else { off };
                let acknowledged = (self.receivers[1 - at].contiguous as i64 + off).max(0);
                let frame = self.endpoints.frame(
                    direction,
                    self.sent[at] as i64,
                    acknowledged as u64,
                    flag::ACK,
                    &[],
                );
                self.frame(direction, &frame);
            }
            12 => self.send(direction, self.sent[at], self.sent[at], None, flag::FIN | flag::ACK),
            13 if head & 0x70 == 0x70 => {
                let off = usize::from(input.u8() & 1);
                self.send(direction, contiguous + off, contiguous + off, None, flag::RST);
            }
            13 if !self.strict => {
                let sender = Some(self.endpoints.client.ip());
                let random = random(self.number);
                let refused = [None, Some(direction)][usize::from(head >> 4 & 1)];
                let _ = self.engine.handle_null_keys(self.now_ns, sender, random, refused);
                self.act();
            }
            14 if !self.strict => {
                // Keys that fit nothing.
                let wrong = NullKeys(u64::from(input.u16()) + 5000);
                let (random, number, _) = delivery(self.number, direction, epoch(head >> 4));
                self.deliver(direction, random, number, Box::new(Witness(Box::new(wrong))));
            }
            _ => {
                if let Some(packet) = self.last.clone() {
                    self.offer(packet);
                }
            }
        }
    }

    /// How much a real endpoint could have sent: an answer follows what it answers.
    fn limit(&self, direction: Direction) -> usize {
        let at = side(direction);
        if !self.strict {
            return self.streams[at].len();
        }
        let mut ends = [0; 2];
        for turn in &self.script.turns {
            let of = side(turn.direction);
            if turn.direction == direction && self.receivers[1 - at].contiguous < ends[1 - at] {
                break;
            }
            ends[of] += turn.bytes.len();
        }
        ends[at]
    }

    fn send(
        &mut self,
        direction: Direction,
        from: usize,
        to: usize,
        change: Option<(usize, u8)>,
        flags: u8,
    ) {
        let stream = &self.streams[side(direction)];
        let mut bytes = stream.get(from..to).unwrap_or_default().to_vec();
        if let Some((at, change)) = change
            && !bytes.is_empty()
        {
            let at = at % bytes.len();
            bytes[at] ^= change;
        }
        let packet = Packet { direction, from, bytes, flags };
        self.last = Some(packet.clone());
        self.offer(packet);
    }

    fn offer(&mut self, packet: Packet) {
        let Packet { direction, from, flags, .. } = packet;
        let acknowledged = self.receivers[1 - side(direction)].contiguous as u64;
        let frame =
            self.endpoints.frame(direction, from as i64, acknowledged, flags, &packet.bytes);
        let verdict = self.input(direction, &frame);
        match verdict {
            Verdict::Forward => {
                // Its verdict came last. What it released may have gone before the session ended.
                assert!(
                    !self.has_ended() || packet.bytes.is_empty(),
                    "passed although it ended it"
                );
                self.arrive(&packet);
            }
            Verdict::Hold(id) => {
                assert!(self.held.insert(id, packet).is_none(), "hold numbers are new");
            }
            Verdict::Drop => {}
            Verdict::Again => panic!("nothing was left to anybody"),
        }
        self.act();
    }

    fn frame(&mut self, direction: Direction, frame: &[u8]) {
        let verdict = self.input(direction, frame);
        assert!(!matches!(verdict, Verdict::Hold(_)), "nothing to wait for in no bytes");
        self.act();
    }

    fn input(&mut self, direction: Direction, frame: &[u8]) -> Verdict {
        let memory: Arc<[u8]> = frame.into();
        let input = FrameInput {
            port: PortId(side(direction) as u8),
            link: Link::Ethernet,
            bytes: &memory,
            memory: (frame.len().is_multiple_of(2)).then_some(&memory),
            checksum_trusted: true,
        };
        self.engine.handle_frame(self.now_ns, &input)
    }

    fn keys(&mut self, direction: Direction, epoch: KeyEpoch) {
        let (random, number, opener) = delivery(self.number, direction, epoch);
        self.deliver(direction, random, number, opener);
    }

    fn deliver(
        &mut self,
        direction: Direction,
        client_random: [u8; 32],
        epoch: KeyEpoch,
        opener: Box<Witness>,
    ) {
        let shared = SharedKeys {
            sender: Some(self.endpoints.client.ip()),
            source: 0,
            client_random,
            server_random: Some(SERVER_RANDOM),
            cipher_suite: SUITE,
            keys: vec![(direction, epoch, opener)],
        };
        let _ = self.engine.handle_keys(self.now_ns, shared);
        self.act();
    }

    /// Whether the session has been reset by the monitor.
    fn has_ended(&self) -> bool {
        self.engine.handler().ended.iter().any(|(_, _, reason)| reason.is_reset_by_monitor())
    }

    fn act(&mut self) {
        // What is released goes before what ends the session, in the order of the outputs.
        let mut outputs = Vec::new();
        while let Some(output) = self.engine.poll_output() {
            outputs.push(output);
        }
        let last_release = outputs.iter().rposition(|it| matches!(it, Output::Release(_)));
        let inject = outputs
            .iter()
            .position(|it| matches!(it, Output::Inject { frame, .. } if is_reset(frame)));
        if let (Some(release), Some(inject)) = (last_release, inject) {
            assert!(release < inject, "released behind a reset");
        }
        for output in outputs {
            match output {
                Output::Release(id) => {
                    let packet = self.held.remove(&id).expect("what is released was held");
                    self.arrive(&packet);
                }
                Output::Discard(id) => {
                    self.held.remove(&id).expect("what is discarded was held");
                }
                Output::Inject { frame, .. } => self.dead |= is_reset(&frame),
                Output::KeysOpenNothing(_) | Output::LiveKeysNeeded(_) => {}
                Output::Offload(_) | Output::TakeBack(_) => {
                    panic!("nothing can be left to anybody")
                }
                Output::KeysNeeded(wish) => {
                    let early = wish.epoch == KeyEpoch::EarlyData;
                    assert_eq!(wish.cipher_suite, (!early).then_some(SUITE));
                }
            }
        }
        self.dead |= self.has_ended();
    }

    fn arrive(&mut self, packet: &Packet) {
        let at = side(packet.direction);
        assert!(!self.dead || packet.bytes.is_empty(), "bytes passed behind a reset");
        // What turned out not to be TLS is not followed.
        let followed = self.engine.handler().events.contains(&Event::SessionStart);
        let receiver = &mut self.receivers[at];
        for (offset, &byte) in (packet.from..).zip(&packet.bytes) {
            match receiver.bytes[offset] {
                // Delivered bytes are not looked at again.
                _ if offset < receiver.contiguous => {}
                Some(first) => {
                    let alike = first == byte || !self.strict || !followed;
                    assert!(alike, "two versions of byte {offset}");
                }
                None => receiver.bytes[offset] = Some(byte),
            }
        }
        while receiver.bytes.get(receiver.contiguous).is_some_and(Option::is_some) {
            receiver.contiguous += 1;
        }
        if self.strict {
            self.check_events();
            self.check_judged(at);
        }
    }

    /// No whole record is behind the engine that was not judged.
    fn check_judged(&self, at: usize) {
        if !self.is_genuine(0) || !self.is_genuine(1) {
            // An endpoint that got changed bytes has given up.
            return;
        }
        let contiguous = self.receivers[at].contiguous as u64;
        let shown = |it: &&Placed| it.end <= contiguous && is_shown(self.script, it);
        let complete = self.script.records[at].iter().filter(shown).count();
        assert!(
            complete <= self.judged[at],
            "{complete} records of side {at} arrived, {} were judged",
            self.judged[at]
        );
    }

    /// Whether this side's receiver has what was sent, as far as it has anything.
    fn is_genuine(&self, at: usize) -> bool {
        let receiver = &self.receivers[at];
        let arrived = &receiver.bytes[..receiver.contiguous];
        let same = |(a, b): &(&Option<u8>, &u8)| **a == Some(**b);
        arrived.iter().zip(&self.streams[at]).take_while(same).count() == arrived.len()
    }

    /// What was opened since the last check is what was sent.
    fn check_events(&mut self) {
        let recorder = self.engine.handler();
        for event in &recorder.events[self.events_checked..] {
            let Event::Record(direction, opened) = event else {
                continue;
            };
            let at = side(*direction);
            self.judged[at] += 1;
            let Some(opened) = opened else {
                continue;
            };
            let records = self.script.records[at].iter().filter(|it| is_shown(self.script, it));
            let same = |it: &Placed| it.kind == opened.kind && it.content == opened.content;
            let found = records.skip(self.expected[at]).position(same);
            let found = found.expect("what was opened was sent, and not opened before");
            // Changed early data may be what the server refuses anyway, and where it accepts them, it
            // gives up. A changed ServerHello may say that it refused them, and the client gives up.
            let genuine = self.is_genuine(0) && self.is_genuine(1);
            let refused = self.number >= FIRST_EARLY && !genuine;
            assert!(!self.strict || found == 0 || refused, "{found} records were passed over");
            self.expected[at] += found + 1;
        }
        self.events_checked = recorder.events.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that stop early would leave most of the engine to luck.
    #[test]
    fn accepts_seeds_that_open_every_record() {
        let seeds = crate::seeds::all();
        for number in 0..SCRIPT_COUNT {
            let script = &SCRIPTS[number];
            let all = [0, 1].map(|at: usize| {
                script.records[at].iter().filter(|it| is_shown(script, it)).count()
            });
            for name in [format!("early-keys-{number}"), format!("rough-{number}")] {
                let seed = seeds.iter().find(|it| it.target == "session" && it.name == name);
                let opened = drive(&seed.unwrap().bytes);
                if name.starts_with("early") {
                    assert_eq!(opened, all, "{name}");
                } else {
                    assert!(opened[0] + opened[1] > 0, "{name} opens nothing");
                }
            }
        }
    }
}
