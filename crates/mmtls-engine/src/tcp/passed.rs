//! The latest records of a direction that passed unread: where they begin and how long they are.
//!
//! Their content is nobody's concern. But the receiver takes whichever copy reaches it, and by their headers it knows where the
//! next record begins and which number it has: a copy with other headers would let it read what follows otherwise than it was
//! looked at.
//!
//! Refuses to keep content.

use std::collections::VecDeque;

use crate::tls::{ContentType, RECORD_HEADER_LEN};

/// What the header of a record that passes is, but for its length: protected, as all records of content are in TLS 1.3.
const HEADER_START: [u8; 3] = [ContentType::APPLICATION_DATA.0, 3, 3];

/// Longer ones than TLS 1.3 allows (RFC 8446, section 5.2) do not pass unseen.
const MAX_FRAGMENT_LEN: u16 = 16384 + 256;

/// Records that follow each other. Offsets are the stream's.
#[derive(Default)]
pub(crate) struct Passed {
    start: u64,
    /// Behind the bytes that have passed: in the middle of the last record, perhaps.
    end: u64,
    /// Of their fragments.
    lengths: VecDeque<u16>,
}

impl Passed {
    /// How many are kept at most.
    const MAX_RECORDS: usize = 4096;
    /// Bytes that may be under way.
    const MAX_FLIGHT: u64 = 1 << 25;

    /// Records that begin at a stream offset.
    pub(crate) fn new(offset: u64) -> Self {
        Self { start: offset, end: offset, lengths: VecDeque::new() }
    }

    /// The length of the fragment behind a header, if it is one that may pass.
    pub(crate) fn fragment_len(header: [u8; RECORD_HEADER_LEN]) -> Option<u16> {
        let [a, b, c, high, low] = header;
        let len = u16::from_be_bytes([high, low]);
        ([a, b, c] == HEADER_START && len <= MAX_FRAGMENT_LEN).then_some(len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// Stream offset of the first one.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Stream offset behind the bytes that have passed.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Memory that is taken, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.lengths.capacity() * size_of::<u16>()
    }

    /// Adds the next record, of which so far nothing has passed; false where there is no room for it.
    pub(crate) fn push(&mut self, fragment_len: u16) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.lengths.push_back(fragment_len);
        }
        has_room
    }

    /// Whether another record may be added.
    fn has_room(&self) -> bool {
        self.lengths.len() < Self::MAX_RECORDS && self.end - self.start < Self::MAX_FLIGHT
    }

    /// Whether most of what may be kept is still free.
    pub(crate) fn is_short(&self) -> bool {
        self.lengths.len() < Self::MAX_RECORDS / 4 && self.end - self.start < Self::MAX_FLIGHT / 4
    }

    /// So many bytes more have passed.
    pub(crate) fn advance(&mut self, len: usize) {
        self.end += len as u64;
    }

    /// Bytes up to a stream offset have passed elsewhere, with the beginnings of so many records in them: these ones at the end,
    /// the last of which ends at `next`. Of others the receiver has all.
    pub(crate) fn extend(&mut self, end: u64, count: u64, latest: &[u16], next: u64) {
        if count > latest.len() as u64 {
            self.lengths.clear();
            self.start = next.saturating_sub(latest.iter().copied().map(record_len).sum());
        }
        self.lengths.extend(latest);
        self.end = end;
    }

    /// The receiver has everything before a stream offset.
    pub(crate) fn acknowledge(&mut self, offset: u64) {
        while let Some(&first) = self.lengths.front()
            && let behind = self.start + record_len(first)
            && behind <= offset
        {
            self.start = behind;
            self.lengths.pop_front();
        }
        if self.lengths.is_empty() {
            self.lengths = VecDeque::new();
        }
    }

    /// Whether bytes at a stream offset show other headers than those that have passed.
    pub(crate) fn contradicts(&self, offset: u64, data: &[u8]) -> bool {
        let end = self.end.min(offset + data.len() as u64);
        let mut at = self.start;
        for &len in &self.lengths {
            if at >= end {
                return false;
            }
            if at + RECORD_HEADER_LEN as u64 <= offset {
                at += record_len(len);
                continue;
            }
            let [high, low] = len.to_be_bytes();
            let header = HEADER_START.into_iter().chain([high, low]);
            let differs = (at..end).zip(header).any(|(at, byte)| {
                let index = at.checked_sub(offset).and_then(|it| usize::try_from(it).ok());
                index.is_some_and(|it| data.get(it).is_some_and(|it| *it != byte))
            });
            if differs {
                return true;
            }
            at += record_len(len);
        }
        false
    }
}

fn record_len(fragment_len: u16) -> u64 {
    RECORD_HEADER_LEN as u64 + u64::from(fragment_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_other_headers_until_they_are_acknowledged() {
        let mut passed = Passed::new(100);
        assert!(passed.push(1000) && passed.push(300));
        passed.advance(1005 + 200);
        let header = |len: u16| [&HEADER_START[..], &len.to_be_bytes()].concat();
        assert!(!passed.contradicts(100, &header(1000)) && passed.contradicts(100, &header(1001)));
        assert!(passed.contradicts(103, &[4]) && !passed.contradicts(103, &[3, 232, 7, 8]));
        let mut across = vec![0; 50];
        across.extend(header(1000));
        across.extend([7; 1000]);
        across.extend(header(300));
        assert!(!passed.contradicts(50, &across));
        // In the second header.
        across[50 + 1005 + 4] ^= 1;
        assert!(passed.contradicts(50, &across));
        assert!(!passed.contradicts(50, &across[..50 + 1005 + 4]), "not in this part of it");
        passed.acknowledge(1104);
        assert_eq!((passed.start(), passed.end()), (100, 1305));
        passed.acknowledge(1105);
        assert_eq!(passed.start(), 1105);
        assert!(!passed.contradicts(100, &header(1)) && passed.contradicts(1105, &header(1)));
        // The rest of it has not passed yet.
        passed.acknowledge(1305);
        assert!(!passed.is_empty());
        passed.acknowledge(1410);
        assert!(passed.is_empty() && passed.capacity() == 0);
    }

    #[test]
    fn refuses_more_than_it_keeps() {
        let mut passed = Passed::new(0);
        assert_eq!((0..5000).filter(|_| passed.push(1)).count(), Passed::MAX_RECORDS);
    }
}
