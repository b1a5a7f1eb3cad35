//! IP that stands in something else meets its policy.

use crate::harness::attack::*;
use mmtls_engine::*;
use mmtls_testkit::segments::flag;

/// The client's SYN as it is, and in everything that may carry it.
fn carriers(syn: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let (link, ip) = syn.split_at(14);
    let ethernet = |kind: [u8; 2], parts: &[&[u8]]| [&link[..12], &kind, &parts.concat()].concat();
    let ipv4 = |protocol: u8, parts: &[&[u8]]| {
        let rest = parts.concat();
        let len = (20 + rest.len() as u16).to_be_bytes();
        let head =
            [0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 9, 0, 2, 10, 9, 0, 3];
        ethernet([8, 0], &[&head, &rest])
    };
    let ipv6 = |protocol: u8, parts: &[&[u8]]| {
        let rest = parts.concat();
        let len = (rest.len() as u16).to_be_bytes();
        let head = [0x60, 0, 0, 0, len[0], len[1], protocol, 64];
        ethernet([0x86, 0xdd], &[&head, &[1; 32], &rest])
    };
    let udp = |port: u16| {
        let len = (8 + ip.len() as u16).to_be_bytes();
        [&[0x30, 0x39][..], &port.to_be_bytes(), &len, &[0, 0], ip].concat()
    };
    let mut fragment = ipv4(47, &[&[0, 0, 8, 0], ip]);
    fragment[14 + 6] = 0x20;
    let snap_len = (8 + ip.len() as u16).to_be_bytes();
    vec![
        ("LLC/SNAP", ethernet(snap_len, &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], ip])),
        ("tag and LLC", ethernet([0x81, 0], &[&[0, 5, 0, 60, 0xaa, 0xaa, 3, 0, 0, 0, 8, 0], ip])),
        ("PPPoE", ethernet([0x88, 0x64], &[&[0x11, 0, 0, 1, 0, 42, 0, 0x21], ip])),
        ("MPLS", ethernet([0x88, 0x47], &[&[0, 1, 1, 64], ip])),
        ("IP in IP", ipv4(4, &[ip])),
        ("6in4", ipv4(41, &[ip])),
        ("GRE", ipv4(47, &[&[0, 0, 8, 0], ip])),
        ("GRE in fragments", fragment),
        ("GRE over IPv6", ipv6(47, &[&[0, 0, 8, 0], ip])),
        ("behind options", ipv6(60, &[&[4, 0, 1, 4, 0, 0, 0, 0], ip])),
        ("VXLAN", ipv4(17, &[&udp(4789)])),
        ("Geneve over IPv6", ipv6(17, &[&udp(6081)])),
    ]
}

#[test]
fn what_carries_ip_must_meet_its_policy() {
    for (missing_keys, verdict) in [
        (Policy::Forward, Verdict::Forward),
        (Policy::Bypass, Verdict::Forward),
        (Policy::Drop, Verdict::Drop),
        (Policy::Reset, Verdict::Drop),
    ] {
        let mut config = Config::new(missing_keys);
        config.verify_checksums = false;
        let mut t = T::with(config);
        let syn = t.ep.frame(C, -1, 0, flag::SYN, &[]);
        let all = carriers(&syn);
        for (number, (name, frame)) in all.iter().enumerate() {
            assert_eq!(t.raw(0, frame), verdict, "{name}, {missing_keys:?}");
            assert_eq!(t.engine.counters().encapsulated, number as u64 + 1, "{name}");
        }
        assert_eq!(t.engine.flow_count(), 0);
        // What sets up a session, and what bridges say to each other.
        let link = &syn[..12];
        let lcp = [link, &[0x88, 0x64, 0x11, 0, 0, 1, 0, 6, 0xc0, 0x21, 1, 1]].concat();
        let bpdu = [link, &[0, 38, 0x42, 0x42, 3, 0, 0, 0]].concat();
        for frame in [lcp, bpdu] {
            assert_eq!(t.raw(0, &frame), Verdict::Forward);
        }
        assert_eq!(t.engine.counters().encapsulated, all.len() as u64);
    }
}
