//! What the kernel's programs do for interfaces (`bpf/offload.bpf.c`), for ports in memory: the same entries, by the same rules.
//!
//! Refuses everything but plain TCP over plain IP.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::{Forwarded, OffloadSide};

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
    position: u64,
    begun: bool,
    frames: u64,
    payload_bytes: u64,
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
        let (initial, position) = (side.initial, side.position);
        let entry = Entry { initial, position, begun: false, frames: 0, payload_bytes: 0 };
        self.entries.insert(key, entry);
    }

    /// Forgets it, and says what has come of it.
    pub(super) fn end(&mut self, side: &OffloadSide) -> Forwarded {
        let entry = self.entries.remove(&[side.source, side.destination]);
        entry.map_or_else(Forwarded::default, |entry| Forwarded {
            frames: entry.frames,
            payload_bytes: entry.payload_bytes,
            position: if entry.begun { entry.position } else { 0 },
        })
    }

    /// Whether a frame that arrives is forwarded without being received.
    pub(super) fn takes(&mut self, frame: &[u8]) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let Some((key, sequence, payload)) = plain_segment(frame) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(&key) else {
            return false;
        };
        // Truncation is the modulus of sequence numbers (RFC 9293, section 3.4).
        let ahead = sequence.wrapping_sub(entry.initial.wrapping_add(entry.position as u32)) as i32;
        if !entry.begun && ahead != 0 {
            return false;
        }
        entry.begun = true;
        if ahead < MAX_AHEAD {
            let end = i64::from(ahead) + payload as i64;
            entry.position += u64::try_from(end).unwrap_or_default();
        }
        entry.frames += 1;
        entry.payload_bytes += payload as u64;
        self.taken[0] += 1;
        self.taken[1] += frame.len() as u64;
        true
    }
}

/// Ends, sequence number and length of a segment that changes no connection's state and has nothing unusual.
fn plain_segment(frame: &[u8]) -> Option<(Key, u32, usize)> {
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
    let [a, b, c, d, e, f, g, h, ..] = *tcp;
    let ports = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
    let key = [SocketAddr::new(source, ports[0]), SocketAddr::new(destination, ports[1])];
    Some((key, u32::from_be_bytes([e, f, g, h]), segment.len().checked_sub(header)?))
}
