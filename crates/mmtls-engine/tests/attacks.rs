//! Attacks found in review: what a hostile endpoint, a third party on the wire, or someone on the
//! key channel may try. Each test says what must hold.

use crate::harness::attack::*;
use crate::harness::{RANDOM, SUITE, keys};
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::*;

#[test]
fn c1_server_speaking_first_must_not_blind() {
    // The honest start of a ServerHello, sent before the ClientHello; a TLS client cannot tell.
    let script = simple();
    let mut t = T::new();
    t.open();
    t.send(S, 0, 0, flag::ACK, &script.turns[1].bytes[..5]);
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    let mut at = [0u64, 0];
    for turn in &script.turns {
        let s = side(turn.direction);
        let skip = if s == 1 && at[1] == 0 {
            at[1] = 5;
            5
        } else {
            0
        };
        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes[skip..]);
        at[s] += (turn.bytes.len() - skip) as u64;
    }
    assert!(t.started(), "session unseen");
    assert_eq!(t.judged(), 2);
}

#[test]
fn c2_other_side_must_not_speak_for_the_client() {
    let mut t = T::new();
    t.open();
    // From the server's port, with the client's address.
    let f = t.ep.frame(C, 0, 0, flag::ACK, b"GET / HTTP/1.1\r\n");
    t.raw(1, &f);
    t.send(C, 0, 0, flag::ACK, &hello());
    assert!(t.started(), "session unseen");
}

#[test]
fn c3_server_alone_must_not_replace_a_live_flow() {
    let mut t = T::new();
    let at = established(&mut t);
    // Bare SYN and SYN-ACK, both from the server; numbers of its choice, above the real ones.
    let fake = Endpoints {
        initial: [t.ep.initial[0].wrapping_add(1 << 29), t.ep.initial[1].wrapping_add(1 << 29)],
        ..t.ep
    };
    // SYN whose sequence number will be the new "client" ISN.
    let mut syn = fake.frame(S, -1, 0, flag::SYN, &[]);
    syn[14 + 20 + 4..14 + 20 + 8].copy_from_slice(&fake.initial[0].to_be_bytes());
    t.raw(1, &syn);
    let syn_ack = fake.frame(S, -1, 0, flag::SYN | flag::ACK, &[]);
    t.raw(1, &syn_ack);
    assert!(t.alive(), "session ended: {:?}", t.engine.handler().events.last());
    let judged = t.judged();
    let v = t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1));
    assert!(v != Verdict::Forward || t.judged() > judged, "server record passed unjudged");
    let v = t.send(C, at[0] as i64, at[1], flag::ACK, &sealed(C, 1));
    assert!(v != Verdict::Forward || t.judged() > judged, "client record passed unjudged");
}

#[test]
fn c3_bytes_before_the_stream_must_not_pass() {
    let mut t = T::new();
    let at = established(&mut t);
    let v = t.send(S, -100_000, at[0], flag::ACK, &[1; 1000]);
    assert_eq!(v, Verdict::Drop);
}

#[test]
fn c4_blind_ack_must_not_kill() {
    let mut t = T::new();
    established(&mut t);
    // Sequence number far outside the window, random acknowledgment.
    t.send(C, 0x7000_0000, 0x1234_5678, flag::ACK, &[]);
    assert!(t.alive(), "session killed by one blind ACK");
}

