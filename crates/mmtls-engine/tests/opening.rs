//! How connections begin: whatever SYNs, answers and segments somebody sends, in whoever's name, either
//! the connection that its endpoints have is followed, or nothing of it passes; and nobody else's is
//! blocked. Each test says what must hold.

use crate::harness::attack::*;
use crate::harness::keys;
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::*;

const SYN: u8 = flag::SYN;
const SYN_ACK: u8 = flag::SYN | flag::ACK;
const SECOND: u64 = 1_000_000_000;

/// Without the time in which connections that were there before pass.
fn strict() -> T {
    T::with(Config { mid_stream_grace_ns: 0, ..T::config() })
}

/// The same four-tuple with other initial sequence numbers.
fn numbered(t: &T, client: u32, server: u32) -> Endpoints {
    let [c, s] = t.ep.initial;
    Endpoints { initial: [c.wrapping_add(client), s.wrapping_add(server)], ..t.ep }
}

/// Sends a segment as if these were the numbers.
fn send_as(
    t: &mut T,
    ep: Endpoints,
    d: Direction,
    at: (i64, u64),
    flags: u8,
    data: &[u8],
) -> Verdict {
    let frame = ep.frame(d, at.0, at.1, flags, data);
    t.raw(side(d) as u8, &frame)
}

/// The session of an open connection, with keys; how many records were judged.
fn judged(t: &mut T) -> usize {
    let _ = (t.keys(C, 0), t.keys(S, 0));
    t.play(&simple());
    t.judged()
}

#[test]
fn syns_and_their_answers_must_not_carry_data() {
    let mut t = strict();
    for data in [&hello()[..], b"x"] {
        assert_eq!(t.send(C, -1, 0, SYN, data), Verdict::Drop);
        t.send(C, -1, 0, SYN, &[]);
        assert_eq!(t.send(S, -1, 0, SYN_ACK, data), Verdict::Drop);
    }
    for more in [flag::FIN, flag::RST] {
        assert_eq!(t.send(C, -1, 0, SYN | more, &[]), Verdict::Drop);
        assert_eq!(t.send(S, -1, 0, SYN_ACK | more, &[]), Verdict::Drop);
    }
    assert_eq!(t.engine.counters().syn_data, 8);
    t.open();
    assert_eq!(judged(&mut t), 2);
}

#[test]
fn a_second_syn_must_not_move_the_stream() {
    // Before the answer, after it, and behind the first acknowledgment; with smaller and larger
    // numbers; once and three times.
    for offset in [-1000i32, -100, -1, 1, 100, 1 << 20] {
        for place in 0..3 {
            for times in [1, 3] {
                let mut t = strict();
                t.send(C, -1, 0, SYN, &[]);
                if place > 0 {
                    t.send(S, -1, 0, SYN_ACK, &[]);
                }
                if place > 1 {
                    t.send(C, 0, 0, flag::ACK, &[]);
                }
                for n in 1..=times {
                    let other = numbered(&t, (offset * n) as u32, 0);
                    send_as(&mut t, other, C, (-1, 0), SYN, &[]);
                }
                t.open();
                let what = format!("{offset} {place} {times}");
                assert_eq!(judged(&mut t), 2, "{what}");
                assert_eq!(t.engine.handler().errors(), [], "{what}");
            }
        }
    }
}

#[test]
fn a_second_syn_of_the_server_must_not_move_the_stream() {
    for offset in [-1000i32, -5, 1, 70_000] {
        for place in 0..3 {
            let mut t = strict();
            t.send(C, -1, 0, SYN, &[]);
            if place > 0 {
                t.send(S, -1, 0, SYN_ACK, &[]);
            }
            if place > 1 {
                t.send(C, 0, 0, flag::ACK, &[]);
            }
            let other = numbered(&t, 0, offset as u32);
            send_as(&mut t, other, S, (-1, 0), SYN, &[]);
            // A fake ServerHello and the head of a record that would cover the real stream.
            let fake = [
                &plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], 0x1301))[..],
                &[23, 3, 3, 0x41, 0],
            ]
            .concat();
            send_as(&mut t, other, S, (0, 0), flag::ACK, &fake);
            t.open();
            let judged = judged(&mut t);
            // On an open connection these are bytes ahead that do not agree with the later ones.
            let refused = place == 2 && !t.alive();
            assert!(judged == 2 || refused, "{offset} {place}: {:?}", t.engine.handler().events);
        }
    }
}

