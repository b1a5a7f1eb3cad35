//! IPv4 (RFC 791) and IPv6 (RFC 8200) down to the TCP segment.
//!
//! Refuses to reassemble fragments: they are named, and the caller's policy decides.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{checksum, tunnel};

const TCP: u8 = 6;
const UDP: u8 = 17;
const UDP_HEADER_LEN: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;
const MOBILITY: u8 = 135;
const HIP: u8 = 139;
const SHIM6: u8 = 140;

/// Most extension headers that are followed. Real traffic has one or two, but receivers take
/// many more, so stopping early would be a way to hide.
const MAX_EXTENSION_HEADERS: usize = 64;

/// A fragment of an IP packet (RFC 791, section 3.2; RFC 8200, section 4.5).
#[derive(Clone, Copy)]
pub(crate) struct Fragment<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) identification: u32,
    /// The protocol of what was cut, as this fragment says.
    pub(crate) next: u8,
    /// Where its payload stands, in bytes.
    pub(crate) offset: usize,
    /// It is not the last one.
    pub(crate) more: bool,
    pub(crate) payload: &'a [u8],
}

impl Fragment<'_> {
    /// Whether TCP may be in it, if it is the first one.
    pub(crate) fn may_carry_tcp(&self) -> bool {
        matches!(
            self.next,
            TCP | HOP_BY_HOP
                | ROUTING
                | FRAGMENT
                | AUTHENTICATION
                | DESTINATION_OPTIONS
                | MOBILITY
                | HIP
                | SHIM6
        )
    }
}

pub(crate) enum Network<'a> {
    Tcp {
        source: IpAddr,
        destination: IpAddr,
        segment: &'a [u8],
    },
    /// A fragment of a packet that may carry TCP.
    Fragment(Fragment<'a>),
    /// The payload of a UDP datagram.
    Udp(&'a [u8]),
    /// Another packet, in a form that is not followed.
    Encapsulated,
    Other,
    Malformed,
}

/// Parses a packet as its receiver would. `strict` refuses what receivers drop and captures may
/// hold all the same: a wrong IPv4 header checksum, a total length that was never filled in.
#[inline]
pub(crate) fn parse_network(packet: &[u8], strict: bool) -> Network<'_> {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => parse_ipv4(packet, strict),
        Some(6) => parse_ipv6(packet, strict),
        _ => Network::Other,
    }
}

fn parse_ipv4(packet: &[u8], strict: bool) -> Network<'_> {
    let Some(header) = packet.first_chunk::<20>() else {
        return Network::Malformed;
    };
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    let protocol = header[9];
    if !matches!(protocol, TCP | AUTHENTICATION) {
        // Of fragments the first one has the ports; the protocol is in each.
        return match protocol {
            UDP if fragment & 0x1fff != 0 => Network::Other,
            UDP => udp(packet.get(header_len..), fragment & 0x3fff != 0),
            tunnel if tunnel::by_protocol(tunnel) => Network::Encapsulated,
            _ => Network::Other,
        };
    }
    // Captures taken before segmentation offload filled it in say total length 0, and so do
    // super-frames that are too long for it.
    let unfilled = total_len == 0 && (!strict || packet.len() > usize::from(u16::MAX));
    let end = if unfilled { packet.len() } else { total_len };
    if header_len < 20 {
        return Network::Malformed;
    }
    let sum_ok = |header| checksum::ipv4_header(header) == 0;
    if strict && !unfilled && !packet.get(..header_len).is_some_and(sum_ok) {
        return Network::Malformed;
    }
    let source = IpAddr::V4(Ipv4Addr::new(header[12], header[13], header[14], header[15]));
    let destination = IpAddr::V4(Ipv4Addr::new(header[16], header[17], header[18], header[19]));
    let Some(mut payload) = packet.get(header_len..end) else {
        return Network::Malformed;
    };
    // More fragments, or a fragment offset (RFC 791, section 3.1).
    if fragment & 0x3fff != 0 {
        return Network::Fragment(Fragment {
            source,
            destination,
            identification: u16::from_be_bytes([header[4], header[5]]).into(),
            next: protocol,
            offset: usize::from(fragment & 0x1fff) * 8,
            more: fragment & 0x2000 != 0,
            payload,
        });
    }
    // What is behind an authentication header (RFC 4302) is not hidden: it is passed over, as in IPv6.
    match walk(protocol, &mut payload) {
        Walked::Tcp => Network::Tcp { source, destination, segment: payload },
        Walked::Udp => udp(Some(payload), false),
        Walked::Encapsulated => Network::Encapsulated,
        Walked::Other => Network::Other,
        Walked::Fragment { .. } | Walked::Malformed => Network::Malformed,
    }
}

