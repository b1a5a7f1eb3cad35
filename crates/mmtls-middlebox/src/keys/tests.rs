//! The queues between key server and workers.

use std::time::{Duration, Instant};

use mmtls_keyshare::client::{Client, ClientConfig};
use mmtls_keyshare::message::{Greeting, KeyEntry, NullKeys};
use mmtls_keyshare::server::{Identity, Server, ServerConfig};
use mmtls_testkit::{Pki, require_program};

use mmtls_engine::Network;

use super::*;

const SENDER: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)));

fn null(random: u8) -> Routed {
    let sender = [10, 0, 0, 2].into();
    Routed {
        delivery: KeyDelivery::Null {
            sender,
            source: 1,
            client_random: [random; 32],
            direction: None,
        },
        passed: 0,
    }
}

/// A question about a session between these ends.
fn wanted(ends: [IpAddr; 2], epoch: KeyEpoch, source: u64, offers_ech: bool) -> KeysNeeded {
    KeysNeeded {
        client: SocketAddr::new(ends[0], 40_000),
        server: SocketAddr::new(ends[1], 443),
        client_random: [1; 32],
        server_random: Some([9; 32]),
        version: ProtocolVersion::TLS_1_3,
        cipher_suite: Some(CipherSuite::TLS_AES_128_GCM_SHA256),
        direction: Direction::ClientToServer,
        epoch,
        source,
        offers_ech,
        client_hello: None,
    }
}

/// Who is asked where nobody is known who has keys of it.
fn asked(
    router: &KeyRouter,
    ends: [IpAddr; 2],
    senders: &KeySenders,
    epoch: KeyEpoch,
) -> Vec<ConnectionId> {
    router.connections_to_ask(&wanted(ends, epoch, 0, false), senders, || true)
}

/// An endpoint with this connection.
fn peer(address: IpAddr, number: u64) -> Peer {
    Peer {
        address: SocketAddr::new(address, 50_000),
        connection: ConnectionId::from_number(number),
        capabilities: 0,
        authenticated: false,
        is_key_server: false,
    }
}

#[test]
fn accepts_deliveries_at_whichever_worker_knows_the_session() {
    let (sink, mut receivers, router) = queues(Share { engines: 3, ..Share::ALL }).unwrap();
    for home in 0..3 {
        for owner in 0..3 {
            assert!(sink.queues[home].push(SENDER, null(7)));
            let mut taken = Vec::new();
            for turn in 0..6 {
                let at = turn % 3;
                let mut limit = 10;
                while let Some(it) = receivers[at].take(&mut limit, |_, _| at == owner) {
                    taken.push((at, it.session()));
                }
            }
            let session = Some((Some([10, 0, 0, 2].into()), [7; 32]));
            assert_eq!(taken, [(owner, session)], "from {home}");
        }
    }
    assert_eq!(router.queue_full.load(Ordering::Relaxed), 0);
}

/// Of one session, in the client's direction.
fn client_keys(epochs: impl IntoIterator<Item = Epoch>) -> SessionKeys {
    let entry =
        |epoch| KeyEntry::new(Direction::ClientToServer, epoch, &[7; 16], &[8; 12], &[]).unwrap();
    SessionKeys {
        client_random: [7; 32],
        server_random: None,
        version: ProtocolVersion::TLS_1_3.0,
        cipher_suite: CipherSuite::TLS_AES_128_GCM_SHA256.0,
        flow: None,
        keys: epochs.into_iter().map(entry).collect(),
    }
}

