//! Early data and shared handshake keys: what policies do, what is told, what is not guessed.

use std::sync::Arc;

use crate::harness::{
    Event, KeyTiming, Keys, Network, Path, RANDOM, Recorder, SUITE, config, keys,
};
use mmtls_engine::session::SessionError;
use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_engine::{Awaited, Config, Policy};
use mmtls_testkit::synthesis::{
    EarlyFate, EarlyScript, NullKeys, Script, ScriptBuilder, Seal, side,
};

const C: Direction = Direction::ClientToServer;
const S: Direction = Direction::ServerToClient;
const DATA: ContentType = ContentType::APPLICATION_DATA;

fn early(fate: EarlyFate, before: usize, after: usize) -> Script {
    let record = |number: usize| vec![number as u8; 300];
    let early = EarlyScript {
        fate,
        before: (0..before).map(record).collect(),
        after: (before..before + after).map(record).collect(),
    };
    early_script(&early)
}

fn early_script(early: &EarlyScript) -> Script {
    let mut builder = ScriptBuilder::early(RANDOM, SUITE, &[900, 100], early, keys as Keys);
    builder.record(C, DATA, b"a request", 0);
    builder.record(S, DATA, b"an answer", 0);
    builder.build()
}

fn path(script: Script, policy: Policy, keys: KeyTiming) -> Path {
    path_with(script, config(policy), keys)
}

fn path_with(script: Script, config: Config, keys: KeyTiming) -> Path {
    let network = Network {
        seed: 1,
        max_segment: 0,
        reorder: false,
        duplicate: false,
        keys,
        handshake_keys: false,
        v6: false,
    };
    Path::new(script, network, config, Recorder::default())
}

fn deliver_application_keys(path: &mut Path) {
    for direction in Direction::BOTH {
        path.deliver_keys(direction, KeyEpoch::Application(0));
    }
}

/// Sends every turn; which did not arrive.
fn send_all(path: &mut Path) -> Option<usize> {
    path.open();
    let turns = path.script.turns.clone();
    turns.iter().position(|turn| !path.send(turn.direction, &turn.bytes))
}

#[test]
fn follows_the_policy_when_early_keys_do_not_come() {
    for (policy, arrives) in [(Policy::Forward, true), (Policy::Reset, false)] {
        let mut path = path(early(EarlyFate::Accepted, 3, 0), policy, KeyTiming::Never);
        path.open();
        let turns = path.script.turns.clone();
        assert!(!path.send(C, &turns[0].bytes), "early data wait for their keys");
        assert!(path.engine.handler().errors().is_empty(), "too early");
        path.wait(501_000_000);
        let errors = path.engine.handler().errors();
        assert_eq!(errors, [(C, SessionError::EarlyDataNotInspected)]);
        assert_eq!(path.injected.is_empty(), arrives);
        if !arrives {
            continue;
        }
        // The rest is followed.
        assert!(path.send(S, &turns[1].bytes));
        deliver_application_keys(&mut path);
        for turn in &turns[2..] {
            assert!(path.send(turn.direction, &turn.bytes));
        }
        let recorder = path.engine.handler();
        assert_eq!(recorder.records(C), [(23, b"a request".to_vec())]);
        assert_eq!(recorder.records(S), [(23, b"an answer".to_vec())]);
        assert_eq!(path.engine.counters().early_records_passed, 3);
    }
}

#[test]
fn waits_less_where_nobody_could_share() {
    for (connected, waits) in [(Some(true), true), (Some(false), false), (None, true)] {
        let mut config = config(Policy::Forward);
        config.awaited = connected.map(|connected| {
            Awaited(Arc::new(move |client, server| {
                assert_eq!([client, server].map(|it| it.to_string()), ["10.0.0.2", "10.0.0.3"]);
                connected
            }))
        });
        let script = early(EarlyFate::Accepted, 1, 0);
        let mut path = path_with(script, config, KeyTiming::Never);
        path.open();
        let hello = path.script.turns[0].bytes.clone();
        assert!(!path.send(C, &hello), "early data wait for their keys");
        path.wait(49_000_000);
        assert!(path.engine.handler().errors().is_empty(), "{connected:?}");
        path.wait(2_000_000);
        assert_eq!(path.engine.handler().errors().is_empty(), waits, "{connected:?}");
        path.wait(450_000_000);
        let errors = path.engine.handler().errors();
        assert_eq!(errors, [(C, SessionError::EarlyDataNotInspected)], "{connected:?}");
    }
}

