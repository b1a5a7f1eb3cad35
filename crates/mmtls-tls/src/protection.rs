//! What the engine asks of record protection. `mmtls-record` answers it with real ciphers, the
//! testkit with none, so that fuzzing reaches the code behind decryption.
//!
//! Refuses to know any cipher.

use crate::ContentType;

/// Length of a TLS record header in bytes (RFC 8446, section 5.1).
pub const RECORD_HEADER_LEN: usize = 5;

/// Longest protected fragment in bytes: 2^14 + 2048 in TLS 1.2 (RFC 5246, section 6.2.3). TLS 1.3
/// allows 2^14 + 256.
pub const MAX_CIPHERTEXT_LEN: usize = 16384 + 2048;

/// An opened record: what it was and how many bytes of the output buffer are content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The content type that was protected (TLS 1.3: the inner one).
    pub content_type: ContentType,
    /// Content bytes at the start of the output buffer; padding is already gone.
    pub len: usize,
}

/// Why a record could not be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// The tag does not match: other keys, another sequence number, or changed bytes.
    Authentication,
    /// Authentic, but not a legal record: empty inner plaintext, or content over the limit.
    Malformed,
}

/// The read keys of one direction and epoch.
///
/// Implementations are out-of-place: `fragment` is never modified, since it is the packet itself.
pub trait OpenRecord: Send {
    /// Verifies and decrypts the record with the given sequence number.
    ///
    /// `header` is the record header as it was sent; `fragment` is what follows it. On success
    /// the content is at the start of `plaintext`, which must have room for `fragment.len()`
    /// bytes. On failure the content of `plaintext` is unspecified and must not be used.
    ///
    /// # Errors
    /// [`OpenError`], also when `plaintext` is too small or `fragment` too short for a tag.
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError>;

    /// Tells keys of one direction and suite apart: a one-way function of them, for comparisons in this process.
    fn fingerprint(&self) -> [u8; 32];

    /// At most how many content bytes a fragment of this length has.
    fn content_len(&self, fragment_len: usize) -> usize {
        // TLS 1.3: inner content type and tag.
        fragment_len.saturating_sub(17)
    }

    /// Whether [`OpenRecord::content_len`] is the length and no bound of it, whatever the sender
    /// does. In TLS 1.3 it never is.
    fn content_len_is_exact(&self) -> bool {
        false
    }

    /// The hellos agreed on encrypt-then-MAC (RFC 7366), which changes the CBC suites of TLS 1.2.
    /// Told before the first record; means nothing to every other suite.
    fn set_encrypt_then_mac(&mut self) {}

    /// Gives back memory that the next record can do without or make again: the session is idle, and there may be a
    /// million of them.
    fn rest(&mut self) {}

    /// The same keys once more, as they were given first: connections may be copies of one another, with
    /// the same randoms. `None` where there can be no second one.
    fn share(&self) -> Option<Box<dyn OpenRecord>> {
        None
    }
}

/// Finds out which record of its direction and epoch a record is, of a session whose beginning was not seen.
pub trait LocateRecord: Send + Sync {
    /// The record's number, if it is authentic; `header` and `fragment` as in [`OpenRecord::open`]. Keys of another
    /// session find none, but for one in 2^64 records.
    fn locate(&self, header: [u8; RECORD_HEADER_LEN], fragment: &[u8]) -> Option<u64>;
}
