//! The types and constants of the header. Refuses enums, which C may hand over with any value.

use std::ffi::{c_char, c_int, c_uint};

use libc::sockaddr;

/// What a handle points to: nothing. Its value is a number that the library looks up.
pub struct Handle {
    _private: [u8; 0],
}

/// An agent, a connection to it, and what is shared with it. At most 16 are open at one time.
#[allow(non_camel_case_types, reason = "a name for C")]
pub type mmtls_share_t = *mut Handle;

/// Share also sessions in which the program is the server (`mmtls_share_ssl_ctx` and `…_ssl_keylog_line`).
pub const MMTLS_SHARE_OPEN_SERVER: c_uint = 1;
/// Share also handshake secrets, which show certificates (the same functions).
pub const MMTLS_SHARE_OPEN_HANDSHAKE: c_uint = 2;

/// CLIENT_EARLY_TRAFFIC_SECRET of TLS 1.3. Before the ServerHello: version 0x0304, the cipher suite of
/// the pre-shared key, a server random of zeros.
pub const MMTLS_SHARE_CLIENT_EARLY: c_int = 1;
/// CLIENT_HANDSHAKE_TRAFFIC_SECRET of TLS 1.3. Agents use it where they share handshake keys.
pub const MMTLS_SHARE_CLIENT_HANDSHAKE: c_int = 2;
/// SERVER_HANDSHAKE_TRAFFIC_SECRET of TLS 1.3. The same.
pub const MMTLS_SHARE_SERVER_HANDSHAKE: c_int = 3;
/// CLIENT_TRAFFIC_SECRET_0 of TLS 1.3: the first for application data.
pub const MMTLS_SHARE_CLIENT_TRAFFIC: c_int = 4;
/// SERVER_TRAFFIC_SECRET_0 of TLS 1.3.
pub const MMTLS_SHARE_SERVER_TRAFFIC: c_int = 5;
/// The client's next secret after a KeyUpdate of TLS 1.3. It may be left out: the agent can follow.
pub const MMTLS_SHARE_CLIENT_NEXT: c_int = 6;
/// The server's next secret after a KeyUpdate of TLS 1.3. The same.
pub const MMTLS_SHARE_SERVER_NEXT: c_int = 7;
/// The master secret of TLS 1.2, which has 48 bytes: CLIENT_RANDOM in key logs.
pub const MMTLS_SHARE_TLS12_MASTER: c_int = 8;

/// The program has opened the session.
pub const MMTLS_SHARE_CLIENT: c_int = 0;
/// The program has accepted the session.
pub const MMTLS_SHARE_SERVER: c_int = 1;

/// A secret of a session.
#[repr(C)]
pub struct Secret {
    /// MMTLS_SHARE_CLIENT_EARLY to MMTLS_SHARE_TLS12_MASTER.
    pub kind: c_int,
    /// MMTLS_SHARE_CLIENT or MMTLS_SHARE_SERVER.
    pub role: c_int,
    /// Negotiated: 0x0303 is TLS 1.2, 0x0304 is TLS 1.3.
    pub version: u16,
    /// Negotiated, its number in the TLS registry: 0x1301 is TLS_AES_128_GCM_SHA256.
    pub cipher_suite: u16,
    /// As it was sent in the ClientHello that the ServerHello answers.
    pub client_random: [u8; 32],
    /// As it was sent.
    pub server_random: [u8; 32],
    /// The secret; it is the caller's to wipe.
    pub secret: *const u8,
    /// In bytes, up to 64: the length of the suite's hash, or 48 (TLS 1.2).
    pub secret_len: usize,
    /// The name in the ClientHello, at most 255 bytes; NULL or "" where there is none, and then no list
    /// of exempt names knows the session.
    pub server_name: *const c_char,
    /// The ends of the TCP connection, a sockaddr_in or sockaddr_in6 by its sa_family: who has opened it …
    pub client: *const sockaddr,
    /// … and who has accepted it. Both NULL where they are not known, or not what the middlebox sees.
    pub server: *const sockaddr,
}

/// A function of OpenSSL, of whatever type.
#[allow(non_camel_case_types, reason = "a name for C")]
pub type mmtls_share_function = Option<unsafe extern "C" fn()>;

/// The functions of an OpenSSL; MMTLS_SHARE_OPENSSL_FUNCTIONS initialises it.
#[repr(C)]
#[allow(non_snake_case, reason = "OpenSSL's names")]
pub struct Functions {
    pub OpenSSL_version: mmtls_share_function,
    pub CRYPTO_get_ex_new_index: mmtls_share_function,
    pub SSL_CTX_set_keylog_callback: mmtls_share_function,
    pub SSL_CTX_get_keylog_callback: mmtls_share_function,
    pub SSL_CTX_set_ex_data: mmtls_share_function,
    pub SSL_CTX_get_ex_data: mmtls_share_function,
    pub SSL_get_server_random: mmtls_share_function,
    pub SSL_get_pending_cipher: mmtls_share_function,
    pub SSL_get_current_cipher: mmtls_share_function,
    pub SSL_CIPHER_get_id: mmtls_share_function,
    pub SSL_version: mmtls_share_function,
    pub SSL_get_servername: mmtls_share_function,
    pub SSL_session_reused: mmtls_share_function,
    pub SSL_get_rbio: mmtls_share_function,
    pub SSL_get_rfd: mmtls_share_function,
    pub SSL_get_SSL_CTX: mmtls_share_function,
    pub SSL_is_server: mmtls_share_function,
}
