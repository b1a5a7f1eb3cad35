//! Ways past the monitor and into its memory, found by the second review. Each test says what must
//! hold.

use crate::harness::attack::*;
use crate::harness::{RANDOM, SUITE};
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

const VLAN: u16 = 0x8100;

/// The frame behind VLAN tags with these identifiers.
fn tagged(frame: &[u8], identifiers: &[u16]) -> Vec<u8> {
    let tags = identifiers.iter().flat_map(|id| [VLAN.to_be_bytes(), id.to_be_bytes()].concat());
    [&frame[..12], &tags.collect::<Vec<_>>(), &frame[12..]].concat()
}

/// Plays a script behind these bytes of the client, which stand in its first segment.
fn play_behind(t: &mut T, before: &[u8], mut at: [u64; 2]) {
    let mut before = before.to_vec();
    for turn in &simple().turns {
        let s = side(turn.direction);
        let bytes = [core::mem::take(&mut before), turn.bytes.clone()].concat();
        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &bytes);
        at[s] += bytes.len() as u64;
    }
}

// Frames.

#[test]
fn vlan_tags_must_not_hide_tcp() {
    let mut t = T::new();
    let frame = t.ep.frame(C, -1, 0, flag::SYN, &[]);
    assert_eq!(t.raw(0, &tagged(&frame, &[0, 0, 0])), Verdict::Drop);
    assert_eq!(t.raw(0, &tagged(&frame, &[0, 0])), Verdict::Forward);
}

#[test]
fn priority_tags_must_not_make_another_connection() {
    let mut t = T::new();
    let frames = [
        (0, t.ep.frame(C, -1, 0, flag::SYN, &[])),
        (1, t.ep.frame(S, -1, 0, flag::SYN | flag::ACK, &[])),
        (0, t.ep.frame(C, 0, 0, flag::ACK, &[])),
        (0, t.ep.frame(C, 0, 0, flag::ACK, &hello())),
    ];
    for ((port, frame), tags) in frames.iter().zip([&[5][..], &[5, 0], &[0, 5], &[5, 0]]) {
        assert_eq!(t.raw(*port, &tagged(frame, tags)), Verdict::Forward);
    }
    assert!(t.started());
    assert_eq!(t.engine.flow_count(), 1);
}

// Data on SYNs.

#[test]
fn syn_ack_must_not_be_repeated_with_data() {
    let mut t = T::new();
    established(&mut t);
    assert_eq!(t.send(S, -1, 0, flag::SYN | flag::ACK, &[0; 5000]), Verdict::Drop);
    assert_eq!(t.send(S, -1, 0, flag::SYN | flag::ACK, &[]), Verdict::Forward);
    assert!(t.alive());
}

// Where TLS begins.

#[test]
fn hello_must_be_found_behind_a_proxy_header() {
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\x01\x0a\0\0\x02\x9c\x40\x01\xbb";
    let mut t = T::new();
    t.open();
    let _ = (t.keys(C, 0), t.keys(S, 0));
    play_behind(&mut t, header, [0; 2]);
    assert!(t.started());
    assert_eq!(t.judged(), 2);
}

#[test]
fn protocols_that_wrap_tls_must_not_be_taken_for_it() {
    // SQL Server's TDS carries the records inside of its own packets.
    let wrapped = [&[0x12, 1, 0, 0xa0, 0, 0, 0, 0][..], &hello()].concat();
    let mut t = T::new();
    t.open();
    t.say(&[
        (C, &[0x12, 1, 0, 9, 0, 0, 1, 0, 1][..]),
        (S, &[4, 1, 0, 9, 0, 0, 1, 0, 1]),
        (C, &wrapped),
        (S, &[0x12, 1, 0, 0x20, 0, 0, 0, 0, 22, 3, 3, 0, 20, 2]),
    ]);
    assert!(!t.started());
    assert_eq!(t.engine.handler().anomalies, []);
}

