//! What tells that a session of TLS 1.2 goes on with an earlier one: the hellos need not.

use crate::harness::attack::*;
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

/// What is said of resumption when the server answers with these messages and ChangeCipherSpec.
fn resumption(answer: &[u8]) -> Resumption {
    let mut config = T::config();
    config.supports = |_, _| true;
    let mut t = T::with(config);
    t.open();
    let hello = hello();
    t.send(C, 0, 0, flag::ACK, &hello);
    let records = [plain(ContentType::HANDSHAKE, answer), plain(ContentType(20), &[1])].concat();
    t.send(S, 0, hello.len() as u64, flag::ACK, &records);
    t.send(S, records.len() as i64, hello.len() as u64, flag::RST, &[]);
    assert_eq!(t.engine.handler().errors(), []);
    t.engine.handler().resumption
}

#[test]
fn ticket_without_a_session_id_is_seen_by_what_the_server_leaves_out() {
    let hello = tls12_hello(0xc02f);
    let ticket = [4, 0, 0, 6, 0, 0, 0, 0, 0, 0];
    let done = [14, 0, 0, 0];
    assert_eq!(resumption(&hello), Resumption::Accepted);
    assert_eq!(resumption(&[&hello[..], &ticket].concat()), Resumption::Accepted);
    // Without a certificate, and still a handshake in full.
    assert_eq!(resumption(&[&hello[..], &done, &ticket].concat()), Resumption::None);
}
