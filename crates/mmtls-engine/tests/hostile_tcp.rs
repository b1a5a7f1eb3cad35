//! TCP as hostile peers send it: what the monitor sees and what the receiver takes must not
//! become two different streams. Each test says what must hold.

use crate::harness::attack::*;
use crate::harness::{Event, RANDOM};
use mmtls_engine::session::*;
use mmtls_engine::tls::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;
use mmtls_testkit::synthesis::*;

const CONFLICT: [(Direction, SessionError); 1] = [(S, SessionError::ConflictingOverlap)];

/// Sends a record of the server, forwarded, that its receiver has not acknowledged.
fn unacknowledged(t: &mut T) -> ([u64; 2], Vec<u8>) {
    let at = established(t);
    let record = sealed(S, 1);
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &record), Verdict::Forward);
    (at, record)
}

#[test]
fn retransmission_with_other_bytes_must_not_pass() {
    let mut t = T::new();
    let (at, record) = unacknowledged(&mut t);
    let mut other = record.clone();
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &other), Verdict::Drop);
    // Wherever it is cut.
    assert_eq!(t.send(S, at[1] as i64 + 300, at[0], flag::ACK, &other[300..]), Verdict::Drop);
    assert_eq!(t.engine.handler().errors(), CONFLICT);
    assert_eq!(t.engine.counters().conflicting_overlaps, 2);
    // The honest one may have been lost behind the monitor.
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &record), Verdict::Forward);
    for cut in 1..record.len() {
        let from = at[1] as i64 + cut as i64;
        assert_eq!(t.send(S, from, at[0], flag::ACK, &record[cut..]), Verdict::Forward);
    }
    assert_eq!(t.judged(), 3);
}

#[test]
fn retransmission_that_goes_on_must_not_change_what_was_sent() {
    let mut t = T::new();
    let (at, record) = unacknowledged(&mut t);
    let mut both = [record.clone(), sealed(S, 2)].concat();
    both[20] ^= 1;
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &both), Verdict::Drop);
    assert_eq!(t.judged(), 3, "its new part must not be taken either");
    both[20] ^= 1;
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &both), Verdict::Forward);
    assert_eq!(t.judged(), 4);
}

/// Sends bytes of the server in parts that long, from an offset on.
fn send_parts(t: &mut T, at: [u64; 2], from: usize, bytes: &[u8], len: usize) {
    for (number, part) in bytes.chunks(len).enumerate() {
        let offset = (at[1] as usize + from + number * len) as i64;
        assert_eq!(t.send(S, offset, at[0], flag::ACK, part), Verdict::Forward);
    }
}

/// Whether a retransmission is dropped when, and only when, a byte of it is another.
fn assert_compared(t: &mut T, at: [u64; 2], from: usize, bytes: &[u8]) {
    let offset = (at[1] as usize + from) as i64;
    for changed in 0..bytes.len() {
        let mut other = bytes.to_vec();
        other[changed] ^= 1;
        assert_eq!(t.send(S, offset, at[0], flag::ACK, &other), Verdict::Drop, "{changed}");
    }
    assert_eq!(t.send(S, offset, at[0], flag::ACK, bytes), Verdict::Forward);
}

#[test]
fn parts_of_an_incomplete_record_must_not_be_changed() {
    for len in [1, 3, 7, 100] {
        let mut t = T::new();
        let at = established(&mut t);
        let records = [sealed(S, 1), sealed(S, 2)].concat();
        let first = sealed(S, 1).len();
        // Within the first record, at its end, and within the second one.
        let mut sent = 0;
        for upto in [4, first / 2, first - 1, first, first + 3, records.len() - 1] {
            send_parts(&mut t, at, sent, &records[sent..upto], len);
            sent = upto;
            assert_compared(&mut t, at, 0, &records[..sent]);
        }
        // What has arrived is not compared any more, and the rest still is.
        for arrived in [2, first - 2, first + 1, sent - 1] {
            t.send(C, at[0] as i64, at[1] + arrived as u64, flag::ACK, &[]);
            assert_compared(&mut t, at, arrived, &records[arrived..sent]);
            let mut other = records[..sent].to_vec();
            other[arrived - 1] ^= 1;
            assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &other), Verdict::Forward);
        }
        send_parts(&mut t, at, sent, &records[sent..], len);
        assert_compared(&mut t, at, sent, &records[sent..]);
        assert_eq!(t.judged(), 4);
        t.send(C, at[0] as i64, at[1] + records.len() as u64, flag::ACK, &[]);
        assert!(t.engine.buffered_bytes() < 2000, "{} bytes kept", t.engine.buffered_bytes());
    }
}

