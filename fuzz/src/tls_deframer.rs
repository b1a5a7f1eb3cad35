//! Record framing, hellos and handshake reassembly: one connection, its two streams in any cut.
//!
//! Claim: however each stretch of bytes is cut into segments, the same events come in the same
//! order, and nothing is left behind in the end.

use mmtls_engine::tls::Direction;
use mmtls_engine::{Config, Engine, FrameInput, Link, Output, Policy, PortId, SharedKeys};
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::side;

use crate::input::{Input, pieces};
use crate::material::{FIRST_EARLY, FIRST_TLS12, SERVER_RANDOM, SUITE, delivery, epoch};
use crate::recorder::{Event, Recorder};

const POLICIES: [Policy; 4] = [Policy::Reset, Policy::Bypass, Policy::Forward, Policy::Drop];

/// Input: policies, which keys come, actions of the handler, lengths of pieces; then stretches:
/// one byte with direction and form of length, the length, the bytes.
pub fn tls_deframer(data: &[u8]) {
    let mut input = Input::new(data);
    let choices = input.u8();
    let actions = input.take(4);
    let lengths = input.take(3);
    let stretches = input.all();
    let whole = run(choices, actions, &[], stretches);
    assert_eq!(run(choices, actions, lengths, stretches), whole, "in pieces of {lengths:?}");
}

fn config(choices: u8) -> Config {
    let policy = |shift: u8| POLICIES[usize::from(choices >> shift & 3)];
    let mut config = Config::new(policy(0));
    config.policies.integrity_failure = policy(2);
    config.policies.unsupported = policy(4);
    config.policies.lost_synchronisation = policy(2);
    config.tell_hellos = true;
    config.limits.max_handshake_bytes = 2048;
    config.limits.max_search_bytes = 4096;
    config.supports = |_, suite| suite == SUITE;
    // In packets the cut would make a difference; in bytes a stall ends where it ends.
    config.limits.stall_max_packets = usize::MAX;
    config.limits.stall_max_bytes = usize::MAX;
    // Early deliveries would meet the hello at the end of a segment.
    config.limits.max_pending_keys = 0;
    config
}

fn run(choices: u8, actions: &[u8], lengths: &[u8], stretches: &[u8]) -> Vec<Event> {
    let endpoints = Endpoints {
        client: ([10, 0, 0, 2], 40000).into(),
        server: ([10, 0, 0, 3], 443).into(),
        initial: [u32::MAX - 300, 7],
    };
    let mut wire = Wire {
        engine: Engine::new(config(choices), Recorder::new(actions)),
        endpoints,
        sent: [0; 2],
    };
    wire.control(Direction::ClientToServer, flag::SYN);
    wire.control(Direction::ServerToClient, flag::SYN | flag::ACK);
    let mut input = Input::new(stretches);
    while !input.is_empty() {
        let head = input.u8();
        let direction = Direction::BOTH[usize::from(head >> 7)];
        let len = if head & 1 == 0 { usize::from(input.u8()) } else { input.u16().into() };
        let stretch = input.take(len);
        if direction == Direction::ServerToClient && wire.engine.handler().events.is_empty() {
            // What the server says before TLS is recognised is looked at when it is, and where
            // that falls depends on the cut.
            continue;
        }
        for piece in pieces(stretch, lengths) {
            wire.bytes(direction, piece);
        }
        if choices >> 6 & 1 == 1 {
            wire.keys();
        }
    }
    wire.engine.finish();
    wire.drain();
    assert_eq!(wire.engine.buffered_bytes(), 0, "nothing is left");
    assert_eq!(wire.engine.flow_count(), 0);
    let recorder = wire.engine.into_handler();
    assert_eq!(recorder.open_sessions(), 0, "every session ends");
    recorder.events
}

struct Wire {
    engine: Engine<Recorder>,
    endpoints: Endpoints,
    sent: [u64; 2],
}

impl Wire {
    fn control(&mut self, direction: Direction, flags: u8) {
        let frame = self.endpoints.frame(direction, -1, 0, flags, &[]);
        self.frame(direction, &frame);
    }

    fn bytes(&mut self, direction: Direction, bytes: &[u8]) {
        let at = side(direction);
        let acknowledged = self.sent[1 - at];
        let offset = self.sent[at] as i64;
        let frame = self.endpoints.frame(direction, offset, acknowledged, flag::ACK, bytes);
        self.sent[at] += bytes.len() as u64;
        self.frame(direction, &frame);
    }

    fn frame(&mut self, direction: Direction, bytes: &[u8]) {
        let input = FrameInput {
            port: PortId(side(direction) as u8),
            link: Link::Ethernet,
            bytes,
            memory: None,
            checksum_trusted: true,
        };
        let _ = self.engine.handle_frame(1, &input);
        self.drain();
    }

    fn keys(&mut self) {
        for script in [0, FIRST_TLS12, FIRST_TLS12 + 2, FIRST_EARLY, FIRST_EARLY + 2] {
            for direction in Direction::BOTH {
                for number in [7, 6, 0, 1, 2, 3] {
                    let (client_random, epoch, opener) = delivery(script, direction, epoch(number));
                    let shared = SharedKeys {
                        sender: Some(self.endpoints.client.ip()),
                        source: 0,
                        client_random,
                        server_random: Some(SERVER_RANDOM),
                        cipher_suite: SUITE,
                        keys: vec![(direction, epoch, opener)],
                    };
                    let _ = self.engine.handle_keys(1, shared);
                    self.drain();
                }
            }
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            drop::<Output>(output);
        }
    }
}
