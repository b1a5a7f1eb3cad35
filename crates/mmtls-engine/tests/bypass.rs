//! What is left alone, and what only looks like it.

mod harness;
use harness::attack::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;

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
fn forged_segments_must_not_take_a_connection_away_from_the_rule() {
    let mut t = beside(SERVER, true);
    // Before it begins somebody asks in the server's name, and answers in the client's.
    let syn = t.ep.frame(S, -1, 0, flag::SYN, &[]);
    t.raw(1, &syn);
    t.open();
    let hello = hello();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), Verdict::Forward);
    let answer = t.ep.frame(C, -1, 0, flag::SYN | flag::ACK, &[]);
    t.raw(1, &syn);
    t.raw(1, &answer);
    for (direction, data) in [(S, &[2; 50][..]), (C, &[3; 50])] {
        assert_eq!(t.send(direction, 0, 0, flag::ACK, data), Verdict::Forward);
    }
    assert!(!t.started());
}