#[test]
fn urgent_bytes_must_not_hide_a_hello() {
    let urgent = flag::ACK | flag::URG;
    let mut t = T::new();
    t.open();
    let at = t.say(&[(C, &[5, 1, 0][..]), (S, &[5, 0]), (C, &[5, 1]), (S, &[5, 0])]);
    let [client, server] = at;
    let with = [b"A", &hello()[..]].concat();
    assert_eq!(t.send(C, client as i64, server, urgent, &with), Verdict::Drop);
    // The byte may be in a segment of its own.
    assert_eq!(t.send(C, client as i64, server, urgent, b"A"), Verdict::Forward);
    play_behind(&mut t, &[], [client + 1, server]);
    assert!(t.started());
    // What servers send as urgent hides nothing.
    let mut t = T::new();
    t.open();
    let at = t.say(&[(C, &[5, 1, 0][..]), (S, &[5, 0])]);
    let binary = [1, 22, 3, 1, 9];
    assert_eq!(t.send(S, at[1] as i64, at[0], urgent, &binary), Verdict::Forward);
    // Also long after the beginning.
    let mut t = T::new();
    t.open();
    let at = t.say(&[(C, &[5, 1, 0][..]), (S, &[5; 20_000]), (C, &[5, 1]), (S, &[5, 0])]);
    assert_eq!(t.send(C, at[0] as i64, at[1], urgent, b"A"), Verdict::Forward);
    play_behind(&mut t, &[], [at[0] + 1, at[1]]);
    assert!(t.started());
}

#[test]
fn segment_that_died_behind_the_monitor_must_not_hide_turns() {
    let mut t = T::new();
    t.open();
    let mut at = t.say(&[(C, &[7, 1, 0][..]), (S, &[9; 20_000])]);
    t.send(S, at[1] as i64 + 20_000, at[0], flag::ACK, &[1]);
    for (direction, bytes) in [(C, [7, 2]), (S, [9, 9])] {
        let s = side(direction);
        t.send(direction, at[s] as i64, at[1 - s], flag::ACK, &bytes);
        at[s] += 2;
    }
    play_behind(&mut t, &[], at);
    assert!(t.started());
}

/// TLS whose client is the side that answered the SYN, long after the beginning.
#[test]
fn beginning_of_a_hello_must_not_pass_behind_its_rest() {
    let hello = hello();
    let other = vec![7; hello.len()];
    // In the middle of a turn it is content.
    for (turn, in_front, begins) in
        [(&hello, &[][..], true), (&hello, &[9], false), (&other, &[], false)]
    {
        for cut in [1, 5, 10, 11, 40, 90] {
            // Again alone, with what is behind it, and with what was in front.
            for (before, end) in [(0, cut), (0, turn.len()), (5, cut), (5, turn.len())] {
                let mut t = T::new();
                t.open();
                let [client, server] = t.say(&[
                    (C, &[7, 1, 0][..]),
                    (S, &[9; 20_000]),
                    (C, &[7; 20_000]),
                    (S, &[9; 5]),
                    (C, &[7]),
                    (S, in_front),
                ]);
                let at = server as i64;
                let rest = &turn[cut..];
                assert_eq!(t.send(S, at + cut as i64, client, flag::ACK, rest), Verdict::Forward);
                // Whoever waits for it may speak meanwhile.
                t.send(C, client as i64, server, flag::ACK, &[7]);
                let again = [&vec![9; before], &turn[..end]].concat();
                let verdict = t.send(S, at - before as i64, client + 1, flag::ACK, &again);
                let expected = if begins { Verdict::Drop } else { Verdict::Forward };
                assert_eq!(verdict, expected, "{cut} {before} {end}");
                let missed: &[_] = if begins { &[(S, TcpAnomaly::MissedTls)] } else { &[] };
                assert_eq!(t.engine.handler().anomalies, missed);
            }
        }
    }
}

