//! A TCP header view (RFC 9293, section 3.1). Refuses headers longer than the segment.

use core::ops::Range;

/// TCP control bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const ACK: u8 = 0x10;
    pub(crate) const URG: u8 = 0x20;

    pub(crate) const fn fin(self) -> bool {
        self.0 & Self::FIN != 0
    }
    pub(crate) const fn syn(self) -> bool {
        self.0 & Self::SYN != 0
    }
    pub(crate) const fn rst(self) -> bool {
        self.0 & Self::RST != 0
    }
    pub(crate) const fn ack(self) -> bool {
        self.0 & Self::ACK != 0
    }
    pub(crate) const fn urg(self) -> bool {
        self.0 & Self::URG != 0
    }
}

mod field {
    use super::Range;
    pub(super) const SOURCE_PORT: usize = 0;
    pub(super) const DESTINATION_PORT: usize = 2;
    pub(super) const SEQUENCE: Range<usize> = 4..8;
    pub(super) const ACKNOWLEDGMENT: Range<usize> = 8..12;
    pub(super) const DATA_OFFSET: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const WINDOW: usize = 14;
    pub(super) const MIN_LEN: usize = 20;
}

/// A TCP segment whose header has been checked against its length.
#[derive(Clone, Copy)]
pub(crate) struct TcpView<'a> {
    header: &'a [u8; field::MIN_LEN],
    bytes: &'a [u8],
    payload: &'a [u8],
}

impl<'a> TcpView<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = bytes.first_chunk::<{ field::MIN_LEN }>()?;
        let header_len = usize::from(header[field::DATA_OFFSET] >> 4) * 4;
        if header_len < field::MIN_LEN {
            return None;
        }
        let payload = bytes.get(header_len..)?;
        Some(Self { header, bytes, payload })
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.header[at], self.header[at + 1]])
    }

    fn u32_at(&self, range: Range<usize>) -> u32 {
        let at = range.start;
        u32::from_be_bytes([
            self.header[at],
            self.header[at + 1],
            self.header[at + 2],
            self.header[at + 3],
        ])
    }

    pub(crate) fn source_port(&self) -> u16 {
        self.u16_at(field::SOURCE_PORT)
    }

    pub(crate) fn destination_port(&self) -> u16 {
        self.u16_at(field::DESTINATION_PORT)
    }

    pub(crate) fn sequence(&self) -> u32 {
        self.u32_at(field::SEQUENCE)
    }

    pub(crate) fn acknowledgment(&self) -> u32 {
        self.u32_at(field::ACKNOWLEDGMENT)
    }

    pub(crate) fn flags(&self) -> Flags {
        Flags(self.header[field::FLAGS])
    }

    /// The window field, not scaled.
    pub(crate) fn window(&self) -> u16 {
        self.u16_at(field::WINDOW)
    }

    /// The window scale option (RFC 7323, section 2), which counts in a SYN only.
    pub(crate) fn window_scale(&self) -> Option<u8> {
        const WINDOW_SCALE: u8 = 3;
        const MAX_SCALE: u8 = 14;
        self.options().find_map(|(kind, value)| match (kind, value) {
            (WINDOW_SCALE, &[scale]) => Some(scale.min(MAX_SCALE)),
            _ => None,
        })
    }

    /// Whether it speaks multipath TCP (RFC 8684).
    pub(crate) fn is_multipath(&self) -> bool {
        const MULTIPATH: u8 = 30;
        self.options().any(|(kind, _)| kind == MULTIPATH)
    }

    /// Kinds and values of the options, up to one that is cut off.
    fn options(&self) -> impl Iterator<Item = (u8, &'a [u8])> {
        const END: u8 = 0;
        const NO_OPERATION: u8 = 1;
        let header_len = self.bytes.len() - self.payload.len();
        let mut rest = self.bytes.get(field::MIN_LEN..header_len).unwrap_or_default();
        core::iter::from_fn(move || {
            while let [NO_OPERATION, behind @ ..] = rest {
                rest = behind;
            }
            match *rest {
                [] | [END, ..] => None,
                // A length below 2 would not move on.
                [kind, len, ..] if len >= 2 => {
                    let (option, behind) = rest.split_at_checked(usize::from(len))?;
                    rest = behind;
                    Some((kind, option.get(2..)?))
                }
                _ => None,
            }
        })
    }

    /// The whole segment, header included.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_a_window_scale_among_options() {
        let with = |options: &[u8]| {
            let mut bytes = vec![0; 20];
            bytes.extend_from_slice(options);
            bytes[12] = u8::try_from(bytes.len() / 4).unwrap() << 4;
            TcpView::parse(&bytes).unwrap().window_scale()
        };
        assert_eq!(with(&[2, 4, 5, 0xb4, 1, 3, 3, 7]), Some(7));
        assert_eq!(with(&[3, 3, 99, 0]), Some(14));
        for none in [&[][..], &[0, 0, 0, 0], &[8, 0, 0, 0], &[8, 200, 3, 3], &[3, 3, 3, 3][..0]] {
            assert_eq!(with(none), None);
        }
    }

    #[test]
    fn names_multipath_tcp() {
        let with = |options: &[u8]| {
            let mut bytes = vec![0; 20];
            bytes.extend_from_slice(options);
            bytes[12] = u8::try_from(bytes.len() / 4).unwrap() << 4;
            TcpView::parse(&bytes).unwrap().is_multipath()
        };
        assert!(with(&[2, 4, 5, 0xb4, 1, 1, 30, 4, 1, 0x81, 0, 0]));
        assert!(!with(&[2, 4, 5, 0xb4, 1, 3, 3, 30]));
        assert!(!with(&[0, 30, 4, 0]));
    }

    #[test]
    fn accepts_options_and_refuses_impossible_offsets() {
        let mut bytes = vec![0; 26];
        bytes[12] = 0x60;
        bytes[24] = 7;
        assert_eq!(TcpView::parse(&bytes).unwrap().payload(), [7, 0]);
        bytes[12] = 0x40;
        assert!(TcpView::parse(&bytes).is_none());
        bytes[12] = 0x70;
        assert!(TcpView::parse(&bytes).is_none());
        assert!(TcpView::parse(&bytes[..19]).is_none());
    }
}
