//! When frames from the server came to the middle and to the client, by the kernel's clock: two captures of one connection.
//!
//! Refuses a connection of which a byte is missing in either, or came to the client before it came to the middle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use etherparse::{SlicedPacket, TcpSlice, TransportSlice};
use mmtls_packet_io::capture::{CaptureReader, Item};
use mmtls_testkit::{Capture, Testbed};

/// What the server sends.
const FILTER: &str = "tcp src port 443";
/// Before each TLS record; the two bytes at its end are the length (RFC 8446, section 5.1).
const RECORD_HEADER: usize = 5;
/// Inner content type and tag, in TLS 1.3 with AES-GCM and no padding (RFC 8446, section 5.2).
const RECORD_EXPANSION: usize = 17;

/// Captures on both sides of the middle.
pub struct Taps {
    captures: [Capture; 2],
}

/// How long frames were in the middle.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Those that complete a full record which came in several.
    pub last_ns: Vec<u64>,
    /// Those that complete no record.
    pub other_ns: Vec<u64>,
}

/// What a frame brought, and when.
struct Segment {
    sequence: u32,
    payload: Vec<u8>,
    at_ns: u64,
}

/// Of a stream: where a segment with new bytes begins, and when it came.
type Arrivals = BTreeMap<usize, u64>;

impl Taps {
    /// Returns when both are there.
    pub fn start(bed: &Testbed) -> Result<Self, String> {
        let tap = |place, interface, name: &str| {
            Capture::start(bed, place, interface, &bed.directory().join(name), FILTER)
                .map_err(|error| error.to_string())
        };
        let middle = tap(&bed.middlebox, "right", "middle.pcap")?;
        let client = tap(&bed.client, "eth0", "client.pcap")?;
        Ok(Self { captures: [middle, client] })
    }

    /// Ends them. A full record has so many bytes of content.
    pub fn stop(self, content: usize) -> Result<Times, String> {
        let [middle, client] = self.captures.map(|capture| {
            let path: PathBuf = capture.stop().map_err(|error| error.to_string())?;
            let segments = read(&path)?;
            std::fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<_, String>(segments)
        });
        times(&middle?, &client?, content)
    }
}

fn read(path: &Path) -> Result<Vec<Segment>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut reader = CaptureReader::open(path).map_err(|error| failed(&error))?;
    let mut segments = Vec::new();
    while let Some(item) = reader.next().map_err(|error| failed(&error))? {
        let Item::Packet { timestamp_ns, bytes, .. } = item else { continue };
        let tcp = tcp(bytes).ok_or_else(|| failed(&"a frame is not TCP's"))?;
        if !tcp.payload().is_empty() {
            let (sequence, payload) = (tcp.sequence_number(), tcp.payload().to_vec());
            segments.push(Segment { sequence, payload, at_ns: timestamp_ns });
        }
    }
    Ok(segments)
}

/// The TCP segment of a frame, if it has one.
pub fn tcp(frame: &[u8]) -> Option<TcpSlice<'_>> {
    match SlicedPacket::from_ethernet(frame).ok()?.transport? {
        TransportSlice::Tcp(tcp) => Some(tcp),
        _ => None,
    }
}

/// Both sides of one connection compared.
fn times(middle: &[Segment], client: &[Segment], content: usize) -> Result<Times, String> {
    let first = middle.first().ok_or("nothing came to the middle")?.sequence;
    let (came, stream) = assemble(middle, first).map_err(|error| format!("the middle: {error}"))?;
    let (left, at_client) =
        assemble(client, first).map_err(|error| format!("the client: {error}"))?;
    if stream != at_client {
        return Err("what came to the client is not what came to the middle".to_owned());
    }
    // When the byte at a place was there.
    let at = |arrivals: &Arrivals, place: usize| {
        arrivals.range(..=place).next_back().map_or((0, 0), |(from, at)| (*from, *at))
    };
    let between = |place: usize| {
        let passed = at(&left, place).1.checked_sub(at(&came, place).1);
        passed.ok_or("a frame came to the client before it came to the middle")
    };
    let (mut times, mut ends, mut start) = (Times::default(), Vec::new(), 0);
    while let Some(header) = stream.get(start..start + RECORD_HEADER) {
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let end = start + RECORD_HEADER + length;
        let last = end - 1;
        ends.push(last);
        // One that came in one frame waited for none.
        if length == content + RECORD_EXPANSION && at(&came, last).0 > start {
            times.last_ns.push(between(last)?);
        }
        start = end;
    }
    if start != stream.len() {
        return Err(format!("of {} bytes records take {start}", stream.len()));
    }
    for (from, next) in came.keys().zip(came.keys().skip(1)) {
        let is_end = ends.get(ends.partition_point(|end| end < from)).is_some_and(|end| end < next);
        if !is_end {
            times.other_ns.push(between(next - 1)?);
        }
    }
    Ok(times)
}

