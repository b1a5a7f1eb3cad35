//! From a traffic secret (RFC 8446, sections 7.2 and 7.3) or a TLS 1.2 master secret (RFC 5246,
//! section 6.3) to record keys.
//!
//! This runs where the secret lives: in an endpoint's agent, or next to a key log, and there behind
//! [`crate::keyring`]. Refuses secrets of the wrong length.

use aws_lc_rs::{hkdf, tls_prf};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::KeyError;
use crate::private_tag;
use crate::suite::{self, Hash, IV_LEN, Suite, TLS12, TLS13};

/// Length of every TLS 1.2 master secret in bytes (RFC 5246, section 8.1).
pub const MASTER_SECRET_LEN: usize = 48;

/// Longest MAC key in bytes: that of HMAC-SHA-384.
const MAX_MAC_KEY_LEN: usize = 48;

/// What protects the records of one direction and epoch; wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct RecordKeys {
    key: [u8; 32],
    key_len: usize,
    iv: [u8; IV_LEN],
    iv_len: usize,
    mac_key: [u8; MAX_MAC_KEY_LEN],
    mac_key_len: usize,
}

/// The record keys of TLS 1.3, whose MAC key is empty.
pub type TrafficKeys = RecordKeys;

impl RecordKeys {
    fn zeroed(suite: &Suite) -> Self {
        Self {
            key: [0; 32],
            key_len: suite.cipher().key_len(),
            iv: [0; IV_LEN],
            iv_len: suite.iv_len(),
            mac_key: [0; MAX_MAC_KEY_LEN],
            mac_key_len: suite.cipher().mac_key_len(),
        }
    }

    /// The encryption key; its length is the suite's.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key[..self.key_len]
    }

    /// What goes into every nonce besides the sequence number or the record's own nonce: 12
    /// bytes, 4 (GCM and CCM in TLS 1.2), or none (CBC).
    #[must_use]
    pub fn iv(&self) -> &[u8] {
        &self.iv[..self.iv_len]
    }

    /// The HMAC key of a CBC suite; empty for all others.
    #[must_use]
    pub fn mac_key(&self) -> &[u8] {
        &self.mac_key[..self.mac_key_len]
    }
}

/// A traffic secret, a master secret, or the key of the private tag; wiped when dropped.
///
/// On the heap, so that moving it leaves no copy behind.
pub struct Secret(Zeroizing<Box<[u8]>>);

impl Secret {
    /// A secret whose length has been checked.
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(Zeroizing::new(secret.into()))
    }

    /// A traffic secret of a suite of TLS 1.3.
    pub(crate) fn of_suite(suite: u16, secret: &[u8]) -> Result<Self, KeyError> {
        let expected = suite::find(TLS13, suite)?.hash().output_len();
        if secret.len() != expected {
            return Err(KeyError::SecretLength { expected, actual: secret.len() });
        }
        Ok(Self::new(secret))
    }

    fn zeroed(len: usize) -> Self {
        Self(Zeroizing::new(vec![0; len].into()))
    }

    /// The secret's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Derives the record key and IV of a TLS 1.3 traffic secret.
///
/// # Errors
/// [`KeyError::UnsupportedSuite`] and [`KeyError::SecretLength`].
pub fn traffic_keys(suite: u16, secret: &[u8]) -> Result<TrafficKeys, KeyError> {
    let suite = suite::find(TLS13, suite)?;
    let prk = prk(suite.hash(), secret)?;
    let mut keys = RecordKeys::zeroed(suite);
    expand_label(&prk, b"key", &mut keys.key[..suite.cipher().key_len()])?;
    expand_label(&prk, b"iv", &mut keys.iv)?;
    Ok(keys)
}

/// Derives the key of the private tag from a TLS 1.3 traffic secret (docs/private-tag.md,
/// section 3). It must stay with the endpoints.
///
/// # Errors
/// [`KeyError::PrivateTag`] for a suite without one, and as [`traffic_keys`].
pub fn private_tag_key(suite: u16, secret: &[u8]) -> Result<Secret, KeyError> {
    let len = private_tag::key_len(suite)?;
    let prk = prk(suite::find(TLS13, suite)?.hash(), secret)?;
    let mut key = Secret::zeroed(len);
    expand_label(&prk, private_tag::LABEL, &mut key.0)?;
    Ok(key)
}

/// Derives the secret that follows a KeyUpdate of TLS 1.3.
///
/// # Errors
/// As [`traffic_keys`].
pub fn next_secret(suite: u16, secret: &[u8]) -> Result<Secret, KeyError> {
    let hash = suite::find(TLS13, suite)?.hash();
    let prk = prk(hash, secret)?;
    let mut next = Secret::zeroed(hash.output_len());
    expand_label(&prk, b"traffic upd", &mut next.0)?;
    Ok(next)
}