#[test]
fn c5_long_extension_chain_must_not_pass() {
    let mut t = T::new();
    let mut frame = [[2u8; 6], [1; 6]].concat();
    let tcp = {
        let e = Endpoints {
            client: "[fd00::2]:40000".parse().unwrap(),
            server: "[fd00::3]:443".parse().unwrap(),
            initial: [5, 6],
        };
        e.frame(C, 0, 0, flag::ACK, &hello())
    };
    let (l3, l4) = tcp[14..].split_at(40);
    let mut ip = l3.to_vec();
    ip[6] = 60;
    let len = (l4.len() + 80) as u16;
    ip[4..6].copy_from_slice(&len.to_be_bytes());
    frame.extend_from_slice(&[0x86, 0xdd]);
    frame.extend_from_slice(&ip);
    for i in 0..10 {
        frame.extend_from_slice(&[if i == 9 { 6 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame.extend_from_slice(l4);
    let v = t.raw(0, &frame);
    assert!(v == Verdict::Drop || t.started(), "{v:?} unseen");
}

#[test]
fn c6_legacy_record_version_must_not_blind() {
    let mut t = T::new();
    t.open();
    let mut h = hello();
    h[2] = 0x7f;
    t.send(C, 0, 0, flag::ACK, &h);
    assert!(t.started(), "session unseen");
}

#[test]
fn c6_leading_alert_must_not_blind() {
    let mut t = T::new();
    t.open();
    let mut h = plain(ContentType(21), &[1, 90]);
    h.extend(hello());
    t.send(C, 0, 0, flag::ACK, &h);
    assert!(t.started(), "session unseen");
}

#[test]
fn c7_urgent_byte_must_not_pass() {
    let mut t = T::new();
    let at = established(&mut t);
    let rec = sealed(S, 1);
    // URG with pointer 1: the receiver takes the first byte out of the stream.
    let mut f = t.ep.frame(S, at[1] as i64, at[0], flag::ACK | 0x20, &rec[..10]);
    f[14 + 20 + 19] = 1;
    let v = t.raw(1, &f);
    assert_eq!(v, Verdict::Drop);
}

#[test]
fn h1_rst_then_wait_must_not_reopen_uninspected() {
    let mut t = T::new();
    let at = established(&mut t);
    // A RST that only the monitor sees (TTL, bad IP header checksum).
    t.send(S, at[1] as i64, at[0], flag::RST, &[]);
    t.now += 31_000_000_000;
    let now = t.now;
    t.engine.handle_timeout(now);
    let judged = t.judged();
    let v = t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1));
    assert!(v != Verdict::Forward || t.judged() > judged, "passed unjudged");
}

#[test]
fn h2_wrong_keys_must_not_buy_a_free_pass() {
    let mut t = T::new();
    t.open();
    let _ = t.keys_with(C, 0, Box::new(NullKeys(424242)), RANDOM, Some(t.ep.client.ip()));
    let _ = t.keys_with(
        S,
        0,
        Box::new(keys(S, KeyEpoch::Application(0))),
        RANDOM,
        Some(t.ep.client.ip()),
    );
    let at = t.play(&simple());
    let mut off = at[0];
    let mut passed = 0;
    for n in 1..40 {
        let r = keys(C, KeyEpoch::Application(0)).seal(
            n,
            ContentType::APPLICATION_DATA,
            &[1; 16000],
            0,
        );
        if t.send(C, off as i64, at[1], flag::ACK, &r) == Verdict::Forward {
            passed += r.len();
        }
        off += r.len() as u64;
    }
    assert!(passed <= 70_000, "{passed} bytes of application data passed unjudged");
}

#[test]
fn h3_bypass_must_free_buffers() {
    let mut c = T::config();
    c.policies.missing_keys = Policy::Forward;
    let mut t = T::with(c);
    t.open();
    let script = {
        let mut b = builder();
        for _ in 0..20 {
            b.record(C, ContentType::APPLICATION_DATA, &[7; 16000], 0);
        }
        b.build()
    };
    t.play(&script);
    t.now += 1_000_000_000;
    let now = t.now;
    t.engine.handle_timeout(now);
    while t.engine.poll_output().is_some() {}
    assert_eq!(t.engine.handler().errors().len(), 1);
    assert_eq!(t.engine.buffered_bytes(), 0, "bypassed session still keeps its bytes");
}

#[test]
fn h4_randoms_of_one_session_must_not_pile_up() {
    let mut t = T::new();
    t.open();
    let mut off = 0;
    for i in 0..10u8 {
        let mut r = RANDOM;
        if i > 0 {
            r[0] = i;
        }
        let h = plain(ContentType::HANDSHAKE, &client_hello(&r, "server.test", 0));
        t.send(C, off, 0, flag::ACK, &h);
        off += h.len() as i64;
    }
    t.send(C, off, 0, flag::RST, &[]);
    t.now += 200_000_000_000;
    let now = t.now;
    t.engine.handle_timeout(now);
    assert_eq!(t.engine.flow_count(), 0);
    let mut r = RANDOM;
    r[0] = 3;
    // A leaked entry answers NotNeeded; a clean table keeps the delivery.
    assert_eq!(t.keys_with(C, 0, Box::new(NullKeys(1)), r, None), Ok(false), "leaked");
}

#[test]
fn h5_global_cap_must_hold_for_in_order_bytes() {
    let mut c = T::config();
    c.limits.max_buffered_bytes = 1 << 20;
    let mut t = T::with(c);
    // Each flow: an announced record that never ends, and a fragment of a long ClientHello.
    for port in 1000..1200u16 {
        t.ep.client.set_port(port);
        t.open();
        let mut h = vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0];
        h.extend(vec![0; 16000]);
        t.send(C, 0, 0, flag::ACK, &h);
    }
    assert!(t.engine.buffered_bytes() <= 1 << 20, "{} bytes", t.engine.buffered_bytes());
}

#[test]
fn h5_handshake_messages_must_be_charged() {
    let mut t = T::new();
    t.open();
    let mut off = 0;
    for i in 0..6 {
        let mut h = vec![22, 3, 1, 0x40, 0];
        if i == 0 {
            h.extend_from_slice(&[1, 1, 0xf0, 0]);
        }
        h.resize(5 + 0x4000, 0);
        t.send(C, off, 0, flag::ACK, &h);
        off += h.len() as i64;
    }
    assert!(t.started() && t.alive());
    assert!(
        t.engine.buffered_bytes() > 90_000,
        "98 KB kept, {} charged",
        t.engine.buffered_bytes()
    );
}

#[test]
fn h6_same_address_must_not_steal_keys_by_replayed_random() {
    // Someone behind the client's address (NAT, or spoofed from anywhere) replays the ClientHello.
    let mut t = T::new();
    t.open();
    let script = simple();
    let mut at = [0u64; 2];
    for turn in &script.turns[..1] {
        let s = side(turn.direction);
        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
        at[s] += turn.bytes.len() as u64;
    }
    let honest = t.ep;
    t.ep.client.set_port(50001);
    t.send(C, -1, 0, flag::SYN, &[]);
    t.send(C, 0, 0, flag::ACK, &hello());
    t.ep = honest;
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    for turn in &script.turns[1..] {
        let s = side(turn.direction);
        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
        at[s] += turn.bytes.len() as u64;
    }
    assert_eq!(t.judged(), 2, "keys went to the replay: {:?}", t.engine.handler().events);
}

#[test]
fn h7_junk_keys_first_must_not_lock_out_the_real_ones() {
    let mut t = T::new();
    t.open();
    let script = simple();
    let mut at = [0u64; 2];
    for (i, turn) in script.turns.iter().enumerate() {
        if i == 1 {
            // Same address, e.g. behind one NAT; the random was seen on the wire.
            let _ = t.keys_with(C, 0, Box::new(NullKeys(1)), RANDOM, Some(t.ep.client.ip()));
            let _ = t.keys_with(S, 0, Box::new(NullKeys(1)), RANDOM, Some(t.ep.client.ip()));
        }
        if i == 2 {
            let _ = t.keys(C, 0);
            let _ = t.keys(S, 0);
        }
        let s = side(turn.direction);
        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
        at[s] += turn.bytes.len() as u64;
    }
    assert_eq!(t.judged(), 2);
}

/// Plays a session for whose random somebody at the client's address delivers junk, before the hello
/// or behind it, and the client the right keys after that.
fn judged_behind_junk(before_hello: bool, sources: u64) -> usize {
    let mut t = T::new();
    t.open();
    let junk = |t: &mut T| {
        for source in 0..sources {
            t.source = 100 + source;
            for number in 0..20 {
                for direction in [C, S] {
                    let opener = Box::new(NullKeys(7000 + number));
                    let _ = t.keys_with(direction, 0, opener, RANDOM, Some(t.ep.client.ip()));
                }
            }
        }
        t.source = 1;
    };
    let mut at = [0u64; 2];
    for (number, turn) in simple().turns.iter().enumerate() {
        if number == usize::from(!before_hello) {
            junk(&mut t);
            if before_hello {
                let _ = (t.keys(C, 0), t.keys(S, 0));
            }
        }
        if number == 2 && !before_hello {
            let _ = (t.keys(C, 0), t.keys(S, 0));
            // It does not help to come last, either.
            junk(&mut t);
        }
        let s = side(turn.direction);
        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
        at[s] += turn.bytes.len() as u64;
    }
    t.judged()
}

#[test]
fn h7_many_junk_keys_must_not_lock_out_the_real_ones() {
    for before_hello in [false, true] {
        for sources in [1, 2, 5] {
            assert_eq!(judged_behind_junk(before_hello, sources), 2, "{before_hello} {sources}");
        }
    }
}

#[test]
fn early_keys_of_many_networks_must_not_displace_those_of_others() {
    let mut c = T::config();
    c.limits.max_pending_keys = 1024;
    let mut t = T::with(c);
    let deliver = |t: &mut T, sender: &str, random: [u8; 32]| {
        let _ = t.keys_with(C, 0, Box::new(NullKeys(1)), random, Some(sender.parse().unwrap()));
    };
    deliver(&mut t, "10.0.0.2", [9; 32]);
    // As many addresses of a network as one likes, and many networks.
    for number in 0..2000u32 {
        let mut random = [1; 32];
        random[..4].copy_from_slice(&number.to_be_bytes());
        deliver(&mut t, &format!("2001:db8::{number:x}"), random);
    }
    assert!(t.engine.pending_claims() <= 1 + 1024 / 16, "{} claims", t.engine.pending_claims());
    for number in 0..20_000u32 {
        let mut random = [2; 32];
        random[..4].copy_from_slice(&number.to_be_bytes());
        deliver(&mut t, &format!("2001:db8:0:{:x}::1", number % 100), random);
    }
    deliver(&mut t, "10.0.0.4", [8; 32]);
    // Both are there, and nobody's was displaced.
    let pending = t.engine.pending_claims();
    let counters = t.engine.counters();
    assert_eq!(counters.keys_expired + counters.keys_over_quota + pending as u64, 22_002);
    deliver(&mut t, "10.0.0.4", [7; 32]);
    assert_eq!(t.engine.pending_claims(), pending + 1);
}

#[test]
fn h8_blind_bytes_far_ahead_must_not_block_the_stream() {
    let mut t = T::new();
    let at = established(&mut t);
    // One forged byte 100 MB ahead: no receiver of 64 KB window keeps it.
    let v = t.send(S, at[1] as i64 + 100_000_000, at[0], flag::ACK, &[0xee]);
    assert_eq!(v, Verdict::Drop, "kept: the genuine byte will be dropped as a conflict");
}

#[test]
fn h8_blind_fin_far_ahead_must_not_block_the_stream() {
    let mut t = T::new();
    let at = established(&mut t);
    t.send(S, at[1] as i64 + 100, at[0], flag::FIN | flag::ACK, &[]);
    let r = sealed(S, 1);
    assert!(r.len() > 100);
    // With window tracking a FIN inside the window is still believable; one far outside is not.
    let v = t.send(S, at[1] as i64 - 100_000_000, at[0], flag::FIN | flag::ACK, &[]);
    assert_eq!(v, Verdict::Drop);
}

#[test]
fn h8_blind_fin_before_the_stream_must_not_end_it() {
    let mut t = T::new();
    t.open();
    t.send(C, -1_000_000_000, 0, flag::FIN | flag::ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &hello());
    assert!(t.started(), "a blind FIN closed the direction");
}

#[test]
fn h9_forged_syn_ack_before_the_connection_must_not_block_it() {
    let mut t = T::new();
    let fake = Endpoints { initial: [77, 99], ..t.ep };
    let f = fake.frame(S, -1, 0, flag::SYN | flag::ACK, &[]);
    t.raw(1, &f);
    t.send(C, -1, 0, flag::SYN, &[]);
    let v = t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    assert_eq!(v, Verdict::Forward);
    t.send(C, 0, 0, flag::ACK, &hello());
    assert!(t.started());
}

#[test]
fn h9_missed_syn_must_not_hang_the_connection() {
    let mut t = T::new();
    t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &[]);
    let v = t.send(C, 0, 0, flag::ACK, &hello());
    assert_eq!(v, Verdict::Forward);
    assert!(t.started());
}

