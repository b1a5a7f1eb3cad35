//! IP fragments: put together where every receiver reads them alike, else policy. Each test says what
//! must hold.

use crate::harness::attack::*;
use mmtls_engine::tls::Direction;
use mmtls_engine::*;
use mmtls_testkit::segments::{Seeded, flag};
use mmtls_testkit::synthesis::side;

const IPV4_HEADER: usize = 20;
const LINK: usize = 14;
const SECOND: u64 = 1_000_000_000;

/// A fragment of a frame's packet: these bytes behind its IP header.
fn fragment(frame: &[u8], from: usize, to: usize, last: bool, id: u16) -> Vec<u8> {
    let payload = &frame[LINK + IPV4_HEADER..];
    let mut piece = frame[..LINK + IPV4_HEADER].to_vec();
    let len = (IPV4_HEADER + to - from) as u16;
    piece[LINK + 2..LINK + 4].copy_from_slice(&len.to_be_bytes());
    piece[LINK + 4..LINK + 6].copy_from_slice(&id.to_be_bytes());
    let place = (from / 8) as u16 | if last { 0 } else { 0x2000 };
    piece[LINK + 6..LINK + 8].copy_from_slice(&place.to_be_bytes());
    piece[LINK + 10..LINK + 12].fill(0);
    let sum = piece[LINK..]
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum::<u32>();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    piece[LINK + 10..LINK + 12].copy_from_slice(&sum.to_be_bytes());
    piece.extend_from_slice(&payload[from..to]);
    piece
}

/// A frame's packet in fragments of at most so many bytes.
pub fn cut(frame: &[u8], len: usize, id: u16) -> Vec<Vec<u8>> {
    let all = frame.len() - LINK - IPV4_HEADER;
    (0..all)
        .step_by(len)
        .map(|from| fragment(frame, from, (from + len).min(all), from + len >= all, id))
        .collect()
}

/// Numbers that were held and where they went.
fn ends(t: &T) -> (Vec<HoldId>, Vec<HoldId>) {
    let released = t.out.iter().filter_map(|it| match it {
        Output::Release(id) => Some(*id),
        _ => None,
    });
    let discarded = t.out.iter().filter_map(|it| match it {
        Output::Discard(id) => Some(*id),
        _ => None,
    });
    (released.collect(), discarded.collect())
}