/// The same where the first bytes come one by one, and where the side that waits for them says what may begin TLS, so that
/// both are looked at in order meanwhile.
#[test]
fn beginning_of_a_hello_must_not_pass_byte_by_byte_nor_in_between() {
    let hello = hello();
    for cut in [1, 7, 20] {
        for meanwhile in [&[7][..], &[22], &[22, 3]] {
            let mut t = T::new();
            t.open();
            let [client, server] =
                t.say(&[(C, &[7, 1, 0][..]), (S, &[9; 20_000]), (C, &[7; 20_000])]);
            let at = server as i64;
            t.send(S, at + cut as i64, client, flag::ACK, &hello[cut..]);
            t.send(C, client as i64, server, flag::ACK, meanwhile);
            let ack = client + meanwhile.len() as u64;
            let mut verdicts = (0..cut)
                .map(|byte| t.send(S, at + byte as i64, ack, flag::ACK, &hello[byte..=byte]));
            assert!(verdicts.any(|it| it == Verdict::Drop), "{cut} {meanwhile:?}");
            assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::MissedTls)]);
        }
    }
}

/// Either side's, where the connection stops being looked at in order just then.
#[test]
fn beginning_of_a_hello_must_not_pass_where_the_order_ends() {
    let hello = hello();
    for (from, cut) in [C, S].into_iter().flat_map(|it| [1, 8, 40].map(|cut| (it, cut))) {
        let mut t = T::new();
        t.open();
        let to = from.reverse();
        let at = t.say(&[(from, &[7; 100][..]), (to, &[9; 16_380])]);
        let [mine, other] = [at[side(from)], at[side(to)]];
        assert_eq!(
            t.send(from, (mine + cut) as i64, other, flag::ACK, &hello[cut as usize..]),
            Verdict::Forward
        );
        t.send(to, other as i64, mine, flag::ACK, &[22, 3, 3, 0, 1, 2]);
        let first = &hello[..cut as usize];
        assert_eq!(t.send(from, mine as i64, other + 6, flag::ACK, first), Verdict::Drop);
        assert_eq!(t.engine.handler().anomalies, [(from, TcpAnomaly::MissedTls)]);
    }
}

/// The hello of an honest client that does not wait for an answer, behind the request with which order ends.
#[test]
fn hello_must_be_found_behind_what_ends_the_order() {
    let request = b"STARTTLS\r\n";
    let mut t = T::new();
    t.open();
    let [client, server] = t.say(&[(C, &[7; 16_380][..]), (S, b"ok")]);
    let behind = (client + request.len() as u64) as i64;
    assert_eq!(t.send(C, behind, server, flag::ACK, &hello()), Verdict::Forward);
    assert_eq!(t.send(C, client as i64, server, flag::ACK, request), Verdict::Forward);
    assert!(t.started());
    // It may have died behind the monitor; other bytes in its place are none of it.
    assert_eq!(t.send(C, behind, server, flag::ACK, &hello()), Verdict::Forward);
    let other = vec![7; hello().len()];
    assert_eq!(t.send(C, behind, server, flag::ACK, &other), Verdict::Drop);
}

