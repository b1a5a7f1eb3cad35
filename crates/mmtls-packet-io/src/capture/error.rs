//! Errors of capture files, each with the place in the (uncompressed) file where it was found.

use std::io;

use thiserror::Error;

/// Why a capture file cannot be read, or cannot be read further.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file could not be opened or read.
    #[error("{0}")]
    Io(#[source] io::Error),
    /// The gzip data is damaged.
    #[error("damaged gzip data after byte {offset} of the capture: {error}")]
    Compression {
        /// Bytes that were uncompressed before.
        offset: u64,
        /// What the decompressor says.
        #[source]
        error: io::Error,
    },
    /// Neither pcap nor pcapng.
    #[error("{}", not_a_capture(magic))]
    NotACapture {
        /// The first bytes, as many of four as there are.
        magic: Vec<u8>,
    },
    /// The file ends inside something, as when the capturing program was killed. All before it was delivered.
    #[error("the file ends inside a {what} that starts at byte {offset}")]
    Truncated {
        /// Where the incomplete thing starts.
        offset: u64,
        /// What it is.
        what: &'static str,
    },
    /// A length beyond [`super::MAX_BLOCK_BYTES`] (or, of descriptions, 1 MiB).
    #[error("a {what} at byte {offset} claims {length} bytes")]
    TooLarge {
        /// Where the record or block starts.
        offset: u64,
        /// What it is.
        what: &'static str,
        /// The bytes that it claims to have.
        length: u64,
    },
    /// A length or number contradicts the format.
    #[error("at byte {offset}: {reason}")]
    Malformed {
        /// Where the record or block starts.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A packet block names an interface that its section did not describe.
    #[error("the packet at byte {offset} is of interface {interface}, which is not described")]
    UnknownInterface {
        /// Where the block starts.
        offset: u64,
        /// The number.
        interface: u32,
    },
}

fn not_a_capture(magic: &[u8]) -> String {
    match magic {
        [] => "the file is empty".to_owned(),
        _ => format!("neither a pcap nor a pcapng file (it starts with {magic:02x?})"),
    }
}
