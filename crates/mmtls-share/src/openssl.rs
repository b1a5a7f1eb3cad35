//! Sessions of OpenSSL: where its functions are, and a keylog callback in its contexts.
//!
//! A context keeps the handle that it shares with beside the program's own callback (extra data), so there is nothing to clean up.
//! Refuses more than four versions of OpenSSL, and its relatives.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use mmtls_sender::agent::Delivery;
use mmtls_sender::keylog::{self, Shared};
use mmtls_sender::openssl::{Api, KeylogCallback};

use crate::call::run;
use crate::error::{
    MMTLS_SHARE_ERR_CAPACITY, MMTLS_SHARE_ERR_LINE, MMTLS_SHARE_ERR_OPENSSL, MMTLS_SHARE_EXEMPT,
};
use crate::handles::{self, Share};
use crate::secret::code_of;
use crate::types::{Functions, mmtls_share_t};

/// Versions of OpenSSL in one program.
const MAX_TABLES: usize = 4;
/// The function whose address tells versions apart.
const KEY: &CStr = c"SSL_CTX_set_keylog_callback";

/// One callback per OpenSSL, so that it knows whose functions to use.
const CALLBACKS: [KeylogCallback; MAX_TABLES] =
    [on_line::<0>, on_line::<1>, on_line::<2>, on_line::<3>];

/// An OpenSSL. Lives as long as the process.
struct Table {
    key: usize,
    api: Api,
    /// Where a context keeps its handle.
    handle_index: c_int,
}

static TABLES: [AtomicPtr<Table>; MAX_TABLES] = [const { AtomicPtr::new(null_mut()) }; MAX_TABLES];

/// Uses these functions, or those that the program has loaded.
///
/// # Safety
/// Each is the function of its name of one OpenSSL, or NULL.
pub(crate) unsafe fn choose(share: &Share, functions: Option<&Functions>) -> Result<(), c_int> {
    let slot = match functions {
        Some(functions) => {
            // SAFETY: the caller's promise.
            unsafe { slot_of(|name| in_table(functions, name)) }
        }
        // SAFETY: what the dynamic linker finds under these names are the functions that the program calls.
        None => unsafe { slot_of(loaded) },
    }?;
    share.openssl.store(slot + 1, Ordering::Relaxed);
    Ok(())
}

/// Shares all sessions of a context with a handle.
///
/// # Safety
/// `context` is a live context of the OpenSSL that the handle uses.
pub(crate) unsafe fn share_context(
    share: &Share,
    handle: mmtls_share_t,
    context: *mut c_void,
) -> Result<c_int, c_int> {
    let (slot, table) = table_of(share)?;
    let api = &table.api;
    let number = without_provenance_mut(handle.addr());
    // SAFETY: a live context, and an index that this OpenSSL gave us.
    if unsafe { (api.set_ex_data)(context, table.handle_index, number) } != 1 {
        return Err(MMTLS_SHARE_ERR_OPENSSL);
    }
    // SAFETY: a live context; this library is never unloaded.
    if !unsafe { keylog::install(api, context, CALLBACKS[slot]) } {
        return Err(MMTLS_SHARE_ERR_OPENSSL);
    }
    share.sender.connect_early(&share.settings.agent);
    Ok(0)
}

/// Shares what a line says of a session.
///
/// # Safety
/// `ssl` is a live session of the OpenSSL that the handle uses, in its keylog callback.
pub(crate) unsafe fn share_line(
    share: &Share,
    ssl: *const c_void,
    line: &CStr,
) -> Result<c_int, c_int> {
    let (_, table) = table_of(share)?;
    // SAFETY: the caller's promise.
    let shared =
        unsafe { keylog::share(&table.api, ssl, line.to_bytes(), &share.settings, &share.sender) };
    match shared {
        Shared::Secret(delivery) => code_of(delivery),
        Shared::Exempt(Delivery::Sent) => Ok(MMTLS_SHARE_EXEMPT),
        Shared::Exempt(delivery) => code_of(delivery),
        Shared::Nothing => Ok(0),
        Shared::BadLine => Err(MMTLS_SHARE_ERR_LINE),
    }
}

fn table_of(share: &Share) -> Result<(usize, &'static Table), c_int> {
    let known = share.openssl.load(Ordering::Relaxed);
    if known == 0 {
        // SAFETY: no functions are given.
        unsafe { choose(share, None) }?;
    }
    let slot = share.openssl.load(Ordering::Relaxed).wrapping_sub(1);
    Ok((slot, in_slot(slot).ok_or(MMTLS_SHARE_ERR_OPENSSL)?))
}

