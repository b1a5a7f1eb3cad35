//! Settings that are exchanged while connections are open: those that come later are under the new ones, and none that is
//! there is cut.

use crate::harness::Event;
use crate::harness::attack::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::side;

const CLIENT_NET: &str = "10.0.0.0";
const SECOND_NS: u64 = 1_000_000_000;

fn rule() -> Bypass {
    Bypass { address: CLIENT_NET.parse().unwrap(), prefix_len: 24, port: None }
}

fn missing(policy: Policy) -> Config {
    Config { mid_stream_grace_ns: 0, policies: Policies::new(policy), ..T::config() }
}

fn goes_on(t: &mut T, at: &mut [u64; 2], d: mmtls_engine::tls::Direction, bytes: &[u8]) -> Verdict {
    let s = side(d);
    let verdict = t.send(d, at[s] as i64, at[1 - s], flag::ACK, bytes);
    at[s] += bytes.len() as u64;
    verdict
}

/// Another connection of the same ends, from another port.
fn another(t: &mut T) {
    t.ep.client.set_port(t.ep.client.port() + 1);
}

#[test]
fn sessions_that_pass_without_keys_go_on_and_later_ones_are_reset() {
    let mut t = T::with(missing(Policy::Forward));
    t.open();
    let mut at = t.play(&simple());
    t.now += SECOND_NS;
    t.engine.handle_timeout(t.now);
    t.drain();
    assert_eq!(t.engine.reconfigure(t.now, &missing(Policy::Reset)), []);
    assert_eq!(goes_on(&mut t, &mut at, C, &sealed(C, 1)), Verdict::Forward);
    assert!(t.alive());
    another(&mut t);
    t.open();
    let mut later = t.play(&simple());
    t.now += SECOND_NS;
    t.engine.handle_timeout(t.now);
    t.drain();
    assert!(!t.alive());
    assert_eq!(goes_on(&mut t, &mut later, C, &sealed(C, 1)), Verdict::Drop);
}

#[test]
fn what_waits_keeps_its_deadline_and_what_comes_has_the_new_one() {
    let limits = |stall_timeout_ns| Limits {
        stall_timeout_ns,
        unshared_stall_timeout_ns: stall_timeout_ns,
        ..Limits::default()
    };
    let config = |ns| Config { limits: limits(ns), ..missing(Policy::Reset) };
    let mut t = T::with(config(60 * SECOND_NS));
    t.open();
    t.play(&simple());
    let first = t.engine.next_timeout().unwrap();
    let _ = t.engine.reconfigure(t.now, &config(SECOND_NS));
    assert_eq!(t.engine.next_timeout(), Some(first));
    another(&mut t);
    t.open();
    t.play(&simple());
    let ended = |t: &T| t.out.iter().filter(|it| matches!(it, Output::Discard(_))).count();
    t.out.clear();
    t.now += 2 * SECOND_NS;
    t.engine.handle_timeout(t.now);
    t.drain();
    let of_the_second = ended(&t);
    assert!(of_the_second > 0);
    t.now += 59 * SECOND_NS;
    t.engine.handle_timeout(t.now);
    t.drain();
    assert_eq!(ended(&t), 2 * of_the_second);
}

#[test]
fn a_network_that_comes_is_left_alone_from_its_next_connection_on() {
    let mut t = T::with(missing(Policy::Reset));
    let mut at = established(&mut t);
    let new = Config { bypass: vec![rule()], ..missing(Policy::Reset) };
    assert_eq!(t.engine.reconfigure(t.now, &new), []);
    goes_on(&mut t, &mut at, C, &sealed(C, 1));
    assert_eq!((t.judged(), t.alive()), (3, true), "it is read on");
    another(&mut t);
    // One that nobody has seen.
    assert_eq!(t.send(C, 70_000, 9_000_000, flag::ACK, b"anything"), Verdict::Forward);
    another(&mut t);
    t.open();
    let mut later = t.play(&simple());
    assert_eq!(goes_on(&mut t, &mut later, S, b"anything"), Verdict::Forward);
    assert_eq!((t.judged(), t.alive()), (3, true));
    // And read again when the rule goes.
    assert_eq!(t.engine.reconfigure(t.now, &missing(Policy::Reset)), []);
    assert_eq!(goes_on(&mut t, &mut later, S, b"anything"), Verdict::Forward);
    another(&mut t);
    let sessions = |t: &T| {
        let events = &t.engine.handler().events;
        events.iter().filter(|it| matches!(it, Event::SessionStart)).count()
    };
    assert_eq!(sessions(&t), 1);
    t.open();
    t.play(&simple());
    assert_eq!(sessions(&t), 2);
}

