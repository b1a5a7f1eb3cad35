//! The C library of mmTLS: the functions of the paper's figure 23, over the handler trait.
//!
//! A translation without logic. `include/mmtls.h` is generated from these doc comments, which are
//! written for C programmers. Refuses to follow a handle, to let a panic out, and to write into
//! memory whose size it was not told.
#![allow(clippy::missing_safety_doc, reason = "the documentation is the C header's")]
#![allow(rustdoc::broken_intra_doc_links, reason = "in the header, [tables] are no links")]
#![allow(clippy::allow_attributes_without_reason, reason = "none is without")]

mod application;
mod call;
mod context_end;
mod current;
mod error;
mod handle;
mod library;
mod messages;
mod record;
mod result;
mod run;
mod settings_file;
mod side;
mod types;

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use call::{call, call_for_code};
pub use error::*;
use library::with_current;
use result::write;
use side::{direction, side_index};
pub use types::*;

/// Reads the configuration: a file as `mmtls run -c` takes it, with [inline], [keys] and [policies]
/// missing_keys; or one with [passive], which can stop nothing (but sends RSTs where
/// `reset_interface` is set), in place of [inline]; or one with [offline], which replays a capture: then
/// policies and limits do not count. [capture], [control], [inspect], [log], [metrics], [mirror],
/// [sandbox] and [web] are for `mmtls run` and not looked at; of [workers], count and cpus are replaced by
/// the contexts'. One key = value a line, lists too, without escapes in texts: TOML's other spellings are
/// refused here.
///
/// `num_cpus`: how many contexts there may be, 1 to 128.
///
/// Returns 0, MMTLS_ERR_ARGUMENT, MMTLS_ERR_CONFIG, MMTLS_ERR_IN_CALLBACK, or MMTLS_ERR_INITIALISED when
/// called twice without `mmtls_destroy`. Files that the configuration names are opened when the contexts
/// start. Not inside a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_init(fname: *const c_char, num_cpus: c_int) -> c_int {
    call_for_code(|| {
        if fname.is_null() {
            return Err(MMTLS_ERR_ARGUMENT.into());
        }
        // SAFETY: not NULL; the caller passes a NUL-terminated string.
        let path = unsafe { CStr::from_ptr(fname) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let wrong =
            |text| Failure::Detailed(MMTLS_ERR_CONFIG, format!("{}: {text}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        library::init(settings_file::parse(&text).map_err(wrong)?, num_cpus)
    })
}

/// Ends the contexts, waits for them, and forgets everything. Sessions that live then get their
/// ON_TLS_SESSION_END. Afterwards no handle is valid, and `mmtls_init` may be called again.
///
/// A process that was forked while contexts ran has none of their threads: its calls answer MMTLS_ERR_RUN, but this one,
/// which ends nothing there and forgets everything, so that `mmtls_init` may be called. (It answers MMTLS_ERR_RUN, too, where
/// another thread was inside the library at the fork.) The sockets stay open in the child: it should call exec or _exit.
///
/// Returns 0, MMTLS_ERR_NOT_INITIALISED, or MMTLS_ERR_IN_CALLBACK. From any thread.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_destroy() -> c_int {
    call_for_code(library::destroy)
}

/// Asks every context to end, so that `mmtls_app_join` returns. It takes up to a quarter of a
/// second. Can be called at any time from any thread, in a signal handler, and inside a callback;
/// also before `mmtls_init`, or before the contexts run: they end at once then. `mmtls_destroy`
/// forgets it.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_stop() {
    run::STOP.store(true, Ordering::Relaxed);
}

/// Creates a context: a thread with an engine of its own. Sessions are spread over the contexts;
/// one session stays with one context, and contexts share nothing.
///
/// `cpu`: 0 to num_cpus - 1, one context each, counted over the CPUs that the process may use. More
/// contexts than CPUs share them.
///
/// Returns NULL where `mmtls_errno` then says MMTLS_ERR_ARGUMENT, MMTLS_ERR_NOT_INITIALISED,
/// MMTLS_ERR_STARTED, or MMTLS_ERR_IN_CALLBACK. The handle is valid until `mmtls_destroy`. From any
/// thread.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_create_context(cpu: c_int) -> mmctx_t {
    call(null_mut(), || library::create_context(cpu))
}

/// Waits until a context has ended: the capture is over, `mmtls_stop` or `mmtls_destroy` was called,
/// or something failed. The first call starts all contexts, so create them and register their
/// callbacks before. Call it for each of them, from any thread. Threads of contexts have no
/// capabilities; other threads keep what they have. The process has no core dumps from then on and cannot
/// be traced, and may open as many files as its hard limit allows (RLIMIT_NOFILE): `select` is not for
/// descriptors above 1,023. That stays so behind `mmtls_destroy`.
///
/// `mmtls_errno` then says 0, MMTLS_ERR_RUN with the reason in `mmtls_error_message`,
/// MMTLS_ERR_CONTEXT, MMTLS_ERR_NOT_INITIALISED, or MMTLS_ERR_IN_CALLBACK.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_app_join(mmctx: mmctx_t) {
    call((), || library::join(mmctx));
}

