//! By what patterns of rules are searched for, and why they cannot be.
//!
//! Refuses to let it show in what is found: all give the same.

use core::fmt;

use aho_corasick::BuildError;

use crate::rules::Buffer;

/// By what patterns of many rules are searched for at once. What rules match does not depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Search {
    /// An automaton that is part of this library.
    #[cfg_attr(not(feature = "hyperscan"), default)]
    AhoCorasick,
    /// The system's Hyperscan, or Vectorscan.
    #[cfg(feature = "hyperscan")]
    #[default]
    Hyperscan,
}

impl Search {
    /// All that this library was built with.
    pub const ALL: &[Self] = &[
        Self::AhoCorasick,
        #[cfg(feature = "hyperscan")]
        Self::Hyperscan,
    ];
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AhoCorasick => f.write_str("aho-corasick"),
            #[cfg(feature = "hyperscan")]
            Self::Hyperscan => write!(f, "Hyperscan {}", mmtls_hyperscan::version()),
        }
    }
}

/// The patterns of a buffer cannot be searched for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchError {
    /// The buffer.
    pub buffer: Buffer,
    /// Why.
    pub fault: SearchFault,
}

/// Why patterns cannot be searched for.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SearchFault {
    /// There are too many.
    TooMany,
    /// The library says so.
    #[cfg(feature = "hyperscan")]
    Hyperscan(mmtls_hyperscan::Error),
}

impl From<BuildError> for SearchFault {
    fn from(_: BuildError) -> Self {
        Self::TooMany
    }
}

#[cfg(feature = "hyperscan")]
impl From<mmtls_hyperscan::Error> for SearchFault {
    fn from(error: mmtls_hyperscan::Error) -> Self {
        Self::Hyperscan(error)
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffer, fault } = self;
        match fault {
            SearchFault::TooMany => write!(f, "too many patterns in the buffer {buffer:?}"),
            #[cfg(feature = "hyperscan")]
            SearchFault::Hyperscan(error) => {
                write!(f, "patterns in the buffer {buffer:?}: {error}")
            }
        }
    }
}

impl std::error::Error for SearchError {}
