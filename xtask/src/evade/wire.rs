//! Ethernet frames with TCP over IPv4 and IPv6: built with any fault that is asked for, and read.
//!
//! Refuses to judge: what is read may have a wrong checksum or none, since veth leaves them unfinished.

use std::net::{IpAddr, SocketAddr};

/// TCP control bits.
pub mod flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// A station's Ethernet address.
pub type Mac = [u8; 6];

/// What is wrong with a segment, or unusual about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Oddity {
    /// The TCP checksum is wrong.
    pub bad_checksum: bool,
    /// The checksum of the IPv4 header is wrong.
    pub bad_ip_checksum: bool,
    /// The TCP header says that it is longer than the segment.
    pub bad_offset: bool,
    /// The TCP header says that it is shorter than 20 octets.
    pub short_offset: bool,
    /// IP says more octets than there are.
    pub bad_length: bool,
    /// The Ethernet address is another station's: whoever is behind the middlebox never sees it.
    pub lost: bool,
    /// An option of IPv4 (no operation), or a destination header of IPv6 with padding.
    pub ip_option: bool,
    /// The version in the IP header is 5.
    pub bad_version: bool,
    /// Two fragments of IP.
    pub fragments: bool,
    /// Of these the first one is lost as above.
    pub lose_first: bool,
    /// And the second one.
    pub lose_second: bool,
    /// The reserved bits of the TCP header are set.
    pub reserved: bool,
    /// Trailing octets behind the IP packet.
    pub trailer: bool,
}

/// A segment to build.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u8,
    pub window: u16,
    pub urgent: u16,
    pub options: &'a [u8],
    pub payload: &'a [u8],
    pub ttl: u8,
    pub oddity: Oddity,
}

/// The frames (two when it is fragmented) of a segment.
pub fn frames(segment: &Segment<'_>, from: Mac, to: Mac) -> Vec<Vec<u8>> {
    let tcp = tcp(segment);
    let odd = segment.oddity;
    let parts: Vec<(usize, bool, &[u8])> = if odd.fragments && tcp.len() > 24 {
        vec![(0, true, &tcp[..24]), (24, false, &tcp[24..])]
    } else {
        vec![(0, false, &tcp[..])]
    };
    parts
        .into_iter()
        .map(|(offset, more, bytes)| {
            let lost = odd.lost || if offset == 0 { odd.lose_first } else { odd.lose_second };
            // Locally administered, and nobody's.
            let to = if lost { [2, 0, 0, 0, 0xee, 0xee] } else { to };
            let mut frame = [to, from].concat();
            match (segment.source.ip(), segment.destination.ip()) {
                (IpAddr::V4(source), IpAddr::V4(destination)) => {
                    frame.extend([8, 0]);
                    let fragment = (offset, more);
                    ip4(
                        &mut frame,
                        segment,
                        source.octets(),
                        destination.octets(),
                        fragment,
                        bytes,
                    );
                }
                (IpAddr::V6(source), IpAddr::V6(destination)) => {
                    frame.extend([0x86, 0xdd]);
                    let fragment = (odd.fragments).then_some((offset, more));
                    ip6(
                        &mut frame,
                        segment,
                        source.octets(),
                        destination.octets(),
                        fragment,
                        bytes,
                    );
                }
                _ => {}
            }
            frame.extend(bytes);
            if odd.trailer {
                frame.extend([0x16, 0x03, 0x01, 0x00, 0x00, 0, 0, 0]);
            }
            frame
        })
        .collect()
}

