//! The hello inside another one (Encrypted Client Hello, RFC 9849), opened with what its client has logged: `ECH_SECRET`, the
//! shared secret of the KEM, and `ECH_CONFIG`, the server's configuration (draft-ietf-tls-ech-keylogfile).
//!
//! Of what it opens only the random is used, by which the key log has the session's secrets. Refuses hellos that do not
//! authenticate, and to keep or print anything of them.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac};
use mmtls_tls::{EchConfig, SealedHello};
use zeroize::Zeroizing;

/// Bytes of the nonce of every AEAD here.
const NONCE_LEN: usize = 12;
/// Bytes of the longest key.
const MAX_KEY_LEN: usize = 32;
/// What every input of HPKE begins with (RFC 9180, section 4).
const VERSION: &[u8] = b"HPKE-v1";
/// HPKE without a pre-shared key and without authentication of the sender (RFC 9180, section 5).
const MODE_BASE: [u8; 1] = [0];

/// The random of the hello that is sealed in `client_hello`, the body of the first ClientHello on the wire. `None` where
/// there is none, where it needs another configuration or secret, and where its algorithms are unknown.
#[must_use]
pub fn inner_random(client_hello: &[u8], config: &[u8], shared_secret: &[u8]) -> Option<[u8; 32]> {
    let sealed = SealedHello::find(client_hello).ok()??;
    let EchConfig { id, kem } = EchConfig::parse(config).ok()?;
    if sealed.config_id != id {
        return None;
    }
    let suite = Suite::new(kem, sealed.kdf, sealed.aead)?;
    let keys = suite.keys(shared_secret, &[b"tls ech\0", config])?;
    let key = LessSafeKey::new(UnboundKey::new(suite.aead, keys.key()).ok()?);
    // What authenticates it is the hello around it with zeros in its place (RFC 9849, section 5.2).
    let mut around = client_hello.to_vec();
    let place = around.get_mut(sealed.payload)?;
    let mut inner = Zeroizing::new(place.to_vec());
    place.fill(0);
    // A second hello, behind a HelloRetryRequest, would have the next nonce; it has the random of the first one.
    let nonce = Nonce::assume_unique_for_key(keys.nonce);
    let hello = key.open_in_place(nonce, Aad::from(&around), &mut inner).ok()?;
    // Behind legacy_version.
    hello.get(2..34)?.try_into().ok()
}

/// The algorithms of a configuration and a hello for it.
struct Suite {
    /// `suite_id` of RFC 9180, section 5.1.
    id: [u8; 10],
    kdf: hkdf::Algorithm,
    hmac: hmac::Algorithm,
    aead: &'static aead::Algorithm,
}

/// What the first message is sealed with; wiped when dropped.
struct Keys {
    key: Zeroizing<[u8; MAX_KEY_LEN]>,
    key_len: usize,
    nonce: [u8; NONCE_LEN],
}

impl Keys {
    fn key(&self) -> &[u8] {
        &self.key[..self.key_len]
    }
}

/// Bytes that are derived.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Suite {
    /// `None` for numbers that are unknown; of the KEM nothing is needed but its number.
    fn new(kem: u16, kdf: u16, aead: u16) -> Option<Self> {
        let mut id = *b"HPKE\0\0\0\0\0\0";
        for (at, number) in [kem, kdf, aead].into_iter().enumerate() {
            id[4 + 2 * at..][..2].copy_from_slice(&number.to_be_bytes());
        }
        let (kdf, hmac) = match kdf {
            1 => (hkdf::HKDF_SHA256, hmac::HMAC_SHA256),
            2 => (hkdf::HKDF_SHA384, hmac::HMAC_SHA384),
            3 => (hkdf::HKDF_SHA512, hmac::HMAC_SHA512),
            _ => return None,
        };
        let aead = match aead {
            1 => &aead::AES_128_GCM,
            2 => &aead::AES_256_GCM,
            3 => &aead::CHACHA20_POLY1305,
            _ => return None,
        };
        Some(Self { id, kdf, hmac, aead })
    }

    /// The key schedule from the KEM's shared secret on (RFC 9180, section 5.1); `info` is in pieces.
    fn keys(&self, shared_secret: &[u8], info: &[&[u8]]) -> Option<Keys> {
        let psk_id_hash = self.extract(&[], b"psk_id_hash", &[]);
        let info_hash = self.extract(&[], b"info_hash", info);
        let secret = self.extract(shared_secret, b"secret", &[]);
        let secret = hkdf::Prk::new_less_safe(self.kdf, secret.as_ref());
        let context: [&[u8]; 3] = [&MODE_BASE, psk_id_hash.as_ref(), info_hash.as_ref()];
        let mut keys =
            Keys { key: Zeroizing::default(), key_len: self.aead.key_len(), nonce: [0; NONCE_LEN] };
        self.expand(&secret, b"key", context, keys.key.get_mut(..keys.key_len)?)?;
        self.expand(&secret, b"base_nonce", context, &mut keys.nonce)?;
        Some(keys)
    }

    /// `LabeledExtract`.
    fn extract(&self, salt: &[u8], label: &[u8], input: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(self.hmac, salt));
        for part in [VERSION, &self.id, label].iter().chain(input) {
            context.update(part);
        }
        context.sign()
    }

    /// `LabeledExpand`.
    fn expand(
        &self,
        secret: &hkdf::Prk,
        label: &[u8],
        [mode, psk_id_hash, info_hash]: [&[u8]; 3],
        out: &mut [u8],
    ) -> Option<()> {
        let length = u16::try_from(out.len()).ok()?.to_be_bytes();
        let info = [&length, VERSION, &self.id, label, mode, psk_id_hash, info_hash];
        secret.expand(&info, Length(out.len())).ok()?.fill(out).ok()
    }
}

#[cfg(test)]
mod tests;
