//! Patterns, compiled for searching one block of bytes at a time.
//!
//! Refuses to let a panic pass through the library.

use core::any::Any;
use core::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use core::ops::ControlFlow;
use core::ptr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::ffi::{self, HsCompileError, HsDatabase};
use crate::scratch::{self, Numbered};

/// The number of the next database.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Whether upper and lower case are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Case {
    /// They are not.
    Told,
    /// Those of ASCII are.
    Ignored,
}

/// Literal patterns, compiled for searching.
pub struct Database {
    /// What `hs_compile_multi` made; freed in the end.
    compiled: *mut HsDatabase,
    number: usize,
    memory: usize,
}

// SAFETY: a compiled database is bound to no thread.
unsafe impl Send for Database {}
// SAFETY: the library never writes to a compiled database: any number of threads may search with it at a
// time, each with its own scratch space.
unsafe impl Sync for Database {}

impl Database {
    /// Compiles patterns, which are known by their place.
    ///
    /// # Errors
    /// There is no pattern, one is empty, or they are beyond what the library, the memory or the
    /// processor can do.
    pub fn new<'a>(
        patterns: impl IntoIterator<Item = &'a [u8]>,
        case: Case,
    ) -> Result<Self, Error> {
        Error::check(ffi::hs_valid_platform())?;
        let texts: Vec<Vec<u8>> = patterns.into_iter().map(expression).collect();
        let pointers: Vec<*const c_char> = texts.iter().map(|it| it.as_ptr().cast()).collect();
        let count = c_uint::try_from(texts.len()).map_err(|_| Error::TooMany)?;
        let numbers: Vec<c_uint> = (0..count).collect();
        let flag = if case == Case::Ignored { ffi::HS_FLAG_CASELESS } else { 0 };
        let flags = vec![flag; texts.len()];
        let (mut compiled, mut error) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the three lists have `count` items each, the texts end with a null byte, all outlive the
        // call, and both results are there to be written. No platform means this one.
        let code = unsafe {
            ffi::hs_compile_multi(
                pointers.as_ptr(),
                flags.as_ptr(),
                numbers.as_ptr(),
                count,
                ffi::HS_MODE_BLOCK,
                ptr::null(),
                &raw mut compiled,
                &raw mut error,
            )
        };
        if code == ffi::HS_COMPILER_ERROR {
            return Err(refused(error));
        }
        Error::check(code)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut database = Self { compiled, number, memory: 0 };
        // SAFETY: the database was just compiled, and the size is there to be written.
        let code = unsafe { ffi::hs_database_size(compiled, &raw mut database.memory) };
        Error::check(code)?;
        // What does not fit into memory is to be known now.
        // SAFETY: the database was just compiled.
        unsafe { scratch::with(database.numbered(), |_| ()) }?;
        Ok(database)
    }

    /// Searches one block; `found` gets the number of a pattern and where in the block it ends. It may
    /// do so in any order; for every place where a pattern ends it is called at least once, until it breaks.
    ///
    /// # Errors
    /// There is no scratch space, or the library failed: patterns may not have been found.
    ///
    /// # Panics
    /// When `found` does.
    pub fn search<F: FnMut(usize, usize) -> ControlFlow<()>>(
        &self,
        block: &[u8],
        found: &mut F,
    ) -> Result<(), Error> {
        if block.is_empty() {
            return Ok(());
        }
        let len = c_uint::try_from(block.len()).map_err(|_| Error::TooMany)?;
        let mut call = Call { found, panic: None };
        let context = (&raw mut call).cast::<c_void>();
        let scan = |space| {
            // SAFETY: the database is alive as long as `self`, the block has `len` bytes, the space fits the
            // database and is this thread's, and `on_match` gets `context`, which outlives the call and is
            // not used but by it, as what it is made for.
            unsafe {
                ffi::hs_scan(
                    self.compiled,
                    block.as_ptr().cast(),
                    len,
                    0,
                    space,
                    on_match::<F>,
                    context,
                )
            }
        };
        // SAFETY: the database is alive as long as `self`.
        let code = unsafe { scratch::with(self.numbered(), scan) }?;
        if let Some(panic) = call.panic {
            resume_unwind(panic);
        }
        if code == ffi::HS_SCAN_TERMINATED { Ok(()) } else { Error::check(code) }
    }

    /// Bytes of memory, without the scratch space.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.memory
    }

    /// Bytes of this thread's scratch space, which all databases share.
    #[must_use]
    pub fn scratch_memory() -> usize {
        scratch::memory()
    }

    const fn numbered(&self) -> Numbered {
        Numbered { database: self.compiled, number: self.number }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: `hs_compile_multi` made it, and nobody searches with it any more.
        let code = unsafe { ffi::hs_free_database(self.compiled) };
        debug_assert_eq!(code, ffi::HS_SUCCESS, "no database");
    }
}

/// What a search calls, and the panic that came of it.
struct Call<'a, F> {
    found: &'a mut F,
    panic: Option<Box<dyn Any + Send>>,
}

