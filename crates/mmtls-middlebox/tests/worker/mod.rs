//! The whole worker: frames in, keys from the key server's side of the queues, a handler that
//! judges. The cases are written once and run on every packet back end; the in-memory one needs neither
//! root nor namespaces.

mod lease;
mod network;
mod stage;

use std::collections::BTreeSet;
use std::time::Duration;

use mmtls_engine::session::EndReason;
use mmtls_engine::tls::Direction;
use mmtls_packet_io::Port;
use mmtls_packet_io::memory::Link;

use mmtls_testkit::frames::{CLIENT, Packet, SERVER, Session};
use mmtls_testkit::segments::{Seeded, flag};
use mmtls_testkit::skip_unless;
use mmtls_testkit::wire::{RST, Segment, finish_checksum};
use network::{AfPacket, Memory, Network};
use stage::{ENOUGH, FORBIDDEN, FORBIDDEN_AT_THE_END, NO_MORE, PAUSED_BYTES, Stage};

/// Runs the cases on both back ends.
macro_rules! on_each_back_end {
    ($($case:ident),* $(,)?) => {
        mod memory {
            $(#[test]
            fn $case() {
                super::$case::<super::Memory>();
            })*
        }

        mod af_packet {
            $(#[test]
            fn $case() {
                super::$case::<super::AfPacket>();
            })*
        }
    };
}

on_each_back_end! {
    accepts_an_open_connection_in_order,
    accepts_held_records_in_order_once_their_keys_come,
    accepts_held_records_of_both_directions,
    accepts_what_a_frame_releases_ahead_of_it,
    refuses_to_send_a_held_frame_twice,
    refuses_what_is_held_after_a_reset,
    refuses_the_record_that_is_judged_and_all_behind_it,
    refuses_what_is_held_at_the_end,
    refuses_a_session_when_it_ends_with_the_worker,
    leaves_what_nobody_reads_to_the_ports,
    leaves_paused_records_to_the_ports,
    knows_all_headers_that_are_in_flight,
}

/// In which a worker finds nothing that waits, also on a busy machine.
const IDLE: Duration = Duration::from_millis(2);

/// Records of this many bytes, whose content says their number.
fn contents(direction: Direction, lengths: &[usize]) -> Vec<(Direction, Vec<u8>)> {
    let content = |(number, length): (usize, &usize)| (direction, vec![number as u8; *length]);
    lengths.iter().enumerate().map(content).collect()
}

fn accepts_an_open_connection_in_order<N: Network>() {
    let mut records = contents(CLIENT, &[20, 3000, 1]);
    records.extend(contents(SERVER, &[10, 5000, 700, 0, 12_000]));
    records.extend(contents(CLIENT, &[40]));
    let session = Session::new(&records);
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.deliver(&session);
    stage.open(&session);
    for record in &session.records {
        stage.pass(record);
    }
    stage.expect_nothing_more();
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.records, records);
    assert_eq!(end.judge.ends, [EndReason::Shutdown]);
    assert_eq!((end.status.held_frames, end.status.engine.sessions), (0, 1));
    let counters = end.status.bridge;
    assert_eq!(counters.left.sent_frames, counters.right.received_frames);
    assert_eq!(counters.right.sent_frames, counters.left.received_frames);
}

fn accepts_held_records_in_order_once_their_keys_come<N: Network>() {
    // The second one in several frames, of which a receiver needs the last one.
    let records = contents(SERVER, &[100, 2500, 50, 10]);
    let session = Session::new(&records);
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.open(&session);
    let (late, early) = session.records.split_last().unwrap();
    for record in early {
        stage.send(record);
    }
    // Neither anything of them, nor does it hold up what belongs to no connection.
    stage.expect_nothing_more();
    stage.deliver(&session);
    for record in early {
        stage.expect(record);
    }
    stage.pass(late);
    stage.expect_nothing_more();
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.records, records);
    assert_eq!(end.status.held_frames, 0);
    assert!(end.status.engine.held >= 3, "{:?}", end.status.engine);
}