#[test]
fn the_acknowledgment_of_the_client_must_choose_among_answers() {
    // SYN cookies, load balancers: a server answers twice, with other numbers.
    for taken in 0..3u32 {
        let mut t = strict();
        t.send(C, -1, 0, SYN, &[]);
        for answer in 0..3u32 {
            let other = numbered(&t, 0, answer * 777_777);
            assert_eq!(send_as(&mut t, other, S, (-1, 0), SYN_ACK, &[]), Verdict::Forward);
        }
        let honest = numbered(&t, 0, taken * 777_777);
        let void = numbered(&t, 0, (taken + 1) % 3 * 777_777);
        t.ep = honest;
        t.send(C, 0, 0, flag::ACK, &[]);
        // The others are void.
        assert_eq!(send_as(&mut t, void, S, (-1, 0), SYN_ACK, &[]), Verdict::Drop);
        assert_eq!(send_as(&mut t, void, C, (1, 0), flag::ACK, &hello()), Verdict::Drop);
        assert_eq!(judged(&mut t), 2);
    }
}

#[test]
fn an_answer_to_nothing_must_be_refused_as_its_receiver_would() {
    let mut t = strict();
    t.send(C, -1, 0, SYN, &[]);
    assert_eq!(t.send(S, -1, 5, SYN_ACK, &[]), Verdict::Drop);
    let frames: Vec<&Vec<u8>> = t
        .out
        .iter()
        .filter_map(|it| if let Output::Inject { frame, .. } = it { Some(frame) } else { None })
        .collect();
    let expected = t.ep.frame(C, 5, 0, flag::RST | flag::ACK, &[]);
    assert_eq!(frames.len(), 1);
    assert_eq!(frames[0][26..42], expected[26..42], "addresses, ports, sequence number");
    t.send(S, -1, 0, SYN_ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &[]);
    assert_eq!(judged(&mut t), 2);
}

#[test]
fn nothing_must_pass_before_the_connection_is_open() {
    let data = hello();
    for (d, at, flags) in [
        (C, (0, 0), flag::ACK),
        (C, (3, 0), flag::ACK),
        (C, (0, 0), 0),
        (C, (0, 7), flag::ACK),
        (C, (-5, 0), flag::ACK),
        (C, (1 << 20, 0), flag::ACK),
        (C, (0, 0), flag::FIN | flag::ACK),
        (S, (0, 0), flag::ACK),
        (S, (0, 0), flag::FIN | flag::ACK),
    ] {
        // Before the answer.
        let mut t = strict();
        t.send(C, -1, 0, SYN, &[]);
        assert_eq!(t.send(d, at.0, at.1, flags, &data), Verdict::Drop, "{d:?} {at:?} {flags}");
        t.open();
        assert_eq!(judged(&mut t), 2);
        // Behind it, but for what opens the connection.
        if (d, at.1, flags & flag::ACK) != (C, 0, flag::ACK) || at.0 != 0 {
            let mut t = strict();
            t.send(C, -1, 0, SYN, &[]);
            t.send(S, -1, 0, SYN_ACK, &[]);
            assert_eq!(t.send(d, at.0, at.1, flags, &data), Verdict::Drop, "{d:?} {at:?} {flags}");
            t.send(C, 0, 0, flag::ACK, &[]);
            assert_eq!(judged(&mut t), 2);
        }
    }
}

