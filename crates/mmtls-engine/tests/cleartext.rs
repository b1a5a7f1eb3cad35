//! Connections in the clear as an application sees them: every byte in order, and nothing passes that it
//! has refused.

use crate::harness::Event;
use crate::harness::attack::*;
use mmtls_engine::session::{EndReason, SessionError, TcpAnomaly};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::{Seeded, flag};
use mmtls_testkit::synthesis::*;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: server.test\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const SMTP: [(Direction, &[u8]); 5] = [
    (S, b"220 mail.test ESMTP\r\n"),
    (C, b"EHLO x\r\n"),
    (S, b"250-mail.test\r\n250 STARTTLS\r\n"),
    (C, b"STARTTLS\r\n"),
    (S, b"220 go ahead\r\n"),
];

/// Who says what.
type Turn = (Direction, Vec<u8>);
/// Ends a connection.
type How = fn(&mut T);

fn config() -> Config {
    Config { cleartext: Cleartext::FromBeginning, ..T::config() }
}

fn open() -> T {
    let mut t = T::with(config());
    t.open();
    t
}

fn events(t: &T) -> &[Event] {
    &t.engine.handler().events
}

/// Without what was shown.
fn skeleton(t: &T) -> Vec<Event> {
    events(t).iter().filter(|it| !matches!(it, Event::Clear(..))).cloned().collect()
}

fn rsts(t: &T) -> usize {
    t.out.iter().filter(|it| matches!(it, Output::Inject { .. })).count()
}

#[test]
fn accepts_every_byte_in_order_whatever_the_network_does() {
    let exchanges = (0..3_u8).flat_map(|number| {
        let body: Vec<u8> = (0..900_u32).map(|at| (at as u8).wrapping_mul(number)).collect();
        [(C, [REQUEST, &body].concat()), (S, [RESPONSE, &body, &body].concat())]
    });
    // Until the server has spoken, its client's segments are taken in order only.
    let banner = (S, b"2".to_vec());
    let dialog: Vec<Turn> = [banner].into_iter().chain(exchanges).collect();
    for seed in 0..100 {
        let mut rng = Seeded::new(seed);
        let mut t = open();
        let mut at = [0u64; 2];
        for (d, bytes) in &dialog {
            let (own, other) = (at[side(*d)], at[1 - side(*d)]);
            let most = [1, 100, 1460][rng.below(3)].min(bytes.len());
            let mut pieces = Vec::new();
            let mut from = 0;
            while from < bytes.len() {
                let to = (from + 1 + rng.below(most)).min(bytes.len());
                pieces.push((from, to));
                if rng.one_in(8) {
                    // Again, with something in front.
                    pieces.push((from.saturating_sub(rng.below(20)), to));
                }
                from = to;
            }
            for at in 1..pieces.len() {
                if rng.one_in(4) {
                    pieces.swap(at, at - 1);
                }
            }
            // What is dropped is sent again.
            for _ in 0..20 {
                pieces.retain(|&(from, to)| {
                    let offset = (own + from as u64) as i64;
                    t.send(*d, offset, other, flag::ACK, &bytes[from..to]) == Verdict::Drop
                });
            }
            at[side(*d)] += bytes.len() as u64;
        }
        for d in [C, S] {
            let sent: Vec<&[u8]> =
                dialog.iter().filter(|it| it.0 == d).map(|it| &it.1[..]).collect();
            assert!(t.engine.handler().shown(d) == sent.concat(), "seed {seed}, {d}");
        }
        assert_eq!(skeleton(&t), [Event::ClearStart], "seed {seed}");
    }
}

#[test]
fn refuses_everything_behind_a_reset() {
    let dialog: [(Direction, &[u8]); 4] =
        [(C, REQUEST), (S, RESPONSE), (C, b"GET /2 HTTP/1.1\r\n\r\n"), (S, RESPONSE)];
    // The start, each piece, each FIN, and the end.
    for reset_in in 0..8 {
        let mut t = open();
        t.engine.handler_mut().reset_in = Some(reset_in);
        let mut at = [0u64; 2];
        let mut steps: Vec<_> = dialog.iter().map(|it| (it.0, flag::ACK, it.1)).collect();
        steps.extend([(C, flag::ACK | flag::FIN, &b""[..]), (S, flag::ACK | flag::FIN, b"")]);
        let mut passed = Vec::new();
        for (d, flags, bytes) in steps {
            let s = side(d);
            let verdict = t.send(d, at[s] as i64, at[1 - s], flags, bytes);
            at[s] += bytes.len() as u64 + u64::from(flags & flag::FIN != 0);
            passed.push(verdict == Verdict::Forward);
        }
        // The first piece comes with the start.
        let refused = reset_in.saturating_sub(1).min(5);
        let expected: Vec<bool> = (0..6).map(|at| at < refused).collect();
        assert_eq!(passed, expected, "reset in {reset_in}");
        assert!(rsts(&t) >= 2, "reset in {reset_in}");
        let ends = events(&t).iter().filter(|it| matches!(it, Event::ClearEnd(_))).count();
        assert_eq!(ends, 1, "reset in {reset_in}");
        assert!(events(&t).contains(&Event::FlowEnd(EndReason::ResetByHandler)));
    }
}