/// Whichever worker gets the session has its keys, once.
#[test]
fn accepts_deliveries_for_sessions_that_nobody_knows_yet_at_every_worker() {
    let (mut sink, mut receivers, router) = queues(Share { engines: 3, ..Share::ALL }).unwrap();
    let keys = || client_keys([Epoch::EARLY_DATA]);
    let sender = SENDER.unwrap();
    for is_null in [false, true] {
        let message = match is_null {
            false => Message::SessionKeys(keys()),
            true => {
                Message::NullKeys(NullKeys { client_random: [7; 32], direction: None, flow: None })
            }
        };
        sink.deliver(sender, 1, message).unwrap();
        let mut taken = Vec::new();
        for turn in 0..12 {
            let mut limit = 10;
            while let Some(it) = receivers[turn % 3].take(&mut limit, |_, _| false) {
                assert_eq!(it.session(), Some((SENDER, [7; 32])));
                match it {
                    KeyDelivery::Keys(keys) => assert!(keys.keys.len() == 1 && !is_null),
                    KeyDelivery::Null { .. } => assert!(is_null),
                    _ => unreachable!(),
                }
                taken.push(turn % 3);
            }
        }
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2], "{is_null}");
    }
    assert_eq!(router.queue_full.load(Ordering::Relaxed), 0);
}

#[test]
fn refuses_to_look_at_more_than_the_limit() {
    let (sink, mut receivers, router) = queues(Share { engines: 2, ..Share::ALL }).unwrap();
    for _ in 0..10 {
        assert!(sink.queues[0].push(SENDER, null(1)));
    }
    let mut limit = 4;
    assert!(receivers[0].take(&mut limit, |_, _| false).is_none());
    assert_eq!(limit, 0);
    // What does not fit is counted, for the operator.
    for _ in 0..QUEUE {
        let _ = sink.queues[1].push(SENDER, null(2));
    }
    let mut limit = 6;
    assert!(receivers[0].take(&mut limit, |_, _| false).is_none());
    assert_eq!(router.queue_full.load(Ordering::Relaxed), 6);
}

/// Each key has an opener: it is they that take memory and time.
#[test]
fn refuses_more_keys_of_a_sender_than_messages_with_one() {
    let (mut sink, mut receivers, _router) = queues(Share::ALL).unwrap();
    let keys = || client_keys((0..16).map(|updates| Epoch::application(updates).unwrap()));
    let mut deliver = || sink.deliver(SENDER.unwrap(), 1, Message::SessionKeys(keys()));
    let taken = (0..QUEUE).take_while(|_| deliver().is_ok()).count();
    assert_eq!(taken, QUEUE / 16 / 2);
    let mut limit = 1024;
    let in_turn = std::iter::from_fn(|| receivers[0].take(&mut limit, |_, _| true)).count();
    assert_eq!(in_turn, 1024 / 16);
}

