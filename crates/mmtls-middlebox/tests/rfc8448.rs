//! The five traces of RFC 8448, from its bytes: every protected record opens with the keys that it
//! prints, and with those that come out of its secrets.

use std::collections::HashMap;

use base16ct::lower::encode_string as hex;
use mmtls_engine::session::{Certificates, EarlyData, Handler, Record, Session, SessionError};
use mmtls_engine::tls::{CipherSuite, ContentType, Direction, KeyEpoch};
use mmtls_engine::{Counters, Engine, FrameInput, Link, Output, PortId, SharedKeys};
use mmtls_middlebox::keylog::KeyLog;
use mmtls_middlebox::offline::{self, Replay};
use mmtls_record::{key_schedule, open_record};
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::side;

const CLIENT: Direction = Direction::ClientToServer;
const SERVER: Direction = Direction::ServerToClient;
const SUITE: u16 = 0x1301;

/// One trace.
#[derive(Default)]
struct Trace {
    name: String,
    secrets: Vec<(String, Vec<u8>)>,
    keys: HashMap<String, [Vec<u8>; 2]>,
    records: Vec<(Direction, Vec<u8>)>,
}

impl Trace {
    /// How many records are protected.
    fn protected(&self) -> u64 {
        self.records.iter().filter(|(_, record)| record[0] == 23).count() as u64
    }

    fn client_random(&self) -> &[u8] {
        &self.records[0].1[11..43]
    }
}

fn unhex(text: &str) -> Vec<u8> {
    base16ct::lower::decode_vec(text).unwrap()
}

fn traces() -> Vec<Trace> {
    let text = include_str!("data/rfc8448.txt").replace("\n ", "");
    let mut traces: Vec<Trace> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            traces.push(Trace { name: name.to_owned(), ..Trace::default() });
            continue;
        }
        let trace = traces.last_mut().unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["secret", label, secret] => trace.secrets.push((label.to_owned(), unhex(secret))),
            ["keys", label, key, iv] => {
                trace.keys.insert(label.to_owned(), [unhex(key), unhex(iv)]);
            }
            ["client", record] => trace.records.push((CLIENT, unhex(record))),
            ["server", record] => trace.records.push((SERVER, unhex(record))),
            _ => panic!("{line}"),
        }
    }
    assert_eq!(traces.len(), 5);
    traces
}

#[derive(Default)]
struct Seen {
    opened: Vec<(Direction, bool, ContentType, Vec<u8>)>,
    certificates: Vec<(Direction, Vec<u8>)>,
    errors: Vec<SessionError>,
    accepted: Option<bool>,
    early_data: Option<EarlyData>,
}

impl Handler for Seen {
    type State = ();

    fn new_record(&mut self, _: &mut Session<'_>, (): &mut (), record: &mut Record<'_>) {
        let (direction, early) = (record.direction(), record.is_early_data());
        let plaintext = record.open().unwrap();
        self.opened.push((direction, early, plaintext.content_type, plaintext.bytes.to_vec()));
    }

    fn early_data(&mut self, _: &mut Session<'_>, (): &mut (), accepted: bool) {
        self.accepted = Some(accepted);
    }

    fn certificates(
        &mut self,
        _: &mut Session<'_>,
        (): &mut (),
        direction: Direction,
        certificates: &Certificates<'_>,
    ) {
        assert_eq!(certificates.chain().len(), 1);
        self.certificates.push((direction, certificates.chain()[0].to_vec()));
    }

    fn error(&mut self, _: &mut Session<'_>, (): &mut (), _: Direction, error: SessionError) {
        self.errors.push(error);
    }

    fn session_end(
        &mut self,
        session: &mut Session<'_>,
        (): &mut (),
        _: mmtls_engine::session::EndReason,
    ) {
        self.early_data = Some(session.info().early_data);
    }
}

/// The trace as frames, each record in one segment.
fn frames(trace: &Trace) -> Vec<Vec<u8>> {
    let endpoints = Endpoints {
        client: ([10, 0, 0, 2], 40000).into(),
        server: ([10, 0, 0, 3], 443).into(),
        initial: [1, 1],
    };
    let mut frames = vec![
        endpoints.frame(CLIENT, -1, 0, flag::SYN, &[]),
        endpoints.frame(SERVER, -1, 0, flag::SYN | flag::ACK, &[]),
        endpoints.frame(CLIENT, 0, 0, flag::ACK, &[]),
    ];
    let mut sent = [0u64; 2];
    for (direction, record) in &trace.records {
        let at = side(*direction);
        frames.push(endpoints.frame(*direction, sent[at] as i64, sent[1 - at], flag::ACK, record));
        sent[at] += record.len() as u64;
    }
    frames
}

