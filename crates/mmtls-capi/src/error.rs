//! The codes that functions return: fixed negative integers.
//!
//! Refuses to reuse a number: those of session errors are the engine's.

use std::ffi::{CStr, c_int};

use mmtls_middlebox::session::SessionError;

/// Why a call was refused, or failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// A session error, in the engine's words.
    Session(SessionError),
    /// One of the codes below.
    Code(c_int),
    /// One of them, and what was wrong in this case.
    Detailed(c_int, String),
}

impl From<c_int> for Failure {
    fn from(code: c_int) -> Self {
        Self::Code(code)
    }
}

/// A pointer is NULL that must not be, or a number is out of its range.
pub const MMTLS_ERR_ARGUMENT: c_int = -101;
/// No such context: NULL, destroyed, or not a handle of this library.
pub const MMTLS_ERR_CONTEXT: c_int = -102;
/// The context exists, but this thread is not running one of its callbacks.
pub const MMTLS_ERR_THREAD: c_int = -103;
/// No session of this context has this number (any more).
pub const MMTLS_ERR_SESSION: c_int = -104;
/// The session lives, but the current callback is about another one.
pub const MMTLS_ERR_OTHER_SESSION: c_int = -105;
/// Not possible in this event: there is no record of this side, or the session is over.
pub const MMTLS_ERR_EVENT: c_int = -106;
/// The session has been reset.
pub const MMTLS_ERR_RESET: c_int = -107;
/// The record does not fit; nothing was written.
pub const MMTLS_ERR_CAPACITY: c_int = -108;
/// The buffer does not lie in what `mmtls_set_record_buffer` declared; nothing was written.
pub const MMTLS_ERR_BUFFER: c_int = -109;
/// `mmtls_init` was not called, or `mmtls_destroy` was.
pub const MMTLS_ERR_NOT_INITIALISED: c_int = -110;
/// `mmtls_init` was called before, without `mmtls_destroy`.
pub const MMTLS_ERR_INITIALISED: c_int = -111;
/// The contexts have been started: too late for this.
pub const MMTLS_ERR_STARTED: c_int = -112;
/// Not inside a callback: it would wait for itself.
pub const MMTLS_ERR_IN_CALLBACK: c_int = -113;
/// The configuration is wrong; `mmtls_error_message` has the reason.
pub const MMTLS_ERR_CONFIG: c_int = -114;
/// The contexts could not be started (a file that the configuration names, too), or ended early;
/// `mmtls_error_message` has the reason.
pub const MMTLS_ERR_RUN: c_int = -115;
/// A defect of this library.
pub const MMTLS_ERR_INTERNAL: c_int = -199;

/// Texts of the codes above.
const OWN: &[(c_int, &CStr)] = &[
    (MMTLS_ERR_ARGUMENT, c"invalid argument"),
    (MMTLS_ERR_CONTEXT, c"no such context"),
    (MMTLS_ERR_THREAD, c"not inside a callback of this context"),
    (MMTLS_ERR_SESSION, c"no such session"),
    (MMTLS_ERR_OTHER_SESSION, c"not the session of this event"),
    (MMTLS_ERR_EVENT, c"not possible in this event"),
    (MMTLS_ERR_RESET, c"the session has been reset"),
    (MMTLS_ERR_CAPACITY, c"the record does not fit"),
    (MMTLS_ERR_BUFFER, c"not in the declared buffer"),
    (MMTLS_ERR_NOT_INITIALISED, c"not initialised"),
    (MMTLS_ERR_INITIALISED, c"already initialised"),
    (MMTLS_ERR_STARTED, c"the contexts have been started"),
    (MMTLS_ERR_IN_CALLBACK, c"not possible inside a callback"),
    (MMTLS_ERR_CONFIG, c"configuration"),
    (MMTLS_ERR_RUN, c"running failed"),
    (MMTLS_ERR_INTERNAL, c"internal error"),
];

impl Failure {
    pub(crate) fn code(&self) -> c_int {
        match self {
            Self::Session(error) => error.code(),
            Self::Code(code) | Self::Detailed(code, _) => *code,
        }
    }
}

/// Names of session errors, with their NUL.
const SESSION_ERRORS: &[(SessionError, &CStr)] = &[
    (SessionError::Integrity, c"integrity failure"),
    (SessionError::EarlyFin, c"TCP ended inside a record"),
    (SessionError::UnsupportedVersion, c"unsupported version"),
    (SessionError::UnsupportedCipherSuite, c"unsupported cipher suite"),
    (SessionError::MalformedRecord, c"malformed record"),
    (SessionError::MalformedHandshake, c"malformed handshake"),
    (SessionError::KeysDoNotFit, c"keys do not fit"),
    (SessionError::LostSynchronisation, c"lost synchronisation"),
    (SessionError::ConflictingOverlap, c"conflicting overlap"),
    (SessionError::EarlyDataNotInspected, c"early data not inspected"),
    (SessionError::NothingOpened, c"nothing opened"),
    (SessionError::MemoryCap, c"memory cap"),
    (SessionError::JudgedLate, c"judged late"),
    (SessionError::NoPrivateTag, c"no private tag"),
    (SessionError::UnsupportedCompression, c"unsupported compression"),
    (SessionError::UnreadFlight, c"client's handshake not read"),
    (SessionError::NotTls, c"not TLS"),
    (SessionError::MissingKeys, c"missing keys"),
];

/// A short text for every code.
pub(crate) fn text(code: c_int) -> &'static CStr {
    if code >= 0 {
        return c"success";
    }
    let session = SESSION_ERRORS.iter().map(|(error, text)| (error.code(), *text));
    let mut all = OWN.iter().copied().chain(session);
    all.find(|(known, _)| *known == code).map_or(c"unknown error", |(_, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_code_once() {
        let session = SESSION_ERRORS.iter().map(|(error, _)| error.code());
        let mut codes: Vec<c_int> = OWN.iter().map(|(code, _)| *code).chain(session).collect();
        assert!(codes.iter().all(|&code| code < 0 && text(code) != c"unknown error"));
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), OWN.len() + SESSION_ERRORS.len());
        assert_eq!((text(0), text(-7)), (c"success", c"unknown error"));
    }
}
