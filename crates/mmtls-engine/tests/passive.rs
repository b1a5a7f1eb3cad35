//! Copies of live traffic, of which some are lost for good and whose end may never come: nothing is
//! held or sent, and what was lost must not be waited for. Each test says what must hold.

use crate::harness::attack::*;
use crate::harness::{Event, RANDOM, SUITE, keys};
use mmtls_engine::session::*;
use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::{NullKeys12, ScriptBuilder, side};

const SECOND: u64 = 1_000_000_000;

fn passive() -> T {
    T::with(config())
}

fn config() -> Config {
    let mut config = T::config();
    config.inline = false;
    config.policies = Policies {
        integrity_failure: Policy::Forward,
        lost_synchronisation: Policy::Bypass,
        memory_cap: Policy::Bypass,
        ..Policies::new(Policy::Forward)
    };
    config
}

fn ended(t: &T) -> Vec<EndReason> {
    let events = t.engine.handler().events.iter();
    events
        .filter_map(|it| if let Event::SessionEnd(why) = it { Some(*why) } else { None })
        .collect()
}

/// The server's record `number` at this offset.
fn say(t: &mut T, at: [u64; 2], number: u64) -> u64 {
    let record = sealed(S, number);
    t.send(S, at[1] as i64, at[0], flag::ACK, &record);
    at[1] + record.len() as u64
}

#[test]
fn lost_copy_must_be_declared_and_not_waited_for() {
    let mut t = passive();
    let mut at = established(&mut t);
    // One record is lost on its way to the monitor, many more come.
    at[1] += sealed(S, 1).len() as u64;
    for number in 2..50 {
        at[1] = say(&mut t, at, number);
        t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    }
    assert!(t.engine.handler().errors().is_empty(), "copies may only be late");
    assert!(t.engine.buffered_bytes() > 10_000);
    t.now += SECOND;
    at[1] = say(&mut t, at, 50);
    t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    assert_eq!(t.engine.handler().errors(), [(S, SessionError::LostSynchronisation)]);
    assert_eq!(t.engine.buffered_bytes(), 0);
    // It goes on, is not understood, and its end is seen.
    for number in 51..60 {
        at[1] = say(&mut t, at, number);
        t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    }
    assert_eq!(t.engine.counters().out_of_window, 0);
    t.send(S, at[1] as i64, at[0], flag::FIN | flag::ACK, &[]);
    t.send(C, at[0] as i64, at[1] + 1, flag::FIN | flag::ACK, &[]);
    t.send(S, at[1] as i64 + 1, at[0] + 1, flag::ACK, &[]);
    assert_eq!(ended(&t), [EndReason::Closed]);
    assert_eq!(t.judged(), 2);
}

#[test]
fn late_copies_must_fill_the_gap() {
    let mut t = passive();
    let at = established(&mut t);
    let first = sealed(S, 1).len() as u64;
    let end = say(&mut t, [at[0], at[1] + first], 2);
    // The other direction's copies are faster.
    t.send(C, at[0] as i64, end, flag::ACK, &[]);
    t.now += SECOND / 2;
    t.send(C, at[0] as i64, end, flag::ACK, &[]);
    say(&mut t, at, 1);
    assert_eq!(t.judged(), 4);
    t.now += 2 * SECOND;
    t.send(C, at[0] as i64, end, flag::ACK, &[]);
    say(&mut t, [at[0], end], 3);
    assert_eq!(t.judged(), 5);
    assert!(t.engine.handler().errors().is_empty());
}

#[test]
fn lost_end_must_not_hide_the_next_connection() {
    let mut t = passive();
    established(&mut t);
    t.ep.initial = [7_000_000, 3_000_000_000];
    t.open();
    let _ = (t.keys(C, 0), t.keys(S, 0));
    t.play(&simple());
    assert_eq!(t.judged(), 4, "{:?}", t.engine.handler().events);
    assert_eq!(ended(&t), [EndReason::Replaced]);
    // A SYN that nobody answers replaces nothing, nor does an answer to another one.
    t.ep.initial = [9_000_000, 4_000_000_000];
    t.send(C, -1, 0, flag::SYN, &[]);
    t.ep.initial[0] += 1;
    t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    assert_eq!(ended(&t).len(), 1);
}

#[test]
fn late_keys_must_open_what_has_long_passed() {
    let mut t = passive();
    t.open();
    let mut at = t.play(&simple());
    for number in 1..3000 {
        let record = sealed(S, number);
        let verdict = t.send(S, at[1] as i64, at[0], flag::ACK, &record);
        assert_eq!(verdict, Verdict::Forward, "nothing is held");
        at[1] += record.len() as u64;
        t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    }
    // The bytes themselves, once, in a buffer that doubles.
    assert!(t.engine.buffered_bytes() < 3 << 20, "{} bytes", t.engine.buffered_bytes());
    let _ = (t.keys(C, 0), t.keys(S, 0));
    assert_eq!(t.judged(), 2 + 2999);
    assert!(t.engine.handler().errors().is_empty());
    // And what waited for them is let go of at once, not with the next packet.
    assert_eq!(t.engine.buffered_bytes(), 0);
}

