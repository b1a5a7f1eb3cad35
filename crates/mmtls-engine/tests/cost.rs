//! What a client may cost that speaks no TLS: no more memory than is promised.

use crate::harness::attack::*;
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
