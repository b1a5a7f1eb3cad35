//! The wrapper around every exported function, and the event that a callback is about.
//!
//! Refuses to let a panic out, and to give one event's session to another thread or to a later
//! callback.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::application::Current;
use crate::error::{self, Failure, MMTLS_ERR_CONTEXT, MMTLS_ERR_INTERNAL, MMTLS_ERR_THREAD};
use crate::library;
use crate::types::mmctx_t;

thread_local! {
    /// The code of this thread's latest call.
    static CODE: Cell<c_int> = const { Cell::new(0) };
    /// What is to be said about it, where there is more than its text.
    static DETAIL: RefCell<Option<CString>> = const { RefCell::new(None) };
    /// The event whose callback this thread runs. The pointee's own lifetimes are erased.
    static CURRENT: Cell<Option<NonNull<Current<'static, 'static, 'static>>>> =
        const { Cell::new(None) };
    /// Whether this thread is inside a callback, also while `CURRENT` is lent.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
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

/// Whether this thread is inside a callback.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// Runs a callback: `current` is what the functions that it calls work on.
pub(crate) fn during<'e, 's, 'r>(current: &mut Current<'e, 's, 'r>, callback: impl FnOnce()) {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            CURRENT.set(None);
            IN_CALLBACK.set(false);
        }
    }
    let _end = End;
    CURRENT.set(Some(NonNull::from(current).cast()));
    IN_CALLBACK.set(true);
    callback();
}

/// Lends the current event to a function that a callback of `context` calls.
pub(crate) fn with_current<T>(
    context: mmctx_t,
    work: impl for<'e, 's, 'r> FnOnce(&mut Current<'e, 's, 'r>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    struct PutBack(NonNull<Current<'static, 'static, 'static>>);
    impl Drop for PutBack {
        fn drop(&mut self) {
            CURRENT.set(Some(self.0));
        }
    }
    // Taken out while it is lent, so that there is one reference at a time.
    let Some(current) = CURRENT.take() else {
        return Err(why_not(context));
    };
    let lent = PutBack(current);
    let mut pointer = lent.0;
    // SAFETY: `during` set it from a unique reference that outlives the callback, and clears it
    // when the callback is over; the callback runs on this thread, which is inside it. `work`
    // takes any lifetimes, so it cannot make use of the erased ones.
    let current = unsafe { pointer.as_mut() };
    if current.context() == library::number_of(context) {
        return work(current);
    }
    Err(why_not(context))
}

/// Why a call that needs an event of `context` has none.
fn why_not(context: mmctx_t) -> Failure {
    let code = match library::exists(context) {
        true => MMTLS_ERR_THREAD,
        false => MMTLS_ERR_CONTEXT,
    };
    Failure::Code(code)
}