#[test]
fn data_may_bring_the_acknowledgment_and_nothing_may_overtake_it() {
    let hello = hello();
    let mut t = strict();
    t.send(C, -1, 0, SYN, &[]);
    t.send(S, -1, 0, SYN_ACK, &[]);
    let (head, tail) = hello.split_at(20);
    assert_eq!(t.send(C, 20, 0, flag::ACK, tail), Verdict::Drop);
    assert_eq!(t.send(C, 0, 0, flag::ACK, head), Verdict::Forward);
    assert_eq!(t.send(C, 20, 0, flag::ACK, tail), Verdict::Forward);
    assert!(t.started());
}

#[test]
fn numbers_close_to_a_cookie_must_not_be_taken() {
    // A server behind SYN cookies goes on from up to three bytes later, or one earlier.
    for beside in [-1i64, 1, 2, 3] {
        for (first, data) in [(true, false), (false, false), (false, true)] {
            let mut t = strict();
            t.send(C, -1, 0, SYN, &[]);
            t.send(S, -1, 0, SYN_ACK, &[]);
            if !first {
                // The right one dies behind the monitor.
                t.send(C, 0, 0, flag::ACK, &[]);
            }
            let bytes = if data { hello() } else { Vec::new() };
            assert_eq!(t.send(C, beside, 0, flag::ACK, &bytes), Verdict::Drop, "{beside} {first}");
            t.send(C, 0, 0, flag::ACK, &[]);
            assert_eq!(judged(&mut t), 2);
        }
    }
    // Where a server stands, its first segment tells; from then on what is early may come.
    let mut t = strict();
    t.open();
    t.send(S, 0, 0, flag::ACK, &[]);
    assert_eq!(t.send(C, 5, 0, flag::ACK, &hello()[5..]), Verdict::Forward);
}

#[test]
fn a_server_must_not_hear_of_numbers_that_were_not_chosen() {
    // Two attempts are answered, and the wrong one opens the connection here: the acknowledgment of the
    // other one does not pass, empty as it is.
    let mut t = strict();
    let other = numbered(&t, 1000, 5000);
    t.send(C, -1, 0, SYN, &[]);
    t.send(S, -1, 0, SYN_ACK, &[]);
    send_as(&mut t, other, C, (-1, 0), SYN, &[]);
    send_as(&mut t, other, S, (-1, 0), SYN_ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &[]);
    assert_eq!(send_as(&mut t, other, C, (0, 0), flag::ACK, &[]), Verdict::Drop);
    t.send(S, 0, 0, flag::ACK, &[]);
    assert_eq!(send_as(&mut t, other, C, (0, 0), flag::ACK, &[]), Verdict::Drop);
}

#[test]
fn a_hello_out_of_order_behind_a_long_dialog_must_be_found() {
    let mut t = strict();
    t.open();
    let mut at = [0u64; 2];
    for _ in 0..9 {
        for (d, bytes) in [(C, vec![b'x'; 2000]), (S, b"250 ok, ok, ok\r\n".to_vec())] {
            let s = side(d);
            t.send(d, at[s] as i64, at[1 - s], flag::ACK, &bytes);
            at[s] += bytes.len() as u64;
        }
    }
    for (d, bytes) in [(C, &b"STARTTLS\r\n"[..]), (S, b"220 Ready to start TLS\r\n")] {
        let s = side(d);
        t.send(d, at[s] as i64, at[1 - s], flag::ACK, bytes);
        at[s] += bytes.len() as u64;
    }
    assert_eq!(t.engine.buffered_bytes(), 0, "not looked at in order any more");
    let hello = hello();
    let (client, server) = (at[0] as i64, at[1]);
    assert_eq!(t.send(C, client + 20, server, flag::ACK, &hello[20..]), Verdict::Drop);
    t.send(C, client, server, flag::ACK, &hello[..20]);
    t.send(C, client + 20, server, flag::ACK, &hello[20..]);
    assert!(t.started());
}