fn accepts_held_records_of_both_directions<N: Network>() {
    let mut records = contents(CLIENT, &[300, 10]);
    records.extend(contents(SERVER, &[200, 1500]));
    let session = Session::new(&records);
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.open(&session);
    for record in &session.records {
        stage.send(record);
    }
    stage.expect_nothing_more();
    stage.deliver(&session);
    for record in &session.records {
        stage.expect(record);
    }
    stage.expect_nothing_more();
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.records.len(), records.len());
    assert_eq!(end.status.held_frames, 0);
}

fn accepts_what_a_frame_releases_ahead_of_it<N: Network>() {
    let session = Session::new(&[]);
    let Some(mut stage) = Stage::<N>::new() else { return };
    let (hello, opening) = session.handshake[..4].split_last().unwrap();
    stage.pass(opening);
    // A fragment is held until the others are there; the last one passes, behind what it released.
    let [first, last] = hello.fragments();
    stage.send(std::slice::from_ref(&first));
    stage.expect_nothing_more();
    stage.send(std::slice::from_ref(&last));
    stage.expect(&[first, last]);
    stage.expect_nothing_more();
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.ends, [EndReason::Shutdown], "the ClientHello was read");
    assert_eq!((end.status.engine.held, end.status.held_frames), (1, 0));
}

fn refuses_to_send_a_held_frame_twice<N: Network>() {
    let session = Session::new(&contents(SERVER, &[100, 200, 300]));
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.open(&session);
    let (last, held) = session.records.split_last().unwrap();
    // As a sender whose packets are not acknowledged.
    for _ in 0..3 {
        for record in held {
            stage.send(record);
        }
    }
    stage.expect_nothing_more();
    for _ in 0..3 {
        stage.deliver(&session);
    }
    for record in held {
        stage.expect(record);
    }
    stage.pass(last);
    stage.expect_nothing_more();
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.records.len(), 3);
    assert_eq!(end.status.held_frames, 0);
}

/// These are RSTs and nothing else; the ports that they left by.
#[track_caller]
fn resets(frames: &[Packet]) -> BTreeSet<Port> {
    for Packet { port, frame } in frames {
        let segment = Segment::of(frame).expect("a segment");
        // In the name of the other end: the client is on the left.
        let from_server = segment.source.port() == 443;
        assert_eq!(*port == Port::Left, from_server, "{port}: {segment:?}");
        assert!(segment.flags & RST != 0, "{segment:?}");
        assert!(segment.payload.is_empty(), "{segment:?}");
    }
    frames.iter().map(|it| it.port).collect()
}

fn refuses_what_is_held_after_a_reset<N: Network>() {
    let mut records = contents(CLIENT, &[80, 90]);
    records.extend(contents(SERVER, &[100]));
    records[0].1 = FORBIDDEN.to_vec();
    records.extend(contents(CLIENT, &[7]));
    records.extend(contents(SERVER, &[8]));
    let session = Session::new(&records);
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.open(&session);
    let (held, late) = session.records.split_at(3);
    for record in held {
        stage.send(record);
    }
    stage.expect_nothing_more();
    stage.deliver(&session);
    assert_eq!(resets(&stage.take_more()), BTreeSet::from(Port::BOTH));
    // Not even what the endpoints send before the RST has come to them, or once more.
    for record in late.iter().chain(held) {
        stage.send(record);
    }
    resets(&stage.take_more());
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.ends, [EndReason::ResetByHandler]);
    assert_eq!(end.status.held_frames, 0);
}

fn refuses_the_record_that_is_judged_and_all_behind_it<N: Network>() {
    let mut records = contents(SERVER, &[2500, 100, 60]);
    records[1].1 = [&[b'x'; 1500][..], FORBIDDEN].concat();
    let session = Session::new(&records);
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.deliver(&session);
    stage.open(&session);
    stage.pass(&session.records[0]);
    // All but the last frame of a record pass, since they are of no use without it.
    let (last, before) = session.records[1].split_last().unwrap();
    stage.pass(before);
    stage.send(std::slice::from_ref(last));
    assert_eq!(resets(&stage.take_more()), BTreeSet::from(Port::BOTH));
    stage.send(&session.records[2]);
    stage.send(std::slice::from_ref(last));
    resets(&stage.take_more());
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.records, records[..2]);
    assert_eq!(end.judge.ends, [EndReason::ResetByHandler]);
}

