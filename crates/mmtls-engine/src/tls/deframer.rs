//! Record headers (RFC 8446, section 5.1). "Need more", "malformed" and a record are three
//! different answers.
//!
//! Refuses lengths over 2^14 + 2048, the largest that any followed version allows.

use super::{ContentType, RECORD_HEADER_LEN};

/// Longest fragment of any version in bytes (TLS 1.2: 2^14 + 2048, RFC 5246, section 6.2.3).
const MAX_FRAGMENT_LEN: usize = 16384 + 2048;

/// A record header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordHeader {
    pub(crate) content_type: ContentType,
    pub(crate) fragment_len: usize,
    pub(crate) bytes: [u8; RECORD_HEADER_LEN],
}

/// What the front of a byte stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deframed<'a> {
    /// This many more bytes are needed before the question can be asked again.
    NeedMore(usize),
    /// Not a TLS record.
    Malformed,
    /// A complete record.
    Record { header: RecordHeader, fragment: &'a [u8] },
}

/// Looks at the front of `bytes`.
pub(crate) fn deframe(bytes: &[u8]) -> Deframed<'_> {
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
    pub(crate) fn parse(bytes: [u8; RECORD_HEADER_LEN]) -> Option<Self> {
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

/// Whether a stream that begins with these bytes carries TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recognition {
    /// A ClientHello begins here.
    Tls,
    /// Something else.
    Other,
    /// Too few bytes to tell.
    Unsure,
}

/// Most bytes that [`recognise`] looks at: some empty records, and the head of one with content.
pub(crate) const RECOGNITION_LEN: usize = 32 * RECORD_HEADER_LEN + 6;

/// Recognises the beginning of a client's first flight by content, as generously as servers take
/// it: the record version says nothing (RFC 8446, section 5.1), empty handshake records may stand
/// in front, and an alert or a change_cipher_spec is for the hello's reader to judge.
pub(crate) fn recognise(bytes: &[u8]) -> Recognition {
    let mut rest = bytes;
    loop {
        let (kind, len) = match *rest {
            [] => return Recognition::Unsure,
            [kind, ..] if !matches!(kind, 20..=22) => return Recognition::Other,
            [_, major, ..] if major != 3 => return Recognition::Other,
            [kind, _, _, high, low, ..] => (kind, u16::from_be_bytes([high, low])),
            _ => return Recognition::Unsure,
        };
        rest = &rest[RECORD_HEADER_LEN..];
        match (ContentType(kind), len) {
            (ContentType::HANDSHAKE, 0) if bytes.len() - rest.len() < RECOGNITION_LEN - 6 => {}
            (ContentType::HANDSHAKE, 1..=0x4000) => {
                return match rest.first() {
                    None => Recognition::Unsure,
                    Some(&1) => Recognition::Tls,
                    Some(_) => Recognition::Other,
                };
            }
            (ContentType::CHANGE_CIPHER_SPEC, 1) | (ContentType::ALERT, 2) => {
                return Recognition::Tls;
            }
            _ => return Recognition::Other,
        }
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

    #[test]
    fn recognises_client_hellos_only() {
        assert_eq!(recognise(&[22, 3]), Recognition::Unsure);
        assert_eq!(recognise(&[22, 3, 1, 2, 0, 1]), Recognition::Tls);
        assert_eq!(recognise(b"GET / HTTP/1.1"), Recognition::Other);
        assert_eq!(recognise(&[22, 3, 1, 2, 0, 2]), Recognition::Other);
        assert_eq!(recognise(&[22, 3, 0x7f, 2, 0, 1]), Recognition::Tls);
        assert_eq!(recognise(&[22, 3, 1, 0, 0, 22, 3, 1, 0, 9, 1]), Recognition::Tls);
        assert_eq!(recognise(&[21, 3, 1, 0, 2]), Recognition::Tls);
        assert_eq!(recognise(&[22, 3, 1, 0, 0].repeat(32)), Recognition::Other);
    }
}
