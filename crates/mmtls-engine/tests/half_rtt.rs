//! What a server sends before it has its client's Finished (0.5-RTT data): it has passed when its keys come, and the connection
//! may have ended by then.

use crate::harness::Event;
use crate::harness::attack::*;
use mmtls_engine::Verdict;
use mmtls_engine::session::{EndReason, SessionError};
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

/// A server's whole flight, and an answer in the same go: which the client reads, and acts on once it has sent its Finished.
fn half_rtt(t: &mut T) -> ([u64; 2], Vec<u8>) {
    t.open();
    let script = simple();
    let flight = [&script.turns[1].bytes[..], &sealed(S, 0)].concat();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &script.turns[0].bytes), Verdict::Forward);
    let at = [script.turns[0].bytes.len() as u64, flight.len() as u64];
    assert_eq!(t.send(S, 0, at[0], flag::ACK, &flight), Verdict::Forward);
    (at, script.turns[2].bytes.clone())
}

#[test]
fn half_rtt_data_must_be_judged_though_the_connection_ends_before_their_keys_come() {
    // How it ends: a RST of the server before or after the client's last flight, which waits or has passed; or two FINs.
    for (case, passive) in (0..5).flat_map(|case| [(case, false), (case, true)]) {
        let mut config = T::config();
        config.inline = !passive;
        let mut t = T::with(config);
        let (mut at, last) = half_rtt(&mut t);
        if case >= 2 {
            let _ = t.keys(C, 0);
        }
        if case >= 1 {
            t.send(C, at[0] as i64, at[1], flag::ACK, &last);
            at[0] += last.len() as u64;
        }
        match case {
            0..=2 => {
                assert_eq!(t.send(S, at[1] as i64, 0, flag::RST, &[]), Verdict::Forward);
            }
            _ => {
                let first = if case == 3 { S } else { C };
                for (number, direction) in [first, first.reverse()].into_iter().enumerate() {
                    let (here, there) = (at[side(direction)], at[side(direction.reverse())]);
                    let there = there + number as u64;
                    t.send(direction, here as i64, there, flag::FIN | flag::ACK, &[]);
                }
            }
        }
        assert!(t.alive(), "{case} {passive}");
        let _ = t.keys(S, 0);
        assert_eq!(t.engine.handler().judged[1], 1, "{case} {passive}");
        // Beside the traffic the client's last flight has arrived, and may be more than that.
        assert_eq!(t.alive(), passive && case == 1, "{case}");
        let late = !passive;
        let errors = t.engine.handler().errors();
        assert_eq!(errors.contains(&(S, SessionError::JudgedLate)), late, "{case} {errors:?}");
    }
}

#[test]
fn connections_that_have_ended_must_not_wait_for_keys_for_ever() {
    for (after_flight, expected) in [(false, vec![]), (true, vec![(S, SessionError::MissingKeys)])]
    {
        let mut t = T::new();
        let (mut at, last) = half_rtt(&mut t);
        if after_flight {
            let _ = t.keys(C, 0);
            t.send(C, at[0] as i64, at[1], flag::ACK, &last);
            at[0] += last.len() as u64;
        }
        t.send(S, at[1] as i64, 0, flag::RST, &[]);
        assert!(t.alive());
        t.now += 10_000_000_000;
        t.engine.handle_timeout(t.now);
        t.drain();
        assert!(!t.alive());
        // A handshake that was given up is none that keys are missing of.
        assert_eq!(t.engine.handler().errors(), expected);
        // There is nobody left for a policy to cut off.
        assert_eq!(t.engine.counters().resets_injected, 0);
    }
}

/// One that the client has completed, and that then ends by a RST or in order; it waits for the server's keys.
fn waiting(is_reset: bool) -> (T, [u64; 2]) {
    let mut t = T::new();
    let (mut at, last) = half_rtt(&mut t);
    let _ = t.keys(C, 0);
    t.send(C, at[0] as i64, at[1], flag::ACK, &last);
    at[0] += last.len() as u64;
    if is_reset {
        t.send(S, at[1] as i64, 0, flag::RST, &[]);
    } else {
        t.send(S, at[1] as i64, at[0], flag::FIN | flag::ACK, &[]);
        t.send(C, at[0] as i64, at[1] + 1, flag::FIN | flag::ACK, &[]);
        t.send(S, at[1] as i64 + 1, at[0] + 1, flag::ACK, &[]);
    }
    assert!(t.alive());
    (t, at)
}

#[test]
fn a_connection_that_waits_for_its_keys_after_its_end_must_make_room_for_the_next_one() {
    for is_reset in [false, true] {
        let (mut t, _) = waiting(is_reset);
        t.ep.initial = [3_000_000, 7_000_000];
        t.open();
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
        assert_eq!(t.engine.counters().sessions, 2);
        let errors = t.engine.handler().errors();
        assert_eq!(errors, [(S, SessionError::MissingKeys)], "of the first one");
        assert!(t.engine.handler().anomalies.is_empty(), "{:?}", t.engine.handler().anomalies);
    }
}

#[test]
fn a_connection_that_has_waited_must_be_told_as_it_ended() {
    let flow_end = |t: &T| match t.engine.handler().events.last() {
        Some(Event::FlowEnd(reason)) => Some(*reason),
        _ => None,
    };
    for (is_reset, is_reset_later) in [(false, false), (false, true), (true, true)] {
        let (mut t, at) = waiting(is_reset);
        if is_reset_later {
            t.send(C, at[0] as i64 + i64::from(!is_reset), at[1], flag::RST, &[]);
        }
        assert_eq!(flow_end(&t), None);
        let _ = t.keys(S, 0);
        let expected = if is_reset { EndReason::ResetByPeer(S) } else { EndReason::Closed };
        assert_eq!(flow_end(&t), Some(expected), "{is_reset} {is_reset_later}");
    }
}
