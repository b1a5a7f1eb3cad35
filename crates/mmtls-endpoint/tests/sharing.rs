//! Key sharing of a rustls client over a real channel: record keys and nothing else arrive.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{Pair, Secrets, client_config, name, only, pki, plain, read, server_config};
use mmtls_endpoint::{PRIVATE_TAG_SUITES, Sharing, provider};
use mmtls_keyshare::client::{ClientConfig as Channel, Identity};
use mmtls_keyshare::message::{Direction, Epoch, KeyRequest, Message, SessionKeys};
use mmtls_keyshare::policy::ServerNames;
use mmtls_keyshare::server::{KeySink, Peer, Server, ServerConfig};
use mmtls_record::{ContentType, key_schedule, open_record};
use mmtls_testkit::Pki;
use rustls::KeyLog;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<(Peer, Message)>>>);

impl KeySink for Inbox {
    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        self.0.lock().unwrap().push((peer.clone(), message));
        None
    }
}

impl Inbox {
    fn wait(&self, count: usize) -> Vec<(Peer, Message)> {
        let end = Instant::now() + PATIENCE;
        while self.0.lock().unwrap().len() < count {
            assert!(Instant::now() < end, "{} of {count} messages", self.0.lock().unwrap().len());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.lock().unwrap().drain(..).collect()
    }
}

fn start(pki: &Pki, exempt: &str) -> (Server, Inbox, Arc<Sharing>) {
    let inbox = Inbox::default();
    let identity = Identity {
        certificate_file: pki.middlebox.certificate.clone(),
        key_file: pki.middlebox.key.clone(),
    };
    let config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity);
    let server = Server::start(config, inbox.clone()).unwrap();
    let middlebox = format!("middlebox.test@{}", server.local_addr()).parse().unwrap();
    let channel = Channel::new(vec![middlebox], pki.ca.clone());
    let sharing = Sharing::start(channel, ServerNames::parse(exempt).unwrap()).unwrap();
    assert!(sharing.wait_connected(PATIENCE));
    (server, inbox, sharing)
}

/// Passes secrets on and keeps them, for the test to compare with.
#[derive(Debug)]
struct Both(Arc<dyn KeyLog>, Arc<Secrets>);

impl KeyLog for Both {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        self.0.log(label, client_random, secret);
        self.1.log(label, client_random, secret);
    }
}

fn session_keys(message: &Message) -> &SessionKeys {
    match message {
        Message::SessionKeys(session) => session,
        _ => panic!("not session keys"),
    }
}

/// Opens a record that the client just sent.
fn opens(session: &SessionKeys, sequence: u64, record: &[u8], content: &[u8]) {
    let keys = &session.keys[0];
    let (key, iv) = (keys.key.as_bytes(), keys.iv.as_bytes());
    let opener = open_record(session.version, session.cipher_suite, key, iv, &[]).unwrap();
    let (header, fragment) = record.split_first_chunk().unwrap();
    let mut out = vec![0; fragment.len()];
    let opened = opener.open(sequence, *header, fragment, &mut out).unwrap();
    assert_eq!(opened.content_type, ContentType::APPLICATION_DATA);
    assert_eq!(&out[..opened.len], content);
}

#[test]
fn accepts_keys_that_open_records_and_nothing_more() {
    let Some(pki) = pki() else {
        return;
    };
    let (server, inbox, sharing) = start(&pki, "");
    let ordinary = plain().cipher_suites.into_iter().filter(|suite| suite.tls13().is_some());
    for suite in PRIVATE_TAG_SUITES.into_iter().chain(ordinary) {
        let number = suite.suite().into();
        let secrets = Arc::new(Secrets::default());
        let mut config =
            (*sharing.client_config(&client_config(&pki, provider()), &name())).clone();
        config.key_log = Arc::new(Both(config.key_log, Arc::clone(&secrets)));
        let tls_server = Arc::new(server_config(&pki, only(suite)));
        let mut pair = Pair::connected(&Arc::new(config), &tls_server);
        assert_eq!(pair.suite(), suite);
        let messages = inbox.wait(2);
        for (_, message) in &messages {
            let session = session_keys(message);
            assert_eq!((session.version, session.cipher_suite), (0x0304, number));
            let [entry] = &session.keys[..] else {
                panic!("one direction each");
            };
            let label = match entry.direction {
                Direction::ClientToServer => "CLIENT_TRAFFIC_SECRET_0",
                Direction::ServerToClient => "SERVER_TRAFFIC_SECRET_0",
            };
            let secret = secrets.get(label).unwrap();
            let keys = key_schedule::traffic_keys(number, &secret).unwrap();
            assert_eq!(entry.epoch, Epoch::APPLICATION);
            assert_eq!(entry.key.as_bytes(), keys.key());
            assert_eq!(entry.iv.as_bytes(), keys.iv());
            assert_eq!(entry.mac_key.as_bytes(), b"");
        }
        let up = messages
            .iter()
            .find(|(_, message)| {
                session_keys(message).keys[0].direction == Direction::ClientToServer
            })
            .unwrap();
        pair.client.writer().write_all(b"hello").unwrap();
        let mut record = Vec::new();
        pair.client.write_tls(&mut record).unwrap();
        opens(session_keys(&up.1), 0, &record, b"hello");
        pair.server.read_tls(&mut &record[..]).unwrap();
        pair.server.process_new_packets().unwrap();
        assert_eq!(read(&mut pair.server), b"hello");

        // After a KeyUpdate the middlebox asks.
        pair.client.refresh_traffic_keys().unwrap();
        let mut update = Vec::new();
        pair.client.write_tls(&mut update).unwrap();
        let request = Message::KeyRequest(KeyRequest {
            client_random: session_keys(&up.1).client_random,
            server_random: [0; 32],
            version: 0x0304,
            cipher_suite: number,
            direction: Direction::ClientToServer,
            epoch: Epoch::application(1).unwrap(),
        });
        server.handle().send_to(up.0.connection, &request).unwrap();
        let answer = inbox.wait(1);
        pair.client.writer().write_all(b"again").unwrap();
        let mut record = Vec::new();
        pair.client.write_tls(&mut record).unwrap();
        opens(session_keys(&answer[0].1), 0, &record, b"again");
    }
    assert_eq!(sharing.unsupported(), 0);
    server.stop();
}

