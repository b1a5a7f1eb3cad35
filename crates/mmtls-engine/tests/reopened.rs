//! A server that has lost a connection, and answers with SYN cookies (RFC 4987, section 3.6): an acknowledgment with that
//! connection's numbers, or, of Linux, with others that are as far behind both, opens one that the monitor takes for the old
//! one. What was acknowledged of that is not kept, so nothing that is said there could be compared; behind a hole nothing is
//! read, and a record that is not whole may have anything in it. Each test says what must hold.

use crate::harness::attack::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

const SECOND: u64 = 1_000_000_000;
const FIN: u8 = flag::FIN | flag::ACK;

fn strict() -> T {
    T::with(Config { mid_stream_grace_ns: 0, ..T::config() })
}

/// A session that both ends have used and acknowledged. These, client and server, have finished; where both stand.
fn used(finished: [bool; 2]) -> (T, [u64; 2]) {
    let mut t = strict();
    let mut at = established(&mut t);
    let acknowledge = |t: &mut T, at: [u64; 2]| {
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &[]), Verdict::Forward);
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &[]), Verdict::Forward);
    };
    acknowledge(&mut t, at);
    if finished[1] {
        assert_eq!(t.send(S, at[1] as i64, at[0], FIN, &[]), Verdict::Forward);
        at[1] += 1;
        acknowledge(&mut t, at);
    }
    if finished[0] {
        assert_eq!(t.send(C, at[0] as i64, at[1], FIN, &[]), Verdict::Forward);
        at[0] += 1;
        acknowledge(&mut t, at);
    }
    (t, at)
}

/// Both ends finish, the server first.
fn finish(t: &mut T, at: &mut [u64; 2]) {
    for d in [S, C] {
        t.send(d, at[side(d)] as i64, at[1 - side(d)], FIN, &[]);
        at[side(d)] += 1;
    }
    t.send(S, at[1] as i64, at[0], flag::ACK, &[]);
}

const FINISHED: [[bool; 2]; 4] = [[false; 2], [false, true], [true, false], [true; 2]];

#[test]
fn numbers_of_an_old_connection_must_not_open_another_one() {
    for finished in FINISHED {
        // The cookie itself, and as far behind both numbers, with any segment size in it.
        for behind in [0, 1, 100, 500] {
            for beside in -3..=3i64 {
                let Ok(acknowledgment) = u64::try_from(behind + beside) else {
                    continue;
                };
                for data in [&[][..], &hello()[..]] {
                    let (mut t, _) = used(finished);
                    let verdict = t.send(C, behind, acknowledgment, flag::ACK, data);
                    assert_eq!(verdict, Verdict::Drop, "{finished:?} {behind} {beside}");
                    assert_eq!(t.engine.counters().out_of_window, 1);
                }
            }
        }
    }
}

#[test]
fn an_old_acknowledgment_must_not_bring_bytes_that_cannot_be_compared() {
    // Where such a connection is open, by whatever way.
    for finished in FINISHED {
        for (from, acknowledgment) in [(0, 50), (10, 400), (200, 0), (300, 1)] {
            let (mut t, at) = used(finished);
            let new = at[0] as usize - from as usize;
            for data in [&hello()[..], &vec![0x17; new + 20]] {
                assert_eq!(t.send(C, from, acknowledgment, flag::ACK, data), Verdict::Drop);
            }
        }
    }
}

#[test]
fn a_cookie_must_not_be_taken_up_behind_a_hole() {
    // A download: the client has sent less than it has acknowledged.
    let (mut t, mut at) = used([false; 2]);
    for number in 1..9 {
        let record = sealed(S, number);
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &record), Verdict::Forward);
        at[1] += record.len() as u64;
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &[]), Verdict::Forward);
    }
    let ahead = at[0] + 100;
    assert!(ahead + 100 < at[1]);
    for data in [&[][..], &hello()[..]] {
        assert_eq!(t.send(C, ahead as i64, ahead, flag::ACK, data), Verdict::Drop);
        assert_eq!(t.send(C, ahead as i64, at[1], flag::ACK, data), Verdict::Forward, "its own");
        assert_eq!(t.send(C, at[1] as i64 + 3, at[1], flag::ACK, data), Verdict::Drop);
        assert_eq!(t.send(C, at[1] as i64 + 4, at[1], flag::ACK, data), Verdict::Forward);
    }
}