/// Derives the record keys of a TLS 1.2 connection: client to server, server to client.
///
/// The randoms are those of the handshake in which the keys come into use; a resumed session has
/// its master secret from an earlier one.
///
/// # Errors
/// [`KeyError::UnsupportedSuite`] and [`KeyError::SecretLength`].
pub fn tls12_keys(
    suite: u16,
    master_secret: &[u8],
    client_random: &[u8; 32],
    server_random: &[u8; 32],
) -> Result<[RecordKeys; 2], KeyError> {
    let suite = suite::find(TLS12, suite)?;
    if master_secret.len() != MASTER_SECRET_LEN {
        let actual = master_secret.len();
        return Err(KeyError::SecretLength { expected: MASTER_SECRET_LEN, actual });
    }
    let cipher = suite.cipher();
    let block_len = 2 * (cipher.mac_key_len() + cipher.key_len() + suite.iv_len());
    let secret =
        tls_prf::Secret::new(suite.hash().prf(), master_secret).map_err(|_| KeyError::Library)?;
    // The order of the randoms is the opposite of the master secret's (RFC 5246, section 6.3).
    let block = secret
        .derive_with_seed_concatination(b"key expansion", server_random, client_random, block_len)
        .map_err(|_| KeyError::Library)?;
    let mut keys = [RecordKeys::zeroed(suite), RecordKeys::zeroed(suite)];
    let mut rest = block.as_ref();
    for side in &mut keys {
        take(&mut rest, &mut side.mac_key[..cipher.mac_key_len()])?;
    }
    for side in &mut keys {
        take(&mut rest, &mut side.key[..cipher.key_len()])?;
    }
    for side in &mut keys {
        take(&mut rest, &mut side.iv[..suite.iv_len()])?;
    }
    Ok(keys)
}

/// Moves the first bytes of the key block to `out`.
fn take(block: &mut &[u8], out: &mut [u8]) -> Result<(), KeyError> {
    let (taken, rest) = block.split_at_checked(out.len()).ok_or(KeyError::Library)?;
    out.copy_from_slice(taken);
    *block = rest;
    Ok(())
}

fn prk(hash: Hash, secret: &[u8]) -> Result<hkdf::Prk, KeyError> {
    if secret.len() != hash.output_len() {
        return Err(KeyError::SecretLength { expected: hash.output_len(), actual: secret.len() });
    }
    Ok(hkdf::Prk::new_less_safe(hash.hkdf(), secret))
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
        base16ct::lower::decode_vec(text).unwrap()
    }

    /// RFC 8448, section 3: client_application_traffic_secret_0 and what it expands to.
    #[test]
    fn accepts_rfc_8448_application_secret() {
        let secret = unhex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5");
        let keys = traffic_keys(0x1301, &secret).unwrap();
        assert_eq!(keys.key(), unhex("17422dda596ed5d9acd890e3c63f5051"));
        assert_eq!(keys.iv(), unhex("5b78923dee08579033e523d9"));
    }

    /// The vectors of the TLS working group for the PRF of TLS 1.2 (no RFC prints any).
    #[test]
    fn accepts_the_working_groups_prf_vectors() {
        let cases = [
            (
                Hash::Sha256,
                "9bbe436ba940f017b17652849a71db35",
                "a0ba9f936cda311827a6f796ffd5198c",
                "e3f229ba727be17b8d122620557cd453c2aab21d07c3d495329b52d4e61edb5a6b301791e90d35c9\
                 c9a46b4e14baf9af0fa022f7077def17abfd3797c0564bab4fbc91666e9def9b97fce34f796789ba\
                 a48082d122ee42c5a72e5a5110fff70187347b66",
            ),
            (
                Hash::Sha384,
                "b80b733d6ceefcdc71566ea48e5567df",
                "cd665cf6a8447dd6ff8b27555edb7465",
                "7b0c18e9ced410ed1804f2cfa34a336a1c14dffb4900bb5fd7942107e81c83cde9ca0faa60be9fe3\
                 4f82b1233c9146a0e534cb400fed2700884f9dc236f80edd8bfa961144c9e8d792eca722a7b32fc3\
                 d416d473ebc2c5fd4abfdad05d9184259b5bf8cd4d90fa0d31e2dec479e4f1a26066f2eea9a69236\
                 a3e52655c9e9aee691c8f3a26854308d5eaa3be85e0990703d73e56f",
            ),
        ];
        for (hash, secret, seed, output) in cases {
            let secret = tls_prf::Secret::new(hash.prf(), &unhex(secret)).unwrap();
            let output = unhex(output);
            let derived = secret.derive(b"test label", &unhex(seed), output.len()).unwrap();
            assert_eq!(derived.as_ref(), output);
        }
    }

    #[test]
    fn accepts_tls12_suites_with_the_lengths_they_need() {
        for suite in suite::all().filter(|suite| suite.version() == TLS12) {
            let keys = tls12_keys(suite.number(), &[1; 48], &[2; 32], &[3; 32]).unwrap();
            for side in &keys {
                assert!(suite.check(side.key(), side.iv(), side.mac_key()).is_ok());
            }
            assert_ne!(keys[0].key(), keys[1].key());
        }
    }

    #[test]
    fn refuses_wrong_lengths_and_unknown_suites() {
        assert_eq!(
            traffic_keys(0x1302, &[0; 32]).err(),
            Some(KeyError::SecretLength { expected: 48, actual: 32 })
        );
        assert_eq!(traffic_keys(0x1306, &[0; 32]).err(), Some(KeyError::UnsupportedSuite(0x1306)));
        assert_eq!(traffic_keys(0xc02f, &[0; 32]).err(), Some(KeyError::UnsupportedSuite(0xc02f)));
        assert_eq!(
            tls12_keys(0xc02f, &[0; 32], &[0; 32], &[0; 32]).err(),
            Some(KeyError::SecretLength { expected: 48, actual: 32 })
        );
        assert_eq!(
            tls12_keys(0x1301, &[0; 48], &[0; 32], &[0; 32]).err(),
            Some(KeyError::UnsupportedSuite(0x1301))
        );
    }
}