fn tcp(segment: &Segment<'_>) -> Vec<u8> {
    let mut options = segment.options.to_vec();
    options.resize(options.len().next_multiple_of(4).min(40), 1);
    let header = 20 + options.len();
    let odd = segment.oddity;
    let words = match (odd.bad_offset, odd.short_offset) {
        (true, _) => 15,
        (_, true) => 4,
        // At most 15.
        _ => (header / 4) as u8,
    };
    let mut tcp = Vec::with_capacity(header + segment.payload.len());
    tcp.extend(segment.source.port().to_be_bytes());
    tcp.extend(segment.destination.port().to_be_bytes());
    tcp.extend(segment.sequence.to_be_bytes());
    tcp.extend(segment.acknowledgment.to_be_bytes());
    tcp.push(words << 4 | if odd.reserved { 0x0e } else { 0 });
    tcp.push(segment.flags);
    tcp.extend(segment.window.to_be_bytes());
    tcp.extend([0, 0]);
    tcp.extend(segment.urgent.to_be_bytes());
    tcp.extend(&options);
    tcp.extend(segment.payload);
    let mut sum = Sum::default();
    match (segment.source.ip(), segment.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            sum.add(&source.octets()).add(&destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            sum.add(&source.octets()).add(&destination.octets());
        }
        _ => {}
    }
    // A segment is shorter than 64 KiB.
    sum.add(&[0, 6]).add(&(tcp.len() as u16).to_be_bytes()).add(&tcp);
    let checksum = sum.finish() ^ if odd.bad_checksum { 0x5555 } else { 0 };
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    tcp
}

fn ip4(
    frame: &mut Vec<u8>,
    segment: &Segment<'_>,
    source: [u8; 4],
    destination: [u8; 4],
    (offset, more): (usize, bool),
    bytes: &[u8],
) {
    let odd = segment.oddity;
    let options: &[u8] = if odd.ip_option { &[1, 1, 1, 1] } else { &[] };
    let words = 5 + (options.len() / 4) as u8;
    let total = usize::from(words) * 4 + bytes.len() + if odd.bad_length { 40 } else { 0 };
    let at = frame.len();
    let version = if odd.bad_version { 5 } else { 4 };
    frame.extend([version << 4 | words, 0]);
    frame.extend((total as u16).to_be_bytes());
    // Fragments need a common identification; the sequence number is as good as any.
    frame.extend((segment.sequence as u16).to_be_bytes());
    let fragment = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
    frame.extend(fragment.to_be_bytes());
    frame.extend([segment.ttl, 6, 0, 0]);
    frame.extend(source);
    frame.extend(destination);
    frame.extend(options);
    let mut sum = Sum::default();
    let checksum = sum.add(&frame[at..]).finish() ^ if odd.bad_ip_checksum { 0x5555 } else { 0 };
    frame[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
}

fn ip6(
    frame: &mut Vec<u8>,
    segment: &Segment<'_>,
    source: [u8; 16],
    destination: [u8; 16],
    fragment: Option<(usize, bool)>,
    bytes: &[u8],
) {
    let odd = segment.oddity;
    let mut next = 6;
    let mut extension = Vec::new();
    if let Some((offset, more)) = fragment {
        extension.extend([next, 0]);
        extension.extend((offset as u16 | u16::from(more)).to_be_bytes());
        extension.extend(segment.sequence.to_be_bytes());
        next = 44;
    }
    if odd.ip_option {
        extension.splice(0..0, [next, 0, 1, 4, 0, 0, 0, 0]);
        next = 60;
    }
    let length = extension.len() + bytes.len() + if odd.bad_length { 40 } else { 0 };
    frame.extend([if odd.bad_version { 0x50 } else { 0x60 }, 0, 0, 0]);
    frame.extend((length as u16).to_be_bytes());
    frame.extend([next, segment.ttl]);
    frame.extend(source);
    frame.extend(destination);
    frame.extend(extension);
}

/// The checksum of the Internet protocols (RFC 1071); every part but the last has an even length.
#[derive(Default)]
struct Sum(u32);

impl Sum {
    fn add(&mut self, bytes: &[u8]) -> &mut Self {
        for pair in bytes.chunks(2) {
            self.0 += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            self.0 = (self.0 & 0xffff) + (self.0 >> 16);
        }
        self
    }

    fn finish(&self) -> u16 {
        // Folded above.
        !(self.0 as u16)
    }
}

/// A segment that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen<'a> {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub sequence: u32,
    pub acknowledgment: u32,
    pub flags: u8,
    pub payload: &'a [u8],
}