/// What is behind the hole may come in order, between other turns, and while both sides are looked at in order.
#[test]
fn beginning_of_a_hello_must_not_pass_between_other_segments() {
    let hello = hello();
    let hello = &hello[..];
    let len = hello.len() as i64;
    // Who sends from where in the stream on, and what. The side that answered the SYN says the hello at 0.
    type Step<'a> = (Direction, i64, &'a [u8]);
    let scripts: [(&str, Vec<Step<'_>>); 7] = [
        (
            "header, four bytes, the rest",
            vec![(S, 5, &hello[5..9]), (S, 9, &hello[9..]), (S, 0, &hello[..5])],
        ),
        (
            "a head whose end comes last",
            vec![(S, 5, &hello[5..9]), (S, 0, &hello[..5]), (S, 9, &hello[9..])],
        ),
        ("whole, behind something that was lost", vec![(S, 3, hello)]),
        ("two holes", vec![(S, 20, &hello[20..30]), (S, 40, &hello[40..]), (S, 0, &hello[..20])]),
        (
            "two holes, and one that stays",
            vec![
                (S, 20, &[7; 10]),
                (C, 0, b"x"),
                (S, 30 + 20, &hello[20..30]),
                (S, 30 + 40, &hello[40..]),
                (S, 30, &hello[..20]),
            ],
        ),
        (
            "something like a record meanwhile",
            vec![(S, 20, &hello[20..]), (C, 0, b"x"), (S, len, &[22]), (S, 0, &hello[..20])],
        ),
        (
            "and something that shows it was none",
            vec![
                (S, 20, &hello[20..]),
                (C, 0, b"x"),
                (S, len, &[22]),
                (S, len + 1, &[7; 9]),
                (S, 0, &hello[..20]),
            ],
        ),
    ];
    for (what, script) in scripts {
        let mut t = T::new();
        t.open();
        let [client, server] = t.say(&[(C, &[7, 1, 0][..]), (S, &[9; 20_000]), (C, &[7; 20_000])]);
        let mut verdict = Verdict::Forward;
        for (from, at, bytes) in script {
            assert_eq!(verdict, Verdict::Forward, "{what}");
            let (base, ack) = if from == S { (server, client) } else { (client, server) };
            verdict = t.send(from, base as i64 + at, ack, flag::ACK, bytes);
        }
        assert_eq!(verdict, Verdict::Drop, "{what}");
        assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::MissedTls)], "{what}");
    }
}

/// A server's, where the connection stops being looked at in order just then.
#[test]
fn answer_must_show_tls_where_the_order_ends() {
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], SUITE));
    for cut in [0, 5] {
        let mut t = T::new();
        t.open();
        let at = t.say(&[(C, &[7; 100][..]), (S, &[9; 100]), (C, &[7; 16_200])]);
        let turn = [&[7; 10], &hello()[..]].concat();
        t.send(C, at[0] as i64, at[1], flag::ACK, &turn[..50]);
        let ahead = at[1] as i64 + 50 + cut as i64;
        assert_eq!(t.send(S, ahead, at[0], flag::ACK, &answer[cut..]), Verdict::Forward);
        let more = [&turn[50..], &[7; 100]].concat();
        let verdict = t.send(C, at[0] as i64 + 50, at[1], flag::ACK, &more);
        // Whole, it is found as soon as order ends.
        assert_eq!(verdict == Verdict::Drop, cut == 0);
        let first = [&[9; 50], &answer[..cut]].concat();
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &first), Verdict::Drop, "{cut}");
        assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::MissedTls)], "{cut}");
    }
}

/// A server that lets much die behind the monitor, and says in its place what its client takes.
#[test]
fn answer_must_show_tls_however_far_behind() {
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], SUITE));
    let mut t = T::new();
    t.open();
    // Of which nothing was acknowledged.
    assert_eq!(t.send(C, 0, 0, flag::ACK, &[7; 20_000]), Verdict::Forward);
    let mut at = [20_000, 0];
    let turn = [b"text", &hello()[..]].concat();
    t.send(C, at[0] as i64, at[1], flag::ACK, &turn);
    at[0] += turn.len() as u64;
    let sent = at[0];
    for piece in 0..20 {
        t.send(S, at[1] as i64 + piece * 60_000, sent, flag::ACK, &[9; 60_000]);
    }
    assert_eq!(t.send(S, at[1] as i64, sent, flag::ACK, &answer), Verdict::Drop);
    assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::MissedTls)]);
}