/// Has `cb` called at an event of this context (ON_TLS_*), in place of the one before.
///
/// Returns 0, MMTLS_ERR_ARGUMENT, MMTLS_ERR_CONTEXT, MMTLS_ERR_NOT_INITIALISED, or
/// MMTLS_ERR_STARTED: callbacks cannot be changed any more when the contexts run, and so not inside
/// a callback. Before that from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_register_callback(
    mmctx: mmctx_t,
    event: mmtls_event_t,
    cb: mmtls_cb,
) -> c_int {
    call_for_code(|| match cb {
        Some(_) => library::set_callback(mmctx, event, cb),
        None => Err(MMTLS_ERR_ARGUMENT.into()),
    })
}

/// Has `cb` called with what an operator should know while contexts run: an interface that is down, packets
/// that the kernel let pass while contexts stood still, a key log that cannot be read, what is unusual about
/// interfaces or a capture. It is one line without an end of line. With NULL, and at first, such
/// lines go to standard error, behind "mmtls: ". The callback must not block; to functions of the library it
/// is a callback of no session.
///
/// Returns 0, MMTLS_ERR_NOT_INITIALISED, MMTLS_ERR_STARTED, or MMTLS_ERR_IN_CALLBACK. From any thread;
/// `mmtls_destroy` forgets it.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_set_message_callback(cb: mmtls_message_cb) -> c_int {
    call_for_code(|| library::set_message_callback(cb))
}

/// Takes a callback back; nothing is called at this event then.
///
/// Returns as `mmtls_register_callback`; 0 also where there was none.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_deregister_callback(mmctx: mmctx_t, event: mmtls_event_t) -> c_int {
    call_for_code(|| library::set_callback(mmctx, event, None))
}

/// Skips the next `len` bytes of application content of a side: no ON_TLS_NEW_RECORD, no decryption.
/// The record that crosses the edge is delivered whole (`mmtls_get_skipped`). -1 skips until
/// `mmtls_resume_monitor`, 0 nothing. Replaces an earlier pause of the side. In TLS 1.2, whose alerts show
/// in the clear what they are, those are delivered during a pause, too, with what was skipped so far.
///
/// Bytes are counted without decryption, so padding counts, and post-handshake messages do: the
/// count is exact only in the suites of TLS 1.2 without CBC. Where a peer must not be able to hide
/// what follows, do not pause in the middle of a stream.
///
/// Returns 0, MMTLS_ERR_ARGUMENT, MMTLS_ERR_CONTEXT, MMTLS_ERR_THREAD, MMTLS_ERR_SESSION,
/// MMTLS_ERR_OTHER_SESSION, MMTLS_ERR_RESET, or MMTLS_ERR_EVENT in ON_TLS_SESSION_END. Inside the
/// callbacks of this session only.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_pause_monitor(
    mmctx: mmctx_t,
    cid: c_int,
    side: c_int,
    len: c_int,
) -> c_int {
    call_for_code(|| {
        with_current(mmctx, |current| {
            current.active(cid)?;
            let bytes = match len {
                -1 => None,
                _ => Some(u64::try_from(len).map_err(|_| Failure::Code(MMTLS_ERR_ARGUMENT))?),
            };
            current.session.pause(direction(side)?, bytes);
            Ok(())
        })
    })
}

/// Ends a pause: the next record of this side is delivered. No error where there was none.
///
/// Returns, and where: as `mmtls_pause_monitor`.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_resume_monitor(mmctx: mmctx_t, cid: c_int, side: c_int) -> c_int {
    call_for_code(|| {
        with_current(mmctx, |current| {
            current.active(cid)?;
            current.session.resume(direction(side)?);
            Ok(())
        })
    })
}

/// Declares where `mmtls_get_record` may write for one side of a session: `capacity` bytes from
/// `base` on, which belong to the application. Replaces an earlier one. NULL and 0 take it back: do
/// that before the memory is freed while the session lives.
///
/// Returns 0, MMTLS_ERR_ARGUMENT, MMTLS_ERR_CONTEXT, MMTLS_ERR_THREAD or MMTLS_ERR_SESSION. Inside
/// any callback of this context, for any session that lives.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_set_record_buffer(
    mmctx: mmctx_t,
    cid: c_int,
    side: c_int,
    base: *mut c_char,
    capacity: usize,
) -> c_int {
    call_for_code(|| {
        with_current(mmctx, |current| {
            let side = side_index(side)?;
            let fits = base.addr().checked_add(capacity).is_some();
            if base.is_null() != (capacity == 0) || !fits {
                return Err(MMTLS_ERR_ARGUMENT.into());
            }
            current.any(cid)?.buffers[side] = (base.addr(), capacity);
            Ok(())
        })
    })
}

