//! A ClientHello with an encrypted one in it goes with the questions for the session's first keys, and is not kept longer.

use crate::harness::attack::*;
use crate::harness::{RANDOM, SUITE};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

fn hello_with_another() -> Vec<u8> {
    let mut hello = mmtls_testkit::ech::hello();
    hello[2..34].copy_from_slice(&RANDOM);
    hello
}

/// Whether it is of a session that offers it, and with which hello.
type Question = (bool, Option<Vec<u8>>);

/// What goes with the questions that this hello leads to, and how many bytes are kept before and behind them.
fn told(body: &[u8]) -> (Vec<Question>, [usize; 2]) {
    let mut config = T::config();
    config.supports = |_, suite| suite.0 == SUITE;
    let mut t = T::with(config);
    t.engine.handler_mut().any_hellos = true;
    t.open();
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    let hello = plain(ContentType::HANDSHAKE, &[&[1], &length[1..], body].concat());
    t.send(C, 0, 0, flag::ACK, &hello);
    let before = t.engine.buffered_bytes();
    let answer = plain(ContentType::HANDSHAKE, &server_hello(&[9; 32], SUITE));
    t.send(S, 0, hello.len() as u64, flag::ACK, &answer);
    let questions = t.out.iter().filter_map(|it| match it {
        Output::KeysNeeded(wanted) => {
            let hello = wanted.client_hello.as_ref().map(|it| it.to_vec());
            Some((wanted.offers_ech, hello))
        }
        _ => None,
    });
    (questions.collect(), [before, t.engine.buffered_bytes()])
}

#[test]
fn tells_the_hello_with_the_first_questions() {
    let hello = hello_with_another();
    let (questions, [before, behind]) = told(&hello);
    // Of handshake and application keys, the client's and then the server's.
    let first = (true, Some(hello.clone()));
    assert_eq!(questions, [first.clone(), first, (true, None), (true, None)]);
    // Of what else is kept nothing is more behind it than before.
    assert!(before >= hello.len() && behind <= before - hello.len(), "{before}, {behind}");

    // A hello without, and what is sealed itself.
    for changed in [[0xfe, 0x0e, 0, 0x9a, 0], [0xfe, 0x0d, 0, 0x9a, 1]] {
        let mut other = hello.clone();
        let at = hello.windows(5).position(|it| it == [0xfe, 0x0d, 0, 0x9a, 0]).unwrap();
        other[at..at + 5].copy_from_slice(&changed);
        assert_eq!(told(&other).0, vec![(false, None); 4]);
    }
}

#[test]
fn tells_no_hello_that_does_not_fit_into_a_question() {
    let hello = hello_with_another();
    let most = KeysNeeded::MAX_CLIENT_HELLO_BYTES;
    for (length, fits) in [(most, true), (most + 1, false)] {
        // Another extension at the end, empty but for zeros.
        let added = length - hello.len();
        let mut longer = hello.clone();
        longer.extend_from_slice(&[0xff, 0xf0]);
        longer.extend_from_slice(&(added as u16 - 4).to_be_bytes());
        longer.resize(length, 0);
        // Behind version, random, no session, one suite and no compression.
        let extensions = u16::from_be_bytes([hello[41], hello[42]]) + added as u16;
        longer[41..43].copy_from_slice(&extensions.to_be_bytes());
        let expected = (true, fits.then_some(longer.clone()));
        assert_eq!(told(&longer).0[..2], [expected.clone(), expected], "{length}");
    }
}