#[test]
fn refuses_more_of_a_key_log_than_workers_take() {
    let (sink, mut receivers, router) = queues(Share { engines: 2, ..Share::ALL }).unwrap();
    let mut log = sink.lines();
    let mut deliveries = 0;
    while log.has_room() {
        log.lines(Zeroizing::new(vec![b'\n'; 64 << 10]));
        deliveries += 1;
    }
    assert!((60..=64).contains(&deliveries), "{deliveries} deliveries of 64 KB");
    // A turn is not spent on them: packets wait.
    for receiver in &mut receivers {
        let mut left = deliveries;
        while left > 0 {
            let mut limit = 1024;
            let mut turn = 0;
            while receiver.take(&mut limit, |_, _| true).is_some() {
                turn += 1;
            }
            assert!((1..=2).contains(&turn), "{turn} in a turn");
            left -= turn;
        }
    }
    assert!(log.has_room());
    assert_eq!(router.line_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(router.queue_full.load(Ordering::Relaxed), 0);
    // Not even the shortest lines take the place of keys.
    deliveries = 0;
    while log.has_room() {
        log.lines(Zeroizing::new(vec![b'\n']));
        deliveries += 1;
    }
    assert!(deliveries < QUEUE / 2, "{deliveries} deliveries");
    // A worker that is gone keeps nothing.
    drop(receivers);
    assert!(log.has_room());
}

#[test]
fn accepts_two_agents_of_one_address() {
    if !require_program("openssl") {
        return;
    }
    let pki = Pki::shared().unwrap();
    let (sink, _receivers, router) = queues(Share { engines: 1, ..Share::ALL }).unwrap();
    let identity = Identity {
        certificate_file: pki.middlebox.certificate.clone(),
        key_file: pki.middlebox.key.clone(),
    };
    let server =
        Server::start(ServerConfig::new("127.0.0.1:0".parse().unwrap(), identity), sink).unwrap();
    let address = server.local_addr();
    let connect = |capabilities| {
        let middlebox = address.to_string().parse().unwrap();
        let mut config = ClientConfig::new(vec![middlebox], pki.ca.clone());
        config.capabilities = capabilities;
        let client = Client::start(config, Box::new(|_| Vec::new())).unwrap();
        for number in 0..3 {
            let message = NullKeys { client_random: [number; 32], direction: None, flow: None };
            client.send(&Message::NullKeys(message)).unwrap();
        }
        client
    };
    let known = |count| {
        let deadline = Instant::now() + Duration::from_secs(10);
        let later = KeyEpoch::Application(1);
        while asked(&router, [address.ip(); 2], &KeySenders::CLIENT, later).len() != count {
            assert!(Instant::now() < deadline, "not {count}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let (first, second) = (connect(0), connect(Greeting::FIRST_KEYS_ON_REQUEST));
    known(2);
    let elsewhere = [192, 0, 2, 1].into();
    let ask = |client, any, epoch| {
        let senders = if any { KeySenders::ANY } else { KeySenders::CLIENT };
        let server = [192, 0, 2, 3].into();
        asked(&router, [client, server], &senders, epoch).len()
    };
    let later = KeyEpoch::Application(1);
    assert_eq!(ask(address.ip(), false, later), 2);
    assert_eq!(ask(elsewhere, false, later), 0);
    // Behind address translation the key channel has another address than the session.
    assert_eq!(ask(elsewhere, true, later), 2);
    // Only one of them asks to be asked for first keys, and not for the handshake's; who it is nobody has certified.
    let first_keys = KeyEpoch::Application(0);
    assert_eq!([address.ip(), elsewhere].map(|it| ask(it, true, first_keys)), [1, 0]);
    for (any, epoch) in [(false, KeyEpoch::EarlyData), (true, KeyEpoch::Handshake)] {
        assert_eq!(ask(address.ip(), any, epoch), 0);
    }
    // The same of the server's address, and of a network, which needs no certificate.
    let of_servers = KeySenders { client: false, server: true, ..KeySenders::CLIENT };
    let ends = [elsewhere, address.ip()];
    assert_eq!(asked(&router, ends, &of_servers, first_keys).len(), 1);
    assert_eq!(asked(&router, ends, &KeySenders::CLIENT, first_keys).len(), 0);
    let networks = vec![Network { address: [127, 0, 0, 0].into(), prefix_len: 8 }];
    let of_network = KeySenders { networks, ..KeySenders::CLIENT };
    assert_eq!(asked(&router, [elsewhere; 2], &of_network, first_keys).len(), 1);
    drop(second);
    known(1);
    assert_eq!(ask(address.ip(), true, first_keys), 0);
    assert_eq!(router.answering.load(Ordering::Relaxed), 0);
    drop(first);
    known(0);
}

#[test]
fn accepts_agents_that_are_about_to_come_back() {
    let started = Instant::now();
    let [one, other] = [1, 2].map(|it| IpAddr::from([10, 0, 0, it]));
    let mut lost = Lost::new(started);
    assert!(lost.is_expected(Some(one), started + RECONNECTING / 2), "of before a restart");
    let then = started + RECONNECTING * 2;
    assert!(!lost.is_expected(Some(one), then) && !lost.is_expected(None, then));
    lost.note(one, then);
    let soon = then + RECONNECTING / 2;
    assert!(lost.is_expected(Some(one), soon) && lost.is_expected(None, soon));
    assert!(!lost.is_expected(Some(other), soon));
    assert!(!lost.is_expected(Some(one), then + RECONNECTING));
    for number in 0..MAX_LOST as u32 + 10 {
        lost.note(IpAddr::from(number.to_be_bytes()), soon);
    }
    assert_eq!(lost.since.len(), MAX_LOST);
    lost.note(other, then + RECONNECTING * 2);
    assert_eq!(lost.since.len(), 1, "those of long ago make room");
}

#[test]
fn accepts_keys_of_what_is_under_way_for_every_worker() {
    use mmtls_engine::tls::LocateRecord;
    use mmtls_keyshare::message::KeyEntry;
    use mmtls_record::Tls13Sealer;

    let (mut sink, mut receivers, router) = queues(Share { engines: 3, ..Share::ALL }).unwrap();
    let entry =
        |epoch| KeyEntry::new(Direction::ServerToClient, epoch, &[7; 16], &[9; 12], &[]).unwrap();
    let keys = |cipher_suite, epochs: &[Epoch]| SessionKeys {
        client_random: [1; 32],
        server_random: None,
        version: 0x0304,
        cipher_suite,
        flow: None,
        keys: epochs.iter().map(|epoch| entry(*epoch)).collect(),
    };
    let sender = SENDER.unwrap();
    // The handshake is over.
    let epochs = [Epoch::HANDSHAKE, Epoch(4)];
    let refused = sink.deliver(sender, 3, Message::LiveKeys(keys(0x1301, &epochs))).unwrap_err();
    assert_eq!(refused.reason, Reason::POLICY, "nobody has asked");
    let asks = |is_sent| {
        let mut is_due = false;
        router.ask_for_live_keys(ConnectionId::from_number(3), || {
            is_due = true;
            is_sent
        });
        is_due
    };
    assert!(asks(false), "not on its way");
    let refused = sink.deliver(sender, 3, Message::LiveKeys(keys(0x1301, &epochs))).unwrap_err();
    assert_eq!(refused.reason, Reason::POLICY, "it was not asked");
    assert!(asks(true));
    assert!(!asks(true), "not again at once");
    sink.deliver(sender, 3, Message::LiveKeys(keys(0x1301, &epochs))).unwrap();
    let sealer = Tls13Sealer::new(0x1301, &[7; 16], &[9; 12]).unwrap();
    let kind = mmtls_record::ContentType::APPLICATION_DATA;
    let record = sealer.seal(77, kind, b"content", 0).unwrap();
    for receiver in &mut receivers {
        let Some(KeyDelivery::Live(live)) = receiver.take(&mut 10, |_, _| false) else {
            panic!("every worker has them");
        };
        assert_eq!((live.sender, live.keys.len()), (SENDER, 1));
        assert_eq!(live.keys[0].updates, 2);
        let locator: &dyn LocateRecord = &*live.keys[0].locator;
        assert_eq!(locator.locate(record[..5].try_into().unwrap(), &record[5..]), Some(77));
    }
    for useless in [keys(0x1399, &epochs), keys(0x1303, &epochs), keys(0x1301, &epochs[..1])] {
        sink.deliver(sender, 3, Message::LiveKeys(useless)).unwrap();
        assert!(receivers[0].take(&mut 10, |_, _| false).is_none());
    }
}

/// Who connects is asked what it would have been asked before.
#[test]
fn accepts_the_same_questions_for_an_endpoint_that_connects_later() {
    let (mut sink, _receivers, router) = queues(Share::ALL).unwrap();
    let [client, server, third, fourth] = [2, 3, 4, 5].map(|it| IpAddr::from([10, 0, 0, it]));
    let networks = vec![Network { address: third, prefix_len: 32 }];
    let all_senders = [
        KeySenders::CLIENT,
        KeySenders::ANY,
        KeySenders { client: false, server: true, ..KeySenders::CLIENT },
        KeySenders { networks, ..KeySenders::CLIENT },
    ];
    let epochs = [
        KeyEpoch::EarlyData,
        KeyEpoch::Handshake,
        KeyEpoch::Application(0),
        KeyEpoch::Application(1),
    ];
    let offers = Greeting::FIRST_KEYS_ON_REQUEST | Greeting::HANDSHAKE_KEYS_ON_REQUEST;
    let peers: Vec<Peer> = [client, third, fourth]
        .into_iter()
        .flat_map(|address| [(0, false), (offers, false), (offers, true)].map(|it| (address, it)))
        .zip(1..)
        .map(|((address, (capabilities, authenticated)), number)| Peer {
            capabilities,
            authenticated,
            ..peer(address, number)
        })
        .collect();
    peers.iter().for_each(|peer| sink.opened(peer));
    let mut asked = [0; 2];
    for (senders, epoch) in all_senders.iter().flat_map(|it| epochs.map(|epoch| (it, epoch))) {
        for (ends, offers_ech) in [[client, server], [fourth, client], [server, server]]
            .into_iter()
            .flat_map(|ends| [(ends, false), (ends, true)])
        {
            let wanted = wanted(ends, epoch, 0, offers_ech);
            let before = router.connections_to_ask(&wanted, senders, || true);
            for Peer { connection, address, .. } in &peers {
                let later =
                    router.questions_for(address.ip(), *connection, senders, &[&wanted], 1).len();
                let is_asked = before.contains(connection);
                assert_eq!(later, usize::from(is_asked), "{connection:?} {wanted:?} {senders:?}");
                asked[usize::from(is_asked)] += 1;
            }
        }
    }
    assert!(asked.iter().all(|count| *count > 50), "{asked:?}");
    peers.iter().for_each(|peer| sink.closed(peer));
    assert_eq!(router.answering.load(Ordering::Relaxed), 0);
}

/// Many programs of a host, each with its own connection: the one that knows the session is asked.
#[test]
fn accepts_whoever_shared_a_sessions_keys_and_refuses_to_ask_many_beside_it() {
    let (mut sink, _receivers, router) = queues(Share::ALL).unwrap();
    let [client, server, third] = [2, 3, 4].map(|it| IpAddr::from([10, 0, 0, it]));
    (1..=300).for_each(|number| sink.opened(&peer(client, number)));
    sink.opened(&peer(third, 301));
    let later = KeyEpoch::Application(1);
    let ask = |source, senders: &KeySenders, may_ask_many| {
        let wanted = wanted([client, server], later, source, false);
        router.connections_to_ask(&wanted, senders, || may_ask_many)
    };
    for source in [3, 290] {
        let asked = ask(source, &KeySenders::CLIENT, true);
        assert_eq!((asked[0].number(), asked.len()), (source, 17));
        assert_eq!(asked.iter().filter(|it| it.number() == source).count(), 1);
    }
    // Its connection has ended, and it may have another one, the latest.
    sink.closed(&peer(client, 290));
    sink.opened(&peer(client, 299_999));
    for may_ask_many in [true, false] {
        let asked = ask(290, &KeySenders::CLIENT, may_ask_many);
        let numbers: std::collections::HashSet<_> = asked.iter().map(|it| it.number()).collect();
        assert!(numbers.len() == asked.len() && numbers.is_superset(&[1, 299_999].into()));
    }
    let count = |source, may_ask_many| ask(source, &KeySenders::CLIENT, may_ask_many).len();
    assert_eq!([true, false].map(|many| count(290, many)), [256, 16]);
    // Who is not trusted any more is not asked, whatever it has shared.
    assert_eq!(count(301, true), 256);
    let networks = vec![Network { address: third, prefix_len: 32 }];
    let asked = ask(301, &KeySenders { networks, ..KeySenders::CLIENT }, true);
    assert_eq!((asked[0].number(), asked.len()), (301, 17));
}

#[test]
fn finds_connections_by_their_number() {
    let (mut sink, _receivers, router) = queues(Share::ALL).unwrap();
    let address = |number: u32| IpAddr::from((0x0a00_0000 + number).to_be_bytes());
    (1..=100).for_each(|number| sink.opened(&peer(address(number), number.into())));
    let elsewhere = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
    let wanted = wanted(elsewhere, KeyEpoch::Application(0), 0, true);
    for number in 1..=100 {
        let asked = router.connections_to_ask(&wanted, &KeySenders::CLIENT, || true);
        assert!(asked.is_empty());
        assert!(router.connections_at(elsewhere, &KeySenders::CLIENT).is_empty());
        let connection = ConnectionId::from_number(number);
        assert_eq!(router.connection(number, None), Some(connection));
        assert_eq!(router.connection(number, Some(elsewhere[0])), None);
        assert_eq!(router.connection(number + 100, None), None);
    }
}