#[test]
fn sessions_in_fragments_must_be_judged_whatever_their_order() {
    for seed in 0..50 {
        let mut rng = Seeded::new(seed);
        let mut t = T::new();
        t.open();
        let _ = (t.keys(C, 0), t.keys(S, 0));
        let mut at = [0u64; 2];
        let mut held = 0;
        for (number, turn) in simple().turns.iter().enumerate() {
            let s = side(turn.direction);
            let frame = t.ep.frame(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            let mut pieces =
                cut(&frame, 8 * (1 + rng.below(40)).max(frame.len() / 400 + 1), number as u16);
            if rng.one_in(2) {
                // The last one first.
                pieces.reverse();
            }
            let last = pieces.len() - 1;
            for (n, piece) in pieces.iter().enumerate() {
                match t.raw(s as u8, piece) {
                    Verdict::Hold(_) => held += 1,
                    verdict => assert_eq!((verdict, n), (Verdict::Forward, last), "{seed}"),
                }
                if n < last && rng.one_in(4) {
                    assert_eq!(t.raw(s as u8, piece), Verdict::Drop, "a copy");
                }
            }
            at[s] += turn.bytes.len() as u64;
        }
        assert_eq!(t.judged(), 2);
        assert_eq!((ends(&t).0.len(), ends(&t).1.len()), (held, 0));
    }
}

#[test]
fn fragments_must_share_the_fate_of_their_packet() {
    for keys in [true, false] {
        let mut t = T::new();
        t.open();
        let script = simple();
        let mut at = [0u64; 2];
        for turn in &script.turns[..script.turns.len() - 1] {
            let s = side(turn.direction);
            t.send(turn.direction, at[s] as i64, at[1 - s], flag::ACK, &turn.bytes);
            at[s] += turn.bytes.len() as u64;
        }
        let response = &script.turns[script.turns.len() - 1].bytes;
        let frame = t.ep.frame(S, at[1] as i64, at[0], flag::ACK, response);
        let mut held = Vec::new();
        for piece in cut(&frame, 64, 7) {
            let Verdict::Hold(id) = t.raw(1, &piece) else {
                panic!("forwarded before it was judged");
            };
            held.push(id);
        }
        t.out.clear();
        if keys {
            let _ = (t.keys(C, 0), t.keys(S, 0));
        }
        let now = t.now + SECOND;
        t.engine.handle_timeout(now);
        while let Some(output) = t.engine.poll_output() {
            t.out.push(output);
        }
        let (released, discarded) = ends(&t);
        let (mine, others) = if keys { (released, discarded) } else { (discarded, released) };
        assert!(held.iter().all(|id| mine.contains(id) && !others.contains(id)), "{keys}");
    }
}

#[test]
fn fragments_that_receivers_read_differently_must_meet_the_policy() {
    for policy in [Policy::Reset, Policy::Forward] {
        // Overlaps with the same and with other bytes; two ends; beyond the end; a ragged one.
        for case in 0..6 {
            let mut config = T::config();
            config.policies.fragments = policy;
            let mut t = T::with(config);
            t.open();
            let frame = t.ep.frame(C, 0, 0, flag::ACK, &hello());
            let all = frame.len() - LINK - IPV4_HEADER;
            let first = fragment(&frame, 0, 24, false, 9);
            let mut other = fragment(&frame, 0, 24, false, 9);
            let last_byte = other.len() - 1;
            other[last_byte] ^= 1;
            let second = match case {
                0 => fragment(&frame, 16, 32, false, 9),
                1 => other,
                2 => fragment(&frame, 16, all, true, 9),
                3 => fragment(&frame, 8, 16, true, 9),
                4 => fragment(&frame, 24, 30, false, 9),
                _ => fragment(&frame, 0, 32, false, 9),
            };
            assert!(matches!(t.raw(0, &first), Verdict::Hold(_)));
            let passes = policy == Policy::Forward;
            let expected = if passes { Verdict::Forward } else { Verdict::Drop };
            assert_eq!(t.raw(0, &second), expected, "{case}");
            // And what comes later, as if nothing had been.
            for piece in cut(&frame, 24, 9) {
                assert_eq!(t.raw(0, &piece), expected, "{case}");
            }
            let (released, discarded) = ends(&t);
            assert_eq!((released.len(), discarded.len()), if passes { (1, 0) } else { (0, 1) });
            assert!(!t.started());
            // Long enough after it the number is free.
            t.now += 96 * SECOND;
            let now = t.now;
            t.engine.handle_timeout(now);
            for piece in cut(&frame, 24, 9) {
                t.raw(0, &piece);
            }
            assert!(t.started(), "{case}");
        }
    }
}

#[test]
fn incomplete_packets_must_not_be_kept_for_long_nor_without_end() {
    let mut t = T::new();
    t.open();
    let frame = t.ep.frame(C, 0, 0, flag::ACK, &[7; 1400]);
    let honest = cut(&frame, 400, 1);
    let mut flood = t.ep;
    flood.client = "10.0.0.99:1".parse().unwrap();
    let forged = flood.frame(C, 0, 0, flag::ACK, &[7; 60_000]);
    let (mut held, mut ended) = (0usize, 0usize);
    for id in 0..3000u16 {
        if id == 1500 {
            for piece in &honest[..3] {
                assert!(matches!(t.raw(0, piece), Verdict::Hold(_)));
            }
            ended += ends(&t).1.len();
            t.out.clear();
        }
        held += usize::from(matches!(
            t.raw(0, &fragment(&forged, 40_000, 60_000, false, id)),
            Verdict::Hold(_)
        ));
        ended += ends(&t).1.len();
        t.out.clear();
    }
    assert!(held - ended <= 512, "{held} {ended}");
    // Who sends many does not take the place of others.
    assert_eq!(t.raw(0, &honest[3]), Verdict::Forward);
    assert_eq!(ends(&t), (ends(&t).0, Vec::new()));
    t.out.clear();
    let now = t.now + 31 * SECOND;
    t.engine.handle_timeout(now);
    while let Some(output) = t.engine.poll_output() {
        t.out.push(output);
    }
    assert_eq!(ends(&t).1.len(), held - ended);
    assert_eq!(t.engine.next_timeout().filter(|due| *due <= now), None);
}

#[test]
fn fragments_of_ipv6_must_be_put_together_behind_other_headers() {
    let mut t = T::new();
    t.ep.client = "[fd00::2]:40000".parse().unwrap();
    t.ep.server = "[fd00::3]:443".parse().unwrap();
    t.open();
    let frame = t.ep.frame(C, 0, 0, flag::ACK, &hello());
    let (head, tcp) = frame.split_at(LINK + 40);
    // Destination options in the part that is cut.
    let part = [&[6, 0, 1, 4, 0, 0, 0, 0][..], tcp].concat();
    let middle = 16;
    for (from, to) in [(middle, part.len()), (0, middle)] {
        let mut piece = head.to_vec();
        piece[LINK + 6] = 44;
        let len = (8 + to - from) as u16;
        piece[LINK + 4..LINK + 6].copy_from_slice(&len.to_be_bytes());
        let place = from as u16 | u16::from(to < part.len());
        piece.extend_from_slice(&[60, 0, (place >> 8) as u8, place as u8, 0, 0, 0, 5]);
        piece.extend_from_slice(&part[from..to]);
        t.raw(0, &piece);
    }
    assert!(t.started());
}

#[test]
fn fragments_of_copies_must_be_read_and_never_held() {
    let mut config = T::config();
    config.inline = false;
    let mut t = T::with(config);
    t.open();
    let frame = t.ep.frame(Direction::ClientToServer, 0, 0, flag::ACK, &hello());
    // Captures use identifications again: sooner than hosts do where their clock has been changed.
    for times in 1..=3 {
        if times == 3 {
            let now = t.now + 200 * SECOND;
            t.engine.handle_timeout(now);
        }
        let pieces = cut(&frame, 24, 3);
        for piece in &pieces {
            assert_eq!(t.raw(0, piece), Verdict::Forward);
        }
        assert_eq!(t.engine.counters().fragments_joined, times * pieces.len() as u64);
    }
    assert!(t.started() && t.out.iter().all(|it| !matches!(it, Output::Release(_))));
}

#[test]
fn engines_that_share_must_not_guess_whose_a_fragment_is() {
    for (policy, verdict) in [(Policy::Reset, Verdict::Drop), (Policy::Forward, Verdict::Forward)] {
        let mut config = T::config();
        config.policies.fragments = policy;
        config.share = Some(Share { own: 0, owner: |_, _, _, _| 0, engines: 2, seed: 0 });
        let mut t = T::with(config);
        t.open();
        let frame = t.ep.frame(C, 0, 0, flag::ACK, &hello());
        for piece in cut(&frame, 24, 3) {
            assert_eq!(t.raw(0, &piece), verdict);
        }
    }
}

#[test]
fn fragments_of_two_packets_must_not_meet_at_the_receiver() {
    // Of each packet one half dies behind the monitor; the receiver would make a third of the others.
    let mut t = T::new();
    t.open();
    let [first, second] = [[7u8; 64], [9; 64]].map(|data| t.ep.frame(C, 0, 0, flag::ACK, &data));
    for piece in cut(&first, 48, 4) {
        assert_ne!(t.raw(0, &piece), Verdict::Drop);
    }
    let released = ends(&t).0.len();
    for wait in [1, 30, 60] {
        t.now += wait * SECOND;
        let now = t.now;
        t.engine.handle_timeout(now);
        for piece in cut(&second, 48, 4) {
            assert_eq!(t.raw(0, &piece), Verdict::Drop);
        }
    }
    assert_eq!(ends(&t).0.len(), released);
    // IPv6: whatever a later fragment calls itself.
    let mut t = T::new();
    t.ep.client = "[fd00::2]:40000".parse().unwrap();
    t.ep.server = "[fd00::3]:443".parse().unwrap();
    t.open();
    let frame = t.ep.frame(C, 0, 0, flag::ACK, &hello());
    let (head, tcp) = frame.split_at(LINK + 40);
    let mut verdicts = Vec::new();
    for (from, to, next) in
        [(0, 16, 6), (16, tcp.len(), 6), (16, tcp.len(), 59), (16, tcp.len(), 17)]
    {
        let mut piece = head.to_vec();
        piece[LINK + 6] = 44;
        let len = (8 + to - from) as u16;
        piece[LINK + 4..LINK + 6].copy_from_slice(&len.to_be_bytes());
        let place = from as u16 | u16::from(to < tcp.len());
        piece.extend_from_slice(&[next, 0, (place >> 8) as u8, place as u8, 0, 0, 0, 5]);
        piece.extend_from_slice(&tcp[from..to]);
        verdicts.push(t.raw(0, &piece));
    }
    assert!(matches!(verdicts[0], Verdict::Hold(_)));
    assert_eq!(verdicts[1..], [Verdict::Forward, Verdict::Drop, Verdict::Drop]);
}

#[test]
fn completed_packets_must_not_take_memory_without_end() {
    let mut config = T::config();
    config.limits.opening_timeout_ns = SECOND;
    let mut t = T::with(config);
    // One that stays incomplete in front of many.
    let mut other = t.ep;
    other.client = "10.0.0.99:1".parse().unwrap();
    let frame = other.frame(C, 0, 0, flag::ACK, &[7; 100]);
    t.raw(0, &fragment(&frame, 0, 24, false, 1));
    let mut refused = 0;
    for n in 0..140_000u32 {
        let mut ep = t.ep;
        ep.client = ([10, 1, (n >> 13) as u8, 1], 5).into();
        let frame = ep.frame(C, 0, 0, flag::ACK, &[]);
        let mut verdict = Verdict::Forward;
        for piece in cut(&frame, 16, n as u16) {
            verdict = t.raw(0, &piece);
        }
        refused += usize::from(verdict == Verdict::Drop);
        t.out.clear();
    }
    assert!(refused > 140_000 - (1 << 17) - 2 && refused < 20_000, "{refused}");
    let now = t.now + 100 * SECOND;
    t.engine.handle_timeout(now);
    assert_eq!(t.engine.next_timeout(), None);
}

#[test]
fn identifications_of_one_source_must_leave_room_to_others() {
    let mut t = T::new();
    let joined = |t: &mut T, client: [u8; 4], id: u32| {
        let mut ep = t.ep;
        ep.client = (client, 5).into();
        ep.server.set_port((id >> 16) as u16 + 1);
        ep.server.set_ip([10, 9, 9, (id >> 16) as u8].into());
        let frame = ep.frame(C, 0, 0, flag::ACK, &[]);
        let pieces = cut(&frame, 16, id as u16);
        let verdicts = pieces.iter().map(|piece| t.raw(0, piece)).collect::<Vec<_>>();
        t.out.clear();
        verdicts.last() == Some(&Verdict::Forward)
    };
    let taken = (0..200_000).filter(|id| joined(&mut t, [10, 6, 6, 6], *id)).count();
    assert_eq!(taken, (1 << 17) / 2);
    assert!(joined(&mut t, [10, 0, 0, 2], 7));
}

#[test]
fn frames_of_held_packets_must_count_as_what_they_are() {
    let mut c = T::config();
    c.limits.max_held_frames = 1000;
    let mut t = T::with(c);
    let mut clients = Vec::new();
    // Sessions of a hundred clients with a record each that waits, in 11 to 13 fragments.
    for number in 0..100u8 {
        t.ep.client = ([10, 6, 6, number], 1000).into();
        t.open();
        let at = t.play(&builder().build());
        let record = sealed(C, 0);
        let frame = t.ep.frame(C, at[0] as i64, at[1], flag::ACK, &record);
        let len = (frame.len() / 12).next_multiple_of(8);
        let held = cut(&frame, len, number.into())
            .iter()
            .all(|piece| matches!(t.raw(0, piece), Verdict::Hold(_)));
        assert!(held, "{number}");
        clients.push(t.ep.client);
    }
    let counters = t.engine.counters();
    let waiting = counters.held - counters.released - counters.dropped;
    assert!((900..=1000).contains(&waiting), "{waiting}");
    let paid = t.engine.handler().errors().len();
    assert!((1..=40).contains(&paid), "{paid} sessions made room for 13 frames at a time");
}

#[test]
fn others_fragments_must_not_take_the_identifications_of_a_client() {
    let mut t = T::new();
    t.open();
    let own = |t: &mut T, id: u16| {
        let frame = t.ep.frame(C, 0, 0, flag::ACK, &[]);
        let verdicts = cut(&frame, 16, id).iter().map(|it| t.raw(0, it)).collect::<Vec<_>>();
        verdicts.last() == Some(&Verdict::Forward)
    };
    assert!(own(&mut t, 1));
    // In its name, from the other side of the monitor, to somebody else.
    let mut forged = t.ep;
    forged.server.set_ip([192, 0, 2, 9].into());
    let frame = forged.frame(C, 0, 0, flag::ACK, &[]);
    for id in 0..u16::MAX {
        t.raw(1, &cut(&frame, 16, id)[0]);
        t.out.clear();
    }
    assert!(own(&mut t, 40_000));
    // And of some more sources; each may have as much as is left for all others.
    for source in 0..8 {
        let mut forged = t.ep;
        forged.client.set_ip([10, 6, 6, source].into());
        let frame = forged.frame(C, 0, 0, flag::ACK, &[]);
        for id in 0..u16::MAX {
            t.raw(0, &cut(&frame, 16, id)[0]);
        }
        t.out.clear();
    }
    for id in 41_000..41_100 {
        assert!(own(&mut t, id), "{id}");
    }
}