#[test]
fn refuses_a_copy_with_other_bytes() {
    let mut t = open();
    t.say(&[(C, REQUEST)]);
    let mut other = REQUEST.to_vec();
    other[5] = b'x';
    assert_eq!(t.send(C, 0, 0, flag::ACK, &other), Verdict::Drop);
    assert_eq!(t.engine.handler().anomalies, [(C, TcpAnomaly::ConflictingOverlap)]);
    assert_eq!(t.engine.handler().shown(C), REQUEST);
}

#[test]
fn accepts_tls_behind_another_protocol() {
    let script = simple();
    for piece in [1, 3, 4000] {
        let mut t = open();
        let _ = t.keys(C, 0);
        let _ = t.keys(S, 0);
        let mut at = t.say(&SMTP);
        for turn in &script.turns {
            for bytes in turn.bytes.chunks(piece) {
                let s = side(turn.direction);
                t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, bytes);
                at[s] += bytes.len() as u64;
            }
        }
        assert_eq!(t.judged(), 2, "pieces of {piece}");
        // Until the server has answered it might be none.
        let events = skeleton(&t);
        let place = |wanted: Event| events.iter().position(|it| *it == wanted);
        let end = place(Event::ClearEnd(None));
        assert!(place(Event::ClearStart) < place(Event::SessionStart), "pieces of {piece}");
        assert!(place(Event::SessionStart) < end, "pieces of {piece}");
        assert!(end < events.iter().position(|it| matches!(it, Event::Record(..))));
        let said = |d| SMTP.iter().filter(|it| it.0 == d).map(|it| it.1).collect::<Vec<_>>();
        assert!(t.engine.handler().shown(S).starts_with(&said(S).concat()));
        assert!(!t.engine.handler().shown(S).windows(300).any(|it| *it == [9; 300]));
        let shown = t.engine.handler().shown(C);
        assert!(shown.starts_with(&said(C).concat()), "pieces of {piece}");
    }
}

#[test]
fn refuses_to_show_tls_however_it_is_cut() {
    for piece in [1, 2, 7, 4000] {
        let mut t = open();
        let mut at = [0u64; 2];
        for turn in &simple().turns {
            for bytes in turn.bytes.chunks(piece) {
                let s = side(turn.direction);
                t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, bytes);
                at[s] += bytes.len() as u64;
            }
        }
        assert!(t.started() && !events(&t).contains(&Event::ClearStart), "pieces of {piece}");
    }
}

#[test]
fn accepts_what_waited_until_it_was_known() {
    // A load balancer's header, in front of something else than TLS.
    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
    let mut t = open();
    t.say(&[(C, &header[..9])]);
    assert_eq!(events(&t), []);
    let more = [&header[9..], REQUEST].concat();
    assert_eq!(t.send(C, 9, 0, flag::ACK, &more), Verdict::Forward);
    assert_eq!(t.engine.handler().shown(C), [header, REQUEST].concat());
}

#[test]
fn accepts_that_nothing_more_is_asked_for() {
    let mut t = open();
    t.engine.handler_mut().clear_enough = Some(20);
    let at = t.say(&SMTP);
    let shown = t.engine.handler().shown(S).len() + t.engine.handler().shown(C).len();
    assert_eq!(shown, SMTP[0].1.len());
    assert_eq!(skeleton(&t), [Event::ClearStart, Event::ClearEnd(None)]);
    // It is still known that TLS may begin here.
    t.send(C, at[0] as i64, at[1], flag::ACK, &hello());
    assert!(t.started());
}

