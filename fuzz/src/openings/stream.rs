//! The bytes that a receiver has taken, in order and ahead.
//!
//! Refuses to settle how receivers treat bytes that came twice: they differ, so a choice tells.

use std::collections::BTreeMap;

/// Bytes ahead that are kept: more are dropped, and sent again.
const MAX_AHEAD: usize = 8192;

/// Which of two copies counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Copies {
    /// The earlier one, always.
    First,
    /// The later one, among those that the program has not read.
    Latest,
    /// As Linux: the earlier one among bytes ahead; a segment in order counts more than those.
    Linux,
}

/// One direction's bytes.
#[derive(Default, Debug)]
pub(super) struct Stream {
    /// Those that the program can read.
    pub(super) bytes: Vec<u8>,
    ahead: BTreeMap<usize, u8>,
}

impl Stream {
    /// Whether there are bytes behind a hole.
    pub(super) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Takes data that begin `behind` bytes before what is expected next, or `ahead` bytes behind it.
    pub(super) fn insert(&mut self, offset: i64, data: &[u8], copies: Copies) {
        let next = self.bytes.len();
        let skip = usize::try_from((next as i64 - offset).max(0)).unwrap_or(usize::MAX);
        let Some(data) = data.get(skip..).filter(|it| !it.is_empty()) else {
            return;
        };
        let start = usize::try_from(offset).unwrap_or(0).max(next);
        if start > next || !self.ahead.is_empty() {
            let keeps = copies == Copies::First || (copies == Copies::Linux && start > next);
            for (at, byte) in (start..).zip(data) {
                if self.ahead.len() >= MAX_AHEAD {
                    break;
                }
                let known = self.ahead.entry(at).or_insert(*byte);
                if !keeps {
                    *known = *byte;
                }
            }
            while let Some(byte) = self.ahead.remove(&self.bytes.len()) {
                self.bytes.push(byte);
            }
        } else {
            self.bytes.extend_from_slice(data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(copies: Copies, segments: &[(i64, &[u8])]) -> Vec<u8> {
        let mut stream = Stream::default();
        for (offset, data) in segments {
            stream.insert(*offset, data, copies);
        }
        stream.bytes
    }

    #[test]
    fn accepts_each_way_to_treat_copies() {
        let segments: [(i64, &[u8]); 4] = [(2, b"cd"), (1, b"BCD"), (-1, b"_Abc"), (0, b"zzzzz")];
        assert_eq!(read(Copies::First, &segments), b"ABcdz");
        assert_eq!(read(Copies::Latest, &segments), b"AbcDz");
        assert_eq!(read(Copies::Linux, &segments), b"Abcdz");
    }
}
