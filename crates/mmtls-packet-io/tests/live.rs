//! The AF_PACKET bridge between real TCP stacks, in network namespaces. Each test skips loudly where namespaces are not
//! permitted.

mod testbed;

use std::collections::{HashSet, VecDeque};
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mmtls_packet_io::af_packet::{
    self, Action, Bridge, BridgeConfig, Error, Frame, HeldFrame, Offloading, Outbox, Port, Sender,
    Warning,
};
use mmtls_packet_io::guard;
use mmtls_packet_io::{Extent, Lease, OffloadFlow, OffloadSide, Outbox as _, Ports, Records};
use testbed::{Testbed, exchange, in_namespace, ip, stay_on_one_cpu, try_ip};

const MEGABYTE: u64 = 1 << 20;

#[test]
fn accepts_tcp_both_ways_with_offloads_intact() {
    let Some(bed) = Testbed::create() else { return };
    for address in ["10.77.0.2:5001", "[fd77::2]:5001"] {
        let (mut largest, mut partial) = (0, 0);
        let decide = |frame: &Frame<'_>, _: &mut Outbox| {
            largest = largest.max(frame.bytes.len());
            partial += u64::from(frame.checksum_partial());
            Action::Forward
        };
        let config = BridgeConfig { coalesce: false, ..bed.config() };
        let ((), counters, warnings) =
            bed.bridged(&config, decide, || exchange(&bed, address, 32 * MEGABYTE));
        assert!(largest > 10_000, "no super-frames: {largest}");
        assert!(partial > 100, "no unfinished checksums: {partial}");
        for (one, other) in [(counters.left, counters.right), (counters.right, counters.left)] {
            assert!(one.received_bytes > 32 * MEGABYTE, "{counters:?}");
            assert!(one.received_super_frames > 10, "{counters:?}");
            assert_eq!(one.received_frames, other.sent_frames, "{counters:?}");
            assert_eq!(one.received_bytes, other.sent_bytes, "{counters:?}");
            assert_eq!(one.truncated + one.kernel_dropped + one.send_errors.total(), 0);
        }
        assert!(!warnings.iter().any(|w| matches!(w, Warning::HasAddress { .. })), "{warnings:?}");
    }
}

/// Small super-frames leave as larger ones, and arrive, also where the kernel has to cut them up again and to compute
/// the checksums.
#[test]
fn accepts_joining_what_leaves_together() {
    let Some(bed) = Testbed::create() else { return };
    bed.make_super_frames_small();
    for segmented in [false, true] {
        if segmented && !bed.switch_offloads_off() {
            return;
        }
        for address in ["10.77.0.2:5004", "[fd77::2]:5004"] {
            // A slow monitor has many frames waiting.
            let decide = |_: &Frame<'_>, _: &mut Outbox| {
                std::thread::sleep(Duration::from_micros(200));
                Action::Forward
            };
            let run = || exchange(&bed, address, 8 * MEGABYTE);
            let ((), counters, _) = bed.bridged(&bed.config(), decide, run);
            for (one, other) in [(counters.left, counters.right), (counters.right, counters.left)] {
                assert_eq!(one.received_frames, other.sent_frames, "{counters:?}");
                assert!(one.coalesced_frames > 50, "{counters:?}");
                assert!(one.sent_bytes > 8 * MEGABYTE, "{counters:?}");
                assert_eq!(one.truncated + one.kernel_dropped + one.send_errors.total(), 0);
            }
        }
    }
}

/// Nothing is joined to more than is wanted, which small super-frames of 16 KB exceed at once.
#[test]
fn refuses_to_join_what_leaves_together_where_that_is_not_wanted() {
    let Some(bed) = Testbed::create() else { return };
    bed.make_super_frames_small();
    let decide = |_: &Frame<'_>, outbox: &mut Outbox| {
        std::thread::sleep(Duration::from_micros(200));
        outbox.limit_coalescing(1);
        Action::Forward
    };
    let run = || exchange(&bed, "10.77.0.2:5004", 8 * MEGABYTE);
    let ((), counters, _) = bed.bridged(&bed.config(), decide, run);
    for port in [counters.left, counters.right] {
        assert!(port.sent_frames > 100 && port.coalesced_frames == 0, "{counters:?}");
    }
}

