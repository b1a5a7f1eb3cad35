//! What carries IP packets in a form that is not looked into: tunnels and other frame formats.
//!
//! To unpack them would mean to follow their fragments, compression and options as each receiver does. Tunnels over UDP are
//! known by the port that they go to and nothing else, since receivers differ in what they check of the rest.
//!
//! Refuses to unpack them: that they are there is named, and the caller's policy decides. Tunnels
//! whose content is encrypted (ESP, WireGuard, MACsec) are not among them: who has their keys is an
//! end of them.

/// EtherTypes behind which IP may stand (IEEE 802, IANA).
const ETHER_TYPES: [u16; 14] = [
    0x8847, // MPLS
    0x8848, // MPLS, multicast
    0x880b, // PPP
    0x876b, // TCP/IP compression
    0x88e7, // provider backbone bridges (802.1ah)
    0x893f, // 802.1BR
    0x8926, // VN-Tag
    0x8909, // Cisco MetaData
    0x894f, // network service header (RFC 8300)
    0x22f3, // TRILL (RFC 6325)
    0x6558, // Ethernet in GRE
    0x9200, // VLAN tags of some vendors
    0x9300, 0x88b7, // OUI extended
];
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const PPPOE_SESSION: u16 = 0x8864;
const JUMBO_LLC: u16 = 0x8870;

/// From here on the field is a type and not a length (IEEE 802.3, clause 3.2.6).
const FIRST_TYPE: u16 = 0x0600;

/// Service access points of LLC: IP itself (RFC 948), and SNAP (RFC 1042).
const SAP_IP: u8 = 0x06;
const SAP_SNAP: u8 = 0xaa;

/// Protocol numbers under which a whole packet or frame follows (IANA).
const PROTOCOLS: [u8; 12] = [
    4,   // IPv4 (RFC 2003)
    41,  // IPv6 (RFC 4213)
    47,  // GRE (RFC 2784)
    55,  // minimal encapsulation (RFC 2004)
    94,  // IP in IP
    97,  // Ethernet (RFC 3378)
    98,  // RFC 1241
    108, // compressed IP (RFC 3173)
    115, // L2TP (RFC 3931)
    137, // MPLS (RFC 4023)
    143, // Ethernet (RFC 8986)
    145, // network service header
];

/// Ports of UDP that tunnels listen on. Only what goes there is meant, whatever its content: what
/// else a receiver checks differs among them.
const UDP_PORTS: [u16; 12] = [
    1701,  // L2TP (RFC 2661)
    2152,  // GTP-U
    3544,  // Teredo (RFC 4380)
    4341,  // LISP (RFC 9300)
    4789,  // VXLAN (RFC 7348)
    4790,  // VXLAN-GPE
    5247,  // CAPWAP (RFC 5415)
    6080,  // GUE
    6081,  // Geneve (RFC 8926)
    6635,  // MPLS (RFC 7510)
    8472,  // VXLAN of Linux
    37008, // TZSP
];

/// Whether IP is carried behind this EtherType or length field, in a form that is not followed;
/// `rest` is what follows the field.
#[cold]
pub(super) fn by_ether_type(ether_type: u16, rest: &[u8]) -> bool {
    match ether_type {
        PPPOE_SESSION => is_ppp_data(rest),
        JUMBO_LLC => is_llc_ip(rest),
        length if length < FIRST_TYPE => is_llc_ip(rest),
        other => ETHER_TYPES.contains(&other),
    }
}

/// IP, or something that IP may stand in, behind an LLC header.
fn is_llc_ip(llc: &[u8]) -> bool {
    match *llc {
        [SAP_IP, ..] => true,
        // Whatever the organisation: bridges translate more than one.
        [SAP_SNAP, SAP_SNAP, _, _, _, _, high, low, ..] => {
            let inner = u16::from_be_bytes([high, low]);
            [IPV4, IPV6, PPPOE_SESSION].contains(&inner)
                || VLAN.contains(&inner)
                || ETHER_TYPES.contains(&inner)
        }
        _ => false,
    }
}

/// Packets in a PPPoE session (RFC 2516), and not what sets it up: protocols from 0x8000 on
/// (RFC 1661, section 2).
fn is_ppp_data(pppoe: &[u8]) -> bool {
    match pppoe.get(6) {
        // Odd: a number that was compressed to one byte (RFC 1661, section 6.5).
        Some(first) => *first < 0x80 || first & 1 == 1,
        None => false,
    }
}

/// Whether a packet or frame follows under this protocol number.
pub(super) fn by_protocol(protocol: u8) -> bool {
    PROTOCOLS.contains(&protocol)
}

/// Whether a datagram goes to a tunnel.
pub(super) fn by_udp(datagram: &[u8]) -> bool {
    matches!(datagram, [_, _, high, low, ..] if
        UDP_PORTS.contains(&u16::from_be_bytes([*high, *low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_carries_ip_and_refuses_what_sets_it_up() {
        let snap = |inner: [u8; 2]| [&[0xaa, 0xaa, 3, 0, 0, 0][..], &inner].concat();
        for (ether_type, rest, carries) in [
            (0x8847, vec![], true),
            (0x05dc, snap([8, 0]), true),
            (0x0040, snap([0x86, 0xdd]), true),
            (0x0040, vec![6, 6, 3], true),
            (JUMBO_LLC, snap([8, 0]), true),
            // Spanning tree, CDP, LLDP, ARP.
            (0x0026, vec![0x42, 0x42, 3, 0, 0], false),
            (0x0040, vec![0xaa, 0xaa, 3, 0, 0, 12, 0x20, 0], false),
            (0x88cc, vec![2, 7], false),
            (0x0806, vec![0, 1], false),
            (0x0040, vec![0xaa, 0xaa, 3], false),
            // IP in PPP, compressed too; LCP and what else negotiates.
            (PPPOE_SESSION, vec![0x11, 0, 0, 1, 0, 9, 0, 0x21, 0x45], true),
            (PPPOE_SESSION, vec![0x11, 0, 0, 1, 0, 9, 0x21, 0x45], true),
            (PPPOE_SESSION, vec![0x11, 0, 0, 1, 0, 9, 0xc0, 0x21, 1], false),
            (PPPOE_SESSION, vec![0x11, 0, 0, 1, 0, 9, 0x80, 0x21, 1], false),
            (0x8863, vec![0x11, 9, 0, 0], false),
        ] {
            assert_eq!(by_ether_type(ether_type, &rest), carries, "{ether_type:x} {rest:x?}");
        }
        assert!(by_protocol(47) && !by_protocol(50) && !by_protocol(6) && !by_protocol(58));
        assert!(by_udp(&[0, 53, 0x12, 0xb5]) && !by_udp(&[0x12, 0xb5, 0, 53]) && !by_udp(&[1, 2]));
    }
}
