//! Giving a record to the application.
//!
//! Without a type (figure 9, or NULL) only application data is given and other records have length 0, since servers send
//! session tickets in the same stream. With NULL for the buffer nothing is decrypted: the length is the announced one
//! (TLS 1.3: padding included), the type the visible one.
//!
//! Refuses to write beyond what the caller declared, and to decrypt where nobody asks for content.

use std::ffi::{c_char, c_int};

use mmtls_middlebox::session::SessionError;
use mmtls_middlebox::tls::{ContentType, OpenError};

use crate::error::{
    Failure, MMTLS_ERR_ARGUMENT, MMTLS_ERR_BUFFER, MMTLS_ERR_CAPACITY, MMTLS_ERR_INTERNAL,
};
use crate::library::with_current;
use crate::result::write;
use crate::side::side_index;
use crate::types::mmctx_t;

/// The record's content, length and type. Without a capacity, `buf` must lie in the buffer that
/// was declared for this side.
///
/// # Safety
/// `len` and `kind` are NULL or can be written; `buf` is NULL or has `capacity` bytes, and what was
/// declared can be written.
pub(crate) unsafe fn get(
    mmctx: mmctx_t,
    cid: c_int,
    side: c_int,
    buf: *mut c_char,
    capacity: Option<usize>,
    len: *mut c_int,
    kind: *mut u8,
) -> Result<(), Failure> {
    with_current(mmctx, |current| {
        let index = side_index(side)?;
        let (record, entry) = current.record(cid, side)?;
        if len.is_null() {
            return Err(MMTLS_ERR_ARGUMENT.into());
        }
        if buf.is_null() {
            let (announced, outer) = match record.opened() {
                Some(Ok(opened)) => (opened.len, opened.content_type),
                _ => (record.announced_len(), record.outer_type()),
            };
            // SAFETY: the caller's promise.
            unsafe { describe(len, kind, announced, outer) }?;
            return Ok(());
        }
        let room = match capacity {
            Some(capacity) => capacity,
            None => remaining(entry.buffers[index], buf)?,
        };
        let plaintext = match record.open() {
            Ok(plaintext) => plaintext,
            Err(OpenError::Authentication | OpenError::Malformed) => {
                entry.last_error = SessionError::Integrity.code();
                return Err(Failure::Session(SessionError::Integrity));
            }
        };
        let unwanted = kind.is_null() && plaintext.content_type != ContentType::APPLICATION_DATA;
        let bytes = if unwanted { &[] } else { plaintext.bytes };
        // SAFETY: the caller's promise.
        unsafe { describe(len, kind, bytes.len(), plaintext.content_type) }?;
        if bytes.len() > room {
            return Err(MMTLS_ERR_CAPACITY.into());
        }
        // SAFETY: `buf` has `room` bytes: the caller said so in this call, or when it declared the
        // buffer. The source is the engine's, which the application has no pointer to.
        unsafe { buf.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    })
}

/// Bytes from `buf` to the end of the declared buffer.
fn remaining((base, capacity): (usize, usize), buf: *mut c_char) -> Result<usize, Failure> {
    let offset = buf.addr().checked_sub(base);
    match offset.and_then(|offset| capacity.checked_sub(offset)) {
        Some(room) if capacity > 0 => Ok(room),
        _ => Err(MMTLS_ERR_BUFFER.into()),
    }
}

/// # Safety
/// `len` can be written; `kind` is NULL or can be.
unsafe fn describe(
    len: *mut c_int,
    kind: *mut u8,
    bytes: usize,
    content_type: ContentType,
) -> Result<(), Failure> {
    let bytes = c_int::try_from(bytes).map_err(|_| Failure::Code(MMTLS_ERR_INTERNAL))?;
    if !kind.is_null() {
        // SAFETY: not NULL; the caller's promise.
        unsafe { write(kind, content_type.0) }?;
    }
    // SAFETY: the caller's promise.
    unsafe { write(len, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_places_inside_and_refuses_others() {
        let room = |declared, at: usize| remaining(declared, std::ptr::without_provenance_mut(at));
        assert_eq!(room((1000, 50), 1000), Ok(50));
        assert_eq!(room((1000, 50), 1049), Ok(1));
        assert_eq!(room((1000, 50), 1050), Ok(0));
        for at in [999, 1051, 1, usize::MAX] {
            assert_eq!(room((1000, 50), at), Err(MMTLS_ERR_BUFFER.into()));
        }
        assert_eq!(room((0, 0), 1), Err(MMTLS_ERR_BUFFER.into()));
    }
}