#[test]
fn refuses_to_show_what_nobody_asks_for() {
    let mut t = T::new();
    t.open();
    t.say(&[(C, REQUEST), (S, RESPONSE)]);
    assert_eq!(events(&t), []);
    // Nor what was not seen from its beginning.
    for (inline, cleartext, is_shown) in [
        (true, Cleartext::FromBeginning, false),
        (false, Cleartext::FromBeginning, false),
        (true, Cleartext::Anywhere, false),
        (false, Cleartext::Anywhere, true),
    ] {
        let mut t = T::with(Config { inline, cleartext, ..T::config() });
        t.say(&[(C, REQUEST), (S, RESPONSE)]);
        let shown = if is_shown { RESPONSE } else { b"" };
        assert_eq!(t.engine.handler().shown(S), shown, "inline: {inline}, {cleartext:?}");
        let mut t = T::with(Config { inline, cleartext, ..T::config() });
        t.say(&[(C, &sealed(C, 3))]);
        assert_eq!(events(&t), [], "inline: {inline}, {cleartext:?}");
    }
}

#[test]
fn refuses_urgent_data() {
    let mut t = open();
    let at = t.say(&[(C, REQUEST), (S, RESPONSE)]);
    let verdict = t.send(C, at[0] as i64, at[1], flag::ACK | flag::URG, b"x");
    assert_eq!(verdict, Verdict::Drop);
    // Telnet and FTP use them, which an application may not follow.
    let mut t = open();
    t.engine.handler_mut().clear_enough = Some(1);
    let at = t.say(&[(C, REQUEST), (S, RESPONSE)]);
    let verdict = t.send(C, at[0] as i64, at[1], flag::ACK | flag::URG, b"x");
    assert_eq!(verdict, Verdict::Forward);
}

#[test]
fn accepts_ends_of_every_kind() {
    const FIN: u8 = flag::ACK | flag::FIN;
    let close = |t: &mut T| {
        t.send(C, REQUEST.len() as i64, 0, FIN, &[]);
        t.send(S, 0, REQUEST.len() as u64 + 1, FIN, &[]);
    };
    let reset = |t: &mut T| {
        t.send(S, 0, REQUEST.len() as u64, flag::ACK | flag::RST, &[]);
    };
    let end: [(How, EndReason); 3] = [
        (close, EndReason::Closed),
        (reset, EndReason::ResetByPeer(S)),
        (|t| t.engine.finish(), EndReason::Shutdown),
    ];
    for (end, why) in end {
        let mut t = open();
        t.say(&[(C, REQUEST)]);
        end(&mut t);
        let fins = if why == EndReason::Closed { &[C, S][..] } else { &[] };
        let fins = fins.iter().map(|it| Event::ClearFin(*it));
        let end = [Event::ClearEnd(Some(why))];
        let expected: Vec<Event> = [Event::ClearStart].into_iter().chain(fins).chain(end).collect();
        assert_eq!(skeleton(&t)[..expected.len()], expected, "{why:?}");
        t.engine.finish();
        let ends = skeleton(&t).iter().filter(|it| matches!(it, Event::ClearEnd(_))).count();
        assert_eq!(ends, 1, "{why:?}");
    }
}

#[test]
fn refuses_bytes_behind_a_gap() {
    // Inline they passed some other way: the policy of broken streams.
    let mut t = open();
    t.say(&[(C, REQUEST)]);
    t.send(S, 0, REQUEST.len() as u64 + 500, flag::ACK, &[]);
    let why = EndReason::ResetByPolicy(SessionError::LostSynchronisation);
    let expected = [Event::ClearStart, Event::ClearEnd(Some(why)), Event::FlowEnd(why)];
    assert_eq!(skeleton(&t), expected);
    // Where they pass the application hears of it.
    let mut passing = config();
    passing.policies.lost_synchronisation = Policy::Forward;
    let mut t = T::with(passing);
    t.open();
    t.say(&[(C, REQUEST)]);
    t.send(S, 0, REQUEST.len() as u64 + 500, flag::ACK, &[]);
    let error = Event::Error(C, SessionError::LostSynchronisation);
    assert_eq!(skeleton(&t), [Event::ClearStart, error.clone(), Event::ClearEnd(None)]);
    // In a capture they are missing in the end, at least.
    let mut t = T::with(Config { inline: false, ..config() });
    t.open();
    t.say(&[(C, REQUEST)]);
    t.send(C, REQUEST.len() as i64 + 500, 0, flag::ACK, b"x");
    t.engine.finish();
    let end = Event::ClearEnd(Some(EndReason::Shutdown));
    assert_eq!(skeleton(&t)[..3], [Event::ClearStart, error, end]);
}

