//! rustls' key schedule, watched: where it derives the record key of a traffic secret, the key of
//! the private tag is derived from the same secret.
//!
//! rustls hands the AEAD key and IV to a suite, but not the secret. It does all three steps (key,
//! IV, cipher) one after the other on one thread, so the private-tag key waits in a thread-local
//! place, filed under the record key, until the cipher is set up. It is wiped when it is taken,
//! replaced, or its thread ends.
//!
//! Refuses to hand out a private-tag key for any record key but the last one of its suite.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hasher};

use mmtls_record::private_tag;
use rustls::Error;
use rustls::crypto::ActiveKeyExchange;
use rustls::crypto::hmac::Tag;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

thread_local! {
    static DERIVED: RefCell<Option<Derived>> = const { RefCell::new(None) };
    static LAST_SECRET: Cell<Option<(u64, u16)>> = const { Cell::new(None) };
}

/// Longest key of the suites, in bytes.
const MAX_KEY_LEN: usize = 32;

/// A record key and the private-tag key of the same secret.
#[derive(Zeroize, ZeroizeOnDrop)]
struct Derived {
    suite: u16,
    record_key: [u8; MAX_KEY_LEN],
    private: [u8; MAX_KEY_LEN],
    len: usize,
}

/// The private-tag key that belongs to a record key of `suite` that this thread has just derived.
pub fn take_private_key(suite: u16, record_key: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let derived = DERIVED.take()?;
    let fits = derived.suite == suite && derived.record_key.get(..derived.len)? == record_key;
    fits.then(|| derived.private.get(..derived.len).map(|key| Zeroizing::new(key.to_vec())))?
}

/// The suite of a secret of application traffic or early data that this thread has just derived.
/// rustls reports a secret to its key log right after deriving it, but without the suite. `None`
/// for secrets of other providers.
pub fn suite_of(secret: &[u8]) -> Option<u16> {
    LAST_SECRET.take().and_then(|(known, suite)| (known == fingerprint(secret)).then_some(suite))
}

/// Tells secrets apart without keeping them. Nobody gets to see it.
fn fingerprint(secret: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(secret);
    hasher.finish()
}

/// A suite's key schedule.
pub struct WatchingHkdf {
    pub suite: u16,
    /// Length of the private-tag key; `None` for a suite without one.
    pub key_len: Option<usize>,
    pub base: &'static dyn Hkdf,
}

impl WatchingHkdf {
    fn watch(&self, inner: Box<dyn HkdfExpander>) -> Box<dyn HkdfExpander> {
        Box::new(WatchingExpander { suite: self.suite, key_len: self.key_len, inner })
    }
}

impl Hkdf for WatchingHkdf {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        self.watch(self.base.extract_from_zero_ikm(salt))
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        self.watch(self.base.extract_from_secret(salt, secret))
    }

    fn extract_from_kx_shared_secret(
        &self,
        salt: Option<&[u8]>,
        kx: Box<dyn ActiveKeyExchange>,
        peer_pub_key: &[u8],
    ) -> Result<Box<dyn HkdfExpander>, Error> {
        let inner = self.base.extract_from_kx_shared_secret(salt, kx, peer_pub_key)?;
        Ok(self.watch(inner))
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        self.watch(self.base.expander_for_okm(okm))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> Tag {
        self.base.hmac_sign(key, message)
    }

    fn fips(&self) -> bool {
        self.base.fips()
    }
}

struct WatchingExpander {
    suite: u16,
    key_len: Option<usize>,
    inner: Box<dyn HkdfExpander>,
}

impl HkdfExpander for WatchingExpander {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        self.inner.expand_slice(info, output)?;
        let Some(len) = self.key_len else {
            return Ok(());
        };
        if label(info).as_deref() == Some(b"key") {
            let mut derived = Derived {
                suite: self.suite,
                record_key: [0; MAX_KEY_LEN],
                private: [0; MAX_KEY_LEN],
                len,
            };
            let too_short = || OutputLengthError;
            let key = output.get(..len).ok_or_else(too_short)?;
            derived.record_key.get_mut(..len).ok_or_else(too_short)?.copy_from_slice(key);
            let private = derived.private.get_mut(..len).ok_or_else(too_short)?;
            expand_private(self.inner.as_ref(), private)?;
            DERIVED.set(Some(derived));
        }
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        let block = self.inner.expand_block(info);
        let label = label(info);
        if matches!(label.as_deref(), Some(b"c e traffic" | b"c ap traffic" | b"s ap traffic")) {
            LAST_SECRET.set(Some((fingerprint(block.as_ref()), self.suite)));
        }
        block
    }

    fn hash_len(&self) -> usize {
        self.inner.hash_len()
    }
}

const PREFIX: &[u8] = b"tls13 ";

/// The label of an HkdfLabel (RFC 8446, section 7.1), whichever way it is cut into pieces.
fn label(info: &[&[u8]]) -> Option<Vec<u8>> {
    // uint16 length; opaque label<7..255>; opaque context<0..255>;
    let info = info.concat();
    let (len, rest) = info.get(2..)?.split_first()?;
    rest.get(..usize::from(*len))?.strip_prefix(PREFIX).map(<[u8]>::to_vec)
}

/// k2 = HKDF-Expand-Label(traffic secret, "mmtls ptag", "", key length).
fn expand_private(secret: &dyn HkdfExpander, key: &mut [u8]) -> Result<(), OutputLengthError> {
    let too_long = |_| OutputLengthError;
    let len = u16::try_from(key.len()).map_err(too_long)?.to_be_bytes();
    let label_len = u8::try_from(PREFIX.len() + private_tag::LABEL.len()).map_err(too_long)?;
    secret.expand_slice(&[&len, &[label_len], PREFIX, private_tag::LABEL, &[0]], key)
}
