//! Whose keys count for a session, and whose refusal: its client's, its server's, a network's, anybody's.

use std::net::IpAddr;

use crate::harness::attack::*;
use crate::harness::{Event, RANDOM, SUITE, keys};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::{
    NullKeys, NullKeys12, ScriptBuilder, Seal, plain, server_hello, side,
};

const STRANGER: [u8; 4] = [10, 0, 0, 66];

fn engine(senders: KeySenders) -> T {
    T::with(Config { key_senders: senders, ..T::config() })
}

fn share(t: &mut T, direction: Direction, sender: IpAddr) -> Result<bool, KeyRefusal> {
    let opener = Box::new(keys(direction, KeyEpoch::Application(0)));
    t.keys_with(direction, 0, opener, RANDOM, Some(sender))
}

fn refuse(t: &mut T, direction: Option<Direction>, sender: IpAddr) -> Result<bool, KeyRefusal> {
    t.engine.handle_null_keys(t.now, Some(sender), RANDOM, direction)
}

/// Plays the script but for the last records of both sides; stream offsets.
fn play_handshake(t: &mut T) -> [u64; 2] {
    let script = simple();
    let mut at = [0; 2];
    let turns = script.turns.len() - 2;
    for turn in &script.turns[..turns] {
        let own = side(turn.direction);
        t.send(turn.direction, at[own] as i64, at[1 - own], flag::ACK, &turn.bytes);
        at[own] += turn.bytes.len() as u64;
    }
    at
}

fn servers_too() -> KeySenders {
    KeySenders { server: true, ..KeySenders::CLIENT }
}

#[test]
fn accepts_keys_of_those_who_are_configured_ahead_and_in_time() {
    let network = |prefix_len| KeySenders {
        client: false,
        networks: vec![Network { address: [10, 0, 0, 64].into(), prefix_len }],
        ..KeySenders::CLIENT
    };
    // Of the client, its server, a stranger.
    for (senders, accepted) in [
        (KeySenders::CLIENT, [true, false, false]),
        (servers_too(), [true, true, false]),
        (KeySenders { client: false, ..servers_too() }, [false, true, false]),
        (network(28), [false, false, true]),
        (network(24), [true, true, true]),
        (network(32), [false, false, false]),
        (KeySenders::ANY, [true, true, true]),
    ] {
        for ahead in [true, false] {
            let addresses = |t: &T| [t.ep.client.ip(), t.ep.server.ip(), STRANGER.into()];
            for (number, accepted) in accepted.into_iter().enumerate() {
                let mut t = engine(senders.clone());
                t.open();
                let sender = addresses(&t)[number];
                let what = format!("{senders:?} {number} {ahead}");
                if ahead {
                    assert_eq!(share(&mut t, C, sender), Ok(false), "{what}");
                    assert_eq!(share(&mut t, S, sender), Ok(false), "{what}");
                    t.play(&simple());
                } else {
                    play_handshake(&mut t);
                    let expected = if accepted { Ok(true) } else { Err(KeyRefusal::WrongSender) };
                    assert_eq!(share(&mut t, C, sender), expected, "{what}");
                    assert_eq!(t.engine.has_session(Some(sender), &RANDOM), accepted, "{what}");
                    continue;
                }
                assert_eq!(t.judged(), if accepted { 2 } else { 0 }, "{what}");
            }
        }
    }
}

