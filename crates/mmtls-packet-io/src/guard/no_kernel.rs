//! In place of `kernel.rs` where this crate was built without clang. Refuses to load anything.

use std::convert::Infallible;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use super::error::GuardError;

/// Whether there is a program.
pub(super) fn is_built() -> Result<(), GuardError> {
    Err(GuardError::Unsupported { reason: "this program was built without clang".to_owned() })
}

/// There is none.
pub(super) struct Loaded(Infallible);

impl Loaded {
    pub(super) fn load(_: &[u32; 2]) -> Result<Self, GuardError> {
        Err(is_built().err().unwrap_or(GuardError::TooManyWorkers))
    }

    pub(super) fn pin_map(&self, _: &Path) -> Result<(), GuardError> {
        match self.0 {}
    }

    pub(super) fn map(&self) -> Result<BorrowedFd<'_>, GuardError> {
        match self.0 {}
    }

    pub(super) fn attach(&mut self, _: &[String; 2], _: &[PathBuf; 2]) -> Result<(), GuardError> {
        match self.0 {}
    }
}
