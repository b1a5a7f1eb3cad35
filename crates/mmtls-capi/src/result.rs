//! Where a function writes what it returns beside its code. Refuses NULL.

use crate::error::{Failure, MMTLS_ERR_ARGUMENT};

/// Writes a result where the caller wants it; refuses NULL.
///
/// # Safety
/// `out` is NULL or can be written.
pub(crate) unsafe fn write<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(MMTLS_ERR_ARGUMENT.into());
    }
    // SAFETY: not NULL; the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}
