//! Connections that are left to the I/O layer: which ones, when they are taken back, and what is known of them then.

use crate::harness::attack::*;
use crate::harness::{Event, RANDOM};
use mmtls_engine::session::EndReason;
use mmtls_engine::tls::Direction;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

fn config() -> Config {
    Config { offload: true, mid_stream_grace_ns: 0, ..T::config() }
}

fn leaves(t: &mut T) -> Vec<OffloadedFlow> {
    let taken = std::mem::take(&mut t.out);
    let left = |it| if let Output::Offload(flow) = it { Some(*flow) } else { None };
    taken.into_iter().filter_map(left).collect()
}

/// Which connection is taken back, if one is.
fn taken_back(t: &mut T) -> Option<OffloadedFlow> {
    let taken = std::mem::take(&mut t.out);
    let back = |it| if let Output::TakeBack(flow) = it { Some(*flow) } else { None };
    taken.into_iter().find_map(back)
}

/// A session whose endpoint refuses to share, up to where it has been left to the I/O layer; stream offsets.
fn left(t: &mut T) -> ([u64; 2], OffloadedFlow) {
    t.open();
    let sender = Some(t.ep.client.ip());
    t.engine.handle_null_keys(t.now, sender, RANDOM, None).unwrap();
    let at = t.play(&simple());
    let flow = *leaves(t).last().expect("it is left to the I/O layer");
    assert_eq!(flow.positions, at);
    assert_eq!(flow.ends, [t.ep.client, t.ep.server]);
    (at, flow)
}

/// The answer of an I/O layer that has forwarded so many bytes of each direction.
fn answer(t: &mut T, flow: &OffloadedFlow, bytes: [u64; 2]) {
    let of = |at: usize| ForwardedElsewhere {
        packets: bytes[at].div_ceil(1000),
        bytes: bytes[at],
        position: if bytes[at] > 0 { flow.positions[at] + bytes[at] } else { 0 },
        ..ForwardedElsewhere::default()
    };
    t.engine.handle_taken_back(t.now, flow, [of(0), of(1)]);
}

#[test]
fn only_what_nobody_reads_is_left_to_the_io_layer() {
    let mut t = T::with(config());
    let at = established(&mut t);
    t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1));
    assert_eq!(leaves(&mut t), [], "a session that is followed");

    let mut t = T::with(config());
    t.open();
    t.say(&[(C, b"GET / HTTP/1.1\r\n\r\n"), (S, b"HTTP/1.1 200 OK\r\n\r\n"), (C, b"more")]);
    assert_eq!(leaves(&mut t), [], "TLS may begin in it");

    let mut t = T::with(Config { offload: false, ..config() });
    t.open();
    let sender = Some(t.ep.client.ip());
    t.engine.handle_null_keys(t.now, sender, RANDOM, None).unwrap();
    t.play(&simple());
    assert_eq!(leaves(&mut t), [], "nobody can forward it");

    left(&mut T::with(config()));
    let server: std::net::SocketAddr = "10.0.0.3:443".parse().unwrap();
    let rule = Bypass { address: server.ip(), prefix_len: 32, port: Some(443) };
    let mut t = T::with(Config { bypass: vec![rule], ..config() });
    t.open();
    // The server's place is known since its SYN-ACK.
    let [flow] = leaves(&mut t)[..] else { panic!("a server that is left alone") };
    assert_eq!(flow.positions, [0, 0]);
}

/// A segment that came too early to be forwarded elsewhere says where that may begin.
#[test]
fn what_is_shown_all_the_same_passes_and_moves_the_beginning() {
    let mut t = T::with(config());
    let (at, _) = left(&mut t);
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &[1; 700]), Verdict::Forward);
    let [flow] = leaves(&mut t)[..] else { panic!("it is left again") };
    assert_eq!(flow.positions, [at[0], at[1] + 700]);
}

/// As an I/O layer does: it takes a connection back where it is asked to, having forwarded so many bytes of each direction.
fn shown(t: &mut T, d: Direction, at: [u64; 2], flags: u8, since: &mut [u64; 2]) -> Verdict {
    let send = |t: &mut T| t.send(d, at[side(d)] as i64, at[1 - side(d)], flags | flag::ACK, &[]);
    let verdict = send(t);
    if verdict != Verdict::Again {
        return verdict;
    }
    let flow = taken_back(t).expect("it is taken back");
    answer(t, &flow, std::mem::take(since));
    send(t)
}

