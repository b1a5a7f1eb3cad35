//! The functions of an OpenSSL that was found somewhere: in a loaded library, or in a table of the program's.
//!
//! Refuses OpenSSL's relatives: they have functions of the same names with other arguments.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::{null, null_mut};

/// `CRYPTO_EX_INDEX_SSL_CTX` of OpenSSL 1.1.1 and 3.
const EX_INDEX_SSL_CTX: c_int = 1;

/// `SSL_CTX_keylog_cb_func`. "Unwind", so that a host's exception passes through us unharmed.
pub type KeylogCallback = unsafe extern "C-unwind" fn(ssl: *const c_void, line: *const c_char);

/// `SSL_CTX_set_keylog_callback`.
pub type SetKeylog = unsafe extern "C-unwind" fn(*mut c_void, Option<KeylogCallback>);
/// `SSL_CTX_get_keylog_callback`.
pub type GetKeylog = unsafe extern "C-unwind" fn(*const c_void) -> Option<KeylogCallback>;
type GetVersionText = unsafe extern "C-unwind" fn(c_int) -> *const c_char;
type GetRandom = unsafe extern "C-unwind" fn(*const c_void, *mut u8, usize) -> usize;
type GetPointer = unsafe extern "C-unwind" fn(*const c_void) -> *const c_void;
type GetInt = unsafe extern "C-unwind" fn(*const c_void) -> c_int;
type GetId = unsafe extern "C-unwind" fn(*const c_void) -> u32;
type GetName = unsafe extern "C-unwind" fn(*const c_void, c_int) -> *const c_char;
type GetExData = unsafe extern "C-unwind" fn(*const c_void, c_int) -> *mut c_void;
type SetExData = unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut c_void) -> c_int;
/// `CRYPTO_EX_free`: called when a context is freed.
pub type FreeCallback =
    unsafe extern "C-unwind" fn(*mut c_void, *mut c_void, *mut c_void, c_int, c_long, *mut c_void);
type GetExIndex = unsafe extern "C-unwind" fn(
    c_int,
    c_long,
    *mut c_void,
    *const c_void,
    *const c_void,
    Option<FreeCallback>,
) -> c_int;

/// What sharing needs of OpenSSL, all or nothing. Those with "get" in the name only look.
#[allow(missing_docs, reason = "each is named after its function")]
pub struct Api {
    get_new_index: GetExIndex,
    pub set_keylog: SetKeylog,
    pub get_keylog: GetKeylog,
    pub get_server_random: GetRandom,
    pub get_pending_cipher: GetPointer,
    pub get_current_cipher: GetPointer,
    pub get_cipher_id: GetId,
    pub get_version: GetInt,
    pub get_server_name: GetName,
    pub get_session_reused: GetInt,
    pub get_read_bio: GetPointer,
    pub get_read_fd: GetInt,
    pub get_context: GetPointer,
    pub get_is_server: GetInt,
    pub get_ex_data: GetExData,
    pub set_ex_data: SetExData,
    /// Where a context keeps the host's callback.
    pub ex_index: c_int,
}

