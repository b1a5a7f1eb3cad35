//! TLS behind other protocols: whatever protocol, however it is cut, the session is seen, and a
//! session without keys does not get past its policy.

use crate::harness::attack::*;
use crate::harness::{KeyTiming, Network, Path, Recorder, config};
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::dialogs::{Dialog, dialogs};
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;
use proptest::prelude::*;

fn way(from_client: bool) -> Direction {
    if from_client { C } else { S }
}

/// A script behind a dialog.
fn behind(dialog: &Dialog, mut script: Script) -> Script {
    let mut turns: Vec<Turn> = dialog
        .turns
        .iter()
        .map(|(from_client, bytes)| Turn { direction: way(*from_client), bytes: bytes.clone() })
        .collect();
    for direction in Direction::BOTH {
        let said = turns.iter().filter(|turn| turn.direction == direction);
        let before: usize = said.map(|turn| turn.bytes.len()).sum();
        for record in &mut script.records[side(direction)] {
            record.end += before as u64;
        }
    }
    turns.append(&mut script.turns);
    script.turns = turns;
    script
}

/// Plays a dialog on an open connection; stream offsets.
fn say(t: &mut T, dialog: &Dialog) -> [u64; 2] {
    let turns = dialog.turns.iter().map(|(from_client, bytes)| (way(*from_client), &bytes[..]));
    t.say(&turns.collect::<Vec<_>>())
}

/// Plays a script from given offsets on; which frames were forwarded.
fn play_from(t: &mut T, at: &mut [u64; 2], script: &Script) -> Vec<Verdict> {
    script
        .turns
        .iter()
        .map(|turn| {
            let s = side(turn.direction);
            let v = t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            at[s] += turn.bytes.len() as u64;
            v
        })
        .collect()
}

