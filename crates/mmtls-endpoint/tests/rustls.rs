//! rustls with rustls: every suite, both ways, through KeyUpdates, resumption, early data and a
//! lot of data; and rustls as it comes on either side.

use std::io::{Read, Write};
use std::sync::Arc;

use crate::common::{Pair, client_config, only, pki, plain, read, server_config};
use mmtls_endpoint::{PRIVATE_TAG_SUITES, has_private_tag, provider};
use mmtls_testkit::files::pattern_bytes;
use rustls::HandshakeKind;
use rustls::crypto::CryptoProvider;

#[test]
fn accepts_every_suite_whichever_side_chooses() {
    let Some(pki) = pki() else {
        return;
    };
    for suite in PRIVATE_TAG_SUITES {
        for (client, server) in [(only(suite), provider()), (provider(), only(suite))] {
            let client = Arc::new(client_config(&pki, client));
            let server = Arc::new(server_config(&pki, server));
            let mut pair = Pair::connected(&client, &server);
            assert_eq!(pair.suite(), suite);
            assert!(has_private_tag(pair.suite()));
            for len in [1, 100, 100_000] {
                pair.talk(&pattern_bytes(len, len as u64));
            }
        }
    }
}

#[test]
fn accepts_a_private_tag_by_default() {
    let Some(pki) = pki() else {
        return;
    };
    let client = Arc::new(client_config(&pki, provider()));
    let server = Arc::new(server_config(&pki, provider()));
    let pair = Pair::connected(&client, &server);
    assert_eq!(u16::from(pair.suite().suite()), 0xff32);
    assert_eq!(pair.client.handshake_kind(), Some(HandshakeKind::Full));
}

#[test]
fn accepts_key_updates_of_both_sides() {
    let Some(pki) = pki() else {
        return;
    };
    for suite in PRIVATE_TAG_SUITES {
        let client = Arc::new(client_config(&pki, only(suite)));
        let server = Arc::new(server_config(&pki, provider()));
        let mut pair = Pair::connected(&client, &server);
        for round in 0..5 {
            if round % 2 == 0 {
                pair.client.refresh_traffic_keys().unwrap();
            }
            if round % 3 == 0 {
                pair.server.refresh_traffic_keys().unwrap();
            }
            pair.talk(&pattern_bytes(40_000, round));
        }
    }
}

/// A ticket of any suite may be offered with any other. rustls servers resume only the very same
/// suite, which is stricter than the specification; whatever is negotiated works.
#[test]
fn accepts_resumption_and_tickets_of_other_suites() {
    let Some(pki) = pki() else {
        return;
    };
    let ordinary = plain().cipher_suites.into_iter().filter(|suite| suite.tls13().is_some());
    let suites: Vec<_> = PRIVATE_TAG_SUITES.into_iter().chain(ordinary).collect();
    let mut server = server_config(&pki, provider());
    server.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    for &first in &suites {
        for &second in &suites {
            let client = Arc::new(client_config(&pki, provider()));
            let pair = Pair::connected(&client, &with_provider(&server, only(first)));
            assert_eq!(pair.suite(), first);
            let mut pair = Pair::connected(&client, &with_provider(&server, only(second)));
            assert_eq!(pair.suite(), second);
            let resumed = pair.client.handshake_kind() == Some(HandshakeKind::Resumed);
            assert_eq!(resumed, first == second, "{first:?} then {second:?}");
            pair.talk(b"whatever came before");
        }
    }
}

/// The same server with another provider: certificates and ticket keys stay.
fn with_provider(
    config: &rustls::ServerConfig,
    provider: CryptoProvider,
) -> Arc<rustls::ServerConfig> {
    let mut new = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&config.cert_resolver));
    new.ticketer = Arc::clone(&config.ticketer);
    Arc::new(new)
}

#[test]
fn accepts_early_data() {
    let Some(pki) = pki() else {
        return;
    };
    for suite in PRIVATE_TAG_SUITES {
        let mut client = client_config(&pki, only(suite));
        client.enable_early_data = true;
        let mut server = server_config(&pki, provider());
        server.max_early_data_size = 4096;
        let (client, server) = (Arc::new(client), Arc::new(server));
        Pair::connected(&client, &server);
        let mut pair = Pair::new(&client, &server);
        let early = pair.client.early_data();
        early.expect("a ticket that allows early data").write_all(b"early").unwrap();
        pair.exchange().unwrap();
        assert!(pair.client.is_early_data_accepted());
        let mut content = Vec::new();
        pair.server.early_data().unwrap().read_to_end(&mut content).unwrap();
        assert_eq!(content, b"early");
        assert_eq!(pair.suite(), suite);
        pair.talk(b"and late");
    }
}

