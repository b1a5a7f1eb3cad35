//! Unfinished checksums: what a frame is once it is finished behind the monitor.
//!
//! Refuses whatever would make the receiver see other bytes than the monitor inspected.

use core::mem::discriminant;

use super::{Link, Parsed, checksum, parse, udp_payload};
use crate::recognition::MAX_DATAGRAM_FRONT;

/// Where TCP has its checksum.
const TCP_CHECKSUM: usize = 16;

/// Where UDP has its checksum, and how long its header is.
const UDP_CHECKSUM: usize = 6;
const UDP_HEADER_LEN: usize = 8;

/// Whether a checksum that is still to be computed from `start` to the end of the frame, and put
/// at `start + offset`, changes nothing but a checksum. Senders in containers and virtual
/// machines choose both numbers, so they could have it written into the payload or a header.
#[must_use]
pub fn finishes_in_place(link: Link, frame: &[u8], start: usize, offset: usize) -> bool {
    match parse(link, frame, false) {
        Parsed::Tcp(segment) => {
            let at = segment.tcp.bytes().as_ptr().addr() - frame.as_ptr().addr();
            start == at && offset == TCP_CHECKSUM
        }
        Parsed::Udp(payload) => {
            let at = payload.as_ptr().addr() - frame.as_ptr().addr();
            let checksum_offset = start.saturating_add(offset);
            let own = start == at - UDP_HEADER_LEN && offset == UDP_CHECKSUM;
            // Else that of a packet inside a tunnel, which begins behind what tells QUIC and DTLS.
            own || (checksum_offset >= at + MAX_DATAGRAM_FRONT
                && checksum_offset.saturating_add(2) <= frame.len())
        }
        // Dropped anyway.
        Parsed::Malformed => true,
        // Stacks finish a packet's checksum before they cut it; here it would change what was inspected.
        Parsed::Fragment(..) => false,
        before @ (Parsed::Encapsulated | Parsed::Other) => {
            let mut finished = frame.to_vec();
            let Some(tail) = frame.get(start..) else {
                return false;
            };
            let Some(checksum_offset) = start
                .checked_add(offset)
                .and_then(|at| finished.get_mut(at..)?.first_chunk_mut::<2>())
            else {
                return false;
            };
            *checksum_offset = checksum::internet(tail).to_be_bytes();
            discriminant(&parse(link, &finished, false)) == discriminant(&before)
        }
    }
}