/// What is behind IP and UDP headers alone.
pub(super) fn udp_payload(packet: &[u8]) -> Option<&[u8]> {
    let (protocol, headers) = match packet.first()? >> 4 {
        4 => {
            let header = packet.first_chunk::<20>()?;
            if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
                return None;
            }
            (header[9], usize::from(header[0] & 0x0f) * 4)
        }
        6 => (packet.first_chunk::<40>()?[6], 40),
        _ => return None,
    };
    (protocol == UDP).then(|| packet.get(headers + UDP_HEADER_LEN..))?
}

/// A datagram, or the first fragment of one: of that only the ports are given.
fn udp(datagram: Option<&[u8]>, fragmented: bool) -> Network<'_> {
    match datagram {
        Some(datagram) if tunnel::by_udp(datagram) => Network::Encapsulated,
        Some(datagram) if !fragmented => {
            datagram.get(UDP_HEADER_LEN..).map_or(Network::Other, Network::Udp)
        }
        _ => Network::Other,
    }
}

fn parse_ipv6(packet: &[u8], strict: bool) -> Network<'_> {
    let Some(header) = packet.first_chunk::<40>() else {
        return Network::Malformed;
    };
    let payload_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let mut source = [0; 16];
    let mut destination = [0; 16];
    source.copy_from_slice(&header[8..24]);
    destination.copy_from_slice(&header[24..40]);
    // Length 0 is a jumbogram (RFC 2675) or an offloaded super-frame: take what is there. A
    // receiver finds nothing in a shorter packet that says so.
    let unfilled = payload_len == 0 && (!strict || packet.len() > 40 + usize::from(u16::MAX));
    let end = if unfilled { packet.len() } else { 40 + payload_len };
    let Some(mut rest) = packet.get(40..end) else {
        return Network::Malformed;
    };
    match walk(header[6], &mut rest) {
        Walked::Tcp => Network::Tcp {
            source: IpAddr::V6(Ipv6Addr::from(source)),
            destination: IpAddr::V6(Ipv6Addr::from(destination)),
            segment: rest,
        },
        Walked::Udp => udp(Some(rest), false),
        Walked::Encapsulated => Network::Encapsulated,
        Walked::Fragment { next, offset, more, identification } => Network::Fragment(Fragment {
            source: IpAddr::V6(Ipv6Addr::from(source)),
            destination: IpAddr::V6(Ipv6Addr::from(destination)),
            identification,
            next,
            offset,
            more,
            payload: rest,
        }),
        Walked::Other => Network::Other,
        Walked::Malformed => Network::Malformed,
    }
}

/// What is in a packet that was put together again; `next` names its first header.
pub(crate) enum Reassembled<'a> {
    Tcp(&'a [u8]),
    Encapsulated,
    /// Fragments again, or headers that are cut off.
    Malformed,
    Other,
}

/// Looks at the payload of a packet that was put together again.
pub(crate) fn parse_reassembled(next: u8, mut payload: &[u8]) -> Reassembled<'_> {
    match walk(next, &mut payload) {
        Walked::Tcp => Reassembled::Tcp(payload),
        Walked::Encapsulated => Reassembled::Encapsulated,
        Walked::Fragment { .. } | Walked::Malformed => Reassembled::Malformed,
        Walked::Udp if tunnel::by_udp(payload) => Reassembled::Encapsulated,
        Walked::Udp | Walked::Other => Reassembled::Other,
    }
}

/// What stands behind extension headers.
enum Walked {
    Tcp,
    Udp,
    Encapsulated,
    Fragment { next: u8, offset: usize, more: bool, identification: u32 },
    Other,
    Malformed,
}