#[test]
fn a_record_that_its_connection_has_cut_must_not_be_changed_either() {
    let mut t = T::new();
    let at = established(&mut t);
    let record = sealed(S, 1);
    let part = &record[..record.len() - 1];
    send_parts(&mut t, at, 0, part, 100);
    let end = at[1] as i64 + part.len() as i64;
    t.send(S, end, at[0], flag::ACK | flag::FIN, &[]);
    assert_compared(&mut t, at, 0, part);
    // Both sides have finished, and the session has ended.
    t.send(C, at[0] as i64, at[1], flag::ACK | flag::FIN, &[]);
    assert_compared(&mut t, at, 0, part);
}

#[test]
fn parts_behind_a_stall_must_not_be_changed() {
    let mut t = T::new();
    t.open();
    let at = t.play(&builder().build());
    let records = [sealed(S, 0), sealed(S, 1)].concat();
    let halves = records.split_at(sealed(S, 0).len() + 50);
    let (offset, next) = (at[1] as i64, at[1] as i64 + halves.0.len() as i64);
    assert!(matches!(t.send(S, offset, at[0], flag::ACK, halves.0), Verdict::Hold(_)));
    assert_eq!(t.keys(S, 0), Ok(true));
    assert!(t.out.iter().any(|it| matches!(it, Output::Release(_))));
    assert_eq!(t.judged(), 1);
    // More of the record that the stall has left, in parts.
    let upto = halves.1.len() - 1;
    for (number, part) in halves.1[..upto].chunks(30).enumerate() {
        let from = next + number as i64 * 30;
        assert_eq!(t.send(S, from, at[0], flag::ACK, part), Verdict::Forward);
        assert_compared(&mut t, at, 0, &records[..halves.0.len() + number * 30 + part.len()]);
    }
    send_parts(&mut t, at, records.len() - 1, &records[records.len() - 1..], 1);
    assert_compared(&mut t, at, 0, &records);
    assert_eq!(t.judged(), 2);
}

#[test]
fn whatever_way_bytes_are_kept_they_must_not_be_changed() {
    let stream: Vec<u8> = (1..60).flat_map(|number| sealed(S, number)).collect();
    for seed in 0..200 {
        let mut random = fastrand(seed);
        let mut t = T::new();
        let at = established(&mut t);
        let (mut sent, mut arrived) = (0, 0);
        while sent < stream.len() {
            // Large frames are lent, others copied or left to the session.
            let len = [1, 20, 150, 400, 1448, 6000][random(6)].min(stream.len() - sent);
            let from = at[1] as i64 + sent as i64;
            let bytes = &stream[sent..sent + len];
            if random(4) == 0 && len > 2 {
                // Out of order first, whole or in pieces that the rest covers.
                for piece in [1 + random(len - 2), 1 + random(len - 2)] {
                    t.send(S, from + piece as i64, at[0], flag::ACK, &bytes[piece..=piece]);
                }
            }
            assert_eq!(t.send(S, from, at[0], flag::ACK, bytes), Verdict::Forward);
            sent += len;
            if random(3) == 0 {
                arrived += random(sent - arrived + 1);
                t.send(C, at[0] as i64, at[1] + arrived as u64, flag::ACK, &[]);
            }
            let back = random(sent + 1).min(random(3000));
            let again = &stream[sent - back..sent];
            let offset = at[1] as i64 + (sent - back) as i64;
            assert_eq!(t.send(S, offset, at[0], flag::ACK, again), Verdict::Forward);
            if sent > arrived {
                let changed = arrived.max(sent - back) + random(sent - arrived.max(sent - back));
                let mut other = again.to_vec();
                if let Some(byte) = other.get_mut(changed + back - sent) {
                    *byte ^= 1;
                    let verdict = t.send(S, offset, at[0], flag::ACK, &other);
                    assert_eq!(verdict, Verdict::Drop, "seed {seed}: {changed} of {sent}");
                }
            }
        }
        assert_eq!(t.judged(), 2 + 59);
        t.send(C, at[0] as i64, at[1] + sent as u64, flag::ACK, &[]);
        assert!(t.engine.buffered_bytes() < 2000, "{} bytes kept", t.engine.buffered_bytes());
        assert_eq!(t.kept_frames(), 0);
    }
}