/// An endpoint that shares application keys and not early ones will not share those later.
#[test]
fn refuses_to_wait_for_early_keys_behind_application_keys() {
    for (policy, arrives) in [(Policy::Forward, true), (Policy::Reset, false)] {
        for after in [0, 2] {
            let before = 2 - after;
            let script = early(EarlyFate::Accepted, before, after);
            let mut path = path(script, policy, KeyTiming::Never);
            deliver_application_keys(&mut path);
            let lost = send_all(&mut path);
            assert_eq!(lost.is_none(), arrives, "{policy:?} {after}");
            let errors = path.engine.handler().errors();
            assert_eq!(errors, [(C, SessionError::EarlyDataNotInspected)], "{after}");
            if arrives {
                assert_eq!(path.engine.handler().records(C), [(23, b"a request".to_vec())]);
            }
        }
    }
}

#[test]
fn tells_what_became_of_early_data() {
    for (fate, accepted) in [
        (EarlyFate::Accepted, true),
        (EarlyFate::Refused, false),
        (EarlyFate::RefusedWithKey, false),
        (EarlyFate::RefusedByRetry, false),
    ] {
        for handshake_keys in [false, true] {
            let mut path = path(early(fate, 2, 2), Policy::Reset, KeyTiming::Prompt);
            path.share_handshake_keys(handshake_keys);
            if fate == EarlyFate::Refused && handshake_keys {
                // What comes behind the refusal is void, and not judged.
                path.intact[0] = path.script.records[0][1].end;
            }
            assert!(path.run(), "{fate:?}");
            let recorder = path.engine.handler();
            assert!(recorder.errors().is_empty(), "{fate:?} {:?}", recorder.errors());
            let told: Vec<&Event> =
                recorder.events.iter().filter(|it| matches!(it, Event::EarlyData(_))).collect();
            assert_eq!(told, [&Event::EarlyData(accepted)], "{fate:?}");
            // Known before the record that follows early data is shown.
            let at = |wanted: &Event| recorder.events.iter().position(|it| it == wanted).unwrap();
            let request = Event::Record(C, 23, b"a request".to_vec());
            assert!(at(&Event::EarlyData(accepted)) < at(&request), "{fate:?}");
            // Where EncryptedExtensions is opened, a refusal is known before what comes behind.
            let expected = match (fate, handshake_keys) {
                (EarlyFate::Accepted, _) | (EarlyFate::Refused, false) => 4,
                _ => 2,
            };
            assert_eq!(recorder.early, expected, "{fate:?} {handshake_keys}");
            assert_eq!(recorder.records(C).len(), expected + 1, "{fate:?}");
            let certificates = recorder.events.iter().filter_map(|it| match it {
                Event::Certificates(direction, lengths) => Some((*direction, lengths.len())),
                _ => None,
            });
            let expected = if handshake_keys { vec![(S, 1)] } else { Vec::new() };
            assert_eq!(certificates.collect::<Vec<_>>(), expected, "{fate:?}");
        }
    }
}

/// Refused early data whose keys are not there reach nobody: they need not be judged.
#[test]
fn accepts_refused_early_data_without_keys() {
    for fate in [EarlyFate::RefusedByRetry, EarlyFate::RefusedWithKey] {
        let after = if fate == EarlyFate::RefusedWithKey { 3 } else { 0 };
        let mut path = path(early(fate, 0, after), Policy::Reset, KeyTiming::Never);
        deliver_application_keys(&mut path);
        assert_eq!(send_all(&mut path), None, "{fate:?}");
        let recorder = path.engine.handler();
        assert!(recorder.errors().is_empty(), "{fate:?} {:?}", recorder.errors());
        assert_eq!(recorder.records(C), [(23, b"a request".to_vec())], "{fate:?}");
    }
}

