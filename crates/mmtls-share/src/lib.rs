//! The C library with which a program shares the keys of its TLS sessions with the agent on its host.
//!
//! A translation: what it does is in `mmtls-sender`, which the preload library uses, too. `include/mmtls_share.h` is generated
//! from these doc comments, which are written for C programmers. Refuses to follow a handle, to let a panic out, to print,
//! and to share sessions whose server name is exempt.
#![allow(clippy::missing_safety_doc, reason = "the documentation is the C header's")]
#![allow(clippy::allow_attributes_without_reason, reason = "none is without")]

mod call;
mod error;
mod handles;
mod openssl;
mod secret;
mod types;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use libc::sockaddr;
use mmtls_sender::settings::{Settings, SettingsError};

use call::call;
pub use error::*;
pub use types::*;

/// Opens a handle. The environment is read here, as by getenv, and connecting is tried once: the agent need not run yet.
///
/// `path`: the agent's socket. NULL: that of MMTLS_AGENT, which `mmtls exec` sets; `mmtls agent` listens at
/// $XDG_RUNTIME_DIR/mmtls/agent (for root /run/mmtls-agent/agent). The agent must be of this user or root.
///
/// `exempt`: server names whose sessions stay private, separated by `:` or `,`; `*.example.org` is everything below
/// example.org. Beside those of MMTLS_EXEMPT; NULL is none.
///
/// `flags`: 0, or MMTLS_SHARE_OPEN_*. MMTLS_SHARE_SERVER=1 and MMTLS_SHARE_HANDSHAKE=1 in the environment do the same.
///
/// Returns 0 with a handle in `share`; else NULL there, and MMTLS_SHARE_ERR_ARGUMENT, MMTLS_SHARE_ERR_NO_AGENT,
/// MMTLS_SHARE_ERR_PATH, MMTLS_SHARE_ERR_NAMES or MMTLS_SHARE_ERR_CAPACITY. A setuid program's environment is not heeded.
/// It takes 40 KiB of stack (the other functions less than 16).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_share_open(
    path: *const c_char,
    exempt: *const c_char,
    flags: c_uint,
    share: *mut mmtls_share_t,
) -> c_int {
    call(|| {
        call::silence();
        if share.is_null() {
            return Err(MMTLS_SHARE_ERR_ARGUMENT);
        }
        // SAFETY: not NULL; the caller passes a place for a handle.
        unsafe { share.write(null_mut()) };
        if flags & !(MMTLS_SHARE_OPEN_SERVER | MMTLS_SHARE_OPEN_HANDSHAKE) != 0 {
            return Err(MMTLS_SHARE_ERR_ARGUMENT);
        }
        // SAFETY: NULL, or a C string.
        let path = unsafe { bytes(path) };
        let mut settings = Settings::read(path).map_err(|error| match error {
            SettingsError::NoPath => MMTLS_SHARE_ERR_NO_AGENT,
            SettingsError::Path => MMTLS_SHARE_ERR_PATH,
            SettingsError::Names => MMTLS_SHARE_ERR_NAMES,
        })?;
        let rules = &mut settings.rules;
        // SAFETY: NULL, or a C string.
        if let Some(names) = unsafe { bytes(exempt) } {
            let names = str::from_utf8(names).map_err(|_| MMTLS_SHARE_ERR_NAMES)?;
            rules.exempt.extend(names).map_err(|_| MMTLS_SHARE_ERR_NAMES)?;
        }
        rules.server |= flags & MMTLS_SHARE_OPEN_SERVER != 0;
        rules.handshake |= flags & MMTLS_SHARE_OPEN_HANDSHAKE != 0;
        let handle = handles::open(settings)?;
        // SAFETY: as above.
        unsafe { share.write(handle) };
        Ok(0)
    })
}

/// Connects where there is no connection (tried once in 100 ms), and sends what waits. To know whether the agent is there, or
/// before the program gives up the right to open sockets.
///
/// Returns 0 when the agent is there and nothing waits any more; MMTLS_SHARE_ERR_AGENT or MMTLS_SHARE_ERR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_share_connect(share: mmtls_share_t) -> c_int {
    call(|| {
        let share = handles::enter(share)?;
        let connected = share.sender.connect(&share.settings.agent);
        if connected { Ok(0) } else { Err(MMTLS_SHARE_ERR_AGENT) }
    })
}

/// Closes a handle: what waits is sent if that is possible at once, and the connection is closed, of this process only.
/// Contexts that share with it go on without. Calls of other threads end as if it had come later.
///
/// Returns 0 or MMTLS_SHARE_ERR_HANDLE.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_share_close(share: mmtls_share_t) -> c_int {
    call(|| handles::close(share).map(|()| 0))
}

/// Shares a secret, whoever the program's TLS library is. Give the secrets of a session before its records come: middleboxes
/// hold these until then. Of TLS 1.3 both MMTLS_SHARE_CLIENT_TRAFFIC and MMTLS_SHARE_SERVER_TRAFFIC are needed.
///
/// Where the server name is exempt nothing of `secret` goes out; the agent is told that the session is exempt with its
/// MMTLS_SHARE_CLIENT_EARLY, MMTLS_SHARE_CLIENT_TRAFFIC or MMTLS_SHARE_TLS12_MASTER.
///
/// Returns 0, MMTLS_SHARE_EXEMPT, MMTLS_SHARE_ERR_ARGUMENT (also where the version is not that of the kind),
/// MMTLS_SHARE_ERR_SECRET, MMTLS_SHARE_ERR_AGENT or MMTLS_SHARE_ERR_HANDLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_share_give(share: mmtls_share_t, secret: *const Secret) -> c_int {
    call(|| {
        let share = handles::enter(share)?;
        // SAFETY: NULL, or the caller's structure.
        let secret = unsafe { secret.as_ref() }.ok_or(MMTLS_SHARE_ERR_ARGUMENT)?;
        // SAFETY: the caller's promise about what it points to.
        unsafe { secret::give(&share, secret) }
    })
}

