//! Messages behind the handshake (RFC 8446, section 4.6) that begin where nobody has read, and keys that are there already.

use std::sync::Arc;

use crate::harness::attack::*;
use crate::harness::{RANDOM, Recorder, keys};
use mmtls_engine::tls::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

const TICKET_LEN: usize = 20_000;

fn used(direction: Direction) -> NullKeys {
    keys(direction, KeyEpoch::Application(0))
}

/// A ticket that takes two records, as the server's records 1 and 2. The second one begins as no message does.
fn ticket() -> [Vec<u8>; 2] {
    let mut ticket = vec![200; 4 + TICKET_LEN];
    ticket[0] = 4;
    ticket[1..4].copy_from_slice(&(TICKET_LEN as u32).to_be_bytes()[1..]);
    let (first, rest) = ticket.split_at(TICKET_LEN / 2);
    [(1, first), (2, rest)].map(|(at, part)| used(S).seal(at, ContentType::HANDSHAKE, part, 0))
}

/// A session that goes on with such a ticket, its first record in so many pieces; the second one is not paused.
fn with_ticket(pause: Option<u64>, pieces: usize) -> T {
    let mut t = T::new();
    *t.engine.handler_mut() = Recorder { pause_server: pause, ..Recorder::default() };
    let [client, mut at] = established(&mut t);
    let [first, rest] = ticket();
    for piece in first.chunks(first.len().div_ceil(pieces)).chain([&rest[..]]) {
        t.send(S, at as i64, client, flag::ACK, piece);
        at += piece.len() as u64;
    }
    t
}

#[test]
fn a_ticket_may_begin_in_a_record_that_a_pause_skips() {
    const MOST: u64 = TICKET_LEN as u64 * 3 / 4;
    // A record of three bytes a piece begins before its header is whole, so that it is kept and then skipped.
    for (pause, pieces) in [(None, 1), (Some(MOST), 1), (Some(MOST), 3), (Some(MOST), 3400)] {
        let t = with_ticket(pause, pieces);
        let skipped = t.engine.counters().records_paused;
        assert_eq!(skipped, u64::from(pause.is_some()), "{pieces}");
        assert_eq!(t.judged(), if pause.is_some() { 3 } else { 4 }, "{pieces}");
        assert!(t.alive(), "{pieces}: {:?}", t.engine.handler().errors());
    }
}

/// Both ends share them: no connection pays for that with memory until its next record.
#[test]
fn keys_that_are_in_use_already_are_not_kept() {
    let mut t = T::new();
    let client = Some(t.ep.client.ip());
    let [at, server] = established(&mut t);
    let rests = Arc::default();
    let share = |t: &mut T, epoch: u32| {
        let keys = keys(C, KeyEpoch::Application(epoch));
        t.source += 1;
        let watched = Watched { keys, rests: Arc::clone(&rests) };
        let _ = t.keys_with(C, epoch, Box::new(watched), RANDOM, client);
        Arc::strong_count(&rests) - 1
    };
    assert_eq!(share(&mut t, 0), 0);
    // Of the next epoch, the first are used.
    assert_eq!((share(&mut t, 1), share(&mut t, 1)), (1, 2));
    let update = used(C).seal(1, ContentType::HANDSHAKE, &[24, 0, 0, 1, 0], 0);
    t.send(C, at as i64, server, flag::ACK, &update);
    assert_eq!(share(&mut t, 1), 1);
    assert!(t.alive());
}