#[test]
fn answers_must_show_however_the_client_lets_them_arrive() {
    // Five bytes at a time, sent again; and with a byte of the client in between.
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], 0x1301));
    for front in [20usize, 20_000] {
        for interrupts in [false, true] {
            let mut t = strict();
            t.open();
            let passed = if front > 16_384 { front as u64 } else { 0 };
            t.send(C, 0, 0, flag::ACK, &vec![7; front]);
            t.send(S, 0, front as u64, flag::ACK, &vec![9; passed as usize]);
            t.send(C, front as i64, passed, flag::ACK, b"what nobody knows");
            let mut sent = front as u64 + 17;
            let mut verdicts = Vec::new();
            for (n, piece) in answer.chunks(5).enumerate() {
                let place = passed as i64 + 5 * n as i64;
                for _ in 0..2 {
                    verdicts.push(t.send(S, place, sent, flag::ACK, piece));
                }
                if interrupts && n == 0 {
                    t.send(C, sent as i64, passed + 5, flag::ACK, &[0x14]);
                    sent += 1;
                }
            }
            assert_eq!(verdicts.last(), Some(&Verdict::Drop), "{front} {interrupts}");
            assert!(t.engine.handler().anomalies.contains(&(S, TcpAnomaly::MissedTls)));
        }
    }
}

#[test]
fn acknowledgments_of_what_was_never_sent_must_not_carry_data() {
    let mut t = strict();
    let at = established(&mut t);
    let judged = t.judged();
    // A record of the client, beside the place where it would accuse somebody.
    let record = sealed(C, 1);
    for acknowledged in [at[1] + 5000, u64::from(u32::MAX), u64::from(u32::MAX) - 100_000] {
        let tail = (at[0] + 10) as i64;
        assert_eq!(t.send(C, tail, acknowledged, flag::ACK, &record[10..]), Verdict::Drop);
    }
    assert!(t.alive());
    t.send(C, at[0] as i64, at[1], flag::ACK, &record);
    assert_eq!(t.judged(), judged + 1);
}

#[test]
fn roles_must_follow_the_hello_and_not_the_syn() {
    // The server connects (active FTP), says something else first, and the client's hello comes from
    // the side that was connected to.
    for junk in [&b""[..], &[22, 3, 3, 0, 4, 0, 0, 0, 0], &[22, 3, 3, 0, 0], b"junk!", &[0x16]] {
        let mut t = strict();
        core::mem::swap(&mut t.ep.client, &mut t.ep.server);
        for d in Direction::BOTH {
            let opener = Box::new(keys(d, KeyEpoch::Application(0)));
            let _ = t.keys_with(d, 0, opener, crate::harness::RANDOM, None);
        }
        t.open();
        t.send(C, 0, 0, flag::ACK, junk);
        let mut at = [junk.len() as u64, 0];
        let mut passed = Vec::new();
        for turn in &simple().turns {
            let way = turn.direction.reverse();
            let s = side(way);
            passed.push(t.send(way, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes));
            at[s] += turn.bytes.len() as u64;
        }
        assert!(t.started(), "{junk:?}");
        // What the junk makes of the server's records, its client cannot read either.
        assert!(t.judged() == 2 || !t.alive() && passed[3] == Verdict::Drop, "{junk:?} {passed:?}");
    }
}