#[test]
fn memory_of_what_is_covered_or_cut_must_be_given_back() {
    let mut t = T::new();
    let at = established(&mut t);
    let record = sealed(S, 1);
    // One byte more doubles the buffer: what comes then has room.
    send_parts(&mut t, at, 0, &record[..61], 60);
    let before = t.engine.buffered_bytes();
    for piece in (62..120).step_by(2) {
        let bytes = &record[piece..=piece];
        t.send(S, at[1] as i64 + piece as i64, at[0], flag::ACK, bytes);
    }
    assert!(t.engine.buffered_bytes() > before + 29 * 90);
    send_parts(&mut t, at, 61, &record[61..120], 60);
    assert_eq!(t.engine.buffered_bytes(), before);
    // The end of the connection copies the part, and lets go of the session's memory.
    let end = at[1] as i64 + 120;
    t.send(S, end, at[0], flag::ACK | flag::FIN, &[]);
    t.send(C, at[0] as i64, at[1], flag::ACK | flag::FIN, &[]);
    assert!(!t.alive());
    let kept = t.engine.buffered_bytes();
    assert!((120..before).contains(&kept), "{kept}");
    t.send(C, at[0] as i64 + 1, end as u64 + 1, flag::ACK, &[]);
    assert!(t.engine.buffered_bytes() < kept - 120, "{}", t.engine.buffered_bytes());
}

/// Numbers below a bound, the same for the same seed.
fn fastrand(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % bound.max(1)
    }
}

#[test]
fn acknowledged_bytes_need_no_memory_and_no_comparison() {
    let mut t = T::new();
    let (at, mut record) = unacknowledged(&mut t);
    let end = at[1] + record.len() as u64;
    assert!(t.engine.buffered_bytes() >= record.len());
    t.send(C, at[0] as i64, end, flag::ACK, &[]);
    assert!(t.engine.buffered_bytes() < 2000, "{} bytes kept", t.engine.buffered_bytes());
    // Their receiver has them, and takes no others.
    record[9] ^= 1;
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &record), Verdict::Forward);
    assert!(t.engine.handler().errors().is_empty());
}

#[test]
fn large_frames_are_kept_until_they_are_acknowledged_and_no_longer() {
    let mut t = T::new();
    let at = established(&mut t);
    let records: Vec<u8> = (1..30).flat_map(|number| sealed(S, number)).collect();
    let (large, rest) = records.split_at(8000);
    let (small, last) = rest.split_at(100);
    let mut from = at[1] as i64;
    for part in [large, small, last] {
        assert_eq!(t.send(S, from, at[0], flag::ACK, part), Verdict::Forward);
        from += part.len() as i64;
    }
    assert_eq!(t.kept_frames(), 1, "others are copied");
    assert!(t.engine.buffered_bytes() >= records.len());
    assert_eq!(t.judged(), 2 + 29);
    // A retransmission over all three, whichever byte is another.
    for changed in [0, 7999, 8000, 8099, 8100, records.len() - 1] {
        let mut other = records.clone();
        other[changed] ^= 1;
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &other), Verdict::Drop, "{changed}");
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &records), Verdict::Forward);
    }
    assert_eq!(t.kept_frames(), 1);
    let before = t.engine.buffered_bytes();
    t.send(C, at[0] as i64, at[1] + 7999, flag::ACK, &[]);
    assert_eq!((t.kept_frames(), t.engine.buffered_bytes()), (1, before));
    t.send(C, at[0] as i64, at[1] + 8000, flag::ACK, &[]);
    assert_eq!(t.kept_frames(), 0);
    assert!(t.engine.buffered_bytes() < before - 8000);
    t.send(C, at[0] as i64, at[1] + records.len() as u64, flag::ACK, &[]);
    assert!(t.engine.buffered_bytes() < 2000, "{} bytes kept", t.engine.buffered_bytes());
}