#[test]
fn a_network_that_goes_is_read_from_its_next_connection_on() {
    let grace = |config: Config| Config { mid_stream_grace_ns: 60 * SECOND_NS, ..config };
    let old = grace(Config { bypass: vec![rule()], ..missing(Policy::Reset) });
    let mut t = T::with(old);
    // So that the grace after the start is over.
    t.send(C, 0, 0, flag::ACK, b"anything");
    t.now += 100 * SECOND_NS;
    t.open();
    let mut at = t.play(&simple());
    assert_eq!(t.engine.flow_count(), 0);
    let gone = t.engine.reconfigure(t.now, &grace(missing(Policy::Reset)));
    assert_eq!(gone, [rule()]);
    assert_eq!(goes_on(&mut t, &mut at, C, &sealed(C, 1)), Verdict::Forward, "it goes on");
    assert_eq!(t.engine.flow_count(), 1);
    another(&mut t);
    established_again(&mut t);
    // Where that is over, and nothing was seen of it meanwhile.
    t.now += 61 * SECOND_NS;
    another(&mut t);
    assert_eq!(t.send(C, 70_000, 9_000_000, flag::ACK, b"anything"), Verdict::Drop);
    t.ep.client.set_port(t.ep.client.port() - 2);
    assert_eq!(goes_on(&mut t, &mut at, C, &sealed(C, 2)), Verdict::Forward, "known by now");
}

fn established_again(t: &mut T) {
    let before = t.judged();
    t.open();
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    t.play(&simple());
    assert_eq!(t.judged(), before + 2);
}

/// It is still looked into, as what it is.
#[test]
fn a_connection_that_was_known_not_to_be_tls_goes_on_where_none_may_begin_any_more() {
    let config = |policy| {
        let policies = Policies { not_tls: policy, ..Policies::new(Policy::Reset) };
        let cleartext = Cleartext::FromBeginning;
        Config { policies, cleartext, tls_ports: vec![443], ..T::config() }
    };
    let request = b"GET /page HTTP/1.1\r\nHost: server.test\r\n\r\n";
    let mut t = T::with(config(Policy::Forward));
    t.open();
    let mut at = t.say(&[(C, request)]);
    let _ = t.engine.reconfigure(t.now, &config(Policy::Reset));
    assert_eq!(goes_on(&mut t, &mut at, C, request), Verdict::Forward);
    another(&mut t);
    t.open();
    t.out.clear();
    t.say(&[(C, request)]);
    assert!(t.out.iter().any(|it| matches!(it, Output::Inject { .. })), "it is reset");
}

/// A passive monitor has the networks of a reload, too, for what it has not seen the beginning of.
#[test]
fn passive_connections_in_a_network_that_comes_are_left_alone_in_the_middle() {
    let passive = |bypass: Vec<Bypass>| Config { inline: false, bypass, ..missing(Policy::Reset) };
    for bypass in [
        vec![rule()],
        vec![Bypass { prefix_len: 32, port: Some(443), address: "10.0.0.3".parse().unwrap() }],
    ] {
        let mut t = T::with(passive(Vec::new()));
        let _ = t.engine.reconfigure(t.now, &passive(bypass));
        t.send(C, 1000, 1000, flag::ACK, &sealed(C, 1));
        assert_eq!((t.engine.flow_count(), t.engine.counters().bypassed), (0, 1));
    }
    let mut t = T::with(passive(Vec::new()));
    t.send(C, 1000, 1000, flag::ACK, &sealed(C, 1));
    assert_eq!((t.engine.flow_count(), t.engine.counters().bypassed), (1, 0), "the control");
}
