//! The link header. Refuses frames that carry no IP.

use super::tunnel;

/// EtherTypes that matter here (IEEE 802).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const QINQ: u16 = 0x88a8;
const QINQ_OLD: u16 = 0x9100;

/// Most VLAN tags that are looked behind.
const MAX_VLAN_TAGS: usize = 2;
/// Most VLAN tags behind which it is looked what there is.
const MAX_VLAN_TAGS_SEEN: usize = 16;

/// What a frame begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// An Ethernet header, with up to two VLAN tags (802.1Q, 802.1ad).
    Ethernet,
    /// The IP header itself.
    Ip,
}

/// What is behind the link header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stripped<'a> {
    /// The link header, VLAN tags included, and the IP packet.
    Ip(&'a [u8], &'a [u8]),
    /// No IP.
    Other,
    /// IP in a form that is not followed.
    Encapsulated,
    /// IP behind more VLAN tags than are followed, or so many tags that receivers may find anything.
    TooManyTags,
}

/// Splits a frame.
pub(crate) fn strip_link(link: Link, frame: &[u8]) -> Stripped<'_> {
    if link == Link::Ip {
        return Stripped::Ip(&[], frame);
    }
    let mut at = 12;
    for tags in 0..=MAX_VLAN_TAGS_SEEN {
        let Some(&[high, low]) = frame.get(at..at + 2) else {
            return Stripped::Other;
        };
        match u16::from_be_bytes([high, low]) {
            IPV4 | IPV6 if tags <= MAX_VLAN_TAGS => {
                let (header, packet) = frame.split_at(at + 2);
                return Stripped::Ip(header, packet);
            }
            IPV4 | IPV6 => return Stripped::TooManyTags,
            VLAN | QINQ | QINQ_OLD => at += 4,
            other => {
                let rest = frame.get(at + 2..).unwrap_or(&[]);
                return match tunnel::by_ether_type(other, rest) {
                    true => Stripped::Encapsulated,
                    false => Stripped::Other,
                };
            }
        }
    }
    Stripped::TooManyTags
}

/// A link header for the way back: its two addresses change places.
pub(crate) fn turned(link_header: &[u8]) -> Vec<u8> {
    let mut header = link_header.to_vec();
    if let Some(addresses) = header.get_mut(..12) {
        addresses.rotate_left(6);
    }
    header
}

/// Destination and source of an Ethernet header; `None` where there is none.
pub(crate) fn link_addresses(link_header: &[u8]) -> Option<[[u8; 6]; 2]> {
    let (addresses, _) = link_header.get(..12)?.as_chunks::<6>();
    addresses.try_into().ok()
}

/// VLAN identifiers of a link header, outer in the upper half; zero without tags. Identifier 0 is
/// no VLAN, only a priority: receivers pass over such a tag.
pub(crate) fn vlan_of(link_header: &[u8]) -> u32 {
    let id = |at: usize| match link_header.get(at..at + 4) {
        // The last two bytes of a header are its EtherType: no tag starts there.
        Some(&[_, _, high, low]) => u32::from(u16::from_be_bytes([high, low]) & 0x0fff),
        _ => 0,
    };
    match link_header.len() {
        0..=14 => 0,
        18 => id(12),
        _ if id(12) == 0 || id(16) == 0 => id(12) | id(16),
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
            let Stripped::Ip(link, ip) = strip_link(Link::Ethernet, &frame) else {
                panic!("IP");
            };
            assert_eq!((link.len(), ip), (header, &[0x45][..]));
            let expected = [0, 5, 5 << 16 | 5][tags.len()];
            assert_eq!(vlan_of(link), expected);
        }
    }

    #[test]
    fn refuses_three_tags_other_types_and_short_frames() {
        let three = frame(&[QINQ, VLAN, VLAN]);
        assert_eq!(strip_link(Link::Ethernet, &three), Stripped::TooManyTags);
        assert_eq!(strip_link(Link::Ethernet, &frame(&[VLAN; 17])), Stripped::TooManyTags);
        let mut tagged_arp = three;
        tagged_arp[25] = 6;
        assert_eq!(strip_link(Link::Ethernet, &tagged_arp), Stripped::Other);
        let mut arp = frame(&[]);
        arp[13] = 6;
        assert_eq!(strip_link(Link::Ethernet, &arp), Stripped::Other);
        for len in 0..14 {
            assert_eq!(strip_link(Link::Ethernet, &frame(&[])[..len]), Stripped::Other);
        }
    }

    #[test]
    fn accepts_priority_tags_as_no_vlan() {
        let mut tagged = frame(&[VLAN, VLAN]);
        tagged[19] = 0;
        assert_eq!(vlan_of(&tagged[..22]), 5);
        tagged[15] = 0;
        assert_eq!(vlan_of(&tagged[..22]), 0);
    }
}
