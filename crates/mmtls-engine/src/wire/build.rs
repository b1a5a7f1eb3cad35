//! Building the one kind of frame the engine injects: a bare RST.
//!
//! Refuses to build anything with a payload.

use core::net::{IpAddr, SocketAddr};

use super::{Flags, checksum};

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
    let sum = checksum::tcp(reset.source.ip(), reset.destination.ip(), &tcp);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());

    let mut frame = Vec::with_capacity(link_header.len() + 60);
    frame.extend_from_slice(link_header);
    match (reset.source.ip(), reset.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut ip = [0; 20];
            ip[0] = 0x45;
            ip[3] = 40;
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
            ip[5] = 20;
            ip[6] = 6;
            ip[7] = 64;
            ip[8..24].copy_from_slice(&source.octets());
            ip[24..40].copy_from_slice(&destination.octets());
            frame.extend_from_slice(&ip);
        }
        _ => return None,
    }
    frame.extend_from_slice(&tcp);
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
}
