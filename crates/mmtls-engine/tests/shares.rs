//! What is shared by all connections is not taken by those of one client: who has the most of it
//! pays.

use crate::harness::Event;
use crate::harness::attack::*;
use mmtls_engine::*;
use mmtls_testkit::segments::{Endpoints, flag};

fn from(client: &str) -> Endpoints {
    Endpoints {
        client: client.parse().unwrap(),
        server: "10.0.0.3:443".parse().unwrap(),
        initial: [1_000_000, 2_000_000_000],
    }
}

/// A session whose client's records wait for keys, so many in a segment each; their frames.
fn stall(t: &mut T, records: usize) -> Vec<HoldId> {
    t.open();
    let script = builder().build();
    let mut at = t.play(&script);
    let mut frames = Vec::new();
    for _ in 0..records {
        let record = sealed(C, 0);
        if let Verdict::Hold(id) = t.send(C, at[0] as i64, at[1], flag::ACK, &record) {
            frames.push(id);
        }
        at[0] += record.len() as u64;
    }
    frames
}

/// Whether these still wait for keys.
fn wait(t: &T, frames: &[HoldId]) -> bool {
    !frames.is_empty()
        && !t.out.iter().any(|it| match it {
            Output::Release(id) | Output::Discard(id) => frames.contains(id),
            _ => false,
        })
}

fn held(t: &T) -> usize {
    let gone =
        t.out.iter().filter(|it| matches!(it, Output::Release(_) | Output::Discard(_))).count();
    t.engine.counters().held as usize - gone
}

#[test]
fn held_frames_must_not_be_taken_from_other_clients() {
    let mut c = T::config();
    c.limits.max_held_frames = 1000;
    let mut t = T::with(c);
    let honest = [from("10.0.0.2:40000"), from("10.0.0.4:40000")];
    // One client holds all that there are, to the last one.
    for port in 0..200u16 {
        t.ep = from("10.6.6.6:1000");
        t.ep.client.set_port(1000 + port);
        stall(&mut t, if port < 9 { 100 } else { 1 });
        assert!(held(&t) <= 1000, "{} held", held(&t));
    }
    let before = t.engine.handler().errors().len();
    assert!(before > 0, "the largest holder pays");
    // Others wait for their keys as if nothing were.
    let honest = honest.map(|ep| {
        t.ep = ep;
        stall(&mut t, 40)
    });
    assert!(held(&t) <= 1000, "{} held", held(&t));
    for frames in honest {
        assert!(frames.len() >= 30 && wait(&t, &frames), "{} wait", frames.len());
    }
}

#[test]
fn many_small_holders_must_not_end_who_has_just_begun_to_wait() {
    let mut c = T::config();
    c.limits.max_held_frames = 1000;
    let mut t = T::with(c);
    for number in 0..250u8 {
        t.ep = from("10.6.6.6:1000");
        t.ep.client = ([10, 6, 6, number], 1000).into();
        stall(&mut t, 5);
    }
    assert!(held(&t) <= 1000);
    t.ep = from("10.0.0.2:40000");
    let frames = stall(&mut t, 40);
    assert!(frames.len() >= 30 && wait(&t, &frames), "who has waited longest pays");
}

#[test]
fn addresses_of_one_network_must_count_together() {
    let mut c = T::config();
    c.limits.max_held_frames = 1000;
    let mut t = T::with(c);
    // 100 addresses of a network hold ten frames each; no one is large.
    for number in 0..100 {
        t.ep = from(&format!("[2001:db8::{number:x}]:1000"));
        t.ep.server = "[2001:db8:ffff::3]:443".parse().unwrap();
        stall(&mut t, 10);
    }
    t.ep = from("10.0.0.2:40000");
    let frames = stall(&mut t, 200);
    assert!(frames.len() >= 190 && wait(&t, &frames), "the network pays");
}

/// A hundred connections of one client with an unfinished record each.
fn fill(t: &mut T, ports: u16, bytes: usize) {
    for port in ports..ports + 100 {
        t.ep = from("10.6.6.6:1000");
        t.ep.client.set_port(port);
        t.open();
        let hello = hello();
        t.send(C, 0, 0, flag::ACK, &hello);
        t.send(S, 0, hello.len() as u64, flag::ACK, &[]);
        let mut record = vec![22, 3, 3, 0x40, 0];
        record.resize(5 + bytes, 0);
        t.send(C, hello.len() as i64, 0, flag::ACK, &record);
    }
}