#[test]
fn h10_server_syn_first_must_not_swap_roles() {
    let mut t = T::new();
    // The server guesses the client's next port; the client's host drops the stray SYN.
    t.send(S, -1, 0, flag::SYN, &[]);
    t.send(C, -1, 0, flag::SYN, &[]);
    t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &hello());
    assert!(t.started(), "session unseen");
}

#[test]
fn h14_server_must_not_answer_bytes_that_were_not_seen() {
    // The client's bytes came in fragments, or behind tags, or by another way.
    let mut t = T::new();
    t.open();
    t.now += 61_000_000_000;
    let reply = [8; 700];
    assert_eq!(t.send(S, 0, 500, flag::ACK, &reply), Verdict::Drop);
    let resets = t.out.iter().filter(|o| matches!(o, Output::Inject { .. })).count();
    assert!(resets >= 2, "both sides are told");
    assert_eq!(t.send(C, 500, 700, flag::ACK, &hello()), Verdict::Drop);
    // An acknowledgment from beside the stream says nothing: anyone can send one.
    let mut t = T::new();
    t.open();
    t.now += 61_000_000_000;
    t.send(S, 9, 500, flag::ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &hello());
    assert!(t.started());
}

#[test]
fn h16_multipath_syn_must_not_pass() {
    let mut t = T::new();
    let mut syn = t.ep.frame(C, -1, 0, flag::SYN, &[]);
    // In place of the window scale.
    let at = syn.len() - 4;
    syn[at..].copy_from_slice(&[30, 4, 1, 0x81]);
    assert_eq!(t.raw(0, &syn), Verdict::Drop);
    let mut config = Config::new(Policy::Forward);
    config.verify_checksums = false;
    assert_eq!(T::with(config).raw(0, &syn), Verdict::Forward);
}

