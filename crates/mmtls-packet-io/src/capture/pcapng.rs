//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng), one at a time.
//!
//! Packet and secrets blocks are taken apart here, without their options: a hostile file can put millions of empty
//! options into a block, and none is of use. Section and interface descriptions, limited to 1 MiB, are parsed by
//! `pcap-parser`; blocks of other types are skipped unseen.

use std::ops::Range;

use pcap_parser::{
    DSB_MAGIC, EPB_MAGIC, IDB_MAGIC, OptionCode, SHB_MAGIC, SPB_MAGIC,
    parse_interfacedescriptionblock_be, parse_interfacedescriptionblock_le,
    parse_sectionheaderblock,
};

use super::error::CaptureError;
use super::limits::MAX_BLOCK_BYTES;

/// The "packet block" that the enhanced one replaced.
const OBSOLETE_PACKET: u32 = 2;
const MAX_DESCRIPTION_BYTES: usize = 1 << 20;
const MAX_INTERFACES: usize = 65536;
const BYTE_ORDER_LE: [u8; 4] = 0x1a2b_3c4d_u32.to_le_bytes();
const BYTE_ORDER_BE: [u8; 4] = 0x1a2b_3c4d_u32.to_be_bytes();

/// What is known of the current section.
#[derive(Debug, Default)]
pub(super) struct Section {
    big_endian: bool,
    interfaces: Vec<Interface>,
    /// Simple packet blocks have no time of their own.
    last_timestamp_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: u16,
    snap_length: u32,
    time_resolution: u8,
    time_offset_seconds: i64,
}

/// Type and length of a block, its length checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockHeader {
    kind: u32,
    pub(super) length: usize,
}

/// What a block holds. Ranges count from the start of the block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    Packet { timestamp_ns: u64, link_type: u16, data: Range<usize>, original_len: usize },
    Secrets { kind: u32, data: Range<usize> },
    Other,
}

impl Section {
    /// Bytes that [`Self::header`] needs.
    pub(super) const HEADER_BYTES: usize = 12;

    /// Reads a block's header. A section header also sets the byte order, since even its length needs that.
    pub(super) fn header(
        &mut self,
        bytes: &[u8],
        offset: u64,
    ) -> Result<BlockHeader, CaptureError> {
        let short = CaptureError::Truncated { offset, what: "block header" };
        let Some(order) = bytes.get(8..12) else { return Err(short) };
        if bytes.starts_with(&SHB_MAGIC.to_le_bytes()) {
            self.big_endian = match order {
                order if order == BYTE_ORDER_LE => false,
                order if order == BYTE_ORDER_BE => true,
                _ => {
                    let reason = "section header without byte-order magic";
                    return Err(CaptureError::Malformed { offset, reason });
                }
            };
        }
        let (Some(kind), Some(length)) = (self.word(bytes, 0), self.word(bytes, 4)) else {
            return Err(short);
        };
        let length = length as usize;
        let (what, limit) = match kind {
            SHB_MAGIC => ("section header", MAX_DESCRIPTION_BYTES),
            IDB_MAGIC => ("interface description", MAX_DESCRIPTION_BYTES),
            DSB_MAGIC => ("secrets block", MAX_BLOCK_BYTES),
            EPB_MAGIC | SPB_MAGIC | OBSOLETE_PACKET => ("packet block", MAX_BLOCK_BYTES),
            _ => ("block", MAX_BLOCK_BYTES),
        };
        if length > limit {
            return Err(CaptureError::TooLarge { offset, what, length: length as u64 });
        }
        if length < 12 || !length.is_multiple_of(4) {
            return Err(CaptureError::Malformed { offset, reason: "impossible block length" });
        }
        Ok(BlockHeader { kind, length })
    }

    /// Takes a whole block apart.
    pub(super) fn block(
        &mut self,
        header: BlockHeader,
        block: &[u8],
        offset: u64,
    ) -> Result<Content, CaptureError> {
        let malformed = |reason| CaptureError::Malformed { offset, reason };
        if self.word(block, block.len().saturating_sub(4)) != Some(header.length as u32) {
            return Err(malformed("the two lengths of the block differ"));
        }
        match header.kind {
            SHB_MAGIC => self.section_header(block).map_err(malformed)?,
            IDB_MAGIC => self.interface_description(block).map_err(malformed)?,
            EPB_MAGIC => {
                let interface = self.word(block, 8);
                return self.packet(block, offset, interface);
            }
            OBSOLETE_PACKET => {
                let interface = self.half(block, 8).map(u32::from);
                return self.packet(block, offset, interface);
            }
            SPB_MAGIC => return self.simple_packet(block, offset),
            DSB_MAGIC => {
                let (kind, length) = (self.word(block, 8), self.word(block, 12));
                let data = length.and_then(|length| inner(block, 16, length));
                return match (kind, data) {
                    (Some(kind), Some(data)) => Ok(Content::Secrets { kind, data }),
                    _ => Err(malformed("secrets exceed their block")),
                };
            }
            _ => {}
        }
        Ok(Content::Other)
    }