fn smtp() -> Dialog {
    dialogs().remove(0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accepts_tls_behind_any_protocol_however_it_arrives(
        seed in any::<u64>(),
        which in any::<prop::sample::Index>(),
        segment in 0usize..4,
        (reorder, duplicate, v6, handshake_keys) in any::<(bool, bool, bool, bool)>(),
        late in any::<bool>(),
    ) {
        let all = dialogs();
        let dialog = which.get(&all);
        let plain = crate::harness::script(seed);
        let network = Network {
            seed,
            max_segment: [0, 5, 40, 1448][segment],
            reorder,
            duplicate,
            keys: if late { KeyTiming::Late } else { KeyTiming::Prompt },
            v6,
            handshake_keys,
        };
        let script = behind(dialog, plain.clone());
        let mut path = Path::new(script, network, config(Policy::Reset), Recorder::default());
        prop_assert!(path.run(), "{}: {:?}", dialog.name, path.engine.handler().events.last());
        let recorder = path.engine.handler();
        prop_assert_eq!(recorder.starttls.map(Upgrade::name), Some(dialog.name));
        for direction in Direction::BOTH {
            let expected: Vec<(u8, Vec<u8>)> = plain.records[side(direction)]
                .iter()
                .map(|record| (record.kind.0, record.content.clone()))
                .collect();
            prop_assert_eq!(recorder.records(direction), expected);
        }
        prop_assert_eq!(path.engine.buffered_bytes(), 0);
    }
}

#[test]
fn sessions_without_keys_must_not_get_past_the_policy() {
    for dialog in dialogs() {
        let mut t = T::new();
        t.open();
        let mut at = say(&mut t, &dialog);
        let verdicts = play_from(&mut t, &mut at, &simple());
        assert!(t.started(), "{}", dialog.name);
        let data = verdicts.len() - 2;
        assert!(!verdicts[data..].contains(&Verdict::Forward), "{}: {verdicts:?}", dialog.name);
        t.now += 1_000_000_000;
        let now = t.now;
        t.engine.handle_timeout(now);
        assert_eq!(t.engine.handler().errors()[0].1, SessionError::MissingKeys);
        assert!(!t.alive());
    }
}

#[test]
fn long_talk_before_starttls_must_not_hide_it() {
    let mut t = T::new();
    t.open();
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    let mut at = [0u64; 2];
    let mut say = |t: &mut T, d: Direction, bytes: &[u8]| {
        let s = side(d);
        t.send(d, at[s] as i64, at[1 - s], flag::ACK, bytes);
        at[s] += bytes.len() as u64;
    };
    say(&mut t, S, b"220 hello\r\n");
    for _ in 0..3000 {
        say(&mut t, C, b"NOOP\r\n");
        say(&mut t, S, b"250 2.0.0 ok\r\n");
    }
    assert_eq!(t.engine.buffered_bytes(), 0);
    say(&mut t, C, b"STARTTLS\r\n");
    say(&mut t, S, b"220 go\r\n");
    let mut script = simple();
    // The first byte alone, and the hello in a record that no honest client sends.
    script.turns[0].bytes[2] = 0x7f;
    say(&mut t, C, &script.turns[0].bytes[..1]);
    script.turns[0].bytes.remove(0);
    play_from(&mut t, &mut at, &script);
    assert_eq!(t.judged(), 2, "{:?}", t.engine.handler().events);
    assert_eq!(t.engine.handler().starttls, Some(Upgrade::Smtp));
}

#[test]
fn server_that_talks_early_must_not_hide_tls() {
    // Behind its answer, the beginning of the ServerHello, which is known before the ClientHello.
    for early in [1, 5, 44] {
        let mut t = T::new();
        t.open();
        let mut at = say(&mut t, &smtp());
        let mut script = simple();
        let rest = script.turns[1].bytes.split_off(early);
        t.send(S, at[1] as i64, at[0], flag::ACK, &script.turns[1].bytes);
        at[1] += early as u64;
        script.turns[1].bytes = rest;
        let verdicts = play_from(&mut t, &mut at, &script);
        assert!(t.started());
        assert!(!t.alive() && !verdicts[2..].contains(&Verdict::Forward), "{verdicts:?}");
    }
}

#[test]
fn hello_that_does_not_wait_must_not_hide() {
    let mut t = T::new();
    t.open();
    let request = b"STARTTLS\r\n";
    let both = [&request[..], &hello()].concat();
    t.send(C, 0, 0, flag::ACK, &both);
    assert!(t.started());
}

#[test]
fn other_bytes_in_the_dialog_must_not_pass() {
    // The answer of the server is shown in two ways, then the hello: copies must agree.
    let mut t = T::new();
    t.open();
    t.send(S, 0, 0, flag::ACK, b"220 hello\r\n");
    t.send(C, 0, 0, flag::ACK, b"NOOP 567\r\n");
    assert_eq!(t.send(C, 0, 0, flag::ACK, b"STARTTLS\r\n"), Verdict::Drop);
    assert_eq!(t.engine.handler().anomalies, [(C, TcpAnomaly::ConflictingOverlap)]);
}

#[test]
fn refused_starttls_must_not_disturb_the_protocol() {
    let mut t = T::new();
    t.open();
    let mut at = [0u64; 2];
    for (d, bytes) in [
        (S, &b"220 hello\r\n"[..]),
        (C, b"STARTTLS\r\n"),
        (S, b"454 no\r\n"),
        (C, b"MAIL FROM:<a@a.test>\r\n"),
        (S, b"250 ok\r\n"),
        (C, b"DATA\r\n"),
        (S, b"354 go\r\n"),
        (C, &[b'x'; 40_000]),
        (S, b"250 ok\r\n"),
        (C, b"QUIT\r\n"),
    ] {
        let s = side(d);
        assert_eq!(t.send(d, at[s] as i64, at[1 - s], flag::ACK, bytes), Verdict::Forward);
        at[s] += bytes.len() as u64;
    }
    assert!(!t.started() && t.engine.handler().anomalies.is_empty());
}

#[test]
fn urgent_data_must_pass_in_telnet_and_not_behind_starttls() {
    let urgent = flag::ACK | flag::URG;
    let mut t = T::new();
    t.open();
    t.send(S, 0, 0, flag::ACK, b"\xff\xfd\x18login: ");
    t.send(C, 0, 10, flag::ACK, b"root\r\n");
    assert_eq!(t.send(C, 6, 10, urgent, b"\xff\xf4\xff\xf2"), Verdict::Forward);
    // What begins as TLS does may not, and neither may anything where TLS is due.
    assert_eq!(t.send(C, 10, 10, urgent, &hello()), Verdict::Drop);
    let mut t = T::new();
    t.open();
    let at = say(&mut t, &smtp());
    assert_eq!(t.send(C, at[0] as i64, at[1], urgent, &hello()), Verdict::Drop);
    assert_eq!(t.send(C, at[0] as i64, at[1], urgent, b"X"), Verdict::Drop);
    // Also long after the beginning.
    let mut t = T::new();
    t.open();
    t.send(C, 0, 0, flag::ACK, b"STARTTLS\r\n");
    t.send(S, 0, 10, flag::ACK, &[b'x'; 20_000]);
    assert_eq!(t.send(C, 10, 20_000, urgent, b"X"), Verdict::Drop);
    assert_eq!(t.send(C, 10, 20_000, flag::ACK, b"QUIT\r\n"), Verdict::Forward);
    t.send(S, 20_000, 16, flag::ACK, b"x");
    assert_eq!(t.send(C, 16, 20_001, urgent, b"X"), Verdict::Forward);
    assert_eq!(t.send(C, 17, 20_001, urgent, &hello()), Verdict::Drop);
}

#[test]
fn hello_of_ssl_2_must_meet_the_policy_for_versions() {
    // OpenSSL answers such a hello with TLS 1.2.
    let mut hello = vec![0x80, 0x1f, 1, 3, 3, 0, 6, 0, 0, 0, 16, 0, 0xc0, 0x2f, 0, 0, 0xff];
    hello.extend_from_slice(&[7; 16]);
    for (policy, verdict) in [(Policy::Bypass, Verdict::Forward), (Policy::Reset, Verdict::Drop)] {
        let mut c = T::config();
        c.policies.unsupported = policy;
        let mut t = T::with(c);
        t.open();
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), verdict);
        assert_eq!(t.engine.handler().errors(), [(C, SessionError::UnsupportedVersion)]);
        assert_eq!(t.engine.buffered_bytes(), 0);
    }
}