#[test]
fn one_side_alone_must_not_open_close_or_block_anything() {
    // In the client's name, in the server's, before the connection, by somebody on either side.
    type Forged = (u8, Direction, (i64, u64), u8, &'static [u8]);
    let forged: [Forged; 12] = [
        (0, C, (0, 0), flag::ACK, b"GET / HTTP/1.1\r\n"),
        (1, C, (0, 0), flag::ACK, b"GET / HTTP/1.1\r\n"),
        (0, C, (0, 0), flag::ACK, &[22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3]),
        (1, C, (0, 0), flag::ACK, &[22, 3, 1, 0, 60, 1, 0, 0, 56, 3, 3]),
        (0, C, (-1, 0), SYN, b""),
        (1, C, (-1, 0), SYN, b""),
        (0, C, (-1, 0), SYN_ACK, b""),
        (1, S, (-1, 0), SYN, b""),
        (1, S, (-1, 0), SYN_ACK, b""),
        (0, S, (-1, 0), SYN_ACK, b""),
        (1, S, (5, 5), flag::ACK, b"220 hello\r\n"),
        (1, S, (5, 5), flag::RST | flag::ACK, b""),
    ];
    for grace in [0, 60 * SECOND] {
        for policy in [Policy::Reset, Policy::Bypass] {
            for (port, d, at, flags, data) in forged {
                let mut config = T::config();
                config.mid_stream_grace_ns = grace;
                config.policies.mid_stream = policy;
                let mut t = T::with(config);
                for offset in [1_000_000u32, 2_000_000] {
                    let ep = numbered(&t, offset, offset);
                    t.raw(port, &ep.frame(d, at.0, at.1, flags, data));
                }
                t.open();
                let what = format!("{grace} {policy:?} {port} {d:?} {at:?} {flags:#x}");
                assert_eq!(judged(&mut t), 2, "{what}: {:?}", t.engine.handler().events);
            }
        }
    }
}

#[test]
fn what_policy_does_not_let_pass_must_not_take_memory() {
    let mut t = strict();
    for port in 1000..2000u16 {
        t.ep.client.set_port(port);
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Drop);
        assert_eq!(t.send(S, -1, 0, SYN_ACK, &[]), Verdict::Drop);
        assert_eq!(t.send(S, 0, 0, flag::ACK, &[9; 40]), Verdict::Drop);
    }
    assert_eq!((t.engine.flow_count(), t.engine.buffered_bytes()), (0, 0));
    // And where it does, not for long.
    let mut config = T::config();
    config.policies.mid_stream = Policy::Forward;
    let mut t = T::with(config);
    for port in 1000..2000u16 {
        t.ep.client.set_port(port);
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
    }
    let now = t.now + t_opening();
    // Not all in one go.
    while t.engine.next_timeout().is_some_and(|due| due <= now) {
        t.engine.handle_timeout(now);
    }
    assert_eq!(t.engine.flow_count(), 0);
}

fn t_opening() -> u64 {
    T::config().limits.opening_timeout_ns + SECOND
}

#[test]
fn mid_stream_must_not_be_passed_by_what_looks_like_a_beginning() {
    // Unasked SYN-ACKs, with and without data; old segments that look like a hello; segments in the
    // client's name: after each of them the response must still be dropped.
    let hello = hello();
    type Sent<'a> = (Direction, (i64, u64), u8, &'a [u8]);
    let tries: [&[Sent<'_>]; 6] = [
        &[(S, (-1, 0), SYN_ACK, b"")],
        &[(S, (-1, 0), SYN_ACK, b"data")],
        &[(C, (-1, 0), SYN, b""), (S, (-1, 500), SYN_ACK, b"")],
        &[(S, (-600, 0), flag::ACK, &hello)],
        &[(C, (-600, 0), flag::ACK, &hello), (C, (0, 0), flag::ACK, &hello)],
        &[(C, (0, 0), flag::ACK, b"x")],
    ];
    for segments in tries {
        let mut t = strict();
        for (d, at, flags, data) in segments {
            t.send(*d, at.0, at.1, *flags, data);
        }
        let mut passed = 0;
        let mut at = [0u64; 2];
        for turn in &simple().turns {
            let s = side(turn.direction);
            let v = t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            passed += usize::from(v == Verdict::Forward);
            at[s] += turn.bytes.len() as u64;
        }
        assert_eq!(passed, 0, "{segments:?}");
    }
}

#[test]
fn a_reset_and_a_pause_must_not_bring_a_clean_start() {
    // Of a connection that carries nothing yet, something else, or TLS: an exact RST that dies behind
    // the monitor, a pause, and on it goes.
    for (data, pause) in [(&b""[..], 31), (b"GET / HTTP/1.1\r\n", 31), (b"", 200), (b"x", 11)] {
        let mut t = strict();
        t.open();
        t.send(C, 0, 0, flag::ACK, data);
        let at = data.len() as i64;
        t.send(C, at, 0, flag::RST, &[]);
        t.now += pause * SECOND;
        let now = t.now;
        t.engine.handle_timeout(now);
        assert_eq!(t.send(C, at, 0, flag::ACK, &hello()), Verdict::Drop, "{data:?} {pause}");
        assert_eq!(t.send(S, 0, 517, flag::ACK, &[22, 3, 3, 0, 40]), Verdict::Drop);
    }
}