#[test]
fn a_cookie_must_not_be_taken_up_where_an_upload_was_acknowledged() {
    // The client has sent more than it has acknowledged, so that its latest acknowledgment may be such a number.
    let (mut t, mut at) = used([false; 2]);
    for number in 1..9 {
        let record = sealed(C, number);
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &record), Verdict::Forward);
        at[0] += record.len() as u64;
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &[]), Verdict::Forward);
    }
    assert!(at[1] + 200 < at[0]);
    for data in [&[][..], &hello()[..]] {
        assert_eq!(t.send(C, at[1] as i64, at[1], flag::ACK, data), Verdict::Drop);
        assert_eq!(t.send(C, at[1] as i64 + 4, at[1], flag::ACK, data), Verdict::Forward);
        // Of what the server has not said nobody asks it.
        t.out.clear();
        assert_eq!(t.send(C, at[1] as i64 + 50, at[1] + 50, flag::ACK, data), Verdict::Drop);
        assert!(t.out.is_empty());
    }
}

#[test]
fn a_cookie_must_not_be_taken_up_inside_a_record_that_is_not_whole() {
    for finished in [[false; 2], [false, true]] {
        let (mut t, mut at) = used(finished);
        let [header, data] = [[0x17, 3, 3, 0x40, 0], [0; 5]];
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &header), Verdict::Forward);
        at[0] += header.len() as u64;
        let from = at[0] as i64;
        assert!(at[0] + 3 < at[1]);
        // To begin one, and what stands behind that.
        for acknowledgment in [at[0], at[0] + 3] {
            assert_eq!(t.send(C, from, acknowledgment, flag::ACK, &[]), Verdict::Drop);
            assert_eq!(t.send(C, from, acknowledgment, flag::ACK, &hello()), Verdict::Drop);
        }
        // Of a server that has finished there may be another cookie.
        if finished[1] {
            assert_eq!(t.send(C, from, 0, flag::ACK, &hello()), Verdict::Drop);
            assert_eq!(t.send(C, from, at[1] - 1, flag::ACK, &hello()), Verdict::Drop);
        }
        assert_eq!(t.send(C, from, at[1] - 20, flag::ACK, &[]), Verdict::Forward, "overtaken");
        assert_eq!(t.send(C, from, at[1], flag::ACK, &data), Verdict::Forward, "its own");
    }
}

#[test]
fn a_cookie_must_not_be_taken_up_where_nothing_is_tls_so_far() {
    let mut t = strict();
    t.open();
    let at = t.say(&[(C, b"send it\n"), (S, &[b'y'; 3000]), (C, b"and bye\n")]);
    t.send(S, at[1] as i64, at[0], flag::ACK, &[]);
    for finished in [false, true] {
        let mut at = at;
        if finished {
            finish(&mut t, &mut at);
        }
        assert_eq!(t.send(C, at[0] as i64, at[0], flag::ACK, &hello()), Verdict::Drop);
    }
}

