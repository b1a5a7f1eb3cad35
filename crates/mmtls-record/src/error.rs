//! The one error of this room. Refuses to carry key bytes.

use core::fmt;

/// Why keys could not be used or derived. The fault lies with whoever supplied them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyError {
    /// The suite number is unknown, or known and not built yet.
    UnsupportedSuite(u16),
    /// A secret of another length than the suite's hash.
    SecretLength {
        /// Bytes the suite needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A key of another length than the suite's AEAD needs.
    KeyLength {
        /// Bytes the suite needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// An IV of another length than 12 bytes.
    IvLength(usize),
    /// The crypto library refused; does not happen with checked lengths.
    Library,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedSuite(suite) => {
                write!(f, "cipher suite {suite:#06x} is not supported")
            }
            Self::SecretLength { expected, actual } => {
                write!(
                    f,
                    "traffic secret has {actual} bytes, the suite needs {expected}"
                )
            }
            Self::KeyLength { expected, actual } => {
                write!(
                    f,
                    "record key has {actual} bytes, the suite needs {expected}"
                )
            }
            Self::IvLength(actual) => write!(f, "record IV has {actual} bytes, TLS 1.3 needs 12"),
            Self::Library => f.write_str("the crypto library refused the key"),
        }
    }
}

impl std::error::Error for KeyError {}
