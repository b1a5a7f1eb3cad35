//! Joining what a sender's stack sent in pieces.
//!
//! A server that writes one TLS record after another makes a super-frame of each. Where several of them leave
//! together, one super-frame carries them all: for every piece less, the kernel on both sides of the monitor saves a
//! way through its stack, and the receiver an acknowledgment. How large that may become, a caller who knows the
//! receiver says ([`limit_coalescing`](crate::Outbox::limit_coalescing)). Each byte of TCP payload keeps its sequence number.
//! What differs is where segments end, and the identification of IPv4 packets that may not be fragmented, which means
//! nothing (RFC 6864, section 4.1).
//!
//! The kernel joins segments on receipt by much the same rules (generic receive offload), but none behind one that is
//! shorter than the others, which the end of a record is. As there, everything must be equal that is not length,
//! sequence number or PSH.

use crate::VnetHeader;

/// Offload header, Ethernet with two VLAN tags, IPv6, and TCP with all options that it can have.
pub(super) const HEADER_ROOM: usize = VnetHeader::LEN + 22 + 40 + 60;

/// What a frame may have for an interface to cut it: `GSO_LEGACY_MAX_SIZE` is one more.
const MAX_BYTES: usize = 65_535;

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// A TCP segment, or a super-frame of such, with a checksum that is left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where the IP header starts in the frame, and the TCP header.
    ip: usize,
    tcp: usize,
    /// Bytes of all headers, Ethernet's included.
    headers: usize,
    /// Bytes of TCP payload.
    payload: usize,
    /// Bytes of payload in the largest segment that it stands for.
    segment: u16,
    is_super_frame: bool,
    sequence: u32,
    /// Ports and parts of the addresses: differs between most connections, and is the same within one.
    connection: u64,
}