#[test]
fn both_ends_on_the_other_sides_are_another_connection() {
    // What is routed through the monitor twice.
    let mut t = strict();
    for port in [0u8, 1] {
        let send = |t: &mut T, d: Direction, offset: i64, ack: u64, flags: u8, data: &[u8]| {
            let frame = t.ep.frame(d, offset, ack, flags, data);
            t.raw(side(d) as u8 ^ port, &frame)
        };
        send(&mut t, C, -1, 0, SYN, &[]);
        send(&mut t, S, -1, 0, SYN_ACK, &[]);
        send(&mut t, C, 0, 0, flag::ACK, &[]);
        assert_eq!(send(&mut t, C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
    }
    let sessions = t.engine.counters().sessions;
    assert_eq!((t.engine.flow_count(), sessions), (2, 2));
}

#[test]
fn where_nothing_is_judged_nothing_must_be_policed() {
    // A messenger sends its first bytes again, changed, with more behind them.
    let mut t = strict();
    t.open();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &[7; 20_000]), Verdict::Forward);
    assert_eq!(t.send(S, 0, 20_000, flag::ACK, &[9; 20_000]), Verdict::Forward);
    let first: Vec<u8> = (b'a'..b's').collect();
    let again: Vec<u8> = (b'b'..=b'z').cycle().take(169).collect();
    assert_eq!(t.send(C, 20_000, 20_000, flag::ACK, &first), Verdict::Forward);
    assert_eq!(t.send(C, 20_000, 20_000, flag::ACK, &again), Verdict::Forward);
    assert_eq!(t.engine.counters().conflicting_overlaps, 0);
}

#[test]
fn what_a_server_answers_must_show_tls_that_was_missed() {
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], 0x1301));
    let alert = plain(ContentType::ALERT, &[2, 40]);
    for (front, passed) in [(20, 0), (20_000, 20_000)] {
        for answer in [&answer, &alert] {
            for policy in [Policy::Reset, Policy::Bypass] {
                let mut config = T::config();
                config.policies.lost_synchronisation = policy;
                let mut t = T::with(config);
                t.open();
                t.send(C, 0, 0, flag::ACK, &vec![7; front]);
                t.send(S, 0, front as u64, flag::ACK, &vec![9; passed]);
                t.send(C, front as i64, passed as u64, flag::ACK, b"something that nobody knows");
                let sent = front as u64 + 27;
                let verdict = t.send(S, passed as i64, sent, flag::ACK, answer);
                let passes = verdict == Verdict::Forward;
                assert_eq!(passes, policy == Policy::Bypass, "{front} {policy:?}");
                assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::MissedTls)]);
            }
        }
    }
}

#[test]
fn ports_of_tls_must_carry_nothing_else() {
    let front = b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n";
    // More at once than is kept.
    let mut t = T::with(Config { verify_checksums: false, ..Config::new(Policy::Reset) });
    t.open();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &[7; 17_000]), Verdict::Drop);
    for (policy, verdict) in [(Policy::Reset, Verdict::Drop), (Policy::Bypass, Verdict::Forward)] {
        let config = || {
            let mut config = Config::new(policy);
            config.verify_checksums = false;
            config
        };
        assert_eq!(config().policies.not_tls, policy, "it follows missing_keys");
        for (d, other) in
            [(C, &b"GET / HTTP/1.1\r\n"[..]), (S, b"SSH-2.0-x\r\n"), (C, &[0x16, 3, 1, 0, 9, 2])]
        {
            let mut t = T::with(config());
            t.open();
            assert_eq!(t.send(d, 0, 0, flag::ACK, other), verdict, "{policy:?} {other:?}");
            assert_eq!(t.engine.counters().not_tls, u64::from(verdict == Verdict::Drop));
            // On another port it is anybody's.
            let mut t = T::with(config());
            t.ep.server.set_port(8080);
            t.open();
            assert_eq!(t.send(d, 0, 0, flag::ACK, other), Verdict::Forward);
        }
        let mut t = T::with(config());
        t.open();
        assert_eq!(t.send(C, 0, 0, flag::ACK, front), Verdict::Forward);
        t.send(C, front.len() as i64, 0, flag::ACK, &hello());
        assert!(t.started());
        // However a client cuts what it says.
        let other = [b"STARTTLS\r\n", &hello()[..]].concat();
        for piece in [8, 10, 1448] {
            let mut t = T::with(config());
            t.open();
            let mut at = 0;
            for part in other.chunks(piece) {
                t.send(C, at, 0, flag::ACK, part);
                at += part.len() as i64;
            }
            assert_eq!(t.started(), policy == Policy::Bypass, "{policy:?} in pieces of {piece}");
        }
    }
}

