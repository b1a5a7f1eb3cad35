//! A key server, which speaks for the endpoints that have connected to it.

use mmtls_keyshare::message::{EndpointOpened, Greeting, Relayed, Steering};
use mmtls_keyshare::sealed::{Deliveries, Delivery, Opener, Sealer, Secret};
use mmtls_keyshare::server::{ConnectionId, ServerName};

use super::*;

/// What the middlebox's server has told.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Tale>>);

#[derive(Default)]
struct Tale {
    opened: Vec<Peer>,
    closed: Vec<Peer>,
    messages: Vec<(Peer, Message)>,
    secrets: Vec<Secret>,
    key_servers_gone: usize,
}

impl KeySink for Told {
    fn opened(&mut self, peer: &Peer) {
        self.0.lock().unwrap().opened.push(peer.clone());
    }

    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        let client_random = match &message {
            Message::NullKeys(null) => null.client_random,
            _ => [0; 32],
        };
        self.0.lock().unwrap().messages.push((peer.clone(), message));
        Some(Message::Refused(Refused { client_random, reason: Reason::POLICY }))
    }

    fn closed(&mut self, peer: &Peer) {
        self.0.lock().unwrap().closed.push(peer.clone());
    }

    fn key_server_opened(&mut self, _: &Peer, secret: Secret) -> Option<Message> {
        self.0.lock().unwrap().secrets.push(secret);
        Some(Message::Steering(Steering { workers: 3, seed: 9 }))
    }

    fn key_server_closed(&mut self, _: &Peer) {
        self.0.lock().unwrap().key_servers_gone += 1;
    }
}

fn opened(endpoint: u32, capabilities: u32) -> EndpointOpened {
    let address = SocketAddr::from(([10, 0, 0, endpoint as u8], 4000));
    EndpointOpened { endpoint, address, capabilities, authenticated: true }
}

fn relayed(endpoint: u32, message: Message) -> Message {
    Message::Relayed(Relayed { endpoint, message: Box::new(message) })
}