#[test]
fn accepts_the_refusal_of_a_client_whatever_its_server_shares_and_whenever() {
    for read_before in [false, true] {
        for refusal_first in [false, true] {
            let mut t = engine(servers_too());
            let (client, server) = (t.ep.client.ip(), t.ep.server.ip());
            t.open();
            let script = simple();
            if refusal_first {
                let _ = refuse(&mut t, None, client);
            }
            let _ = share(&mut t, C, server);
            let _ = share(&mut t, S, server);
            let mut at = play_handshake(&mut t);
            let last = &script.turns[script.turns.len() - 2..];
            for (number, turn) in last.iter().enumerate() {
                let refuses_now = number == usize::from(read_before);
                if !refusal_first && refuses_now {
                    assert_eq!(refuse(&mut t, None, client), Ok(true));
                }
                let own = side(turn.direction);
                let verdict =
                    t.send(turn.direction, at[own] as i64, at[1 - own], flag::ACK, &turn.bytes);
                at[own] += turn.bytes.len() as u64;
                assert_eq!(verdict, Verdict::Forward);
            }
            let read = usize::from(read_before && !refusal_first);
            assert_eq!(t.judged(), read, "{read_before} {refusal_first}");
            assert_eq!(t.engine.counters().null_keys, 1);
        }
    }
}

#[test]
fn accepts_the_refusal_of_a_direction_by_the_client() {
    let mut t = engine(servers_too());
    let (client, server) = (t.ep.client.ip(), t.ep.server.ip());
    t.open();
    for direction in [C, S] {
        let _ = share(&mut t, direction, server);
    }
    t.play(&simple());
    assert_eq!(t.judged(), 2);
    assert_eq!(refuse(&mut t, Some(S), client), Ok(true));
    let mut at = simple().turns.iter().fold([0u64; 2], |mut at, turn| {
        at[side(turn.direction)] += turn.bytes.len() as u64;
        at
    });
    for direction in [S, C] {
        let own = side(direction);
        let record = sealed(direction, 1);
        let verdict = t.send(direction, at[own] as i64, at[1 - own], flag::ACK, &record);
        at[own] += record.len() as u64;
        assert_eq!(verdict, Verdict::Forward);
    }
    assert_eq!(t.engine.handler().judged, [2, 1]);
}

#[test]
fn refuses_the_refusal_of_a_server_whose_client_shares() {
    let mut t = engine(servers_too());
    let (client, server) = (t.ep.client.ip(), t.ep.server.ip());
    t.open();
    for direction in [C, S] {
        let _ = share(&mut t, direction, client);
    }
    t.play(&simple());
    assert!(refuse(&mut t, None, server).is_err());
    assert!(refuse(&mut t, None, client).is_err(), "nor one that comes behind its own keys");
    assert!(!t.engine.handler().events.iter().any(|it| matches!(it, Event::SessionEnd(_))));
    assert_eq!(t.engine.counters().null_keys, 0);
}

/// Another endpoint at the client's address may have guessed (EchKeyRequest).
#[test]
fn accepts_the_refusal_of_a_client_behind_keys_that_have_opened_nothing() {
    let mut t = engine(servers_too());
    let (client, server) = (t.ep.client.ip(), t.ep.server.ip());
    t.open();
    let mut at = play_handshake(&mut t);
    for direction in [C, S] {
        let _ = share(&mut t, direction, client);
    }
    assert!(refuse(&mut t, None, server).is_err(), "the client shares");
    assert_eq!(refuse(&mut t, None, client), Ok(true));
    let script = simple();
    for turn in &script.turns[script.turns.len() - 2..] {
        let own = side(turn.direction);
        let verdict = t.send(turn.direction, at[own] as i64, at[1 - own], flag::ACK, &turn.bytes);
        at[own] += turn.bytes.len() as u64;
        assert_eq!(verdict, Verdict::Forward);
    }
    assert_eq!((t.judged(), t.engine.counters().null_keys), (0, 1));
}

