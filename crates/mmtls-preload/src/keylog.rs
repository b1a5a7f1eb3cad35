//! The keylog callback: ours in front, the host's behind it.
//!
//! The host's callback is kept in the context itself (extra data), so there is nothing to clean
//! up. Refuses lines that are not in the key log format, and every secret of an exempt session.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use mmtls_keyshare::agent::{Datagram, Exempt, Role, SecretKind, TrafficSecret};
use mmtls_keyshare::keylog::{self, Line, MAX_SECRET_BYTES};
use zeroize::Zeroizing;

use crate::library::{self, Api, KeylogCallback, Library, MAX_LIBRARIES};
use crate::{agent, config, guarded, host};

/// `TLSEXT_NAMETYPE_host_name`.
const HOST_NAME: i32 = 0;
/// The first version whose resumed sessions name the server again.
const TLS_1_3: i32 = 0x0304;

/// One callback per library, so that it knows whose functions to use.
const CALLBACKS: [KeylogCallback; MAX_LIBRARIES] =
    [on_line::<0>, on_line::<1>, on_line::<2>, on_line::<3>];

/// Puts our callback into a context that its library has just made; not where the library has no
/// slot.
pub fn install_in_new(library: Option<&'static Library>, context: *mut c_void) {
    if !context.is_null() {
        library::adopt(library, context);
        if let Some(library) = library {
            install(library, context);
        }
    }
}

/// Puts our callback into a context, once.
fn install(library: &'static Library, context: *mut c_void) {
    let (Some(api), Some(_)) = (&library.api, config::get()) else {
        return;
    };
    // SAFETY: a live context of this library.
    let current = unsafe { (api.get_keylog)(context) };
    if is_ours(library, current) {
        return;
    }
    if set_host_callback(api, context, current) {
        // SAFETY: a live context of this library, and a function that never goes away, because
        // nobody unloads a preloaded library.
        unsafe { (api.set_keylog)(context, Some(CALLBACKS[library.slot])) };
    }
    agent::connect_early();
}

/// Notes the host's callback behind ours; `false` when ours is not there.
pub fn remember(
    library: &'static Library,
    context: *mut c_void,
    callback: Option<KeylogCallback>,
) -> bool {
    install(library, context);
    let Some(api) = &library.api else {
        return false;
    };
    // SAFETY: a live context of this library.
    let current = unsafe { (api.get_keylog)(context) };
    is_ours(library, current) && set_host_callback(api, context, callback)
}

/// What the host expects to find when `current` is what libssl has.
pub fn host_view(
    library: &'static Library,
    context: *const c_void,
    current: Option<KeylogCallback>,
) -> Option<KeylogCallback> {
    match &library.api {
        Some(api) if is_ours(library, current) => host_callback(api, context),
        _ => current,
    }
}

fn is_ours(library: &Library, callback: Option<KeylogCallback>) -> bool {
    callback.is_some_and(|callback| std::ptr::fn_addr_eq(callback, CALLBACKS[library.slot]))
}

fn set_host_callback(api: &Api, context: *mut c_void, callback: Option<KeylogCallback>) -> bool {
    let pointer = callback.map_or(null_mut(), |callback| callback as *mut c_void);
    // SAFETY: a live context of this library and an index that it gave us.
    unsafe { (api.set_ex_data)(context, api.ex_index, pointer) == 1 }
}

fn host_callback(api: &Api, context: *const c_void) -> Option<KeylogCallback> {
    // SAFETY: a live context of this library and an index that it gave us.
    let pointer = unsafe { (api.get_ex_data)(context, api.ex_index) };
    // SAFETY: null is `None`; anything else was made from this type in `set_host_callback`.
    unsafe { std::mem::transmute::<*mut c_void, Option<KeylogCallback>>(pointer) }
}

unsafe extern "C-unwind" fn on_line<const SLOT: usize>(ssl: *const c_void, line: *const c_char) {
    let host = guarded(None, || {
        let api = Library::in_slot(SLOT)?.api.as_ref()?;
        // SAFETY: libssl passes a live session.
        let context = unsafe { (api.get_context)(ssl) };
        let host = host_callback(api, context);
        // Apart, so that whatever happens in there the host's callback is called.
        guarded((), || share(api, ssl, line));
        host
    });
    if let Some(host) = host {
        // SAFETY: the host's own function with libssl's own arguments.
        unsafe { host(ssl, line) }
    }
}