/// Whether a super-frame is cut by its own transport header, the outermost one: of TCP, or of UDP where it is of datagrams. Of one
/// inside a tunnel the offload header does not say that there is a tunnel, so that the kernel drops it at sending, or a
/// card cuts it by the wrong headers. `checksum`: start and offset of one that is still to be computed.
#[must_use]
pub fn cuts_in_place(
    link: Link,
    frame: &[u8],
    of_datagrams: bool,
    checksum: Option<(usize, usize)>,
) -> bool {
    let is_own = |at: usize, offset| checksum.is_none_or(|it| it == (at, offset));
    let at = |part: &[u8]| part.as_ptr().addr() - frame.as_ptr().addr();
    match parse(link, frame, false) {
        Parsed::Tcp(segment) => !of_datagrams && is_own(at(segment.tcp.bytes()), TCP_CHECKSUM),
        Parsed::Udp(payload) => of_datagrams && is_own(at(payload) - UDP_HEADER_LEN, UDP_CHECKSUM),
        // Datagrams of one size to a tunnel: each piece goes there, too. Where the checksum is says that none of a packet inside it is meant.
        Parsed::Encapsulated => {
            let udp = udp_payload(link, frame).map(|payload| at(payload) - UDP_HEADER_LEN);
            of_datagrams && udp.is_some_and(|udp| checksum == Some((udp, UDP_CHECKSUM)))
        }
        // Dropped anyway.
        Parsed::Malformed => true,
        Parsed::Fragment(..) | Parsed::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet and IPv4 headers in front of `rest`.
    fn frame(protocol: u8, rest: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 14];
        frame[12] = 8;
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ip[2..4].copy_from_slice(&u16::try_from(20 + rest.len()).unwrap().to_be_bytes());
        frame.extend_from_slice(&ip);
        frame.extend_from_slice(rest);
        frame
    }

    fn finishes(frame: &[u8], start: usize, offset: usize) -> bool {
        finishes_in_place(Link::Ethernet, frame, start, offset)
    }

    #[test]
    fn accepts_the_transport_checksum() {
        let mut tcp = [0; 30];
        tcp[12] = 0x50;
        assert!(finishes(&frame(6, &tcp), 34, 16));
        assert!(finishes(&frame(17, &[0; 30]), 34, 6));
        // A TCP segment inside a tunnel: GRE, VXLAN.
        assert!(finishes(&frame(47, &[0; 90]), 60, 16));
        assert!(finishes(&frame(17, &[0; 90]), 84, 16));
    }

    #[test]
    fn refuses_super_frames_of_tunnels() {
        let cuts = |protocol, of_datagrams, checksum| {
            let mut rest = [0; 90];
            rest[12] = 0x50;
            cuts_in_place(Link::Ethernet, &frame(protocol, &rest), of_datagrams, checksum)
        };
        assert!(cuts(6, false, Some((34, 16))) && cuts(6, false, None));
        assert!(cuts(17, true, Some((34, 6))) && cuts(17, true, None));
        // TCP in IP, in GRE, and in VXLAN; QUIC in VXLAN.
        assert!(!cuts(4, false, Some((54, 16))) && !cuts(41, false, Some((74, 16))));
        assert!(!cuts(47, false, Some((58, 16))) && !cuts(47, false, None));
        assert!(!cuts(17, false, Some((84, 16))) && !cuts(17, false, None));
        assert!(!cuts(17, true, Some((84, 6))));
        // To the port of VXLAN.
        let to_tunnel = |of_datagrams, checksum| {
            let mut rest = [0; 90];
            rest[2..4].copy_from_slice(&4789u16.to_be_bytes());
            cuts_in_place(Link::Ethernet, &frame(17, &rest), of_datagrams, checksum)
        };
        assert!(to_tunnel(true, Some((34, 6))));
        assert!(!to_tunnel(true, Some((84, 6))) && !to_tunnel(true, None));
        assert!(!to_tunnel(false, Some((84, 16))) && !to_tunnel(false, Some((34, 6))));
        // Into the payload.
        assert!(!cuts(6, false, Some((34, 20))) && !cuts(6, true, None));
    }

    #[test]
    fn refuses_places_in_payloads_and_headers() {
        let mut tcp = [0; 30];
        tcp[12] = 0x50;
        let tcp = frame(6, &tcp);
        for (start, offset) in [(34, 20), (54, 0), (34, 12), (14, 36), (30, 20), (0, 0)] {
            assert!(!finishes(&tcp, start, offset), "{start} {offset}");
        }
        // A packet whose protocol number becomes that of TCP: the sum over everything from the
        // time to live on is written there.
        let mut other = frame(47, &[0; 30]);
        other[46] = 0x50;
        let becomes_tcp = (0..=u16::MAX).any(|filler| {
            other[62..].copy_from_slice(&filler.to_be_bytes());
            checksum::internet(&other[22..]) == 0x4006 && !finishes(&other, 22, 0)
        });
        assert!(becomes_tcp);
        assert!(!finishes(&other, 200, 0) && !finishes(&other, 34, 29));
        assert!(!finishes(&other, usize::MAX, 1) && !finishes(&other, 34, usize::MAX));
        // Headers of UDP and of what it carries.
        let udp = frame(17, &[0; 90]);
        for (start, offset) in [(34, 8), (42, 0), (14, 26), (42, 5), (42, 81), (22, 0)] {
            assert!(!finishes(&udp, start, offset), "{start} {offset}");
        }
    }
}