/// Reads an untagged frame with whole TCP in it, super-frames too.
pub fn read(frame: &[u8]) -> Option<Seen<'_>> {
    let ip = frame.get(14..)?;
    let (source, destination, tcp): (IpAddr, IpAddr, &[u8]) = match frame.get(12..14)? {
        [8, 0] => {
            let header = usize::from(ip.first()? & 15) * 4;
            let total = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
            if *ip.get(9)? != 6 {
                return None;
            }
            let address = |at: usize| ip.get(at..at + 4)?.first_chunk::<4>().copied();
            // Padding of short frames is not payload; a super-frame's length may be 0.
            let end = if total < header { ip.len() } else { total };
            (address(12)?.into(), address(16)?.into(), ip.get(header..end)?)
        }
        [0x86, 0xdd] => {
            if *ip.get(6)? != 6 {
                return None;
            }
            let length = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
            let address = |at: usize| ip.get(at..at + 16)?.first_chunk::<16>().copied();
            let end = if length == 0 { ip.len() } else { 40 + length };
            (address(8)?.into(), address(24)?.into(), ip.get(40..end)?)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
    let number = |at: usize| tcp.get(at..at + 4)?.first_chunk().copied().map(u32::from_be_bytes);
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    Some(Seen {
        source: (source, port(0)?).into(),
        destination: (destination, port(2)?).into(),
        sequence: number(4)?,
        acknowledgment: number(8)?,
        flags: *tcp.get(13)?,
        payload: tcp.get(header..)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(v6: bool) -> Segment<'static> {
        let [source, destination] = match v6 {
            false => ["10.77.0.10:4000", "10.77.0.3:443"],
            true => ["[fd77::10]:4000", "[fd77::3]:443"],
        };
        Segment {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            sequence: 7,
            acknowledgment: 9,
            flags: flag::ACK | flag::PSH,
            window: 1000,
            urgent: 0,
            options: &[],
            payload: b"0123456789abcdef!",
            ttl: 64,
            oddity: Oddity::default(),
        }
    }

    #[test]
    fn accepts_what_it_built() {
        for v6 in [false, true] {
            let wanted = segment(v6);
            let built = frames(&wanted, [2; 6], [4; 6]);
            let [frame] = &built[..] else { panic!("one frame") };
            let seen = read(frame).unwrap();
            assert_eq!((seen.source, seen.destination), (wanted.source, wanted.destination));
            assert_eq!((seen.sequence, seen.acknowledgment, seen.flags), (7, 9, wanted.flags));
            assert_eq!(seen.payload, wanted.payload);
        }
    }

    /// Over pseudo-header and segment, checksum included, the sum is zero.
    fn sums_to_zero(frame: &[u8]) -> bool {
        let mut sum = Sum::default();
        sum.add(&frame[26..34]).add(&[0, 6]).add(&((frame.len() - 34) as u16).to_be_bytes());
        sum.add(&frame[34..]).finish() == 0
    }

    #[test]
    fn accepts_right_checksums_and_wrong_ones_where_asked() {
        let mut it = segment(false);
        assert!(sums_to_zero(&frames(&it, [2; 6], [4; 6])[0]));
        assert_eq!(Sum::default().add(&frames(&it, [2; 6], [4; 6])[0][14..34]).finish(), 0);
        it.oddity.bad_checksum = true;
        assert!(!sums_to_zero(&frames(&it, [2; 6], [4; 6])[0]));
        it.oddity = Oddity { bad_ip_checksum: true, ..Oddity::default() };
        assert_ne!(Sum::default().add(&frames(&it, [2; 6], [4; 6])[0][14..34]).finish(), 0);
    }

    #[test]
    fn accepts_fragments_that_make_the_whole() {
        for v6 in [false, true] {
            let mut it = segment(v6);
            let whole = frames(&it, [2; 6], [4; 6]);
            it.oddity.fragments = true;
            let parts = frames(&it, [2; 6], [4; 6]);
            let header = if v6 { 14 + 40 + 8 } else { 14 + 20 };
            let joined = [&parts[0][header..], &parts[1][header..]].concat();
            assert_eq!(joined, whole[0][if v6 { 54 } else { 34 }..]);
        }
    }

    #[test]
    fn refuses_what_is_cut_off() {
        let frame = &frames(&segment(false), [2; 6], [4; 6])[0];
        for length in 0..54 {
            assert!(read(&frame[..length]).is_none(), "{length}");
        }
    }
}
