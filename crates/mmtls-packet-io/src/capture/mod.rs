//! Reading pcap and pcapng files, plain or gzipped, and writing pcapng.
//!
//! The reader streams: it keeps one record or block, of at most [`MAX_BLOCK_BYTES`], in memory. Packets are delivered
//! as Ethernet or IP, whatever link header they were captured with; TLS secrets embedded in pcapng are delivered as
//! they come. It refuses lengths beyond its caps and says where; it delivers all packets before damage.
//!
//! It knows nothing of what packets carry, except that IPv4 and IPv6 start with a 4 and a 6.

mod error;
mod limits;
mod link;
mod pcapng;
mod source;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use pcap_parser::{
    PcapHeader, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified, parse_pcap_header,
};

pub use self::error::CaptureError;
pub use self::limits::MAX_BLOCK_BYTES;
pub use self::link::Link;
pub use self::writer::PcapngWriter;

use self::link::{Normalised, link_type_name, normalise};
use self::pcapng::{Content, Section};
use self::source::Source;

const PCAP_HEADER: usize = 24;
const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// What the secrets of a pcapng secrets block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SecretsKind(pub u32);

impl SecretsKind {
    /// A TLS key log, as of the SSLKEYLOGFILE format.
    pub const TLS_KEY_LOG: Self = Self(0x544c_534b);
}

/// Something read from a capture file. No `Debug`: it may be a secret.
#[derive(Clone, Copy)]
pub enum Item<'a> {
    /// A packet.
    Packet {
        /// Time of capture, nanoseconds since 1970.
        timestamp_ns: u64,
        /// What `bytes` starts with.
        link: Link,
        /// What was captured of the packet.
        bytes: &'a [u8],
        /// Bytes that it had on the wire, as `bytes` counts them; more than `bytes` has when the capture cut it.
        original_len: usize,
    },
    /// A secrets block.
    Secrets {
        /// What it is.
        kind: SecretsKind,
        /// Its contents.
        bytes: &'a [u8],
    },
}

/// What was read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounters {
    /// Packets delivered.
    pub packets: u64,
    /// Of those, packets that the capture cut.
    pub cut_packets: u64,
    /// Packets skipped since their link header is of a kind that is not supported ([`CaptureReader::warnings`]).
    pub unsupported_link: u64,
    /// Packets skipped since there is no IP behind their link header.
    pub not_ip: u64,
    /// Secrets blocks delivered.
    pub secrets: u64,
}

/// Something that the user of a capture should know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureWarning {
    /// Packets were skipped.
    UnsupportedLink {
        /// LINKTYPE number.
        link_type: u16,
        /// How many packets.
        packets: u64,
    },
    /// Packets were not captured whole, so streams will have gaps.
    CutPackets {
        /// How many packets.
        packets: u64,
    },
}

impl fmt::Display for CaptureWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedLink { link_type, packets } => write!(
                f,
                "{packets} packets skipped: link type {link_type} ({}) is not supported",
                link_type_name(*link_type)
            ),
            Self::CutPackets { packets } => {
                write!(f, "{packets} packets were not captured whole (snapshot length)")
            }
        }
    }
}

enum Format {
    Pcap(PcapHeader),
    Pcapng(Section),
}

/// Reads a capture file.
pub struct CaptureReader<R: Read> {
    source: Source<R>,
    format: Format,
    /// Bytes of the item delivered last, to be consumed before the next.
    delivered: usize,
    finished: bool,
    counters: CaptureCounters,
    unsupported: BTreeMap<u16, u64>,
}

/// A record or block: how long it is, and what it holds, as ranges of it.
struct Record {
    length: usize,
    content: Content,
}

impl CaptureReader<File> {
    /// Opens a file.
    ///
    /// # Errors
    /// [`CaptureError::Io`], and as [`Self::new`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CaptureError> {
        Self::new(File::open(path).map_err(CaptureError::Io)?)
    }
}

impl<R: Read> CaptureReader<R> {
    /// Looks at the first bytes and starts reading. Buffering is done here.
    ///
    /// # Errors
    /// [`CaptureError::NotACapture`], or the errors of [`Self::next`] when the start is damaged.
    pub fn new(reader: R) -> Result<Self, CaptureError> {
        let mut source = Source::new(reader)?;
        let start = source.fill(PCAP_HEADER)?;
        let magic = start.get(..4).unwrap_or(start);
        let format = if magic == PCAPNG_MAGIC {
            Format::Pcapng(Section::default())
        } else {
            match parse_pcap_header(start) {
                Ok((_, header)) => {
                    source.consume(PCAP_HEADER);
                    Format::Pcap(header)
                }
                Err(error) if error.is_incomplete() && magic.len() == 4 => {
                    return Err(CaptureError::Truncated { offset: 0, what: "file header" });
                }
                Err(_) => return Err(CaptureError::NotACapture { magic: magic.to_vec() }),
            }
        };
        Ok(Self {
            source,
            format,
            delivered: 0,
            finished: false,
            counters: CaptureCounters::default(),
            unsupported: BTreeMap::new(),
        })
    }

