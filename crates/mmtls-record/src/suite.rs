//! The suites and what each needs. Refuses unknown numbers with a named error.

use aws_lc_rs::{aead, hkdf};

use crate::KeyError;

/// IV length of every TLS 1.3 suite in bytes (RFC 8446, section 5.3).
pub const IV_LEN: usize = 12;

/// Tag length of the suites built so far in bytes.
pub const TAG_LEN: usize = 16;

/// The parameters of one TLS 1.3 suite.
pub struct Suite {
    pub(crate) aead: &'static aead::Algorithm,
    pub(crate) hash: hkdf::Algorithm,
    /// Bytes of a traffic secret: the output length of the suite's hash.
    pub secret_len: usize,
}

impl Suite {
    /// Bytes of a record key.
    #[must_use]
    pub fn key_len(&self) -> usize {
        self.aead.key_len()
    }
}

/// Finds a suite by its number.
///
/// # Errors
/// [`KeyError::UnsupportedSuite`] for everything but the three suites built so far; the CCM
/// suites (0x1304, 0x1305) and all of TLS 1.2 are not built yet.
pub fn find(suite: u16) -> Result<&'static Suite, KeyError> {
    match suite {
        0x1301 => Ok(&AES_128_GCM),
        0x1302 => Ok(&AES_256_GCM),
        0x1303 => Ok(&CHACHA20_POLY1305),
        other => Err(KeyError::UnsupportedSuite(other)),
    }
}

static AES_128_GCM: Suite = Suite {
    aead: &aead::AES_128_GCM,
    hash: hkdf::HKDF_SHA256,
    secret_len: 32,
};

static AES_256_GCM: Suite = Suite {
    aead: &aead::AES_256_GCM,
    hash: hkdf::HKDF_SHA384,
    secret_len: 48,
};

static CHACHA20_POLY1305: Suite = Suite {
    aead: &aead::CHACHA20_POLY1305,
    hash: hkdf::HKDF_SHA256,
    secret_len: 32,
};
