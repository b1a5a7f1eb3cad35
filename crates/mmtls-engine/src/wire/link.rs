//! The link header. Refuses frames that carry no IP.

/// EtherTypes that matter here (IEEE 802).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const QINQ: u16 = 0x88a8;
const QINQ_OLD: u16 = 0x9100;

/// Most VLAN tags that are looked behind.
const MAX_VLAN_TAGS: usize = 2;

/// What a frame begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An Ethernet header, with up to two VLAN tags (802.1Q, 802.1ad).
    Ethernet,
    /// The IP header itself.
    Ip,
}

/// Splits a frame into link header (VLAN tags included) and IP packet; `None` when it carries
/// something else.
pub(crate) fn strip_link(link: Link, frame: &[u8]) -> Option<(&[u8], &[u8])> {
    if link == Link::Ip {
        return Some((&[], frame));
    }
    let mut at = 12;
    for _ in 0..=MAX_VLAN_TAGS {
        let ether_type = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
        match ether_type {
            IPV4 | IPV6 => return frame.split_at_checked(at + 2),
            VLAN | QINQ | QINQ_OLD => at += 4,
            _ => return None,
        }
    }
    None
}

/// A link header for the way back: its two addresses change places.
pub(crate) fn turned(link_header: &[u8]) -> Vec<u8> {
    let mut header = link_header.to_vec();
    if let Some(addresses) = header.get_mut(..12) {
        addresses.rotate_left(6);
    }
    header
}

/// VLAN identifiers of a link header, outer in the upper half; zero without tags.
pub(crate) fn vlan_of(link_header: &[u8]) -> u32 {
    let id = |at: usize| match link_header.get(at..at + 4) {
        // The last two bytes of a header are its EtherType: no tag starts there.
        Some(&[_, _, high, low]) => u32::from(u16::from_be_bytes([high, low]) & 0x0fff),
        _ => 0,
    };
    match link_header.len() {
        0..=14 => 0,
        18 => id(12),
        _ => id(12) << 16 | id(16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tags: &[u16]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for tag in tags {
            frame.extend_from_slice(&tag.to_be_bytes());
            frame.extend_from_slice(&[0, 5]);
        }
        frame.extend_from_slice(&IPV4.to_be_bytes());
        frame.extend_from_slice(&[0x45]);
        frame
    }

    #[test]
    fn accepts_plain_vlan_and_qinq() {
        for (tags, header) in [(&[][..], 14), (&[VLAN], 18), (&[QINQ, VLAN], 22)] {
            let frame = frame(tags);
            let (link, ip) = strip_link(Link::Ethernet, &frame).unwrap();
            assert_eq!((link.len(), ip), (header, &[0x45][..]));
            let expected = [0, 5, 5 << 16 | 5][tags.len()];
            assert_eq!(vlan_of(link), expected);
        }
    }

    #[test]
    fn refuses_three_tags_other_types_and_short_frames() {
        assert!(strip_link(Link::Ethernet, &frame(&[QINQ, VLAN, VLAN])).is_none());
        let mut arp = frame(&[]);
        arp[13] = 6;
        assert!(strip_link(Link::Ethernet, &arp).is_none());
        for len in 0..14 {
            assert!(strip_link(Link::Ethernet, &frame(&[])[..len]).is_none());
        }
    }
}
