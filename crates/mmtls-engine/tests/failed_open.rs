//! Frames have passed that the engine was not shown: what it knows of connections is void, but for what it has reset.

use crate::harness::Event;
use crate::harness::attack::*;
use mmtls_engine::session::EndReason;
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
