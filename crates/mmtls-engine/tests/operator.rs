//! What an operator sees of connections, and decides about them.

use crate::harness::Event;
use crate::harness::attack::*;
use mmtls_engine::session::{EndReason, KeyStatus, SessionId};
use mmtls_engine::tls::Direction;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

/// The only flow there is.
fn only(t: &T) -> FlowView<'_, ()> {
    let mut all = t.engine.view_flows(0..t.engine.slots());
    let one = all.next().unwrap();
    assert!(all.next().is_none());
    one
}

fn place(t: &T) -> (usize, SessionId) {
    let view = only(t);
    assert_eq!(t.engine.slot_of(view.id, 0..100), Some(view.slot));
    (view.slot, view.id)
}

fn session(view: &FlowView<'_, ()>) -> (KeyStatus, bool, [Option<u64>; 2]) {
    match &view.carries {
        Carries::Session { info, is_followed, stalled_since_ns, .. } => {
            (info.key_status, *is_followed, *stalled_since_ns)
        }
        Carries::Undecided | Carries::Other { .. } => panic!("no session"),
    }
}

#[test]
fn a_session_is_seen_as_it_stands() {
    let mut t = T::new();
    t.open();
    assert!(matches!(only(&t).carries, Carries::Undecided));
    let at = t.play(&simple());
    let view = only(&t);
    let (status, followed, since) = session(&view);
    assert_eq!((status, followed), (KeyStatus::Waiting, true));
    assert!(since[0].is_some(), "its record waits");
    assert!(view.held_frames > 0 && view.kept_bytes > 0);
    assert_eq!((view.bytes, view.ended), (at, None));
    t.keys(C, 0).unwrap();
    t.keys(S, 0).unwrap();
    let view = only(&t);
    assert_eq!(session(&view), (KeyStatus::Shared, true, [None; 2]));
    assert_eq!(view.held_frames, 0);
    // Places that are none.
    assert_eq!(t.engine.view_flows(1..usize::MAX).count(), 0);
    let (begin, end) = (7, 3);
    assert_eq!(t.engine.view_flows(begin..end).count(), 0);
    assert_eq!(t.engine.slot_of(SessionId(99), 0..usize::MAX), None);
}

#[test]
fn what_is_killed_is_reset_at_both_ends_and_stays_so() {
    // With keys, while its records wait, and before it is known what it carries.
    for stage in 0..3 {
        let mut t = T::new();
        let at = match stage {
            0 => established(&mut t),
            1 => {
                t.open();
                t.play(&simple())
            }
            _ => {
                t.open();
                [0; 2]
            }
        };
        let held = only(&t).held_frames;
        let (slot, id) = place(&t);
        t.out.clear();
        assert!(!t.engine.reset_flow(t.now, slot, SessionId(id.0 + 1)), "another one");
        assert!(!t.engine.reset_flow(t.now, slot + 1, id));
        assert!(t.engine.reset_flow(t.now, slot, id));
        t.drain();
        let discarded = t.out.iter().filter(|it| matches!(it, Output::Discard(_))).count();
        assert_eq!(discarded, held, "{stage}");
        let resets = t.out.iter().filter(|it| matches!(it, Output::Inject { .. })).count();
        assert!(resets >= 2, "{stage}: {resets}");
        assert!(!t.out.iter().any(|it| matches!(it, Output::Release(_))));
        let events = &t.engine.handler().events;
        let reason = EndReason::ResetByOperator;
        assert!(events.contains(&Event::FlowEnd(reason)), "{stage}");
        assert_eq!(events.contains(&Event::SessionEnd(reason)), stage < 2);
        assert_eq!(only(&t).ended, Some(reason));
        for d in Direction::BOTH {
            let s = side(d);
            let verdict = t.send(d, at[s] as i64, at[1 - s], flag::ACK, &[1; 100]);
            assert_eq!(verdict, Verdict::Drop, "{stage}");
        }
        assert!(!t.engine.reset_flow(t.now, slot, id), "once");
        assert!(!t.engine.bypass_flow(t.now, slot, id));
    }
}

#[test]
fn what_is_bypassed_goes_on_unread() {
    let mut t = T::new();
    t.open();
    let at = t.play(&simple());
    let held = only(&t).held_frames;
    assert!(held > 0);
    let (slot, id) = place(&t);
    t.out.clear();
    assert!(t.engine.bypass_flow(t.now, slot, id));
    t.drain();
    let released = t.out.iter().filter(|it| matches!(it, Output::Release(_))).count();
    assert_eq!(released, held);
    assert!(only(&t).is_bypassed_by_operator());
    assert_eq!(t.engine.buffered_bytes(), 0);
    assert!(!t.engine.bypass_flow(t.now, slot, id), "once");
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &sealed(C, 1)), Verdict::Forward);
    // Keys bring nothing back.
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    assert_eq!((t.judged(), t.alive()), (0, true));
    // It can still be killed.
    assert!(t.engine.reset_flow(t.now, slot, id));
}