#[test]
fn memory_must_not_be_taken_from_other_clients() {
    let mut c = T::config();
    c.limits.max_buffered_bytes = 1 << 20;
    let mut t = T::with(c);
    let at = established(&mut t);
    let honest = t.ep;
    for (ports, bytes) in [(1000, 16_000), (2000, 4000), (3000, 1000), (4000, 100), (5000, 1)] {
        fill(&mut t, ports, bytes);
    }
    assert!(t.engine.buffered_bytes() <= 1 << 20, "{} bytes", t.engine.buffered_bytes());
    assert!(!t.engine.handler().errors().is_empty());
    // A session of another client loses a segment: what follows is kept, and it goes on.
    t.ep = honest;
    let dropped = t.engine.counters().buffer_full;
    let records: Vec<Vec<u8>> = (1..20).map(|number| sealed(S, number)).collect();
    let mut from = at[1];
    for record in &records[1..] {
        from += record.len() as u64;
        let verdict = t.send(S, from as i64, at[0], flag::ACK, record);
        assert_ne!(verdict, Verdict::Drop);
    }
    t.send(S, at[1] as i64, at[0], flag::ACK, &records[0]);
    assert_eq!(t.engine.counters().buffer_full, dropped);
    assert_eq!(t.judged(), 2 + records.len());
    let more = sealed(S, 20);
    let end = from + records[0].len() as u64;
    assert_eq!(t.send(S, end as i64, at[0], flag::ACK, &more), Verdict::Forward, "it goes on");
}

#[test]
fn what_can_be_sent_again_must_leave_as_much_to_others() {
    let mut c = T::config();
    c.limits.max_buffered_bytes = 1 << 20;
    let mut t = T::with(c);
    // One client's connections keep bytes behind a hole, as many as they may.
    for port in 0..100u16 {
        t.ep = from("10.6.6.6:1000");
        t.ep.client.set_port(1000 + port);
        t.open();
        t.send(S, 0, 0, flag::ACK, &[]);
        for piece in 0..20i64 {
            t.send(C, 100 + piece * 1400, 0, flag::ACK, &[b'x'; 1400]);
        }
    }
    let kept = t.engine.buffered_bytes();
    assert!((400 << 10..=512 << 10).contains(&kept), "{kept} bytes of one client");
    // The next client finds room for as long a flight.
    t.ep = from("10.0.0.2:40000");
    t.open();
    t.send(S, 0, 0, flag::ACK, &[]);
    for piece in 0..40i64 {
        let verdict = t.send(C, 100 + piece * 1400, 0, flag::ACK, &[b'x'; 1400]);
        assert_eq!(verdict, Verdict::Forward);
    }
}

#[test]
fn undecided_connections_must_not_end_those_of_others() {
    let mut c = T::config();
    c.limits.max_buffered_bytes = 1 << 20;
    c.mid_stream_grace_ns = 0;
    let mut t = T::with(c);
    for port in 0..200u16 {
        t.ep = from("10.6.6.6:1000");
        t.ep.client.set_port(1000 + port);
        t.open();
        let (pieces, len) = [(11, 1440), (1, 1440), (1, 200), (1, 1)][usize::from(port / 50)];
        for piece in 0..pieces {
            t.send(C, piece * 1440, 0, flag::ACK, &vec![b'x'; len]);
            t.send(S, 0, piece as u64 * 1440 + len as u64, flag::ACK, &[]);
        }
    }
    // What a greeting leads to is something that nobody knows yet.
    t.ep = from("10.0.0.2:40000");
    t.open();
    let greeting = [&[b'x'; 500][..], b"\r\n"].concat();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &greeting), Verdict::Forward);
    t.send(S, 0, 502, flag::ACK, b"220 ready\r\n");
    assert_eq!(t.send(C, 502, 11, flag::ACK, &hello()), Verdict::Forward);
    assert!(t.started(), "given up");
}