/// Opens the record of this ON_TLS_NEW_RECORD and copies its content to `buf`, wherever that lies
/// in what `mmtls_set_record_buffer` declared for this side: `buf` may move on in it as records are
/// appended. `len` gets its bytes (only written, so it need not be set before), `type` its content
/// type: 23 is application data, 21 an alert, 22 a handshake message. A record is decrypted and its
/// tag verified once, however often it is asked for.
///
/// `type` may be NULL, or left out: the call then has five arguments, as in figure 9. Only
/// application data is given then; of any other record (TLS 1.3 sends session tickets in the same
/// stream) `len` is 0.
///
/// With `buf` NULL nothing is decrypted: `len` gets the length that the record announces, which is
/// exact in TLS 1.2 with AEAD suites and else includes padding; `type` gets the type that is
/// visible, which in TLS 1.3 is always 23. After the record was opened both are exact.
///
/// Returns 0; MMTLS_ERR_BUFFER where `buf` does not lie in the declared memory and
/// MMTLS_ERR_CAPACITY where the record does not fit into what remains of it (`len` gets the length,
/// nothing is copied); a session error (-20: the tag does not verify; an ON_TLS_ERROR follows);
/// MMTLS_ERR_EVENT where there is no record of this side; MMTLS_ERR_ARGUMENT, MMTLS_ERR_CONTEXT,
/// MMTLS_ERR_THREAD, MMTLS_ERR_SESSION or MMTLS_ERR_OTHER_SESSION. Inside ON_TLS_NEW_RECORD only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_get_record(
    mmctx: mmctx_t,
    cid: c_int,
    side: c_int,
    buf: *mut c_char,
    len: *mut c_int,
    r#type: *mut u8,
) -> c_int {
    // SAFETY: the caller's promise: `buf` is NULL or in the memory it declared, and `len` and
    // `type` are NULL or its own.
    call_for_code(|| unsafe { record::get(mmctx, cid, side, buf, None, len, r#type) })
}

/// As `mmtls_get_record`, into `capacity` bytes at `buf`, which need no declaration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_get_record_n(
    mmctx: mmctx_t,
    cid: c_int,
    side: c_int,
    buf: *mut c_char,
    capacity: usize,
    len: *mut c_int,
    r#type: *mut u8,
) -> c_int {
    // SAFETY: the caller's promise: `buf` is NULL or has `capacity` bytes, and `len` and `type`
    // are NULL or its own.
    call_for_code(|| unsafe { record::get(mmctx, cid, side, buf, Some(capacity), len, r#type) })
}

/// How many content bytes of this side a pause has skipped before the record of this
/// ON_TLS_NEW_RECORD, since the one that was delivered before it.
///
/// Returns as `mmtls_get_record`. Inside ON_TLS_NEW_RECORD only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_get_skipped(
    mmctx: mmctx_t,
    cid: c_int,
    side: c_int,
    bytes: *mut u64,
) -> c_int {
    call_for_code(|| {
        with_current(mmctx, |current| {
            let (record, _) = current.record(cid, side)?;
            let skipped = record.skipped_bytes();
            // SAFETY: the caller passes a place for it, or NULL.
            unsafe { write(bytes, skipped) }
        })
    })
}

/// Keeps a pointer of the application with a session. It is never followed or freed here.
///
/// Returns 0, MMTLS_ERR_CONTEXT, MMTLS_ERR_THREAD or MMTLS_ERR_SESSION. Inside any callback of this
/// context, for any session that lives.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_set_uctx(mmctx: mmctx_t, cid: c_int, uctx: *mut c_void) -> c_int {
    call_for_code(|| {
        with_current(mmctx, |current| {
            current.any(cid)?.uctx = UserPointer(uctx);
            Ok(())
        })
    })
}

/// What `mmtls_set_uctx` set last; NULL at first, and where `mmtls_errno` says MMTLS_ERR_CONTEXT,
/// MMTLS_ERR_THREAD or MMTLS_ERR_SESSION. Where: as `mmtls_set_uctx`.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_get_uctx(mmctx: mmctx_t, cid: c_int) -> *mut c_void {
    call(null_mut(), || with_current(mmctx, |current| Ok(current.any(cid)?.uctx.0)))
}

/// Resets the session: the packet that raised this event and everything after it is dropped, and
/// both endpoints get a RST. No more records come, and ON_TLS_SESSION_END does, perhaps much later.
/// (What is read with [passive] or [offline] has been delivered already; there the session only ends, and
/// both endpoints get a RST where `passive.reset_interface` is set.)
///
/// Returns 0, MMTLS_ERR_RESET the second time, MMTLS_ERR_CONTEXT, MMTLS_ERR_THREAD,
/// MMTLS_ERR_SESSION or MMTLS_ERR_OTHER_SESSION. Inside the callbacks of this session only, in
/// ON_TLS_SESSION_END too.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_reset_session(mmctx: mmctx_t, cid: c_int) -> c_int {
    call_for_code(|| {
        with_current(mmctx, |current| {
            let entry = current.own(cid)?;
            if core::mem::replace(&mut entry.reset, true) {
                return Err(MMTLS_ERR_RESET.into());
            }
            current.session.reset();
            Ok(())
        })
    })
}

/// The latest error of a session: what ON_TLS_ERROR was raised for, or why `mmtls_get_record` could
/// not open a record (-20). 0 when there was none. `mmtls_strerror` has their texts:
///
/// -1 missing keys, -14 malformed record, -15 unsupported cipher suite, -16 unsupported version,
/// -17 TCP ended inside a record, -20 integrity failure, -30 malformed handshake, -31 the keys open
/// nothing, -32 lost synchronisation, -33 bytes sent twice with different content, -34 early data
/// not inspected, -35 nothing opened although keys were shared, -36 memory cap, -37 judged after it
/// was forwarded, -38 no private tag where one is required, -40 compression was negotiated, -41 more
/// than Finished of a client's handshake passed unread.
///
/// Or MMTLS_ERR_CONTEXT, MMTLS_ERR_THREAD, MMTLS_ERR_SESSION. Inside any callback of this context,
/// for any session that lives.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_get_last_error(mmctx: mmctx_t, cid: c_int) -> c_int {
    let mut last = 0;
    let code = call_for_code(|| {
        with_current(mmctx, |current| {
            last = current.any(cid)?.last_error;
            Ok(())
        })
    });
    if code == 0 { last } else { code }
}