/// A ClientHello in the middle of a turn is known by its answer only.
#[test]
fn answer_whose_parts_are_out_of_order_must_show_tls() {
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], SUITE));
    for cut in 1..11 {
        for early in [true, false] {
            let mut t = T::new();
            t.open();
            let mut at =
                t.say(&[(C, &[7; 20_000][..]), (S, &[9; 20_000]), (C, b"text"), (S, b"text")]);
            let turn = [b"text", &hello()[..]].concat();
            let (first, rest) = answer.split_at(cut);
            let behind = at[1] as i64 + cut as i64;
            if early {
                t.send(S, behind, at[0], flag::ACK, rest);
            }
            t.send(C, at[0] as i64, at[1], flag::ACK, &turn);
            at[0] += turn.len() as u64;
            if !early {
                t.send(S, behind, at[0], flag::ACK, rest);
            }
            let verdict = t.send(S, at[1] as i64, at[0], flag::ACK, first);
            assert_eq!(verdict, Verdict::Drop, "{cut} {early}");
            assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::MissedTls)]);
        }
    }
}

// Records.

#[test]
fn records_of_another_version_must_not_count_as_handshake() {
    for version in [0x0301u16, 0x0304] {
        let mut t = T::new();
        let at = established(&mut t);
        let judged = t.judged();
        let mut record = sealed(C, 1);
        record[1..3].copy_from_slice(&version.to_be_bytes());
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &record), Verdict::Drop);
        assert_eq!(t.judged(), judged);
        assert_eq!(t.engine.handler().errors(), [(C, SessionError::MalformedRecord)]);
    }
}

#[test]
fn keys_that_fit_nothing_must_not_cost_much() {
    let mut t = T::new();
    t.open();
    let hello = hello();
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], SUITE));
    t.send(C, 0, 0, flag::ACK, &hello);
    let tiny = [&[23, 3, 3, 0, 16][..], &[7; 16]].concat();
    let flight = [answer, tiny.repeat(3000)].concat();
    let mut at = 0;
    for piece in flight.chunks(30_000) {
        t.send(S, at, hello.len() as u64, flag::ACK, piece);
        at += piece.len() as i64;
        t.send(C, hello.len() as i64, at as u64, flag::ACK, &[]);
    }
    let before = t.engine.counters().trials_failed;
    let sender = Some(t.ep.client.ip());
    for number in 0..8 {
        let _ = t.keys_with(S, 0, Box::new(NullKeys(7000 + number)), RANDOM, sender);
    }
    let tried = t.engine.counters().trials_failed - before;
    assert!((1024..10_000).contains(&tried), "{tried} trials");
}

/// Of a record that waits for keys, too: each of them is tried once, also where it takes the place of another.
#[test]
fn keys_that_fit_nothing_must_be_tried_once() {
    const KEYS: u64 = 40;
    let mut t = T::new();
    t.open();
    let hello = hello();
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], SUITE));
    t.send(C, 0, 0, flag::ACK, &hello);
    t.send(S, 0, hello.len() as u64, flag::ACK, &answer);
    let tiny = [&[23, 3, 3, 0, 16][..], &[7; 16]].concat();
    // The client's flight: what the server sends behind it waits.
    t.send(C, hello.len() as i64, answer.len() as u64, flag::ACK, &tiny);
    let at = (hello.len() + tiny.len()) as u64;
    let verdict = t.send(S, answer.len() as i64, at, flag::ACK, &sealed(S, 0));
    assert!(matches!(verdict, Verdict::Hold(_)), "{verdict:?}");
    let sender = Some(t.ep.client.ip());
    for number in 0..KEYS {
        t.source = number / 8;
        let _ = t.keys_with(S, 0, Box::new(NullKeys(7000 + number)), RANDOM, sender);
    }
    assert_eq!(t.engine.counters().trials_failed, KEYS);
    assert_eq!(t.engine.counters().records_opened, 0);
    t.source = KEYS;
    assert_eq!(t.keys(S, 0), Ok(true));
    assert_eq!(t.engine.counters().records_opened, 1);
    // And on the record that opened once more those that are left: they might open it to something else.
    assert_eq!(t.engine.counters().trials_failed, KEYS + 15);
}

// Memory.