#[test]
fn attempts_of_one_client_must_not_displace_those_of_others() {
    let mut c = T::config();
    c.limits.max_flows = 100;
    let mut t = T::with(c);
    // Somebody opens a connection, and its answer takes its time.
    let honest = from("10.0.0.2:40000");
    t.ep = honest;
    t.send(C, -1, 0, flag::SYN, &[]);
    for port in 0..500u16 {
        t.ep = from("10.6.6.6:1000");
        t.ep.client.set_port(1000 + port);
        assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Forward);
        assert!(t.engine.flow_count() <= 100);
    }
    assert_eq!(t.engine.counters().evicted, 401);
    t.ep = honest;
    // An answer to another SYN is noticed only where this one is known.
    t.send(S, -1, 1000, flag::SYN | flag::ACK, &[]);
    assert_eq!(t.engine.counters().stray_control, 1, "its SYN was forgotten");
    t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &[]);
    t.send(C, 0, 0, flag::ACK, &hello());
    assert!(t.started());
}

/// A table of so many flows, where what is not TLS is reset.
fn resetting(max_flows: usize) -> Config {
    let mut config = T::config();
    config.limits.max_flows = max_flows;
    config.tls_ports = vec![T::new().ep.server.port()];
    config.policies.not_tls = Policy::Reset;
    config
}

#[test]
fn tombstones_must_make_room_for_nobody() {
    let mut t = T::with(resetting(100));
    let honest = t.ep;
    for host in 0..100 {
        // Reset by the segment that opens it: it never was more than an attempt.
        t.ep.client = ([10, 6, 6, host], 1000).into();
        t.send(C, -1, 0, flag::SYN, &[]);
        t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
        let verdict = t.send(C, 0, 0, flag::ACK, b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(verdict, Verdict::Drop);
    }
    t.ep = honest;
    assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Drop);
    assert_eq!((t.engine.flow_count(), t.engine.counters().evicted), (100, 0));
}

#[test]
fn reset_connection_must_not_be_forgotten_by_a_new_one_without_room() {
    let mut config = resetting(4);
    config.policies.table_full = Policy::Forward;
    config.policies.mid_stream = Policy::Forward;
    let mut t = T::with(config);
    for (host, port) in [(6, 1000), (6, 1001), (7, 1000), (8, 1000)] {
        t.ep.client = ([10, 6, 6, host], port).into();
        t.open();
        assert_eq!(t.send(C, 0, 0, flag::ACK, b"GET / HTTP/1.1\r\n\r\n"), Verdict::Drop);
    }
    // Its client has as many tombstones as it may, but this one takes the place of one of them.
    t.ep.client = ([10, 6, 6, 6], 1000).into();
    t.open();
    assert_eq!(t.send(C, 0, 0, flag::ACK, b"GET / HTTP/1.1\r\n\r\n"), Verdict::Drop);
    assert_eq!(t.send(S, 0, 0, flag::ACK, b"HTTP/1.1 200 OK\r\n\r\n"), Verdict::Drop);
}

#[test]
fn tombstones_of_one_client_must_not_take_the_table() {
    let mut t = T::with(resetting(100));
    let honest = t.ep;
    for port in 0..200 {
        t.ep.client = ([10, 6, 6, 6], 1000 + port).into();
        t.open();
        assert_eq!(t.send(C, 0, 0, flag::ACK, b"GET / HTTP/1.1\r\n\r\n"), Verdict::Drop);
    }
    assert_eq!(t.engine.flow_count(), 50, "more than is left for all others");
    t.ep = honest;
    let _ = established(&mut t);
    assert_eq!((t.judged(), t.engine.counters().evicted), (2, 0));
}

#[test]
fn client_with_most_connections_must_make_room_for_others() {
    let mut config = T::config();
    config.limits.max_flows = 1000;
    let mut t = T::with(config);
    let honest = t.ep;
    for port in 0..1000 {
        t.ep.client = ([10, 6, 6, 6], 1000 + port).into();
        t.open();
    }
    assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Forward, "a SYN again");
    t.ep.client.set_port(5000);
    assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Drop, "its own have taken everything");
    t.ep = honest;
    let _ = established(&mut t);
    assert_eq!((t.judged(), t.engine.counters().evicted), (2, 1));
    // The longest silent one of the oldest has gone.
    t.ep.client = ([10, 6, 6, 6], 1000).into();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Drop);
    t.ep.client.set_port(1001);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
}

