//! What the kernel's programs do for interfaces (`bpf/offload.bpf.c`), for ports in memory: the same entries, by the same rules.
//!
//! Refuses everything but plain TCP over plain IP.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::offload::COOKIE_SLACK;
use crate::{Extent, Forwarded, ForwardedRecords, OffloadSide, Records};

const ETHERNET_HEADER: usize = 14;
/// How far ahead of the position a segment may stand and still move it.
const MAX_AHEAD: i32 = 1 << 26;

const TCP: u8 = 6;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const URG: u8 = 32;

/// Who sends, and to whom.
type Key = [SocketAddr; 2];

struct Entry {
    initial: u32,
    peer_initial: u32,
    position: u64,
    begun: bool,
    frames: u64,
    payload_bytes: u64,
    acknowledgment: Option<u32>,
    extent: Extent,
    records: ForwardedRecords,
}

/// The entries of a port.
#[derive(Default)]
pub(super) struct Entries {
    entries: HashMap<Key, Entry>,
    /// Frames that were taken, and their bytes.
    pub(super) taken: [u64; 2],
}

impl Entries {
    /// Makes one, unless it is there and has begun.
    pub(super) fn begin(&mut self, side: &OffloadSide) {
        let key = [side.source, side.destination];
        if self.entries.get(&key).is_some_and(|entry| entry.begun) {
            return;
        }
        let mut records = ForwardedRecords::default();
        if let Extent::Records(Records { next, .. }) = side.extent {
            records.next = next;
        }
        let entry = Entry {
            initial: side.initial,
            peer_initial: side.peer_initial,
            position: side.position,
            begun: false,
            frames: 0,
            payload_bytes: 0,
            acknowledgment: None,
            extent: side.extent,
            records,
        };
        self.entries.insert(key, entry);
    }

    /// Forgets it, and says what has come of it.
    pub(super) fn end(&mut self, side: &OffloadSide) -> Forwarded {
        let entry = self.entries.remove(&[side.source, side.destination]);
        entry.map_or_else(Forwarded::default, |entry| Forwarded {
            frames: entry.frames,
            payload_bytes: entry.payload_bytes,
            position: if entry.begun { entry.position } else { 0 },
            acknowledgment: entry.acknowledgment,
            records: entry.records,
        })
    }

    /// Whether a frame that arrives is forwarded without being received.
    pub(super) fn takes(&mut self, frame: &[u8]) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let Some((key, segment)) = plain_segment(frame) else {
            return false;
        };
        let takes = self.entries.get_mut(&key).is_some_and(|entry| entry.takes(&segment));
        if takes {
            self.taken[0] += 1;
            self.taken[1] += frame.len() as u64;
        }
        takes
    }
}

impl Entry {
    fn takes(&mut self, segment: &Segment<'_>) -> bool {
        let payload = segment.payload.len();
        // Truncation is the modulus of sequence numbers (RFC 9293, section 3.4).
        let next = self.initial.wrapping_add(self.position as u32);
        let ahead = segment.sequence.wrapping_sub(next) as i32;
        let end = i64::from(ahead) + payload as i64;
        if self.extent != Extent::Everything && self.fits_cookie(segment) {
            return false;
        }
        match self.extent {
            Extent::Everything if !self.begun && ahead != 0 => return false,
            Extent::Everything => {
                if ahead < MAX_AHEAD {
                    self.position += u64::try_from(end).unwrap_or_default();
                }
            }
            Extent::Acknowledgments | Extent::Records(_) if payload == 0 => {}
            Extent::Acknowledgments => return false,
            Extent::Records(of) => {
                if ahead != 0 || !self.pass(segment.payload, &of) {
                    return false;
                }
                self.position += payload as u64;
            }
        }
        if self.extent == Extent::Acknowledgments {
            let newer = |it: u32| segment.acknowledgment.wrapping_sub(it) as i32 > 0;
            if self.acknowledgment.is_none_or(newer) {
                self.acknowledgment = Some(segment.acknowledgment);
            }
        }
        self.begun = true;
        self.frames += 1;
        self.payload_bytes += payload as u64;
        true
    }

    /// Whether a receiver that answers with SYN cookies could begin another connection with it.
    fn fits_cookie(&self, segment: &Segment<'_>) -> bool {
        let distance = segment.sequence.wrapping_sub(self.initial);
        let distance =
            distance.wrapping_sub(segment.acknowledgment.wrapping_sub(self.peer_initial));
        distance.wrapping_add(COOKIE_SLACK) <= 2 * COOKIE_SLACK
    }