fn with_room(bytes: usize) -> T {
    let mut config = T::config();
    config.limits.max_buffered_bytes = bytes;
    T::with(config)
}

#[test]
fn undecided_connections_must_not_take_the_memory_of_sessions() {
    let mut t = with_room(1 << 20);
    let at = established(&mut t);
    let honest = t.ep;
    for number in 0..200 {
        t.ep.client.set_port(1000 + number);
        t.open();
        for piece in 0..11 {
            t.send(C, piece * 1440, 0, flag::ACK, &[b'x'; 1440]);
            t.send(S, 0, (piece as u64 + 1) * 1440, flag::ACK, &[]);
        }
    }
    assert!(t.engine.buffered_bytes() <= (1 << 19) + (1 << 15));
    t.ep = honest;
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Forward);
    assert!(t.alive());
}

/// A session in which so many records of the client wait for keys, and its stream offsets.
fn stalled(records: usize) -> (T, [u64; 2]) {
    let mut t = T::new();
    let mut script = builder();
    for _ in 0..records {
        script.record(C, ContentType::APPLICATION_DATA, &[7; 16_000], 0);
    }
    t.open();
    let at = t.play(&script.build());
    assert!(t.engine.buffered_bytes() > records * 15_000);
    (t, at)
}

#[test]
fn reset_connection_must_not_keep_memory() {
    let (mut t, at) = stalled(6);
    t.send(C, at[0] as i64, at[1], flag::RST, &[]);
    // The server's flight, which its keys may still open.
    assert!(t.engine.buffered_bytes() < 4096);
    // What still comes is not kept.
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &[7; 1000]), Verdict::Drop);
    assert!(t.engine.buffered_bytes() < 4096);
    t.now += 10_000_000_000;
    t.engine.handle_timeout(t.now);
    assert_eq!(t.engine.buffered_bytes(), 0);
}

#[test]
fn refused_connection_must_not_pass_what_follows() {
    let mut t = T::new();
    t.send(C, -1, 0, flag::SYN, &[]);
    t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    t.send(S, 1, 0, flag::RST | flag::ACK, &[]);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Drop);
}

#[test]
fn ended_stall_must_not_keep_memory() {
    let (mut t, at) = stalled(30);
    let _ = (t.keys(C, 0), t.keys(S, 0));
    t.send(S, at[1] as i64, at[0], flag::ACK, &[]);
    t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    assert!(t.alive());
    assert!(t.engine.buffered_bytes() < 4096, "{} bytes", t.engine.buffered_bytes());
}

#[test]
fn announced_early_data_must_not_let_a_response_pass_without_keys() {
    // The server refuses the early data, none comes, and the client shares keys of its own direction alone,
    // which need not be right.
    let early = EarlyScript { fate: EarlyFate::RefusedWithKey, before: vec![], after: vec![] };
    let announced = ScriptBuilder::early(
        RANDOM,
        SUITE,
        &[1000],
        &early,
        crate::harness::keys as crate::harness::Keys,
    );
    for mut builder in [announced, builder()] {
        builder.record(C, ContentType::APPLICATION_DATA, b"GET /secret", 0);
        builder.record(S, ContentType::APPLICATION_DATA, &[8; 16_000], 0);
        let script = builder.build();
        let mut t = T::new();
        t.open();
        let mut at = [0; 2];
        for (number, turn) in script.turns.iter().enumerate() {
            if number == 2 {
                let sender = Some(t.ep.client.ip());
                let _ = t.keys_with(C, 0, Box::new(NullKeys(4711)), RANDOM, sender);
            }
            let (d, other) = (side(turn.direction), 1 - side(turn.direction));
            let verdict = t.send(turn.direction, at[d] as i64, at[other], flag::ACK, &turn.bytes);
            at[d] += turn.bytes.len() as u64;
            assert_eq!(verdict == Verdict::Forward, number < 3, "turn {number}: {verdict:?}");
        }
        assert_eq!(t.judged(), 0);
    }
}
