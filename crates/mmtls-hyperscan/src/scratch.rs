//! The space that a search works in: one for each thread, which fits every database searched there.
//!
//! Refuses to be used twice at a time.

use core::cell::RefCell;
use core::ptr;

use crate::error::Error;
use crate::ffi::{self, HsDatabase, HsScratch};

const WORD: usize = u64::BITS as usize;

/// The space of a thread.
struct Scratch {
    /// Null, or what `hs_alloc_scratch` made.
    space: *mut HsScratch,
    /// The databases that it fits, a bit each by [`Numbered::number`]: one for each that ever was.
    fits: Vec<u64>,
}

/// A database, with a number that no other has or had.
#[derive(Clone, Copy)]
pub(crate) struct Numbered {
    pub(crate) database: *const HsDatabase,
    pub(crate) number: usize,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> =
        const { RefCell::new(Scratch { space: ptr::null_mut(), fits: Vec::new() }) };
}

/// Calls `search` with this thread's space, made to fit the database.
///
/// # Errors
/// There is no memory, the thread ends, or this is called from `search`.
///
/// # Safety
/// The database is one that `hs_compile_multi` made, and is not freed yet.
pub(crate) unsafe fn with<R>(
    numbered: Numbered,
    search: impl FnOnce(*mut HsScratch) -> R,
) -> Result<R, Error> {
    let used = SCRATCH.try_with(|scratch| {
        // Borrowed while it is used: a search within a search gets an error.
        let mut scratch = scratch.try_borrow_mut().map_err(|_| Error::NoScratch)?;
        if !scratch.does_fit(numbered.number) {
            // SAFETY: the caller vouches for the database.
            unsafe { scratch.fit(numbered) }?;
        }
        Ok(search(scratch.space))
    });
    used.map_err(|_| Error::NoScratch)?
}

impl Scratch {
    fn does_fit(&self, number: usize) -> bool {
        self.fits.get(number / WORD).is_some_and(|word| word >> (number % WORD) & 1 == 1)
    }

    /// Grows it until it fits one database more.
    ///
    /// # Safety
    /// As [`with`].
    unsafe fn fit(&mut self, Numbered { database, number }: Numbered) -> Result<(), Error> {
        // SAFETY: the caller vouches for the database; `space` is null or a space of this library that
        // nobody uses, since `self` is borrowed. It is replaced, and null where that fails.
        let code = unsafe { ffi::hs_alloc_scratch(database, &raw mut self.space) };
        let fitting = Error::check(code);
        if fitting.is_err() {
            self.fits.clear();
            return fitting;
        }
        let word = number / WORD;
        if self.fits.len() <= word {
            self.fits.resize(word + 1, 0);
        }
        if let Some(fits) = self.fits.get_mut(word) {
            *fits |= 1 << (number % WORD);
        }
        Ok(())
    }
}

/// Bytes of this thread's space; none where it has not searched yet.
pub(crate) fn memory() -> usize {
    let size = SCRATCH.try_with(|scratch| {
        let Ok(scratch) = scratch.try_borrow() else { return 0 };
        let mut size = 0;
        if scratch.space.is_null() {
            return 0;
        }
        // SAFETY: the space is one that `hs_alloc_scratch` made, and `size` is there to be written.
        let code = unsafe { ffi::hs_scratch_size(scratch.space, &raw mut size) };
        if Error::check(code).is_ok() { size } else { 0 }
    });
    size.unwrap_or(0)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.space.is_null() {
            // SAFETY: the space is one that `hs_alloc_scratch` made, and nobody else has it.
            let code = unsafe { ffi::hs_free_scratch(self.space) };
            debug_assert_eq!(code, ffi::HS_SUCCESS, "scratch space in use");
        }
    }
}