fn refuses_what_is_held_at_the_end<N: Network>() {
    let mut records = contents(CLIENT, &[80]);
    records.extend(contents(SERVER, &[100, 3000]));
    let session = Session::new(&records);
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.open(&session);
    for record in &session.records {
        stage.send(record);
    }
    stage.expect_nothing_more();
    let mut end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.ends, [EndReason::Shutdown]);
    assert_eq!(end.status.held_frames, 0);
    for port in Port::BOTH {
        assert_eq!(end.network.rest(port).len(), 0, "{port}");
    }
}

fn refuses_a_session_when_it_ends_with_the_worker<N: Network>() {
    let session = Session::new(&[(CLIENT, FORBIDDEN_AT_THE_END.to_vec())]);
    let Some(mut stage) = Stage::<N>::new() else { return };
    stage.open(&session);
    stage.deliver(&session);
    stage.pass(&session.records[0]);
    let mut end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.ends, [EndReason::Shutdown]);
    for port in Port::BOTH {
        let rest = end.network.rest(port);
        let packets: Vec<_> = rest.into_iter().map(|frame| Packet { port, frame }).collect();
        assert_eq!(resets(&packets), BTreeSet::from([port]));
    }
}

/// A stage whose ports can forward by themselves; `None`, loudly, where they cannot.
fn stage_that_offloads<N: Network>() -> Option<Stage<N>> {
    let stage = Stage::<N>::new()?;
    if !stage.offloads {
        skip_unless("MMTLS_REQUIRE_KERNEL_FORWARDING", "these ports forward nothing by themselves");
        return None;
    }
    Some(stage)
}

/// In bursts: everything arrives once and in order.
fn leaves_what_nobody_reads_to_the_ports<N: Network>() {
    let mut records = Vec::new();
    for _ in 0..20 {
        records.extend(contents(SERVER, &[1300, 40, 700, 3000]));
        records.extend(contents(CLIENT, &[300]));
    }
    let session = Session::new(&records);
    let Some(mut stage) = stage_that_offloads::<N>() else { return };
    stage.refuse(&session);
    let mut random = Seeded::new(1);
    stage.pass(&session.handshake);
    let packets = session.records.concat();
    let mut rest = &packets[..];
    while !rest.is_empty() {
        let (burst, behind) = rest.split_at((1 + random.below(20)).min(rest.len()));
        stage.send(burst);
        for port in Port::BOTH {
            let of_port: Vec<_> = burst.iter().filter(|it| it.port == port).cloned().collect();
            stage.expect(&of_port);
        }
        std::thread::sleep(IDLE);
        rest = behind;
    }
    stage.expect_nothing_more();
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.records, []);
    let [left, right] = [end.status.bridge.left, end.status.bridge.right];
    for (port, direction) in [(left, CLIENT), (right, SERVER)] {
        let all = packets.iter().filter(|it| (it.port == Port::Left) == (direction == CLIENT));
        let all = all.count() as u64;
        assert!(port.offloaded_frames > all / 4, "{} of {all}", port.offloaded_frames);
    }
}

/// What a handler does not read goes by the ports, and what comes behind that is read. What went so cannot be changed any more.
fn leaves_paused_records_to_the_ports<N: Network>() {
    let read = |content: &[u8]| (SERVER, content.to_vec());
    let mut records = vec![read(ENOUGH)];
    let mut paused = contents(SERVER, &[3000; 60]);
    // Too short to go by the ports.
    paused.insert(30, (SERVER, vec![40; 40]));
    assert_eq!(paused.iter().map(|it| it.1.len() as u64).sum::<u64>(), PAUSED_BYTES);
    records.extend(paused);
    records.push(read(b"read again"));
    let session = Session::new(&records);
    let Some(mut stage) = stage_that_offloads::<N>() else { return };
    stage.deliver(&session);
    stage.open(&session);
    let mut random = Seeded::new(1);
    let (mut sent, [of_client, mut at]) = (Vec::new(), session.handshake_len.map(|it| it as u64));
    for (number, record) in session.records.iter().enumerate() {
        for packet in record {
            stage.send(std::slice::from_ref(packet));
            at += packet.frame.len() as u64 - 54;
            sent.push(packet.clone());
            // Most of it is in flight for a while.
            if number < 50 && random.below(3) == 0 || number == 0 {
                stage.expect(&std::mem::take(&mut sent));
                stage.pass(&[session.packet(CLIENT, of_client as i64, at, flag::ACK, &[])]);
                std::thread::sleep(IDLE);
            }
        }
    }
    stage.expect(&sent);
    let again = &session.records[55][0];
    let mut changed = again.frame.clone();
    // The length in the record's header.
    changed[54 + 4] ^= 1;
    finish_checksum(&mut changed);
    stage.send(&[Packet { frame: changed, ..*again }]);
    stage.expect_nothing_more();
    stage.pass(std::slice::from_ref(again));
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!(end.judge.records, [read(ENOUGH), read(b"read again")]);
    let counters = end.status.engine;
    assert_eq!((counters.records_paused, counters.records_failed), (61, 0));
    let [left, right] = [end.status.bridge.left, end.status.bridge.right];
    assert!(right.offloaded_frames > 100, "{} of 184", right.offloaded_frames);
    assert!(left.offloaded_frames > 10, "{} acknowledgments", left.offloaded_frames);
}