/// Whoever keeps the memory of frames sees them as they were, whatever is received since.
#[test]
fn accepts_keeping_frames_without_copying_them() {
    const KEPT: usize = 100;
    let Some(bed) = Testbed::create() else { return };
    let mut kept: VecDeque<(Arc<[u8]>, usize, Vec<u8>)> = VecDeque::new();
    let (mut checked, mut addresses) = (0, HashSet::new());
    let decide = |frame: &Frame<'_>, _: &mut Outbox| {
        let memory = frame.memory.expect("sockets receive into memory that can be kept");
        let start = frame.bytes.as_ptr().addr() - memory.as_ptr().addr();
        addresses.insert(memory.as_ptr().addr());
        kept.push_back((memory.clone(), start, frame.bytes.to_vec()));
        if kept.len() > KEPT
            && let Some((memory, start, copy)) = kept.pop_front()
        {
            assert!(memory[start..start + copy.len()] == copy, "a frame that is kept has changed");
            checked += 1;
        }
        Action::Forward
    };
    bed.bridged(&bed.config(), decide, || exchange(&bed, "10.77.0.2:5001", 32 * MEGABYTE));
    assert!(checked > 1000, "{checked} frames");
    assert!(addresses.len() < 3 * KEPT, "{} buffers for {KEPT}", addresses.len());
}

/// A bridge from the untagged `outer` to the tagged `inner` side: what a kernel with VLAN interfaces would do.
fn tag<'a>(tags: &'a [u8]) -> impl FnMut(&Frame<'_>, &mut Outbox) -> Action + Send + 'a {
    move |frame, outbox| {
        let shift = tags.len() as u16;
        let mut vnet = frame.vnet;
        let bytes = match frame.ingress {
            Port::Left => {
                vnet.checksum_start += if frame.checksum_partial() { shift } else { 0 };
                vnet.header_len += if frame.gso_size().is_some() { shift } else { 0 };
                [&frame.bytes[..12], tags, &frame.bytes[12..]].concat()
            }
            Port::Right if frame.bytes[12..].starts_with(tags) => {
                vnet.checksum_start -= if frame.checksum_partial() { shift } else { 0 };
                vnet.header_len -= if frame.gso_size().is_some() { shift } else { 0 };
                [&frame.bytes[..12], &frame.bytes[12 + tags.len()..]].concat()
            }
            Port::Right => return Action::Drop,
        };
        outbox.send_held(HeldFrame::new(frame.ingress.other(), vnet, &bytes));
        Action::Taken
    }
}

/// TCP between tagging bridges: the middle must show and pass frames with these tags in place.
fn exchange_tagged(tags: &[u8], segmented: bool) {
    let Some(bed) = Testbed::create_with_taggers() else { return };
    // So that some are joined, tags and all.
    bed.make_super_frames_small();
    // Room for the second tag, which the kernel does not give away.
    for (namespace, links) in [
        (&bed.middle, ["ml", "mr"]),
        (&bed.taggers[0], ["inner", "outer"]),
        (&bed.taggers[1], ["inner", "outer"]),
    ] {
        for link in links {
            ip(&format!("-n {namespace} link set {link} mtu 1508"));
        }
    }
    if segmented {
        // Now the kernel itself has to cut the super-frames and finish the checksums, guided by the offload header.
        if !bed.switch_offloads_off() {
            return;
        }
    }
    let mut tagged = 0;
    let mut partial = 0;
    let decide = |frame: &Frame<'_>, _: &mut Outbox| {
        assert_eq!(&frame.bytes[12..12 + tags.len()], tags);
        tagged += 1;
        let (ethertype, rest) = frame.bytes[12 + tags.len()..].split_at(2);
        if ethertype == [0x08, 0x00] && frame.checksum_partial() {
            partial += 1;
            let start = usize::from(frame.vnet.checksum_start);
            assert_eq!(start, 14 + tags.len() + 20, "start of the TCP header");
            if frame.gso_size().is_some() {
                let tcp_header = usize::from(rest[20 + 12] >> 4) * 4;
                assert!(usize::from(frame.vnet.header_len) >= start + tcp_header);
            }
        }
        Action::Forward
    };
    let config = BridgeConfig::new("outer", "inner");
    let total = if segmented { 4 } else { 16 } * MEGABYTE;
    let run = || exchange(&bed, "10.77.0.2:5002", total);
    let run = || bed.bridged_in(&bed.taggers[1], &config, tag(tags), run);
    let run = || bed.bridged_in(&bed.taggers[0], &config, tag(tags), run);
    let ((((), behind, _), _, _), counters, _) = bed.bridged(&bed.config(), decide, run);
    // Proof that segmentation took place, or did not.
    assert_eq!(behind.right.received_super_frames > 0, !segmented, "{behind:?}");
    for port in [counters.left, counters.right] {
        assert_eq!(port.received_vlan_frames, port.received_frames, "{counters:?}");
        assert!(port.coalesced_frames > 0, "{counters:?}");
        assert!(port.received_super_frames > 10, "{counters:?}");
        assert!(port.received_bytes > total, "{counters:?}");
        assert_eq!(port.send_errors.total() + port.truncated, 0, "{counters:?}");
    }
    assert!(tagged > 100 && partial > 100, "{tagged} tagged, {partial} with unfinished checksums");
}