#[test]
fn memory_of_frames_is_charged_and_given_back_with_the_connection() {
    let mut c = T::config();
    c.limits.max_buffered_bytes = 1 << 20;
    let mut t = T::with(c);
    let at = established(&mut t);
    let mut from = at[1] as i64;
    let mut dropped = 0;
    for number in 1..1000 {
        let record = keys_of_server().seal(number, ContentType::APPLICATION_DATA, &[9; 8000], 0);
        match t.send(S, from, at[0], flag::ACK, &record) {
            Verdict::Forward => from += record.len() as i64,
            _ => dropped += 1,
        }
    }
    assert!(dropped > 0 && t.kept_frames() > 10, "{dropped} dropped, {} kept", t.kept_frames());
    assert!(t.engine.buffered_bytes() >= t.kept_frames() * 8000);
    assert!(t.engine.buffered_bytes() < 1 << 20);
    t.engine.finish();
    assert_eq!((t.kept_frames(), t.engine.buffered_bytes()), (0, 0));
}

/// Memory of which little is used is kept as long as there is plenty of it, and no longer.
#[test]
fn memory_must_not_be_wasted_where_it_is_scarce() {
    const ROOM: usize = 66 << 10;
    for (max, kept) in [(1 << 30, 16), (4 << 20, 4)] {
        let mut c = T::config();
        c.limits.max_buffered_bytes = max;
        let mut t = T::with(c);
        let at = established(&mut t);
        t.room = ROOM;
        let mut from = at[1];
        for number in 1..60 {
            let data = [9; 5000];
            let record = keys_of_server().seal(number, ContentType::APPLICATION_DATA, &data, 0);
            let verdict = t.send(S, from as i64, at[0], flag::ACK, &record);
            assert_eq!(verdict, Verdict::Forward);
            from += record.len() as u64;
        }
        assert_eq!(t.kept_frames(), kept, "of 59, with {max} bytes");
        assert!(t.engine.buffered_bytes() >= kept * ROOM + (59 - kept) * 5000, "all is charged");
        t.room = 0;
        t.send(C, at[0] as i64, from, flag::ACK, &[]);
        assert_eq!(t.kept_frames(), 0);
    }
}

#[test]
fn packet_that_dies_on_the_way_must_not_open_a_way_for_another() {
    // Time to live 1: forwarded and judged, but its receiver never gets it. Nor does a packet
    // with an old timestamp, an option that routers drop, or somebody else's link address.
    let mut t = T::new();
    let at = established(&mut t);
    let record = sealed(S, 1);
    let mut short_lived = t.ep.frame(S, at[1] as i64, at[0], flag::ACK, &record);
    let ttl = 14 + 8;
    short_lived[ttl] = 1;
    fix_header_checksum(&mut short_lived);
    assert_eq!(t.raw(1, &short_lived), Verdict::Forward);
    let other = keys_of_server().seal(1, ContentType::APPLICATION_DATA, &[0xbb; 300], 0);
    assert_eq!(other.len(), record.len());
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &other), Verdict::Drop);
    assert_eq!(t.engine.handler().errors(), CONFLICT);
}

#[test]
fn short_lived_reset_must_not_end_the_watch() {
    let mut t = T::new();
    let at = established(&mut t);
    let mut rst = t.ep.frame(S, at[1] as i64, at[0], flag::RST, &[]);
    rst[14 + 8] = 1;
    fix_header_checksum(&mut rst);
    t.raw(1, &rst);
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Drop);
}

#[test]
fn first_bytes_must_not_change_from_plain_to_tls() {
    // The client's first segment dies behind the monitor, and the server gets a ClientHello.
    let mut t = T::new();
    t.open();
    let hello = hello();
    let decoy = vec![b'G'; hello.len()];
    assert_eq!(t.send(C, 0, 0, flag::ACK, &decoy), Verdict::Forward);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello), Verdict::Drop);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &hello[..3]), Verdict::Drop);
    assert_eq!(t.send(C, 0, 0, flag::ACK, &decoy), Verdict::Forward);
    assert_eq!(t.engine.counters().conflicting_overlaps, 2);
    // Acknowledged, they cannot change any more.
    t.send(S, 0, hello.len() as u64, flag::ACK, b"HTTP/1.1 200 OK");
    assert_eq!(t.send(C, 0, 15, flag::ACK, &decoy), Verdict::Forward);
    // What the server says is kept as long as it speaks: it may be the client of TLS.
    assert!(t.engine.buffered_bytes() <= 15);
}