    fn section_header(&mut self, block: &[u8]) -> Result<(), &'static str> {
        let (_, header) = parse_sectionheaderblock(block).map_err(|_| "bad section header")?;
        if header.major_version != 1 {
            return Err("unknown pcapng version");
        }
        self.interfaces.clear();
        Ok(())
    }

    fn interface_description(&mut self, block: &[u8]) -> Result<(), &'static str> {
        if self.interfaces.len() == MAX_INTERFACES {
            return Err("more than 65536 interfaces");
        }
        let parsed = if self.big_endian {
            parse_interfacedescriptionblock_be(block)
        } else {
            parse_interfacedescriptionblock_le(block)
        };
        let (_, description) = parsed.map_err(|_| "bad interface description")?;
        // The parser reads this option as little-endian always.
        let offset =
            description.options.iter().find(|option| option.code == OptionCode::IfTsoffset);
        let offset = offset.and_then(|option| option.value().first_chunk::<8>().copied());
        let offset = offset.unwrap_or_default();
        self.interfaces.push(Interface {
            link_type: description.linktype.0 as u16,
            snap_length: description.snaplen,
            time_resolution: description.if_tsresol,
            time_offset_seconds: if self.big_endian {
                i64::from_be_bytes(offset)
            } else {
                i64::from_le_bytes(offset)
            },
        });
        Ok(())
    }

    /// Enhanced and obsolete packet blocks differ only in how they name the interface.
    fn packet(
        &mut self,
        block: &[u8],
        offset: u64,
        interface: Option<u32>,
    ) -> Result<Content, CaptureError> {
        let fields = (interface, self.word(block, 12), self.word(block, 16), self.word(block, 24));
        let (Some(interface), Some(high), Some(low), Some(original)) = fields else {
            return Err(CaptureError::Malformed { offset, reason: "packet block too short" });
        };
        let captured = self.word(block, 20).unwrap_or(u32::MAX);
        let Some(data) = inner(block, 28, captured) else {
            return Err(CaptureError::Malformed { offset, reason: "packet exceeds its block" });
        };
        let Some(described) = self.interfaces.get(interface as usize) else {
            return Err(CaptureError::UnknownInterface { offset, interface });
        };
        let timestamp_ns = described.nanoseconds(u64::from(high) << 32 | u64::from(low));
        self.last_timestamp_ns = timestamp_ns;
        let original_len = original as usize;
        Ok(Content::Packet { timestamp_ns, link_type: described.link_type, data, original_len })
    }

    fn simple_packet(&self, block: &[u8], offset: u64) -> Result<Content, CaptureError> {
        let Some(original) = self.word(block, 8) else {
            return Err(CaptureError::Malformed { offset, reason: "packet block too short" });
        };
        let Some(described) = self.interfaces.first() else {
            return Err(CaptureError::UnknownInterface { offset, interface: 0 });
        };
        let limit = if described.snap_length == 0 { u32::MAX } else { described.snap_length };
        let captured = original.min(limit);
        let Some(data) = inner(block, 12, captured) else {
            return Err(CaptureError::Malformed { offset, reason: "packet exceeds its block" });
        };
        let timestamp_ns = self.last_timestamp_ns;
        let (link_type, original_len) = (described.link_type, original as usize);
        Ok(Content::Packet { timestamp_ns, link_type, data, original_len })
    }

    fn word(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn half(&self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }
}

impl Interface {
    /// Units of if_tsresol, shifted by if_tsoffset, to nanoseconds of the epoch; saturating.
    fn nanoseconds(self, units: u64) -> u64 {
        let scaled = u128::from(units) * 1_000_000_000;
        let exponent = u32::from(self.time_resolution & 0x7f);
        let nanoseconds = if self.time_resolution & 0x80 != 0 {
            scaled >> exponent
        } else {
            // From 10^39 on nothing is left of a 64-bit number of units anyway.
            10u128.checked_pow(exponent).map_or(0, |per_second| scaled / per_second)
        };
        // At most 2^94, and at most 2^93 below zero.
        let shifted = nanoseconds as i128 + i128::from(self.time_offset_seconds) * 1_000_000_000;
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }
}

/// The range of `length` bytes from `at`, inside the block and in front of its final length.
fn inner(block: &[u8], at: usize, length: u32) -> Option<Range<usize>> {
    let end = at.checked_add(length as usize)?;
    (end <= block.len().checked_sub(4)?).then_some(at..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(time_resolution: u8, time_offset_seconds: i64) -> Interface {
        Interface { link_type: 1, snap_length: 0, time_resolution, time_offset_seconds }
    }

    #[test]
    fn accepts_all_time_resolutions() {
        assert_eq!(interface(6, 0).nanoseconds(1_500_001), 1_500_001_000);
        assert_eq!(interface(9, 0).nanoseconds(7), 7);
        assert_eq!(interface(0, 0).nanoseconds(3), 3_000_000_000);
        assert_eq!(interface(12, 0).nanoseconds(7_999), 7);
        assert_eq!(interface(0x80 | 10, 0).nanoseconds(1536), 1_500_000_000);
        assert_eq!(interface(9, 2).nanoseconds(5), 2_000_000_005);
        assert_eq!(interface(9, -2).nanoseconds(5_000_000_000), 3_000_000_000);
    }

    #[test]
    fn accepts_absurd_times_by_saturating() {
        assert_eq!(interface(0, 0).nanoseconds(u64::MAX), u64::MAX);
        assert_eq!(interface(0, i64::MAX).nanoseconds(u64::MAX), u64::MAX);
        assert_eq!(interface(127, 0).nanoseconds(u64::MAX), 0);
        assert_eq!(interface(255, 0).nanoseconds(u64::MAX), 0);
        assert_eq!(interface(9, i64::MIN).nanoseconds(0), 0);
    }
}
