//! TCP as hostile peers send it: what the monitor sees and what the receiver takes must not
//! become two different streams. Each test says what must hold.

mod harness;
use harness::attack::*;
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
    assert_eq!(t.engine.buffered_bytes(), 0);
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

fn keys_of_server() -> NullKeys {
    harness::keys(S, Some(0))
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
