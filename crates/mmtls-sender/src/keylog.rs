//! A keylog callback of ours in front of the host's, and what it sends.
//!
//! The host's callback is kept in the context itself (extra data), so there is nothing to clean
//! up. Refuses lines that are not in the key log format, and every secret of an exempt session.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use mmtls_keyshare::agent::{Datagram, Exempt, Role, SecretKind, TrafficSecret};
use mmtls_keyshare::keylog::{self, Line, MAX_SECRET_BYTES};
use zeroize::Zeroizing;

use crate::agent::{Delivery, Sender};
use crate::host;
use crate::openssl::{Api, KeylogCallback};
use crate::settings::Settings;

/// `TLSEXT_NAMETYPE_host_name`.
const HOST_NAME: i32 = 0;
/// The first version whose resumed sessions name the server again.
const TLS_1_3: i32 = 0x0304;

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Its secret was sent, or waits.
    Secret(Delivery),
    /// Its session is exempt; the agent is told so once.
    Exempt(Delivery),
    /// There is nothing in it that is to be shared.
    Nothing,
    /// It is no line of a key log.
    BadLine,
}

/// Puts our callback into a context, once; `false` when OpenSSL has no memory for it.
///
/// # Safety
/// `context` is a live context of this OpenSSL; `ours` is a function that never goes away.
pub unsafe fn install(api: &Api, context: *mut c_void, ours: KeylogCallback) -> bool {
    // SAFETY: a live context of this library.
    let current = unsafe { (api.get_keylog)(context) };
    if is(ours, current) {
        return true;
    }
    // SAFETY: the caller's promise.
    if !unsafe { set_host_callback(api, context, current) } {
        return false;
    }
    // SAFETY: a live context of this library, and a function that never goes away.
    unsafe { (api.set_keylog)(context, Some(ours)) };
    true
}

/// Whether a context's callback is ours.
#[must_use]
pub fn is(ours: KeylogCallback, callback: Option<KeylogCallback>) -> bool {
    callback.is_some_and(|callback| std::ptr::fn_addr_eq(callback, ours))
}

/// Notes the host's callback behind ours; `false` when OpenSSL has no memory for it.
///
/// # Safety
/// `context` is a live context of this OpenSSL.
pub unsafe fn set_host_callback(
    api: &Api,
    context: *mut c_void,
    callback: Option<KeylogCallback>,
) -> bool {
    let pointer = callback.map_or(null_mut(), |callback| callback as *mut c_void);
    // SAFETY: a live context of this library and an index that it gave us.
    unsafe { (api.set_ex_data)(context, api.ex_index, pointer) == 1 }
}

/// The host's callback behind ours.
///
/// # Safety
/// `context` is a live context of this OpenSSL.
#[must_use]
pub unsafe fn host_callback(api: &Api, context: *const c_void) -> Option<KeylogCallback> {
    // SAFETY: a live context of this library and an index that it gave us.
    let pointer = unsafe { (api.get_ex_data)(context, api.ex_index) };
    // SAFETY: null is `None`; anything else was made from this type in `set_host_callback`.
    unsafe { std::mem::transmute::<*mut c_void, Option<KeylogCallback>>(pointer) }
}

/// Sends to the agent what the rules allow of a line.
///
/// # Safety
/// `ssl` is a live session of this OpenSSL, in its keylog callback.
pub unsafe fn share(
    api: &Api,
    ssl: *const c_void,
    line: &[u8],
    settings: &Settings,
    sender: &Sender,
) -> Shared {
    let rules = &settings.rules;
    let mut buffer = Zeroizing::new([0; MAX_SECRET_BYTES]);
    let (label, client_random, secret) = match keylog::parse(line, &mut buffer) {
        Ok(Line::Secret { label, client_random, secret }) => (label, client_random, secret),
        Ok(_) => return Shared::Nothing,
        Err(_) => return Shared::BadLine,
    };
    let Some(kind) = SecretKind::from_label(label) else {
        return Shared::Nothing;
    };
    // SAFETY: a live session; the call only looks.
    let role = match unsafe { (api.get_is_server)(ssl) } {
        0 => Role::Client,
        _ if rules.server => Role::Server,
        _ => return Shared::Nothing,
    };
    let descriptor = descriptor(api, ssl);
    if host::is_no_stream(descriptor) {
        // DTLS or QUIC: the monitor reads TCP, and their keys are not those of TLS records.
        return Shared::Nothing;
    }
    let flow = || host::flow(descriptor, role == Role::Client);
    let server_name = server_name(api, ssl);
    let exempt = rules.exempt.matches(server_name)
        || (!rules.exempt.is_empty() && server_name.is_empty() && is_unnamed(api, ssl, role));
    match kind {
        // The first secrets that a session logs: before early data, before any application data.
        SecretKind::ClientEarly | SecretKind::ClientHandshake | SecretKind::Tls12Master
            if exempt =>
        {
            let exempt = Exempt { client_random: &client_random, flow: flow() };
            Shared::Exempt(sender.send(&settings.agent, &Datagram::Exempt(exempt)))
        }
        _ if exempt => Shared::Exempt(Delivery::Sent),
        // The monitor can do without; they show certificates.
        SecretKind::ClientHandshake | SecretKind::ServerHandshake if !rules.handshake => {
            Shared::Nothing
        }
        kind => {
            let Some(session) = Session::of(api, ssl) else {
                return Shared::Nothing;
            };
            let secret = TrafficSecret {
                kind,
                role,
                client_random: &client_random,
                server_random: &session.server_random,
                version: session.version,
                cipher_suite: session.cipher_suite,
                secret,
                server_name,
                flow: flow(),
            };
            Shared::Secret(sender.send(&settings.agent, &Datagram::TrafficSecret(secret)))
        }
    }
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