/// The server asks again while early data wait for their keys: they wait no longer.
#[test]
fn releases_waiting_early_data_when_they_are_refused() {
    let script = early(EarlyFate::RefusedByRetry, 2, 0);
    let mut path = path(script, Policy::Reset, KeyTiming::Never);
    path.open();
    let turns = path.script.turns.clone();
    assert!(!path.send(C, &turns[0].bytes));
    assert!(path.engine.handler().events.contains(&Event::Stall(C)));
    assert!(path.send(S, &turns[1].bytes));
    assert!(path.send(C, &turns[2].bytes), "the second ClientHello passes");
    assert!(path.send(S, &turns[3].bytes));
    deliver_application_keys(&mut path);
    for turn in &turns[4..] {
        assert!(path.send(turn.direction, &turn.bytes));
    }
    let recorder = path.engine.handler();
    assert!(recorder.errors().is_empty(), "{:?}", recorder.errors());
    assert_eq!(recorder.early, 0);
    assert_eq!(recorder.records(C), [(23, b"a request".to_vec())]);
}

#[test]
fn refuses_early_keys_that_do_not_fit() {
    let script = early(EarlyFate::Accepted, 2, 0);
    let mut path = path(script, Policy::Reset, KeyTiming::Never);
    path.deliver(C, KeyEpoch::EarlyData, Box::new(NullKeys(4711)));
    assert_eq!(send_all(&mut path), Some(0));
    assert!(path.engine.handler().errors().is_empty(), "the right ones may come");
    path.wait(501_000_000);
    assert_eq!(path.engine.handler().errors(), [(C, SessionError::KeysDoNotFit)]);
    assert!(!path.injected.is_empty());
}

/// Junk in place of early keys must not make early data pass for the client's last flight.
#[test]
fn refuses_early_data_behind_the_server_hello_under_keys_that_do_not_fit() {
    for (policy, arrives) in [(Policy::Forward, true), (Policy::Reset, false)] {
        // The second kind is as long as Finished, of which one may pass.
        for len in [300, 36] {
            let after = vec![vec![1; len]; 2];
            let script = EarlyScript { fate: EarlyFate::Accepted, before: Vec::new(), after };
            let mut path = path(early_script(&script), policy, KeyTiming::Never);
            path.deliver(C, KeyEpoch::EarlyData, Box::new(NullKeys(4711)));
            deliver_application_keys(&mut path);
            assert_eq!(send_all(&mut path).is_none(), arrives, "{policy:?} {len}");
            let errors = path.engine.handler().errors();
            assert_eq!(errors, [(C, SessionError::EarlyDataNotInspected)], "{policy:?} {len}");
        }
    }
}

#[test]
fn accepts_early_data_that_were_announced_refused_and_never_sent() {
    for keys_shared in [false, true] {
        let mut path = path(early(EarlyFate::Refused, 0, 0), Policy::Reset, KeyTiming::Never);
        if keys_shared {
            path.deliver_keys(C, KeyEpoch::EarlyData);
        }
        deliver_application_keys(&mut path);
        assert_eq!(send_all(&mut path), None, "{keys_shared}");
        let recorder = path.engine.handler();
        assert!(recorder.errors().is_empty(), "{keys_shared} {:?}", recorder.errors());
        assert_eq!(recorder.records(C), [(23, b"a request".to_vec())]);
    }
}

#[test]
fn accepts_the_right_early_keys_behind_wrong_ones() {
    let script = early(EarlyFate::Accepted, 2, 1);
    let mut path = path(script, Policy::Reset, KeyTiming::Late);
    path.deliver(C, KeyEpoch::EarlyData, Box::new(NullKeys(4711)));
    assert!(path.run());
    assert_eq!(path.engine.handler().early, 3);
    assert!(path.engine.handler().errors().is_empty());
}

