//! Client and server of the key channel over loopback.

mod common;
#[path = "channel/relay.rs"]
mod relay;
#[path = "channel/source.rs"]
mod source;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::Pki;
use mmtls_keyshare::client::{Client, ClientConfig, SendError};
use mmtls_keyshare::message::{
    Direction, Epoch, KeyEntry, KeyRequest, Message, NullKeys, Reason, Refused, SessionKeys,
};
use mmtls_keyshare::server::{KeySink, Peer, Server, ServerConfig, ServerCounters};
use mmtls_keyshare::{Flow, SecretBytes};

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    messages: Vec<(Peer, Message)>,
    batches: usize,
    /// Messages until the end of the last batch, and of the largest one.
    batched: usize,
    largest_batch: usize,
    closed: usize,
    keep: bool,
    count: usize,
}

impl KeySink for Inbox {
    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        let mut received = self.0.lock().unwrap();
        received.count += 1;
        if received.keep {
            received.messages.push((peer.clone(), message));
        }
        None
    }

    fn batch_end(&mut self) {
        let mut received = self.0.lock().unwrap();
        received.batches += 1;
        received.largest_batch = received.largest_batch.max(received.count - received.batched);
        received.batched = received.count;
    }

    fn closed(&mut self, _peer: &Peer) {
        self.0.lock().unwrap().closed += 1;
    }
}

impl Inbox {
    fn new() -> Self {
        let inbox = Self::default();
        inbox.0.lock().unwrap().keep = true;
        inbox
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().count
    }

    fn wait(&self, count: usize) {
        until(|| self.count() >= count);
    }
}

fn until(done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "nothing happened in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn null(number: u32) -> Message {
    let mut client_random = [0; 32];
    client_random[..4].copy_from_slice(&number.to_be_bytes());
    Message::NullKeys(NullKeys { client_random, direction: None, flow: None })
}

fn number(message: &Message) -> u32 {
    match message {
        Message::NullKeys(null) => u32::from_be_bytes(null.client_random[..4].try_into().unwrap()),
        _ => panic!("not null keys"),
    }
}