#[test]
fn receivers_that_never_acknowledge_must_not_take_the_memory_of_others() {
    let mut c = T::config();
    c.limits.max_buffered_bytes = 4 << 20;
    let mut t = T::with(c);
    for port in 1000..1040 {
        t.ep.client.set_port(port);
        t.open();
        let hello = hello();
        t.send(C, 0, 0, flag::ACK, &hello);
        let mut at = hello.len() as i64;
        for _ in 0..100 {
            // Alerts in the clear, of a length that nobody minds.
            let noise = plain(ContentType::ALERT, &[1, 0]).repeat(1000);
            t.send(C, at, 0, flag::ACK, &noise);
            at += noise.len() as i64;
        }
    }
    assert!(t.engine.buffered_bytes() < 4 << 20, "{} bytes", t.engine.buffered_bytes());
    assert!(t.alive(), "others pay for it: {:?}", t.engine.handler().errors());
    assert!(t.engine.counters().buffer_full > 0);
}

// Control segments.

#[test]
fn reset_inside_the_window_must_not_end_the_watch() {
    // Its receiver answers with a challenge and goes on (RFC 5961, section 3.2), unless it stands elsewhere
    // than is known here: then the next connection would be taken for this one.
    let mut t = T::new();
    let at = established(&mut t);
    for beside in [-1, 1, 1000] {
        let v = t.send(S, at[1] as i64 + beside, at[0], flag::RST, &[]);
        assert_eq!(v, Verdict::Drop);
    }
    assert!(t.alive());
    assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::StrayReset)]);
    t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1));
    assert_eq!(t.judged(), 3);
    // The exact one counts.
    let at = at[1] as i64 + sealed(S, 1).len() as i64;
    t.send(S, at, 0, flag::RST, &[]);
    assert!(!t.alive());
}

#[test]
fn fin_must_not_cut_bytes_that_were_seen() {
    let mut t = T::new();
    let at = established(&mut t);
    for offset in [at[1] as i64 - 10, -5, at[1] as i64 + (1 << 28)] {
        let v = t.send(S, offset, at[0], flag::FIN | flag::ACK, &[]);
        assert_eq!(v, Verdict::Drop, "FIN at {offset}");
    }
    assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::OutOfWindow)]);
    t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1));
    assert_eq!(t.judged(), 3);
}

#[test]
fn bytes_behind_a_fin_must_not_pass() {
    let mut t = T::new();
    let at = established(&mut t);
    t.send(S, at[1] as i64, at[0], flag::FIN | flag::ACK, &[]);
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Drop);
    assert_eq!(t.send(S, at[1] as i64 + 1, at[0], flag::ACK, &sealed(S, 1)), Verdict::Drop);
}

#[test]
fn data_outside_of_the_window_must_not_pass() {
    let mut t = T::new();
    let at = established(&mut t);
    // The window is 65535 << 7, and some slack.
    let v = t.send(S, at[1] as i64 + (9 << 20), at[0], flag::ACK, &[1; 100]);
    assert_eq!(v, Verdict::Drop);
    assert_eq!(t.send(S, at[1] as i64 - (1 << 27), at[0], flag::ACK, &[1; 9]), Verdict::Drop);
    // Without ACK nobody takes a segment.
    assert_eq!(t.send(S, at[1] as i64, 0, 0, &[1; 9]), Verdict::Drop);
    assert_eq!(t.engine.handler().anomalies[0], (S, TcpAnomaly::OutOfWindow));
    assert!(t.alive());
}

#[test]
fn acknowledgment_of_unseen_data_must_be_noticed() {
    let mut t = T::new();
    let at = established(&mut t);
    t.send(C, at[0] as i64, at[1] + 500, flag::ACK, &[]);
    assert_eq!(t.engine.handler().errors(), [(S, SessionError::LostSynchronisation)]);
    assert!(!t.alive(), "what it acknowledges came by another way");
}