#[test]
fn hellos_as_only_servers_take_them_must_be_seen() {
    let hello = hello();
    let with = |version: [u8; 2]| {
        let mut other = hello.clone();
        other[1..3].copy_from_slice(&version);
        other
    };
    let empty = |kind: u8, version: [u8; 2]| [kind, version[0], version[1], 0, 0];
    let mut long = vec![22, 3, 1, 0x42, 0xbd];
    long.extend_from_slice(&[1, 0, 0x42, 0xb9, 3, 3]);
    long.resize(5 + 17_085, 7);
    let mut tries = vec![long, [&empty(20, [3, 1]), &hello[..]].concat()];
    for version in [[0, 1], [4, 1], [9, 0], [0x10, 3], [0xff, 0xff]] {
        tries.push(with(version));
        tries.push([&empty(22, version), &hello[..]].concat());
    }
    for count in [1, 7, 31, 32, 33, 1000, 5000] {
        tries.push([&empty(22, [3, 3]).repeat(count), &hello[..]].concat());
    }
    for bytes in tries {
        for piece in [1usize, 3, 1448, 20_000] {
            let mut t = strict();
            t.open();
            let mut at = 0;
            for part in bytes.chunks(piece) {
                t.send(C, at, 0, flag::ACK, part);
                at += part.len() as i64;
            }
            assert!(t.started(), "{:?} in pieces of {piece}", &bytes[..12]);
        }
    }
}

#[test]
fn a_reset_connection_must_not_block_its_ports() {
    let mut t = strict();
    t.open();
    let at = t.play(&simple());
    assert!(matches!(t.send(C, at[0] as i64, at[1], flag::ACK, &sealed(C, 1)), Verdict::Hold(_)));
    t.now += 10_000_000_000;
    t.engine.handle_timeout(t.now);
    assert!(!t.alive(), "no keys came");
    // Both ends were told, and the client dials again.
    let again = numbered(&t, 7_000_000, 3_000_000_000);
    t.ep = again;
    assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Forward);
    assert_eq!(t.send(S, -1, 0, flag::SYN | flag::ACK, &[]), Verdict::Forward);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &[]), Verdict::Forward);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
}

#[test]
fn what_came_out_of_order_must_not_block_a_connection_in_the_clear() {
    for (hole_first, hello_inside) in [(false, false), (true, false), (false, true)] {
        let mut t = strict();
        t.open();
        t.send(C, 0, 0, flag::ACK, b"a question\r\n");
        t.send(S, 0, 12, flag::ACK, b"an answer\r\n");
        let hello = hello();
        let (hole, ahead) = match hello_inside {
            true => hello.split_at(3),
            false => (&b"one"[..], &b"another question\r\n"[..]),
        };
        // The second segment overtakes the first one, and what the server says meanwhile is enough for
        // the connection not to be read in order any more.
        assert_eq!(t.send(C, 15, 11, flag::ACK, ahead), Verdict::Forward);
        let next = 15 + ahead.len() as u64;
        if hole_first {
            assert_eq!(t.send(C, 12, 11, flag::ACK, hole), Verdict::Forward);
        }
        for part in 0..20 {
            let at = 11 + part * 1000;
            assert_eq!(t.send(S, at, 12, flag::ACK, &[b'x'; 1000]), Verdict::Forward);
        }
        if hello_inside {
            assert_eq!(t.send(C, 12, 20_011, flag::ACK, hole), Verdict::Drop);
            assert_eq!(t.engine.handler().anomalies, [(C, TcpAnomaly::MissedTls)]);
        } else {
            if !hole_first {
                assert_eq!(t.send(C, 12, 20_011, flag::ACK, hole), Verdict::Forward);
            }
            t.send(S, 20_011, next, flag::ACK, b"yes");
            let more = t.send(C, next as i64, 20_014, flag::ACK, b"and more");
            assert_eq!(more, Verdict::Forward, "hole first: {hole_first}");
        }
    }
}

