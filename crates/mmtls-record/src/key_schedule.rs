//! From a traffic secret to record keys (RFC 8446, sections 7.2 and 7.3).
//!
//! This runs where the secret lives: in an endpoint's agent, or offline next to a key log. The
//! inline monitor only ever sees the result. Refuses secrets of the wrong length.

use aws_lc_rs::hkdf;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::KeyError;
use crate::suite::{self, IV_LEN};

/// Key and IV of one direction and epoch; wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct TrafficKeys {
    key: [u8; 32],
    key_len: usize,
    iv: [u8; IV_LEN],
}

impl TrafficKeys {
    /// The AEAD key; its length is the suite's.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key[..self.key_len]
    }

    /// The static IV that is combined with the sequence number.
    #[must_use]
    pub fn iv(&self) -> &[u8; IV_LEN] {
        &self.iv
    }
}

/// A traffic secret; wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Secret {
    bytes: [u8; 48],
    len: usize,
}

impl Secret {
    /// The secret's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Derives the record key and IV of a traffic secret.
///
/// # Errors
/// [`KeyError::UnsupportedSuite`] and [`KeyError::SecretLength`].
pub fn traffic_keys(suite: u16, secret: &[u8]) -> Result<TrafficKeys, KeyError> {
    let suite = suite::find(suite)?;
    let prk = prk(suite, secret)?;
    let mut keys = TrafficKeys {
        key: [0; 32],
        key_len: suite.key_len(),
        iv: [0; IV_LEN],
    };
    expand_label(&prk, b"key", &mut keys.key[..suite.key_len()])?;
    expand_label(&prk, b"iv", &mut keys.iv)?;
    Ok(keys)
}

/// Derives the secret that follows a KeyUpdate.
///
/// # Errors
/// As [`traffic_keys`].
pub fn next_secret(suite: u16, secret: &[u8]) -> Result<Secret, KeyError> {
    let suite = suite::find(suite)?;
    let prk = prk(suite, secret)?;
    let mut next = Secret {
        bytes: [0; 48],
        len: suite.secret_len,
    };
    expand_label(&prk, b"traffic upd", &mut next.bytes[..suite.secret_len])?;
    Ok(next)
}

fn prk(suite: &suite::Suite, secret: &[u8]) -> Result<hkdf::Prk, KeyError> {
    if secret.len() != suite.secret_len {
        return Err(KeyError::SecretLength {
            expected: suite.secret_len,
            actual: secret.len(),
        });
    }
    Ok(hkdf::Prk::new_less_safe(suite.hash, secret))
}

/// HKDF-Expand-Label with an empty context (RFC 8446, section 7.1).
fn expand_label(prk: &hkdf::Prk, label: &[u8], out: &mut [u8]) -> Result<(), KeyError> {
    const PREFIX: &[u8] = b"tls13 ";
    let out_len = u16::try_from(out.len()).map_err(|_| KeyError::Library)?;
    let label_len = u8::try_from(PREFIX.len() + label.len()).map_err(|_| KeyError::Library)?;
    let info: [&[u8]; 5] = [&out_len.to_be_bytes(), &[label_len], PREFIX, label, &[0]];
    prk.expand(&info, OutputLen(out.len()))
        .and_then(|okm| okm.fill(out))
        .map_err(|_| KeyError::Library)
}

struct OutputLen(usize);

impl hkdf::KeyType for OutputLen {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .chars()
            .filter_map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect()
    }

    /// RFC 8448, section 3: client_application_traffic_secret_0 and what it expands to.
    #[test]
    fn accepts_rfc_8448_application_secret() {
        let secret = unhex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
        let keys = traffic_keys(0x1301, &secret).unwrap();
        assert_eq!(keys.key(), unhex("17422dda596ed5d9acd890e3c63f5051"));
        assert_eq!(keys.iv()[..], unhex("5b78923dee08579033e523d9"));
    }

    #[test]
    fn refuses_wrong_lengths_and_unknown_suites() {
        assert_eq!(
            traffic_keys(0x1302, &[0; 32]).err(),
            Some(KeyError::SecretLength {
                expected: 48,
                actual: 32
            })
        );
        assert_eq!(
            traffic_keys(0x1304, &[0; 32]).err(),
            Some(KeyError::UnsupportedSuite(0x1304))
        );
    }
}
