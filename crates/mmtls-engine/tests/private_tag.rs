//! Policy `require_private_tag`: which sessions meet it, and that they do so at the ServerHello.

use crate::harness::RANDOM;
use crate::harness::attack::*;
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

const PRIVATE: [u16; 5] = [0xff31, 0xff32, 0xff33, 0xff34, 0xff35];

/// Hellos under a policy: what becomes of the ServerHello, and the errors.
fn hellos(policy: Policy, message: &[u8]) -> (Verdict, T) {
    let mut config = T::config();
    config.supports = |_, suite| suite.0 != 0x1306;
    config.policies.require_private_tag = policy;
    let mut t = T::with(config);
    t.open();
    let hello = hello();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), Verdict::Forward);
    let record = plain(ContentType::HANDSHAKE, message);
    let verdict = t.send(S, 0, hello.len() as u64, flag::ACK, &record);
    (verdict, t)
}

#[test]
fn accepts_private_tags_whatever_the_policy_and_other_sessions_by_default() {
    for suite in PRIVATE {
        for policy in [Policy::Forward, Policy::Reset] {
            let (verdict, t) = hellos(policy, &server_hello(&[0x5a; 32], suite));
            assert_eq!((verdict, t.engine.handler().errors()), (Verdict::Forward, Vec::new()));
            assert!(t.alive());
        }
    }
    assert_eq!(Config::new(Policy::Reset).policies.require_private_tag, Policy::Forward);
    for message in [server_hello(&[0x5a; 32], 0x1302), tls12_hello(0xc02f)] {
        let (verdict, t) = hellos(Policy::Forward, &message);
        assert_eq!((verdict, t.engine.handler().errors()), (Verdict::Forward, Vec::new()));
    }
}

#[test]
fn refuses_sessions_without_where_it_is_required() {
    // The last two: a number means nothing in another version, and what cannot be followed has none.
    let messages = [
        server_hello(&[0x5a; 32], 0x1301),
        tls12_hello(0xc02f),
        tls12_hello(0xff32),
        server_hello(&[0x5a; 32], 0x1306),
    ];
    for message in messages {
        let (verdict, t) = hellos(Policy::Reset, &message);
        assert_eq!(verdict, Verdict::Drop);
        assert_eq!(t.engine.handler().errors(), [(S, SessionError::NoPrivateTag)]);
        assert!(!t.alive());
        assert!(t.out.iter().any(|output| matches!(output, Output::Inject { .. })));

        let (verdict, t) = hellos(Policy::Bypass, &message);
        assert_eq!(verdict, Verdict::Forward);
        assert_eq!(t.engine.handler().errors(), [(S, SessionError::NoPrivateTag)]);
    }
    // A hello of SSL 2.0 already says that there will be none.
    let mut hello = vec![0x80, 0x1f, 1, 3, 3, 0, 6, 0, 0, 0, 16, 0, 0xc0, 0x2f, 0, 0, 0xff];
    hello.extend_from_slice(&RANDOM[..16]);
    let mut config = T::config();
    config.policies.unsupported = Policy::Bypass;
    config.policies.require_private_tag = Policy::Reset;
    let mut t = T::with(config);
    t.open();
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), Verdict::Drop);
}

#[test]
fn refuses_a_hello_retry_for_nothing() {
    // The suite of a HelloRetryRequest is not the session's yet.
    let retry = [
        0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8,
        0x91, 0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8,
        0x33, 0x9c,
    ];
    let (verdict, t) = hellos(Policy::Reset, &server_hello(&retry, 0x1301));
    assert_eq!((verdict, t.engine.handler().errors()), (Verdict::Forward, Vec::new()));
}

/// Null keys that come before the ServerHello are no way round the policy.
#[test]
fn refuses_null_keys_in_place_of_a_private_tag() {
    for (suite, verdict) in [(0x1301, Verdict::Drop), (0xff31, Verdict::Forward)] {
        let mut config = T::config();
        config.supports = |_, _| true;
        config.policies.require_private_tag = Policy::Reset;
        let mut t = T::with(config);
        t.open();
        let hello = hello();
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), Verdict::Forward);
        assert_eq!(t.engine.handle_null_keys(1, None, RANDOM, None), Ok(true));
        assert_eq!(t.engine.counters().null_keys, 0);
        let record = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], suite));
        assert_eq!(t.send(S, 0, hello.len() as u64, flag::ACK, &record), verdict, "{suite:#x}");
        assert_eq!(t.engine.counters().null_keys, u64::from(verdict == Verdict::Forward));
        assert_eq!(t.alive(), verdict == Verdict::Forward);
    }
}

/// Nor are names that are left alone.
#[test]
fn refuses_exempt_names_in_place_of_a_private_tag() {
    for (require, suite, verdict) in [
        (Policy::Reset, 0x1301, Verdict::Drop),
        (Policy::Reset, 0xff31, Verdict::Forward),
        (Policy::Forward, 0x1301, Verdict::Forward),
    ] {
        let mut config = T::config();
        config.supports = |_, _| true;
        config.policies.require_private_tag = require;
        let exempt = |name: &[u8]| name == b"server.test";
        config.exempt_names = Some(ExemptNames(std::sync::Arc::new(exempt)));
        let mut t = T::with(config);
        t.open();
        let hello = hello();
        assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), Verdict::Forward);
        let record = plain(ContentType::HANDSHAKE, &server_hello(&[0x5a; 32], suite));
        assert_eq!(t.send(S, 0, hello.len() as u64, flag::ACK, &record), verdict, "{suite:#x}");
        let passes = verdict == Verdict::Forward;
        assert_eq!(t.engine.counters().exempt_names, u64::from(passes));
        assert_eq!(t.alive(), passes);
        if passes {
            // Nobody is asked for keys, and nothing waits for them.
            let at = record.len() as i64;
            let sent = t.send(S, at, hello.len() as u64, flag::ACK, &sealed(S, 0));
            assert_eq!(sent, Verdict::Forward);
            assert!(t.keys(S, 0).is_err());
        }
    }
}
