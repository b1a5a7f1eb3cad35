//! Building the frames that the engine injects: a bare RST, and a bare acknowledgment.
//!
//! Refuses to build anything with a payload.

use core::net::{IpAddr, SocketAddr};

use super::{Flags, Segment, checksum};

/// Where a RST stands in the sequence space.
pub(crate) struct Reset {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
}

/// Builds a RST|ACK (RFC 9293, section 3.5.3) behind a link header. `None` when the two addresses
/// are of different families, which no parsed segment produces.
pub(crate) fn build_reset(link_header: &[u8], reset: &Reset) -> Option<Vec<u8>> {
    let mut tcp = [0; 20];
    tcp[0..2].copy_from_slice(&reset.source.port().to_be_bytes());
    tcp[2..4].copy_from_slice(&reset.destination.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&reset.sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&reset.acknowledgment.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = Flags::RST | Flags::ACK;
    build(link_header, (reset.source.ip(), reset.destination.ip()), &mut tcp)
}

/// Builds an empty segment with another number in the place of this one: its acknowledgment, window and options.
pub(crate) fn build_probe(
    link_header: &[u8],
    segment: &Segment<'_>,
    sequence: u32,
) -> Option<Vec<u8>> {
    let header = segment.tcp.bytes().strip_suffix(segment.tcp.payload())?;
    let mut tcp = header.to_vec();
    tcp.get_mut(4..8)?.copy_from_slice(&sequence.to_be_bytes());
    *tcp.get_mut(13)? = Flags::ACK;
    tcp.get_mut(18..20)?.fill(0);
    build(link_header, (segment.source.ip(), segment.destination.ip()), &mut tcp)
}

/// A frame with this TCP header, whose checksum is made.
fn build(link_header: &[u8], between: (IpAddr, IpAddr), tcp: &mut [u8]) -> Option<Vec<u8>> {
    let len = u8::try_from(tcp.len()).ok().filter(|len| *len <= 60)?;
    tcp.get_mut(16..18)?.fill(0);
    let sum = checksum::tcp(between.0, between.1, tcp);
    tcp.get_mut(16..18)?.copy_from_slice(&sum.to_be_bytes());

    let mut frame = Vec::with_capacity(link_header.len() + 100);
    frame.extend_from_slice(link_header);
    match between {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = [0; 20];
            ip[0] = 0x45;
            ip[3] = 20 + len;
            ip[6] = 0x40; // do not fragment
            ip[8] = 64;
            ip[9] = 6;
            ip[12..16].copy_from_slice(&source.octets());
            ip[16..20].copy_from_slice(&destination.octets());
            let sum = checksum::ipv4_header(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend_from_slice(&ip);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut ip = [0; 40];
            ip[0] = 0x60;
            ip[5] = len;
            ip[6] = 6;
            ip[7] = 64;
            ip[8..24].copy_from_slice(&source.octets());
            ip[24..40].copy_from_slice(&destination.octets());
            frame.extend_from_slice(&ip);
        }
        _ => return None,
    }
    frame.extend_from_slice(tcp);
    Some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Link, Parsed, parse};

    #[test]
    fn accepts_its_own_resets() {
        for (source, destination) in
            [("10.0.0.1:443", "10.0.0.2:5000"), ("[fd00::1]:443", "[fd00::2]:5000")]
        {
            let reset = Reset {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                sequence: 0xffff_fffe,
                acknowledgment: 77,
            };
            let frame = build_reset(&[], &reset).unwrap();
            let Parsed::Tcp(segment) = parse(Link::Ip, &frame, true) else {
                panic!("not TCP");
            };
            assert!(segment.checksum_ok());
            assert!(segment.tcp.flags().rst() && segment.tcp.flags().ack());
            assert_eq!(segment.tcp.sequence(), 0xffff_fffe);
            assert_eq!((segment.source, segment.destination), (reset.source, reset.destination));
        }
    }
    #[test]
    fn accepts_its_own_probes() {
        for (source, destination) in
            [("10.0.0.1:443", "10.0.0.2:5000"), ("[fd00::1]:443", "[fd00::2]:5000")]
        {
            let reset = Reset {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                sequence: 5,
                acknowledgment: 77,
            };
            let mut frame = build_reset(&[], &reset).unwrap();
            let header = frame.len() - 20;
            // Timestamps and three bytes.
            frame[header + 12] = 8 << 4;
            frame.extend_from_slice(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9]);
            match source.starts_with('[') {
                true => frame[5] += 15,
                false => frame[3] += 15,
            }
            let Parsed::Tcp(segment) = parse(Link::Ip, &frame, false) else {
                panic!("not TCP");
            };
            let probe = build_probe(&[], &segment, 0xffff_fffe).unwrap();
            let Parsed::Tcp(probe) = parse(Link::Ip, &probe, true) else {
                panic!("not TCP");
            };
            assert!(probe.checksum_ok() && probe.tcp.flags().ack() && !probe.tcp.flags().rst());
            assert_eq!((probe.tcp.sequence(), probe.tcp.acknowledgment()), (0xffff_fffe, 77));
            assert_eq!(probe.tcp.payload(), b"");
            assert_eq!(probe.tcp.bytes()[20..], segment.tcp.bytes()[20..32]);
            assert_eq!((probe.source, probe.destination), (segment.source, segment.destination));
        }
    }
}