fn keys() -> Message {
    let entry = |direction| KeyEntry {
        direction,
        epoch: Epoch::APPLICATION,
        key: SecretBytes::new(&[1; 32]).unwrap(),
        iv: SecretBytes::new(&[2; 12]).unwrap(),
        mac_key: SecretBytes::empty(),
    };
    Message::SessionKeys(SessionKeys {
        client_random: [7; 32],
        server_random: Some([8; 32]),
        version: 0x0304,
        cipher_suite: 0x1302,
        flow: Flow::new("192.0.2.1:40000".parse().unwrap(), "192.0.2.2:443".parse().unwrap()),
        keys: vec![entry(Direction::ClientToServer), entry(Direction::ServerToClient)],
    })
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn server(pki: &Pki, listen: SocketAddr, inbox: &Inbox) -> Server {
    let config = ServerConfig::new(listen, pki.identity("server"));
    Server::start(config, inbox.clone()).unwrap()
}

fn config(pki: &Pki, to: SocketAddr) -> ClientConfig {
    let mut config = ClientConfig::new(vec![to.to_string().parse().unwrap()], pki.path("ca.pem"));
    config.max_pause = Duration::from_millis(200);
    config
}

fn client(config: ClientConfig) -> Client {
    Client::start(config, Box::new(|_| Vec::new())).unwrap()
}

fn wait_for(server: &Server, done: impl Fn(&ServerCounters) -> bool) {
    until(|| done(&server.counters()));
}

#[test]
fn accepts_certificates_that_are_read_again() {
    let (old, new) = (Pki::new("reload-old"), Pki::new("reload-new"));
    let inbox = Inbox::new();
    let server = server(&old, loopback(), &inbox);
    let (to, identity) = (server.local_addr(), old.identity("server"));
    let first = Client::start(config(&old, to), Box::new(|_| Vec::new())).unwrap();
    assert!(first.wait_connected(PATIENCE));
    let second = Client::start(config(&new, to), Box::new(|_| Vec::new())).unwrap();
    until(|| second.counters().failures > 0);
    assert!(!second.wait_connected(Duration::ZERO), "it trusts another authority");
    // A key of another certificate: what is in force stays.
    let next = new.identity("server");
    std::fs::copy(&next.key_file, &identity.key_file).unwrap();
    assert!(server.handle().reload(&identity, None).is_err());
    std::fs::copy(&next.certificate_file, &identity.certificate_file).unwrap();
    server.handle().reload(&identity, None).unwrap();
    assert!(second.wait_connected(PATIENCE));
    for client in [&first, &second] {
        client.send(&keys()).unwrap();
    }
    // Connections that were there stay.
    inbox.wait(2);
    assert_eq!(first.counters().connects, 1);
}

#[test]
fn accepts_messages_in_order_and_drains() {
    let pki = Pki::new("order");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let client = client(config(&pki, server.local_addr()));
    assert!(client.wait_connected(PATIENCE), "{:?}", client.connection_errors());
    client.send(&keys()).unwrap();
    for n in 0..5000 {
        client.send(&null(n)).unwrap();
    }
    let counters = client.shutdown(PATIENCE);
    assert_eq!((counters.sent, counters.dropped), (5001, 0));
    inbox.wait(5001);
    let received = inbox.0.lock().unwrap();
    assert!(received.batches <= 5001);
    let (peer, first) = &received.messages[0];
    assert_eq!(peer.address.ip(), loopback().ip());
    assert!(!peer.authenticated);
    assert!(matches!(first, Message::SessionKeys(s) if s.keys[1].key.as_bytes() == [1; 32]));
    for (index, (_, message)) in received.messages[1..].iter().enumerate() {
        assert_eq!(number(message) as usize, index);
    }
    drop(received);
    until(|| inbox.0.lock().unwrap().closed == 1);
    assert_eq!(server.counters().open, 0);
}

#[test]
fn accepts_a_server_name_apart_from_the_address() {
    let pki = Pki::new("name");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let mut named = config(&pki, server.local_addr());
    named.middleboxes = vec![format!("localhost@{}", server.local_addr()).parse().unwrap()];
    assert!(client(named.clone()).wait_connected(PATIENCE));
    named.middleboxes = vec![format!("other@{}", server.local_addr()).parse().unwrap()];
    let other = client(named);
    assert!(!other.wait_connected(Duration::from_millis(300)));
    assert!(
        other.connection_errors()[0].1.contains("certificate"),
        "{:?}",
        other.connection_errors()
    );
}

#[test]
fn refuses_a_middlebox_of_another_authority() {
    let pki = Pki::new("wrong-ca");
    let other = Pki::new("wrong-ca-other");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let mut wrong = config(&pki, server.local_addr());
    wrong.ca_file = other.path("ca.pem");
    let client = client(wrong);
    client.send(&null(1)).unwrap();
    assert!(!client.wait_connected(Duration::from_millis(300)));
    let counters = client.shutdown(Duration::from_millis(100));
    assert_eq!((counters.sent, counters.dropped), (0, 1));
    assert_eq!(inbox.count(), 0);
    wait_for(&server, |c| c.failed_handshakes > 0);
}

#[test]
fn refuses_endpoints_without_certificate_where_one_is_due() {
    let pki = Pki::new("client-auth");
    let inbox = Inbox::new();
    let mut strict = ServerConfig::new(loopback(), pki.identity("server"));
    strict.client_ca_file = Some(pki.path("ca.pem"));
    let server = Server::start(strict, inbox.clone()).unwrap();
    let anonymous = client(config(&pki, server.local_addr()));
    anonymous.send(&null(1)).unwrap();
    assert!(!anonymous.wait_connected(Duration::from_millis(300)));
    // Nothing was lost to the refusal: it still waits.
    assert_eq!(anonymous.counters().queued, 1);
    let mut known = config(&pki, server.local_addr());
    known.identity = Some(pki.identity("client"));
    let known = client(known);
    assert!(known.wait_connected(PATIENCE), "{:?}", known.connection_errors());
    known.send(&null(2)).unwrap();
    inbox.wait(1);
    assert!(inbox.0.lock().unwrap().messages[0].0.authenticated);
}

#[test]
fn accepts_reconnects_after_the_server_restarts() {
    let pki = Pki::new("restart");
    let inbox = Inbox::new();
    let first = server(&pki, loopback(), &inbox);
    let address = first.local_addr();
    let client = client(config(&pki, address));
    client.send(&null(0)).unwrap();
    inbox.wait(1);
    first.stop();
    until(|| client.counters().connected == 0);
    for n in 1..100 {
        client.send(&null(n)).unwrap();
    }
    let _second = server(&pki, address, &inbox);
    inbox.wait(100);
    let received = inbox.0.lock().unwrap();
    let numbers: Vec<_> = received.messages.iter().map(|(_, m)| number(m)).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    drop(received);
    assert_eq!(client.counters().connects, 2);
}

/// Long pauses grow in an outage; a key that comes behind it does not wait for one.
#[test]
fn accepts_keys_at_once_behind_an_outage() {
    let pki = Pki::new("outage");
    let inbox = Inbox::new();
    let first = server(&pki, loopback(), &inbox);
    let address = first.local_addr();
    let mut config = config(&pki, address);
    (config.min_pause, config.max_pause) = (PATIENCE * 2, PATIENCE * 2);
    let client = client(config);
    client.send(&null(0)).unwrap();
    inbox.wait(1);
    first.stop();
    until(|| client.counters().connected == 0);
    // One that is tried in vain does not make others wait.
    client.send(&null(1)).unwrap();
    until(|| client.counters().failures >= 2);
    let _second = server(&pki, address, &inbox);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(client.counters().connected, 0, "the long pause");
    let begun = Instant::now();
    client.send(&null(2)).unwrap();
    inbox.wait(3);
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

#[test]
fn accepts_a_chain_and_serves_each_at_its_own_pace() {
    let pki = Pki::new("chain");
    let (a, b) = (Inbox::new(), Inbox::new());
    let first = server(&pki, loopback(), &a);
    // A port where nobody listens yet.
    let late = {
        let probe = std::net::TcpListener::bind(loopback()).unwrap();
        probe.local_addr().unwrap()
    };
    let mut both = config(&pki, first.local_addr());
    both.middleboxes.push(late.to_string().parse().unwrap());
    let client = client(both);
    client.send(&null(1)).unwrap();
    a.wait(1);
    assert_eq!((b.count(), client.connection_errors().len()), (0, 1));
    let _second = server(&pki, late, &b);
    b.wait(1);
}

#[test]
fn refuses_to_grow_beyond_the_queue() {
    let pki = Pki::new("overflow");
    let inbox = Inbox::new();
    let reserved = std::net::TcpListener::bind(loopback()).unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let mut small = config(&pki, address);
    small.queue_messages = 10;
    let client = client(small);
    for n in 0..10 {
        client.send(&null(n)).unwrap();
    }
    for n in 10..25 {
        assert_eq!(client.send(&null(n)), Err(SendError::QueueFull));
    }
    let counters = client.counters();
    assert_eq!((counters.queued, counters.dropped), (10, 15));
    let _server = server(&pki, address, &inbox);
    inbox.wait(10);
    let numbers: Vec<_> = {
        let received = inbox.0.lock().unwrap();
        received.messages.iter().map(|(_, m)| number(m)).collect()
    };
    assert_eq!(numbers, (15..25).collect::<Vec<_>>());
}

fn request(updates: u32) -> Message {
    Message::KeyRequest(KeyRequest {
        client_random: [9; 32],
        server_random: [8; 32],
        version: 0x0304,
        cipher_suite: 0x1301,
        direction: Direction::ServerToClient,
        epoch: Epoch::application(updates).unwrap(),
    })
}

/// Each answer is long: questions must not pile them up.
#[test]
fn accepts_one_question_a_second_for_all_sessions() {
    let pki = Pki::new("live");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let on_request = Box::new(|message| match message {
        Message::LiveKeysRequest => vec![keys(), keys()],
        _ => Vec::new(),
    });
    let client = Client::start(config(&pki, server.local_addr()), on_request).unwrap();
    client.send(&null(1)).unwrap();
    inbox.wait(1);
    let peer = inbox.0.lock().unwrap().messages[0].0.clone();
    for _ in 0..100 {
        server.handle().send_to(peer.connection, &Message::LiveKeysRequest).unwrap();
    }
    inbox.wait(3);
    client.send(&null(2)).unwrap();
    inbox.wait(4);
    assert_eq!(client.counters().requests, 1);
}

#[test]
fn accepts_requests_and_their_answers() {
    let pki = Pki::new("request");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let client = Client::start(
        config(&pki, server.local_addr()),
        Box::new(|message| match message {
            Message::KeyRequest(request) => vec![Message::Refused(Refused {
                client_random: request.client_random,
                reason: Reason::POLICY,
            })],
            _ => Vec::new(),
        }),
    )
    .unwrap();
    client.send(&null(1)).unwrap();
    inbox.wait(1);
    let peer = inbox.0.lock().unwrap().messages[0].0.clone();
    server.handle().send_to(peer.connection, &request(1)).unwrap();
    inbox.wait(2);
    let received = inbox.0.lock().unwrap();
    assert!(
        matches!(&received.messages[1].1, Message::Refused(r) if r.client_random == [9; 32] && r.reason == Reason::POLICY)
    );
    drop(received);
    assert_eq!(client.counters().requests, 1);
    let other = self::client(config(&pki, server.local_addr()));
    other.send(&null(2)).unwrap();
    inbox.wait(3);
    let both = [0, 2].map(|at| inbox.0.lock().unwrap().messages[at].0.connection);
    server.handle().send_to_each(&both, &request(2)).unwrap();
    until(|| [&client, &other].map(|it| it.counters().requests) == [2, 1]);
    drop((client, other));
    until(|| server.counters().open == 0);
    server.handle().send_to(peer.connection, &request(1)).unwrap();
    wait_for(&server, |c| c.undelivered == 1);
}

#[test]
fn accepts_a_burst_of_requests() {
    const COUNT: u32 = 500;
    let pki = Pki::new("burst");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let first = Mutex::new(true);
    let client = Client::start(
        config(&pki, server.local_addr()),
        Box::new(move |message| match message {
            Message::KeyRequest(_) => {
                // So that the others are there when this one is answered.
                if std::mem::take(&mut *first.lock().unwrap()) {
                    std::thread::sleep(Duration::from_millis(300));
                }
                vec![keys()]
            }
            _ => Vec::new(),
        }),
    )
    .unwrap();
    client.send(&null(1)).unwrap();
    inbox.wait(1);
    let peer = inbox.0.lock().unwrap().messages[0].0.clone();
    for number in 0..COUNT {
        server.handle().send_to(peer.connection, &request(number)).unwrap();
    }
    inbox.wait(1 + COUNT as usize);
    let counters = client.counters();
    assert_eq!((counters.requests, counters.connects), (u64::from(COUNT), 1));
    assert_eq!((counters.failures, counters.dropped), (0, 0));
}

/// Speaks TLS with the openssl command and sends `bytes` inside.
fn openssl_sends(server: &Server, alpn: &str, bytes: &[u8]) {
    let mut child = Command::new("openssl")
        .args(["s_client", "-quiet", "-alpn", alpn, "-connect"])
        .arg(server.local_addr().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    child.wait().unwrap();
}

#[test]
fn refuses_garbage() {
    let pki = Pki::new("garbage");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    // Not TLS.
    let mut plain = std::net::TcpStream::connect(server.local_addr()).unwrap();
    plain.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let _ = plain.read_to_end(&mut Vec::new());
    wait_for(&server, |c| c.failed_handshakes == 1);
    // TLS, but another protocol.
    openssl_sends(&server, "h2", b"hello");
    wait_for(&server, |c| c.failed_handshakes == 2);
    // The protocol, but not its messages.
    openssl_sends(&server, "mmtls-keys/1", b"GET / HTTP/1.0\r\n\r\n");
    wait_for(&server, |c| c.malformed == 1);
    // A valid message, but not the hello.
    openssl_sends(&server, "mmtls-keys/1", &[1, 8, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1]);
    wait_for(&server, |c| c.malformed == 2);
    // A hello, then a message that only a middlebox sends.
    openssl_sends(&server, "mmtls-keys/1", &[1, 1, 0, 5, 0, 0, 0, 0, 0, 1, 2, 0, 5, 0, 0, 0, 0, 0]);
    wait_for(&server, |c| c.malformed == 3 && c.open == 0);
    assert_eq!(inbox.count(), 0);
}

#[test]
fn refuses_slow_handshakes() {
    let pki = Pki::new("slow");
    let inbox = Inbox::new();
    let mut tight = ServerConfig::new(loopback(), pki.identity("server"));
    tight.handshake_timeout = Duration::from_millis(200);
    let server = Server::start(tight, inbox.clone()).unwrap();
    let idle = [0; 2].map(|_| std::net::TcpStream::connect(server.local_addr()).unwrap());
    wait_for(&server, |c| c.open == 2);
    wait_for(&server, |c| c.open == 0 && c.failed_handshakes == 2);
    drop(idle);
    assert!(client(config(&pki, server.local_addr())).wait_connected(PATIENCE));
}

#[test]
fn refuses_too_many_connections_and_prefers_those_with_a_hello() {
    let pki = Pki::new("limits");
    let inbox = Inbox::new();
    let mut tight = ServerConfig::new(loopback(), pki.identity("server"));
    tight.max_connections = 2;
    let server = Server::start(tight, inbox.clone()).unwrap();
    let _idle = [0; 2].map(|_| std::net::TcpStream::connect(server.local_addr()).unwrap());
    wait_for(&server, |c| c.open == 2);
    let both = [0; 2].map(|_| client(config(&pki, server.local_addr())));
    assert!(both.iter().all(|client| client.wait_connected(PATIENCE)));
    wait_for(&server, |c| c.open == 2 && c.failed_handshakes == 2 && c.over_limit == 0);
    let mut third = std::net::TcpStream::connect(server.local_addr()).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap_or(0), 0);
    wait_for(&server, |c| c.open == 2 && c.over_limit == 1);
}

#[test]
fn refuses_one_address_the_places_of_others() {
    let pki = Pki::new("share");
    let inbox = Inbox::new();
    // Both families; an address may have 8 of these.
    let mut both = ServerConfig::new("[::]:0".parse().unwrap(), pki.identity("server"));
    both.max_connections = 16;
    both.handshake_timeout = Duration::from_secs(600);
    let server = Server::start(both, inbox.clone()).unwrap();
    let port = server.local_addr().port();
    let greedy: Vec<_> =
        (0..20).map(|_| std::net::TcpStream::connect(("::1", port)).unwrap()).collect();
    wait_for(&server, |c| c.open == 8 && c.failed_handshakes == 12);
    let other = client(config(&pki, SocketAddr::new(loopback().ip(), port)));
    assert!(other.wait_connected(PATIENCE), "{:?}", other.connection_errors());
    drop(greedy);
    wait_for(&server, |c| c.open == 1);
    let again = std::net::TcpStream::connect(("::1", port)).unwrap();
    wait_for(&server, |c| c.open == 2 && c.over_limit == 0);
    drop(again);
}

/// Whoever shares its address with one who opens connections and says nothing.
#[test]
fn accepts_endpoints_whose_network_has_only_begun_connections() {
    let pki = Pki::new("begun");
    let inbox = Inbox::new();
    let mut tight = ServerConfig::new(loopback(), pki.identity("server"));
    // An address may have 8 of these.
    tight.max_connections = 16;
    tight.handshake_timeout = Duration::from_secs(600);
    let server = Server::start(tight, inbox.clone()).unwrap();
    let _silent = [0; 8].map(|_| std::net::TcpStream::connect(server.local_addr()).unwrap());
    wait_for(&server, |c| c.open == 8);
    let mut clients = Vec::new();
    for number in 1..=8 {
        clients.push(client(config(&pki, server.local_addr())));
        assert!(clients.iter().all(|it| it.wait_connected(PATIENCE)));
        wait_for(&server, |c| c.open == 8 && c.failed_handshakes == number && c.over_limit == 0);
    }
    // All have said hello.
    let mut ninth = std::net::TcpStream::connect(server.local_addr()).unwrap();
    assert_eq!(ninth.read(&mut [0]).unwrap_or(0), 0);
    wait_for(&server, |c| c.open == 8 && c.failed_handshakes == 8 && c.over_limit == 1);
    assert!(clients.iter().all(|it| it.wait_connected(Duration::ZERO)));
}

#[test]
fn refuses_the_largest_holder_what_a_newcomer_needs() {
    let pki = Pki::new("site");
    let inbox = Inbox::new();
    let mut tight = ServerConfig::new("[::]:0".parse().unwrap(), pki.identity("server"));
    tight.max_connections = 12;
    let server = Server::start(tight, inbox.clone()).unwrap();
    let port = server.local_addr().port();
    let at = |text: &str| client(config(&pki, SocketAddr::new(text.parse().unwrap(), port)));
    // All of them have said hello.
    let first: Vec<Client> = (0..8).map(|_| at("::1")).collect();
    let second: Vec<Client> = (0..4).map(|_| at("127.0.0.1")).collect();
    assert!(first.iter().chain(&second).all(|client| client.wait_connected(PATIENCE)));
    wait_for(&server, |c| c.open == 12 && c.over_limit == 0);
    let third = at("127.0.0.1");
    assert!(third.wait_connected(PATIENCE), "{:?}", third.connection_errors());
    // The one that had to go tries again, and is not let in.
    wait_for(&server, |c| c.open == 12 && c.over_limit >= 2);
    assert!(second.iter().chain([&third]).all(|client| client.wait_connected(PATIENCE)));
}

/// A sink that has enough of whoever has sent it a few.
#[derive(Clone, Default)]
struct Shy(Arc<Mutex<(usize, bool)>>);

impl KeySink for Shy {
    fn message(&mut self, _: &Peer, _: Message) -> Option<Message> {
        self.0.lock().unwrap().0 += 1;
        None
    }

    fn is_backlogged(&self, _: &Peer) -> bool {
        let (count, open) = *self.0.lock().unwrap();
        !open && count >= 10
    }
}

#[test]
fn refuses_to_read_what_the_sink_has_no_room_for() {
    let pki = Pki::new("shy");
    let shy = Shy::default();
    let config_of = ServerConfig::new(loopback(), pki.identity("server"));
    let server = Server::start(config_of, shy.clone()).unwrap();
    let client = client(config(&pki, server.local_addr()));
    assert!(client.wait_connected(PATIENCE), "{:?}", client.connection_errors());
    for n in 0..20_000 {
        let _ = client.send(&null(n));
        if n % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    until(|| shy.0.lock().unwrap().0 >= 10);
    // Time for more, if there were more. At most what one read gives.
    std::thread::sleep(Duration::from_millis(300));
    let count = shy.0.lock().unwrap().0;
    assert!((10..1000).contains(&count), "{count} messages");
    shy.0.lock().unwrap().1 = true;
    until(|| shy.0.lock().unwrap().0 > 5000);
}

#[test]
fn refuses_to_keep_silent_peers_that_answer_no_ping() {
    let pki = Pki::new("idle");
    let inbox = Inbox::new();
    let mut brief = ServerConfig::new(loopback(), pki.identity("server"));
    brief.idle_timeout = Duration::from_secs(2);
    let server = Server::start(brief, inbox.clone()).unwrap();
    let answers = client(config(&pki, server.local_addr()));
    assert!(answers.wait_connected(PATIENCE));
    // Says hello, and nothing from then on.
    let mut silent = raw_peer(&server, Stdio::null());
    silent.stdin.as_mut().unwrap().write_all(&HELLO).unwrap();
    wait_for(&server, |c| c.open == 2);
    wait_for(&server, |c| c.open == 1);
    silent.wait().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((server.counters().open, answers.counters().connects), (1, 1));
}

/// A hello that offers nothing.
const HELLO: [u8; 9] = [1, 1, 0, 5, 0, 0, 0, 0, 0];

/// A peer whose messages are what is written to it.
fn raw_peer(server: &Server, heard: Stdio) -> std::process::Child {
    let address = server.local_addr().to_string();
    Command::new("openssl")
        .args(["s_client", "-quiet", "-alpn", "mmtls-keys/1", "-connect", &address])
        .stdin(Stdio::piped())
        .stdout(heard)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn accepts_keys_while_another_endpoint_floods() {
    let pki = Pki::new("flood");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let mut flood = raw_peer(&server, Stdio::null());
    let mut input = flood.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        input.write_all(&HELLO).unwrap();
        // Messages of a type that nobody knows.
        let unknown = [1, 200, 0, 0].repeat(4096);
        while input.write_all(&unknown).is_ok() {}
    });
    wait_for(&server, |c| c.skipped > 1_000_000);
    let honest = client(config(&pki, server.local_addr()));
    for n in 0..100 {
        honest.send(&null(n)).unwrap();
        inbox.wait(n as usize + 1);
    }
    flood.kill().unwrap();
    flood.wait().unwrap();
    writer.join().unwrap();
}

/// Each answer is a record of its own.
#[test]
fn accepts_many_pings_and_answers_the_last_of_those_that_come_together() {
    const COUNT: u64 = 100_000;
    let pki = Pki::new("pings");
    let inbox = Inbox::new();
    let server = server(&pki, loopback(), &inbox);
    let mut peer = raw_peer(&server, Stdio::piped());
    let message = |kind, number: u64| [&[1, kind, 0, 8][..], &number.to_be_bytes()].concat();
    let mut said = HELLO.to_vec();
    (1..=COUNT).for_each(|number| said.extend(message(7, number)));
    let mut input = peer.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(&said).map(|()| input));
    let mut heard = Vec::new();
    let mut output = peer.stdout.take().unwrap();
    let last = message(8, COUNT);
    while !heard.ends_with(&last) {
        let mut buffer = [0; 4096];
        let count = output.read(&mut buffer).unwrap();
        assert!(count > 0, "closed: {:?}", server.counters());
        heard.extend_from_slice(&buffer[..count]);
    }
    assert!(heard.len() < last.len() * COUNT as usize / 8, "{} bytes", heard.len());
    assert_eq!((server.counters().open, server.counters().malformed), (1, 0));
    peer.kill().unwrap();
    peer.wait().unwrap();
    drop(writer.join().unwrap());
}

/// However many connections it has, the others wait for one of them at most.
#[test]
fn refuses_a_network_more_of_a_loop_with_more_connections() {
    const CONNECTIONS: usize = 16;
    const MESSAGES: u32 = 6000;
    let pki = Pki::new("loop");
    let inbox = Inbox::default();
    let server = server(&pki, loopback(), &inbox);
    let flood: Vec<Client> =
        (0..CONNECTIONS).map(|_| client(config(&pki, server.local_addr()))).collect();
    assert!(flood.iter().all(|client| client.wait_connected(PATIENCE)));
    // The server waits for the first message's turn, until the sockets are full of others.
    let received = inbox.0.lock().unwrap();
    for client in &flood {
        (0..MESSAGES).for_each(|number| client.send(&null(number)).unwrap());
    }
    std::thread::sleep(Duration::from_millis(500));
    drop(received);
    inbox.wait(CONNECTIONS * MESSAGES as usize);
    until(|| inbox.0.lock().unwrap().largest_batch > 0);
    let largest = inbox.0.lock().unwrap().largest_batch;
    eprintln!("{largest} messages in a loop");
    assert!(largest < 10_000, "{largest} messages in a loop");
}

#[test]
fn accepts_a_hundred_thousand_messages() {
    let pki = Pki::new("speed");
    let inbox = Inbox::default();
    let server = server(&pki, loopback(), &inbox);
    let mut big = config(&pki, server.local_addr());
    big.queue_messages = 200_000;
    let client = client(big);
    assert!(client.wait_connected(PATIENCE));
    let message = keys();
    let count = 100_000;
    let begin = Instant::now();
    for _ in 0..count {
        client.send(&message).unwrap();
    }
    inbox.wait(count);
    let batches = inbox.0.lock().unwrap().batches;
    eprintln!("{count} messages in {:?} and {batches} batches", begin.elapsed());
}