#[test]
fn accepts_vlan_tag_put_back_on_super_frames() {
    exchange_tagged(&[0x81, 0x00, 0x20, 0x05], false);
}

#[test]
fn accepts_two_vlan_tags_on_super_frames() {
    exchange_tagged(&[0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x00, 0x05], false);
}

#[test]
fn accepts_vlan_tags_when_the_kernel_must_segment() {
    exchange_tagged(&[0x81, 0x00, 0x20, 0x05], true);
    exchange_tagged(&[0x88, 0xa8, 0x00, 0x64, 0x81, 0x00, 0x00, 0x05], true);
}

/// The same with the kernel's own VLAN interfaces at the ends, where it has them.
#[test]
fn accepts_frames_of_vlan_interfaces() {
    let Some(bed) = Testbed::create() else { return };
    for (namespace, link, host) in [(&bed.client, "lc", 1), (&bed.server, "ls", 2)] {
        if let Err(error) = try_ip(&format!("-n {namespace} link add v link {link} type vlan id 5"))
        {
            eprintln!("SKIP: no VLAN interfaces here: {error}");
            return;
        }
        ip(&format!("-n {namespace} addr add 10.78.0.{host}/24 dev v"));
        ip(&format!("-n {namespace} link set v up"));
    }
    let run = || exchange(&bed, "10.78.0.2:5002", 16 * MEGABYTE);
    let ((), counters, _) = bed.bridged(&bed.config(), |_, _| Action::Forward, run);
    for port in [counters.left, counters.right] {
        assert!(port.received_vlan_frames > 100, "{counters:?}");
        assert!(port.received_super_frames > 10, "{counters:?}");
        assert_eq!(port.send_errors.total() + port.truncated, 0, "{counters:?}");
    }
}

/// Sends datagrams of one byte and returns what arrived within a second of silence.
fn datagrams(bed: &Testbed, values: impl Iterator<Item = u8> + Send) -> Vec<u8> {
    let (client, server) = datagram_sockets(bed);
    in_namespace(&bed.client, || {
        stay_on_one_cpu();
        for value in values {
            client.send(&[value]).expect("send");
        }
    });
    arrived(&server)
}

/// What the server gets until a second of silence.
fn arrived(server: &UdpSocket) -> Vec<u8> {
    let mut arrived = Vec::new();
    let mut byte = [0];
    while server.recv(&mut byte).is_ok() {
        arrived.push(byte[0]);
    }
    arrived
}

/// The client's, and the server's.
fn datagram_sockets(bed: &Testbed) -> (UdpSocket, UdpSocket) {
    let server = in_namespace(&bed.server, || UdpSocket::bind("10.77.0.2:5003")).expect("bind");
    server.set_read_timeout(Some(Duration::from_secs(1))).expect("timeout");
    let client = in_namespace(&bed.client, || UdpSocket::bind("10.77.0.1:0")).expect("bind");
    client.connect("10.77.0.2:5003").expect("connect");
    // Datagrams that wait for ARP are sent by whoever gets the answer, and others overtake them.
    let address = "02:00:00:00:00:02";
    ip(&format!("-n {} link set ls address {address}", bed.server));
    ip(&format!("-n {} neigh replace 10.77.0.2 lladdr {address} dev lc", bed.client));
    (client, server)
}