#[test]
fn first_bytes_by_another_way_must_be_noticed() {
    for policy in [Policy::Reset, Policy::Forward] {
        // That is not the grace of connections that were there before.
        let mut config = T::config();
        config.policies.lost_synchronisation = policy;
        let mut t = T::with(config);
        t.open();
        // The server has 517 bytes of the client that never came by here.
        t.send(S, 0, 517, flag::ACK, &[]);
        assert_eq!(t.engine.handler().anomalies, [(C, TcpAnomaly::UnseenBytes)]);
        let passes = t.send(C, 517, 0, flag::ACK, &[23, 3, 3, 0, 40]) == Verdict::Forward;
        assert_eq!(passes, policy == Policy::Forward, "{policy:?}");
    }
}

#[test]
fn urgent_data_must_be_noticed() {
    let mut t = T::new();
    let at = established(&mut t);
    for _ in 0..3 {
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK | 0x20, &sealed(S, 1)), Verdict::Drop);
        // The pointer may point ahead.
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK | 0x20, &[]), Verdict::Drop);
    }
    assert_eq!(t.engine.handler().anomalies, [(S, TcpAnomaly::UrgentData)], "told once");
    assert_eq!(t.engine.counters().urgent, 6);
}

#[test]
fn segments_from_the_wrong_side_must_be_noticed() {
    let mut t = T::new();
    let at = established(&mut t);
    let frame = t.ep.frame(C, at[0] as i64, at[1], flag::ACK, &sealed(C, 1));
    assert_eq!(t.raw(1, &frame), Verdict::Drop);
    assert_eq!(t.engine.handler().anomalies, [(C, TcpAnomaly::WrongSide)]);
    assert_eq!(t.judged(), 2);
}

// Beginnings and ends.

#[test]
fn simultaneous_open_must_not_hide_the_client() {
    // A hostile server answers the SYN with a SYN: the client's SYN-ACK does not make it one.
    for second_answer in [false, true] {
        let mut t = T::new();
        t.send(C, -1, 0, flag::SYN, &[]);
        t.send(S, -1, 0, flag::SYN, &[]);
        t.send(C, -1, 0, flag::SYN | flag::ACK, &[]);
        if second_answer {
            t.send(S, -1, 0, flag::SYN | flag::ACK, &[]);
        }
        t.send(S, 0, 0, flag::ACK, &[]);
        t.send(C, 0, 0, flag::ACK, &[]);
        let _ = t.keys(C, 0);
        let _ = t.keys(S, 0);
        t.play(&simple());
        assert_eq!(t.judged(), 2, "{:?}", t.engine.handler().events);
    }
}

#[test]
fn connection_from_server_to_client_must_not_hide_tls() {
    // Active FTP: the FTP server connects, and is the TLS server all the same. The ClientHello
    // comes byte by byte.
    let mut t = T::new();
    core::mem::swap(&mut t.ep.client, &mut t.ep.server);
    let script = simple();
    let _ = t.keys_with(
        C,
        0,
        Box::new(crate::harness::keys(C, KeyEpoch::Application(0))),
        RANDOM,
        None,
    );
    let _ = t.keys_with(
        S,
        0,
        Box::new(crate::harness::keys(S, KeyEpoch::Application(0))),
        RANDOM,
        None,
    );
    t.open();
    let mut at = [0u64; 2];
    for turn in &script.turns {
        let way = turn.direction.reverse();
        let s = side(way);
        for byte in &turn.bytes {
            t.send(way, at[s] as i64, at[1 - s], flag::ACK, &[*byte]);
            at[s] += 1;
        }
    }
    assert_eq!(t.judged(), 2);
    assert!(t.engine.handler().errors().is_empty());
}

#[test]
fn reused_four_tuple_must_be_followed_anew() {
    let mut t = T::new();
    let at = established(&mut t);
    t.send(C, at[0] as i64, at[1], flag::FIN | flag::ACK, &[]);
    t.send(S, at[1] as i64, at[0] + 1, flag::FIN | flag::ACK, &[]);
    t.send(C, at[0] as i64 + 1, at[1] + 1, flag::ACK, &[]);
    assert!(!t.alive());
    t.ep.initial = [7_000_000, 3_000_000_000];
    let at = established_again(&mut t);
    assert_eq!(t.judged(), 4);
    // And after a reset by the monitor.
    t.send(C, at[0] as i64, at[1] + 500, flag::ACK, &[]);
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Drop);
    t.ep.initial = [9_000_000, 4_000_000_000];
    established_again(&mut t);
    assert_eq!(t.judged(), 6);
}