extern "C" fn on_match<F: FnMut(usize, usize) -> ControlFlow<()>>(
    number: c_uint,
    _start: c_ulonglong,
    end: c_ulonglong,
    _flags: c_uint,
    context: *mut c_void,
) -> c_int {
    // SAFETY: `search` alone gives this function to the library, with a `Call` of the same type that it
    // does not touch until the library returns.
    let call = unsafe { &mut *context.cast::<Call<'_, F>>() };
    let (pattern, end) = (number as usize, usize::try_from(end).unwrap_or(usize::MAX));
    match catch_unwind(AssertUnwindSafe(|| (call.found)(pattern, end))) {
        Ok(ControlFlow::Continue(())) => 0,
        Ok(ControlFlow::Break(())) => 1,
        Err(panic) => {
            call.panic = Some(panic);
            1
        }
    }
}

/// A pattern as an expression, with a null byte behind it: every byte by its number. (Version 5.4.0, which
/// distributions have, fails in searches for what its interface for literals compiled: intel/hyperscan
/// issue 303.)
fn expression(pattern: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| DIGITS[usize::from(value & 15)];
    let escaped = pattern.iter().flat_map(|byte| [b'\\', b'x', digit(byte >> 4), digit(*byte)]);
    escaped.chain([0]).collect()
}

/// What the library says of patterns that it refuses.
fn refused(error: *mut HsCompileError) -> Error {
    if error.is_null() {
        return Error::Memory;
    }
    // SAFETY: the library made this error, and it is freed below only.
    let HsCompileError { message, expression } = unsafe { error.read() };
    let mut why = String::new();
    if !message.is_null() {
        // SAFETY: the message ends with a null byte, and lives as long as the error.
        why = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    }
    if expression >= 0 {
        why = format!("pattern {expression}: {why}");
    }
    // SAFETY: the library made this error, and nothing is used of it any more.
    let code = unsafe { ffi::hs_free_compile_error(error) };
    debug_assert_eq!(code, ffi::HS_SUCCESS, "no compile error");
    Error::Refused(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(database: &Database, block: &[u8]) -> Vec<(usize, usize)> {
        let mut ends = Vec::new();
        let found = &mut |pattern, end| {
            ends.push((pattern, end));
            ControlFlow::Continue(())
        };
        database.search(block, found).unwrap();
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    #[test]
    fn accepts_any_bytes_in_either_case() {
        let every: Vec<u8> = (0..=255).collect();
        let patterns = [&b"a.b"[..], b"\0\n", b"B", &every];
        let told = Database::new(patterns, Case::Told).unwrap();
        assert_eq!(all(&told, b"A.B \0\n aXb a.b"), [(0, 14), (1, 6), (2, 3)]);
        assert_eq!(all(&told, &every), [(2, 67), (3, 256)]);
        let ignored = Database::new(patterns, Case::Ignored).unwrap();
        assert_eq!(all(&ignored, b"A.B"), [(0, 3), (2, 3)]);
        assert_eq!(all(&ignored, b""), []);
        assert!(told.memory() > 0 && Database::scratch_memory() > 0);
        assert!(crate::version().starts_with("5."));
    }

    #[test]
    fn accepts_databases_of_several_threads_and_more_of_them_later() {
        let few = Database::new([&b"ab"[..]], Case::Told).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..50 {
                        let words: Vec<Vec<u8>> =
                            (0..number * 5 + 1).map(|it| format!("x{it}y").into_bytes()).collect();
                        let many = Database::new(words.iter().map(|it| &**it), Case::Told).unwrap();
                        let text = format!("..x{number}y..");
                        assert_eq!(all(&many, text.as_bytes()).len(), 1);
                        assert_eq!(all(&few, b"abab"), [(0, 2), (0, 4)]);
                    }
                });
            }
        });
    }

    #[test]
    fn accepts_that_a_search_ends_early() {
        let database = Database::new([&b"a"[..]], Case::Told).unwrap();
        let mut count = 0;
        let found = &mut |_, _| {
            count += 1;
            ControlFlow::Break(())
        };
        assert_eq!(database.search(b"aaa", found), Ok(()));
        assert_eq!(count, 1);
    }

    #[test]
    fn refuses_what_cannot_be_searched_for_in_words() {
        let why = |patterns: &[&[u8]]| {
            let error = Database::new(patterns.iter().copied(), Case::Told).err().unwrap();
            error.to_string()
        };
        assert!(why(&[]).starts_with("Hyperscan refuses the patterns: "), "{}", why(&[]));
        assert!(why(&[b"a", b""]).starts_with("Hyperscan refuses the patterns: pattern 1: "));
        assert!(
            why(&[&b"a".repeat(20_000)]).starts_with("Hyperscan refuses the patterns: pattern 0: ")
        );
    }

    #[test]
    fn refuses_searches_within_a_search_and_lets_panics_out_behind_it() {
        let database = Database::new([&b"a"[..]], Case::Told).unwrap();
        let mut inner = Ok(());
        let found = &mut |_, _| {
            inner = database.search(b"a", &mut |_, _| ControlFlow::Continue(()));
            ControlFlow::Continue(())
        };
        assert_eq!(database.search(b"a", found), Ok(()));
        assert_eq!(inner, Err(Error::NoScratch));
        let panicking = || database.search(b"a", &mut |_, _| panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        assert_eq!(all(&database, b"a"), [(0, 1)]);
    }
}
