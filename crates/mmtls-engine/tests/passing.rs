//! Records that a pause skips: nothing of them is kept, and what comes behind them is read as the receiver reads it.

use crate::harness::attack::*;
use crate::harness::{Recorder, keys};
use crate::resting::wait;
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
fn goes_on_with_a_pause_behind_silence() {
    let stream: Vec<u8> = (1..=5).flat_map(|number| content(number, 4000)).collect();
    let counts = [0, 400].map(|seconds| {
        let (mut t, at) = paused(10_000);
        let mut next = at[1];
        // The second piece ends within a record that passes.
        for piece in stream.chunks(3000) {
            wait(&mut t, seconds);
            assert_eq!(t.send(S, next as i64, at[0], flag::ACK, piece), Verdict::Forward);
            next += piece.len() as u64;
            t.send(C, at[0] as i64, next, flag::ACK, &[]);
        }
        (t.judged(), t.engine.counters().records_paused)
    });
    assert_eq!(counts[0], counts[1]);
    assert!(counts[0].1 > 1, "{counts:?}");
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

// Elsewhere.

fn outputs(t: &mut T) -> (Option<OffloadedFlow>, Option<OffloadedFlow>) {
    let (mut left, mut back) = (None, None);
    for output in core::mem::take(&mut t.out) {
        match output {
            Output::Offload(flow) => left = Some(*flow),
            Output::TakeBack(flow) => back = Some(*flow),
            _ => {}
        }
    }
    (left, back)
}

/// A session of which records have been left to the I/O layer.
fn left(bytes: u64) -> (T, [u64; 2], OffloadedFlow) {
    let mut t = T::with(Config { offload: true, ..T::config() });
    t.engine.handler_mut().pause_server = Some(bytes);
    let mut at = established(&mut t);
    let mut send = |t: &mut T, number: u64| {
        let record = content(number, 600);
        t.send(S, at[1] as i64, at[0], flag::ACK, &record);
        at[1] += record.len() as u64;
        (outputs(t).0, at)
    };
    assert_eq!(send(&mut t, 1).0, None, "what was read is on its way still");
    let at = send(&mut t, 2).1;
    t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    assert_eq!(outputs(&mut t).0, None, "another direction may be the one that is paused");
    let record = content(3, 600);
    t.send(S, at[1] as i64, at[0], flag::ACK, &record);
    let at = [at[0], at[1] + record.len() as u64];
    let flow = outputs(&mut t).0.expect("it is left");
    assert_eq!(flow.positions, at);
    let records = OffloadedRecords {
        direction: S,
        next: at[1],
        content: if bytes == u64::MAX { bytes } else { bytes - 1800 },
        overhead: OVERHEAD as u16,
    };
    assert_eq!(flow.records, Some(records));
    (t, at, flow)
}

/// The I/O layer has forwarded records up to somewhere in the last of them.
fn elsewhere(t: &mut T, flow: &OffloadedFlow, stream: &[Vec<u8>], cut: usize, known: usize) -> u64 {
    let all: usize = stream.iter().map(Vec::len).sum();
    let lens = stream.iter().map(|record| record.len() as u16 - 5);
    let start = flow.positions[1];
    let of = ForwardedElsewhere {
        packets: 7,
        bytes: (all - cut) as u64,
        position: start + (all - cut) as u64,
        acknowledgment: None,
        records: RecordsElsewhere {
            count: stream.len() as u64,
            content: (all - stream.len() * (5 + OVERHEAD)) as u64,
            next: start + all as u64,
            fragment_lens: lens.skip(stream.len() - known).collect(),
        },
    };
    let client = ForwardedElsewhere { packets: 3, ..ForwardedElsewhere::default() };
    t.engine.handle_taken_back(t.now, flow, [client, of]);
    start + (all - cut) as u64
}

/// What is shown has the connection taken back, and is then handled where that stands.
fn shown(
    t: &mut T,
    at: u64,
    ack: u64,
    bytes: &[u8],
    answer: impl FnOnce(&mut T, &OffloadedFlow),
) -> Verdict {
    let verdict = t.send(S, at as i64, ack, flag::ACK, bytes);
    if verdict != Verdict::Again {
        return verdict;
    }
    let flow = outputs(t).1.expect("it is taken back");
    answer(t, &flow);
    t.send(S, at as i64, ack, flag::ACK, bytes)
}

#[test]
fn what_comes_behind_records_that_went_elsewhere_is_read() {
    const CONTENT: u64 = 40 * 2000;
    let (mut t, at, _) = left(1800 + CONTENT);
    let stream: Vec<_> = (4..44).map(|number| content(number, 2000)).collect();
    let end = at[1] + stream.concat().len() as u64;
    // The last bytes of the last one come with the next, which is read.
    let behind = [&stream[39][1900..], &content(44, 50)].concat();
    let from = end - (stream[39].len() - 1900) as u64;
    let cut = stream[39].len() - 1900;
    let verdict = shown(&mut t, from, at[0], &behind, |t, flow| {
        elsewhere(t, flow, &stream, cut, 40);
    });
    assert_eq!(verdict, Verdict::Forward);
    let records = t.engine.handler().records(S);
    assert_eq!(records.last(), Some(&(23, vec![44; 50])));
    let counters = t.engine.counters();
    assert_eq!((counters.records_paused, counters.records_failed), (43, 0));
    assert_eq!(counters.records_seen, 2 + 3 + 40 + 1);
}

#[test]
fn refuses_other_headers_than_those_that_went_elsewhere() {
    let (mut t, at, _) = left(u64::MAX);
    let stream: Vec<_> = (4..14).map(|number| content(number, 2000)).collect();
    let bytes = stream.concat();
    let third = 3 * stream[0].len();
    let mut changed = bytes[third - 10..third + 10].to_vec();
    changed[14] ^= 1;
    let from = at[1] + third as u64 - 10;
    // The client has the first two.
    let verdict = shown(&mut t, from, at[0], &changed, |t, flow| {
        elsewhere(t, flow, &stream, 0, 8);
    });
    assert_eq!(verdict, Verdict::Drop);
    let mut again = |from: usize, to: usize| {
        // It is left to the I/O layer again each time.
        shown(&mut t, at[1] + from as u64, at[0], &bytes[from..to], |t, flow| {
            t.engine.handle_taken_back(t.now, flow, Default::default());
        })
    };
    assert_eq!(again(third - 10, third + 1000), Verdict::Forward);
    assert_eq!(again(2 * stream[0].len(), bytes.len()), Verdict::Forward);
    assert!(t.alive());
}

/// Whoever reads the other direction needs its acknowledgments.
#[test]
fn nothing_is_left_while_the_other_direction_is_on_its_way() {
    let (mut t, at, _) = left(u64::MAX);
    let request = sealed(C, 1);
    let flow = {
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &request), Verdict::Again);
        outputs(&mut t).1.expect("it is taken back")
    };
    t.engine.handle_taken_back(t.now, &flow, Default::default());
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &request), Verdict::Forward);
    assert_eq!(t.judged(), 3, "it is read");
    let mut at = [at[0] + request.len() as u64, at[1]];
    for (number, acknowledged, is_left) in [(4, at[0] - 1, false), (5, at[0], true)] {
        let record = content(number, 2000);
        t.send(S, at[1] as i64, acknowledged, flag::ACK, &record);
        at[1] += record.len() as u64;
        t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
        assert_eq!(outputs(&mut t).0.is_some(), is_left);
    }
}