/// OpenSSL's servers tell of the client's keys when they have its Finished.
#[test]
fn accepts_the_flight_of_a_client_before_its_server_can_share() {
    for (senders, passes) in [(KeySenders::CLIENT, false), (servers_too(), true)] {
        let mut t = engine(senders);
        let server = t.ep.server.ip();
        t.open();
        let mut at = [0u64; 2];
        let mut send = |t: &mut T, direction: Direction, bytes: &[u8]| {
            let own = side(direction);
            let verdict = t.send(direction, at[own] as i64, at[1 - own], flag::ACK, bytes);
            at[own] += bytes.len() as u64;
            verdict
        };
        send(&mut t, C, &hello());
        let answer = server_hello(&[0x5a; 32], crate::harness::SUITE);
        send(&mut t, S, &plain(ContentType::HANDSHAKE, &answer));
        let handshake = keys(C, KeyEpoch::Handshake);
        // However it is padded.
        let finished = handshake.seal(0, ContentType::HANDSHAKE, &[20; 36], 77);
        assert_eq!(send(&mut t, C, &finished) == Verdict::Forward, passes);
        if !passes {
            continue;
        }
        // What comes behind it waits, whatever it looks like.
        for bytes in [&handshake.seal(1, ContentType::HANDSHAKE, &[20; 36], 0)[..], &sealed(C, 0)] {
            assert!(matches!(send(&mut t, C, bytes), Verdict::Hold(_)));
        }
        assert_eq!(share(&mut t, C, server), Ok(true));
        assert_eq!(t.judged(), 1);
    }
}

/// Whoever has shared the keys that are in use knows the session, whatever others deliver.
#[test]
fn asks_for_later_keys_with_the_connection_that_those_in_use_came_over() {
    let mut builder = builder();
    for direction in [C, S] {
        builder.record(direction, ContentType::APPLICATION_DATA, &[7; 500], 0);
    }
    for _ in 0..4 {
        builder.key_update(C);
        builder.record(C, ContentType::APPLICATION_DATA, &[8; 500], 0);
    }
    let mut t = engine(KeySenders::CLIENT);
    t.open();
    let client = Some(t.ep.client.ip());
    for (source, is_junk) in [(5, true), (7, false), (9, true)] {
        t.source = source;
        for direction in [C, S] {
            let right = keys(direction, KeyEpoch::Application(0));
            let opener = if is_junk { NullKeys(4711) } else { right };
            t.keys_with(direction, 0, Box::new(opener), RANDOM, client).unwrap();
        }
    }
    t.play(&builder.build());
    // The third epoch's before they are needed.
    for (source, epoch) in [(8, 1), (9, 3), (6, 2)] {
        t.source = source;
        t.keys(C, epoch).unwrap();
    }
    let asked = t.out.iter().filter_map(|it| match it {
        Output::KeysNeeded(wanted) if wanted.epoch > KeyEpoch::Application(0) => {
            Some((wanted.epoch, wanted.source))
        }
        _ => None,
    });
    let expected = [(1, 7), (2, 8), (4, 9)];
    let expected = expected.map(|(epoch, source)| (KeyEpoch::Application(epoch), source));
    assert_eq!(asked.collect::<Vec<_>>(), expected);
}

/// In TLS 1.2 those of the next handshake are later ones.
#[test]
fn asks_for_keys_of_another_handshake_with_the_connection_that_those_in_use_came_over() {
    let keys = |direction, epoch| NullKeys12(keys(direction, epoch).0);
    let mut builder = ScriptBuilder::tls12(RANDOM, SUITE, keys);
    builder.record(C, ContentType::APPLICATION_DATA, &[7; 500], 0);
    builder.renegotiate([8; 32], SUITE);
    let mut t = T::with(Config { supports: |_, _| true, ..T::config() });
    t.engine.handler_mut().any_hellos = true;
    t.open();
    t.source = 7;
    let client = Some(t.ep.client.ip());
    for direction in [C, S] {
        let opener = Box::new(keys(direction, KeyEpoch::Application(0)));
        t.keys_with(direction, 0, opener, RANDOM, client).unwrap();
    }
    t.play(&builder.build());
    let asked = t.out.iter().filter_map(|it| match it {
        Output::KeysNeeded(wanted) => Some((wanted.client_random, wanted.source)),
        _ => None,
    });
    assert_eq!(asked.collect::<Vec<_>>(), [([8; 32], 7); 2]);
}
