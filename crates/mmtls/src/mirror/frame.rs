//! Frames of a mirrored conversation: Ethernet with its VLAN tags, IPv4 or IPv6, TCP, with right lengths and checksums.
//!
//! Refuses to fragment: whoever calls keeps payloads within [`Ends::max_payload`].

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder, TcpHeader, TcpOptionElement, VlanId,
};
use mmtls_engine::tls::Direction;

/// Where frames have none: locally administered ones.
const LINK_ADDRESSES: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const HOP_LIMIT: u8 = 64;
/// Each record is acknowledged before the next one: no more is under way than one has.
const WINDOW: u16 = u16::MAX;
const TCP_HEADER: usize = 20;

/// The ends of a conversation, client's first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Ends {
    addresses: [SocketAddr; 2],
    link: [[u8; 6]; 2],
    vlans: [u16; 2],
}

/// What a segment does beside carrying bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Syn,
    SynAck,
    Ack,
    /// With the last bytes of a record.
    Push,
    Fin,
    Reset,
}

/// A TCP segment.
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    pub(super) from: Direction,
    pub(super) kind: Kind,
    pub(super) sequence: u32,
    pub(super) acknowledgment: u32,
    pub(super) payload: &'a [u8],
}

impl Ends {
    pub(super) fn new(addresses: [SocketAddr; 2], link: [[u8; 6]; 2], vlans: [u16; 2]) -> Self {
        let link = if link == [[0; 6]; 2] { LINK_ADDRESSES } else { link };
        Self { addresses, link, vlans }
    }

    /// What tells conversations apart.
    pub(super) fn without_link(mut self) -> Self {
        self.link = LINK_ADDRESSES;
        self
    }

    /// Most bytes of a segment, so that packets have at most `mtu` bytes.
    pub(super) fn max_payload(&self, mtu: u16) -> usize {
        let ip = if self.addresses[0].is_ipv4() { 20 } else { 40 };
        // The kernel lets one tag pass without counting it, not two.
        let inner_tag = if self.vlans[1] == 0 { 0 } else { 4 };
        usize::from(mtu).saturating_sub(ip + inner_tag + TCP_HEADER).max(1)
    }

    /// Writes a frame in place of what is in `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>, segment: &Segment<'_>, mtu: u16) {
        out.clear();
        let from = segment.from.index();
        let (source, destination) = (self.addresses[from], self.addresses[1 - from]);
        let mut tcp = TcpHeader::new(source.port(), destination.port(), segment.sequence, WINDOW);
        tcp.syn = matches!(segment.kind, Kind::Syn | Kind::SynAck);
        tcp.ack = segment.kind != Kind::Syn;
        tcp.psh = segment.kind == Kind::Push;
        tcp.fin = segment.kind == Kind::Fin;
        tcp.rst = segment.kind == Kind::Reset;
        if tcp.ack {
            tcp.acknowledgment_number = segment.acknowledgment;
        }
        if tcp.syn {
            // Below 65536, as the MTU is.
            let size = TcpOptionElement::MaximumSegmentSize(self.max_payload(mtu) as u16);
            // One option always fits.
            let _ = tcp.set_options(&[size]);
        }
        let ip = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4Header::new(
                    0,
                    HOP_LIMIT,
                    IpNumber::TCP,
                    source.octets(),
                    destination.octets(),
                );
                // Only a length could be refused, and it is set below.
                let Ok(header) = header else { return };
                IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default())
            }
            (source, destination) => {
                let octets = |address| match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                };
                let header = Ipv6Header {
                    hop_limit: HOP_LIMIT,
                    next_header: IpNumber::TCP,
                    source: octets(source),
                    destination: octets(destination),
                    ..Ipv6Header::default()
                };
                IpHeaders::Ipv6(header, etherparse::Ipv6Extensions::default())
            }
        };
        let ethernet = PacketBuilder::ethernet2(self.link[from], self.link[1 - from]);
        let [outer, inner] = self.vlans.map(|id| VlanId::try_new(id & 0xfff).unwrap_or_default());
        let packet = match self.vlans {
            [0, 0] => ethernet.ip(ip),
            [_, 0] => ethernet.single_vlan(outer).ip(ip),
            _ => ethernet.double_vlan(outer, inner).ip(ip),
        };
        // Memory takes everything, and the payload fits a packet.
        let _ = packet.tcp_header(tcp).write(out, segment.payload);
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{SlicedPacket, TransportSlice};

    use super::*;

    fn segment(kind: Kind, payload: &[u8]) -> Segment<'_> {
        Segment {
            from: Direction::ServerToClient,
            kind,
            sequence: 0xffff_fff0,
            acknowledgment: 7,
            payload,
        }
    }

    #[test]
    fn accepts_what_it_wrote_with_right_checksums() {
        let link = [[4; 6], [6; 6]];
        for (client, server) in
            [("192.0.2.1:50000", "198.51.100.2:80"), ("[fd00::1]:1", "[fd00::2]:80")]
        {
            let addresses = [client, server].map(|it| it.parse::<SocketAddr>().unwrap());
            for vlans in [[0, 0], [100, 0], [100, 7]] {
                let ends = Ends::new(addresses, link, vlans);
                let most = ends.max_payload(1500);
                let mut frame = Vec::new();
                for payload in [&b""[..], b"odd", &vec![0xa5; most]] {
                    ends.write(&mut frame, &segment(Kind::Push, payload), 1500);
                    let tags = vlans.iter().filter(|id| **id != 0).count();
                    assert!(frame.len() <= 14 + 4 * tags.min(1) + 1500, "{}", frame.len());
                    let packet = SlicedPacket::from_ethernet(&frame).unwrap();
                    assert_eq!(packet.vlan_ids().len(), tags);
                    let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
                    assert_eq!(tcp.payload(), payload);
                    assert_eq!((tcp.source_port(), tcp.psh(), tcp.fin()), (80, true, false));
                    assert_eq!(
                        (tcp.sequence_number(), tcp.acknowledgment_number()),
                        (0xffff_fff0, 7)
                    );
                    let sum = match packet.net.unwrap() {
                        etherparse::NetSlice::Ipv4(ip) => {
                            let header = ip.header().to_header();
                            assert_eq!(header.header_checksum, header.calc_header_checksum());
                            tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination())
                                .unwrap()
                        }
                        etherparse::NetSlice::Ipv6(ip) => tcp
                            .calc_checksum_ipv6(ip.header().source(), ip.header().destination())
                            .unwrap(),
                        etherparse::NetSlice::Arp(_) => panic!("no IP"),
                    };
                    assert_eq!(tcp.checksum(), sum);
                }
                assert_eq!(frame[..12], [link[0], link[1]].concat());
            }
        }
    }

    #[test]
    fn accepts_frames_without_known_link_addresses() {
        let addresses = ["192.0.2.1:5", "192.0.2.2:80"].map(|it| it.parse().unwrap());
        let ends = Ends::new(addresses, [[0; 6]; 2], [0, 0]);
        let mut frame = Vec::new();
        ends.write(&mut frame, &segment(Kind::SynAck, b""), 1500);
        assert_eq!(frame[..12], [LINK_ADDRESSES[0], LINK_ADDRESSES[1]].concat());
        let packet = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
        let options: Vec<_> = tcp.options_iterator().flatten().collect();
        assert_eq!(options, [TcpOptionElement::MaximumSegmentSize(1460)]);
    }
}
