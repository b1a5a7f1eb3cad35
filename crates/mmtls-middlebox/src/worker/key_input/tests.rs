//! Questions: how many of them, to whom, and what of a turn they take.

use std::time::Duration;

use mmtls_engine::session::{Handler, Record, Session};
use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, ProtocolVersion};
use mmtls_engine::{Config, Engine, FrameInput, Link, Policy, PortId, Share};
use mmtls_keyshare::message::{Epoch, KeyEntry, SessionKeys};
use mmtls_keyshare::server::{Identity, KeySink, Peer, Server, ServerConfig};
use mmtls_packet_io::Ports;
use mmtls_record::Tls13Sealer;
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::ScriptBuilder;
use mmtls_testkit::{Pki, require_program};

use super::super::{Settings, Worker};
use super::*;
use crate::keys::WorkerSink;

struct Blind;

impl Handler for Blind {
    type State = ();

    fn new_record(&mut self, _: &mut Session<'_>, (): &mut (), _: &mut Record<'_>) {}
}

fn wanted(number: usize) -> KeysNeeded {
    KeysNeeded {
        client: "10.0.0.2:40000".parse().unwrap(),
        server: "10.0.0.3:443".parse().unwrap(),
        client_random: [number as u8; 32],
        server_random: Some([9; 32]),
        version: ProtocolVersion(0x0304),
        cipher_suite: Some(CipherSuite(0x1301)),
        direction: Direction::ClientToServer,
        epoch: KeyEpoch::Application(1),
        source: 0,
        offers_ech: false,
        client_hello: None,
    }
}

/// A worker that can ask, and the way to its keys; `None`, loudly, where this machine cannot have them.
fn worker() -> Option<(Worker<Blind, impl Ports>, WorkerSink, Server)> {
    if !require_program("openssl") {
        return None;
    }
    let pki = Pki::shared().unwrap();
    let (sink, mut receivers, router) = keys::queues(Share::ALL).unwrap();
    let identity = Identity {
        certificate_file: pki.middlebox.certificate.clone(),
        key_file: pki.middlebox.key.clone(),
    };
    let config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity);
    let server = Server::start(config, sink.clone()).unwrap();
    let mut input = KeyInput::new(receivers.pop().unwrap(), router);
    input.server = Some(server.handle());
    let mut config = Config::new(Policy::Reset);
    config.supports = keys::supports;
    let engine = Engine::new(config, Blind);
    let (ports, _network) = mmtls_packet_io::memory::pair(16, 16).unwrap();
    let settings = Settings { batch: 16, moderation: Duration::ZERO, passive: false };
    Some((Worker::new(ports, engine, input, settings), sink, server))
}

/// An endpoint at the client's address connects.
fn connect(sink: &mut WorkerSink, number: u64) {
    sink.opened(&Peer {
        address: "10.0.0.2:50000".parse().unwrap(),
        connection: ConnectionId::from_number(number),
        capabilities: 0,
        authenticated: false,
        is_key_server: false,
    });
}

/// A client with many sessions, whose agent connects again and again.
#[test]
fn refuses_to_spend_a_turn_on_endpoints_that_connect() {
    let Some((mut worker, mut sink, _server)) = worker() else { return };
    let now_ns = worker.now_ns();
    for number in 0..1000 {
        worker.keys.ask(wanted(number), now_ns);
    }
    (0..100).for_each(|number| connect(&mut sink, number));
    let mut turns = 0;
    while worker.take_keys(now_ns) > 0 {
        turns += 1;
    }
    assert!((20..=100).contains(&turns), "{turns} turns");
    // Whoever goes on is not asked any more.
    (100..100 + u64::from(MAX_CONNECTED)).for_each(|number| connect(&mut sink, number));
    while worker.take_keys(now_ns) > 0 {}
    let mut ask = |last| {
        let address = IpAddr::from([10, 0, 0, last]);
        worker.keys.ask_again(address, ConnectionId::from_number(9), now_ns)
    };
    assert_eq!(ask(2), 0);
    assert!(ask(4) > 0);
}

