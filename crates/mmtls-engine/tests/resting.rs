//! Connections that have been silent for half a minute: they give memory back, and go on as if nothing had been.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::attack::*;
use crate::harness::{RANDOM, SUITE, keys};
use mmtls_engine::session::{KeyStatus, SessionInfo};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::{Endpoints, flag};
use mmtls_testkit::synthesis::{Script, Seal, plain};

const SECOND_NS: u64 = 1_000_000_000;

thread_local! {
    /// How often keys of this thread's test were told to rest.
    static RESTS: Arc<AtomicU32> = Arc::default();
}

fn rests() -> u32 {
    RESTS.with(|it| it.load(Ordering::Relaxed))
}

/// A session in which both sides have said something, all of it acknowledged.
fn established() -> (T, [u64; 2]) {
    established_with(T::config(), &simple(), |ep| ep.client)
}

/// The same with this configuration and script; the keys are of this end.
fn established_with(
    config: Config,
    script: &Script,
    sender: impl Fn(&Endpoints) -> SocketAddr,
) -> (T, [u64; 2]) {
    let mut t = T::with(config);
    t.engine.handler_mut().any_hellos = true;
    t.source = 7;
    t.open();
    let at = t.play(script);
    for d in [C, S] {
        let keys = keys(d, KeyEpoch::Application(0));
        let watched = Box::new(Watched { keys, rests: RESTS.with(Arc::clone) });
        t.keys_with(d, 0, watched, RANDOM, Some(sender(&t.ep).ip())).unwrap();
    }
    t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    t.send(S, at[1] as i64, at[0], flag::ACK, &[]);
    (t, at)
}

/// Lets time pass as a worker does.
pub fn wait(t: &mut T, seconds: u64) {
    t.now += seconds * SECOND_NS;
    while t.engine.next_timeout().is_some_and(|due| due <= t.now) {
        t.engine.handle_timeout(t.now);
        t.drain();
    }
}

#[test]
fn keys_rest_and_open_what_comes_later() {
    let (mut t, at) = established();
    let judged = t.judged();
    wait(&mut t, 29);
    assert_eq!(rests(), 0);
    wait(&mut t, 2);
    assert_eq!(rests(), 2, "both directions' keys");
    // The server's first records are the session's tickets.
    let next = sealed(C, 1);
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &next), Verdict::Forward);
    assert_eq!(t.judged(), judged + 1);
    wait(&mut t, 100);
    assert_eq!(rests(), 2, "it is not looked at with each of its packets");
    wait(&mut t, 250);
    assert_eq!(rests(), 4, "it has been silent again");
    assert!(t.alive());
}

/// What is known of a session.
fn info(t: &T) -> SessionInfo {
    let flow = t.engine.view_flows(0..1).next().expect("a connection");
    match flow.carries {
        Carries::Session { info, is_followed: true, .. } => info.into_owned(),
        _ => panic!("no session"),
    }
}

#[test]
fn knows_at_rest_and_behind_it_what_it_knew() {
    let (mut t, at) = established();
    let before = info(&t);
    assert!(before.server_name.is_some() && before.key_status == KeyStatus::Shared);
    wait(&mut t, 31);
    assert_eq!(info(&t), before);
    t.send(S, at[1] as i64, at[0], flag::ACK, &[]);
    assert_eq!(info(&t), before);
}

#[test]
fn lets_a_client_refuse_behind_it_what_only_its_server_has_shared() {
    for (number, of_server) in [false, true].into_iter().enumerate() {
        let senders = KeySenders { server: true, ..KeySenders::CLIENT };
        let config = Config { key_senders: senders, ..T::config() };
        let sender = move |ep: &Endpoints| if of_server { ep.server } else { ep.client };
        let (mut t, _) = established_with(config, &simple(), sender);
        wait(&mut t, 31);
        assert_eq!(rests(), 2 * (number as u32 + 1));
        let refused = t.engine.handle_null_keys(t.now, Some(t.ep.client.ip()), RANDOM, None);
        assert_eq!(refused, if of_server { Ok(true) } else { Err(KeyRefusal::NotNeeded) });
    }
}