impl Api {
    /// Looks for every function with `find`. `forget` is called when a context is freed. `None` when this is too old, or a
    /// relative of OpenSSL.
    ///
    /// # Safety
    /// What `find` returns is the function with this name of one and the same TLS library, which stays loaded.
    pub unsafe fn resolve(
        find: impl Fn(&CStr) -> Option<*mut c_void>,
        forget: Option<FreeCallback>,
    ) -> Option<Self> {
        // SAFETY: the type is the one that OpenSSL's headers, and its relatives', give this name.
        let version = unsafe { function(find(c"OpenSSL_version")?) }?;
        // SAFETY: it is that function.
        if !unsafe { is_openssl(version) } {
            return None;
        }
        let mut api = Self {
            // SAFETY: the type is the one that OpenSSL's headers give this name.
            get_new_index: unsafe { function(find(c"CRYPTO_get_ex_new_index")?) }?,
            // SAFETY: as above.
            set_keylog: unsafe { function(find(c"SSL_CTX_set_keylog_callback")?) }?,
            // SAFETY: as above.
            get_keylog: unsafe { function(find(c"SSL_CTX_get_keylog_callback")?) }?,
            // SAFETY: as above.
            get_server_random: unsafe { function(find(c"SSL_get_server_random")?) }?,
            // SAFETY: as above.
            get_pending_cipher: unsafe { function(find(c"SSL_get_pending_cipher")?) }?,
            // SAFETY: as above.
            get_current_cipher: unsafe { function(find(c"SSL_get_current_cipher")?) }?,
            // SAFETY: as above.
            get_cipher_id: unsafe { function(find(c"SSL_CIPHER_get_id")?) }?,
            // SAFETY: as above.
            get_version: unsafe { function(find(c"SSL_version")?) }?,
            // SAFETY: as above.
            get_server_name: unsafe { function(find(c"SSL_get_servername")?) }?,
            // SAFETY: as above.
            get_session_reused: unsafe { function(find(c"SSL_session_reused")?) }?,
            // SAFETY: as above.
            get_read_bio: unsafe { function(find(c"SSL_get_rbio")?) }?,
            // SAFETY: as above.
            get_read_fd: unsafe { function(find(c"SSL_get_rfd")?) }?,
            // SAFETY: as above.
            get_context: unsafe { function(find(c"SSL_get_SSL_CTX")?) }?,
            // SAFETY: as above.
            get_is_server: unsafe { function(find(c"SSL_is_server")?) }?,
            // SAFETY: as above.
            get_ex_data: unsafe { function(find(c"SSL_CTX_get_ex_data")?) }?,
            // SAFETY: as above.
            set_ex_data: unsafe { function(find(c"SSL_CTX_set_ex_data")?) }?,
            ex_index: -1,
        };
        api.ex_index = api.new_index(forget)?;
        Some(api)
    }

    /// A place in every context for a pointer of ours.
    #[must_use]
    pub fn new_index(&self, forget: Option<FreeCallback>) -> Option<c_int> {
        // SAFETY: this is OpenSSL's, or there would be no table of its functions.
        unsafe { new_index(self.get_new_index, forget) }
    }
}

/// `forget` is called when a context is freed, of a library of which nothing else is needed. Not by one that is too old,
/// nor by a relative of OpenSSL.
///
/// # Safety
/// As [`Api::resolve`].
pub unsafe fn watch_contexts(
    find: impl Fn(&CStr) -> Option<*mut c_void>,
    forget: FreeCallback,
) -> Option<c_int> {
    // SAFETY: the type is the one that OpenSSL's headers, and its relatives', give this name.
    let version = unsafe { function(find(c"OpenSSL_version")?) }?;
    // SAFETY: it is that function.
    if !unsafe { is_openssl(version) } {
        return None;
    }
    // SAFETY: the type is the one that OpenSSL's headers give this name.
    let get_new_index = unsafe { function(find(c"CRYPTO_get_ex_new_index")?) }?;
    // SAFETY: it is OpenSSL's.
    unsafe { new_index(get_new_index, Some(forget)) }
}

/// # Safety
/// `get_new_index` is OpenSSL's.
unsafe fn new_index(get_new_index: GetExIndex, forget: Option<FreeCallback>) -> Option<c_int> {
    // SAFETY: the arguments are those of the macro SSL_CTX_get_ex_new_index, without
    // callbacks for creation and copying.
    let index = unsafe { get_new_index(EX_INDEX_SSL_CTX, 0, null_mut(), null(), null(), forget) };
    (index >= 0).then_some(index)
}

/// Whether this is OpenSSL itself, and not AWS-LC, BoringSSL or LibreSSL: their
/// `CRYPTO_get_ex_new_index` takes a pointer where OpenSSL takes a number, or counts otherwise.
///
/// # Safety
/// `version` is `OpenSSL_version` of one of them.
unsafe fn is_openssl(version: GetVersionText) -> bool {
    // SAFETY: 0 asks for the name and the version in all of them.
    let text = unsafe { version(0) };
    // SAFETY: when it is not null, it is a constant of the library that ends with a zero byte.
    !text.is_null() && unsafe { CStr::from_ptr(text) }.to_bytes().starts_with(b"OpenSSL ")
}

/// A function by its address; `None` for a null pointer.
///
/// # Safety
/// `F` must be the function pointer type of what is there.
#[must_use]
pub unsafe fn function<F: Copy>(address: *mut c_void) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: of the same size, and of the right type according to the caller.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}