/// Fills in what is known of a session, as far as `bitmask` asks for it (MMTLS_INFO_*). All of
/// `info` is written, and `info->known` tells what was known: SNI and CLIENT_RANDOM from
/// ON_TLS_HANDSHAKE_START on, VERSION, CIPHER_SUITE and SERVER_RANDOM from ON_TLS_HANDSHAKE_END on,
/// FOUR_TUPLE and BEGINNING always. The structure grows only with the library's soname.
///
/// Returns 0, MMTLS_ERR_ARGUMENT, MMTLS_ERR_CONTEXT, MMTLS_ERR_THREAD, MMTLS_ERR_SESSION or
/// MMTLS_ERR_OTHER_SESSION. Inside the callbacks of this session only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_get_tls_info(
    mmctx: mmctx_t,
    cid: c_int,
    info: *mut SessionInfo,
    bitmask: u16,
) -> c_int {
    call_for_code(|| {
        with_current(mmctx, |current| {
            current.own(cid)?;
            if bitmask & !MMTLS_INFO_ALL != 0 {
                return Err(MMTLS_ERR_ARGUMENT.into());
            }
            let known = SessionInfo::new(current.session.info(), current.certificate, bitmask);
            // SAFETY: the caller passes a place for it, or NULL.
            unsafe { write(info, known) }
        })
    })
}

/// A counter of a context's engine, by its name in docs/metrics.md without `mmtls_engine_` and `_total`:
/// "sessions", "records_seen", "records_opened", "records_paused" and so on. While the context runs
/// it is up to half a second old, and with a capture 0; after `mmtls_app_join` it is exact.
///
/// Returns 0, MMTLS_ERR_ARGUMENT where there is no such counter, MMTLS_ERR_CONTEXT, or
/// MMTLS_ERR_NOT_INITIALISED. From any thread, until `mmtls_destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_get_counter(
    mmctx: mmctx_t,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    call_for_code(|| {
        if name.is_null() {
            return Err(MMTLS_ERR_ARGUMENT.into());
        }
        // SAFETY: not NULL; the caller passes a NUL-terminated string.
        let name = unsafe { CStr::from_ptr(name) };
        let counter = library::counter(mmctx, name.to_bytes())?;
        // SAFETY: the caller passes a place for it, or NULL.
        unsafe { write(value, counter) }
    })
}

/// The code of the calling thread's latest call of a function of this library (but `mmtls_stop`, this and the
/// next two): 0 or a negative number. For those that return no code.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_errno() -> c_int {
    call::code()
}

/// What is to be said about `mmtls_errno`, in words. The string lives until this thread's next call
/// that fails.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_error_message() -> *const c_char {
    call::message()
}

/// A short text for a code. The string is constant.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_strerror(code: c_int) -> *const c_char {
    error::text(code).as_ptr()
}