/// Steps over extension headers; `rest` is what is behind them then.
fn walk(mut next: u8, rest: &mut &[u8]) -> Walked {
    for _ in 0..=MAX_EXTENSION_HEADERS {
        let len = match next {
            UDP => return Walked::Udp,
            TCP => return Walked::Tcp,
            tunnel if tunnel::by_protocol(tunnel) => return Walked::Encapsulated,
            HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS | MOBILITY | HIP | SHIM6 => {
                match rest.get(1) {
                    Some(&units) => usize::from(units) * 8 + 8,
                    None => return Walked::Malformed,
                }
            }
            AUTHENTICATION => match rest.get(1) {
                Some(&units) => usize::from(units) * 4 + 8,
                None => return Walked::Malformed,
            },
            FRAGMENT => match rest.split_first_chunk::<8>() {
                // Offset 0 without more fragments is an atomic fragment (RFC 6946): whole.
                Some((head, _)) if u16::from_be_bytes([head[2], head[3]]) & 0xfff9 == 0 => 8,
                // Of a later one only the first header's name is there, and does not count: whatever
                // it says, it may be part of a segment (RFC 8200, section 4.5).
                Some((head, payload)) => {
                    *rest = payload;
                    let offset_field = u16::from_be_bytes([head[2], head[3]]);
                    return Walked::Fragment {
                        next: head[0],
                        offset: usize::from(offset_field & 0xfff8),
                        more: offset_field & 1 != 0,
                        identification: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
                    };
                }
                None => return Walked::Malformed,
            },
            _ => return Walked::Other,
        };
        match (rest.first(), rest.get(len..)) {
            (Some(&following), Some(after)) => {
                next = following;
                *rest = after;
            }
            _ => return Walked::Malformed,
        }
    }
    // A longer chain than any stack sends is an attempt to hide.
    Walked::Malformed
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        packet[4..6].copy_from_slice(&u16::try_from(rest.len()).unwrap().to_be_bytes());
        packet.extend_from_slice(&[1; 16]);
        packet.extend_from_slice(&[2; 16]);
        packet.extend_from_slice(rest);
        packet
    }

    #[test]
    fn accepts_extension_headers_before_tcp() {
        let mut rest = vec![DESTINATION_OPTIONS, 0, 0, 0, 0, 0, 0, 0];
        rest.extend_from_slice(&[FRAGMENT, 1]);
        rest.extend_from_slice(&[0; 14]);
        rest.extend_from_slice(&[TCP, 0, 0, 0, 0, 0, 0, 9]);
        rest.extend_from_slice(b"segment");
        match parse_network(&ipv6(HOP_BY_HOP, &rest), false) {
            Network::Tcp { segment, .. } => assert_eq!(segment, b"segment"),
            _ => panic!("not TCP"),
        }
    }

    #[test]
    fn names_fragments() {
        let rest = [TCP, 0, 0, 1, 0, 0, 0, 9, 1, 2, 3];
        assert!(matches!(parse_network(&ipv6(FRAGMENT, &rest), false), Network::Fragment(_)));
        // The first one, behind another header; a later one; and those of a ping.
        let first = [DESTINATION_OPTIONS, 0, 0, 1, 0, 0, 0, 9, TCP, 0, 1, 4, 0, 0, 0, 0, 1, 2];
        assert!(matches!(parse_network(&ipv6(FRAGMENT, &first), false), Network::Fragment(_)));
        let later = [TCP, 0, 1, 0, 0, 0, 0, 9, 1, 2, 3];
        assert!(matches!(parse_network(&ipv6(FRAGMENT, &later), false), Network::Fragment(_)));
        for offset in [0, 1] {
            let ping = ipv6(FRAGMENT, &[58, 0, offset, 1, 0, 0, 0, 9, 1, 2, 3]);
            // What the later one says does not count.
            let Network::Fragment(ping) = parse_network(&ping, false) else {
                panic!("no fragment");
            };
            assert!(!ping.may_carry_tcp());
        }
        let mut v4 = vec![0x45, 0, 0, 24, 0, 0, 0x20, 0, 64, TCP];
        v4.resize(24, 0);
        assert!(matches!(parse_network(&v4, false), Network::Fragment(_)));
        v4[6] = 0x40;
        assert!(matches!(parse_network(&v4, false), Network::Tcp { .. }));
    }

    #[test]
    fn accepts_tcp_behind_an_authentication_header_of_ipv4() {
        let ipv4 = |rest: &[u8]| {
            let len = u8::try_from(20 + rest.len()).unwrap();
            let mut packet = vec![0x45, 0, 0, len, 0, 0, 0, 0, 64, AUTHENTICATION];
            packet.resize(20, 0);
            packet.extend_from_slice(rest);
            packet
        };
        let behind = |next: u8| [&[next, 4][..], &[0; 22], b"segment"].concat();
        let mut packet = ipv4(&behind(TCP));
        assert!(matches!(parse_network(&packet, false), Network::Tcp { segment: b"segment", .. }));
        packet[6] = 0x20;
        assert!(
            matches!(parse_network(&packet, false), Network::Fragment(it) if it.may_carry_tcp())
        );
        assert!(matches!(parse_network(&ipv4(&behind(4)), false), Network::Encapsulated));
        // VRRP with authentication, and headers that are cut off.
        assert!(matches!(parse_network(&ipv4(&behind(112)), false), Network::Other));
        assert!(matches!(parse_network(&ipv4(&[TCP, 9, 0]), false), Network::Malformed));
    }

    #[test]
    fn accepts_udp_payloads_on_any_port_behind_plain_headers() {
        // Port 4789 is VXLAN's, behind which another frame would be looked for.
        let udp = [0x12, 0xb5, 0x12, 0xb5, 0, 12, 0, 0, 1, 2, 3, 4];
        let mut v4 = [&[0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17][..], &[0; 10], &udp].concat();
        assert_eq!(udp_payload(&v4), Some(&[1, 2, 3, 4][..]));
        for length in 0..28 {
            assert_eq!(udp_payload(&v4[..length]), None, "{length} bytes");
        }
        v4[6] = 0x20;
        assert_eq!(udp_payload(&v4), None, "a fragment");
        let mut v6 = [&[0x60, 0, 0, 0, 0, 12, 17, 64][..], &[0; 32], &udp].concat();
        assert_eq!(udp_payload(&v6), Some(&[1, 2, 3, 4][..]));
        v6[6] = 6;
        assert_eq!(udp_payload(&v6), None, "TCP");
        assert_eq!(udp_payload(&[]), None);
        assert_eq!(udp_payload(&[0x4f; 20]), None);
    }

    #[test]
    fn refuses_wrong_header_checksums_when_strict() {
        let mut v4 = vec![0x45, 0, 0, 24, 0, 0, 0, 0, 64, TCP];
        v4.resize(24, 0);
        assert!(matches!(parse_network(&v4, true), Network::Malformed));
        let sum = checksum::ipv4_header(&v4[..20]);
        v4[10..12].copy_from_slice(&sum.to_be_bytes());
        assert!(matches!(parse_network(&v4, true), Network::Tcp { .. }));
    }

    #[test]
    fn refuses_ipv6_without_length_when_strict() {
        let mut packet = ipv6(TCP, b"segment");
        packet[4..6].fill(0);
        assert!(matches!(parse_network(&packet, false), Network::Tcp { segment: b"segment", .. }));
        assert!(matches!(parse_network(&packet, true), Network::Tcp { segment: b"", .. }));
        packet.resize(70_000, 0);
        assert!(matches!(parse_network(&packet, true), Network::Tcp { .. }));
    }

    #[test]
    fn refuses_contradicting_lengths() {
        let mut v4 = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP];
        v4.resize(24, 0);
        assert!(matches!(parse_network(&v4, false), Network::Malformed));
        v4[0] = 0x44;
        assert!(matches!(parse_network(&v4, false), Network::Malformed));
        let endless: Vec<u8> = [HOP_BY_HOP, 0, 0, 0, 0, 0, 0, 0].repeat(100);
        assert!(matches!(parse_network(&ipv6(HOP_BY_HOP, &endless), false), Network::Malformed));
    }
}