#[test]
fn reset_by_the_application_must_send_nothing() {
    let mut t = passive();
    t.engine.handler_mut().reset_at = Some(1);
    t.open();
    let _ = (t.keys(C, 0), t.keys(S, 0));
    t.play(&simple());
    assert_eq!(ended(&t), [EndReason::ResetByHandler]);
    assert!(!t.out.iter().any(|it| matches!(it, Output::Inject { .. })), "{:?}", t.out);
    assert_eq!(t.engine.counters().resets_injected, 0);
}

/// Copies are late: the client has taken much of what comes behind the record that led to the reset, and waits
/// where its last acknowledgment says.
#[test]
fn resets_must_meet_where_the_client_waits() {
    let mut t = T::with(Config { resets_beside: true, ..config() });
    let mut at = established(&mut t);
    t.engine.handler_mut().reset_at = Some(t.judged() + 1);
    for number in 1..500 {
        at[1] = say(&mut t, at, number);
    }
    assert_eq!(ended(&t), [EndReason::ResetByHandler]);
    let begin = at[1] - 400 * sealed(S, 1).len() as u64;
    t.out.clear();
    for acknowledged in (begin..at[1]).step_by(1000).chain([at[1]]) {
        t.send(C, at[0] as i64, acknowledged, flag::ACK, &[]);
    }
    let last = t.ep.initial[1].wrapping_add(1).wrapping_add(at[1] as u32);
    let mut rsts = t.out.iter().filter_map(|it| match it {
        Output::Inject { frame, .. } => Some(u32::from_be_bytes(frame[38..42].try_into().unwrap())),
        _ => None,
    });
    assert_eq!(rsts.next_back(), Some(last));
}

#[test]
fn syn_data_must_count_when_it_is_acknowledged_and_only_then() {
    // TCP Fast Open (RFC 7413): the ClientHello on the SYN.
    let script = simple();
    let hello = &script.turns[0].bytes;
    for accepted in [true, false] {
        let mut t = passive();
        t.send(C, -1, 0, flag::SYN, hello);
        let taken = if accepted { hello.len() as u64 } else { 0 };
        t.send(S, -1, taken, flag::SYN | flag::ACK, &[]);
        assert_eq!(t.started(), accepted);
        if !accepted {
            // Now something else may come in its place.
            t.send(C, 0, 0, flag::ACK, b"GET / HTTP/1.1");
            assert!(!t.started());
            continue;
        }
        let _ = t.keys(C, 0);
        let _ = t.keys(S, 0);
        let mut at = [hello.len() as u64, 0];
        for turn in &script.turns[1..] {
            let s = side(turn.direction);
            t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            at[s] += turn.bytes.len() as u64;
        }
        assert_eq!(t.judged(), 2);
    }
}

#[test]
fn accepted_syn_data_must_not_change() {
    let hello = hello();
    let mut t = passive();
    t.send(C, -1, 0, flag::SYN, &vec![b'G'; hello.len()]);
    t.send(S, -1, hello.len() as u64, flag::SYN | flag::ACK, &[]);
    // The first bytes are settled; these are old ones, whatever they say.
    t.send(C, 0, 0, flag::ACK, &hello);
    assert!(!t.started());
}

/// A dialog that waits for keys, and the events of records that its keys lead to.
fn late_dialog(t: &mut T) -> [u64; 2] {
    t.open();
    let mut at = t.play(&simple());
    for number in 1..3 {
        for direction in [C, S] {
            let record = sealed(direction, number);
            let from = at[side(direction)];
            t.send(direction, from as i64, at[1 - side(direction)], flag::ACK, &record);
            at[side(direction)] += record.len() as u64;
        }
    }
    assert_eq!(t.judged(), 0);
    at
}

fn directions(t: &T) -> Vec<Direction> {
    let events = t.engine.handler().events.iter();
    let records = events.filter_map(|it| match it {
        Event::Record(direction, ..) => Some(*direction),
        _ => None,
    });
    records.collect()
}

