//! Record headers (RFC 8446, section 5.1). "Need more", "malformed" and a record are three
//! different answers.
//!
//! Refuses lengths over 2^14 + 2048, the largest that any followed version allows.

use crate::{ContentType, RECORD_HEADER_LEN};

/// Longest fragment of any version in bytes (TLS 1.2: 2^14 + 2048, RFC 5246, section 6.2.3).
const MAX_FRAGMENT_LEN: usize = 16384 + 2048;

/// A record header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    pub content_type: ContentType,
    pub fragment_len: usize,
    pub bytes: [u8; RECORD_HEADER_LEN],
}

/// What the front of a byte stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deframed<'a> {
    /// This many more bytes are needed before the question can be asked again.
    NeedMore(usize),
    /// Not a TLS record.
    Malformed,
    /// A complete record.
    Record { header: RecordHeader, fragment: &'a [u8] },
}

/// Looks at the front of `bytes`.
pub fn deframe(bytes: &[u8]) -> Deframed<'_> {
    let Some(&header) = bytes.first_chunk::<RECORD_HEADER_LEN>() else {
        return Deframed::NeedMore(RECORD_HEADER_LEN - bytes.len());
    };
    let Some(header) = RecordHeader::parse(header) else {
        return Deframed::Malformed;
    };
    let end = RECORD_HEADER_LEN + header.fragment_len;
    match bytes.get(RECORD_HEADER_LEN..end) {
        Some(fragment) => Deframed::Record { header, fragment },
        None => Deframed::NeedMore(end - bytes.len()),
    }
}

impl RecordHeader {
    pub fn parse(bytes: [u8; RECORD_HEADER_LEN]) -> Option<Self> {
        let content_type = ContentType(bytes[0]);
        let fragment_len = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
        // Type 24 is heartbeat (RFC 6520): legal where negotiated, and passed over.
        let known = (20..=24).contains(&content_type.0);
        (known && bytes[1] == 3 && fragment_len <= MAX_FRAGMENT_LEN).then_some(Self {
            content_type,
            fragment_len,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_need_more_until_complete() {
        let record = [22, 3, 1, 0, 2, 9, 9];
        assert_eq!(deframe(&record[..3]), Deframed::NeedMore(2));
        assert_eq!(deframe(&record[..6]), Deframed::NeedMore(1));
        assert!(matches!(deframe(&record), Deframed::Record { fragment: [9, 9], .. }));
    }

    #[test]
    fn refuses_other_types_versions_and_lengths() {
        for bad in [[19, 3, 3, 0, 1], [23, 2, 0, 0, 1], [23, 3, 3, 0x48, 1]] {
            assert_eq!(deframe(&bad), Deframed::Malformed);
        }
    }
}
