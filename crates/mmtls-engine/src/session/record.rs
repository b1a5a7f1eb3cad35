//! A record that a handler may open. Refuses to show a byte whose tag has not been verified.
//!
//! A record that a pause skips counts as its fragment minus what its suite adds: explicit nonce, tag, and in TLS 1.3 the content
//! type. Padding is hidden, so in TLS 1.3 and with CBC that is an upper bound. In TLS 1.3 records of up to 64 bytes are opened
//! even during a pause, since a KeyUpdate may hide in one; one that is padded beyond that is missed, and the next record
//! fails.

use super::info::SessionInfo;
use crate::tls::{ContentType, Direction, OpenError, OpenRecord, Opened, RECORD_HEADER_LEN};

/// An opened record's content.
#[derive(Clone, Copy, Debug)]
pub struct Plaintext<'a> {
    /// What the bytes are; only [`ContentType::APPLICATION_DATA`] is the application's.
    pub content_type: ContentType,
    /// The authenticated content, padding removed. May be empty.
    pub bytes: &'a [u8],
}

/// One protected record of early data or of the application epochs, complete and in order.
///
/// It is decrypted when [`Record::open`] is called, and only then.
pub struct Record<'a> {
    pub(crate) direction: Direction,
    pub(crate) early: bool,
    pub(crate) sequence: u64,
    pub(crate) skipped: u64,
    pub(crate) header: [u8; RECORD_HEADER_LEN],
    pub(crate) fragment: &'a [u8],
    pub(crate) opener: &'a dyn OpenRecord,
    pub(crate) plaintext: &'a mut [u8],
    pub(crate) outcome: Option<Result<Opened, OpenError>>,
}

impl Record<'_> {
    /// Which side sent it.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether it is early data (0-RTT), which a server may refuse:
    /// [`Handler::early_data`](super::Handler::early_data) tells.
    #[must_use]
    pub fn is_early_data(&self) -> bool {
        self.early
    }

    /// Its sequence number within the key epoch.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Content bytes that a pause skipped in this direction since the last delivered record,
    /// counted as [`Session::pause`](super::Session::pause) counts them.
    #[must_use]
    pub fn skipped_bytes(&self) -> u64 {
        self.skipped
    }

    /// Bytes on the wire, header included.
    #[must_use]
    pub fn wire_len(&self) -> usize {
        RECORD_HEADER_LEN + self.fragment.len()
    }

    /// The content type in the record's header. TLS 1.3 hides the true one behind
    /// [`ContentType::APPLICATION_DATA`] until the record is opened.
    #[must_use]
    pub fn outer_type(&self) -> ContentType {
        ContentType(self.header[0])
    }

    /// At most how many content bytes it has, without opening it.
    #[must_use]
    pub fn announced_len(&self) -> usize {
        self.opener.content_len(self.fragment.len())
    }

    /// Whether [`Record::announced_len`], and with it what a pause counts, is exact: in the suites
    /// of TLS 1.2 without padding. Elsewhere a sender can make the count run ahead of the content,
    /// and who must know where in the content a pause has ended must not pause.
    #[must_use]
    pub fn announced_len_is_exact(&self) -> bool {
        self.opener.content_len_is_exact()
    }

    /// Whether [`Record::open`] was called, and what it returned.
    #[must_use]
    pub fn opened(&self) -> Option<Result<Opened, OpenError>> {
        self.outcome
    }

    /// Verifies and decrypts the record, once; later calls return the same.
    ///
    /// # Errors
    /// [`OpenError`]. The engine then raises the error event and applies the integrity policy;
    /// the handler need not act.
    pub fn open(&mut self) -> Result<Plaintext<'_>, OpenError> {
        let outcome = match self.outcome {
            Some(outcome) => outcome,
            None => {
                let outcome =
                    self.opener.open(self.sequence, self.header, self.fragment, self.plaintext);
                self.outcome = Some(outcome);
                outcome
            }
        };
        let opened = outcome?;
        Ok(Plaintext { content_type: opened.content_type, bytes: &self.plaintext[..opened.len] })
    }

    pub(crate) fn count(&self, info: &mut SessionInfo) {
        let side = self.direction.index();
        info.records_seen[side] += 1;
        if let Some(Ok(opened)) = self.outcome {
            info.records_opened[side] += 1;
            if opened.content_type == ContentType::APPLICATION_DATA {
                info.plaintext_bytes[side] += opened.len as u64;
            }
        }
    }
}