/// More records than the ports can remember are under way: the first one can be sent again, and only as it was.
fn knows_all_headers_that_are_in_flight<N: Network>() {
    let mut records = vec![(SERVER, NO_MORE.to_vec())];
    records.extend(contents(SERVER, &[1010; 3000]));
    let session = Session::new(&records);
    let Some(mut stage) = stage_that_offloads::<N>() else { return };
    stage.deliver(&session);
    stage.open(&session);
    stage.pass(&session.records[0]);
    let [of_client, of_server] = session.handshake_len.map(|it| it as u64);
    let acknowledged = of_server + session.records[0][0].frame.len() as u64 - 54;
    let acknowledgment = session.packet(CLIENT, of_client as i64, acknowledged, flag::ACK, &[]);
    stage.pass(std::slice::from_ref(&acknowledgment));
    for records in session.records[1..].chunks(10) {
        let packets = records.concat();
        stage.send(&packets);
        stage.expect(&packets);
        std::thread::sleep(IDLE);
    }
    for record in [&session.records[1], &session.records[1500], &session.records[2900]] {
        let mut changed = record[0].frame.clone();
        changed[54 + 4] ^= 1;
        finish_checksum(&mut changed);
        stage.send(&[Packet { frame: changed, ..record[0] }]);
        stage.expect_nothing_more();
        stage.pass(record);
    }
    let end = stage.stop();
    end.result.unwrap();
    let counters = end.status.engine;
    assert_eq!((counters.records_paused, counters.records_failed), (3000, 0));
    let forwarded = end.status.bridge.right.offloaded_frames;
    assert!(forwarded > 500, "{forwarded} of 6000");
}

/// A port that goes down is waited for; only the in-memory back end does so on demand.
#[test]
fn accepts_a_port_that_was_down() {
    let session = Session::new(&[]);
    let mut stage = Stage::<Memory>::new().unwrap();
    stage.network().0.set_link(Port::Right, Link::Down);
    stage.send(&session.handshake[..1]);
    stage.await_message("right is down");
    stage.network().0.set_link(Port::Right, Link::Up);
    stage.await_message("right is up again");
    stage.open(&session);
    let end = stage.stop();
    end.result.unwrap();
    assert_eq!((end.status.interface_downs, end.status.ports_down), (1, [false, false]));
}

/// Which limit that is, the engine's tests say.
#[test]
fn tells_the_ports_what_may_be_joined_with_others() {
    let session = Session::new(&contents(SERVER, &[100]));
    let mut stage = Stage::<Memory>::new().unwrap();
    stage.deliver(&session);
    stage.open(&session);
    stage.send(&session.records[0]);
    let sent = stage.network().0.take(Port::Left, Duration::from_secs(40)).unwrap();
    assert_eq!(sent.bytes, session.records[0][0].frame);
    assert!(sent.coalescing_limit.is_some_and(|bytes| bytes > 1000), "{sent:?}");
    stage.stop().result.unwrap();
}

#[test]
fn refuses_to_go_on_without_a_port() {
    let stage = Stage::<Memory>::new().unwrap();
    stage.network().0.set_link(Port::Left, Link::Gone);
    let end = stage.await_end();
    let error = end.result.unwrap_err();
    assert_eq!(error.to_string(), "left (left port) does not exist any more");
}
