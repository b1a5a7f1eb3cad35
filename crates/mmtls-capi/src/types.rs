//! The types of the header: handles, events, sides, what is known of a session.
//!
//! A side is a direction; the prototype of the paper names the receive buffer instead, which is the other way round.
//!
//! Refuses to hold anything that Rust owns, but for one borrowed pointer, whose life is documented,
//! and enums, which C may hand over with any value.

use std::ffi::{c_char, c_int, c_void};
use std::net::IpAddr;

use mmtls_middlebox::session::EarlyData;

/// What a handle points to: nothing. Its value is a number that the library looks up, so a stale,
/// foreign or invented handle is an error code, never undefined behaviour.
pub struct Context {
    _private: [u8; 0],
}

/// One worker: a thread with an engine of its own.
#[allow(non_camel_case_types, reason = "the name of figure 9")]
pub type mmtls_t = *mut Context;

/// The same, as figure 23 spells it.
#[allow(non_camel_case_types, reason = "the name of figure 23")]
pub type mmctx_t = mmtls_t;

/// One of ON_TLS_*.
#[allow(non_camel_case_types, reason = "a name for C")]
pub type mmtls_event_t = c_int;

/// Server name (RFC 6066).
pub const MMTLS_INFO_SNI: u16 = 1;
/// Negotiated version.
pub const MMTLS_INFO_VERSION: u16 = 2;
/// Negotiated cipher suite.
pub const MMTLS_INFO_CIPHER_SUITE: u16 = 4;
/// Addresses and ports.
pub const MMTLS_INFO_FOUR_TUPLE: u16 = 8;
/// `ClientHello.random`.
pub const MMTLS_INFO_CLIENT_RANDOM: u16 = 16;
/// `ServerHello.random`.
pub const MMTLS_INFO_SERVER_RANDOM: u16 = 32;
/// The server's certificate.
pub const MMTLS_INFO_CERTIFICATE: u16 = 64;
/// How the session began: `early_data` and `mid_stream`.
pub const MMTLS_INFO_BEGINNING: u16 = 128;
/// All of the above.
pub const MMTLS_INFO_ALL: u16 = 255;

/// The client announced no early data (0-RTT, RFC 8446, section 4.2.10).
pub const MMTLS_EARLY_NONE: u8 = 0;
/// It announced some; the server's answer is not known (yet).
pub const MMTLS_EARLY_OFFERED: u8 = 1;
/// The server takes them.
pub const MMTLS_EARLY_ACCEPTED: u8 = 2;
/// The server drops them: its application never sees them.
pub const MMTLS_EARLY_REJECTED: u8 = 3;

/// What the client sends: requests.
pub const MMTLS_TO_SERVER: c_int = 0;
/// What the server sends: responses. The prototype calls this side CLI, after the receive buffer.
pub const MMTLS_TO_CLIENT: c_int = 1;

/// No record has more content bytes than this.
pub const MMTLS_MAX_RECORD_BYTES: c_int = 18432;

/// A TCP connection turned out to carry TLS. The place for `mmtls_set_uctx`.
///
/// Events are those of the paper's table 3, and three. Per session: SESSION_START, HANDSHAKE_START,
/// HANDSHAKE_END, then NEW_RECORD any number of times, and SESSION_END, each of the others at most
/// once. Records of early data (0-RTT) come before HANDSHAKE_END, and perhaps for nothing: see
/// EARLY_DATA. ERROR, STALL and KEYS can come anywhere between start and end.
///
/// A session that was under way when the program started (`mid_stream` of `mmtls_get_tls_info`) has no
/// HANDSHAKE_START and no HANDSHAKE_END: all that is known of it is known at SESSION_START, and its first
/// records are from anywhere in the streams.
///
/// `side` in the callback is the direction that the event is about, MMTLS_TO_SERVER or
/// MMTLS_TO_CLIENT. Events about the whole session (start and end, of it and of the handshake) say
/// MMTLS_TO_SERVER.
pub const ON_TLS_SESSION_START: c_int = 0;
/// The session is over, however it ended, by a reset too. The last event, and the place to free
/// what `mmtls_get_uctx` returns. Pause and resume are refused; a reset still stops the packet that
/// ended the session, and what is held.
pub const ON_TLS_SESSION_END: c_int = 1;
/// The ClientHello is complete: server name and client random are known.
pub const ON_TLS_HANDSHAKE_START: c_int = 2;
/// Version, suite and both randoms are known, and the client has sent its last flight.
pub const ON_TLS_HANDSHAKE_END: c_int = 3;
/// A protected record is complete and can be opened with `mmtls_get_record`, in this callback only.
/// The packet that completed it is held until the callback returns.
pub const ON_TLS_NEW_RECORD: c_int = 4;
/// Something is wrong: `mmtls_get_last_error` tells what. The configured policy is applied after
/// the callback.
pub const ON_TLS_ERROR: c_int = 5;
/// Records of this side are held because their keys are missing.
pub const ON_TLS_STALL: c_int = 6;
/// Keys of this side arrived.
pub const ON_TLS_KEYS: c_int = 7;
/// It is known whether the server takes the client's early data (`early_data` of `mmtls_get_tls_info`,
/// with MMTLS_INFO_BEGINNING). Where it does not, what NEW_RECORD has shown of MMTLS_TO_SERVER before
/// HANDSHAKE_END reaches no application: forget it. The client may say it once more. At most once, behind
/// or before HANDSHAKE_END.
pub const ON_TLS_EARLY_DATA: c_int = 8;

/// How many events there are.
pub(crate) const EVENTS: usize = 9;

