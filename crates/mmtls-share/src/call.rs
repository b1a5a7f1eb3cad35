//! The wrapper around every exported function. Refuses to let anything of ours reach the program: `errno`, a panic, its text.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use mmtls_sender::host::guarded;

use crate::error::MMTLS_SHARE_ERR_INTERNAL;

thread_local! {
    /// This thread is inside the library.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs an exported function.
pub(crate) fn call(work: impl FnOnce() -> Result<c_int, c_int>) -> c_int {
    run(MMTLS_SHARE_ERR_INTERNAL, || work().unwrap_or_else(|code| code))
}

/// As [`call`], with another result.
pub(crate) fn run<T>(fallback: T, work: impl FnOnce() -> T) -> T {
    // A callback of OpenSSL's may run inside a call of ours.
    let before = INSIDE.replace(true);
    let result = guarded(fallback, work);
    INSIDE.set(before);
    result
}

/// Our panics print nothing, once this was called. Linked statically into a Rust program the library has the standard library
/// in common with it, and its panics are to be told as before.
pub(crate) fn silence() {
    static SILENT: AtomicBool = AtomicBool::new(false);
    if !SILENT.swap(true, Ordering::AcqRel) {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                before(info);
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_let_a_panic_out() {
        silence();
        assert_eq!(call(|| panic!("on purpose")), MMTLS_SHARE_ERR_INTERNAL);
        assert_eq!((call(|| Ok(1)), call(|| Err(-5))), (1, -5));
        assert!(!INSIDE.get());
    }
}