/// What is put together of fragments cannot be shown twice.
#[test]
fn fragments_of_paused_records_pass() {
    let (mut t, at, flow) = left(u64::MAX);
    let mut at = [at[0], at[1]];
    for number in 4..20 {
        let record = content(number, 2000);
        let frame = t.ep.frame(S, at[1] as i64, at[0], flag::ACK, &record);
        let pieces = crate::fragments::cut(&frame, 1000, number as u16);
        for piece in &pieces {
            t.raw(1, piece);
        }
        let (left, back) = outputs(&mut t);
        assert_eq!((left, back.is_some()), (None, number == 4));
        if let Some(back) = back {
            // This one its sender repeats.
            assert_eq!(back.id, flow.id);
            t.engine.handle_taken_back(t.now, &back, Default::default());
            for piece in &crate::fragments::cut(&frame, 1000, 99) {
                t.raw(1, piece);
            }
        }
        at[1] += record.len() as u64;
    }
    assert_eq!(t.engine.counters().records_paused, 3 + 16);
}

/// An endpoint that changes its mind, while the connection is elsewhere: decided where it stands.
#[test]
fn what_is_decided_meanwhile_is_carried_out_where_it_stands() {
    let (mut t, _, flow) = left(u64::MAX);
    let sender = Some(t.ep.client.ip());
    t.keys_with(S, 1, Box::new(keys(S, KeyEpoch::Application(1))), crate::harness::RANDOM, sender)
        .unwrap();
    let back = outputs(&mut t).1.expect("keys are concluded");
    assert_eq!(back.id, flow.id);
    let stream: Vec<_> = (4..14).map(|number| content(number, 2000)).collect();
    let end = elsewhere(&mut t, &back, &stream, 0, 10);
    assert_eq!(t.engine.counters().records_paused, 13);
    // It goes on there.
    let next = content(14, 2000);
    assert_eq!(t.send(S, end as i64, back.positions[0], flag::ACK, &next), Verdict::Forward);
    assert_eq!(t.engine.counters().records_paused, 14);
}