/// Gets a line for the operator. `mmctx` is the context whose thread this is, `text` lives until the
/// callback returns.
#[allow(non_camel_case_types, reason = "a name for C")]
pub type mmtls_message_cb =
    Option<unsafe extern "C-unwind" fn(mmctx: mmctx_t, text: *const c_char)>;

/// An event handler. It runs on the thread of its context, one at a time, while a packet waits:
/// it must not block. A C++ exception that leaves it ends the process; longjmp and pthread_exit out
/// of it are undefined.
#[allow(non_camel_case_types, reason = "the name of figure 23")]
pub type mmtls_cb = Option<unsafe extern "C-unwind" fn(mmctx: mmctx_t, cid: c_int, side: c_int)>;

/// What `mmtls_get_tls_info` fills in. All zero where not asked for or not known.
#[repr(C)]
pub struct SessionInfo {
    /// The asked-for MMTLS_INFO_* bits that are known by now.
    pub known: u16,
    /// 0x0303 is TLS 1.2, 0x0304 is TLS 1.3.
    pub version: u16,
    /// The number in the TLS registry: 0x1301 is TLS_AES_128_GCM_SHA256.
    pub cipher_suite: u16,
    /// 4 or 6.
    pub ip_version: u8,
    /// One of MMTLS_EARLY_*.
    pub early_data: u8,
    /// 1 where the handshake was not seen: the program started when the session was under way.
    pub mid_stream: u8,
    /// Always zero. With it there are no gaps, so nothing of the library's stack goes out.
    pub reserved: [u8; 3],
    /// The address that sent the SYN, in network byte order; IPv4 takes the first four bytes.
    pub client_ip: [u8; 16],
    /// The address that received it.
    pub server_ip: [u8; 16],
    /// In host byte order.
    pub client_port: u16,
    /// In host byte order.
    pub server_port: u16,
    /// As it was sent.
    pub client_random: [u8; 32],
    /// As it was sent.
    pub server_random: [u8; 32],
    /// The name that the client asked for, NUL-terminated; the outer one under ECH. Empty when
    /// there is none.
    pub sni: [c_char; 256],
    /// The server's own certificate (DER). Known in TLS 1.2, and in TLS 1.3 where handshake keys
    /// are shared; not where it is compressed (RFC 8879), and behind ON_TLS_HANDSHAKE_END where keys
    /// come late. It belongs to the library and lives until the callback returns. NULL when not known.
    pub certificate: *const u8,
    /// Its length in bytes.
    pub certificate_len: usize,
}

/// A pointer of the application, that is only kept for it.
#[derive(Clone, Copy)]
pub(crate) struct UserPointer(pub(crate) *mut c_void);

// SAFETY: it is never dereferenced here, only handed back to the application.
unsafe impl Send for UserPointer {}

impl SessionInfo {
    /// What is asked for and known.
    pub(crate) fn new(
        of: &mmtls_middlebox::session::SessionInfo,
        certificate: &[u8],
        asked: u16,
    ) -> Self {
        let mut info = Self {
            known: 0,
            version: 0,
            cipher_suite: 0,
            ip_version: 0,
            early_data: MMTLS_EARLY_NONE,
            mid_stream: 0,
            reserved: [0; 3],
            client_ip: [0; 16],
            server_ip: [0; 16],
            client_port: 0,
            server_port: 0,
            client_random: [0; 32],
            server_random: [0; 32],
            sni: [0; 256],
            certificate: std::ptr::null(),
            certificate_len: 0,
        };
        let mut tell = |bit: u16, known: bool| {
            let tells = asked & bit != 0 && known;
            info.known |= if tells { bit } else { 0 };
            tells
        };
        // A legal host name has at most 253 bytes and none of them NUL.
        let name = of.server_name.as_deref().unwrap_or_default().as_bytes();
        if tell(MMTLS_INFO_SNI, !name.is_empty() && name.len() < info.sni.len()) {
            for (to, from) in info.sni.iter_mut().zip(name) {
                *to = from.cast_signed() as c_char;
            }
        }
        if let Some(version) = of.version
            && tell(MMTLS_INFO_VERSION, true)
        {
            info.version = version.0;
        }
        if let Some(suite) = of.cipher_suite
            && tell(MMTLS_INFO_CIPHER_SUITE, true)
        {
            info.cipher_suite = suite.0;
        }
        if tell(MMTLS_INFO_FOUR_TUPLE, true) {
            info.ip_version = if of.client.is_ipv4() { 4 } else { 6 };
            info.client_ip = ipv6_bytes(of.client.ip());
            info.server_ip = ipv6_bytes(of.server.ip());
            info.client_port = of.client.port();
            info.server_port = of.server.port();
        }
        if tell(MMTLS_INFO_CLIENT_RANDOM, of.client_hello) {
            info.client_random = of.client_random;
        }
        if let Some(random) = of.server_random
            && tell(MMTLS_INFO_SERVER_RANDOM, true)
        {
            info.server_random = random;
        }
        if tell(MMTLS_INFO_CERTIFICATE, !certificate.is_empty()) {
            info.certificate = certificate.as_ptr();
            info.certificate_len = certificate.len();
        }
        if tell(MMTLS_INFO_BEGINNING, true) {
            info.early_data = match of.early_data {
                EarlyData::None => MMTLS_EARLY_NONE,
                EarlyData::Offered => MMTLS_EARLY_OFFERED,
                EarlyData::Accepted => MMTLS_EARLY_ACCEPTED,
                EarlyData::Rejected => MMTLS_EARLY_REJECTED,
            };
            info.mid_stream = of.is_mid_stream.into();
        }
        info
    }
}

fn ipv6_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&address.octets());
            all
        }
    }
}
