//! What a client may cost that speaks no TLS: no more memory than is promised, and no more time per byte
//! than others.

mod harness;
use std::time::{Duration, Instant};

use harness::attack::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;

/// Sends these segments of a client in turn, so many of them; the highest memory in between.
fn upload(t: &mut T, segments: &[&[u8]], count: usize) -> usize {
    t.open();
    let (mut at, mut most) = (0, 0);
    for number in 0..count {
        let bytes = segments[number % segments.len()];
        assert_eq!(t.send(C, at, 0, flag::ACK, bytes), Verdict::Forward);
        at += bytes.len() as i64;
        t.send(S, 0, at as u64, flag::ACK, &[]);
        most = most.max(t.engine.buffered_bytes());
    }
    most
}

#[test]
fn what_may_begin_at_the_end_of_each_segment_must_not_keep_what_is_before_it() {
    let mut segment = vec![b'x'; 1400];
    segment[1398..].copy_from_slice(b"\n\x16");
    let most = upload(&mut T::new(), &[&segment], 2000);
    assert!(most < 100_000, "{most} bytes are kept");
}

/// The shortest time of some uploads of this segment, over and over.
fn time(segment: &[u8]) -> Duration {
    let upload = |_| {
        let begun = Instant::now();
        upload(&mut T::new(), &[segment], 300);
        begun.elapsed()
    };
    (0..5).map(upload).min().unwrap()
}

#[test]
fn what_looks_like_many_hellos_must_not_be_searched_for_each() {
    let ordinary = time(&[b'x'; 1400]);
    // Each looks like a hello where TLS was asked for; then TLS may begin in the next segment, too.
    let mut segment = b">\x16\x03\x01\x00\x20\x01\x7f".repeat(175);
    segment[0] = b'x';
    segment[1389..].copy_from_slice(b"\nSTARTTLS\n\x16");
    let many = time(&segment);
    assert!(many < 20 * ordinary, "{many:?}, where {ordinary:?} are usual");
}