fn middlebox(pki: &Pki, key_servers: &[&'static str]) -> (Server, Told) {
    let told = Told::default();
    let mut config = ServerConfig::new(loopback(), pki.identity("server"));
    config.client_ca_file = Some(pki.path("ca.pem"));
    let name = |name: &&'static str| ServerName::try_from(*name).unwrap();
    config.key_servers = key_servers.iter().map(name).collect();
    (Server::start(config, told.clone()).unwrap(), told)
}

type Shared<T> = Arc<Mutex<Vec<T>>>;

/// Connects as a key server; what it is told, and the secrets that it has exported.
fn key_server(
    pki: &Pki,
    to: SocketAddr,
    first: Vec<u32>,
) -> (Client, Shared<Message>, Shared<Option<Secret>>) {
    let mut config = config(pki, to);
    config.identity = Some(pki.identity("client"));
    let (said, secrets) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
    let (heard, exported) = (Arc::clone(&said), Arc::clone(&secrets));
    let on_request = Box::new(move |message| {
        heard.lock().unwrap().push(message);
        Vec::new()
    });
    let on_welcome = Arc::new(move |secret| {
        exported.lock().unwrap().push(secret);
        let first = first.iter().map(|it| Message::EndpointOpened(opened(*it, 0)));
        first.collect::<Vec<_>>()
    });
    (Client::start_key_server(config, on_request, on_welcome).unwrap(), said, secrets)
}

#[test]
fn accepts_a_key_server_that_speaks_for_endpoints() {
    let pki = Pki::new("key-server");
    let (server, told) = middlebox(&pki, &["other.test", "client.test"]);
    let (client, said, secrets) = key_server(&pki, server.local_addr(), vec![1, 2]);
    assert!(client.wait_connected(PATIENCE), "{:?}", client.connection_errors());
    client.send(&Message::EndpointOpened(opened(3, Greeting::FIRST_KEYS_ON_REQUEST))).unwrap();
    client.send(&relayed(2, null(7))).unwrap();
    // Not told of: passed over.
    client.send(&relayed(9, null(8))).unwrap();
    client.send(&Message::EndpointClosed(1)).unwrap();
    until(|| told.0.lock().unwrap().closed.len() == 1);
    let tale = told.0.lock().unwrap();
    let ports: Vec<_> = tale.opened.iter().map(|it| it.address.ip().to_string()).collect();
    assert_eq!(ports, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(tale.opened[2].capabilities, Greeting::FIRST_KEYS_ON_REQUEST);
    assert!(tale.opened.iter().all(|it| it.authenticated && !it.is_key_server));
    let (from, message) = &tale.messages[0];
    assert_eq!((from.connection, number(message)), (tale.opened[1].connection, 7));
    assert_eq!(tale.messages.len(), 1);
    assert_eq!(tale.closed[0].connection, tale.opened[0].connection);
    let [_, second, third] = [0, 1, 2].map(|it| tale.opened[it].connection);
    drop(tale);
    assert_eq!(server.counters().skipped, 1);

    // The answer to its message, and two that come later; one of them for an endpoint that is gone.
    let gone = ConnectionId::from_number(second.number() + 40);
    server.handle().send_to_each(&[third, gone], &Message::LiveKeysRequest).unwrap();
    until(|| server.counters().undelivered == 1 && said.lock().unwrap().len() == 3);
    let said = said.lock().unwrap();
    let of = |at: usize| match &said[at] {
        Message::Relayed(relayed) => (relayed.endpoint, relayed.message.kind()),
        other => panic!("message of type {}", other.kind()),
    };
    assert!(matches!(said[0], Message::Steering(Steering { workers: 3, seed: 9 })));
    assert_eq!([of(1), of(2)], [(2, 6), (3, 9)]);

    // Both have exported the same.
    let (exported, seen) = (secrets.lock().unwrap(), told.0.lock().unwrap());
    let mut sealer = Sealer::new(exported[0].clone().unwrap()).unwrap();
    let mut opener = Opener::new(seen.secrets[0].clone()).unwrap();
    drop((exported, seen));
    let mut datagram = Vec::new();
    let address = opened(2, 0).address;
    let mut deliveries = Deliveries::default();
    let delivery = Delivery { endpoint: 2, address, message: keys() };
    assert!(deliveries.add(&delivery, usize::MAX) && sealer.seal(&deliveries, &mut datagram));
    let mut seen = Vec::new();
    opener.open(&mut datagram, |it| seen.push((it.endpoint, it.address))).unwrap();
    assert_eq!(seen, [(2, address)]);

    let _ = client.shutdown(PATIENCE);
    until(|| told.0.lock().unwrap().key_servers_gone == 1);
    assert_eq!(told.0.lock().unwrap().closed.len(), 3, "its endpoints are gone with it");
    assert!(matches!(secrets.lock().unwrap()[..], [Some(_), None]));
}

#[test]
fn refuses_key_servers_that_nobody_has_named() {
    let pki = Pki::new("no-key-server");
    for names in [&[][..], &["other.test"]] {
        let (server, told) = middlebox(&pki, names);
        let (client, ..) = key_server(&pki, server.local_addr(), vec![1]);
        until(|| client.counters().failures > 0);
        assert_eq!(server.counters().malformed, 1);
        assert!(told.0.lock().unwrap().opened.is_empty());
    }
    // An ordinary endpoint, certificate or not, cannot speak for others.
    let (server, told) = middlebox(&pki, &["client.test"]);
    for message in
        [Message::EndpointOpened(opened(1, 0)), Message::EndpointClosed(1), relayed(1, null(1))]
    {
        let mut config = config(&pki, server.local_addr());
        config.identity = Some(pki.identity("client"));
        let before = server.counters().malformed;
        let endpoint = client(config);
        endpoint.send(&message).unwrap();
        wait_for(&server, |it| it.malformed > before);
    }
    assert!(told.0.lock().unwrap().messages.is_empty());
}
