//! rustls' key schedule, watched: where it derives the record key of a traffic secret, the key of
//! the private tag is derived from the same secret.
//!
//! rustls hands the AEAD key and IV to a suite, but not the secret. It does all three steps (key,
//! IV, cipher) one after the other on one thread, so the private-tag key waits in a thread-local
//! variable, filed under the record key, until the cipher is set up. It is wiped when it is taken,
//! replaced, or its thread ends.
//!
//! Refuses to hand out a private-tag key for any record key but the last one of its suite.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hasher};

use mmtls_record::private_tag;
use mmtls_record::suite::{self, TLS13};
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
    record_key_len: usize,
    private: [u8; MAX_KEY_LEN],
    private_len: usize,
}

impl Derived {
    fn private_key(&self, suite: u16, record_key: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let fits = self.suite == suite && self.record_key.get(..self.record_key_len)? == record_key;
        fits.then(|| self.private.get(..self.private_len).map(|key| Zeroizing::new(key.to_vec())))?
    }

    fn fill(&mut self, key: &[u8], secret: &dyn HkdfExpander) -> Result<(), OutputLengthError> {
        let too_short = || OutputLengthError;
        let len = self.record_key_len;
        // rustls derives as many bytes as any suite needs, and takes what this one does.
        let key = key.get(..len).ok_or_else(too_short)?;
        self.record_key.get_mut(..len).ok_or_else(too_short)?.copy_from_slice(key);
        expand_private(secret, self.private.get_mut(..self.private_len).ok_or_else(too_short)?)
    }
}

/// The private-tag key that belongs to a record key of `suite` that this thread has just derived.
pub fn take_private_key(suite: u16, record_key: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    DERIVED.with_borrow_mut(|slot| {
        let key = slot.as_ref().and_then(|derived| derived.private_key(suite, record_key));
        // Where it is: moved out, it would leave a copy behind that nobody wipes.
        slot.zeroize();
        key
    })
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
    pub base: &'static dyn Hkdf,
}

impl WatchingHkdf {
    fn watch(&self, inner: Box<dyn HkdfExpander>) -> Box<dyn HkdfExpander> {
        Box::new(WatchingExpander { suite: self.suite, inner })
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
    inner: Box<dyn HkdfExpander>,
}

impl HkdfExpander for WatchingExpander {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        self.inner.expand_slice(info, output)?;
        if label(info).as_deref() == Some(b"key")
            && let Ok(found) = suite::find(TLS13, self.suite)
            && let Ok(private_len) = private_tag::key_len(self.suite)
        {
            DERIVED.with_borrow_mut(|slot| {
                // In place, for the same reason as it is taken there.
                slot.zeroize();
                let derived = slot.insert(Derived {
                    suite: self.suite,
                    record_key: [0; MAX_KEY_LEN],
                    record_key_len: found.cipher().key_len(),
                    private: [0; MAX_KEY_LEN],
                    private_len,
                });
                let filled = derived.fill(output, self.inner.as_ref());
                if filled.is_err() {
                    slot.zeroize();
                }
                filled
            })?;
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

/// k2 = HKDF-Expand-Label(traffic secret, "mmtls ptag", "", bytes of k2).
fn expand_private(secret: &dyn HkdfExpander, key: &mut [u8]) -> Result<(), OutputLengthError> {
    let too_long = |_| OutputLengthError;
    let len = u16::try_from(key.len()).map_err(too_long)?.to_be_bytes();
    let label_len = u8::try_from(PREFIX.len() + private_tag::LABEL.len()).map_err(too_long)?;
    secret.expand_slice(&[&len, &[label_len], PREFIX, private_tag::LABEL, &[0]], key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;

    #[test]
    fn refuses_to_hand_out_a_private_key_twice_or_for_another_record_key() {
        let base = TLS13_AES_128_GCM_SHA256.tls13().unwrap().hkdf_provider;
        // The keys are as long as each other, or not.
        for (suite, record_len, private_len) in
            [(0xff31, 16, 16), (0xff32, 32, 16), (0xff33, 32, 32)]
        {
            let secret = WatchingHkdf { suite, base }.extract_from_zero_ikm(None);
            let info: [&[u8]; 5] = [&[0, record_len as u8], &[9], PREFIX, b"key", &[0]];
            // rustls asks for as much as any suite needs.
            let mut key = [0; MAX_KEY_LEN];
            secret.expand_slice(&info, &mut key).unwrap();
            let taken = take_private_key(suite, &key[..record_len]).unwrap();
            assert_eq!(taken.len(), private_len);
            assert!(DERIVED.with_borrow(Option::is_none));
            assert!(take_private_key(suite, &key[..record_len]).is_none());
            let wrong = [1; MAX_KEY_LEN];
            for (suite, record_key) in [
                (suite, &wrong[..record_len]),
                (suite, &key[..record_len - 1]),
                (suite, &[]),
                (suite ^ 7, &key[..record_len]),
            ] {
                secret.expand_slice(&info, &mut key.clone()).unwrap();
                assert!(take_private_key(suite, record_key).is_none());
                assert!(take_private_key(suite ^ 7, &key[..record_len]).is_none());
            }
        }
    }
}