/// A request in the clear and 20 KB of its response; where both streams stand.
fn download(t: &mut T) -> [u64; 2] {
    let request = b"GET / HTTP/1.1\r\n\r\n";
    t.open();
    t.send(C, 0, 0, flag::ACK, request);
    let at = request.len() as u64;
    for part in 0..20 {
        assert_eq!(t.send(S, part * 1000, at, flag::ACK, &[b'x'; 1000]), Verdict::Forward);
    }
    [at, 20_000]
}

#[test]
fn nobody_must_end_a_connection_in_the_clear_from_afar() {
    for (d, bytes) in [(S, &[21, 3, 3, 0, 2, 2, 40][..]), (C, b"STARTTLS\r\n"), (C, &[22, 3, 1])] {
        let mut t = strict();
        let at = download(&mut t);
        // Numbers of nobody.
        let ack = at[1 - side(d)] + 1_700_000_000;
        t.send(d, at[side(d)] as i64 + 1_500_000_000, ack, flag::ACK, bytes);
        let capture =
            [&[b'p'; 300][..], &plain(ContentType::HANDSHAKE, &server_hello(&[1; 32], 0x1301))];
        for (part, bytes) in [&b"more"[..], &capture.concat()].into_iter().enumerate() {
            let sent = t.send(S, at[1] as i64 + 4 * part as i64, at[0], flag::ACK, bytes);
            assert_eq!(sent, Verdict::Forward, "{d:?} {bytes:?}");
        }
    }
}

#[test]
fn a_request_that_is_repeated_must_not_make_a_capture_a_server_hello() {
    let mut t = strict();
    let at = download(&mut t);
    t.send(C, at[0] as i64, at[1], flag::ACK, b"GET /two");
    t.send(C, at[0] as i64 + 8, at[1], flag::ACK, b" HTTP/1.1\r\n\r\n");
    t.send(C, at[0] as i64, at[1], flag::ACK, b"GET /two");
    let capture =
        [&[b'p'; 300][..], &plain(ContentType::HANDSHAKE, &server_hello(&[1; 32], 0x1301))];
    let sent = t.send(S, at[1] as i64, at[0] + 21, flag::ACK, &capture.concat());
    assert_eq!(sent, Verdict::Forward);
}

#[test]
fn a_hello_that_overtakes_the_end_of_what_is_read_must_show_in_the_answer() {
    for ahead in [false, true] {
        let mut t = strict();
        t.open();
        for part in 0..16 {
            t.send(C, part * 1000, 0, flag::ACK, &[b'x'; 1000]);
        }
        t.send(S, 0, 16_000, flag::ACK, b"");
        let hidden = [&b"zz"[..], &hello()].concat();
        let mut parts = [(16_000, &[b'x'; 1000][..]), (17_000, &hidden[..])];
        if ahead {
            parts.reverse();
        }
        for (at, bytes) in parts {
            assert_eq!(t.send(C, at, 0, flag::ACK, bytes), Verdict::Forward);
        }
        let answer =
            [&b"fine"[..], &plain(ContentType::HANDSHAKE, &server_hello(&[1; 32], 0x1301))];
        let sent = t.send(S, 0, 17_000 + hidden.len() as u64, flag::ACK, &answer.concat());
        assert_eq!(sent, Verdict::Drop, "ahead: {ahead}");
    }
}