/// Place of the payload of an IPv4 UDP frame without options.
const UDP_PAYLOAD: usize = 14 + 20 + 8;

fn udp_value(bytes: &[u8]) -> Option<u8> {
    let udp = bytes.get(12..14) == Some(&[0x08, 0x00]) && bytes.get(23) == Some(&17);
    bytes.get(UDP_PAYLOAD).copied().filter(|_| udp)
}

#[test]
fn accepts_holding_releasing_and_injecting_in_order() {
    let Some(bed) = Testbed::create() else { return };
    let mut held = Vec::new();
    let decide = |frame: &Frame<'_>, outbox: &mut Outbox| {
        match udp_value(frame.bytes) {
            Some(13) => Action::Drop,
            Some(value) if value % 10 != 0 => {
                held.push(frame.hold());
                Action::Taken
            }
            Some(20) => {
                held.drain(..).for_each(|frame| outbox.send_held(frame));
                // The same datagram with another value; a UDP checksum of zero means none.
                let mut other = frame.bytes.to_vec();
                other[UDP_PAYLOAD] = 99;
                other[UDP_PAYLOAD - 2..UDP_PAYLOAD].fill(0);
                outbox.inject(Port::Right, &other).expect("inject");
                assert!(matches!(
                    outbox.inject(Port::Right, &[0; 13]),
                    Err(Error::InvalidFrame { length: 13 })
                ));
                Action::Forward
            }
            Some(_) => {
                held.drain(..).for_each(|frame| outbox.send_held(frame));
                Action::Forward
            }
            None => Action::Forward,
        }
    };
    let (arrived, counters, _) = bed.bridged(&bed.config(), decide, || datagrams(&bed, 1..=30));
    let mut expected: Vec<u8> = (1..=30).filter(|value| *value != 13).collect();
    expected.insert(18, 99);
    assert_eq!(arrived, expected, "{counters:?}");
}

#[test]
fn accepts_release_between_batches() {
    let Some(bed) = Testbed::create() else { return };
    // A bridge that is driven by hand, in this thread's stead.
    let arrived = in_namespace(&bed.middle, || {
        let mut bridge = Bridge::open(&bed.config()).expect("bridge");
        std::thread::scope(|scope| {
            let arrived = scope.spawn(|| datagrams(&bed, 1..=4));
            let mut held = Vec::new();
            let mut frames = 0;
            while !arrived.is_finished() {
                for port in Port::BOTH {
                    let decide = |frame: &Frame<'_>| match udp_value(frame.bytes) {
                        Some(_) => {
                            frames += 1;
                            held.push(frame.hold());
                            Action::Taken
                        }
                        None => Action::Forward,
                    };
                    bridge.receive(port, decide).expect("receive");
                }
                if frames == 4 {
                    held.drain(..).rev().for_each(|frame| bridge.send_held(frame));
                }
                bridge.wait(Some(Duration::from_millis(20)), None).expect("wait");
            }
            arrived.join().expect("datagrams")
        })
    });
    assert_eq!(arrived, [4, 3, 2, 1]);
}

#[test]
fn refuses_frames_above_the_egress_mtu_and_counts_them() {
    let Some(bed) = Testbed::create() else { return };
    ip(&format!("-n {} link set lc mtu 9000", bed.client));
    ip(&format!("-n {} link set ml mtu 9000", bed.middle));
    let run = || {
        let client = in_namespace(&bed.client, || UdpSocket::bind("10.77.0.1:0")).expect("bind");
        client.send_to(&[0; 5000], "10.77.0.2:9").expect("send");
        std::thread::sleep(Duration::from_millis(200));
    };
    let ((), counters, warnings) = bed.bridged(&bed.config(), |_, _| Action::Forward, run);
    assert_eq!(counters.right.send_errors.too_long, 1, "{counters:?}");
    assert_eq!(counters.right.send_errors.total(), 1, "{counters:?}");
    assert!(warnings.contains(&Warning::MtuDiffers { left: 9000, right: 1500 }), "{warnings:?}");
}