impl Piece {
    /// What there is to know of a frame that may be joined with others; most may not.
    pub(super) fn of(vnet: VnetHeader, frame: &[u8]) -> Option<Self> {
        if vnet.flags != VnetHeader::NEEDS_CHECKSUM || vnet.checksum_offset != 16 {
            return None;
        }
        let tcp = usize::from(vnet.checksum_start);
        let header = frame.get(tcp..)?.first_chunk::<TCP_HEADER>()?;
        let headers = tcp + usize::from(header[12] >> 4) * 4;
        if headers < tcp + TCP_HEADER || headers + VnetHeader::LEN > HEADER_ROOM {
            return None;
        }
        let payload = frame.len().checked_sub(headers).filter(|bytes| *bytes > 0)?;
        if header[13] & !PSH != ACK {
            return None;
        }
        let (ip, gso_type) = network_header(frame, tcp)?;
        let is_super_frame = vnet.gso_type != VnetHeader::GSO_NONE;
        if is_super_frame && vnet.gso_type != gso_type {
            return None;
        }
        let segment = if is_super_frame { vnet.gso_size } else { u16::try_from(payload).ok()? };
        let word = |at: usize| Some(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let (ports, sequence) = (word(tcp)?, word(tcp + 4)?);
        // The ends of both addresses: the destination's is the end of the header in either version of IP.
        let source = if gso_type == GSO_TCPV4 { word(ip + 12)? } else { word(ip + 20)? };
        let ends = source.rotate_left(16) ^ word(tcp - 4)?;
        let connection = u64::from(ports) << 32 | u64::from(ends);
        Some(Self { ip, tcp, headers, payload, segment, is_super_frame, sequence, connection })
    }

    /// Bytes of all headers, Ethernet's included.
    pub(super) const fn headers(&self) -> usize {
        self.headers
    }

    /// Whether they may be of one connection, so that the order of both matters.
    pub(super) const fn may_precede(&self, next: Self) -> bool {
        self.connection == next.connection
    }

    /// Appends the payload of the frame that `next` is of, if they belong together and are `most` bytes of payload at most:
    /// changes `packet`, which is this piece's offload header and headers, so that it fits both.
    pub(super) fn append(
        &mut self,
        packet: &mut [u8],
        next: Self,
        frame: &[u8],
        most: usize,
    ) -> bool {
        let Some(headers) = packet.get_mut(VnetHeader::LEN..VnetHeader::LEN + self.headers) else {
            return false;
        };
        let Some(segment) = self.common_segment(next) else { return false };
        let follows = self.sequence.wrapping_add(self.payload as u32) == next.sequence;
        let same_place = (self.ip, self.tcp, self.headers) == (next.ip, next.tcp, next.headers);
        let payload = self.payload + next.payload;
        let fits = self.headers + payload <= MAX_BYTES && payload <= most;
        if !follows || !same_place || !fits || !self.same_headers(headers, frame) {
            return false;
        }
        // So far each is the sum of its pseudo-header, of which the length is a part. A wrong one stays wrong.
        let [ours, theirs] =
            [headers, frame].map(|it| u16::from_be_bytes([it[self.tcp + 16], it[self.tcp + 17]]));
        let seed = add(ours, next.payload as u16);
        if seed % u16::MAX != add(theirs, self.payload as u16) % u16::MAX {
            return false;
        }
        let (ip, tcp) = headers.split_at_mut(self.tcp);
        let ip = &mut ip[self.ip..];
        let bytes = tcp.len() + payload;
        if ip.len() == IPV4_HEADER {
            put(ip, 2, (IPV4_HEADER + bytes) as u16);
            put(ip, 10, 0);
            put(ip, 10, !sum(ip, 0));
        } else {
            put(ip, 4, bytes as u16);
        }
        tcp[13] |= frame[self.tcp + 13] & PSH;
        put(tcp, 16, seed);
        let gso_type = if ip.len() == IPV4_HEADER { GSO_TCPV4 } else { GSO_TCPV6 };
        let vnet = VnetHeader {
            flags: VnetHeader::NEEDS_CHECKSUM,
            gso_type,
            header_len: self.headers as u16,
            gso_size: segment,
            checksum_start: self.tcp as u16,
            checksum_offset: 16,
        };
        packet[..VnetHeader::LEN].copy_from_slice(&vnet.to_bytes());
        *self = Self { payload, segment, is_super_frame: true, ..*self };
        true
    }

    /// The segment size that both can have without a segment becoming larger than its sender made them.
    fn common_segment(self, next: Self) -> Option<u16> {
        match (self.is_super_frame, next.is_super_frame) {
            (true, true) => (self.segment == next.segment).then_some(self.segment),
            (true, false) => (next.segment <= self.segment).then_some(self.segment),
            (false, true) => (self.segment <= next.segment).then_some(next.segment),
            (false, false) => Some(self.segment.max(next.segment)),
        }
    }

    fn same_headers(self, one: &[u8], other: &[u8]) -> bool {
        let same = |from: usize, to: usize| one.get(from..to) == other.get(from..to);
        let (ip, tcp) = (self.ip, self.tcp);
        let network = if tcp - ip == IPV4_HEADER {
            // All but length, identification and checksum.
            same(0, ip + 2) && same(ip + 6, ip + 10) && same(ip + 12, tcp)
        } else {
            same(0, ip + 4) && same(ip + 6, tcp)
        };
        // All but sequence number, flags (which were looked at) and checksum.
        network
            && same(tcp, tcp + 4)
            && same(tcp + 8, tcp + 13)
            && same(tcp + 14, tcp + 16)
            && same(tcp + 18, self.headers)
    }
}

/// Where the network header starts, and the kind of super-frame that goes with it: IPv4 without options that must not
/// be fragmented, or IPv6 without extension headers, directly behind Ethernet with up to two tags, directly in front of
/// TCP, and as long as the frame. Inside of a tunnel nothing is joined.
fn network_header(frame: &[u8], tcp: usize) -> Option<(usize, u8)> {
    let half = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk::<2>()?));
    let mut ethertype = 12;
    while ethertype < 20 && matches!(half(ethertype)?, 0x8100 | 0x88a8) {
        ethertype += 4;
    }
    let ip = ethertype + 2;
    let rest = frame.get(ip..)?;
    match (half(ethertype)?, tcp.checked_sub(ip)?) {
        (0x0800, IPV4_HEADER) => {
            let whole = usize::from(half(ip + 2)?) == rest.len();
            // Don't fragment, and nothing else.
            let atomic = half(ip + 6)? == 0x4000;
            (whole && atomic && rest[0] == 0x45 && rest[9] == 6).then_some((ip, GSO_TCPV4))
        }
        (0x86dd, IPV6_HEADER) => {
            let whole = usize::from(half(ip + 4)?) == rest.len() - IPV6_HEADER;
            (whole && rest[0] >> 4 == 6 && rest[6] == 6).then_some((ip, GSO_TCPV6))
        }
        _ => None,
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// One's complement addition (RFC 1071).
fn add(one: u16, other: u16) -> u16 {
    let (sum, carry) = one.overflowing_add(other);
    sum + u16::from(carry)
}

/// Adds an even number of bytes as 16-bit words.
fn sum(bytes: &[u8], start: u16) -> u16 {
    let words = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    words.fold(start, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a test varies of a segment.
    #[derive(Clone)]
    struct Segment {
        ipv6: bool,
        /// In front of the network header's type.
        tags: &'static [u8],
        sequence: u32,
        flags: u8,
        payload: Vec<u8>,
        gso_size: u16,
    }

    impl Default for Segment {
        fn default() -> Self {
            let payload = (0..4000).map(|at| (at % 251) as u8).collect();
            Self {
                ipv6: false,
                tags: &[],
                sequence: u32::MAX - 1000,
                flags: ACK,
                payload,
                gso_size: 1448,
            }
        }
    }

    impl Segment {
        /// The one behind it.
        fn next(&self, bytes: usize, gso_size: u16) -> Self {
            let sequence = self.sequence.wrapping_add(self.payload.len() as u32);
            Self { sequence, payload: vec![7; bytes], gso_size, ..self.clone() }
        }

        /// As a sender's kernel makes it: offload header and frame.
        fn packet(&self) -> Vec<u8> {
            let tcp_bytes = 32 + self.payload.len();
            let mut frame = [&[2; 12], self.tags].concat();
            let addresses: Vec<u8> =
                if self.ipv6 { (10..42).collect() } else { (10..18).collect() };
            if self.ipv6 {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 9]);
                frame.extend((tcp_bytes as u16).to_be_bytes());
                frame.extend([6, 64]);
            } else {
                frame.extend([0x08, 0x00, 0x45, 0]);
                frame.extend((20 + tcp_bytes as u16).to_be_bytes());
                frame.extend(self.sequence.to_be_bytes()[..2].iter().chain(&[0x40, 0, 64, 6]));
                let start = frame.len() - 10;
                let sum = sum(&frame[start..], sum(&addresses, 0));
                frame.extend((!sum).to_be_bytes());
            }
            frame.extend(&addresses);
            let tcp = frame.len();
            frame.extend([0x01, 0xbb, 0xc0, 0x01]);
            frame.extend(self.sequence.to_be_bytes());
            frame.extend([1, 2, 3, 4, 8 << 4, self.flags, 0x20, 0]);
            frame.extend(sum(&addresses, add(6, tcp_bytes as u16)).to_be_bytes());
            frame.extend([0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
            frame.extend(&self.payload);
            let whole = self.payload.len() <= usize::from(self.gso_size);
            let kind = if self.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
            let vnet = VnetHeader {
                flags: VnetHeader::NEEDS_CHECKSUM,
                gso_type: if whole { VnetHeader::GSO_NONE } else { kind },
                header_len: if whole { 0 } else { tcp as u16 + 32 },
                gso_size: if whole { 0 } else { self.gso_size },
                checksum_start: tcp as u16,
                checksum_offset: 16,
            };
            [vnet.to_bytes().as_slice(), &frame].concat()
        }
    }

    fn piece(packet: &[u8]) -> Option<Piece> {
        let vnet = VnetHeader::from_bytes(*packet.first_chunk()?);
        Piece::of(vnet, &packet[VnetHeader::LEN..])
    }

    /// Both as one packet, if they belong together.
    fn join(one: &[u8], other: &[u8]) -> Option<Vec<u8>> {
        join_up_to(usize::MAX, one, other)
    }

    fn join_up_to(most: usize, one: &[u8], other: &[u8]) -> Option<Vec<u8>> {
        let (mut first, second) = (piece(one)?, piece(other)?);
        let headers = VnetHeader::LEN + first.headers();
        let mut joined = one.to_vec();
        first.append(&mut joined[..headers], second, &other[VnetHeader::LEN..], most).then(|| {
            joined.extend(&other[headers..]);
            assert_eq!(piece(&joined), Some(first), "what is known of it is what it says");
            joined
        })
    }

    /// What comes out must be what a sender that had written all at once would have sent.
    #[test]
    fn accepts_segments_that_follow_each_other() {
        for (ipv6, tags) in [
            (false, &[][..]),
            (true, &[]),
            (false, &[0x81, 0, 0, 5]),
            (true, &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5]),
        ] {
            let base = Segment { ipv6, tags, ..Segment::default() };
            let single = Segment { payload: vec![1; 1000], ..base.clone() };
            for (first, bytes, gso_size, expected) in [
                (&base, 5000, 1448, 1448),
                (&base, 1448, 1448, 1448),
                (&base, 3, 1448, 1448),
                (&single, 4000, 1448, 1448),
                (&single, 1200, 1448, 1200),
                (&single, 900, 1448, 1000),
                (&base, 65_535 - 66 - 4000 - 28, 1448, 1448),
            ] {
                let next = first.next(bytes, gso_size);
                let joined = join(&first.packet(), &next.packet());
                let payload = [first.payload.as_slice(), &next.payload].concat();
                let whole = Segment { payload, gso_size: expected, ..first.clone() };
                assert!(joined == Some(whole.packet()), "{bytes} behind {}", first.payload.len());
            }
        }
    }

    #[test]
    fn refuses_more_payload_than_is_wanted() {
        let (first, next) = (Segment::default(), Segment::default().next(5000, 1448));
        assert!(join_up_to(9000, &first.packet(), &next.packet()).is_some());
        assert_eq!(join_up_to(8999, &first.packet(), &next.packet()), None);
    }

    #[test]
    fn accepts_a_push_of_any_of_them() {
        let first = Segment::default();
        let pushed = Segment { flags: ACK | PSH, ..first.next(100, 1448) };
        let joined = join(&first.packet(), &pushed.packet()).expect("joined");
        let last = Segment { flags: ACK, sequence: pushed.sequence.wrapping_add(100), ..pushed };
        let joined = join(&joined, &last.packet()).expect("joined");
        let at = VnetHeader::LEN + 14 + 20 + 13;
        assert_eq!(joined[at], ACK | PSH);
    }

    #[test]
    fn refuses_what_does_not_follow_or_says_something_else() {
        let first = Segment::default();
        let next = first.next(2000, 1448);
        let one = first.packet();
        let sequence = next.sequence;
        for bad in [
            Segment { sequence: sequence.wrapping_add(1), ..next.clone() },
            Segment { sequence: sequence.wrapping_sub(1), ..next.clone() },
            first.clone(),
            // Together larger than interfaces take; the second by one byte.
            first.next(61_500, 1448),
            first.next(65_535 - 66 - 3999, 1448),
            // Its segments are larger, or of another size.
            Segment { gso_size: 1460, ..next.clone() },
            Segment { gso_size: 1400, ..next.clone() },
            Segment { payload: vec![0; 1500], gso_size: 1500, ..next.clone() },
        ] {
            assert_eq!(join(&one, &bad.packet()), None, "{} {}", bad.sequence, bad.gso_size);
        }
        // Each bit of the headers but identification and checksum of IPv4, and PSH.
        for ipv6 in [false, true] {
            let first = Segment { ipv6, ..first.clone() };
            let (one, other) = (first.packet(), first.next(2000, 1448).packet());
            let (ip, tcp) = (VnetHeader::LEN + 14, VnetHeader::LEN + if ipv6 { 54 } else { 34 });
            for bit in VnetHeader::LEN * 8..(tcp + 32) * 8 {
                let at = bit / 8;
                let free = match at {
                    _ if at >= tcp => at == tcp + 13 && bit % 8 == 3,
                    _ if at < ip || ipv6 => false,
                    _ => matches!(at - ip, 4 | 5 | 10 | 11),
                };
                let mut changed = other.clone();
                changed[at] ^= 1 << (bit % 8);
                assert_eq!(join(&one, &changed).is_some(), free, "byte {at}, bit {}", bit % 8);
            }
        }
    }

    #[test]
    fn refuses_frames_that_the_kernel_has_nothing_left_to_do_for() {
        let good = Segment::default();
        let with = |change: &dyn Fn(&mut VnetHeader)| {
            let mut packet = good.packet();
            let mut vnet = VnetHeader::from_bytes(*packet.first_chunk().expect("offload header"));
            change(&mut vnet);
            packet[..VnetHeader::LEN].copy_from_slice(&vnet.to_bytes());
            piece(&packet)
        };
        assert!(with(&|_| {}).is_some());
        assert!(with(&|vnet| vnet.flags = VnetHeader::DATA_VALID).is_none());
        assert!(with(&|vnet| vnet.flags = 0).is_none());
        assert!(with(&|vnet| vnet.gso_type = GSO_TCPV6).is_none());
        assert!(with(&|vnet| vnet.gso_type |= 0x80).is_none(), "ECN");
        assert!(with(&|vnet| vnet.checksum_offset = 6).is_none(), "UDP");
        for start in [0, 13, 19, 33, 35, 54, u16::MAX] {
            assert!(with(&|vnet| vnet.checksum_start = start).is_none(), "{start}");
        }
        for flags in [0, 2, 1 | ACK, 4 | ACK, 0x20 | ACK, 0x40 | ACK, 0x80 | ACK] {
            assert!(piece(&Segment { flags, ..good.clone() }.packet()).is_none(), "{flags:#x}");
        }
        assert!(
            piece(&Segment { payload: Vec::new(), ..good.clone() }.packet()).is_none(),
            "nothing"
        );
        let packet = good.packet();
        for length in VnetHeader::LEN..packet.len() {
            assert!(piece(&packet[..length]).is_none(), "cut at {length}");
        }
        assert!(piece(&[packet, vec![0]].concat()).is_none(), "padded");
        let tagged = Segment { tags: &[0x91, 0, 0, 5], ..good.clone() }.packet();
        assert!(piece(&tagged).is_none(), "a tag that the kernel does not segment behind");
        let tagged =
            Segment { tags: &[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 7], ..good }.packet();
        assert!(piece(&tagged).is_none(), "three tags");
    }

    /// Nothing that senders write makes it panic, and what is joined carries the payload of both.
    #[test]
    fn accepts_or_refuses_any_changed_frame() {
        let mut generator = fastrand::Rng::with_seed(1);
        let mut random = |below: usize| generator.usize(..below);
        let (mut joined, mut refused) = (0, 0);
        for round in 0..100_000 {
            let first = Segment {
                ipv6: round % 2 == 0,
                tags: [&[][..], &[0x81, 0, 0, 5]][round / 2 % 2],
                payload: vec![1; 1 + random(300)],
                ..Segment::default()
            };
            let mut packets = [first.packet(), first.next(1 + random(300), 200).packet()];
            for _ in 0..random(4) {
                let packet = &mut packets[random(2)];
                let at = random(packet.len().min(110));
                packet[at] = random(256) as u8;
            }
            if random(20) == 0 {
                let [packet, _] = &mut packets;
                packet.truncate(VnetHeader::LEN + random(packet.len() - VnetHeader::LEN));
            }
            let [one, other] = &packets;
            match join(one, other) {
                None => refused += 1,
                Some(whole) => {
                    assert_eq!(whole.len() - one.len(), piece(other).map_or(0, |it| it.payload));
                    assert!(whole.ends_with(&other[other.len() - 1..]));
                    joined += 1;
                }
            }
        }
        assert!(joined > 10_000 && refused > 10_000, "{joined} joined, {refused} refused");
    }

    /// GRE ends with the type of what it carries, as Ethernet does.
    #[test]
    fn refuses_what_is_inside_of_a_tunnel() {
        let inner = Segment { payload: vec![1; 100], ..Segment::default() };
        let packet = inner.packet();
        assert!(piece(&packet).is_some());
        let frame = &packet[VnetHeader::LEN..];
        let mut outer = [&[2; 12], &[0x86, 0xdd, 0x60, 0, 0, 0][..]].concat();
        outer.extend((4 + frame.len() as u16 - 14).to_be_bytes());
        outer.extend([47, 64]);
        outer.extend([3; 32]);
        outer.extend([0, 0, 0x08, 0x00]);
        let shift = outer.len() as u16 - 14;
        let vnet = VnetHeader::from_bytes(*packet.first_chunk().expect("offload header"));
        let vnet = vnet.shifted(shift);
        assert_eq!(Piece::of(vnet, &[&outer, &frame[14..]].concat()), None);
    }
}
