//! The one error of this room. Refuses to carry key bytes.

use core::fmt;

/// Why keys could not be used or derived. The fault lies with whoever supplied them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyError {
    /// A version other than TLS 1.2 and 1.3, whose record protection is not built.
    UnsupportedVersion(u16),
    /// The suite number is unknown, or the version cannot use it.
    UnsupportedSuite(u16),
    /// A traffic secret of another length than the suite's hash, or a master secret of another
    /// length than 48 bytes.
    SecretLength {
        /// Bytes the suite needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A key of another length than the suite's cipher needs.
    KeyLength {
        /// Bytes the suite needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// An IV of another length than the suite's key schedule yields.
    IvLength {
        /// Bytes the suite needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A MAC key of another length than the suite's MAC; AEAD suites have none.
    MacKeyLength {
        /// Bytes the suite needs.
        expected: usize,
        /// Bytes that were given.
        actual: usize,
    },
    /// A suite with the private tag where its key cannot be given, or one without where it is.
    PrivateTag(u16),
    /// No secret leads to the keys of this direction and epoch.
    NoSecret,
    /// The epoch is over; its secret is gone.
    PastEpoch,
    /// The epoch lies more KeyUpdates ahead than are derived at once.
    FutureEpoch,
    /// The crypto library refused; does not happen with checked lengths.
    Library,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, expected, actual) = match *self {
            Self::UnsupportedVersion(version) => {
                return write!(f, "protocol version {version:#06x} is not supported");
            }
            Self::UnsupportedSuite(suite) => {
                return write!(f, "cipher suite {suite:#06x} is not supported");
            }
            Self::PrivateTag(suite) => {
                return write!(
                    f,
                    "cipher suite {suite:#06x} and the private tag do not go together"
                );
            }
            Self::NoSecret => return f.write_str("there is no secret for these keys"),
            Self::PastEpoch => return f.write_str("the secrets of this epoch are gone"),
            Self::FutureEpoch => return f.write_str("the epoch is too many key updates ahead"),
            Self::Library => return f.write_str("the crypto library refused the key"),
            Self::SecretLength { expected, actual } => ("secret", expected, actual),
            Self::KeyLength { expected, actual } => ("record key", expected, actual),
            Self::IvLength { expected, actual } => ("record IV", expected, actual),
            Self::MacKeyLength { expected, actual } => ("MAC key", expected, actual),
        };
        write!(f, "{what} has {actual} bytes, the suite needs {expected}")
    }
}

impl std::error::Error for KeyError {}