#[test]
fn refuses_interfaces_that_cannot_be_bridged() {
    let Some(bed) = Testbed::create() else { return };
    ip(&format!("-n {} addr add 10.99.0.1/24 dev mr", bed.middle));
    ip(&format!("-n {} link add sleeping type veth peer name other", bed.middle));
    let open = |left: &str, right: &str| {
        let config = BridgeConfig::new(left, right);
        in_namespace(&bed.middle, || Bridge::open(&config).map(|b| b.warnings().to_vec()))
    };
    assert!(
        matches!(open("ml", "nosuch"), Err(Error::NoSuchInterface { interface }) if interface == "nosuch")
    );
    assert!(matches!(open("ml", "ml"), Err(Error::SameInterface { .. })));
    assert!(matches!(open("lo", "ml"), Err(Error::NotEthernet { hardware: 772, .. })));
    assert!(
        matches!(open("ml", "sleeping"), Err(Error::InterfaceDown { interface }) if interface == "sleeping")
    );
    let config = BridgeConfig { batch: 0, ..BridgeConfig::new("ml", "mr") };
    assert!(matches!(Bridge::open(&config), Err(Error::InvalidConfig { .. })));
    let warnings = open("ml", "mr").expect("bridge");
    let address = "10.99.0.1".parse().expect("address");
    assert!(
        warnings.contains(&Warning::HasAddress { interface: "mr".into(), address }),
        "{warnings:?}"
    );
}

#[test]
fn refuses_to_go_on_when_an_interface_goes() {
    let Some(bed) = Testbed::create() else { return };
    in_namespace(&bed.middle, || {
        let mut bridge = Bridge::open(&bed.config()).expect("bridge");
        let mut drain = || loop {
            match bridge.receive(Port::Left, |_| Action::Forward) {
                Ok(0) => break None,
                Ok(_) => {}
                Err(error) => break Some(error),
            }
        };
        assert!(drain().is_none());
        ip(&format!("-n {} link set ml down", bed.middle));
        let error = drain();
        assert!(
            matches!(&error, Some(Error::InterfaceDown { interface }) if interface == "ml"),
            "{error:?}"
        );
        assert!(drain().is_none(), "told once");
        ip(&format!("-n {} link set ml up", bed.middle));
        let mut frame = vec![0xff; 12];
        frame.resize(60, 0);
        bridge.inject(Port::Left, &frame).expect("inject");
        bridge.flush().expect("flush");
        assert_eq!(bridge.counters().left.sent_frames, 1, "works again");
        ip(&format!("-n {} link del ml", bed.middle));
        let error = bridge.receive(Port::Left, |_| Action::Forward);
        assert!(matches!(&error, Err(Error::InterfaceGone { port: Port::Left, .. })), "{error:?}");
        bridge.inject(Port::Left, &frame).expect("inject");
        let error = bridge.flush();
        assert!(matches!(&error, Err(Error::InterfaceGone { port: Port::Left, .. })), "{error:?}");
        assert_eq!(bridge.counters().left.send_errors.interface_down, 1);
    });
}

/// Every frame would be forwarded twice.
#[test]
fn refuses_a_second_bridge_on_an_interface() {
    let Some(bed) = Testbed::create() else { return };
    in_namespace(&bed.middle, || {
        let first = Bridge::open(&bed.config()).expect("bridge");
        ip(&format!("-n {} link add spare type veth peer name other", bed.middle));
        ip(&format!("-n {} link set spare up", bed.middle));
        for config in [bed.config(), BridgeConfig::new("spare", "mr")] {
            let refused = |error: &Error| matches!(error, Error::Bridged { .. });
            let error = Bridge::open(&config).err();
            assert!(error.as_ref().is_some_and(refused), "{error:?}");
            let errors = af_packet::check(&config).errors;
            assert!(matches!(&errors[..], [error] if refused(error)), "{errors:?}");
            let next = BridgeConfig { takes_over: true, ..config };
            assert!(af_packet::check(&next).errors.is_empty());
        }
        let watching = BridgeConfig { passive: true, ..bed.config() };
        Bridge::open(&watching).expect("whoever only looks on");
        drop(first);

        // Nor does whoever looks on keep one from starting.
        let _watching = Bridge::open(&watching).expect("whoever only looks on");
        Bridge::open(&bed.config()).expect("bridge");
    });
}

