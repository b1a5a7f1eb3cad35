//! What a suite needs: cipher, hash, and the lengths of its keys. Refuses key material of other lengths.

use aws_lc_rs::{hkdf, tls_prf};
use mmtls_tls::CipherSuite;

use crate::KeyError;

/// TLS 1.2 on the wire (RFC 5246, appendix A.1).
pub const TLS12: u16 = 0x0303;

/// TLS 1.3 on the wire (RFC 8446, section 4.1.3).
pub const TLS13: u16 = 0x0304;

/// IV length of every TLS 1.3 suite in bytes (RFC 8446, section 5.3).
pub const IV_LEN: usize = 12;

/// Salt of the GCM and CCM suites of TLS 1.2 in bytes (RFC 5288, section 3).
pub(crate) const SALT_LEN: usize = 4;

/// Cipher and MAC of a suite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode.
    Aes128Gcm,
    /// AES-256 in Galois/counter mode.
    Aes256Gcm,
    /// AES-128 in CCM mode with a tag of 16 bytes.
    Aes128Ccm,
    /// AES-256 in CCM mode with a tag of 16 bytes.
    Aes256Ccm,
    /// AES-128 in CCM mode with a tag of 8 bytes.
    Aes128Ccm8,
    /// AES-256 in CCM mode with a tag of 8 bytes.
    Aes256Ccm8,
    /// ChaCha20 with Poly1305.
    ChaCha20Poly1305,
    /// AES-128 in CBC mode with HMAC-SHA-1.
    Aes128CbcSha1,
    /// AES-256 in CBC mode with HMAC-SHA-1.
    Aes256CbcSha1,
    /// AES-128 in CBC mode with HMAC-SHA-256.
    Aes128CbcSha256,
    /// AES-256 in CBC mode with HMAC-SHA-256.
    Aes256CbcSha256,
    /// AES-256 in CBC mode with HMAC-SHA-384.
    Aes256CbcSha384,
}

impl Cipher {
    /// Bytes of the encryption key.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm
            | Self::Aes128Ccm
            | Self::Aes128Ccm8
            | Self::Aes128CbcSha1
            | Self::Aes128CbcSha256 => 16,
            _ => 32,
        }
    }

    /// Bytes of the HMAC key, which is as long as the MAC itself; 0 for the AEAD ciphers.
    #[must_use]
    pub const fn mac_key_len(self) -> usize {
        match self {
            Self::Aes128CbcSha1 | Self::Aes256CbcSha1 => 20,
            Self::Aes128CbcSha256 | Self::Aes256CbcSha256 => 32,
            Self::Aes256CbcSha384 => 48,
            _ => 0,
        }
    }

    /// Whether the cipher is CBC with a separate MAC, which only TLS 1.2 has.
    #[must_use]
    pub const fn is_cbc(self) -> bool {
        self.mac_key_len() != 0
    }
}

/// The hash of a suite's key schedule: of the PRF in TLS 1.2, of HKDF in TLS 1.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
}

impl Hash {
    /// Bytes of the hash, and of a TLS 1.3 secret.
    #[must_use]
    pub const fn output_len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    pub(crate) fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Sha256 => hkdf::HKDF_SHA256,
            Self::Sha384 => hkdf::HKDF_SHA384,
        }
    }

    pub(crate) fn prf(self) -> &'static tls_prf::Algorithm {
        match self {
            Self::Sha256 => &tls_prf::P_SHA256,
            Self::Sha384 => &tls_prf::P_SHA384,
        }
    }
}

/// One suite of TLS 1.2 or 1.3.
#[derive(PartialEq, Eq, Debug)]
pub struct Suite {
    pub(super) number: u16,
    pub(super) name: &'static str,
    pub(super) cipher: Cipher,
    pub(super) hash: Hash,
}

impl Suite {
    /// The registered number.
    #[must_use]
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// The registered name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The only version the suite belongs to, of those built here: [`TLS12`] or [`TLS13`].
    #[must_use]
    pub const fn version(&self) -> u16 {
        // TLS 1.3 suites name no key exchange; all of them are numbered in these blocks.
        if matches!(self.number >> 8, 0x13 | 0xff) { TLS13 } else { TLS12 }
    }

    /// Whether every record ends with a second tag whose key only the endpoints have
    /// ([`crate::private_tag`]).
    #[must_use]
    pub const fn has_private_tag(&self) -> bool {
        CipherSuite(self.number).has_private_tag()
    }

    /// Cipher and MAC.
    #[must_use]
    pub const fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The hash of the key schedule.
    #[must_use]
    pub const fn hash(&self) -> Hash {
        self.hash
    }

    /// Bytes of the IV that the key schedule yields: 12 in TLS 1.3 and with ChaCha20, 4 for GCM
    /// and CCM in TLS 1.2, 0 for CBC, whose records carry all of theirs.
    #[must_use]
    pub const fn iv_len(&self) -> usize {
        match self.cipher {
            Cipher::ChaCha20Poly1305 => IV_LEN,
            _ if self.version() == TLS13 => IV_LEN,
            cipher if cipher.is_cbc() => 0,
            _ => SALT_LEN,
        }
    }

    /// Checks lengths of key material against what the suite needs.
    pub(crate) fn check(&self, key: &[u8], iv: &[u8], mac_key: &[u8]) -> Result<(), KeyError> {
        let (expected, actual) = (self.cipher.key_len(), key.len());
        if actual != expected {
            return Err(KeyError::KeyLength { expected, actual });
        }
        let (expected, actual) = (self.iv_len(), iv.len());
        if actual != expected {
            return Err(KeyError::IvLength { expected, actual });
        }
        let (expected, actual) = (self.cipher.mac_key_len(), mac_key.len());
        if actual != expected {
            return Err(KeyError::MacKeyLength { expected, actual });
        }
        Ok(())
    }
}
