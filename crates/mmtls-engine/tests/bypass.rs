//! What is left alone, and what only looks like it.

use crate::harness::attack::*;
use mmtls_engine::tls::Direction;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

const SERVER: &str = "10.0.0.3:443";
const CLIENT: &str = "10.0.0.2:40000";

/// With a rule for one end of the connection.
fn beside(end: &str, port: bool) -> T {
    let end: std::net::SocketAddr = end.parse().unwrap();
    let mut config = T::config();
    config.mid_stream_grace_ns = 0;
    config.bypass =
        vec![Bypass { address: end.ip(), prefix_len: 32, port: port.then_some(end.port()) }];
    T::with(config)
}

#[test]
fn server_is_left_alone_and_a_client_with_its_port_is_not() {
    for (end, port, seen) in [
        (SERVER, true, false),
        // The key channel's address and port, as somebody's own source.
        (CLIENT, true, true),
        (SERVER, false, false),
        (CLIENT, false, false),
    ] {
        let mut t = beside(end, port);
        let at = established_if(&mut t, seen);
        assert_eq!(t.started(), seen, "{end} {port}");
        assert_eq!(t.engine.counters().bypassed > 0, !seen, "{end} {port}");
        if seen {
            // Its tombstone holds, too.
            t.send(C, at[0] as i64, at[1], flag::ACK, &[1; 100]);
            assert!(!t.alive());
            let verdict = t.send(C, at[0] as i64 + 100, at[1], flag::ACK, &[1; 100]);
            assert_eq!(verdict, Verdict::Drop);
        }
    }
}

fn established_if(t: &mut T, seen: bool) -> [u64; 2] {
    if seen {
        return established(t);
    }
    t.open();
    t.play(&simple())
}

#[test]
fn a_server_is_left_alone_whatever_it_carries() {
    let mut t = beside(SERVER, true);
    t.open();
    let mut at = [0u64; 2];
    for _ in 0..3 {
        for d in Direction::BOTH {
            let s = side(d);
            let data = hello();
            assert_eq!(t.send(d, at[s] as i64, at[1 - s], flag::ACK, &data), Verdict::Forward);
            // Changed, too.
            let other = vec![22; data.len()];
            assert_eq!(t.send(d, at[s] as i64, at[1 - s], flag::ACK, &other), Verdict::Forward);
            at[s] += data.len() as u64;
        }
    }
    assert!(!t.started());
    assert_eq!((t.engine.buffered_bytes(), t.engine.handler().anomalies.len()), (0, 0));
}

#[test]
fn forged_segments_must_not_take_a_connection_away_from_the_rule() {
    let mut t = beside(SERVER, true);
    // Somebody asks in the server's name, before the connection and while it is open, and answers in
    // the client's.
    let syn = t.ep.frame(S, -1, 0, flag::SYN, &[]);
    t.raw(1, &syn);
    t.open();
    let hello = hello();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), Verdict::Forward);
    let answer = t.ep.frame(C, -1, 0, flag::SYN | flag::ACK, &[]);
    t.raw(1, &syn);
    t.raw(0, &answer);
    for (direction, data) in [(S, &[2; 50][..]), (C, &[3; 50])] {
        assert_eq!(t.send(direction, 0, 0, flag::ACK, data), Verdict::Forward);
    }
    assert!(!t.started());
}

#[test]
fn a_reset_and_a_pause_must_not_bring_the_rule_to_a_client() {
    // A RST that dies behind the monitor, until the flow is forgotten.
    let mut t = beside(CLIENT, true);
    t.open();
    t.send(C, 0, 0, flag::RST, &[]);
    t.now += 200 * 1_000_000_000;
    let now = t.now;
    t.engine.handle_timeout(now);
    assert_eq!(t.engine.flow_count(), 0);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Drop);
    assert_eq!(t.send(S, 0, 60, flag::ACK, &[22, 3, 3, 0, 40]), Verdict::Drop);
}