/// As with a cable that is pulled: the socket goes on to take frames, and says nothing.
#[test]
fn tells_of_a_port_without_a_carrier() {
    let Some(bed) = Testbed::create() else { return };
    in_namespace(&bed.middle, || {
        let mut bridge = Bridge::open(&bed.config()).expect("bridge");
        let mut wait_for = |what: &str, is_so: fn(&Result<(), Error>) -> bool| {
            let end = Instant::now() + Duration::from_secs(20);
            // The kernel takes up to a second to note it.
            while !is_so(&bridge.check_link(Port::Left)) {
                assert!(Instant::now() < end, "{what}: {:?}", bridge.check_link(Port::Left));
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(bridge.check_link(Port::Right).is_ok(), "{what}");
            assert!(bridge.check().is_ok(), "{what}");
            bridge.inject(Port::Left, &[0xff; 60]).expect("inject");
            let _ = bridge.flush();
        };
        wait_for("at first", Result::is_ok);
        ip(&format!("-n {} link set lc down", bed.client));
        wait_for(
            "pulled",
            |it| matches!(it, Err(Error::NoCarrier { interface }) if interface == "ml"),
        );
        ip(&format!("-n {} link set ml down", bed.middle));
        wait_for("down", |it| matches!(it, Err(Error::InterfaceDown { .. })));
        ip(&format!("-n {} link set ml up", bed.middle));
        ip(&format!("-n {} link set lc up", bed.client));
        wait_for("plugged in again", Result::is_ok);
        assert_eq!(bridge.counters().left.send_errors.interface_down, 1, "only while it is down");
    });
}

/// Whatever its caller wants sent.
#[test]
fn refuses_to_send_anything_when_passive() {
    let Some(bed) = Testbed::create() else { return };
    for right in [Some("mr".to_owned()), None] {
        let config = BridgeConfig { passive: true, right, ..bed.config() };
        let mut seen = Vec::new();
        let decide = |frame: &Frame<'_>, outbox: &mut Outbox| {
            if let Some(value) = udp_value(frame.bytes) {
                seen.push(value);
                outbox.inject(Port::Right, frame.bytes).expect("a whole frame");
                outbox.send_held(frame.hold());
            }
            Action::Forward
        };
        let (arrived, counters, warnings) =
            bed.bridged(&config, decide, || datagrams(&bed, 0..100));
        assert_eq!(arrived, [], "{counters:?}");
        assert_eq!(seen, Vec::from_iter(0..100), "{counters:?}");
        assert_eq!(counters.left.sent_frames + counters.right.sent_frames, 0, "{counters:?}");
        assert!(warnings.len() <= 1, "{warnings:?}");
    }
}

/// Both interfaces by one socket, which does not hear of one that goes down.
#[test]
fn accepts_what_a_bridge_forwards_and_tells_of_links_when_passive() {
    let Some(bed) = Testbed::create() else { return };
    for command in [
        "link add name br0 type bridge stp_state 0 forward_delay 0",
        "link set ml master br0",
        "link set mr master br0",
        "link set br0 up",
    ] {
        ip(&format!("-n {} {command}", bed.middle));
    }
    let config = BridgeConfig { passive: true, ..bed.config() };
    let (mut seen, mut frames) = (Vec::new(), 0u64);
    let decide = |frame: &Frame<'_>, _: &mut Outbox| {
        frames += 1;
        seen.extend(udp_value(frame.bytes));
        Action::Drop
    };
    let (arrived, counters, _) = bed.bridged(&config, decide, || datagrams(&bed, 0..100));
    assert_eq!(arrived, Vec::from_iter(0..100), "forwarded by the kernel");
    assert_eq!(seen, arrived, "once, in order");
    assert_eq!(counters.left.received_frames, frames);
    in_namespace(&bed.middle, || {
        let bridge = Bridge::open(&config).expect("bridge");
        assert!(bridge.check().is_ok());
        ip(&format!("-n {} link set mr down", bed.middle));
        let error = bridge.check();
        assert!(matches!(&error, Err(Error::InterfaceDown { interface }) if interface == "mr"));
        ip(&format!("-n {} link set mr up", bed.middle));
        assert!(bridge.check().is_ok());
        ip(&format!("-n {} link del mr", bed.middle));
        assert!(matches!(bridge.check(), Err(Error::InterfaceGone { port: Port::Right, .. })));
    });
}