#[test]
fn tls_over_udp_must_meet_its_policy() {
    let mut quic = vec![0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0];
    quic.resize(1200, 0);
    let mut dtls = vec![22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100];
    dtls.resize(113, 0);
    let dns = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for policy in [Policy::Forward, Policy::Drop] {
        let mut c = T::config();
        c.policies.udp_tls = policy;
        let mut t = T::with(c);
        let verdict = if policy == Policy::Drop { Verdict::Drop } else { Verdict::Forward };
        for (payload, verdict) in [(&quic, verdict), (&dtls, verdict), (&dns, Verdict::Forward)] {
            assert_eq!(t.raw(0, &udp4(payload)), verdict);
            assert_eq!(t.raw(0, &udp6(payload)), verdict);
        }
        let counters = t.engine.counters();
        assert_eq!((counters.quic_packets, counters.dtls_packets, counters.not_tcp), (2, 2, 6));
    }
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len() as u16).to_be_bytes();
    [&[0x30, 0x39, 1, 0xbb, len[0], len[1], 0, 0], payload].concat()
}

fn udp4(payload: &[u8]) -> Vec<u8> {
    let len = (28 + payload.len() as u16).to_be_bytes();
    let ip = [0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 3];
    [&[1; 12][..], &[8, 0], &ip, &udp(payload)].concat()
}

fn udp6(payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len() as u16).to_be_bytes();
    let ip = [0x60, 0, 0, 0, len[0], len[1], 17, 64];
    [&[1; 12][..], &[0x86, 0xdd], &ip, &[1; 32], &udp(payload)].concat()
}