    /// The next packet or secrets; `None` at the end, and after an error.
    ///
    /// # Errors
    /// All of [`CaptureError`], once.
    #[allow(clippy::should_implement_trait, reason = "items borrow from the reader")]
    pub fn next(&mut self) -> Result<Option<Item<'_>>, CaptureError> {
        loop {
            self.source.consume(std::mem::take(&mut self.delivered));
            if self.finished {
                return Ok(None);
            }
            let record = match self.record() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    self.finished = true;
                    continue;
                }
                Err(error) => {
                    self.finished = true;
                    return Err(error);
                }
            };
            self.delivered = record.length;
            match record.content {
                Content::Other => {}
                Content::Secrets { kind, data } => {
                    self.counters.secrets += 1;
                    let bytes = self.source.available().get(data).unwrap_or_default();
                    return Ok(Some(Item::Secrets { kind: SecretsKind(kind), bytes }));
                }
                Content::Packet { timestamp_ns, link_type, data, original_len } => {
                    let original_len = original_len.max(data.len());
                    if let Some((link, data, skipped)) = self.locate(link_type, data) {
                        let original_len = original_len - skipped;
                        self.counters.packets += 1;
                        self.counters.cut_packets += u64::from(original_len > data.len());
                        let bytes = self.source.available().get(data).unwrap_or_default();
                        return Ok(Some(Item::Packet { timestamp_ns, link, bytes, original_len }));
                    }
                }
            }
        }
    }

    /// What was read so far.
    #[must_use]
    pub const fn counters(&self) -> CaptureCounters {
        self.counters
    }

    /// What the user should know of what was read so far.
    #[must_use]
    pub fn warnings(&self) -> Vec<CaptureWarning> {
        let unsupported = self.unsupported.iter();
        let mut warnings: Vec<_> = unsupported
            .map(|(&link_type, &packets)| CaptureWarning::UnsupportedLink { link_type, packets })
            .collect();
        if self.counters.cut_packets > 0 {
            warnings.push(CaptureWarning::CutPackets { packets: self.counters.cut_packets });
        }
        warnings
    }

    /// Finds a packet behind its link header, or counts why not. The last number is the bytes of that header.
    fn locate(
        &mut self,
        link_type: u16,
        data: Range<usize>,
    ) -> Option<(Link, Range<usize>, usize)> {
        let bytes = self.source.available().get(data.clone()).unwrap_or_default();
        match normalise(link_type, bytes) {
            Normalised::Packet { link, skip } => Some((link, data.start + skip..data.end, skip)),
            Normalised::NotIp => {
                self.counters.not_ip += 1;
                None
            }
            Normalised::Unsupported => {
                self.counters.unsupported_link += 1;
                *self.unsupported.entry(link_type).or_default() += 1;
                None
            }
        }
    }

    fn record(&mut self) -> Result<Option<Record>, CaptureError> {
        match &mut self.format {
            Format::Pcap(header) => pcap_record(&mut self.source, header),
            Format::Pcapng(section) => pcapng_block(&mut self.source, section),
        }
    }
}

fn pcapng_block<R: Read>(
    source: &mut Source<R>,
    section: &mut Section,
) -> Result<Option<Record>, CaptureError> {
    let offset = source.offset();
    let start = source.fill(Section::HEADER_BYTES)?;
    if start.is_empty() {
        return Ok(None);
    }
    let header = section.header(start, offset)?;
    let Some(block) = source.fill(header.length)?.get(..header.length) else {
        return Err(CaptureError::Truncated { offset, what: "block" });
    };
    let content = section.block(header, block, offset)?;
    Ok(Some(Record { length: header.length, content }))
}

fn pcap_record<R: Read>(
    source: &mut Source<R>,
    header: &PcapHeader,
) -> Result<Option<Record>, CaptureError> {
    const CAPTURED_LENGTH: usize = 8;
    let offset = source.offset();
    let truncated = CaptureError::Truncated { offset, what: "packet record" };
    // The "modified" format of old Linux kernels has eight bytes more.
    let record_header = if header.is_modified_format() { 24 } else { 16 };
    let start = source.fill(record_header)?;
    if start.is_empty() {
        return Ok(None);
    }
    let captured = start.get(CAPTURED_LENGTH..record_header).and_then(|rest| rest.first_chunk());
    let Some(captured) = captured.copied() else { return Err(truncated) };
    let big_endian = header.is_bigendian();
    let captured =
        if big_endian { u32::from_be_bytes(captured) } else { u32::from_le_bytes(captured) };
    let length = record_header + captured as usize;
    if length > MAX_BLOCK_BYTES {
        let length = u64::from(captured);
        return Err(CaptureError::TooLarge { offset, what: "packet record", length });
    }
    let bytes = source.fill(length)?;
    let parsed = if header.is_modified_format() {
        parse_pcap_frame_modified(bytes)
    } else if big_endian {
        parse_pcap_frame_be(bytes)
    } else {
        parse_pcap_frame(bytes)
    };
    let Ok((_, frame)) = parsed else { return Err(truncated) };
    let unit = if header.is_nanosecond_precision() { 1 } else { 1000 };
    let timestamp_ns = u64::from(frame.ts_sec) * 1_000_000_000 + u64::from(frame.ts_usec) * unit;
    let content = Content::Packet {
        timestamp_ns,
        // The upper bits say how long the FCS is.
        link_type: header.network.0 as u16,
        data: record_header..length,
        original_len: frame.origlen as usize,
    };
    Ok(Some(Record { length, content }))
}

#[cfg(test)]
mod tests;