#[test]
fn accepts_the_forward_example_as_a_process() {
    let example = std::env::current_exe().ok().and_then(|path| {
        Some(path.parent()?.parent()?.join("examples/forward")).filter(|path| path.exists())
    });
    let Some(example) = example else {
        eprintln!("SKIP: the example was not built (cargo test without --test builds it)");
        return;
    };
    let Some(bed) = Testbed::create() else { return };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &bed.middle]).arg(&example);
    command.args(["ml", "mr", "--seconds", "4"]).stdout(Stdio::piped());
    let process = command.spawn().expect("example");
    std::thread::sleep(Duration::from_millis(500));
    exchange(&bed, "10.77.0.2:5004", 16 * MEGABYTE);
    // It ends by itself, also when the exchange failed.
    let output = process.wait_with_output().expect("output");
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("cpu_s_per_gb="), "{text}");
}

/// A frame that was to leave when a panic came is in a slot that what is discarded is received into.
#[test]
fn a_frame_that_a_panic_left_behind_leaves_as_it_came_though_the_lease_is_lost() {
    const LEASE: Duration = Duration::from_secs(1);
    const DISCARDED: u8 = 200;
    let Some(bed) = Testbed::create() else { return };
    let guarded = in_namespace(&bed.middle, || guard::install(["ml", "mr"], LEASE, None));
    if let Err(error) = guarded {
        eprintln!("SKIP: {error}");
        return;
    }
    let (client, server) = datagram_sockets(&bed);
    let send = |value: u8, count: usize| {
        for _ in 0..count {
            client.send(&[value]).expect("send");
        }
    };
    let (value, arrived) = in_namespace(&bed.middle, || {
        stay_on_one_cpu();
        let config = BridgeConfig { fails_open: true, coalesce: false, ..bed.config() };
        let mut bridge = Bridge::open(&config).expect("bridge");
        let end = Instant::now() + Duration::from_secs(30);
        let mut value = 0;
        // Until the lease is held from before the frames come until they are decided about.
        loop {
            assert!(Instant::now() < end);
            while bridge.renew().expect("renew") != Lease::Held {}
            value += 1;
            send(value, 2);
            std::thread::sleep(Duration::from_millis(50));
            let mut frames = 0;
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                bridge.receive_with(Port::Left, |frame, _| {
                    frames += usize::from(udp_value(frame.bytes) == Some(value));
                    assert!(frames < 2, "a fault of the monitor");
                    Action::Forward
                })
            }));
            if panicked.is_err() {
                break;
            }
        }
        std::thread::sleep(LEASE + Duration::from_millis(100));
        send(DISCARDED, 64);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(bridge.renew().expect("renew"), Lease::Lost);
        while bridge.renew().expect("renew") != Lease::Held {
            assert!(Instant::now() < end);
        }
        bridge.flush().expect("flush");
        assert!(bridge.counters().left.guard_discarded_frames >= 64);
        (value, arrived(&server))
    });
    in_namespace(&bed.middle, || guard::remove(["ml", "mr"], true)).expect("removed");
    let count = |of: u8| arrived.iter().filter(|it| **it == of).count();
    assert_eq!((count(value), count(DISCARDED)), (1, 64), "{arrived:?}");
}