    /// Whether each record that begins in the next bytes may pass.
    fn pass(&mut self, payload: &[u8], of: &Records) -> bool {
        let mut passed = self.records.clone();
        let end = self.position + payload.len() as u64;
        while passed.next < end {
            let at = usize::try_from(passed.next - self.position).unwrap_or(usize::MAX);
            let Some(&[23, 3, 3, high, low]) = payload.get(at..).and_then(|it| it.first_chunk())
            else {
                return false;
            };
            let fragment = u16::from_be_bytes([high, low]);
            let content = u64::from(fragment.saturating_sub(of.overhead));
            if !Records::FRAGMENT.contains(&fragment) || content > of.content - passed.content {
                return false;
            }
            passed.content += content;
            passed.count += 1;
            passed.fragment_lens.push(fragment);
            passed.next += 5 + u64::from(fragment);
        }
        self.records = passed;
        true
    }
}

/// What of a segment decides.
struct Segment<'a> {
    sequence: u32,
    acknowledgment: u32,
    payload: &'a [u8],
}

/// A segment that changes no connection's state and has nothing unusual, and its ends.
fn plain_segment(frame: &[u8]) -> Option<(Key, Segment<'_>)> {
    let (header, packet) = frame.split_at_checked(ETHERNET_HEADER)?;
    let (source, destination, segment): (IpAddr, IpAddr, &[u8]) = match header[12..] {
        [8, 0] => {
            let (ip, behind) = packet.split_first_chunk::<20>()?;
            let whole = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
            if ip[0] != 0x45 || ip[6] & 0x3f != 0 || ip[7] != 0 || ip[9] != TCP {
                return None;
            }
            let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).ok().map(IpAddr::from);
            (address(12)?, address(16)?, behind.get(..whole.checked_sub(20)?)?)
        }
        [0x86, 0xdd] => {
            let (ip, behind) = packet.split_first_chunk::<40>()?;
            let payload = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
            if ip[0] >> 4 != 6 || ip[6] != TCP {
                return None;
            }
            let address = |at: usize| <[u8; 16]>::try_from(&ip[at..at + 16]).ok().map(IpAddr::from);
            (address(8)?, address(24)?, behind.get(..payload)?)
        }
        _ => return None,
    };
    let (tcp, _) = segment.split_first_chunk::<20>()?;
    let header = usize::from(tcp[12] >> 4) * 4;
    let flags = tcp[13];
    if header < 20 || flags & (FIN | SYN | RST | URG) != 0 || flags & ACK == 0 {
        return None;
    }
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *tcp;
    let ports = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    let key = [SocketAddr::new(source, ports[0]), SocketAddr::new(destination, ports[1])];
    let sequence = u32::from_be_bytes([e, f, g, h]);
    let acknowledgment = u32::from_be_bytes([i, j, k, l]);
    Some((key, Segment { sequence, acknowledgment, payload: segment.get(header..)? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Port;

    #[test]
    fn refuses_what_could_begin_another_connection() {
        let records = Records { next: 50, content: u64::MAX, overhead: 17 };
        for extent in [Extent::Acknowledgments, Extent::Records(records)] {
            let mut entries = Entries::default();
            let [source, destination] =
                ["10.0.0.1:1000", "10.0.0.2:443"].map(|it| it.parse().unwrap());
            let (initial, peer_initial) = (u32::MAX - 20, 7);
            let ingress = Port::Left;
            entries.begin(&OffloadSide {
                ingress,
                source,
                destination,
                initial,
                peer_initial,
                position: 50,
                extent,
            });
            let entry = entries.entries.get_mut(&[source, destination]).unwrap();
            let mut takes = |at: u32, acknowledged: u32, payload: &[u8]| {
                let sequence = initial.wrapping_add(at);
                let acknowledgment = peer_initial.wrapping_add(acknowledged);
                entry.takes(&Segment { sequence, acknowledgment, payload })
            };
            for beside in 47..=53 {
                assert!(!takes(50, beside, b""), "{beside}");
            }
            assert!(takes(50, 46, b"") && takes(50, 54, b"") && !takes(0, 0, b""));
            let record = [&[23, 3, 3, 8, 0][..], &[0; 2048]].concat();
            assert!(!takes(50, 50, &record));
            assert_eq!(takes(50, 5000, &record), extent != Extent::Acknowledgments);
        }
    }
}
