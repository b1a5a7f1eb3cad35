//! Frames have passed that the engine was not shown: what it knows of connections is void, but for what it has reset.

use crate::harness::Event;
use crate::harness::attack::*;
use mmtls_engine::session::EndReason;
use mmtls_engine::tls::Direction;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

const MINUTE_NS: u64 = 60_000_000_000;

fn config() -> Config {
    let mut config = Config { mid_stream_grace_ns: MINUTE_NS, ..T::config() };
    config.policies.mid_stream = Policy::Reset;
    config
}

#[test]
fn connections_that_went_on_unseen_pass_for_a_while_as_after_a_start() {
    let mut t = T::with(config());
    let at = established(&mut t).map(|it| it as i64);
    t.now += 2 * MINUTE_NS;
    t.engine.forget_flows(t.now);
    t.drain();
    assert_eq!((t.engine.flow_count(), t.engine.counters().failed_open), (0, 1));
    assert!(t.engine.handler().events.contains(&Event::SessionEnd(EndReason::FailedOpen)));
    // Far behind what was seen, which would be out of any window.
    let far = at.map(|it| it + (100 << 20));
    assert_eq!(t.send(S, far[1], far[0] as u64, flag::ACK, &[1; 500]), Verdict::Forward);
    assert_eq!(t.send(C, far[0], far[1] as u64 + 500, flag::ACK, &[1; 500]), Verdict::Forward);
    // Another one, when the time is up.
    t.now += MINUTE_NS;
    t.ep.client = "10.0.0.2:40001".parse().unwrap();
    assert_eq!(t.send(S, far[1], far[0] as u64, flag::ACK, &[1; 500]), Verdict::Drop);
}

#[test]
fn what_was_reset_stays_reset() {
    let mut t = T::with(config());
    let at = established(&mut t);
    let view = t.engine.view_flows(0..9).next().unwrap();
    let (slot, id) = (view.slot, view.id);
    assert!(t.engine.reset_flow(t.now, slot, id));
    t.engine.forget_flows(t.now);
    t.drain();
    assert_eq!((t.engine.flow_count(), t.engine.counters().failed_open), (1, 0));
    for d in [C, S] {
        let s = side(d);
        let verdict = t.send(d, at[s] as i64, at[1 - s], flag::ACK, &[1; 100]);
        assert_eq!(verdict, Verdict::Drop);
    }
}

#[test]
fn what_was_held_is_discarded_since_it_was_sent_again() {
    let mut t = T::with(config());
    t.open();
    t.play(&simple());
    let held = t.engine.view_flows(0..9).next().unwrap().held_frames;
    assert!(held > 0);
    t.out.clear();
    t.engine.forget_flows(t.now);
    t.drain();
    let discarded = t.out.iter().filter(|it| matches!(it, Output::Discard(_))).count();
    assert_eq!(discarded, held);
    assert!(!t.out.iter().any(|it| matches!(it, Output::Release(_) | Output::Inject { .. })));
    assert_eq!(t.engine.buffered_bytes(), 0);
}

/// The frames of a session from its SYN on, each message in two segments.
fn frames() -> Vec<(Direction, i64, u64, u8, Vec<u8>)> {
    let opening = [(C, flag::SYN), (S, flag::SYN | flag::ACK), (C, flag::ACK)];
    let at_start = |(d, flags)| (d, if flags == flag::ACK { 0 } else { -1 }, 0, flags, Vec::new());
    let mut frames: Vec<_> = opening.map(at_start).to_vec();
    let mut at = [0u64; 2];
    for turn in &simple().turns {
        let s = side(turn.direction);
        for piece in turn.bytes.chunks(turn.bytes.len().div_ceil(2)) {
            frames.push((turn.direction, at[s] as i64, at[1 - s], flag::ACK, piece.to_vec()));
            at[s] += piece.len() as u64;
        }
    }
    frames
}

/// Wherever in its handshake a connection was when the monitor fell silent, and wherever it is found again: it is not cut,
/// though what has lost its beginning is reset otherwise.
#[test]
fn connections_whose_handshake_went_on_unseen_are_not_cut() {
    let frames = frames();
    for silent_from in 0..frames.len() {
        for silent_to in silent_from..frames.len() {
            let mut t = T::with(config());
            let (_, _) = (t.keys(C, 0), t.keys(S, 0));
            t.engine.forget_flows(t.now);
            for (at, (d, offset, ack, flags, bytes)) in frames.iter().enumerate() {
                if at == silent_to {
                    t.engine.forget_flows(t.now);
                    t.drain();
                    // Asked again, the endpoint that has them shares them again.
                    let (_, _) = (t.keys(C, 0), t.keys(S, 0));
                }
                if !(silent_from..silent_to).contains(&at) {
                    let verdict = t.send(*d, *offset, *ack, *flags, bytes);
                    let what = format!("silent from {silent_from} to {silent_to}, frame {at}");
                    assert_eq!(verdict, Verdict::Forward, "{what}");
                }
            }
            let injected = t.out.iter().any(|it| matches!(it, Output::Inject { .. }));
            assert!(!injected, "silent from {silent_from} to {silent_to}");
        }
    }
}

/// Behind the time that such connections have, a ServerHello without a ClientHello is what it was.
#[test]
fn what_answers_as_a_tls_server_later_meets_its_policy() {
    for late in [false, true] {
        let mut t = T::with(config());
        t.engine.forget_flows(t.now);
        let frames = frames();
        let server_hello = frames.iter().position(|it| it.0 == S && !it.4.is_empty()).unwrap();
        let (d, offset, ack, flags, bytes) = &frames[server_hello];
        assert_eq!(t.send(C, -5, 0, flag::ACK, b"hello"), Verdict::Forward);
        t.now += if late { MINUTE_NS } else { MINUTE_NS / 2 };
        let verdict = t.send(*d, *offset, *ack, *flags, bytes);
        assert_eq!(verdict == Verdict::Forward, !late, "{verdict:?}");
    }
}
