//! How much may leave in one frame, by how long a round trip a connection has.

use crate::harness::attack::*;
use mmtls_testkit::segments::flag;

/// What both announce, scaled.
const WINDOW: u32 = 65_535 << 7;

/// A connection whose handshake took a round trip.
fn opened(round_trip_ns: u64) -> T {
    let mut t = T::new();
    t.send(C, -1, 0, flag::SYN, &[]);
    t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
    t.now += round_trip_ns;
    t.send(C, 0, 0, flag::ACK, &[]);
    t
}

fn limit_of_data(t: &mut T) -> Option<u32> {
    t.send(S, 0, 0, flag::ACK, b"220 ready");
    t.engine.coalescing_limit()
}

#[test]
fn near_it_is_half_of_the_receivers_window() {
    assert_eq!(limit_of_data(&mut opened(1_000_000)), Some(WINDOW / 2));
}

#[test]
fn where_round_trips_are_long_it_is_less() {
    assert_eq!(limit_of_data(&mut opened(2_000_000)), Some(WINDOW / 16));
}

#[test]
fn what_is_not_known_has_no_limit() {
    let mut t = opened(0);
    // Its receiver has announced nothing but what the SYN-ACK, which is never scaled, said.
    t.send(C, 0, 0, flag::ACK, b"helo");
    assert_eq!(t.engine.coalescing_limit(), None);
    assert_eq!(limit_of_data(&mut t), Some(WINDOW / 2));
    // No frame of a connection.
    t.raw(0, &[0xff; 60]);
    assert_eq!(t.engine.coalescing_limit(), None);
}
