//! A client that names its keys as those of another epoch: whatever it calls them, no content may pass that
//! no handler was shown. Servers are honest.

use crate::harness::attack::*;
use crate::harness::{Keys, RANDOM, SUITE};
use mmtls_engine::session::SessionError;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

const DATA: ContentType = ContentType::APPLICATION_DATA;

/// Delivers keys under any name.
fn deliver(t: &mut T, direction: Direction, epoch: KeyEpoch, keys: NullKeys) {
    let opener: Box<dyn OpenRecord> = Box::new(keys);
    let shared = SharedKeys {
        sender: Some(t.ep.client.ip()),
        source: 0,
        client_random: RANDOM,
        server_random: None,
        cipher_suite: CipherSuite(SUITE),
        keys: vec![(direction, epoch, opener)],
    };
    let _ = t.engine.handle_keys(t.now, shared);
    while let Some(output) = t.engine.poll_output() {
        t.out.push(output);
    }
}

/// The keys that application data are sent under.
fn used(direction: Direction) -> NullKeys {
    crate::harness::keys(direction, KeyEpoch::Application(0))
}

/// Plays a session; bytes that passed behind its first three turns.
fn passed(t: &mut T, script: &Script) -> usize {
    t.open();
    let (mut at, mut passed) = ([0; 2], 0);
    for (number, turn) in script.turns.iter().enumerate() {
        let (own, other) = (side(turn.direction), 1 - side(turn.direction));
        for part in turn.bytes.chunks(1400) {
            let verdict = t.send(turn.direction, at[own] as i64, at[other], flag::ACK, part);
            at[own] += part.len() as u64;
            passed += if number > 2 && verdict == Verdict::Forward { part.len() } else { 0 };
        }
    }
    passed
}

#[test]
fn application_keys_named_as_those_of_the_handshake_must_not_hide_content() {
    for all in [false, true] {
        let mut builder = builder();
        for _ in 0..20 {
            builder.record(C, DATA, b"GET /secret", 0);
            builder.record(S, DATA, &[8; 16_000], 0);
        }
        let mut t = T::new();
        for direction in Direction::BOTH {
            deliver(&mut t, direction, KeyEpoch::Handshake, used(direction));
        }
        // Under junk, Finished passes.
        deliver(&mut t, C, KeyEpoch::Application(0), NullKeys(4711));
        if all {
            deliver(&mut t, S, KeyEpoch::Application(0), NullKeys(4711));
        }
        let passed = passed(&mut t, &builder.build());
        assert!(passed == 0, "{passed} bytes passed, {} records were judged", t.judged());
    }
}

#[test]
fn application_keys_named_as_those_of_refused_early_data_must_not_hide_content() {
    let early = EarlyScript { fate: EarlyFate::RefusedWithKey, before: vec![], after: vec![] };
    let mut builder =
        ScriptBuilder::early(RANDOM, SUITE, &[1000], &early, crate::harness::keys as Keys);
    for _ in 0..20 {
        builder.record(C, DATA, &[8; 16_000], 0);
        builder.record(S, DATA, b"200 thank you", 0);
    }
    let mut t = T::new();
    deliver(&mut t, C, KeyEpoch::EarlyData, used(C));
    deliver(&mut t, C, KeyEpoch::Application(0), NullKeys(4711));
    deliver(&mut t, S, KeyEpoch::Application(0), used(S));
    let passed = passed(&mut t, &builder.build());
    let judged = t.engine.handler().judged;
    assert!(passed < 100_000, "{passed} bytes passed, {judged:?} records were judged");
}

/// Under the shared keys it is a message that no application reads, under those that are used a request.
#[test]
fn content_that_looks_like_messages_behind_the_handshake_must_not_pass() {
    let ticket = [&[4, 0, 0, 96][..], &[5; 96]].concat();
    let certificate = [&[11, 0, 0, 96][..], &[5; 96]].concat();
    let pieces: [&[&[u8]]; 6] = [
        &[&ticket],
        &[&certificate],
        &[b"GET /secret HTTP/1.1"],
        &[&[24, 0, 0, 1], &[2]],
        &[&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0]],
        &[&[24, 0, 0, 1, 0, 4, 0, 0, 200]],
    ];
    for records in pieces {
        let mut builder = builder();
        records.iter().for_each(|it| _ = builder.record(C, ContentType::HANDSHAKE, it, 0));
        let (mut t, script) = (T::new(), builder.build());
        for direction in Direction::BOTH {
            deliver(&mut t, direction, KeyEpoch::Application(0), used(direction));
        }
        let passed = passed(&mut t, &script);
        let most = if records.len() > 1 { records[0].len() + 22 } else { 0 };
        assert!(passed <= most && !t.alive(), "{records:?}: {passed} bytes passed");
    }
}

/// The client shares the keys of its second epoch as those of the first one: what is sent before passes for its handshake.
#[test]
fn content_that_looks_like_a_certificate_must_meet_the_policy() {
    for policy in [Policy::Forward, Policy::Reset] {
        // Behind Finished, and an honest client's.
        for hides in [true, false] {
            let mut config = T::config();
            config.policies.unread_flight = policy;
            let mut t = T::with(config);
            let mut builder = builder();
            if hides {
                builder.record(C, DATA, b"GET /secret", 0);
                builder.record(C, DATA, b"and more", 0);
                builder.key_update(C);
            }
            builder.record(C, DATA, b"GET /", 0);
            let epoch = KeyEpoch::Application(hides.into());
            let keys = crate::harness::keys(C, epoch);
            deliver(&mut t, C, KeyEpoch::Application(0), keys);
            deliver(&mut t, S, KeyEpoch::Application(0), used(S));
            t.open();
            t.play(&builder.build());
            let errors = t.engine.handler().errors();
            let told = (C, SessionError::UnreadFlight);
            assert_eq!(errors, if hides { vec![told] } else { vec![] }, "{policy:?}");
            assert_eq!(t.alive(), !hides || policy == Policy::Forward);
            assert_eq!(t.judged(), usize::from(t.alive()));
        }
    }
}

/// The request passed unread, since the server's direction is refused.
#[test]
fn a_certificate_may_answer_a_request_that_nobody_read() {
    for is_refused in [true, false] {
        let mut builder = builder();
        builder.record(S, DATA, &[8; 100], 0);
        builder.record(C, ContentType::HANDSHAKE, &[11, 0, 0, 4, 0, 0, 0, 0], 0);
        builder.record(C, ContentType::HANDSHAKE, &[&[20, 0, 0, 32][..], &[5; 32]].concat(), 0);
        builder.record(C, DATA, b"GET /", 0);
        let mut t = T::new();
        deliver(&mut t, C, KeyEpoch::Application(0), used(C));
        t.open();
        let client = Some(t.ep.client.ip());
        let script = builder.build();
        let mut at = [0; 2];
        for turn in &script.turns {
            let own = side(turn.direction);
            t.send(turn.direction, at[own] as i64, at[1 - own], flag::ACK, &turn.bytes);
            at[own] += turn.bytes.len() as u64;
            if at[1] == 0 {
                match is_refused {
                    true => _ = t.engine.handle_null_keys(t.now, client, RANDOM, Some(S)),
                    false => deliver(&mut t, S, KeyEpoch::Application(0), used(S)),
                }
            }
        }
        assert_eq!(t.alive(), is_refused, "{:?}", t.engine.handler().errors());
    }
}