#[test]
fn a_sender_that_has_not_heard_of_an_acknowledgment_must_hear_of_it_again() {
    let mut t = strict();
    t.open();
    let hello = hello();
    let (head, tail) = hello.split_at(60);
    assert_eq!(t.send(C, 0, 0, flag::ACK, head), Verdict::Forward);
    // It is lost on its way to the client, and so is the tail on its way to the server.
    t.send(S, 0, 60, flag::ACK, &[]);
    assert_eq!(t.send(C, 60, 0, flag::ACK, tail), Verdict::Forward);
    assert!(t.out.is_empty());
    assert_eq!(t.send(C, 0, 0, flag::ACK, head), Verdict::Drop);
    // The receiver answers what stands in front of its window.
    let expected = t.ep.frame(C, 59, 0, flag::ACK, &[]);
    match &t.out[..] {
        [Output::Inject { exit: Exit::AwayFrom(PortId(0)), frame }] => {
            assert_eq!(frame[26..50], expected[26..50], "addresses, numbers, flags");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(t.send(S, 0, 60, flag::ACK, &[]), Verdict::Forward);
    assert_eq!(t.send(C, 60, 0, flag::ACK, tail), Verdict::Forward);
    // No cookie is in force any more.
    t.now += 181 * SECOND;
    assert_eq!(t.send(C, 0, 0, flag::ACK, head), Verdict::Forward);
}

#[test]
fn an_opening_that_takes_long_must_not_make_a_cookie_look_old() {
    let mut t = strict();
    for _ in 0..50 {
        t.send(C, -1, 0, flag::SYN, &[]);
        t.now += 4 * SECOND;
        t.engine.handle_timeout(t.now);
    }
    let at = established(&mut t);
    t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    t.send(S, at[1] as i64, at[0], flag::ACK, &[]);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Drop);
    assert!(t.out.iter().all(|it| !matches!(it, Output::Inject { .. })), "nobody is asked");
    t.now += 181 * SECOND;
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
}

#[test]
fn what_honest_ends_repeat_must_pass() {
    for finished in FINISHED {
        let (mut t, at) = used(finished);
        // Its acknowledgment was lost on its way to the sender.
        let last = sealed(C, 0);
        let end = at[0] - u64::from(finished[0]);
        let from = (end - last.len() as u64) as i64;
        let flags = if finished[0] { FIN } else { flag::ACK };
        assert_eq!(t.send(C, from, at[1], flags, &last), Verdict::Forward, "{finished:?}");
        assert_eq!(t.send(C, from, at[1], flag::ACK, &last[..100]), Verdict::Forward);
        assert_eq!(
            t.send(C, at[0] as i64 - 1, at[1], flag::ACK, &[]),
            Verdict::Forward,
            "keep-alive"
        );
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &[]), Verdict::Forward);
        assert_eq!(
            t.send(S, at[1] as i64, at[0] - 50, flag::ACK, &[]),
            Verdict::Forward,
            "overtaken"
        );
        assert!(t.engine.handler().anomalies.is_empty());
    }
    // Where both have said as much, a keep-alive stands where a cookie may.
    let mut t = strict();
    t.open();
    t.say(&[(C, &[b'x'; 90]), (S, &[b'x'; 90])]);
    t.send(C, 90, 90, flag::ACK, &[]);
    assert_eq!(t.send(C, 89, 90, flag::ACK, &[]), Verdict::Forward);
    // What asks in the place of a segment does not.
    t.send(S, 90, 90, flag::ACK, &[]);
    assert_eq!(t.send(C, 87, 90, flag::ACK, b"xxx"), Verdict::Drop);
    let expected = t.ep.frame(C, 82, 90, flag::ACK, &[]);
    let [Output::Inject { frame, .. }] = &t.out[..] else { panic!("{:?}", t.out) };
    assert_eq!(frame[26..50], expected[26..50]);
    // A ClientHello that nobody has acknowledged does, too.
    let mut t = strict();
    t.open();
    for _ in 0..2 {
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
    }
}

#[test]
fn a_new_connection_with_the_numbers_of_one_that_waits_for_keys_must_be_followed() {
    // Both ends have finished, and what has been delivered waits for its keys; the server's answer is a cookie, the same as
    // before.
    let mut t = strict();
    t.open();
    let script = simple();
    let mut at = [0u64; 2];
    for turn in &script.turns[..2] {
        let s = side(turn.direction);
        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
        at[s] += turn.bytes.len() as u64;
    }
    finish(&mut t, &mut at);
    assert!(t.alive(), "it waits for keys");
    t.open();
    assert!(!t.alive());
    let _ = (t.keys(C, 0), t.keys(S, 0));
    t.play(&script);
    assert_eq!(t.judged(), 2);
}
