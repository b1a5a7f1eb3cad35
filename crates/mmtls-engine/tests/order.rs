//! Properties: however a session is cut, reordered and repeated, the same is seen; what is lost
//! is declared; nothing passes unjudged; a reset session stays reset.

use crate::harness::{Event, KeyTiming, Network, Path, Recorder, config, is_shown12, script};
use mmtls_engine::session::{EndReason, SessionError};
use mmtls_engine::tls::{ContentType, Direction};
use mmtls_engine::{Policy, Verdict};
use mmtls_testkit::segments::Seeded;
use mmtls_testkit::synthesis::{Placed, Script, side};
use proptest::prelude::*;

const CLIENT: Direction = Direction::ClientToServer;
const TIMINGS: [KeyTiming; 3] = [KeyTiming::Early, KeyTiming::Prompt, KeyTiming::Late];

fn expected(script: &Script, direction: Direction) -> Vec<(u8, Vec<u8>)> {
    script.records[side(direction)]
        .iter()
        .filter(|record| !script.tls12 || is_shown12(record.kind))
        .map(|record| (record.kind.0, record.content.clone()))
        .collect()
}

/// TLS 1.3, with early data or without, or TLS 1.2.
fn any_script(seed: u64) -> Script {
    match seed % 3 {
        0 => crate::harness::script(seed),
        1 => crate::harness::early_script(seed),
        _ => crate::harness::script12(seed),
    }
}

fn calm(seed: u64) -> Network {
    Network {
        seed,
        max_segment: 0,
        reorder: false,
        duplicate: false,
        keys: KeyTiming::Prompt,
        handshake_keys: false,
        v6: false,
    }
}