#[test]
fn asks_behind_it_for_keys_of_a_session_with_an_encrypted_hello_as_before() {
    for (number, offers_ech) in [false, true].into_iter().enumerate() {
        let mut config = T::config();
        config.supports = |_, suite| suite.0 == SUITE;
        let mut script = simple();
        if offers_ech {
            let mut hello = mmtls_testkit::ech::hello();
            hello[2..34].copy_from_slice(&RANDOM);
            let length = u32::try_from(hello.len()).unwrap().to_be_bytes();
            let message = [&[1], &length[1..], &hello].concat();
            script.turns[0].bytes = plain(ContentType::HANDSHAKE, &message);
        }
        let (mut t, at) = established_with(config, &script, |ep| ep.client);
        wait(&mut t, 31);
        assert_eq!(rests(), 2 * (number as u32 + 1));
        t.out.clear();
        let update = [24, 0, 0, 1, 0];
        let update = keys(C, KeyEpoch::Application(0)).seal(1, ContentType::HANDSHAKE, &update, 0);
        t.send(C, at[0] as i64, at[1], flag::ACK, &update);
        let asked = t.out.iter().filter_map(|it| match it {
            Output::KeysNeeded(wanted) => Some((wanted.epoch, wanted.source, wanted.offers_ech)),
            _ => None,
        });
        assert_eq!(asked.collect::<Vec<_>>(), [(KeyEpoch::Application(1), 7, offers_ech)]);
    }
}

#[test]
fn ends_idle_sessions_at_their_time_all_the_same() {
    let (mut t, _) = established();
    wait(&mut t, 7499);
    assert_eq!(t.engine.flow_count(), 1);
    wait(&mut t, 2);
    assert_eq!(t.engine.flow_count(), 0);
}

/// What has not arrived may be sent again however late, and must not be another copy.
#[test]
fn refuses_other_copies_of_what_was_on_its_way() {
    let (mut t, at) = established();
    let record = sealed(C, 1);
    // The second half is missing: a partial record is kept.
    let (first, second) = record.split_at(record.len() / 2);
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, first), Verdict::Forward);
    let judged = t.judged();
    wait(&mut t, 100);
    assert_eq!(rests(), 2);
    let mut other = first.to_vec();
    other[first.len() - 1] ^= 1;
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &other), Verdict::Drop);
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, first), Verdict::Forward);
    let behind = at[0] + first.len() as u64;
    assert_eq!(t.send(C, behind as i64, at[1], flag::ACK, second), Verdict::Forward);
    assert_eq!(t.judged(), judged + 1);
}

#[test]
fn rests_in_turn_where_many_fall_silent_together() {
    let mut t = T::new();
    for port in 0..1000 {
        t.ep.client.set_port(20_000 + port);
        t.open();
    }
    t.now += 100 * SECOND_NS;
    let mut rounds = 0;
    while t.engine.next_timeout().is_some_and(|due| due <= t.now) {
        t.engine.handle_timeout(t.now);
        rounds += 1;
    }
    assert!(rounds >= 4, "{rounds}");
    assert_eq!(t.engine.flow_count(), 1000);
}

#[test]
fn ends_in_turn_what_times_out_together() {
    let mut t = T::new();
    for port in 0..1000 {
        t.ep.client.set_port(20_000 + port);
        t.open();
    }
    t.now += 8000 * SECOND_NS;
    t.engine.handle_timeout(t.now);
    t.drain();
    let left = t.engine.flow_count();
    assert!((1..1000).contains(&left), "{left}");
    wait(&mut t, 0);
    assert_eq!(t.engine.flow_count(), 0);
}

#[test]
fn ends_stalls_in_turn_where_many_have_waited_as_long() {
    let held = |t: &T| t.engine.view_flows(0..1000).map(|it| it.held_frames).sum::<usize>();
    let mut t = T::new();
    for port in 0..300 {
        t.ep.client.set_port(20_000 + port);
        t.open();
        t.play(&simple());
    }
    let all = held(&t);
    assert!(all >= 300, "{all}");
    t.now += SECOND_NS;
    t.engine.handle_timeout(t.now);
    t.drain();
    let left = held(&t);
    assert!(left > 0 && left < all, "{left} of {all}");
    wait(&mut t, 0);
    assert_eq!(held(&t), 0);
}
