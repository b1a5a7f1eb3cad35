//! LD_PRELOAD library that shares the keys of unmodified OpenSSL programs.
//!
//! It puts itself in front of libssl's `SSL_CTX_new`, `SSL_CTX_new_ex`,
//! `SSL_CTX_set_keylog_callback` and `SSL_CTX_get_keylog_callback`, installs a keylog callback in
//! every context, and hands the traffic secrets to the agent on the same host (the parent process
//! `mmtls exec`). It holds no cryptography, starts no thread and opens one socket.
//!
//! It runs inside other people's programs, so losing a key is better than disturbing the host.
//! It refuses: to print, to change `errno` or a host call's result, to let a panic out, to block
//! (but for one millisecond while the agent's socket is full, once until it drains, and a tenth of a
//! second while another thread that is in it has no processor), to keep more than
//! 64 unsent datagrams, to write to a descriptor that is not its socket any more, to talk to
//! an agent of another user, and to share sessions whose server name is exempt.

#[cfg(not(target_os = "linux"))]
compile_error!("the preload library is for Linux");

mod config;
mod contexts;
mod keylog;
mod library;

use std::ffi::{c_char, c_void};

use mmtls_sender::agent::Sender;
use mmtls_sender::host::guarded;
use mmtls_sender::openssl::KeylogCallback;

use library::Library;

/// The connection to the agent: one per process.
static SENDER: Sender = Sender::new();

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_load() {
    guarded((), || {
        // Our copy of the standard library is not the host's (a Rust host has its own), so this
        // silences our panics only. It comes first, because anything after it might panic.
        #[cfg(not(test))]
        std::panic::set_hook(Box::new(|_| ()));
        config::load();
    });
}

extern "C" fn at_exit() {
    guarded((), || {
        if let Some(settings) = config::get() {
            SENDER.flush(&settings.agent);
        }
    });
}

/// In front of libssl's function of the same name.
///
/// # Safety
/// As documented by OpenSSL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn SSL_CTX_new(method: *const c_void) -> *mut c_void {
    let library = guarded(None, || Library::of_method(method));
    let Some((library, new)) = library.and_then(|it| Some((it, it.new?))) else {
        // There is no libssl to call; OpenSSL says failure in the same way.
        return std::ptr::null_mut();
    };
    // SAFETY: libssl's own function with the host's own argument.
    let context = unsafe { new(method) };
    guarded((), || keylog::install_in_new(library, context));
    context
}

/// In front of libssl's function of the same name (OpenSSL 3.0 and later).
///
/// # Safety
/// As documented by OpenSSL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn SSL_CTX_new_ex(
    library_context: *mut c_void,
    properties: *const c_char,
    method: *const c_void,
) -> *mut c_void {
    let library = guarded(None, || Library::of_method(method));
    let Some((library, new_ex)) = library.and_then(|it| Some((it, it.new_ex?))) else {
        return std::ptr::null_mut();
    };
    // SAFETY: libssl's own function with the host's own arguments.
    let context = unsafe { new_ex(library_context, properties, method) };
    guarded((), || keylog::install_in_new(library, context));
    context
}

/// In front of libssl's function of the same name: remembers the host's callback, which ours
/// calls after its own work.
///
/// # Safety
/// As documented by OpenSSL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn SSL_CTX_set_keylog_callback(
    context: *mut c_void,
    callback: Option<KeylogCallback>,
) {
    let Some(library) = guarded(None, || Library::of_context(context)) else {
        return;
    };
    if guarded(false, || keylog::remember(library, context, callback)) {
        return;
    }
    if let Some(set) = library.set_keylog {
        // SAFETY: libssl's own function with the host's own arguments.
        unsafe { set(context, callback) }
    }
}

/// In front of libssl's function of the same name: returns what the host had set.
///
/// # Safety
/// As documented by OpenSSL.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn SSL_CTX_get_keylog_callback(
    context: *const c_void,
) -> Option<KeylogCallback> {
    let library = guarded(None, || Library::of_context(context))?;
    let get = library.get_keylog?;
    // SAFETY: libssl's own function with the host's own argument.
    let current = unsafe { get(context) };
    guarded(current, || keylog::host_view(library, context, current))
}