/// Sends to the agent what the policy allows.
fn share(api: &Api, ssl: *const c_void, line: *const c_char) {
    if line.is_null() {
        return;
    }
    // SAFETY: libssl passes a C string that lives during the call.
    let line = unsafe { CStr::from_ptr(line) };
    let mut buffer = Zeroizing::new([0; MAX_SECRET_BYTES]);
    let line = keylog::parse(line.to_bytes(), &mut buffer);
    let (Ok(Line::Secret { label, client_random, secret }), Some(config)) = (line, config::get())
    else {
        return;
    };
    let Some(kind) = SecretKind::from_label(label) else {
        return;
    };
    // SAFETY: libssl passes a live session.
    let role = match unsafe { (api.get_is_server)(ssl) } {
        0 => Role::Client,
        _ if config.share_server => Role::Server,
        _ => return,
    };
    let descriptor = descriptor(api, ssl);
    if host::is_no_stream(descriptor) {
        // DTLS or QUIC: the monitor reads TCP, and their keys are not those of TLS records.
        return;
    }
    let flow = || host::flow(descriptor, role == Role::Client);
    let server_name = server_name(api, ssl);
    let exempt = config.exempt.matches(server_name)
        || (!config.exempt.is_empty() && server_name.is_empty() && is_unnamed(api, ssl, role));
    let datagram = match kind {
        // The first secrets that a session logs: before early data, before any application data.
        SecretKind::ClientEarly | SecretKind::ClientHandshake | SecretKind::Tls12Master
            if exempt =>
        {
            Datagram::Exempt(Exempt { client_random: &client_random, flow: flow() })
        }
        _ if exempt => return,
        // The monitor can do without; they show certificates.
        SecretKind::ClientHandshake | SecretKind::ServerHandshake if !config.share_handshake => {
            return;
        }
        kind => {
            let Some(session) = Session::of(api, ssl) else {
                return;
            };
            return agent::send(&Datagram::TrafficSecret(TrafficSecret {
                kind,
                role,
                client_random: &client_random,
                server_random: &session.server_random,
                version: session.version,
                cipher_suite: session.cipher_suite,
                secret,
                server_name,
                flow: flow(),
            }));
        }
    };
    agent::send(&datagram);
}

/// The session's descriptor, or -1 where it has none.
fn descriptor(api: &Api, ssl: *const c_void) -> i32 {
    // SAFETY: a live session; the call only looks.
    if unsafe { (api.get_read_bio)(ssl) }.is_null() {
        // The next call would put an error into the host's queue.
        return -1;
    }
    // SAFETY: a live session; the call only looks at its BIO.
    unsafe { (api.get_read_fd)(ssl) }
}

/// Whether libssl may hide the name that the client sent: of a resumed session before TLS 1.3 a
/// server gets to see the name in the session, and that is missing where the server's callback
/// did not acknowledge it.
fn is_unnamed(api: &Api, ssl: *const c_void, role: Role) -> bool {
    // SAFETY: a live session; the call only looks.
    let version = unsafe { (api.get_version)(ssl) };
    // SAFETY: as above.
    let reused = unsafe { (api.get_session_reused)(ssl) };
    role == Role::Server && version < TLS_1_3 && reused != 0
}

/// Empty when the client sent none. Valid during the callback.
fn server_name<'a>(api: &Api, ssl: *const c_void) -> &'a [u8] {
    // SAFETY: a live session; the call only looks.
    let name = unsafe { (api.get_server_name)(ssl, HOST_NAME) };
    if name.is_null() {
        return b"";
    }
    // SAFETY: a C string that lives as long as the session, longer than the callback.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    name.get(..255).unwrap_or(name)
}

struct Session {
    server_random: [u8; 32],
    version: u16,
    cipher_suite: u16,
}

impl Session {
    fn of(api: &Api, ssl: *const c_void) -> Option<Self> {
        let mut server_random = [0; 32];
        // SAFETY: a live session, and a buffer with its length.
        let length = unsafe { (api.get_server_random)(ssl, server_random.as_mut_ptr(), 32) };
        // SAFETY: a live session; the call only looks.
        let version = unsafe { (api.get_version)(ssl) };
        // The pending one is that of the handshake under way; the current one may still be that
        // of the session that is resumed.
        // SAFETY: a live session; the call only looks.
        let mut cipher = unsafe { (api.get_pending_cipher)(ssl) };
        if cipher.is_null() {
            // SAFETY: as above.
            cipher = unsafe { (api.get_current_cipher)(ssl) };
        }
        if cipher.is_null() || length != 32 {
            return None;
        }
        // SAFETY: a cipher of this library, not null.
        let id = unsafe { (api.get_cipher_id)(cipher) };
        Some(Self {
            server_random,
            version: u16::try_from(version).ok()?,
            cipher_suite: (id & 0xFFFF) as u16,
        })
    }
}