/// The stream, and when its parts came first.
fn assemble(segments: &[Segment], first: u32) -> Result<(Arrivals, Vec<u8>), String> {
    let (mut arrivals, mut stream) = (Arrivals::new(), Vec::new());
    for segment in segments {
        let from = segment.sequence.wrapping_sub(first) as usize;
        // Bytes that were there already are a retransmission's; none may be missing.
        let new = stream.len().checked_sub(from).ok_or("frames came out of order")?;
        if let Some(bytes) = segment.payload.get(new..).filter(|bytes| !bytes.is_empty()) {
            arrivals.insert(stream.len(), segment.at_ns);
            stream.extend_from_slice(bytes);
        }
    }
    Ok((arrivals, stream))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with so many bytes of content.
    fn record(content: usize) -> Vec<u8> {
        let length = (content + RECORD_EXPANSION) as u16;
        let [high, low] = length.to_be_bytes();
        [vec![23, 3, 3, high, low], vec![7; length.into()]].concat()
    }

    /// Cut at these places, one frame a microsecond.
    fn frames(stream: &[u8], cuts: &[usize], from_ns: u64) -> Vec<Segment> {
        let starts = [0].into_iter().chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([stream.len()]);
        starts
            .zip(ends)
            .zip(0..)
            .map(|((start, end), number)| Segment {
                // Sequence numbers go on behind the largest.
                sequence: (u32::MAX - 9).wrapping_add(start as u32),
                payload: stream[start..end].to_vec(),
                at_ns: from_ns + number * 1_000,
            })
            .collect()
    }

    #[test]
    fn accepts_frames_that_the_middle_has_joined() {
        let stream = [record(100), record(100), record(8)].concat();
        // The first record comes in two frames, the second in the second of them and two more, with the third.
        let middle = frames(&stream, &[60, 160, 200], 1_000);
        let client = frames(&stream, &[160], 5_000);
        let times = times(&middle, &client, 100).unwrap();
        // Came at 2,000 and 4,000; left at 5,000 and 6,000.
        assert_eq!(times.last_ns, [3_000, 2_000]);
        // The first and the third came at 1,000 and 3,000.
        assert_eq!(times.other_ns, [4_000, 3_000]);
    }

    #[test]
    fn passes_over_records_of_one_frame_and_retransmissions() {
        let stream = [record(100), record(100)].concat();
        let mut middle = frames(&stream, &[record(100).len()], 1_000);
        let mut again = frames(&stream, &[50], 2_500);
        middle.push(again.swap_remove(0));
        let client = frames(&stream, &[], 9_000);
        assert_eq!(times(&middle, &client, 100).unwrap(), Times::default());
    }

    #[test]
    fn refuses_other_bytes_holes_and_the_past() {
        let stream = [record(100), record(100)].concat();
        let middle = frames(&stream, &[60], 1_000);
        let refused = |client: &[Segment]| times(&middle, client, 100).unwrap_err();
        let mut other = stream.clone();
        other[70] ^= 1;
        assert!(refused(&frames(&other, &[], 2_000)).contains("is not what came"));
        assert!(refused(&frames(&stream, &[60], 2_000)[1..]).contains("out of order"));
        assert!(refused(&frames(&stream, &[60], 0)).contains("before it came"));
        let cut = frames(&stream[..stream.len() - 1], &[60], 1_000);
        assert!(times(&cut, &cut, 100).unwrap_err().contains("records take"));
    }
}