/// An Ethernet frame of the connection below, towards the server, with this payload.
fn client_segment(sequence: u32, acknowledgment: u32, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(40 + payload.len()).expect("a packet");
    let mut frame = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]].concat();
    frame.extend([8, 0, 0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    frame.extend([1000_u16, 443].map(u16::to_be_bytes).concat());
    frame.extend([sequence, acknowledgment].map(u32::to_be_bytes).concat());
    // Header of five words, ACK; window, checksum, urgent pointer.
    frame.extend([0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

/// Of either side, and of the other one acknowledgments; but nothing that could begin another connection by a SYN cookie.
#[test]
fn accepts_that_the_kernel_forwards_records() {
    const INITIAL: [u32; 2] = [u32::MAX - 20, 7];
    const POSITIONS: [u64; 2] = [50, 9000];
    let ends = ["10.77.0.1:1000", "10.77.0.2:443"].map(|it| it.parse().expect("valid"));
    for records_of in 0..2 {
        let Some(bed) = Testbed::create() else { return };
        let side = |at: usize| {
            let next = POSITIONS[at];
            let records = Extent::Records(Records { next, content: u64::MAX, overhead: 17 });
            OffloadSide {
                ingress: Port::BOTH[at],
                source: ends[at],
                destination: ends[1 - at],
                initial: INITIAL[at],
                peer_initial: INITIAL[1 - at],
                position: POSITIONS[at],
                extent: if at == records_of { records } else { Extent::Acknowledgments },
            }
        };
        let flow = OffloadFlow { sides: [side(0), side(1)] };
        let mut bridge = in_namespace(&bed.middle, || {
            let config = BridgeConfig { offload: Offloading::Always, ..bed.config() };
            Bridge::open(&config).expect("bridge")
        });
        if !bridge.outbox().offloads() {
            eprintln!("SKIP: the kernel forwards nothing here: {:?}", bridge.warnings());
            return;
        }
        let mut client = in_namespace(&bed.client, || Sender::open("lc").expect("sender"));
        // Whether a segment of the client was shown; else the kernel has forwarded it.
        let mut is_shown = |bridge: &mut Bridge, at: u32, acknowledged: u32, payload: &[u8]| {
            let before = bridge.counters().left.offloaded_frames;
            let [sequence, acknowledgment] =
                [INITIAL[0].wrapping_add(at), INITIAL[1].wrapping_add(acknowledged)];
            let frame = client_segment(sequence, acknowledgment, payload);
            client.push(&frame);
            client.flush().expect("sent");
            let end = Instant::now() + Duration::from_secs(5);
            loop {
                let mut shown = false;
                let look = |it: &Frame<'_>| {
                    shown |= it.bytes.get(34..46) == frame.get(34..46);
                    Action::Drop
                };
                bridge.receive(Port::Left, look).expect("receive");
                let elsewhere = bridge.counters().left.offloaded_frames - before;
                if shown || elsewhere > 0 {
                    assert!(!(shown && elsewhere > 0), "both ways");
                    return shown;
                }
                assert!(Instant::now() < end, "lost");
            }
        };
        assert!(is_shown(&mut bridge, 50, 5000, b""), "it is not the kernel's yet");
        assert!(bridge.outbox().offload(&flow));
        bridge.flush().expect("flush");
        for port in Port::BOTH {
            while bridge.receive(port, |_| Action::Drop).expect("receive") > 0 {}
        }
        assert!(!is_shown(&mut bridge, 50, 5000, b""));
        for beside in 47..=53 {
            assert!(is_shown(&mut bridge, 50, beside, b""), "{beside}");
        }
        assert!(!is_shown(&mut bridge, 50, 46, b"") && !is_shown(&mut bridge, 50, 54, b""));
        assert!(is_shown(&mut bridge, 0, 0, b""), "the beginning itself");
        let record = [&[23, 3, 3, 4, 0][..], &[0; 1024]].concat();
        let behind = 50 + record.len() as u32;
        let mut taken = 3;
        for (at, beside) in [(50, 0), (50, 5000), (behind, 3), (behind, 4)] {
            let passes = records_of == 0 && beside > 3;
            assert_eq!(is_shown(&mut bridge, at, at + beside, &record), !passes, "{at} {beside}");
            taken += u64::from(passes);
        }
        let [of_client, of_server] = bridge.outbox().take_back(&flow);
        assert_eq!((of_client.frames, of_server.frames), (taken, 0));
        match records_of {
            0 => assert_eq!((of_client.position, of_client.records.count), (50 + 2 * 1029, 2)),
            _ => assert_eq!(of_client.acknowledgment, Some(INITIAL[1] + 5000)),
        }
    }
}