#[test]
fn mid_stream_connection_must_meet_its_policy_and_both_ends_a_reset() {
    let mut t = T::with(Config { mid_stream_grace_ns: 0, ..T::config() });
    let v = t.send(S, 5000, 700, flag::ACK, &[23, 3, 3, 0, 40]);
    assert_eq!(v, Verdict::Drop);
    // The client has not spoken: its end is on the other side, the server's where it came from.
    let exits: Vec<Exit> = t
        .out
        .iter()
        .filter_map(|it| match it {
            Output::Inject { exit, .. } => Some(*exit),
            _ => None,
        })
        .collect();
    assert_eq!(exits, [Exit::Through(PortId(1)), Exit::AwayFrom(PortId(1))]);
    let frames: Vec<&Vec<u8>> = t
        .out
        .iter()
        .filter_map(|it| match it {
            Output::Inject { frame, .. } => Some(frame),
            _ => None,
        })
        .collect();
    let to_server = t.ep.frame(C, 700, 5000, flag::RST | flag::ACK, &[]);
    let to_client = t.ep.frame(S, 5000, 700, flag::RST | flag::ACK, &[]);
    for (frame, expected) in frames.iter().zip([to_server, to_client]) {
        assert_eq!(frame[..14], expected[..14], "link addresses");
        assert_eq!(frame[26..42], expected[26..42], "addresses, ports, sequence number");
    }
}

#[test]
fn silent_connections_must_be_forgotten_and_met_again_by_policy() {
    let mut t = T::new();
    let at = established(&mut t);
    t.now += T::config().limits.idle_timeout_ns + 1_000_000_000;
    let now = t.now;
    t.engine.handle_timeout(now);
    assert_eq!((t.engine.flow_count(), t.engine.buffered_bytes()), (0, 0));
    assert!(!t.alive());
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Drop);
}

#[test]
fn tombstone_must_outlive_whoever_keeps_knocking() {
    let mut t = T::new();
    let at = established(&mut t);
    t.send(C, at[0] as i64, at[1] + 500, flag::ACK, &[]);
    for _ in 0..10 {
        t.now += 170 * 1_000_000_000;
        let now = t.now;
        t.engine.handle_timeout(now);
        assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Drop);
    }
}

// Below TCP.

#[test]
fn hosts_of_one_vlan_must_not_speak_for_another() {
    let mut t = T::new();
    let tag = |frame: &[u8], id: u8| [&frame[..12], &[0x81, 0, 0, id], &frame[12..]].concat();
    let send = |t: &mut T, id: u8, d: Direction, offset: i64, ack: u64, flags: u8, data: &[u8]| {
        let frame = tag(&t.ep.frame(d, offset, ack, flags, data), id);
        t.raw(side(d) as u8, &frame)
    };
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    send(&mut t, 5, C, -1, 0, flag::SYN, &[]);
    send(&mut t, 5, S, -1, 0, flag::SYN | flag::ACK, &[]);
    send(&mut t, 5, C, 0, 0, flag::ACK, &[]);
    // The same addresses and numbers in VLAN 6: another network, another connection.
    send(&mut t, 6, C, 0, 0, flag::ACK, b"GET / HTTP/1.1\r\n");
    send(&mut t, 6, C, 0, 0, flag::RST, &[]);
    send(&mut t, 6, S, 0, 0, flag::FIN | flag::ACK, &[]);
    let mut at = [0u64; 2];
    for turn in &simple().turns {
        let s = side(turn.direction);
        send(&mut t, 6, turn.direction, at[s] as i64, at[1 - s], flag::ACK, &[9; 40]);
        send(&mut t, 5, turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
        at[s] += turn.bytes.len() as u64;
    }
    assert_eq!(t.judged(), 2);
    assert!(t.engine.handler().errors().is_empty());
}

fn established_again(t: &mut T) -> [u64; 2] {
    t.open();
    let _ = t.keys(C, 0);
    let _ = t.keys(S, 0);
    t.play(&simple())
}

fn keys_of_server() -> NullKeys {
    crate::harness::keys(S, KeyEpoch::Application(0))
}

/// Makes the IPv4 header checksum of an Ethernet frame right again.
fn fix_header_checksum(frame: &mut [u8]) {
    let header = &mut frame[14..34];
    header[10..12].fill(0);
    let mut sum: u32 =
        header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[test]
fn old_acknowledgment_must_not_make_a_strangers_segment_count() {
    // Somebody who sees nothing needs a number in the window and, where any older acknowledgment counted,
    // nothing else: the connection's own bytes then contradict theirs. Receivers drop it (RFC 5961, section
    // 5.2).
    for flags in [flag::ACK, flag::ACK | flag::FIN] {
        let mut t = T::new();
        let mut at = established(&mut t);
        for number in 1..1100 {
            let key = crate::harness::keys(S, KeyEpoch::Application(0));
            let record = key.seal(number, ContentType::APPLICATION_DATA, &[9; 16_000], 0);
            assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &record), Verdict::Forward);
            at[1] += record.len() as u64;
            t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
        }
        assert_eq!(t.send(C, at[0] as i64 + 30, 17, flags, b"?"), Verdict::Drop);
        // One that is late by less than a window is its sender's.
        let record = sealed(C, 1);
        let late = t.send(C, at[0] as i64, at[1] - 60_000, flag::ACK, &record);
        assert_eq!(late, Verdict::Forward);
        at[0] += record.len() as u64;
        assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &sealed(C, 2)), Verdict::Forward);
        assert_eq!(t.engine.counters().conflicting_overlaps, 0);
    }
}

