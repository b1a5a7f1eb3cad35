//! What went over a wire, from a capture of it: frames, TCP streams, TLS records.
//!
//! An independent, simple reading of the packets: it shares no code with the engine it judges.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::{Capture, Testbed};
use mmtls_packet_io::capture::{CaptureReader, Item};

pub const SYN: u8 = 2;
pub const RST: u8 = 4;

/// A captured frame.
pub struct Frame {
    pub time_ns: u64,
    pub bytes: Vec<u8>,
}

/// All frames of a capture.
pub fn frames(path: &Path) -> Vec<Frame> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut frames = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Packet { timestamp_ns, bytes, original_len, .. } = item {
            assert_eq!(bytes.len(), original_len, "a frame was cut");
            frames.push(Frame { time_ns: timestamp_ns, bytes: bytes.to_vec() });
        }
    }
    frames
}

/// A TCP segment, possibly as large as segmentation offload makes them.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub sequence: u32,
    pub flags: u8,
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// `None` when the frame is no TCP.
    pub fn of(frame: &'a [u8]) -> Option<Self> {
        let mut at = 12;
        let mut ethertype = u16_at(frame, at)?;
        while matches!(ethertype, 0x8100 | 0x88a8) {
            at += 4;
            ethertype = u16_at(frame, at)?;
        }
        let packet = &frame[at + 2..];
        let (source, destination, tcp): (IpAddr, IpAddr, &[u8]) = match ethertype {
            0x0800 if packet[9] == 6 && u16_at(packet, 6)? & 0x3fff == 0 => {
                let header = usize::from(packet[0] & 15) * 4;
                let total = usize::from(u16_at(packet, 2)?);
                let address =
                    |at: usize| IpAddr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
                (address(12), address(16), &packet[header..total])
            }
            0x86dd if packet[6] == 6 => {
                let total = 40 + usize::from(u16_at(packet, 4)?);
                let address =
                    |at: usize| IpAddr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
                (address(8), address(24), &packet[40..total])
            }
            _ => return None,
        };
        let header = usize::from(tcp[12] >> 4) * 4;
        Some(Self {
            source: SocketAddr::new(source, u16_at(tcp, 0)?),
            destination: SocketAddr::new(destination, u16_at(tcp, 2)?),
            sequence: u32::from_be_bytes(tcp[4..8].try_into().unwrap()),
            flags: tcp[13],
            payload: &tcp[header..],
        })
    }
}

/// Finishes the TCP checksum of an IPv4 frame, as a device does that it is left to.
pub fn finish_checksum(frame: &mut [u8]) {
    let header = usize::from(frame[14] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let tcp = 14 + header..14 + total;
    frame[tcp.start + 16..tcp.start + 18].fill(0);
    let pseudo = [&frame[26..34], &[0, 6], &((total - header) as u16).to_be_bytes()].concat();
    let sum = |bytes: &[u8]| -> u32 {
        let pairs = bytes.chunks(2);
        pairs.map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
    };
    let mut total = sum(&pseudo) + sum(&frame[tcp.clone()]);
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    let checksum = !(total as u16);
    frame[tcp.start + 16..tcp.start + 18].copy_from_slice(&checksum.to_be_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Sender and receiver of a stream.
pub type Ends = (SocketAddr, SocketAddr);

/// The bytes of every TCP stream of a capture, in order. Retransmissions must agree with what
/// they repeat, and nothing may be missing.
pub fn streams(path: &Path) -> BTreeMap<Ends, Vec<u8>> {
    let mut streams: BTreeMap<Ends, Stream> = BTreeMap::new();
    let frames = frames(path);
    for segment in frames.iter().filter_map(|frame| Segment::of(&frame.bytes)) {
        let ends = (segment.source, segment.destination);
        if segment.flags & SYN != 0 {
            let base = segment.sequence.wrapping_add(1);
            let stream = streams.entry(ends).or_insert_with(|| Stream::new(base));
            assert_eq!(stream.base, base, "{ends:?}: a second connection with the same ports");
        } else if !segment.payload.is_empty() {
            streams.get_mut(&ends).unwrap_or_else(|| panic!("{ends:?} without SYN")).add(&segment);
        }
    }
    streams.into_iter().map(|(ends, stream)| (ends, stream.finish(ends))).collect()
}

struct Stream {
    base: u32,
    bytes: Vec<u8>,
    present: Vec<bool>,
}

impl Stream {
    fn new(base: u32) -> Self {
        Self { base, bytes: Vec::new(), present: Vec::new() }
    }

    fn add(&mut self, segment: &Segment<'_>) {
        let start = segment.sequence.wrapping_sub(self.base) as usize;
        assert!(start < 1 << 30, "{segment:?} is before the start of its stream");
        let end = start + segment.payload.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
            self.present.resize(end, false);
        }
        for (at, &byte) in (start..end).zip(segment.payload) {
            assert!(!self.present[at] || self.bytes[at] == byte, "byte {at} was sent differently");
            self.bytes[at] = byte;
            self.present[at] = true;
        }
    }

    fn finish(self, ends: Ends) -> Vec<u8> {
        let hole = self.present.iter().position(|&present| !present);
        assert_eq!(hole, None, "{ends:?}: a byte is missing");
        self.bytes
    }
}

/// The complete TLS records at the start of a stream: content type and length with header.
pub fn records(mut stream: &[u8]) -> Vec<(u8, usize)> {
    let mut records = Vec::new();
    while let [kind, _, _, high, low, ..] = *stream {
        let length = 5 + usize::from(u16::from_be_bytes([high, low]));
        if stream.len() < length {
            break;
        }
        records.push((kind, length));
        stream = &stream[length..];
    }
    records
}

/// Captures of both ports of the middlebox.
pub struct BothSides {
    left: Capture,
    right: Capture,
}

impl BothSides {
    pub fn start(bed: &Testbed, filter: &str) -> Self {
        let start = |port: &str| {
            let path = bed.directory().join(format!("{port}.pcap"));
            Capture::start(bed, &bed.middlebox, port, &path, filter).unwrap()
        };
        Self { left: start("left"), right: start("right") }
    }

    /// The files of left and right.
    pub fn stop(self) -> (PathBuf, PathBuf) {
        // Each waits more than a second for the kernel.
        let left = std::thread::spawn(move || self.left.stop().unwrap());
        let right = self.right.stop().unwrap();
        (left.join().unwrap(), right)
    }
}