/// Early data leave together with the ClientHello, and so do their keys.
#[test]
fn accepts_keys_of_early_data() {
    let Some(pki) = pki() else {
        return;
    };
    let (server, inbox, sharing) = start(&pki, "");
    for suite in PRIVATE_TAG_SUITES.into_iter().chain(plain().cipher_suites.first().copied()) {
        let mut base = client_config(&pki, provider());
        base.enable_early_data = true;
        let config = sharing.client_config(&base, &name());
        let mut tls_server = server_config(&pki, only(suite));
        tls_server.max_early_data_size = 1 << 14;
        let tls_server = Arc::new(tls_server);
        drop(Pair::connected(&config, &tls_server));
        inbox.wait(2);

        let mut pair = Pair::new(&config, &tls_server);
        pair.client.early_data().unwrap().write_all(b"early").unwrap();
        let [(_, message)] = &inbox.wait(1)[..] else {
            panic!("one message");
        };
        let session = session_keys(message);
        assert_eq!(session.cipher_suite, u16::from(suite.suite()));
        assert_eq!(session.keys[0].epoch, Epoch::EARLY_DATA);
        assert_eq!(session.keys[0].direction, Direction::ClientToServer);
        let mut flight = Vec::new();
        while pair.client.wants_write() {
            pair.client.write_tls(&mut flight).unwrap();
        }
        let mut records = records(&flight);
        let early = records.pop().unwrap();
        assert_eq!(early[0], 23);
        opens(session, 0, early, b"early");
    }
    assert_eq!(sharing.unsupported(), 0);
    server.stop();
}

/// The records that bytes on the wire consist of.
fn records(mut wire: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while !wire.is_empty() {
        let (record, rest) = wire.split_at(5 + usize::from(u16::from_be_bytes([wire[3], wire[4]])));
        records.push(record);
        wire = rest;
    }
    records
}

/// The suite is not known, so nothing is sent rather than keys of another suite.
#[test]
fn refuses_secrets_of_other_providers() {
    let Some(pki) = pki() else {
        return;
    };
    let (server, inbox, sharing) = start(&pki, "");
    let tls_server = Arc::new(server_config(&pki, provider()));
    let config = sharing.client_config(&client_config(&pki, provider()), &name());
    Pair::connected(&config, &tls_server);
    inbox.wait(2);
    let config = sharing.client_config(&client_config(&pki, plain()), &name());
    let plain_server = Arc::new(server_config(&pki, plain()));
    Pair::connected(&config, &plain_server);
    assert_eq!(sharing.unsupported(), 2);
    std::thread::sleep(Duration::from_millis(100));
    assert!(inbox.0.lock().unwrap().is_empty());
    server.stop();
}

#[test]
fn refuses_to_share_exempt_names() {
    let Some(pki) = pki() else {
        return;
    };
    let (server, inbox, sharing) = start(&pki, "*.test");
    let config = sharing.client_config(&client_config(&pki, provider()), &name());
    let tls_server = Arc::new(server_config(&pki, provider()));
    let mut pair = Pair::connected(&config, &tls_server);
    pair.talk(b"private");
    let messages = inbox.wait(1);
    assert!(matches!(messages[0].1, Message::NullKeys(_)));
    // A session that is shared comes behind it on the same channel, and nothing in between.
    std::thread::sleep(Duration::from_millis(100));
    assert!(inbox.0.lock().unwrap().is_empty());
    server.stop();
}
