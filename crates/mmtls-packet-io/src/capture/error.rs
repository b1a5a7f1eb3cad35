//! Errors of capture files, each with the place in the (uncompressed) file where it was found.

use std::fmt;
use std::io;

/// Why a capture file cannot be read, or cannot be read further.
#[derive(Debug)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file could not be opened or read.
    Io(io::Error),
    /// The gzip data is damaged.
    Compression {
        /// Bytes that were uncompressed before.
        offset: u64,
        /// What the decompressor says.
        error: io::Error,
    },
    /// Neither pcap nor pcapng.
    NotACapture {
        /// The first bytes, as many of four as there are.
        magic: Vec<u8>,
    },
    /// The file ends inside something, as when the capturing program was killed. All before it was delivered.
    Truncated {
        /// Where the incomplete thing starts.
        offset: u64,
        /// What it is.
        what: &'static str,
    },
    /// A length beyond [`super::MAX_BLOCK_BYTES`] (or, of descriptions, 1 MiB).
    TooLarge {
        /// Where the record or block starts.
        offset: u64,
        /// What it is.
        what: &'static str,
        /// The bytes that it claims to have.
        length: u64,
    },
    /// A length or number contradicts the format.
    Malformed {
        /// Where the record or block starts.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// A packet block names an interface that its section did not describe.
    UnknownInterface {
        /// Where the block starts.
        offset: u64,
        /// The number.
        interface: u32,
    },
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Compression { offset, error } => {
                write!(f, "damaged gzip data after byte {offset} of the capture: {error}")
            }
            Self::NotACapture { magic } if magic.is_empty() => f.write_str("the file is empty"),
            Self::NotACapture { magic } => {
                write!(f, "neither a pcap nor a pcapng file (it starts with {magic:02x?})")
            }
            Self::Truncated { offset, what } => {
                write!(f, "the file ends inside a {what} that starts at byte {offset}")
            }
            Self::TooLarge { offset, what, length } => {
                write!(f, "a {what} at byte {offset} claims {length} bytes")
            }
            Self::Malformed { offset, reason } => write!(f, "at byte {offset}: {reason}"),
            Self::UnknownInterface { offset, interface } => {
                write!(
                    f,
                    "the packet at byte {offset} is of interface {interface}, which is not described"
                )
            }
        }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) | Self::Compression { error, .. } => Some(error),
            _ => None,
        }
    }
}