#[test]
fn p2_refused_keys_must_not_be_kept() {
    let mut config = T::config();
    config.limits.max_pending_keys = 32;
    let mut t = T::with(config);
    let sender = Some("192.0.2.1".parse().unwrap());
    for n in 0..10_000u32 {
        let mut random = RANDOM;
        random[..4].copy_from_slice(&n.to_be_bytes());
        let opener = Box::new(keys(C, KeyEpoch::Application(0)));
        let _ = t.keys_with(C, 0, opener, random, sender);
    }
    assert!(t.engine.pending_claims() <= 32, "{}", t.engine.pending_claims());
}

#[test]
fn m1_second_hello_must_keep_the_name() {
    let mut t = T::new();
    t.open();
    let h = hello();
    t.send(C, 0, 0, flag::ACK, &h);
    let h2 = plain(ContentType::HANDSHAKE, &client_hello(&RANDOM, "blocked.test", 10));
    t.send(C, h.len() as i64, 0, flag::ACK, &h2);
    assert!(!t.engine.handler().errors().is_empty(), "name changed silently");
}

#[test]
fn m2_hello_retry_without_supported_versions() {
    let mut t = T::new();
    t.open();
    let h = hello();
    t.send(C, 0, 0, flag::ACK, &h);
    let random = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ];
    let mut body = vec![2, 0, 0, 38, 3, 3];
    body.extend_from_slice(&random);
    body.extend_from_slice(&[0, 0x13, 1, 0]);
    t.send(S, 0, h.len() as u64, flag::ACK, &plain(ContentType::HANDSHAKE, &body));
    assert!(
        !t.engine.handler().errors().iter().any(|(_, e)| *e == SessionError::UnsupportedVersion),
        "bypassed"
    );
}