/// A server that does not know the ticket skips early data, which fails at the private tag.
#[test]
fn accepts_that_a_server_skips_early_data() {
    let Some(pki) = pki() else {
        return;
    };
    for suite in PRIVATE_TAG_SUITES {
        let mut client = client_config(&pki, only(suite));
        client.enable_early_data = true;
        let client = Arc::new(client);
        let servers = [(), ()].map(|()| {
            let mut server = server_config(&pki, provider());
            server.max_early_data_size = 4096;
            Arc::new(server)
        });
        Pair::connected(&client, &servers[0]);
        let mut pair = Pair::new(&client, &servers[1]);
        pair.client.early_data().unwrap().write_all(b"early").unwrap();
        pair.exchange().unwrap();
        assert!(!pair.client.is_early_data_accepted());
        pair.talk(b"and late");
    }
}

/// Peers that do not know the suites: an ordinary one, and no retry.
#[test]
fn accepts_rustls_as_it_comes_on_either_side() {
    let Some(pki) = pki() else {
        return;
    };
    for (client, server) in [(plain(), provider()), (provider(), plain())] {
        let client = Arc::new(client_config(&pki, client));
        let server = Arc::new(server_config(&pki, server));
        let mut pair = Pair::connected(&client, &server);
        assert!(!has_private_tag(pair.suite()));
        // Not FullWithHelloRetryRequest.
        assert_eq!(pair.client.handshake_kind(), Some(HandshakeKind::Full));
        pair.talk(&pattern_bytes(100_000, 1));
        let again = Pair::connected(&client, &server);
        assert_eq!(again.client.handshake_kind(), Some(HandshakeKind::Resumed));
    }
}

/// Moves `megabytes` each way.
fn bulk(megabytes: usize) {
    const CHUNK: usize = 1 << 20;
    let Some(pki) = pki() else {
        return;
    };
    for suite in PRIVATE_TAG_SUITES {
        let client = Arc::new(client_config(&pki, only(suite)));
        let server = Arc::new(server_config(&pki, provider()));
        let mut pair = Pair::connected(&client, &server);
        pair.client.set_buffer_limit(None);
        pair.server.set_buffer_limit(None);
        let content = pattern_bytes(CHUNK, 5);
        for _ in 0..megabytes {
            pair.client.writer().write_all(&content).unwrap();
            pair.server.writer().write_all(&content).unwrap();
            let (mut up, mut down) = (Vec::new(), Vec::new());
            move_all(&mut pair, &mut up, &mut down);
            assert!(up == content && down == content);
        }
    }
}

/// Carries in pieces, since rustls holds back a peer whose data is not read.
fn move_all(pair: &mut Pair, up: &mut Vec<u8>, down: &mut Vec<u8>) {
    while pair.client.wants_write() || pair.server.wants_write() {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while pair.client.wants_write() && to_server.len() < 1 << 18 {
            pair.client.write_tls(&mut to_server).unwrap();
        }
        while pair.server.wants_write() && to_client.len() < 1 << 18 {
            pair.server.write_tls(&mut to_client).unwrap();
        }
        let mut rest = &to_server[..];
        while !rest.is_empty() {
            pair.server.read_tls(&mut rest).unwrap();
            pair.server.process_new_packets().unwrap();
            up.extend(read(&mut pair.server));
        }
        let mut rest = &to_client[..];
        while !rest.is_empty() {
            pair.client.read_tls(&mut rest).unwrap();
            pair.client.process_new_packets().unwrap();
            down.extend(read(&mut pair.client));
        }
    }
}

#[test]
fn accepts_64_mb_in_each_direction() {
    bulk(64);
}

#[test]
#[ignore = "takes half a minute of both cores; 64 MB above is the same code"]
fn accepts_1_gb_in_each_direction() {
    bulk(1024);
}