fn networks() -> impl Strategy<Value = Network> {
    let flags = any::<[bool; 4]>();
    (any::<u64>(), 0usize..4, flags, 0usize..3).prop_map(
        |(seed, segment, [reorder, duplicate, v6, handshake_keys], keys)| Network {
            seed,
            max_segment: [0, 40, 1448, 9000][segment],
            reorder,
            duplicate,
            keys: TIMINGS[keys],
            handshake_keys,
            v6,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accepts_any_segmentation_order_and_repetition(seed in any::<u64>(), network in networks()) {
        let script = any_script(seed);
        let mut path =
            Path::new(script.clone(), network, config(Policy::Reset), Recorder::default());
        prop_assert!(path.run(), "bytes did not arrive: {:?}", path.engine.handler().events.last());
        let recorder = path.engine.handler();
        for direction in Direction::BOTH {
            prop_assert!(recorder.records(direction) == expected(&script, direction));
        }
        prop_assert_eq!(recorder.early, script.early);
        prop_assert_eq!(recorder.skeleton(), [
            Event::SessionStart,
            Event::HandshakeStart,
            Event::ServerHello,
            Event::HandshakeEnd,
            Event::SessionEnd(EndReason::Closed),
            Event::FlowEnd(EndReason::Closed),
        ]);
        prop_assert_eq!(path.engine.buffered_bytes(), 0);
    }

    #[test]
    fn declares_what_is_lost(seed in any::<u64>(), network in networks(), losses in 1usize..4) {
        // The capture of a lossy tap: the endpoints saw everything, the monitor did not.
        let script = any_script(seed);
        let mut offline = config(Policy::Bypass);
        offline.inline = false;
        let recorder = Recorder { may_lose_hellos: true, ..Recorder::default() };
        let mut path = Path::new(script.clone(), network, offline, recorder);
        path.intact = [0; 2];
        if network.keys == KeyTiming::Early {
            path.answer_wishes(false);
        }
        path.open();
        let mut rng = Seeded::new(network.seed ^ 77);
        let total: usize = script.turns.iter().map(|turn| turn.bytes.len()).sum();
        let lost: Vec<usize> = (0..losses).map(|_| rng.below(total)).collect();
        let mut sent = [0u64; 2];
        let mut offset = 0;
        let mut missing = [false; 2];
        for turn in &script.turns {
            let at = side(turn.direction);
            for chunk in turn.bytes.chunks(1 + rng.below(2000)) {
                if lost.iter().any(|it| (offset..offset + chunk.len()).contains(it)) {
                    missing[at] = true;
                } else {
                    path.offer_range(turn.direction, sent[at], chunk);
                }
                sent[at] += chunk.len() as u64;
                offset += chunk.len();
            }
        }
        path.answer_wishes(false);
        // Both sides acknowledge everything: a loss at the very end is known from that alone.
        for direction in Direction::BOTH {
            path.acknowledge(direction, sent[side(direction)], sent[1 - side(direction)]);
        }
        path.engine.finish();
        let recorder = path.engine.handler();
        for direction in Direction::BOTH {
            let seen = recorder.records(direction);
            let mut expected = expected(&script, direction);
            if direction == CLIENT {
                // Whether the refusal was read before the early data, so that they are void, may
                // depend on what was lost.
                let void = script.void.iter().map(|content| (23, content.clone()));
                let early: Vec<_> = expected.drain(..script.early).chain(void).collect();
                prop_assert!(recorder.early <= early.len());
                expected.splice(..0, early.into_iter().take(recorder.early));
            }
            prop_assert!(seen.len() <= expected.len());
            prop_assert!(seen[..] == expected[..seen.len()], "wrong plaintext");
        }
        let complete = Direction::BOTH.into_iter().all(|direction| {
            recorder.records(direction).len() == expected(&script, direction).len()
        });
        // A loss in the hellos means that no TLS was recognised, or no keys could be matched.
        let followed = recorder.events.contains(&Event::HandshakeEnd);
        if !complete && followed {
            let declared = recorder.errors();
            prop_assert!(
                // By whatever name: a lost hello makes the next message malformed, keys may come
                // too late.
                !declared.is_empty(),
                "missing {:?}, declared {:?}", missing, declared
            );
        }
    }

    #[test]
    fn refuses_everything_after_a_reset(
        seed in any::<u64>(),
        network in networks(),
        at in 1usize..12,
    ) {
        let script = any_script(seed);
        let records: usize =
            Direction::BOTH.into_iter().map(|it| expected(&script, it).len()).sum();
        let recorder = Recorder { reset_at: Some(at.min(records)), ..Recorder::default() };
        let mut path = Path::new(script.clone(), network, config(Policy::Reset), recorder);
        prop_assert!(!path.run(), "the session went on after its reset");
        prop_assert!(path.injected.len() >= 2, "both endpoints must be told");
        prop_assert_eq!(path.leaked, 0);
        // Retransmissions from either side, old bytes and new.
        for turn in &script.turns {
            let verdict = path.offer_range(turn.direction, 0, &turn.bytes);
            prop_assert_eq!(verdict, Verdict::Drop);
        }
        prop_assert_eq!(path.leaked, 0);
        let recorder = path.engine.handler();
        prop_assert!(recorder.events.contains(&Event::SessionEnd(EndReason::ResetByHandler)));
        let judged = recorder.judged[0] + recorder.judged[1];
        prop_assert_eq!(judged, at.min(records));
    }

    #[test]
    fn refuses_tampered_records(seed in any::<u64>(), network in networks()) {
        // In TLS 1.2, and with early data, a changed handshake record is the receiver's business,
        // and changed lengths may look like other records: the exact statements below are for
        // TLS 1.3 without.
        let mut script = script(seed);
        let mut rng = Seeded::new(seed ^ 3);
        // One byte of some application record changes, header included.
        let candidates: Vec<Direction> = Direction::BOTH
            .into_iter()
            .filter(|it| !script.records[side(*it)].is_empty())
            .collect();
        let direction = candidates[rng.below(candidates.len())];
        let records = &script.records[side(direction)];
        let first = rng.below(records.len());
        let start = match first {
            0 => records[0].end - 22 - records[0].content.len() as u64,
            _ => records[first - 1].end,
        };
        let victim = start + rng.below((records[first].end - start) as usize) as u64;
        let mut offset = 0;
        for turn in script.turns.iter_mut().filter(|turn| turn.direction == direction) {
            let len = turn.bytes.len() as u64;
            if (offset..offset + len).contains(&victim) {
                turn.bytes[(victim - offset) as usize] ^= 1 << rng.below(8);
            }
            offset += len;
        }
        let expected = expected(&script, direction);
        let mut path = Path::new(script, network, config(Policy::Reset), Recorder::default());
        path.intact[side(direction)] = start;
        path.run();
        path.engine.finish();
        let recorder = path.engine.handler();
        let seen = recorder.records(direction);
        prop_assert!(seen.len() <= first, "a changed record was delivered");
        prop_assert!(seen[..] == expected[..seen.len()]);
        prop_assert!(!recorder.errors().is_empty(), "the change went unnoticed");
    }
}

#[test]
fn follows_the_missing_key_policy_after_the_limit() {
    for (policy, arrives) in [(Policy::Forward, true), (Policy::Reset, false)] {
        let mut path = Path::new(
            script(4),
            Network { keys: KeyTiming::Never, ..calm(1) },
            config(policy),
            Recorder::default(),
        );
        path.open();
        let turns = path.script.turns.clone();
        let stalled = turns.iter().find(|turn| !path.send(turn.direction, &turn.bytes));
        assert_eq!(stalled.map(|turn| turn.direction), Some(Direction::ClientToServer));
        assert!(path.engine.handler().errors().is_empty(), "too early");
        path.wait(499_000_000);
        assert!(path.engine.handler().errors().is_empty(), "too early");
        path.wait(2_000_000);
        let errors = path.engine.handler().errors();
        assert_eq!(errors, [(Direction::ClientToServer, SessionError::MissingKeys)]);
        assert_eq!(path.engine.counters().released > 0, arrives);
        assert_eq!(path.injected.is_empty(), arrives);
    }
}

#[test]
fn skips_paused_records_but_not_key_updates() {
    let recorder = Recorder { pause_all: true, ..Recorder::default() };
    let updates = |script: &Script| {
        let is_update = |it: &&Placed| it.kind == ContentType::HANDSHAKE && it.content[0] == 24;
        script.records.iter().flatten().filter(is_update).count()
    };
    let seed = (0..).find(|&seed| updates(&script(seed)) > 2).unwrap();
    let mut path = Path::new(script(seed), calm(2), config(Policy::Reset), recorder);
    let updates = updates(&path.script);
    assert!(path.run());
    let counters = path.engine.counters();
    // Nor the records that the switch was found with, although they were opened.
    assert_eq!(path.engine.handler().judged, [0, 0]);
    assert!(counters.records_paused > 0);
    assert_eq!(counters.key_updates, updates as u64);
    assert_eq!(counters.records_failed, 0);
}

/// What is still under way when a session is reset, or the monitor ends, is not lost.
#[test]
fn gaps_at_a_reset_must_not_be_called_losses() {
    use crate::harness::attack::*;
    use mmtls_testkit::segments::flag;
    for is_reset in [true, false] {
        let mut t = T::new();
        let at = established(&mut t);
        t.send(S, at[1] as i64 + 100, at[0], flag::ACK, b"behind a gap");
        if is_reset {
            t.send(C, at[0] as i64, at[1], flag::RST, &[]);
        } else {
            t.engine.finish();
        }
        assert_eq!(t.engine.handler().errors(), [], "{is_reset}");
    }
}