#[test]
fn p1_pending_keys_must_be_capped_by_amount() {
    let mut c = T::config();
    c.limits.max_pending_keys = 100;
    let mut t = T::with(c);
    for n in 0..100u8 {
        for _ in 0..16 {
            let keys: Vec<(Direction, KeyEpoch, Box<dyn OpenRecord>)> = (0..16)
                .map(|e| {
                    (C, KeyEpoch::Application(e), Box::new(NullKeys(1)) as Box<dyn OpenRecord>)
                })
                .collect();
            let _ = t.engine.handle_keys(
                1,
                SharedKeys {
                    sender: None,
                    source: 0,
                    client_random: [n; 32],
                    server_random: None,
                    cipher_suite: CipherSuite(SUITE),
                    keys,
                },
            );
        }
    }
    let c = t.engine.counters();
    assert!(
        c.keys_pending - c.keys_expired <= 100,
        "{} deliveries of 16 keys each kept",
        c.keys_pending - c.keys_expired
    );
}

#[test]
fn h11_lone_syn_acks_must_not_occupy_the_table_for_an_hour() {
    let mut t = T::new();
    for port in 1000..1100u16 {
        t.ep.client.set_port(port);
        t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    }
    t.now += 120_000_000_000;
    let now = t.now;
    t.engine.handle_timeout(now);
    assert_eq!(t.engine.flow_count(), 0, "each forged SYN-ACK costs a place for idle_timeout");
}

