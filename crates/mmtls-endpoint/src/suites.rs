//! The suites as rustls sees them. Hashes and key schedules are those of rustls' own suites.
//!
//! Refuses nothing by itself: what is negotiated is rustls' and the peer's choice.

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{CipherSuite, CipherSuiteCommon, SupportedCipherSuite, Tls13CipherSuite};

use crate::hkdf::WatchingHkdf;
use crate::protection::PrivateTagAead;

/// Records that one key may protect: AES-GCM's bound for an attacker's advantage of 2^-60 with
/// records of full length (RFC 8446, section 5.5; `docs/private-tag.md`, section 7).
const GCM_RECORDS: u64 = 1 << 24;

/// The same for CCM, which calls the block cipher twice as often for as many bytes, and whose
/// advantage grows with the square of that (RFC 9001, appendix B.2): rounded down to a power.
const CCM_RECORDS: u64 = 1 << 23;

/// A suite with a private tag, and hash and key schedule of a suite that rustls has.
macro_rules! private_tag_suite {
    ($name:ident, $number:literal, $key_len:literal, $records:expr, $base:ident) => {
        static $name: Tls13CipherSuite = {
            let base = tls13(&$base);
            Tls13CipherSuite {
                common: CipherSuiteCommon {
                    suite: CipherSuite::Unknown($number),
                    hash_provider: base.common.hash_provider,
                    confidentiality_limit: $records,
                },
                hkdf_provider: {
                    static HKDF: WatchingHkdf =
                        WatchingHkdf { suite: $number, base: tls13(&$base).hkdf_provider };
                    &HKDF
                },
                aead_alg: &PrivateTagAead { suite: $number, key_len: $key_len },
                quic: None,
            }
        };
    };
}

private_tag_suite!(AES_256_GCM, 0xff32, 32, GCM_RECORDS, TLS13_AES_256_GCM_SHA384);
private_tag_suite!(AES_128_GCM, 0xff31, 16, GCM_RECORDS, TLS13_AES_128_GCM_SHA256);
private_tag_suite!(CHACHA20, 0xff33, 32, u64::MAX, TLS13_CHACHA20_POLY1305_SHA256);
private_tag_suite!(AES_128_CCM, 0xff34, 16, CCM_RECORDS, TLS13_AES_128_GCM_SHA256);
private_tag_suite!(AES_128_CCM_8, 0xff35, 16, CCM_RECORDS, TLS13_AES_128_GCM_SHA256);

/// A suite that rustls has, watched so that [`crate::Sharing`] learns which suite a connection
/// has. Everything else about it is rustls' own.
macro_rules! watched_suite {
    ($name:ident, $number:literal, $base:ident) => {
        static $name: Tls13CipherSuite = {
            let base = tls13(&$base);
            Tls13CipherSuite {
                common: CipherSuiteCommon {
                    suite: base.common.suite,
                    hash_provider: base.common.hash_provider,
                    confidentiality_limit: base.common.confidentiality_limit,
                },
                hkdf_provider: {
                    static HKDF: WatchingHkdf =
                        WatchingHkdf { suite: $number, base: tls13(&$base).hkdf_provider };
                    &HKDF
                },
                aead_alg: base.aead_alg,
                quic: base.quic,
            }
        };
    };
}

watched_suite!(ORDINARY_AES_256_GCM, 0x1302, TLS13_AES_256_GCM_SHA384);
watched_suite!(ORDINARY_AES_128_GCM, 0x1301, TLS13_AES_128_GCM_SHA256);
watched_suite!(ORDINARY_CHACHA20, 0x1303, TLS13_CHACHA20_POLY1305_SHA256);

/// The suites with a private tag in the order in which [`provider`] offers them.
pub static PRIVATE_TAG_SUITES: [SupportedCipherSuite; 5] = [
    SupportedCipherSuite::Tls13(&AES_256_GCM),
    SupportedCipherSuite::Tls13(&AES_128_GCM),
    SupportedCipherSuite::Tls13(&CHACHA20),
    SupportedCipherSuite::Tls13(&AES_128_CCM),
    SupportedCipherSuite::Tls13(&AES_128_CCM_8),
];

/// rustls' provider on aws-lc-rs with the private-tag suites in front of its own.
#[must_use]
pub fn provider() -> CryptoProvider {
    let base = default_provider();
    let ordinary = base.cipher_suites.iter().map(|&suite| watched(suite));
    let cipher_suites = PRIVATE_TAG_SUITES.into_iter().chain(ordinary).collect();
    CryptoProvider { cipher_suites, ..base }
}

/// Whether records of this suite carry a private tag: for
/// `connection.negotiated_cipher_suite()`.
#[must_use]
pub fn has_private_tag(suite: SupportedCipherSuite) -> bool {
    mmtls_record::suite::has_private_tag(suite.suite().into())
}

/// rustls' suites of TLS 1.3 with our key schedule around theirs; others as they are.
fn watched(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    [&ORDINARY_AES_256_GCM, &ORDINARY_AES_128_GCM, &ORDINARY_CHACHA20]
        .into_iter()
        .map(SupportedCipherSuite::Tls13)
        .find(|ours| ours.suite() == suite.suite())
        .unwrap_or(suite)
}

const fn tls13(suite: &SupportedCipherSuite) -> &'static Tls13CipherSuite {
    match suite.tls13() {
        Some(suite) => suite,
        // Only in initialisers, so the compiler finds it.
        None => panic!("not a suite of TLS 1.3"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_our_suites_in_front_of_the_ordinary_ones() {
        let provider = provider();
        let numbers: Vec<u16> =
            provider.cipher_suites.iter().map(|suite| suite.suite().into()).collect();
        assert_eq!(numbers[..5], mmtls_record::private_tag::SUITES);
        assert_eq!(numbers.len(), 5 + default_provider().cipher_suites.len());
        for suite in provider.cipher_suites {
            let number = suite.suite().into();
            assert_eq!(has_private_tag(suite), number >= 0xff00);
            let found = mmtls_record::suite::find(0x0304, number).unwrap();
            let tls13 = suite.tls13().unwrap();
            assert_eq!(tls13.aead_alg.key_len(), found.cipher().key_len());
            assert_eq!(tls13.common.hash_provider.output_len(), found.hash().output_len());
            assert_eq!(tls13.quic.is_some(), number < 0xff00);
        }
    }
}
