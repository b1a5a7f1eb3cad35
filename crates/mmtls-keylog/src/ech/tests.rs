//! Tests on vectors of RFC 9180, and on hellos that rustls makes and its HPKE opens.

use std::sync::Arc;

use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey};
use rustls::client::{EchConfig as ClientEch, EchMode};
use rustls::crypto::aws_lc_rs::{default_provider, hpke::ALL_SUPPORTED_SUITES};
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    base16ct::lower::decode_vec(hex).unwrap()
}

/// RFC 9180, sections A.1.1, A.2.1, A.4.1 and A.6.1: what the key schedule begins with and what comes of it.
#[test]
fn accepts_the_vectors_of_the_key_schedule() {
    let info = bytes("4f6465206f6e2061204772656369616e2055726e");
    for (suite, secret, key, nonce) in [
        (
            [0x20, 1, 1],
            "fe0e18c9f024ce43799ae393c7e8fe8fce9d218875e8227b0187c04e7d2ea1fc",
            "4531685d41d65f03dc48f6b8302c05b0",
            "56d890e5accaaf011cff4b7d",
        ),
        (
            [0x20, 1, 3],
            "0bbe78490412b4bbea4812666f7916932b828bba79942424abb65244930d69a7",
            "ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91",
            "5c4d98150661b848853b547f",
        ),
        (
            [0x10, 3, 1],
            "02f584736390fc93f5b4ad039826a3fa08e9911bd1215a3db8e8791ba533cafd",
            "090ca96e5f8aa02b69fac360da50ddf9",
            "9c995e621bf9a20c5ca45546",
        ),
        (
            [0x12, 3, 2],
            "776ab421302f6eff7d7cb5cb1adaea0cd50872c71c2d63c30c4f1d5e43653336\
             fef33b103c67e7a98add2d3b66e2fda95b5b2a667aa9dac7e59cc1d46d30e818",
            "751e346ce8f0ddb2305c8a2a85c70d5cf559c53093656be636b9406d4d7d1b70",
            "55ff7a7d739c69f44b25447b",
        ),
    ] {
        let [kem, kdf, aead] = suite;
        let keys = Suite::new(kem, kdf, aead).unwrap();
        // In pieces, as it is used.
        let keys = keys.keys(&bytes(secret), &[&info[..3], &info[3..]]).unwrap();
        assert_eq!(keys.key(), bytes(key), "{suite:?}");
        assert_eq!(keys.nonce[..], bytes(nonce), "{suite:?}");
    }
    assert!(Suite::new(0x20, 4, 1).is_none() && Suite::new(0x20, 1, 0xffff).is_none());
}

#[test]
fn accepts_the_hello_of_another_implementation() {
    use mmtls_testkit::ech::{CONFIG, INNER_RANDOM, SECRET, hello};
    let found = inner_random(&hello(), &bytes(CONFIG), &bytes(SECRET));
    assert_eq!(found, Some(INNER_RANDOM));
}

/// What a client has logged, and has sent.
struct Client {
    hello: Vec<u8>,
    config: Vec<u8>,
    secret: Vec<u8>,
    inner_random: [u8; 32],
}