/// One of the connections that are open and silent.
fn idle(at: u16) -> std::net::SocketAddr {
    ([10, 6, 6, 6], 1000 + at).into()
}

/// 2,000 SYNs, each of another client, into that table when it is full.
fn flood(t: &mut T) {
    for host in 0..2000_u32 {
        t.ep.client = (core::net::Ipv4Addr::from_bits(0x0a01_0000 + host), 40_000).into();
        assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Forward);
    }
    assert_eq!((t.engine.flow_count(), t.engine.counters().evicted), (800, 2000));
}

/// A table for 800 with so many of those that are idle in it.
fn beside_idle(count: u16) -> T {
    let mut config = T::config();
    config.limits.max_flows = 800;
    let mut t = T::with(config);
    for at in 0..count {
        t.ep.client = idle(at);
        t.open();
    }
    t
}

#[test]
fn new_sessions_must_not_put_out_each_other_where_idle_ones_have_the_table() {
    let mut t = beside_idle(800);
    // Many at once: all SYNs come before the first answer does.
    let newcomers: Vec<_> = (0..100).map(|host| ([10, 0, 1, host], 40_000).into()).collect();
    for &client in &newcomers {
        t.ep.client = client;
        assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Forward);
    }
    for (count, &client) in (1..).zip(&newcomers) {
        t.ep.client = client;
        t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
        t.send(C, 0, 0, flag::ACK, &[]);
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
        assert_eq!(t.engine.counters().sessions, count, "{client}");
    }
    assert_eq!((t.engine.flow_count(), t.engine.counters().evicted), (800, 100));
}

#[test]
fn attempts_must_not_put_out_more_than_an_eighth_of_all_connections() {
    let mut t = beside_idle(800);
    flood(&mut t);
    // What is left is followed as before.
    for at in 100..800 {
        t.ep.client = idle(at);
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
    }
    assert_eq!(t.engine.counters().sessions, 700);
}

#[test]
fn connections_that_are_over_must_make_room_before_idle_ones() {
    let mut t = beside_idle(400);
    for number in 1..=2000_u16 {
        t.ep.client = ([10, 7, 7, 7], 1000 + number).into();
        t.open();
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
        assert_eq!(t.engine.counters().sessions, u64::from(number), "followed");
        let at = hello().len() as i64;
        match number % 2 {
            0 => drop(t.send(C, at, 0, flag::RST, &[])),
            _ => {
                t.send(C, at, 0, flag::FIN | flag::ACK, &[]);
                t.send(S, 0, at as u64 + 1, flag::FIN | flag::ACK, &[]);
            }
        }
    }
    assert_eq!((t.engine.flow_count(), t.engine.counters().evicted), (800, 1600));
    for at in 0..400 {
        t.ep.client = idle(at);
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
    }
    assert_eq!(t.engine.counters().sessions, 2400, "the idle ones are there");
}

#[test]
fn attempts_must_not_put_out_what_is_remembered_of_connections_that_are_over() {
    let mut t = beside_idle(400);
    let over = |at: u16| ([10, 7, 7, 7], 1000 + at).into();
    let len = hello().len() as i64;
    for at in 0..400 {
        t.ep.client = over(at);
        t.open();
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
        t.send(C, len, 0, flag::RST, &[]);
    }
    flood(&mut t);
    for at in 0..400 {
        t.ep.client = over(at);
        t.send(C, len, 0, flag::ACK, b"goes on");
    }
    // An eighth of the table is attempts.
    assert_eq!(t.engine.counters().mid_stream, 100);
}

#[test]
fn attempts_that_are_refused_must_not_be_told_as_connections() {
    for passive in [false, true] {
        let mut config = T::config();
        config.inline = !passive;
        let mut t = T::with(config);
        t.send(C, -1, 0, flag::SYN, &[]);
        t.send(S, 0, 0, flag::RST | flag::ACK, &[]);
        assert!(matches!(t.engine.handler().events.last(), Some(Event::FlowEnd(_))), "{passive}");
        assert!(!t.engine.handler().flow_established, "{passive}");
        t.ep.client.set_port(1000);
        t.open();
        t.send(S, 0, 0, flag::RST, &[]);
        assert!(t.engine.handler().flow_established, "{passive}");
    }
}
