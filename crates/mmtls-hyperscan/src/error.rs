//! What can go wrong. Refuses to leave a number of the library without words.

use core::ffi::c_int;
use core::fmt;

use crate::ffi;

/// Why patterns cannot be searched for, or bytes not be searched.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The library cannot run on this processor.
    Processor,
    /// There is not enough memory.
    Memory,
    /// The library refuses the patterns, with its words.
    Refused(Box<str>),
    /// More bytes, or patterns, than the library can count.
    TooMany,
    /// A search within a search, or in a thread that ends.
    NoScratch,
    /// Another error of the library, with its number.
    Library(i32),
}

impl Error {
    /// The error that a number means; none for success.
    pub(crate) fn check(code: c_int) -> Result<(), Self> {
        match code {
            ffi::HS_SUCCESS => Ok(()),
            ffi::HS_NOMEM => Err(Self::Memory),
            ffi::HS_ARCH_ERROR => Err(Self::Processor),
            other => Err(Self::Library(other)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hyperscan ")?;
        match self {
            Self::Processor => f.write_str("cannot run on this processor (on x86 it needs SSSE3)"),
            Self::Memory => f.write_str("has not enough memory"),
            Self::Refused(why) => write!(f, "refuses the patterns: {why}"),
            Self::TooMany => f.write_str("cannot count so many"),
            Self::NoScratch => f.write_str("has no scratch space in this thread"),
            Self::Library(code) => write!(f, "fails with error {code}"),
        }
    }
}

impl std::error::Error for Error {}