/// However a long stream is cut, nearly all of it passes: a header in two segments ends that for as long as it is on its way.
#[test]
fn headers_in_two_segments_do_not_end_it() {
    let (mut t, at) = paused(u64::MAX);
    let stream: Vec<u8> = (1..=400).flat_map(|number| content(number, 9001)).collect();
    let (mut at, mut most) = (at, 0);
    let idle = t.engine.buffered_bytes();
    for piece in stream.chunks(1448) {
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, piece), Verdict::Forward);
        at[1] += piece.len() as u64;
        if at[1] % 7 == 0 {
            t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
            most = most.max(t.engine.buffered_bytes() - idle);
        }
    }
    assert!(most < 20_000, "{most}");
    assert_eq!(t.engine.counters().records_paused, 400);
}

/// Acknowledgments before the I/O layer has begun say how far the client is, and nothing is taken back for them.
#[test]
fn acknowledgments_need_not_be_taken_back() {
    let (mut t, at, _) = left(u64::MAX);
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &[]), Verdict::Forward);
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &[]), Verdict::Forward);
    assert_eq!(outputs(&mut t), (None, None));
    for (d, flags, bytes) in [(C, 0, &b"x"[..]), (C, flag::FIN, b""), (S, flag::RST, b"")] {
        let here = at[mmtls_testkit::synthesis::side(d)] as i64;
        let acknowledged = at[1 - mmtls_testkit::synthesis::side(d)];
        assert_eq!(t.send(d, here, acknowledged, flag::ACK | flags, bytes), Verdict::Again);
        assert!(outputs(&mut t).1.is_some());
    }
}

/// A server that has lost the connection may begin another one with them.
#[test]
fn numbers_that_fit_a_cookie_are_judged_where_the_connection_stands() {
    for (age_s, beside, expected) in [
        (0, 0, Verdict::Drop),
        (0, 3, Verdict::Drop),
        (0, -3, Verdict::Drop),
        // No cookie is in force any more.
        (200, 0, Verdict::Forward),
    ] {
        let (mut t, at, _) = left(1 << 20);
        t.now += age_s * 1_000_000_000;
        let acknowledgment = at[0].wrapping_add_signed(beside);
        let verdict = t.send(C, at[0] as i64, acknowledgment, flag::ACK, &[]);
        assert_eq!(verdict, Verdict::Again, "{beside}");
        let flow = outputs(&mut t).1.expect("it is taken back");
        t.engine.handle_taken_back(t.now, &flow, Default::default());
        let verdict = t.send(C, at[0] as i64, acknowledgment, flag::ACK, &[]);
        assert_eq!(verdict, expected, "{beside}, {age_s} s");
    }
    let (mut t, at, _) = left(1 << 20);
    for beside in [-4, 4] {
        let acknowledgment = at[0].wrapping_add_signed(beside);
        assert_eq!(t.send(C, at[0] as i64, acknowledgment, flag::ACK, &[]), Verdict::Forward);
    }
}
