//! A client whose host gets another address, as it does from day to day (RFC 8981), in a network namespace of its own.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mmtls_keyshare::client::ClientConfig;
use mmtls_keyshare::message::{Greeting, Message, NullKeys, Reason, Refused};
use mmtls_keyshare::server::{KeySink, Peer, Server, ServerConfig};

use crate::common::Pki;
use crate::{PATIENCE, client, config, null, number, until};

const APART: &str = "TEST_APART";

/// Whether this process is in a namespace of its own. Where it is not, the test was run in one, or cannot be.
fn is_apart(test: &str) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let apart = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--net", program]).env(APART, "1");
        command
    };
    if !apart("true").output().is_ok_and(|it| it.status.success()) {
        let required = std::env::var_os("MMTLS_REQUIRE_TESTBED").is_some_and(|it| it == "1");
        assert!(!required, "no network namespace can be made here");
        eprintln!("SKIP: no network namespace can be made here");
        return false;
    }
    let own = std::env::current_exe().unwrap();
    let mut command = apart(own.to_str().unwrap());
    let outcome = command.args(["--exact", test, "--nocapture"]).output().unwrap();
    let printed = String::from_utf8_lossy(&outcome.stdout);
    assert!(outcome.status.success() && printed.contains("1 passed"), "{outcome:?}");
    false
}

fn ip(arguments: &str) {
    let outcome = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
}

/// Takes keys of one address, as a middlebox that sees sessions of that one.
#[derive(Clone)]
struct Strict {
    present: Arc<Mutex<IpAddr>>,
    heard: Arc<Mutex<Vec<(IpAddr, u32)>>>,
}

impl KeySink for Strict {
    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message> {
        let from = peer.address.ip();
        self.heard.lock().unwrap().push((from, number(&message)));
        let Message::NullKeys(NullKeys { client_random, .. }) = message else {
            panic!("not null keys");
        };
        let refused = Refused { client_random, reason: Reason::ADDRESS };
        (from != *self.present.lock().unwrap()).then_some(Message::Refused(refused))
    }
}

fn strict_server(pki: &Pki, sink: &Strict) -> Server {
    let config = ServerConfig::new("0.0.0.0:0".parse().unwrap(), pki.identity("server"));
    Server::start(config, sink.clone()).unwrap()
}

/// A connection that ends in vain is not tried again while the test lasts.
fn config_to(pki: &Pki, port: u16) -> ClientConfig {
    let mut config = config(pki, (address(9), port).into());
    config.middleboxes = vec![format!("127.0.0.1@127.0.0.9:{port}").parse().unwrap()];
    (config.min_pause, config.max_pause) = (PATIENCE * 2, PATIENCE * 2);
    config
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, last])
}

/// From now on new connections come from another address.
fn come_from(last: u8) {
    ip("link set lo up");
    let from = address(last);
    ip(&format!("route replace local {} dev lo table local src {from}", address(9)));
}

#[test]
fn accepts_that_its_host_has_another_address() {
    if !is_apart("source::accepts_that_its_host_has_another_address") {
        return;
    }
    come_from(2);
    let pki = Pki::new("source");
    let sink = Strict { present: Arc::new(Mutex::new(address(7))), heard: Arc::default() };
    let server = strict_server(&pki, &sink);
    let client = client(config_to(&pki, server.local_addr().port()));
    assert!(client.wait_connected(PATIENCE), "{:?}", client.connection_errors());
    let mut sent = 0;
    let mut send_for = |time: Duration, is_enough: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while begun.elapsed() < time && !is_enough() {
            client.send(&null(sent)).unwrap();
            sent += 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        sent
    };
    // Behind address translation: it would come from the same one, and stays.
    send_for(Duration::from_millis(2500), &|| false);
    let counters = client.counters();
    assert!(counters.refusals > 100, "{counters:?}");
    assert_eq!((counters.connects, counters.failures), (1, 0), "{counters:?}");
    *sink.present.lock().unwrap() = address(3);
    come_from(3);
    send_for(PATIENCE, &|| client.counters().connects == 2);
    send_for(PATIENCE, &|| sink.heard.lock().unwrap().last().unwrap().0 == address(3));
    // Another one at once: that would be twice a minute.
    *sink.present.lock().unwrap() = address(4);
    come_from(4);
    let sent = send_for(Duration::from_millis(2500), &|| false);
    until(|| sink.heard.lock().unwrap().len() == sent as usize);
    let counters = client.shutdown(PATIENCE);
    assert_eq!((counters.connects, counters.failures, counters.dropped), (2, 0, 0), "{counters:?}");
    // Nothing was lost in between, and nothing came twice.
    let heard = sink.heard.lock().unwrap();
    assert!(heard.iter().map(|it| it.1).eq(0..sent), "{heard:?}");
    drop(server);
}

/// A way that never says that a connection has ended.
fn relay(from: TcpListener, to: u16) {
    let pass = |mut from: TcpStream, mut to: TcpStream| {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer)
            && to.write_all(&buffer[..count]).is_ok()
        {}
        std::thread::sleep(PATIENCE * 2);
    };
    for client in from.incoming() {
        let client = client.unwrap();
        let server = TcpStream::connect((address(1), to)).unwrap();
        let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || pass(client, server));
        std::thread::spawn(move || pass(ends.1, ends.0));
    }
}

#[test]
fn accepts_that_nobody_ends_the_connection_that_it_leaves() {
    if !is_apart("source::accepts_that_nobody_ends_the_connection_that_it_leaves") {
        return;
    }
    come_from(2);
    let pki = Pki::new("source-end");
    let sink = Strict { present: Arc::new(Mutex::new(address(7))), heard: Arc::default() };
    let server = strict_server(&pki, &sink);
    let listener = TcpListener::bind((address(9), 0)).unwrap();
    let client = client(config_to(&pki, listener.local_addr().unwrap().port()));
    let to = server.local_addr().port();
    std::thread::spawn(move || relay(listener, to));
    assert!(client.wait_connected(PATIENCE), "{:?}", client.connection_errors());
    come_from(3);
    client.send(&null(1)).unwrap();
    let begun = Instant::now();
    until(|| client.counters().connects == 2);
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

#[test]
fn accepts_that_nobody_asks_its_old_address() {
    if !is_apart("source::accepts_that_nobody_asks_its_old_address") {
        return;
    }
    come_from(2);
    let pki = Pki::new("source-asked");
    let sink = Strict { present: Arc::new(Mutex::new(address(3))), heard: Arc::default() };
    let server = strict_server(&pki, &sink);
    let mut config = config_to(&pki, server.local_addr().port());
    config.look_pause = Duration::from_millis(50);
    let others = client(config.clone());
    config.capabilities = Greeting::FIRST_KEYS_ON_REQUEST;
    let asked = client(config);
    for client in [&others, &asked] {
        assert!(client.wait_connected(PATIENCE), "{:?}", client.connection_errors());
    }
    come_from(3);
    until(|| asked.counters().connects == 2);
    assert!(asked.wait_connected(PATIENCE), "{:?}", asked.connection_errors());
    asked.send(&null(1)).unwrap();
    until(|| *sink.heard.lock().unwrap() == [(address(3), 1)]);
    // Who sends keys by itself is told.
    assert_eq!(others.counters().connects, 1);
    drop(server);
}