#[test]
fn accepts_endpoints_that_connect_again_now_and_then() {
    let mut connected = Lately::default();
    let mut may_be_asked = |it, now_ns| connected.has_one_more(it, now_ns, MAX_CONNECTED);
    let [one, other] = [2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
    let begun = 5 * ASKED_NS;
    let admitted = (0..MAX_CONNECTED + 9).filter(|_| may_be_asked(one, begun));
    assert_eq!(admitted.count(), MAX_CONNECTED as usize);
    assert!(may_be_asked(other, begun));
    assert!(!may_be_asked(one, begun + ASKED_NS - 1));
    assert!(may_be_asked(one, begun + ASKED_NS));
}

#[test]
fn accepts_the_latest_questions_first_and_forgets_the_oldest() {
    let mut asked = Asked::default();
    let last = MAX_ASKED + 9;
    for number in 0..=last {
        asked.note(wanted(number), number as u64);
    }
    assert_eq!(asked.recent(last as u64).next(), Some(&wanted(last)));
    assert_eq!(asked.recent(last as u64).count(), MAX_ASKED);
    assert_eq!(asked.recent(ASKED_NS + last as u64 - 2).count(), 2);
    assert_eq!(asked.recent(2 * ASKED_NS).count(), 0);
    let most = KeysNeeded::MAX_CLIENT_HELLO_BYTES;
    for number in 0..=last {
        let client_hello = Some(vec![0; most].into());
        asked.note(KeysNeeded { client_hello, ..wanted(number) }, 0);
    }
    assert_eq!(asked.questions.len(), MAX_HELLO_BYTES / most);
    assert_eq!(asked.hello_bytes, MAX_HELLO_BYTES / most * most);
}

const RANDOM: [u8; 32] = [0xc1; 32];
const AES_128_GCM: u16 = 0x1301;

/// Key and static IV.
fn secrets(direction: Direction, epoch: KeyEpoch) -> ([u8; 16], [u8; 12]) {
    let number = match epoch {
        KeyEpoch::Application(updates) => updates,
        _ => u32::MAX,
    };
    let mut key = [direction.index() as u8; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    (key, [7; 12])
}

fn sealer(direction: Direction, epoch: KeyEpoch) -> Tls13Sealer {
    let (key, iv) = secrets(direction, epoch);
    Tls13Sealer::new(AES_128_GCM, &key, &iv).unwrap()
}

/// What an endpoint shares of an epoch.
fn keys_of(directions: &[Direction], updates: u32) -> Message {
    let entry = |direction: &Direction| {
        let (key, iv) = secrets(*direction, KeyEpoch::Application(updates));
        KeyEntry::new(*direction, Epoch::application(updates).unwrap(), &key, &iv, &[]).unwrap()
    };
    Message::SessionKeys(SessionKeys {
        client_random: RANDOM,
        server_random: None,
        version: 0x0304,
        cipher_suite: AES_128_GCM,
        flow: None,
        keys: directions.iter().map(entry).collect(),
    })
}

/// A client whose session says KeyUpdate again and again, which shares its keys late, and has many connections: each key
/// makes the worker ask for the next one.
#[test]
fn refuses_to_spend_a_turn_on_questions_for_later_keys() {
    const UPDATES: u32 = 1500;
    let Some((mut worker, mut sink, _server)) = worker() else { return };
    let now_ns = worker.now_ns();
    let client = Direction::ClientToServer;
    let mut builder = ScriptBuilder::new(RANDOM, AES_128_GCM, false, &[700], sealer);
    for _ in 0..UPDATES {
        builder.key_update(client);
    }
    let script = builder.build();
    let endpoints = Endpoints {
        client: ([10, 0, 0, 2], 40000).into(),
        server: ([10, 0, 0, 3], 443).into(),
        initial: [1000, 2000],
    };
    (1..=256).for_each(|number| connect(&mut sink, number));
    // The last one shares.
    let mut deliver = |message| sink.deliver([10, 0, 0, 2].into(), 256, message).unwrap();
    deliver(keys_of(&Direction::BOTH, 0));
    while worker.take_keys(now_ns) > 0 {}
    let mut show = |direction: Direction, offset: i64, acknowledged, flags, payload: &[u8]| {
        let bytes = endpoints.frame(direction, offset, acknowledged, flags, payload);
        let input = FrameInput {
            port: PortId(direction.index() as u8),
            link: Link::Ethernet,
            bytes: &bytes,
            memory: None,
            checksum_trusted: true,
        };
        let _ = worker.engine.handle_frame(now_ns, &input);
        worker.act(now_ns)
    };
    let server = Direction::ServerToClient;
    show(client, -1, 0, flag::SYN, &[]);
    show(server, -1, 0, flag::SYN | flag::ACK, &[]);
    show(client, 0, 0, flag::ACK, &[]);
    let (mut sent, mut asked) = ([0; 2], 0);
    for turn in &script.turns {
        let own = turn.direction.index();
        for part in turn.bytes.chunks(1400) {
            asked += show(turn.direction, sent[own] as i64, sent[1 - own], flag::ACK, part);
            sent[own] += part.len() as u64;
        }
    }
    // Whoever shares, and some others there.
    assert_eq!(asked, 17);
    (1..=UPDATES).for_each(|updates| deliver(keys_of(&[client], updates)));
    let mut turns = 0;
    while worker.take_keys(now_ns) > 0 {
        turns += 1;
    }
    assert_eq!(worker.engine.counters().key_updates, u64::from(UPDATES));
    let most = UPDATES as usize * 18 / 1024;
    assert!((most..most + 10).contains(&turns), "{turns} turns");
}

/// Nobody is known who has keys of these sessions.
#[test]
fn refuses_to_ask_many_for_every_session_of_a_network() {
    let Some((mut worker, mut sink, _server)) = worker() else { return };
    let now_ns = worker.now_ns();
    (1..=300).for_each(|number| connect(&mut sink, number));
    let mut ask = |now_ns| worker.keys.ask(wanted(1), now_ns);
    let asked: Vec<_> = (0..MAX_ASKED_OF_MANY + 9).map(|_| ask(now_ns)).collect();
    assert_eq!(asked.iter().filter(|count| **count == 256).count(), MAX_ASKED_OF_MANY as usize);
    assert_eq!(asked.last(), Some(&16));
    assert_eq!(ask(now_ns + ASKED_NS), 256);
}