fn vector(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// A server's configuration for these algorithms.
fn config(public: &[u8], suite: &dyn Hpke) -> Vec<u8> {
    let numbers = suite.suite();
    let (kdf, aead) = (u16::from(numbers.sym.kdf_id), u16::from(numbers.sym.aead_id));
    let contents = [
        &[7][..],
        &u16::from(numbers.kem).to_be_bytes(),
        &vector(public),
        &vector(&[kdf.to_be_bytes(), aead.to_be_bytes()].concat()),
        &[32, 11],
        b"public.test",
        &[0, 0],
    ];
    [&[0xfe, 0x0d][..], &vector(&contents.concat())].concat()
}

/// The shared secret as the owner of the private key finds it (RFC 9180, section 4.1).
fn decapsulate(kem: u16, private: &[u8], public: &[u8], enc: &[u8]) -> Vec<u8> {
    let (curve, kdf, hmac) = match kem {
        0x10 => (&agreement::ECDH_P256, hkdf::HKDF_SHA256, hmac::HMAC_SHA256),
        0x11 => (&agreement::ECDH_P384, hkdf::HKDF_SHA384, hmac::HMAC_SHA384),
        0x12 => (&agreement::ECDH_P521, hkdf::HKDF_SHA512, hmac::HMAC_SHA512),
        _ => (&agreement::X25519, hkdf::HKDF_SHA256, hmac::HMAC_SHA256),
    };
    let key = PrivateKey::from_private_key(curve, private).unwrap();
    let id = [&b"KEM"[..], &kem.to_be_bytes()].concat();
    agreement::agree(&key, UnparsedPublicKey::new(curve, enc), (), |point| {
        let input = [VERSION, &id, b"eae_prk", point].concat();
        let extracted = hmac::sign(&hmac::Key::new(hmac, &[]), &input);
        let prk = hkdf::Prk::new_less_safe(kdf, extracted.as_ref());
        let mut secret = vec![0; extracted.as_ref().len()];
        let length = u16::try_from(secret.len()).unwrap().to_be_bytes();
        let info = [&length, VERSION, &id, b"shared_secret", enc, public];
        prk.expand(&info, Length(secret.len())).unwrap().fill(&mut secret).unwrap();
        Ok(secret)
    })
    .unwrap()
}

fn client(suite: &'static dyn Hpke) -> Client {
    let (public, private) = suite.generate_key_pair().unwrap();
    let config = config(&public.0, suite);
    let ech = ClientEch::new(vector(&config).into(), &[suite]).unwrap();
    let settings = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_ech(EchMode::Enable(ech))
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = "server.test".try_into().unwrap();
    let mut connection = ClientConnection::new(Arc::new(settings), name).unwrap();
    let mut record = Vec::new();
    connection.write_tls(&mut record).unwrap();
    // Behind the headers of record and message.
    let hello = record[9..].to_vec();
    let sealed = SealedHello::find(&hello).unwrap().unwrap();
    let enc_end = sealed.payload.start - 2;
    let enc = hello[enc_end - public.0.len()..enc_end].to_vec();
    let secret = decapsulate(suite.suite().kem.into(), private.secret_bytes(), &public.0, &enc);
    let mut around = hello.clone();
    around[sealed.payload.clone()].fill(0);
    let info = [b"tls ech\0", &config[..]].concat();
    let payload = &hello[sealed.payload];
    let inner = suite.open(&EncapsulatedSecret(enc), &info, &around, payload, &private).unwrap();
    let inner_random = inner[2..34].try_into().unwrap();
    Client { hello, config, secret, inner_random }
}

#[test]
fn accepts_hellos_of_every_suite_of_rustls() {
    assert!(ALL_SUPPORTED_SUITES.len() >= 12);
    for suite in ALL_SUPPORTED_SUITES {
        let Client { hello, config, secret, inner_random } = client(*suite);
        assert_ne!(hello[2..34], inner_random);
        let found = super::inner_random(&hello, &config, &secret);
        assert_eq!(found, Some(inner_random), "{:?}", suite.suite());
    }
}

#[test]
fn refuses_hellos_configurations_and_secrets_of_others() {
    let suite = ALL_SUPPORTED_SUITES[0];
    let [own, other] = [client(suite), client(suite)];
    let open = |hello: &[u8], config: &[u8], secret: &[u8]| inner_random(hello, config, secret);
    assert!(open(&own.hello, &own.config, &own.secret).is_some());
    assert_eq!(open(&own.hello, &other.config, &own.secret), None);
    assert_eq!(open(&own.hello, &own.config, &other.secret), None);
    assert_eq!(open(&other.hello, &own.config, &own.secret), None);
    assert_eq!(open(&own.hello, &own.config, &[]), None);
    // Every byte of the hello is authenticated, or the extension is another one.
    for at in 0..own.hello.len() {
        let mut hello = own.hello.clone();
        hello[at] ^= 1;
        assert_eq!(open(&hello, &own.config, &own.secret), None, "{at}");
        assert_eq!(open(&own.hello[..at], &own.config, &own.secret), None, "{at}");
    }
    for at in 0..own.config.len() {
        let mut config = own.config.clone();
        config[at] ^= 1;
        assert_eq!(open(&own.hello, &config, &own.secret), None, "{at}");
    }
}
