//! The wrapper around every exported function, and the code of a thread's latest call.
//!
//! Refuses to let a panic out.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{self, Failure, MMTLS_ERR_INTERNAL};

thread_local! {
    /// The code of this thread's latest call.
    static CODE: Cell<c_int> = const { Cell::new(0) };
    /// What is to be said about it, where there is more than its text.
    static DETAIL: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs an exported function: a failure becomes `failed` and this thread's code.
pub(crate) fn call<T>(failed: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let outcome =
        catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Failure::Code(MMTLS_ERR_INTERNAL)));
    match outcome {
        Ok(value) => {
            CODE.set(0);
            value
        }
        Err(failure) => {
            CODE.set(failure.code());
            let detail = match failure {
                Failure::Detailed(_, text) => CString::new(text).ok(),
                _ => None,
            };
            // It is gone while the thread ends, where destructors of the application may still call.
            let _ = DETAIL.try_with(|slot| slot.replace(detail));
            failed
        }
    }
}

/// As [`call`], for functions that return 0 or a code.
pub(crate) fn call_for_code(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    call(None, || work().map(Some)).map_or_else(|| CODE.get(), |()| 0)
}

/// The code of this thread's latest call.
pub(crate) fn code() -> c_int {
    CODE.get()
}

/// What is to be said about it; valid until this thread's next failing call.
pub(crate) fn message() -> *const c_char {
    let code = CODE.get();
    let detail = DETAIL.try_with(|detail| detail.borrow().as_ref().map(|text| text.as_ptr()));
    match detail {
        Ok(Some(text)) if code < 0 => text,
        _ => error::text(code).as_ptr(),
    }
}