/// Tells the agent that a session is exempt: no keys will come, and middleboxes let it pass or not, by their policy. For
/// programs that know more than server names.
///
/// `client_random`: 32 bytes. `client`, `server`: as in `mmtls_share_secret`, or NULL both.
///
/// Returns MMTLS_SHARE_EXEMPT, MMTLS_SHARE_ERR_ARGUMENT, MMTLS_SHARE_ERR_AGENT or MMTLS_SHARE_ERR_HANDLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_share_exempt(
    share: mmtls_share_t,
    client_random: *const u8,
    client: *const sockaddr,
    server: *const sockaddr,
) -> c_int {
    call(|| {
        let share = handles::enter(share)?;
        // SAFETY: NULL, or 32 bytes of the caller's.
        let random = unsafe { client_random.cast::<[u8; 32]>().as_ref() };
        // SAFETY: the caller's promise about what they point to.
        let flow = unsafe { secret::flow(client, server) }?;
        secret::exempt(&share, random.ok_or(MMTLS_SHARE_ERR_ARGUMENT)?, flow)
    })
}

/// Tells where OpenSSL's functions are, for programs that are linked with it statically, or have several: `functions` is
/// initialised with MMTLS_SHARE_OPENSSL_FUNCTIONS, and may go away after the call. NULL (and without this function): those
/// that the dynamic linker finds for the program itself, which need not be linked before the first use, but must stay loaded.
///
/// Returns 0, MMTLS_SHARE_ERR_OPENSSL, MMTLS_SHARE_ERR_CAPACITY or MMTLS_SHARE_ERR_HANDLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_share_openssl(
    share: mmtls_share_t,
    functions: *const Functions,
) -> c_int {
    call(|| {
        let share = handles::enter(share)?;
        // SAFETY: NULL, or the caller's structure.
        let functions = unsafe { functions.as_ref() };
        // SAFETY: the caller's promise about the functions.
        unsafe { openssl::choose(&share, functions) }.map(|()| 0)
    })
}

/// Shares all sessions of an OpenSSL context whose handshakes begin after this, by a keylog callback; call it when the context
/// is made. A callback that the context has is called after ours. One that is set later takes our place: call this again then
/// (unless that one calls ours). Calling it twice does no harm; the latest handle counts. QUIC and DTLS are left out, and so
/// are sessions in which the program is the server, and handshake secrets, unless the handle was opened to share them.
///
/// `ssl_ctx`: an `SSL_CTX *`.
///
/// Returns 0, MMTLS_SHARE_ERR_ARGUMENT, MMTLS_SHARE_ERR_OPENSSL, MMTLS_SHARE_ERR_CAPACITY or MMTLS_SHARE_ERR_HANDLE. What
/// becomes of each session is not told: `mmtls_share_connect` says whether the agent is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_share_ssl_ctx(share: mmtls_share_t, ssl_ctx: *mut c_void) -> c_int {
    call(|| {
        let user = handles::enter(share)?;
        if ssl_ctx.is_null() {
            return Err(MMTLS_SHARE_ERR_ARGUMENT);
        }
        // SAFETY: the caller passes a live context.
        unsafe { openssl::share_context(&user, share, ssl_ctx) }
    })
}

/// Shares what a line says, as `mmtls_share_ssl_ctx` would: for programs with a keylog callback of their own, which call this
/// in it, with its arguments.
///
/// `ssl`: a `const SSL *`, in its keylog callback.
///
/// Returns 0, also where there is nothing in it to be shared; MMTLS_SHARE_EXEMPT, MMTLS_SHARE_ERR_ARGUMENT,
/// MMTLS_SHARE_ERR_LINE, MMTLS_SHARE_ERR_AGENT, MMTLS_SHARE_ERR_OPENSSL, MMTLS_SHARE_ERR_CAPACITY or MMTLS_SHARE_ERR_HANDLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmtls_share_ssl_keylog_line(
    share: mmtls_share_t,
    ssl: *const c_void,
    line: *const c_char,
) -> c_int {
    call(|| {
        let share = handles::enter(share)?;
        if ssl.is_null() || line.is_null() {
            return Err(MMTLS_SHARE_ERR_ARGUMENT);
        }
        // SAFETY: not NULL; the caller passes a C string.
        let line = unsafe { CStr::from_ptr(line) };
        // SAFETY: the caller passes a live session.
        unsafe { openssl::share_line(&share, ssl, line) }
    })
}

/// The library's version, such as "0.1.0". The string is constant.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_share_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// A short text for a code. The string is constant.
#[unsafe(no_mangle)]
pub extern "C" fn mmtls_share_strerror(code: c_int) -> *const c_char {
    error::text(code).as_ptr()
}

/// # Safety
/// NULL, or a C string that lives as long as the result.
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL; the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}
