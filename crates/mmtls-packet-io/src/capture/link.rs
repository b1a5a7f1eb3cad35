//! Link-layer headers of capture files: Ethernet is passed as it is, pseudo headers are taken off IP packets.

/// What the bytes of a packet start with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header.
    Ethernet,
    /// An IPv4 or IPv6 header.
    Ip,
}

/// What became of a packet's link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Normalised {
    /// The packet starts so many bytes further on.
    Packet { link: Link, skip: usize },
    /// A known header, but no IP packet behind it.
    NotIp,
    /// A header that this module does not know.
    Unsupported,
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const VLAN_ETHERTYPES: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Address families of IPv4 everywhere, and of IPv6 on NetBSD and OpenBSD, FreeBSD, macOS, Linux.
const FAMILIES: [u32; 5] = [2, 24, 28, 30, 10];

/// Finds the packet behind a link header, by LINKTYPE number (the low 16 bits of a pcap file's field).
pub(super) fn normalise(link_type: u16, bytes: &[u8]) -> Normalised {
    let skip = match link_type {
        1 => return Normalised::Packet { link: Link::Ethernet, skip: 0 },
        // 12 and 14 are the DLT_RAW of some systems, seen in files of careless programs.
        12 | 14 | 101 | 228 | 229 => Some(0),
        0 | 108 => family_header(bytes),
        113 => behind_ethertype(bytes, 14, 16),
        276 => behind_ethertype(bytes, 0, 20),
        _ => return Normalised::Unsupported,
    };
    let version = |skip| bytes.get(skip).map(|byte: &u8| byte >> 4);
    match skip.filter(|skip| matches!(version(*skip), Some(4 | 6))) {
        Some(skip) => Normalised::Packet { link: Link::Ip, skip },
        None => Normalised::NotIp,
    }
}

/// NULL (the capturing host's byte order) and LOOP (network byte order): an address family of four bytes.
fn family_header(bytes: &[u8]) -> Option<usize> {
    let family: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    let matches = |family: u32| FAMILIES.contains(&family);
    (matches(u32::from_be_bytes(family)) || matches(u32::from_le_bytes(family))).then_some(4)
}

/// Linux "cooked" headers: an ethertype at `at`, and VLAN tags behind the header of `length` bytes.
fn behind_ethertype(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    let half = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let mut ethertype = half(at)?;
    let mut skip = length;
    for _ in 0..2 {
        if VLAN_ETHERTYPES.contains(&ethertype) {
            ethertype = half(skip + 2)?;
            skip += 4;
        }
    }
    matches!(ethertype, ETHERTYPE_IPV4 | ETHERTYPE_IPV6).then_some(skip)
}

/// The name of a LINKTYPE that people may meet, for messages.
pub(super) const fn link_type_name(link_type: u16) -> &'static str {
    match link_type {
        9 => "PPP",
        105 => "IEEE 802.11",
        119 => "IEEE 802.11 with Prism header",
        127 => "IEEE 802.11 with radiotap header",
        147..=162 => "private use",
        163 => "IEEE 802.11 with AVS header",
        189 | 220 => "USB",
        187 | 201 => "Bluetooth HCI H4",
        195 | 230 => "IEEE 802.15.4",
        192 => "per-packet information",
        227 => "CAN",
        239 => "nflog",
        252 => "Wireshark upper PDU",
        253 => "netlink",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP4: [u8; 20] = [0x45; 20];

    fn with(header: &[u8]) -> Vec<u8> {
        [header, &IP4].concat()
    }

    fn ip(skip: usize) -> Normalised {
        Normalised::Packet { link: Link::Ip, skip }
    }

    #[test]
    fn accepts_ethernet_and_bare_ip() {
        assert_eq!(normalise(1, &[]), Normalised::Packet { link: Link::Ethernet, skip: 0 });
        for link_type in [101, 228, 229, 12, 14] {
            assert_eq!(normalise(link_type, &IP4), ip(0), "{link_type}");
        }
    }

    #[test]
    fn accepts_family_header_of_any_byte_order() {
        for header in [[2, 0, 0, 0], [0, 0, 0, 2], [30, 0, 0, 0], [0, 0, 0, 24]] {
            assert_eq!(normalise(0, &with(&header)), ip(4));
            assert_eq!(normalise(108, &with(&header)), ip(4));
        }
    }

    #[test]
    fn accepts_cooked_headers_with_and_without_tags() {
        let mut sll = [0; 16];
        sll[14..].copy_from_slice(&[0x08, 0x00]);
        assert_eq!(normalise(113, &with(&sll)), ip(16));
        let mut sll2 = [0; 20];
        sll2[..2].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(normalise(276, &with(&sll2)), ip(20));
        sll2[..2].copy_from_slice(&[0x81, 0x00]);
        let tagged = [sll2.as_slice(), &[0, 5, 0x08, 0x00]].concat();
        assert_eq!(normalise(276, &with(&tagged)), ip(24));
    }

    #[test]
    fn refuses_what_carries_no_ip() {
        let mut arp = [0; 16];
        arp[14..].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(normalise(113, &with(&arp)), Normalised::NotIp);
        assert_eq!(normalise(0, &with(&[7, 0, 0, 0])), Normalised::NotIp);
        assert_eq!(normalise(101, &[0x15; 20]), Normalised::NotIp);
        assert_eq!(normalise(127, &IP4), Normalised::Unsupported);
        for link_type in [0, 101, 108, 113, 276] {
            assert_eq!(normalise(link_type, &[]), Normalised::NotIp);
        }
    }
}
