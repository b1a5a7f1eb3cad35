//! What is told of the first hellos, and how long.

use crate::harness::attack::*;
use crate::harness::{Event, RANDOM, SUITE, keys};
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

fn config() -> Config {
    Config { tell_hellos: true, ..T::config() }
}

#[test]
fn tells_hellos_until_the_handshake_has_ended_and_only_where_that_is_asked_for() {
    let mut t = T::with(config());
    established(&mut t);
    let told = &t.engine.handler().told;
    let (offer, choice) = (&told[0].1.offer, told.last().unwrap().1.choice.as_ref().unwrap());
    assert_eq!(offer.cipher_suites, [0x1301, 0x1302, 0x1303]);
    assert_eq!(offer.extensions, [0, 43, 0xfff0]);
    assert_eq!((offer.legacy_version, offer.names_server), (0x0303, true));
    assert_eq!((choice.cipher_suite, &choice.extensions[..]), (CipherSuite(SUITE), &[43][..]));
    let answer = told.iter().position(|(event, _)| *event == Event::ServerHello).unwrap();
    for (at, (event, hellos)) in told.iter().enumerate() {
        assert_eq!(hellos.choice.is_some(), at >= answer, "{event:?}");
    }
    let events: Vec<_> = told.iter().map(|(event, _)| event).collect();
    assert_eq!(events.first(), Some(&&Event::HandshakeStart));
    assert_eq!(events.last(), Some(&&Event::HandshakeEnd));

    let mut t = T::new();
    established(&mut t);
    assert_eq!(t.engine.handler().told, []);
}

/// The second ClientHello and the second answer are what anybody would say after the first ones.
#[test]
fn tells_the_hellos_before_a_retry() {
    let mut t = T::with(config());
    t.open();
    let retry = ScriptBuilder::new(RANDOM, SUITE, true, &[1000], keys).build();
    t.play(&retry);
    let told = &t.engine.handler().told;
    let of = |event| {
        let mut found = told.iter().filter(|(it, _)| *it == event);
        (found.next(), found.next())
    };
    let (Some((_, first)), None) = of(Event::ServerHello) else { panic!("{told:?}") };
    let (Some((_, last)), None) = of(Event::HandshakeEnd) else { panic!("{told:?}") };
    assert_eq!(first, last);
    assert_eq!(first.choice.as_ref().unwrap().extensions, [43]);
}

#[test]
fn tells_the_answer_before_it_is_found_not_to_be_followed() {
    for (policy, alive) in [(Policy::Reset, false), (Policy::Bypass, true)] {
        let mut config = config();
        config.policies.unsupported = policy;
        config.supports = |_, _| false;
        let mut t = T::with(config);
        t.open();
        let hello = hello();
        t.send(C, 0, 0, flag::ACK, &hello);
        let record = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], SUITE));
        t.send(S, 0, hello.len() as u64, flag::ACK, &record);
        let events = &t.engine.handler().events;
        let error = Event::Error(S, SessionError::UnsupportedCipherSuite);
        let expected =
            [Event::SessionStart, Event::HandshakeStart, Event::ServerHello, error.clone()];
        assert_eq!(events[..4], expected, "{policy:?}");
        let told = &t.engine.handler().told;
        let (_, hellos) = told.iter().find(|(event, _)| *event == error).unwrap();
        assert!(hellos.choice.is_some());
        assert_eq!(t.alive(), alive);
    }
}
