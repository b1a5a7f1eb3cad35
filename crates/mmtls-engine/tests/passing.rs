//! Records that a pause skips: nothing of them is kept, and what comes behind them is read as the receiver reads it.

use crate::harness::attack::*;
use crate::harness::{Recorder, keys};
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::Seal;
use proptest::prelude::*;

/// What the null cipher adds to content.
const OVERHEAD: usize = 17;

fn content(number: u64, len: usize) -> Vec<u8> {
    keys(S, KeyEpoch::Application(0)).seal(
        number,
        ContentType::APPLICATION_DATA,
        &vec![number as u8; len],
        0,
    )
}

/// An established session in which, once a server's record was shown, so many bytes of its content are paused.
fn paused(bytes: u64) -> (T, [u64; 2]) {
    let mut t = T::new();
    *t.engine.handler_mut() =
        Recorder { pause_server: Some(bytes), ..core::mem::take(t.engine.handler_mut()) };
    let at = established(&mut t);
    // The client has all of it.
    t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    (t, at)
}

#[test]
fn keeps_nothing_of_what_passes() {
    let (mut t, at) = paused(u64::MAX);
    let idle = t.engine.buffered_bytes();
    let stream: Vec<u8> = (1..=100).flat_map(|number| content(number, 9000)).collect();
    for (number, piece) in stream.chunks(20_000).enumerate() {
        let offset = at[1] as usize + number * 20_000;
        assert_eq!(t.send(S, offset as i64, at[0], flag::ACK, piece), Verdict::Forward);
        assert!(t.engine.buffered_bytes() < idle + 1000);
    }
    assert_eq!((t.judged(), t.engine.counters().records_paused), (2, 100));
}

#[test]
fn refuses_other_headers_than_those_that_passed() {
    let (mut t, at) = paused(u64::MAX);
    let stream = [content(1, 3000), content(2, 500), content(3, 4000)].concat();
    let second = content(1, 3000).len();
    let third = second + content(2, 500).len();
    let at_client = at[1] as i64;
    t.send(S, at_client, at[0], flag::ACK, &stream);
    let mut again = |from: usize, to: usize, changed: Option<usize>| {
        let mut piece = stream[from..to].to_vec();
        if let Some(at) = changed {
            piece[at - from] ^= 1;
        }
        t.send(S, at_client + from as i64, at[0], flag::ACK, &piece)
    };
    assert_eq!(again(0, stream.len(), None), Verdict::Forward);
    assert_eq!(again(1000, third + 10, Some(second + 100)), Verdict::Forward, "content is unread");
    for header in [0, second, third] {
        for byte in header..header + 5 {
            assert_eq!(again(byte, byte + 100, Some(byte)), Verdict::Drop, "{header} {byte}");
            assert_eq!(again(header.saturating_sub(9), byte + 1, Some(byte)), Verdict::Drop);
        }
    }
    assert_eq!(again(third, stream.len(), None), Verdict::Forward);
    // What the client has cannot be changed for it.
    t.send(C, at[0] as i64, at[1] + third as u64, flag::ACK, &[]);
    let mut first = stream[..10].to_vec();
    first[4] ^= 1;
    assert_eq!(t.send(S, at_client, at[0], flag::ACK, &first), Verdict::Forward);
}

/// What was read before the pause, and may not have arrived, is compared as before; and so is what is read behind it.
#[test]
fn refuses_other_bytes_of_what_was_read_around_it() {
    let (mut t, at) = paused(2000);
    // Read: it crosses the edge.
    let read = content(1, 2001);
    let skipped: Vec<u8> = [content(2, 1000), content(3, 1000)].concat();
    let behind = content(4, 700);
    let stream = [read.clone(), skipped, behind].concat();
    for (number, piece) in stream.chunks(600).enumerate() {
        let offset = at[1] as i64 + 600 * number as i64;
        assert_eq!(t.send(S, offset, at[0], flag::ACK, piece), Verdict::Forward);
    }
    assert_eq!((t.judged(), t.engine.counters().records_paused), (4, 2));
    let last = stream.len() - 700;
    for (byte, verdict) in [(100, Verdict::Drop), (last, Verdict::Drop)] {
        let mut piece = stream[byte - 50..byte + 50].to_vec();
        piece[50] ^= 1;
        let offset = at[1] as i64 + byte as i64 - 50;
        assert_eq!(t.send(S, offset, at[0], flag::ACK, &piece), verdict, "{byte}");
    }
    assert!(t.alive());
}

proptest! {
    /// However the bytes are cut and acknowledged, the same records are shown and the same ones skipped.
    #[test]
    fn shows_the_same_records_however_they_are_cut(
        lengths in proptest::collection::vec(1usize..3000, 1..40),
        cuts in proptest::collection::vec((1usize..4000, 0..4), 1..60),
        pause in 1u64..6000,
    ) {
        let (mut expected, mut left) = (vec![], pause);
        let mut stream = vec![];
        for (number, len) in (1u64..).zip(&lengths) {
            stream.extend(content(number, *len));
            match *len as u64 <= left {
                true => left -= *len as u64,
                false => {
                    expected.push(vec![number as u8; *len]);
                    left = pause;
                }
            }
        }
        let (mut t, at) = paused(pause);
        let (mut from, mut arrived) = (0, 0);
        for (len, acknowledges) in cuts.iter().cycle() {
            let piece = &stream[from..stream.len().min(from + len)];
            if piece.is_empty() {
                break;
            }
            let sent = t.send(S, (at[1] as usize + from) as i64, at[0], flag::ACK, piece);
            prop_assert_eq!(sent, Verdict::Forward);
            from += piece.len();
            if *acknowledges > 1 {
                arrived = if *acknowledges == 2 { arrived.max(from / 2) } else { from };
                t.send(C, at[0] as i64, at[1] + arrived as u64, flag::ACK, &[]);
            }
            // Whatever has not arrived can be sent again, and as it was only.
            let again = &stream[arrived..from];
            let offset = (at[1] as usize + arrived) as i64;
            prop_assert_eq!(t.send(S, offset, at[0], flag::ACK, again), Verdict::Forward);
        }
        let shown: Vec<_> =
            t.engine.handler().records(S).into_iter().skip(1).map(|(_, bytes)| bytes).collect();
        prop_assert_eq!(shown, expected);
        let counters = t.engine.counters();
        prop_assert_eq!(counters.records_failed, 0);
        prop_assert_eq!(counters.records_seen, 2 + lengths.len() as u64);
    }
}

#[test]
fn content_is_counted_as_it_is_announced() {
    let opener = keys(S, KeyEpoch::Application(0));
    assert_eq!(opener.content_len(1000), 1000 - OVERHEAD);
}