#[test]
fn h15_segments_out_of_nowhere_must_not_fill_the_table() {
    let mut config = T::config();
    config.limits.max_flows = 4;
    config.policies.table_full = Policy::Reset;
    config.policies.mid_stream = Policy::Bypass;
    let mut t = T::with(config);
    for port in 1000..1010u16 {
        t.ep.client.set_port(port);
        t.send(C, 5000, 1, flag::ACK, b"spoofed");
    }
    t.ep.client.set_port(40_000);
    t.open();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
    assert!(t.started());
}

#[test]
fn m1_second_hello_after_retry_must_keep_the_name() {
    let mut t = T::new();
    t.open();
    let h = hello();
    t.send(C, 0, 0, flag::ACK, &h);
    let random = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ];
    t.send(
        S,
        0,
        h.len() as u64,
        flag::ACK,
        &plain(ContentType::HANDSHAKE, &server_hello(&random, SUITE)),
    );
    let h2 = plain(ContentType::HANDSHAKE, &client_hello(&RANDOM, "blocked.test", 10));
    t.send(C, h.len() as i64, 0, flag::ACK, &h2);
    assert!(!t.engine.handler().errors().is_empty(), "name changed silently");
}

#[test]
fn h12_empty_record_before_the_hello_must_not_blind() {
    let mut t = T::new();
    t.open();
    let mut h = vec![22, 3, 1, 0, 0];
    h.extend(hello());
    t.send(C, 0, 0, flag::ACK, &h);
    assert!(t.started(), "session unseen");
}

#[test]
fn h13_half_rtt_data_must_not_pass_unjudged() {
    // Server application data sent before the client's Finished, keys not here yet.
    let mut t = T::new();
    t.open();
    let script = builder().build();
    t.send(C, 0, 0, flag::ACK, &script.turns[0].bytes);
    t.send(S, 0, script.turns[0].bytes.len() as u64, flag::ACK, &script.turns[1].bytes);
    let mut off = script.turns[1].bytes.len() as i64;
    let mut passed = 0;
    for n in 0..20 {
        let r = keys(S, KeyEpoch::Application(0)).seal(
            n,
            ContentType::APPLICATION_DATA,
            &[1; 10_000],
            0,
        );
        if t.send(S, off, script.turns[0].bytes.len() as u64, flag::ACK, &r) == Verdict::Forward {
            passed += r.len();
        }
        off += r.len() as i64;
    }
    // A handshake's worth may pass, since nobody can tell it from the handshake; the rest waits.
    assert!(passed <= 64 << 10, "{passed} bytes forwarded before any judgement");
    let _ = t.keys(S, 0);
    let judged = t.engine.handler().judged[1];
    assert_eq!(judged, 20, "what had passed is judged when keys come");
    assert_eq!(t.engine.handler().errors(), [(S, SessionError::JudgedLate)]);
}

/// A KeyUpdate in what passed before keys came: what follows it will never be opened.
#[test]
fn refuses_to_be_silent_about_records_behind_an_early_key_update() {
    let mut t = T::new();
    t.open();
    let script = builder().build();
    t.send(C, 0, 0, flag::ACK, &script.turns[0].bytes);
    let sent = script.turns[0].bytes.len() as u64;
    t.send(S, 0, sent, flag::ACK, &script.turns[1].bytes);
    let mut offset = script.turns[1].bytes.len() as i64;
    let update = keys(S, KeyEpoch::Application(0));
    let update = update.seal(0, ContentType::HANDSHAKE, &[24, 0, 0, 1, 0], 0);
    let data = keys(S, KeyEpoch::Application(1));
    let data = data.seal(0, ContentType::APPLICATION_DATA, &[1; 10_000], 0);
    for record in [update, data] {
        assert_eq!(t.send(S, offset, sent, flag::ACK, &record), Verdict::Forward);
        offset += record.len() as i64;
    }
    let _ = t.keys(S, 0);
    assert_eq!(t.engine.handler().errors(), [(S, SessionError::LostSynchronisation)]);
    assert!(!t.alive());
}

