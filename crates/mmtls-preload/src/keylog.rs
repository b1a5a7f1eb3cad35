//! The keylog callbacks, one per library: ours in front, the host's behind it. Refuses a context whose library it does not know.

use std::ffi::{CStr, c_char, c_void};

use mmtls_sender::host::guarded;
use mmtls_sender::keylog;
use mmtls_sender::openssl::{Api, KeylogCallback};

use crate::library::{self, Library, MAX_LIBRARIES};
use crate::{SENDER, config};

/// One callback per library, so that it knows whose functions to use.
const CALLBACKS: [KeylogCallback; MAX_LIBRARIES] =
    [on_line::<0>, on_line::<1>, on_line::<2>, on_line::<3>];

/// Puts our callback into a context that its library has just made; not where the library has no
/// slot.
pub fn install_in_new(library: &'static Library, context: *mut c_void) {
    if !context.is_null() {
        library::adopt(library, context);
        install(library, context);
    }
}

/// What a library with a slot has: its functions and our callback.
fn of(library: &'static Library) -> Option<(&'static Api, KeylogCallback)> {
    library.api.as_ref().zip(CALLBACKS.get(library.slot?).copied())
}

/// Puts our callback into a context, once; `false` where nothing is to be shared, or it cannot be.
fn install(library: &'static Library, context: *mut c_void) -> bool {
    let (Some((api, ours)), Some(settings)) = (of(library), config::get()) else {
        return false;
    };
    // SAFETY: a live context of this library, and a function that never goes away, because
    // nobody unloads a preloaded library.
    let installed = unsafe { keylog::install(api, context, ours) };
    SENDER.connect_early(&settings.agent);
    installed
}

/// Notes the host's callback behind ours; `false` when ours is not there.
pub fn remember(
    library: &'static Library,
    context: *mut c_void,
    callback: Option<KeylogCallback>,
) -> bool {
    match &library.api {
        // SAFETY: a live context of this library.
        Some(api) if install(library, context) => unsafe {
            keylog::set_host_callback(api, context, callback)
        },
        _ => false,
    }
}

/// What the host expects to find when `current` is what libssl has.
pub fn host_view(
    library: &'static Library,
    context: *const c_void,
    current: Option<KeylogCallback>,
) -> Option<KeylogCallback> {
    match of(library) {
        // SAFETY: a live context of this library.
        Some((api, ours)) if keylog::is(ours, current) => unsafe {
            keylog::host_callback(api, context)
        },
        _ => current,
    }
}

unsafe extern "C-unwind" fn on_line<const SLOT: usize>(ssl: *const c_void, line: *const c_char) {
    let host = guarded(None, || {
        let api = Library::in_slot(SLOT)?.api.as_ref()?;
        // SAFETY: libssl passes a live session.
        let context = unsafe { (api.get_context)(ssl) };
        // SAFETY: the live context of a live session.
        let host = unsafe { keylog::host_callback(api, context) };
        // Apart, so that whatever happens in there the host's callback is called.
        guarded((), || {
            let Some(settings) = config::get().filter(|_| !line.is_null()) else {
                return;
            };
            // SAFETY: libssl passes a C string that lives during the call.
            let line = unsafe { CStr::from_ptr(line) };
            // SAFETY: libssl passes a live session of the library that calls.
            unsafe { keylog::share(api, ssl, line.to_bytes(), settings, &SENDER) };
        });
        host
    });
    if let Some(host) = host {
        // SAFETY: the host's own function with libssl's own arguments.
        unsafe { host(ssl, line) }
    }
}