#[test]
fn answers_must_not_come_before_questions_whichever_keys_are_first() {
    for order in [[C, S], [S, C]] {
        let mut t = passive();
        late_dialog(&mut t);
        for direction in order {
            let _ = t.keys(direction, 0);
        }
        assert_eq!(directions(&t), [C, C, C, S, S, S], "{order:?}");
    }
    // Those of the server are there before the dialog.
    let mut t = passive();
    let _ = t.keys(S, 0);
    late_dialog(&mut t);
    let _ = t.keys(C, 0);
    assert_eq!(directions(&t), [C, C, C, S, S, S]);
    let counters = t.engine.counters();
    assert_eq!((counters.stalls, counters.stalls_ended_by_keys), (2, 2));
}

#[test]
fn servers_must_not_wait_for_keys_of_the_client_for_ever() {
    for early in [true, false] {
        let mut t = passive();
        if early {
            let _ = t.keys(S, 0);
        }
        late_dialog(&mut t);
        if !early {
            let _ = t.keys(S, 0);
        }
        assert_eq!(directions(&t), []);
        t.now += 30 * SECOND;
        let now = t.now;
        t.engine.handle_timeout(now);
        assert_eq!(directions(&t), [S, S, S], "{early}");
        assert_eq!(t.engine.handler().errors(), [(C, SessionError::MissingKeys)]);
    }
}

#[test]
fn resets_must_not_end_what_waits_for_keys() {
    for late in [true, false] {
        let mut t = passive();
        let at = late_dialog(&mut t);
        t.send(C, at[0] as i64, at[1], flag::RST, &[]);
        assert_eq!(ended(&t), [], "its keys are on their way");
        if late {
            t.now += 30 * SECOND;
            let now = t.now;
            t.engine.handle_timeout(now);
        } else {
            let _ = t.keys(C, 0);
            let _ = t.keys(S, 0);
            assert_eq!(t.judged(), 6);
        }
        assert_eq!(ended(&t), [EndReason::ResetByPeer(C)], "{late}");
        assert_eq!(t.engine.buffered_bytes(), 0);
    }
}

/// Finished and an answer in one segment, behind a request that was sent before Finished (RFC 7918).
#[test]
fn answers_must_not_come_before_questions_of_a_false_start() {
    let build = || {
        let keys = |direction, epoch| NullKeys12(keys(direction, epoch).0);
        let mut builder = ScriptBuilder::tls12(RANDOM, SUITE, keys);
        builder.record(C, ContentType::APPLICATION_DATA, &[7; 500], 0);
        builder.record(S, ContentType::APPLICATION_DATA, &[8; 500], 0);
        builder.build()
    };
    let opener = |d| Box::new(NullKeys12(keys(d, KeyEpoch::Application(0)).0));
    for (first, second) in [(S, C), (C, S)] {
        let mut config = config();
        config.supports = |_, _| true;
        let mut t = T::with(config);
        t.open();
        let client = Some(t.ep.client.ip());
        if first == S {
            let _ = t.keys_with(S, 0, opener(S), RANDOM, client);
        }
        let [hello, answer, exchange, finished, request, response] =
            build().turns.try_into().unwrap();
        let last = [finished.bytes, response.bytes].concat();
        t.say(&[
            (C, &hello.bytes),
            (S, &answer.bytes),
            (C, &[exchange.bytes, request.bytes].concat()),
            (S, &last),
        ]);
        assert_eq!(directions(&t), [], "{first:?}");
        for direction in [first, second] {
            let _ = t.keys_with(direction, 0, opener(direction), RANDOM, client);
        }
        assert_eq!(directions(&t), [C, S], "{first:?}");
    }
}

#[test]
fn order_must_not_be_waited_for_twice() {
    let mut config = config();
    config.limits.stall_max_bytes = 3000;
    let mut t = T::with(config);
    let _ = t.keys(S, 0);
    let mut at = late_dialog(&mut t);
    for number in 3..50 {
        at[1] = say(&mut t, at, number);
    }
    assert_eq!(directions(&t), [S; 50]);
    assert_eq!(t.engine.counters().stalls_ended_by_limit, 1);
    let _ = t.keys(C, 0);
    assert_eq!(directions(&t)[50..], [C; 3]);
}

/// What a server's own keys are missing for is told when it is its turn.
#[test]
fn stalls_behind_the_client_must_be_told_once() {
    let mut t = passive();
    late_dialog(&mut t);
    let stalls = |t: &T| {
        let events = t.engine.handler().events.iter();
        events.filter_map(|it| if let Event::Stall(of) = it { Some(*of) } else { None }).collect()
    };
    let before: Vec<Direction> = stalls(&t);
    assert_eq!(before, [C]);
    let _ = t.keys(C, 0);
    assert_eq!(stalls(&t), [C, S]);
    let _ = t.keys(S, 0);
    let after: Vec<Direction> = stalls(&t);
    assert_eq!((after.len(), directions(&t).len()), (2, 6));
    assert_eq!(t.engine.counters().stalls, 2);
    assert_eq!(t.engine.counters().stalls_ended_by_keys, 2);
}
