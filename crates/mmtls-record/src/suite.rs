//! The suites and what each needs. Refuses unknown numbers and versions with a named error.

mod parameters;
mod table;

pub(crate) use self::parameters::SALT_LEN;
pub use self::parameters::{Cipher, Hash, IV_LEN, Suite, TLS12, TLS13};
use crate::KeyError;

/// Finds a suite that the version can use.
///
/// # Errors
/// [`KeyError::UnsupportedVersion`] for everything but [`TLS12`] and [`TLS13`],
/// [`KeyError::UnsupportedSuite`] for unknown numbers and suites of the other version.
pub fn find(version: u16, suite: u16) -> Result<&'static Suite, KeyError> {
    if version != TLS12 && version != TLS13 {
        return Err(KeyError::UnsupportedVersion(version));
    }
    lookup(suite)
        .filter(|found| found.version() == version)
        .ok_or(KeyError::UnsupportedSuite(suite))
}

/// Whether records of this version and suite can be opened.
#[must_use]
pub fn is_supported(version: u16, suite: u16) -> bool {
    find(version, suite).is_ok()
}

/// Whether a supported suite has the private tag.
#[must_use]
pub fn has_private_tag(suite: u16) -> bool {
    lookup(suite).is_some_and(Suite::has_private_tag)
}

/// The registered name of a supported suite, whatever its version.
#[must_use]
pub fn name(suite: u16) -> Option<&'static str> {
    lookup(suite).map(Suite::name)
}

/// Every supported suite, by ascending number.
pub fn all() -> impl Iterator<Item = &'static Suite> {
    table::SUITES.iter()
}

fn lookup(suite: u16) -> Option<&'static Suite> {
    let at = table::SUITES.binary_search_by_key(&suite, Suite::number).ok()?;
    table::SUITES.get(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_every_suite_of_the_table_in_its_version_only() {
        assert!(table::SUITES.is_sorted_by(|a, b| a.number < b.number));
        assert_eq!(all().count(), 135);
        for suite in all() {
            assert_eq!(name(suite.number), Some(suite.name));
            assert_eq!(find(suite.version(), suite.number), Ok(suite));
            assert!(!is_supported(suite.version() ^ TLS12 ^ TLS13, suite.number));
        }
    }

    /// The registered name says cipher and hash; the columns must agree with it.
    #[test]
    fn accepts_only_rows_that_agree_with_their_name() {
        for suite in all() {
            let cipher = match suite.cipher {
                Cipher::Aes128Gcm => "AES_128_GCM",
                Cipher::Aes256Gcm => "AES_256_GCM",
                Cipher::Aes128Ccm => "AES_128_CCM",
                Cipher::Aes256Ccm => "AES_256_CCM",
                Cipher::Aes128Ccm8 => "AES_128_CCM_8",
                Cipher::Aes256Ccm8 => "AES_256_CCM_8",
                Cipher::ChaCha20Poly1305 => "CHACHA20_POLY1305",
                Cipher::Aes128CbcSha1 => "AES_128_CBC_SHA",
                Cipher::Aes256CbcSha1 => "AES_256_CBC_SHA",
                Cipher::Aes128CbcSha256 => "AES_128_CBC_SHA256",
                Cipher::Aes256CbcSha256 => "AES_256_CBC_SHA256",
                Cipher::Aes256CbcSha384 => "AES_256_CBC_SHA384",
            };
            let (_, rest) = suite.name.split_at(suite.name.find(cipher).unwrap());
            let hash = match suite.hash {
                Hash::Sha256 => ["", "_SHA256"].contains(&&rest[cipher.len()..]),
                Hash::Sha384 => rest == cipher || &rest[cipher.len()..] == "_SHA384",
            };
            assert!(hash, "{}", suite.name);
            assert_eq!(suite.hash == Hash::Sha384, suite.name.ends_with("_SHA384"));
        }
    }

    #[test]
    fn refuses_other_versions_and_weak_or_unknown_suites() {
        assert_eq!(find(0x0302, 0x002f), Err(KeyError::UnsupportedVersion(0x0302)));
        for suite in
            [0x0000, 0x0005, 0x000a, 0x002e, 0x00ff, 0x1306, 0xc012, 0xcc13, 0xff30, 0xff36, 0xffff]
        {
            assert_eq!(find(TLS12, suite), Err(KeyError::UnsupportedSuite(suite)));
            assert_eq!(name(suite), None);
        }
    }
}