#[test]
fn compression_and_drafts_must_be_named() {
    let script = simple();
    for (body, error) in [
        // DEFLATE.
        ([&tls12_hello(SUITE)[..41], &[1]].concat(), SessionError::UnsupportedCompression),
        // Draft 18: no session, no compression.
        (
            [&[2, 0, 0, 36, 0x7f, 0x12][..], &[0x5a; 32], &SUITE.to_be_bytes()].concat(),
            SessionError::UnsupportedVersion,
        ),
    ] {
        let mut t = T::new();
        t.open();
        let hello = &script.turns[0].bytes;
        t.send(C, 0, 0, flag::ACK, hello);
        let answer = plain(ContentType::HANDSHAKE, &body);
        assert_eq!(t.send(S, 0, hello.len() as u64, flag::ACK, &answer), Verdict::Drop);
        assert_eq!(t.engine.handler().errors(), [(S, error)]);
    }
}

/// Copies of a connection: behind a NAT, or through the monitor twice.
#[test]
fn copies_of_a_connection_must_get_the_same_keys() {
    for (copy, sender) in [("10.0.0.2:41000", Some("10.0.0.2")), ("192.0.2.9:40000", None)] {
        for late in [false, true] {
            let mut t = T::new();
            let ends = [t.ep, Endpoints { client: copy.parse().unwrap(), ..t.ep }];
            for ep in ends {
                t.ep = ep;
                t.open();
            }
            let script = simple();
            let mut at = [[0u64; 2]; 2];
            let mut stalled = 0;
            for (number, turn) in script.turns.iter().enumerate() {
                for (ep, at) in ends.iter().zip(&mut at) {
                    t.ep = *ep;
                    let s = side(turn.direction);
                    let sent =
                        t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
                    stalled += usize::from(matches!(sent, Verdict::Hold(_)));
                    at[s] += turn.bytes.len() as u64;
                }
                if number + 1 == if late { script.turns.len() } else { 2 } {
                    let sender = sender.map(|it| it.parse().unwrap());
                    for d in [C, S] {
                        let keys = keys(d, KeyEpoch::Application(0));
                        assert_eq!(t.keys_with(d, 0, Box::new(keys), RANDOM, sender), Ok(true));
                    }
                }
            }
            assert_eq!(t.judged(), 4, "{copy}, late {late}");
            assert_eq!(stalled > 0, late);
        }
    }
}

#[test]
fn copies_must_get_their_keys_when_the_first_is_over() {
    let mut t = T::new();
    let first = t.ep;
    let second = Endpoints { client: "10.0.0.2:41000".parse().unwrap(), ..t.ep };
    let script = simple();
    t.open();
    let hello = &script.turns[0].bytes;
    t.send(C, 0, 0, flag::ACK, hello);
    t.ep = second;
    t.open();
    t.play(&script);
    t.ep = first;
    t.send(C, hello.len() as i64, 0, flag::RST | flag::ACK, &[]);
    assert!(!t.alive(), "the first one is over");
    assert_eq!((t.keys(C, 0), t.keys(S, 0)), (Ok(true), Ok(true)));
    assert_eq!(t.judged(), 2);
}

/// Behind one that is not read any more, and is still open.
#[test]
fn sessions_must_get_their_keys_where_another_had_their_random() {
    let mut t = T::new();
    let script = simple();
    t.open();
    let at = t.play(&script);
    let client = Some(t.ep.client.ip());
    assert_eq!(t.engine.handle_null_keys(t.now, client, RANDOM, None), Ok(true));
    t.drain();
    t.ep.client.set_port(41_000);
    t.open();
    t.play(&script);
    assert_eq!((t.keys(C, 0), t.keys(S, 0)), (Ok(true), Ok(true)));
    assert_eq!(t.judged(), 2);
    // The first one ends, and takes nothing away.
    t.ep.client.set_port(40_000);
    t.send(C, at[0] as i64, at[1], flag::RST | flag::ACK, &[]);
    assert!(t.engine.has_session(client, &RANDOM));
}
