//! A capture as TCP segments, in its order.
//!
//! Refuses nothing: what is not TCP is counted, so that tests about it can be told apart.

use core::net::{IpAddr, SocketAddr};
use std::path::Path;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use mmtls_packet_io::capture::{CaptureReader, Item, Link};

/// A segment of TCP.
pub(super) struct Segment {
    pub(super) at_ns: u64,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) sequence: u32,
    /// Which byte it acknowledges, if any.
    pub(super) acknowledged: Option<u32>,
    pub(super) syn: bool,
    pub(super) fin: bool,
    pub(super) rst: bool,
    pub(super) payload: Box<[u8]>,
    /// Its checksum is right.
    pub(super) is_sound: bool,
}

/// What a capture holds.
#[derive(Default)]
pub(super) struct Capture {
    pub(super) segments: Vec<Segment>,
    /// Packets of IP that are neither TCP nor fragments.
    pub(super) others: usize,
    /// Fragments of IP, which are not put together.
    pub(super) fragments: usize,
    /// What could not be read, or is not IP.
    pub(super) unread: u64,
}

/// Reads a capture.
pub(super) fn read(path: &Path) -> Result<Capture, String> {
    let mut reader = CaptureReader::open(path).map_err(|error| error.to_string())?;
    let mut capture = Capture::default();
    loop {
        match reader.next() {
            Ok(Some(Item::Packet { timestamp_ns, link, bytes, .. })) => {
                capture.packet(timestamp_ns, link, bytes);
            }
            Ok(Some(Item::Secrets { .. })) => {}
            Ok(None) => break,
            // What came before the damage counts, as for Suricata.
            Err(_) if !capture.segments.is_empty() => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    let counters = reader.counters();
    capture.unread += counters.not_ip + counters.unsupported_link;
    Ok(capture)
}

impl Capture {
    fn packet(&mut self, at_ns: u64, link: Link, bytes: &[u8]) {
        let sliced = match link {
            Link::Ethernet => SlicedPacket::from_ethernet(bytes),
            Link::Ip => SlicedPacket::from_ip(bytes),
        };
        let Ok(packet) = sliced else {
            self.unread += 1;
            return;
        };
        let Some((from, to)) = packet.net.as_ref().and_then(addresses) else {
            self.unread += 1;
            return;
        };
        if packet.is_ip_payload_fragmented() {
            self.fragments += 1;
            return;
        }
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
            self.others += 1;
            return;
        };
        self.segments.push(Segment {
            at_ns,
            from: SocketAddr::new(from, tcp.source_port()),
            to: SocketAddr::new(to, tcp.destination_port()),
            sequence: tcp.sequence_number(),
            acknowledged: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            payload: tcp.payload().into(),
            is_sound: is_sound(from, to, tcp.slice()),
        });
    }
}

fn addresses(net: &NetSlice<'_>) -> Option<(IpAddr, IpAddr)> {
    match net {
        NetSlice::Ipv4(it) => {
            let header = it.header();
            Some((header.source_addr().into(), header.destination_addr().into()))
        }
        NetSlice::Ipv6(it) => {
            let header = it.header();
            Some((header.source_addr().into(), header.destination_addr().into()))
        }
        NetSlice::Arp(_) => None,
    }
}

/// Whether the checksum of a segment is right (RFC 9293, section 3.1).
fn is_sound(from: IpAddr, to: IpAddr, segment: &[u8]) -> bool {
    const TCP: u8 = 6;
    let mut sum = u64::from(TCP) + segment.len() as u64;
    let mut add = |bytes: &[u8]| {
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    };
    for address in [from, to] {
        match address {
            IpAddr::V4(it) => add(&it.octets()),
            IpAddr::V6(it) => add(&it.octets()),
        }
    }
    add(segment);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    fn packet(payload: &[u8]) -> Vec<u8> {
        let builder = PacketBuilder::ipv4([10, 0, 0, 1], [192, 0, 2, 7], 64)
            .tcp(40000, 80, 1000, 4096)
            .ack(5);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, payload).unwrap();
        bytes
    }

    #[test]
    fn accepts_segments_with_their_checksum() {
        let mut capture = Capture::default();
        let mut bytes = packet(b"abc");
        capture.packet(1, Link::Ip, &bytes);
        *bytes.last_mut().unwrap() ^= 1;
        capture.packet(2, Link::Ip, &bytes);
        let seen = |at: usize| {
            let it: &Segment = &capture.segments[at];
            (it.sequence, it.acknowledged, &it.payload[..], it.is_sound)
        };
        assert_eq!(seen(0), (1000, Some(5), &b"abc"[..], true));
        assert_eq!(seen(1), (1000, Some(5), &b"abb"[..], false));
        assert_eq!(capture.segments[0].to, "192.0.2.7:80".parse().unwrap());
    }

    #[test]
    fn refuses_to_lose_count_of_the_rest() {
        let mut capture = Capture::default();
        let mut udp = Vec::new();
        let builder = PacketBuilder::ipv4([10, 0, 0, 1], [192, 0, 2, 7], 64).udp(1, 2);
        builder.write(&mut udp, b"x").unwrap();
        capture.packet(0, Link::Ip, &udp);
        capture.packet(0, Link::Ip, &udp[..12]);
        assert_eq!((capture.segments.len(), capture.others, capture.unread), (0, 1, 1));
    }
}
