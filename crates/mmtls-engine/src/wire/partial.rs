//! Unfinished checksums: what becomes of a frame when somebody behind the monitor finishes it.
//!
//! Refuses whatever would make the receiver see other bytes than the monitor judged.

use core::mem::discriminant;

use super::{Link, Parsed, checksum, parse};

/// Where TCP has its checksum.
const TCP_CHECKSUM: usize = 16;

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
        // Dropped anyway.
        Parsed::Malformed => true,
        before @ (Parsed::TcpFragment | Parsed::Udp(_) | Parsed::Other) => {
            let mut finished = frame.to_vec();
            let Some(tail) = frame.get(start..) else {
                return false;
            };
            let Some(place) = start
                .checked_add(offset)
                .and_then(|at| finished.get_mut(at..)?.first_chunk_mut::<2>())
            else {
                return false;
            };
            *place = checksum::internet(tail).to_be_bytes();
            discriminant(&parse(link, &finished, false)) == discriminant(&before)
        }
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
        // A TCP segment inside a tunnel.
        assert!(finishes(&frame(47, &[0; 90]), 60, 16));
    }

    #[test]
    fn refuses_places_in_payloads_and_headers() {
        let mut tcp = [0; 30];
        tcp[12] = 0x50;
        let tcp = frame(6, &tcp);
        for (start, offset) in [(34, 20), (54, 0), (34, 12), (14, 36), (30, 20), (0, 0)] {
            assert!(!finishes(&tcp, start, offset), "{start} {offset}");
        }
        // UDP whose protocol number becomes that of TCP: the sum over everything from the time to
        // live on is written there.
        let mut udp = frame(17, &[0; 30]);
        udp[46] = 0x50;
        let becomes_tcp = (0..=u16::MAX).any(|filler| {
            udp[62..].copy_from_slice(&filler.to_be_bytes());
            checksum::internet(&udp[22..]) == 0x4006 && !finishes(&udp, 22, 0)
        });
        assert!(becomes_tcp);
        assert!(!finishes(&udp, 200, 0) && !finishes(&udp, 34, 29));
        assert!(!finishes(&udp, usize::MAX, 1) && !finishes(&udp, 34, usize::MAX));
    }
}