fn in_slot(slot: usize) -> Option<&'static Table> {
    let pointer = TABLES.get(slot)?.load(Ordering::Acquire);
    // SAFETY: null, or a box that was leaked for the life of the process.
    unsafe { pointer.as_ref() }
}

/// Which of the tables has these functions; a new one, where none has.
///
/// # Safety
/// As of [`Api::resolve`].
unsafe fn slot_of(find: impl Fn(&CStr) -> Option<*mut c_void>) -> Result<usize, c_int> {
    let key = find(KEY).ok_or(MMTLS_SHARE_ERR_OPENSSL)?.addr();
    let mut made: *mut Table = null_mut();
    for (slot, place) in TABLES.iter().enumerate() {
        if in_slot(slot).is_none() {
            if made.is_null() {
                // SAFETY: the caller's promise.
                let api = unsafe { Api::resolve(&find, None) }.ok_or(MMTLS_SHARE_ERR_OPENSSL)?;
                let handle_index = api.new_index(None).ok_or(MMTLS_SHARE_ERR_OPENSSL)?;
                made = Box::into_raw(Box::new(Table { key, api, handle_index }));
            }
            let free =
                place.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
            if free.is_ok() {
                return Ok(slot);
            }
        }
        if in_slot(slot).is_some_and(|table| table.key == key) {
            if !made.is_null() {
                // Another thread was faster.
                // SAFETY: nobody else has seen this box.
                drop(unsafe { Box::from_raw(made) });
            }
            return Ok(slot);
        }
    }
    Err(MMTLS_SHARE_ERR_CAPACITY)
}

/// What the program itself would find under a name.
fn loaded(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

fn in_table(functions: &Functions, name: &CStr) -> Option<*mut c_void> {
    let function = match name.to_bytes() {
        b"OpenSSL_version" => functions.OpenSSL_version,
        b"CRYPTO_get_ex_new_index" => functions.CRYPTO_get_ex_new_index,
        b"SSL_CTX_set_keylog_callback" => functions.SSL_CTX_set_keylog_callback,
        b"SSL_CTX_get_keylog_callback" => functions.SSL_CTX_get_keylog_callback,
        b"SSL_CTX_set_ex_data" => functions.SSL_CTX_set_ex_data,
        b"SSL_CTX_get_ex_data" => functions.SSL_CTX_get_ex_data,
        b"SSL_get_server_random" => functions.SSL_get_server_random,
        b"SSL_get_pending_cipher" => functions.SSL_get_pending_cipher,
        b"SSL_get_current_cipher" => functions.SSL_get_current_cipher,
        b"SSL_CIPHER_get_id" => functions.SSL_CIPHER_get_id,
        b"SSL_version" => functions.SSL_version,
        b"SSL_get_servername" => functions.SSL_get_servername,
        b"SSL_session_reused" => functions.SSL_session_reused,
        b"SSL_get_rbio" => functions.SSL_get_rbio,
        b"SSL_get_rfd" => functions.SSL_get_rfd,
        b"SSL_get_SSL_CTX" => functions.SSL_get_SSL_CTX,
        b"SSL_is_server" => functions.SSL_is_server,
        _ => None,
    };
    function.map(|function| function as *mut c_void)
}

/// OpenSSL calls this with each line of a context that is shared.
unsafe extern "C-unwind" fn on_line<const SLOT: usize>(ssl: *const c_void, line: *const c_char) {
    let host = run(None, || {
        let Table { api, handle_index, .. } = in_slot(SLOT)?;
        // SAFETY: OpenSSL passes a live session.
        let context = unsafe { (api.get_context)(ssl) };
        // SAFETY: the live context of a live session.
        let host = unsafe { keylog::host_callback(api, context) };
        // Apart, so that whatever happens in there the program's callback is called.
        run((), || {
            // SAFETY: a live context, and an index that this OpenSSL gave us.
            let handle = unsafe { (api.get_ex_data)(context, *handle_index) };
            let (Ok(share), false) = (handles::enter(handle.cast()), line.is_null()) else {
                return;
            };
            // SAFETY: OpenSSL passes a C string that lives during the call.
            let line = unsafe { CStr::from_ptr(line) };
            let settings = &share.settings;
            // SAFETY: OpenSSL passes a live session of its own.
            unsafe { keylog::share(api, ssl, line.to_bytes(), settings, &share.sender) };
        });
        host
    });
    if let Some(host) = host {
        // SAFETY: the program's own function with OpenSSL's own arguments.
        unsafe { host(ssl, line) }
    }
}