#[test]
fn keep_alive_of_a_connection_that_has_said_nothing_must_pass_once_no_cookie_is_in_force() {
    const SECOND: u64 = 1_000_000_000;
    let idle = |t: &mut T, seconds: u64| {
        t.now += seconds * SECOND;
        t.engine.handle_timeout(t.now);
    };
    let mut t = T::new();
    t.open();
    // A server that answers with cookies would begin there.
    idle(&mut t, 45);
    assert_eq!(t.send(C, -1, 0, flag::ACK, &[]), Verdict::Drop);
    idle(&mut t, 180);
    assert_eq!(t.send(C, -1, 0, flag::ACK, &[]), Verdict::Forward);
    assert_eq!(t.send(C, -1, 0, flag::ACK, b"x"), Verdict::Drop, "bytes begin it");
    assert_eq!(t.send(C, -2, 0, flag::ACK, &[]), Verdict::Drop);
    // The server's own shows that it has the connection.
    let mut t = T::new();
    t.open();
    idle(&mut t, 45);
    assert_eq!(t.send(S, -1, 0, flag::ACK, &[]), Verdict::Forward);
    assert_eq!(t.send(C, -1, 0, flag::ACK, &[]), Verdict::Forward);
}

#[test]
fn reset_where_the_receiver_says_that_it_is_must_count() {
    // What came later was lost behind the monitor.
    let mut t = T::new();
    let at = established(&mut t);
    t.send(C, at[0] as i64, at[1], flag::ACK, &[]);
    t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1));
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::RST, &[]), Verdict::Forward);
    assert!(t.engine.handler().anomalies.is_empty());
    let ended = Event::SessionEnd(EndReason::ResetByPeer(S));
    assert!(t.engine.handler().events.contains(&ended));
}

#[test]
fn what_a_sender_repeats_after_a_reset_is_no_other_copy() {
    // The client has gone without having acknowledged it, and the server does not know yet.
    let mut t = T::new();
    let at = established(&mut t);
    t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1));
    t.send(C, at[0] as i64, at[1], flag::RST | flag::ACK, &[]);
    assert!(!t.alive());
    assert_eq!(t.send(S, at[1] as i64, at[0], flag::ACK, &sealed(S, 1)), Verdict::Drop);
    assert!(t.engine.handler().anomalies.is_empty());
    assert_eq!(t.engine.counters().out_of_window, 1);
    assert_eq!(t.engine.counters().conflicting_overlaps, 0);
    // The client knows.
    assert_eq!(t.send(C, at[0] as i64, at[1], flag::ACK, &sealed(C, 1)), Verdict::Drop);
    assert_eq!(t.engine.handler().anomalies, [(C, TcpAnomaly::OutOfWindow)]);
}