#[test]
fn refuses_changed_early_data() {
    for victim in 0..3u64 {
        let mut script = early(EarlyFate::Accepted, 3, 0);
        let end = script.records[0][victim as usize].end;
        script.turns[0].bytes[end as usize - 30] ^= 1;
        let mut path = path(script, Policy::Reset, KeyTiming::Prompt);
        path.intact[0] = end - 1;
        assert_eq!(send_all(&mut path), Some(0), "{victim}");
        path.wait(501_000_000);
        let expected = match victim {
            // Before one has opened, it may be the keys that are wrong.
            0 => SessionError::KeysDoNotFit,
            _ => SessionError::Integrity,
        };
        assert_eq!(path.engine.handler().errors(), [(C, expected)], "{victim}");
        assert_eq!(path.engine.handler().early, victim as usize);
    }
}

#[test]
fn refuses_early_data_that_nobody_announced() {
    let mut script = early(EarlyFate::Accepted, 0, 0);
    let mut builder = ScriptBuilder::new(RANDOM, SUITE, false, &[300], keys as Keys);
    builder.record(C, DATA, b"x", 0);
    script.turns = builder.build().turns;
    let mut path = path(script, Policy::Reset, KeyTiming::Never);
    path.open();
    let hello = path.script.turns[0].bytes.clone();
    assert!(path.send(C, &hello));
    let record = keys(C, KeyEpoch::EarlyData).seal(0, DATA, b"GET /", 0);
    assert!(!path.send(C, &record));
    assert_eq!(path.engine.handler().errors(), [(C, SessionError::MalformedRecord)]);
}

/// With handshake keys the switch is exact: a changed first record is not taken for one more
/// record of the handshake.
#[test]
fn refuses_a_changed_first_record_behind_an_opened_handshake() {
    for direction in Direction::BOTH {
        let mut builder = ScriptBuilder::new(RANDOM, SUITE, false, &[700], keys as Keys);
        builder.record(C, DATA, &[1; 90], 0);
        builder.record(S, DATA, &[2; 90], 0);
        let mut script = builder.build();
        let place = &script.records[side(direction)][0];
        let back = 30;
        let turn = script.turns.iter_mut().rev().find(|turn| turn.direction == direction).unwrap();
        let at = turn.bytes.len() - back;
        turn.bytes[at] ^= 1;
        let end = place.end;
        let mut path = path(script, Policy::Reset, KeyTiming::Prompt);
        path.share_handshake_keys(true);
        path.intact[side(direction)] = end - 1;
        assert!(send_all(&mut path).is_some(), "{direction}: it is held");
        path.wait(501_000_000);
        let errors = path.engine.handler().errors();
        assert_eq!(errors, [(direction, SessionError::KeysDoNotFit)], "{direction}");
    }
}

/// Handshake keys that come when the server's flight has passed still show what was in it.
#[test]
fn accepts_handshake_keys_behind_the_flight() {
    let mut path = path(early(EarlyFate::Accepted, 1, 0), Policy::Reset, KeyTiming::Never);
    path.share_handshake_keys(true);
    path.deliver_keys(C, KeyEpoch::EarlyData);
    path.open();
    let turns = path.script.turns.clone();
    assert!(path.send(C, &turns[0].bytes));
    assert!(path.send(S, &turns[1].bytes));
    assert!(!path.engine.handler().events.iter().any(|it| matches!(it, Event::Certificates(..))));
    path.deliver_keys(S, KeyEpoch::Handshake);
    let events = &path.engine.handler().events;
    assert!(events.iter().any(|it| matches!(it, Event::Certificates(..))));
    assert!(events.contains(&Event::EarlyData(true)), "EncryptedExtensions says so");
    assert_eq!(path.engine.counters().handshake_records_opened, 2);
    // Wrong ones are of no use and do no harm.
    path.deliver(C, KeyEpoch::Handshake, Box::new(NullKeys(4711)));
    deliver_application_keys(&mut path);
    for turn in &turns[2..] {
        assert!(path.send(turn.direction, &turn.bytes));
    }
    assert!(path.engine.handler().errors().is_empty());
    assert_eq!(path.engine.handler().records(C).len(), 2);
}
