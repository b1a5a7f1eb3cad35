//! Writing pcapng: one section, one Ethernet interface with nanosecond times, packets and secrets.
//!
//! Refuses packets and secrets larger than the reader of this crate takes.

use std::io::{self, Write};

use super::{MAX_BLOCK_BYTES, SecretsKind};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const DECRYPTION_SECRETS: u32 = 10;
const COMMENT: u16 = 1;
/// Bytes of the largest fixed part of a block, block header and trailer included.
const LARGEST_OVERHEAD: usize = 32;
/// Longest comment of a packet in bytes; what is beyond is left out.
const MAX_COMMENT: usize = 256;

/// Writes a pcapng file. Wrap files in a `BufWriter`; each packet is a few small writes.
pub struct PcapngWriter<W: Write> {
    out: W,
}

impl<W: Write> PcapngWriter<W> {
    /// Writes the headers.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = Self { out };
        // Byte-order magic, version 1.0, section length unknown.
        let mut section = Vec::with_capacity(16);
        section.extend(0x1a2b_3c4d_u32.to_le_bytes());
        section.extend([1, 0, 0, 0]);
        section.extend([0xff; 8]);
        writer.block(SECTION_HEADER, &section, &[], &[])?;
        // Ethernet, no snap length; if_tsresol 9; end of options.
        let interface = [1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        writer.block(INTERFACE_DESCRIPTION, &interface, &[], &[])?;
        Ok(writer)
    }

    /// Writes a secrets block. Readers want it before the packets that it is for.
    ///
    /// # Errors
    /// Those of the writer; `InvalidInput` when too large.
    pub fn secrets(&mut self, kind: SecretsKind, bytes: &[u8]) -> io::Result<()> {
        let mut fixed = [0; 8];
        fixed[..4].copy_from_slice(&kind.0.to_le_bytes());
        fixed[4..].copy_from_slice(&length_field(bytes.len())?.to_le_bytes());
        self.block(DECRYPTION_SECRETS, &fixed, bytes, &[])
    }

    /// Writes a packet that starts with an Ethernet header. `original_len` is its length on the wire.
    ///
    /// # Errors
    /// Those of the writer; `InvalidInput` when too large.
    pub fn packet(
        &mut self,
        timestamp_ns: u64,
        bytes: &[u8],
        original_len: usize,
    ) -> io::Result<()> {
        self.enhanced_packet(timestamp_ns, bytes, original_len, &[])
    }

    /// As [`Self::packet`], of a packet that was not cut, with a text that readers show beside it.
    ///
    /// # Errors
    /// As [`Self::packet`].
    pub fn commented_packet(
        &mut self,
        timestamp_ns: u64,
        bytes: &[u8],
        comment: &str,
    ) -> io::Result<()> {
        let text = comment.as_bytes();
        let text = text.get(..MAX_COMMENT).unwrap_or(text);
        let mut options = Vec::with_capacity(12 + text.len());
        options.extend(COMMENT.to_le_bytes());
        // At most 256.
        options.extend((text.len() as u16).to_le_bytes());
        options.extend_from_slice(text);
        options.resize(options.len().next_multiple_of(4), 0);
        // End of options.
        options.extend([0; 4]);
        self.enhanced_packet(timestamp_ns, bytes, bytes.len(), &options)
    }

    fn enhanced_packet(
        &mut self,
        timestamp_ns: u64,
        bytes: &[u8],
        original_len: usize,
        options: &[u8],
    ) -> io::Result<()> {
        length_field(bytes.len() + options.len())?;
        let mut fixed = [0; 20];
        fixed[4..8].copy_from_slice(&((timestamp_ns >> 32) as u32).to_le_bytes());
        fixed[8..12].copy_from_slice(&(timestamp_ns as u32).to_le_bytes());
        fixed[12..16].copy_from_slice(&length_field(bytes.len())?.to_le_bytes());
        let original_len = u32::try_from(original_len).unwrap_or(u32::MAX);
        fixed[16..].copy_from_slice(&original_len.to_le_bytes());
        self.block(ENHANCED_PACKET, &fixed, bytes, options)
    }

    /// Flushes the writer.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// What the blocks are written to: for a buffer that is emptied between two of them.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Gives the writer back, not flushed.
    pub fn into_inner(self) -> W {
        self.out
    }

    fn block(&mut self, kind: u32, fixed: &[u8], data: &[u8], options: &[u8]) -> io::Result<()> {
        let padding = data.len().wrapping_neg() & 3;
        // Whoever calls has checked the length of the data with `length_field`.
        let total = (12 + fixed.len() + data.len() + padding + options.len()) as u32;
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&total.to_le_bytes())?;
        self.out.write_all(fixed)?;
        self.out.write_all(data)?;
        self.out.write_all(&[0; 3][..padding])?;
        self.out.write_all(options)?;
        self.out.write_all(&total.to_le_bytes())
    }
}

fn length_field(length: usize) -> io::Result<u32> {
    match u32::try_from(length) {
        Ok(field) if length <= MAX_BLOCK_BYTES - LARGEST_OVERHEAD => Ok(field),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "too large for a capture file")),
    }
}