/// Gigabytes behind what the engine has seen, the end is where it is; what comes then on the four-tuple is followed.
#[test]
fn an_end_is_judged_where_the_connection_stands() {
    const BYTES: [u64; 2] = [5_000, 5 << 30];
    let mut t = T::with(config());
    let (at, _) = left(&mut t);
    let (mut at, mut since) = ([at[0] + BYTES[0], at[1] + BYTES[1]], BYTES);
    // What is not at its place ends nothing.
    let elsewhere = [at[0] - 1000, at[1]];
    assert_eq!(shown(&mut t, C, elsewhere, flag::RST, &mut since), Verdict::Forward);
    assert!(t.alive() && since == [0, 0]);
    assert_eq!(leaves(&mut t).len(), 1, "it is left again");
    assert_eq!(shown(&mut t, C, at, flag::FIN, &mut since), Verdict::Forward);
    assert_eq!(leaves(&mut t), [], "not once it ends");
    at[0] += 1;
    assert_eq!(shown(&mut t, S, at, flag::FIN, &mut since), Verdict::Forward);
    assert!(!t.alive());
    at[1] += 1;
    assert_eq!(shown(&mut t, C, at, 0, &mut since), Verdict::Forward);
    let recorder = t.engine.handler();
    assert_eq!(recorder.events.last(), Some(&Event::FlowEnd(EndReason::Closed)));
    assert_eq!(recorder.flow_bytes, [at[0] - 1, at[1] - 1], "all bytes count, however they went");

    t.ep.initial = [70_000_000, 90_000_000];
    t.open();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello()), Verdict::Forward);
    assert_eq!((t.engine.counters().sessions, leaves(&mut t).len()), (2, 0));
}

/// While a connection is left alone, no other one can begin on its four-tuple.
#[test]
fn nothing_begins_on_the_four_tuple_meanwhile() {
    let mut t = T::with(config());
    left(&mut t);
    t.ep.initial = [70_000_000, 90_000_000];
    assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Again);
    let flow = taken_back(&mut t).expect("it is taken back");
    answer(&mut t, &flow, [100, 100]);
    assert_eq!(t.send(C, -1, 0, flag::SYN, &[]), Verdict::Forward);
    assert_eq!(leaves(&mut t), [], "since another one may begin");
    assert_eq!(t.send(S, -1, 0, flag::SYN | flag::ACK, &[]), Verdict::Drop);
    // In pieces a SYN is not shown again: it does not pass at all.
    let mut t = T::with(config());
    let (_, flow) = left(&mut t);
    t.ep.initial = [70_000_000, 90_000_000];
    let syn = t.ep.frame(C, -1, 0, flag::SYN, &[]);
    let pieces = crate::fragments::cut(&syn, 16, 7);
    for piece in &pieces {
        t.raw(side(C) as u8, piece);
    }
    assert_eq!(taken_back(&mut t).map(|it| it.id), Some(flow.id));
    assert_eq!((t.engine.counters().dropped, t.engine.counters().released), (2, 0));
}

/// Nobody can have it taken back again and again.
#[test]
fn it_is_left_to_the_io_layer_a_few_times_only() {
    let mut t = T::with(config());
    let (at, _) = left(&mut t);
    let mut count = 0;
    for _ in 0..100 {
        // Far outside the window.
        let stray = |t: &mut T| t.send(C, 1 << 30, at[1], flag::RST, &[]);
        if stray(&mut t) == Verdict::Again {
            let flow = taken_back(&mut t).expect("it is taken back");
            answer(&mut t, &flow, [0, 0]);
            stray(&mut t);
            count += 1;
        }
    }
    assert!((1..20).contains(&count), "{count}");
    assert!(t.alive());
}

/// Long idle, as far as the engine sees it: what counts is what has been forwarded.
#[test]
fn a_connection_that_is_not_shown_is_not_idle() {
    let mut t = T::with(config());
    let (_, flow) = left(&mut t);
    for forwarded in [1000, 0] {
        t.now += Limits::default().idle_timeout_ns + 1;
        t.engine.handle_timeout(t.now);
        t.drain();
        let back = taken_back(&mut t).expect("it is asked");
        assert_eq!(back.id, flow.id);
        answer(&mut t, &flow, [0, forwarded]);
        t.now += 2_000_000;
        t.engine.handle_timeout(t.now);
        assert_eq!(t.engine.flow_count() > 0, forwarded > 0);
        if forwarded > 0 {
            // Left again by its next segment.
            let at = [flow.positions[0], flow.positions[1] + forwarded];
            t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
            assert_eq!(leaves(&mut t).len(), 1);
        }
    }
}