/// Far behind what the engine has seen: both ends get a RST that they take, and the record is of all bytes.
#[test]
fn what_is_killed_elsewhere_is_reset_where_it_stands() {
    const BYTES: u64 = 5 << 20;
    let mut t = T::with(Config { offload: true, ..T::config() });
    let mut at = established(&mut t);
    let (slot, id) = place(&t);
    assert!(t.engine.bypass_flow(t.now, slot, id));
    t.send(S, at[1] as i64, at[0], flag::ACK, &[1; 700]);
    at[1] += 700;
    let left = |it| if let Output::Offload(flow) = it { Some(*flow) } else { None };
    let flow = core::mem::take(&mut t.out).into_iter().find_map(left).expect("it is left");
    assert!(t.engine.reset_flow(t.now, slot, id));
    t.drain();
    let is_back = |it: &Output| matches!(it, Output::TakeBack(back) if back.id == flow.id);
    assert!(core::mem::take(&mut t.out).iter().any(is_back));
    let of_server = ForwardedElsewhere {
        packets: 100,
        bytes: BYTES,
        position: at[1] + BYTES,
        ..ForwardedElsewhere::default()
    };
    t.engine.handle_taken_back(t.now, &flow, [ForwardedElsewhere::default(), of_server]);
    t.drain();
    assert_reset(&mut t, [at[0], at[1] + BYTES]);
    assert_eq!(t.engine.handler().flow_bytes, [at[0], at[1] + BYTES]);
}

/// Both ends have got a RST where they stand.
#[track_caller]
fn assert_reset(t: &mut T, at: [u64; 2]) {
    let resets = core::mem::take(&mut t.out).into_iter().filter_map(|it| match it {
        Output::Inject { frame, .. } => Some(u32::from_be_bytes(frame[38..42].try_into().unwrap())),
        _ => None,
    });
    let resets: Vec<u32> = resets.collect();
    for (initial, at) in t.ep.initial.into_iter().zip(at) {
        let expected = initial.wrapping_add(1 + at as u32);
        assert!(resets.contains(&expected), "{resets:?}, {expected}");
    }
}

/// Also of a connection that is no session, and that was never looked at.
#[test]
fn what_is_left_alone_is_reset_where_it_stands() {
    const BYTES: u64 = 5 << 20;
    let server: std::net::SocketAddr = "10.0.0.3:443".parse().unwrap();
    let rule = Bypass { address: server.ip(), prefix_len: 32, port: Some(server.port()) };
    let mut t = T::with(Config { offload: true, bypass: vec![rule], ..T::config() });
    t.open();
    let left = |it| if let Output::Offload(flow) = it { Some(*flow) } else { None };
    let flow = core::mem::take(&mut t.out).into_iter().find_map(left).expect("it is left");
    let (slot, id) = place(&t);
    assert!(t.engine.reset_flow(t.now, slot, id));
    t.drain();
    t.out.clear();
    let at = [BYTES, 2 * BYTES];
    let of = |position: u64| ForwardedElsewhere {
        packets: 100,
        bytes: position,
        position,
        ..ForwardedElsewhere::default()
    };
    t.engine.handle_taken_back(t.now, &flow, at.map(of));
    t.drain();
    assert_reset(&mut t, at);
}

#[test]
fn a_draining_engine_leaves_alone_what_begins_and_goes_on_with_the_rest() {
    let mut t = T::new();
    let at = established(&mut t);
    t.engine.drain();
    let record = sealed(C, 1);
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &record), Verdict::Forward);
    assert_eq!(t.judged(), 3);
    t.ep.client = "10.0.0.2:40001".parse().unwrap();
    t.open();
    let mut at = [0u64; 2];
    for turn in &simple().turns {
        let s = side(turn.direction);
        let verdict = t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
        assert_eq!(verdict, Verdict::Forward);
        at[s] += turn.bytes.len() as u64;
    }
    assert_eq!((t.judged(), t.engine.counters().drained), (3, 1));
    let left_alone = t.engine.view_flows(0..9).filter(|it| it.is_left_alone).count();
    assert_eq!(left_alone, 1);
}
