//! What is used of `hs.h`, of version 5. Refuses to do more than to declare it.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

pub(crate) const HS_SUCCESS: c_int = 0;
pub(crate) const HS_NOMEM: c_int = -2;
pub(crate) const HS_SCAN_TERMINATED: c_int = -3;
pub(crate) const HS_COMPILER_ERROR: c_int = -4;
pub(crate) const HS_ARCH_ERROR: c_int = -11;

pub(crate) const HS_FLAG_CASELESS: c_uint = 1;
pub(crate) const HS_MODE_BLOCK: c_uint = 1;

#[repr(C)]
pub(crate) struct HsDatabase {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct HsScratch {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(crate) struct HsCompileError {
    pub(crate) message: *const c_char,
    pub(crate) expression: c_int,
}

/// Gets number, start, end, flags and context of a match; something else than 0 ends the search.
pub(crate) type MatchHandler =
    extern "C" fn(c_uint, c_ulonglong, c_ulonglong, c_uint, *mut c_void) -> c_int;

#[link(name = "hs")]
unsafe extern "C" {
    pub(crate) safe fn hs_version() -> *const c_char;
    pub(crate) safe fn hs_valid_platform() -> c_int;
    pub(crate) fn hs_compile_multi(
        expressions: *const *const c_char,
        flags: *const c_uint,
        ids: *const c_uint,
        elements: c_uint,
        mode: c_uint,
        platform: *const c_void,
        database: *mut *mut HsDatabase,
        error: *mut *mut HsCompileError,
    ) -> c_int;
    pub(crate) fn hs_free_compile_error(error: *mut HsCompileError) -> c_int;
    pub(crate) fn hs_free_database(database: *mut HsDatabase) -> c_int;
    pub(crate) fn hs_database_size(database: *const HsDatabase, size: *mut usize) -> c_int;
    pub(crate) fn hs_alloc_scratch(
        database: *const HsDatabase,
        scratch: *mut *mut HsScratch,
    ) -> c_int;
    pub(crate) fn hs_scratch_size(scratch: *const HsScratch, size: *mut usize) -> c_int;
    pub(crate) fn hs_free_scratch(scratch: *mut HsScratch) -> c_int;
    pub(crate) fn hs_scan(
        database: *const HsDatabase,
        data: *const c_char,
        len: c_uint,
        flags: c_uint,
        scratch: *mut HsScratch,
        on_match: MatchHandler,
        context: *mut c_void,
    ) -> c_int;
}
