//! The codes that functions return: fixed integers, apart from those of `libmmtls`. Refuses to reuse a number.

use std::ffi::{CStr, c_int};

/// The session is exempt: the agent knows it, and its secrets stay in the program. No failure.
pub const MMTLS_SHARE_EXEMPT: c_int = 1;
/// A pointer is NULL that must not be, a number is out of its range, or a name or an address is none.
pub const MMTLS_SHARE_ERR_ARGUMENT: c_int = -201;
/// No such handle: NULL, closed, or not of this library.
pub const MMTLS_SHARE_ERR_HANDLE: c_int = -202;
/// No path is given, and MMTLS_AGENT is not set (or not heeded: the program is setuid).
pub const MMTLS_SHARE_ERR_NO_AGENT: c_int = -203;
/// The agent's path is empty, or has more than 107 bytes.
pub const MMTLS_SHARE_ERR_PATH: c_int = -204;
/// A list of exempt names cannot be read: the one that is given, or that of MMTLS_EXEMPT.
pub const MMTLS_SHARE_ERR_NAMES: c_int = -205;
/// Too many handles are open (16), or too many versions of OpenSSL in use (4).
pub const MMTLS_SHARE_ERR_CAPACITY: c_int = -206;
/// The secret has no bytes, more than 64, or not as many as its kind.
pub const MMTLS_SHARE_ERR_SECRET: c_int = -207;
/// The agent is not there, is another user's, or does not keep up. What was given waits, and goes with
/// a later call: 64 messages at most, of which the oldest gives way.
pub const MMTLS_SHARE_ERR_AGENT: c_int = -208;
/// There is no OpenSSL of version 1.1.1 or 3 to be found, or it has no memory. (Its relatives, such as
/// BoringSSL, are none: `mmtls_share_give` is for them.)
pub const MMTLS_SHARE_ERR_OPENSSL: c_int = -209;
/// Not a line of a key log.
pub const MMTLS_SHARE_ERR_LINE: c_int = -210;
/// A defect of this library.
pub const MMTLS_SHARE_ERR_INTERNAL: c_int = -299;

/// Texts of the codes above.
const TEXTS: &[(c_int, &CStr)] = &[
    (0, c"success"),
    (MMTLS_SHARE_EXEMPT, c"the session is exempt"),
    (MMTLS_SHARE_ERR_ARGUMENT, c"invalid argument"),
    (MMTLS_SHARE_ERR_HANDLE, c"no such handle"),
    (MMTLS_SHARE_ERR_NO_AGENT, c"no agent: no path is given, and MMTLS_AGENT is not set"),
    (MMTLS_SHARE_ERR_PATH, c"the agent's path is empty or too long"),
    (MMTLS_SHARE_ERR_NAMES, c"the list of exempt names cannot be read"),
    (MMTLS_SHARE_ERR_CAPACITY, c"too many handles, or versions of OpenSSL"),
    (MMTLS_SHARE_ERR_SECRET, c"the secret has a wrong length"),
    (MMTLS_SHARE_ERR_AGENT, c"the agent cannot be reached"),
    (MMTLS_SHARE_ERR_OPENSSL, c"no usable OpenSSL found"),
    (MMTLS_SHARE_ERR_LINE, c"not a line of a key log"),
    (MMTLS_SHARE_ERR_INTERNAL, c"internal error"),
];

/// A short text for every code.
pub(crate) fn text(code: c_int) -> &'static CStr {
    TEXTS.iter().find(|(known, _)| *known == code).map_or(c"unknown error", |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_code_once() {
        let mut codes: Vec<c_int> = TEXTS.iter().map(|(code, _)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), TEXTS.len());
        assert_eq!(text(-7), c"unknown error");
    }
}