#[test]
fn refuses_more_memory_than_there_is() {
    let mut small = config();
    small.limits.max_buffered_bytes = 100_000;
    let mut t = T::with(small);
    t.open();
    let mut at = 0;
    let mut verdicts = Vec::new();
    // Nothing of it is acknowledged.
    for _ in 0..200 {
        verdicts.push(t.send(C, at, 0, flag::ACK, &[b'x'; 1000]));
        at += 1000;
    }
    assert!(t.engine.buffered_bytes() <= 100_000);
    let forwarded = verdicts.iter().filter(|it| **it == Verdict::Forward).count();
    assert_eq!(t.engine.handler().shown(C).len(), forwarded * 1000);
    assert!(forwarded < 200);
}

/// What a handler that looks for a word has seen of what was forwarded; the engine resets at the word.
fn looks(dialog: &[(Direction, &[u8])], piece: usize) -> (bool, bool) {
    const WORD: &[u8] = b"EVIL";
    let mut t = open();
    t.engine.handler_mut().reset_at_word = Some(WORD.to_vec());
    let mut at = [0u64; 2];
    let mut arrived = [Vec::new(), Vec::new()];
    for (d, bytes) in dialog {
        for bytes in bytes.chunks(piece) {
            let s = side(*d);
            if t.send(*d, at[s] as i64, at[1 - s], flag::ACK, bytes) == Verdict::Forward {
                arrived[s].extend_from_slice(bytes);
            }
            at[s] += bytes.len() as u64;
        }
    }
    for d in [C, S] {
        let s = side(d);
        t.send(d, at[s] as i64, at[1 - s], flag::ACK | flag::FIN, &[]);
    }
    let is_there = |bytes: &Vec<u8>| bytes.windows(WORD.len()).any(|it| it == WORD);
    (arrived.iter().any(is_there), t.engine.handler().reset.is_some())
}

#[test]
fn refuses_to_be_switched_off_by_what_looks_like_tls() {
    let hello = hello();
    // As long as a record can be, of a handshake message that is longer.
    let look_alike =
        [&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xf0, 3, 3][..], &[b'x'; 900], b"EVIL"].concat();
    let join = |parts: &[&[u8]]| parts.concat();
    let dialogs: [(&str, Vec<Turn>); 6] = [
        ("in front of a hello", vec![(C, join(&[b"GET /EVIL HTTP/1.1\r\n\r\n", &hello]))]),
        (
            "an answer in front of a hello",
            vec![(C, REQUEST.to_vec()), (S, join(&[b"HTTP/1.1 200 OK\r\n\r\nEVIL\n", &hello]))],
        ),
        (
            "a body that begins as one",
            vec![(C, REQUEST.to_vec()), (S, join(&[b"HTTP/1.1 200 OK\r\n\r\n", &look_alike]))],
        ),
        ("a request that does", vec![(C, join(&[REQUEST, &look_alike]))]),
        (
            "a header of a load balancer",
            vec![(S, b"220 x\r\n".to_vec()), (C, b"PROXY EVIL".to_vec())],
        ),
        ("an answer to the beginning of one", vec![(C, vec![22]), (S, b"EVIL and more".to_vec())]),
    ];
    for (name, dialog) in &dialogs {
        let dialog: Vec<(Direction, &[u8])> = dialog.iter().map(|it| (it.0, &it.1[..])).collect();
        for piece in [1, 7, 4000] {
            let (arrived, seen) = looks(&dialog, piece);
            assert!(!arrived && seen, "{name}, pieces of {piece}: {arrived} {seen}");
        }
    }
}

#[test]
fn accepts_what_waited_with_the_fin() {
    let mut t = open();
    t.say(&[(C, b"PROXY and no more")]);
    assert_eq!(events(&t), []);
    t.send(C, 17, 0, flag::ACK | flag::FIN, &[]);
    assert_eq!(t.engine.handler().shown(C), b"PROXY and no more");
    let mut t = open();
    t.say(&[(C, b"PROXY and no more")]);
    t.engine.finish();
    assert_eq!(t.engine.handler().shown(C), b"PROXY and no more");
}

#[test]
fn accepts_one_end_of_what_looked_like_tls() {
    // Nobody has answered: the session tells how it ends, and what was in front of it ends first.
    let mut t = open();
    let at = t.say(&SMTP);
    t.send(C, at[0] as i64, at[1], flag::ACK, &hello());
    assert!(t.started());
    t.engine.finish();
    let ends: Vec<Event> = skeleton(&t)
        .into_iter()
        .filter(|it| matches!(it, Event::ClearEnd(_) | Event::SessionEnd(_)))
        .collect();
    assert_eq!(ends, [Event::ClearEnd(None), Event::SessionEnd(EndReason::Shutdown)]);
}
