//! A client that refuses to share again and again.

use std::sync::Arc;

use crate::harness::attack::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::{client_hello, plain, server_hello};

const LIMIT: u32 = 3;
const MINUTE_NS: u64 = 60_000_000_000;

struct Run {
    t: T,
    sessions: u8,
}

impl Run {
    fn new(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = T::config();
        config.supports = |_, _| true;
        config.limits.null_keys_per_minute = LIMIT;
        let private = |name: &[u8]| name == b"bank.test";
        config.private_names = Some(ExemptNames(Arc::new(private)));
        change(&mut config);
        let mut t = T::with(config);
        t.engine.handler_mut().any_hellos = true;
        Self { t, sessions: 0 }
    }

    /// A session of the client that is refused; what became of the delivery, and whether the session goes on.
    fn refuse(
        &mut self,
        name: &str,
        ahead: bool,
        direction: Option<Direction>,
    ) -> (Result<bool, KeyRefusal>, bool) {
        self.sessions += 1;
        let t = &mut self.t;
        t.ep.client.set_port(40_000 + u16::from(self.sessions));
        let random = [self.sessions; 32];
        let refuse = |t: &mut T| {
            let sender = Some(t.ep.client.ip());
            let outcome = t.engine.handle_null_keys(t.now, sender, random, direction);
            while t.engine.poll_output().is_some() {}
            outcome
        };
        let mut outcome = Ok(false);
        if ahead {
            assert_eq!(refuse(t), Ok(false));
        }
        t.open();
        let hello = plain(ContentType::HANDSHAKE, &client_hello(&random, name, 10));
        t.send(C, 0, 0, flag::ACK, &hello);
        if !ahead {
            outcome = refuse(t);
        }
        let answer = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], 0xff31));
        (outcome, t.send(S, 0, hello.len() as u64, flag::ACK, &answer) == Verdict::Forward)
    }

    fn counted(&self) -> [u64; 2] {
        let counters = self.t.engine.counters();
        [counters.too_many_null_keys, counters.keys_refused]
    }
}

#[test]
fn refuses_what_a_client_refuses_beyond_its_limit() {
    for direction in [None, Some(C)] {
        for require in [Policy::Forward, Policy::Reset] {
            for ahead in [false, true] {
                let what = format!("{direction:?} {require:?} {ahead}");
                let mut run = Run::new(|config| config.policies.require_private_tag = require);
                for _ in 0..LIMIT {
                    let (outcome, goes_on) = run.refuse("server.test", ahead, direction);
                    assert!(outcome.is_ok() && goes_on, "{what}");
                }
                assert_eq!(run.counted(), [0, 0], "{what}");
                let (outcome, goes_on) = run.refuse("server.test", ahead, direction);
                let told = if ahead { Ok(false) } else { Err(KeyRefusal::TooManyNullKeys) };
                assert_eq!((outcome, goes_on), (told, false), "{what}");
                assert_eq!(run.counted(), [1, 1], "{what}");
                let refusals = &run.t.engine.handler().refusals;
                assert_eq!(*refusals, [KeyRefusal::TooManyNullKeys], "{what}");
                // Names that may be private, another client, and the next minute.
                assert_eq!(run.refuse("bank.test", ahead, direction), (Ok(!ahead), true), "{what}");
                let client = run.t.ep.client;
                run.t.ep.client.set_ip([10, 0, 0, 77].into());
                assert_eq!(
                    run.refuse("server.test", ahead, direction),
                    (Ok(!ahead), true),
                    "{what}"
                );
                run.t.ep.client = client;
                run.t.now += MINUTE_NS;
                assert_eq!(
                    run.refuse("server.test", ahead, direction),
                    (Ok(!ahead), true),
                    "{what}"
                );
                assert_eq!(run.counted(), [1, 1], "{what}");
            }
        }
    }
}

#[test]
fn accepts_refusals_of_private_names_alone() {
    let mut run = Run::new(|config| {
        config.policies.null_keys = Policy::Reset;
        config.limits.null_keys_per_minute = 0;
    });
    for _ in 0..LIMIT + 2 {
        assert_eq!(run.refuse("bank.test", false, None), (Ok(true), true));
        assert!(!run.refuse("server.test", false, None).1);
    }
    assert_eq!(run.counted(), [0, 0]);
}

/// A server's refusals are not its clients' doing, also where it is trusted for any session.
#[test]
fn accepts_any_number_of_a_servers_refusals() {
    let servers = KeySenders { server: true, ..KeySenders::CLIENT };
    let network = Network { address: [10, 0, 0, 0].into(), prefix_len: 24 };
    let networks = KeySenders { networks: vec![network], ..KeySenders::CLIENT };
    for senders in [servers, networks, KeySenders::ANY] {
        let mut run = Run::new(|config| config.key_senders = senders);
        for session in 1..=LIMIT as u8 + 2 {
            let t = &mut run.t;
            t.ep.client.set_port(40_000 + u16::from(session));
            let refuse = |t: &mut T| {
                let sender = Some(t.ep.server.ip());
                t.engine.handle_null_keys(t.now, sender, [session; 32], None)
            };
            let ahead = session % 2 == 0;
            if ahead {
                assert_eq!(refuse(t), Ok(false));
            }
            t.open();
            let hello =
                plain(ContentType::HANDSHAKE, &client_hello(&[session; 32], "server.test", 10));
            t.send(C, 0, 0, flag::ACK, &hello);
            if !ahead {
                assert_eq!(refuse(t), Ok(true));
            }
            assert_eq!(t.engine.counters().null_keys, u64::from(session));
        }
        assert_eq!(run.counted(), [0, 0]);
    }
}