fn with_printed_keys(trace: &Trace) -> (Counters, Seen) {
    let mut engine = Engine::new(offline::config(), Seen::default());
    for (now_ns, frame) in (1..).zip(frames(trace)) {
        let input = FrameInput {
            port: PortId(0),
            link: Link::Ethernet,
            bytes: &frame,
            memory: None,
            checksum_trusted: true,
        };
        let _ = engine.handle_frame(now_ns, &input);
        while let Some(output) = engine.poll_output() {
            let Output::KeysNeeded(wanted) = output else {
                continue;
            };
            let label = match (wanted.epoch, wanted.direction) {
                (KeyEpoch::EarlyData, CLIENT) => "CLIENT_EARLY_TRAFFIC_SECRET",
                (KeyEpoch::Handshake, CLIENT) => "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
                (KeyEpoch::Handshake, SERVER) => "SERVER_HANDSHAKE_TRAFFIC_SECRET",
                (KeyEpoch::Application(0), CLIENT) => "CLIENT_TRAFFIC_SECRET_0",
                (KeyEpoch::Application(0), SERVER) => "SERVER_TRAFFIC_SECRET_0",
                other => panic!("{other:?}"),
            };
            let [key, iv] = &trace.keys[label];
            let keys = SharedKeys {
                sender: None,
                source: 0,
                client_random: wanted.client_random,
                server_random: wanted.server_random,
                cipher_suite: CipherSuite(SUITE),
                keys: vec![(
                    wanted.direction,
                    wanted.epoch,
                    open_record(0x0304, SUITE, key, iv, &[]).unwrap(),
                )],
            };
            assert_eq!(engine.handle_keys(now_ns, keys), Ok(true));
        }
    }
    engine.finish();
    let counters = *engine.counters();
    (counters, engine.into_handler())
}

fn with_key_log(trace: &Trace) -> (Counters, Seen) {
    let random = hex(trace.client_random());
    let mut log = KeyLog::new();
    for (label, secret) in &trace.secrets {
        log.add_text(format!("{label} {random} {}\n", hex(secret)).as_bytes());
    }
    let mut replay = Replay::new(offline::config(), log, Seen::default());
    for (now_ns, frame) in (1..).zip(frames(trace)) {
        replay.handle_packet(now_ns, Link::Ethernet, &frame);
    }
    replay.end();
    let counters = *replay.engine().counters();
    (counters, replay.finish())
}

fn check(trace: &Trace, counters: &Counters, seen: &Seen) {
    let name = &trace.name;
    assert_eq!(seen.errors, [], "{name}");
    let opened = counters.handshake_records_opened + counters.records_opened;
    assert_eq!(opened, trace.protected(), "{name}");
    assert_eq!(counters.records_failed, 0, "{name}");
    let of = |wanted: Direction, kind: ContentType| -> Vec<Vec<u8>> {
        let of = |it: &&(Direction, bool, ContentType, Vec<u8>)| it.0 == wanted && it.2 == kind;
        seen.opened.iter().filter(of).map(|it| it.3.clone()).collect()
    };
    let counted: Vec<u8> = (0..50).collect();
    let data = |direction| of(direction, ContentType::APPLICATION_DATA);
    let (client, server): (Vec<Vec<u8>>, Vec<Vec<u8>>) = match &name[..1] {
        "3" => (vec![counted.clone()], vec![counted]),
        "4" => (vec![b"ABCDEF".to_vec(), counted.clone()], vec![counted]),
        _ => (Vec::new(), Vec::new()),
    };
    assert_eq!((data(CLIENT), data(SERVER)), (client, server), "{name}");
    for direction in Direction::BOTH {
        assert_eq!(of(direction, ContentType::ALERT), [[1, 0]], "{name}: close_notify");
    }
    let resumed = name.starts_with('4');
    assert_eq!(seen.accepted, resumed.then_some(true), "{name}");
    let early = if resumed { EarlyData::Accepted } else { EarlyData::None };
    assert_eq!(seen.early_data, Some(early), "{name}");
    assert_eq!(seen.opened.iter().filter(|it| it.1).count(), usize::from(resumed), "{name}");
    let sides: Vec<Direction> = seen.certificates.iter().map(|it| it.0).collect();
    let expected: &[Direction] = match &name[..1] {
        "4" => &[],
        "6" => &[SERVER, CLIENT],
        _ => &[SERVER],
    };
    assert_eq!(sides, expected, "{name}");
    for (_, certificate) in &seen.certificates {
        assert_eq!(certificate[0], 0x30, "{name}: a DER sequence");
    }
}

#[test]
fn accepts_every_record_with_the_printed_keys() {
    let mut protected = 0;
    for trace in traces() {
        let (counters, seen) = with_printed_keys(&trace);
        check(&trace, &counters, &seen);
        // With all keys nothing is a guess.
        assert_eq!(counters.trials_failed, 0, "{}", trace.name);
        protected += trace.protected();
    }
    assert_eq!(protected, 27);
}

#[test]
fn accepts_every_record_with_the_secrets() {
    for trace in traces() {
        let (counters, seen) = with_key_log(&trace);
        check(&trace, &counters, &seen);
        for (label, secret) in &trace.secrets {
            let keys = key_schedule::traffic_keys(SUITE, secret).unwrap();
            let [key, iv] = &trace.keys[label];
            assert_eq!((keys.key(), keys.iv()), (&key[..], &iv[..]), "{label}");
        }
    }
}
