//! Every TLS 1.2 suite against [`Sealer`], and records that no honest sealer makes.

use aws_lc_rs::cipher::EncryptingKey;

use super::cbc::{BLOCK_LEN, Mac, encrypt, encrypting_key};
use super::*;
use crate::aead::AeadKey;
use crate::key_schedule::{RecordKeys, tls12_keys};
use crate::suite::{self, TLS12};
use crate::{Sealer, open_record};

/// One suite per cipher, with each way of authenticating that it has.
const CASES: [(u16, bool); 17] = [
    (0xc02f, false),
    (0xc030, false),
    (0xc09c, false),
    (0xc09d, false),
    (0xc0ae, false),
    (0xc0af, false),
    (0xcca8, false),
    (0x002f, false),
    (0x0035, false),
    (0x003c, false),
    (0x003d, false),
    (0xc028, false),
    (0x002f, true),
    (0x0035, true),
    (0x003c, true),
    (0x003d, true),
    (0xc028, true),
];

fn keys(suite: u16) -> RecordKeys {
    let [keys, _] = tls12_keys(suite, &[1; 48], &[2; 32], &[3; 32]).unwrap();
    keys
}

fn opener(suite: u16, encrypt_then_mac: bool) -> Box<dyn OpenRecord> {
    let keys = keys(suite);
    let mut opener = open_record(TLS12, suite, keys.key(), keys.iv(), keys.mac_key()).unwrap();
    if encrypt_then_mac {
        opener.set_encrypt_then_mac();
    }
    opener
}

fn pair(suite: u16, encrypt_then_mac: bool) -> (Sealer, Box<dyn OpenRecord>) {
    let keys = keys(suite);
    let mut sealer = Sealer::new(TLS12, suite, keys.key(), keys.iv(), keys.mac_key()).unwrap();
    if encrypt_then_mac {
        sealer.set_encrypt_then_mac();
    }
    (sealer, opener(suite, encrypt_then_mac))
}

fn open(
    opener: &dyn OpenRecord,
    sequence: u64,
    record: &[u8],
) -> Result<(ContentType, Vec<u8>), OpenError> {
    let before = record.to_vec();
    let mut out = vec![0xee; record.len() - 5];
    let opened = opener.open(sequence, record[..5].try_into().unwrap(), &record[5..], &mut out)?;
    assert_eq!(record, before, "the packet was modified");
    out.truncate(opened.len);
    Ok((opened.content_type, out))
}

#[test]
fn accepts_every_suite_of_the_table() {
    for suite in suite::all().filter(|suite| suite.version() == TLS12) {
        for encrypt_then_mac in [false, true] {
            let (sealer, opener) = pair(suite.number(), encrypt_then_mac);
            for len in [0, 1, 15, 16, 17, 300, 16384] {
                let content: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let record = sealer.seal(7, ContentType::ALERT, &content, 0).unwrap();
                let opened = open(opener.as_ref(), 7, &record);
                assert_eq!(opened, Ok((ContentType::ALERT, content)), "{}", suite.name());
                // The sealer pads up to the block; a CBC suite cannot tell by how much.
                let announced = opener.content_len(record.len() - 5);
                let padding = if suite.cipher().is_cbc() { 15 } else { 0 };
                assert!((len..=len + padding).contains(&announced), "{}", suite.name());
            }
        }
    }
}

#[test]
fn accepts_every_length_of_padding() {
    for (suite, encrypt_then_mac) in [(0x002f, false), (0x002f, true), (0xc028, false)] {
        let (sealer, opener) = pair(suite, encrypt_then_mac);
        for padding in 0..=240 {
            let record = sealer.seal(1, ContentType::APPLICATION_DATA, b"x", padding).unwrap();
            let opened = open(opener.as_ref(), 1, &record);
            assert_eq!(opened, Ok((ContentType::APPLICATION_DATA, b"x".to_vec())), "{padding}");
        }
        assert_eq!(sealer.seal(1, ContentType::APPLICATION_DATA, b"x", 256), None);
    }
    assert_eq!(pair(0xc02f, false).0.seal(1, ContentType::ALERT, b"x", 1), None);
}

#[test]
fn refuses_any_changed_byte_and_other_sequence_numbers() {
    for (suite, encrypt_then_mac) in CASES {
        let (sealer, opener) = pair(suite, encrypt_then_mac);
        let record = sealer
            .seal(5, ContentType::HANDSHAKE, b"finished", 40)
            .or_else(|| sealer.seal(5, ContentType::HANDSHAKE, b"finished", 0));
        let record = record.unwrap();
        assert!(open(opener.as_ref(), 5, &record).is_ok());
        for at in 0..record.len() {
            for bit in 0..8 {
                let mut changed = record.clone();
                changed[at] ^= 1 << bit;
                assert!(open(opener.as_ref(), 5, &changed).is_err(), "{suite:#x} byte {at}");
            }
        }
        for sequence in [0, 4, 6, 5 << 32, u64::MAX] {
            let opened = open(opener.as_ref(), sequence, &record);
            assert_eq!(opened, Err(OpenError::Authentication));
        }
    }
}

#[test]
fn refuses_truncated_fragments_and_small_buffers() {
    for (suite, encrypt_then_mac) in CASES {
        let (sealer, opener) = pair(suite, encrypt_then_mac);
        let record = sealer.seal(0, ContentType::HANDSHAKE, &[4; 40], 0).unwrap();
        for len in 0..record.len() - 5 {
            let header = [22, 3, 3, 0, len as u8];
            let fragment = &record[5..5 + len];
            let mut out = vec![0; record.len()];
            assert!(opener.open(0, header, fragment, &mut out).is_err(), "{suite:#x} {len}");
        }
        let header = record[..5].try_into().unwrap();
        let opened = opener.open(0, header, &record[5..], &mut [0; 39]);
        assert_eq!(opened, Err(OpenError::Malformed));
    }
}

#[test]
fn refuses_the_other_order_of_mac_and_encryption() {
    for suite in [0x002f, 0x003d, 0xc028] {
        let (first_mac, opens_first_mac) = pair(suite, false);
        let (first_encrypt, opens_first_encrypt) = pair(suite, true);
        let record = first_mac.seal(0, ContentType::HANDSHAKE, b"hello", 0).unwrap();
        assert!(open(opens_first_mac.as_ref(), 0, &record).is_ok());
        assert!(open(opens_first_encrypt.as_ref(), 0, &record).is_err());
        let record = first_encrypt.seal(0, ContentType::HANDSHAKE, b"hello", 0).unwrap();
        assert!(open(opens_first_encrypt.as_ref(), 0, &record).is_ok());
        assert!(open(opens_first_mac.as_ref(), 0, &record).is_err());
    }
}

/// Seals what `plaintext` makes of the MAC over `content`, so that padding can be wrong.
struct Forger {
    key: EncryptingKey,
    mac: Mac,
}

impl Forger {
    fn new(suite: u16) -> Self {
        let keys = keys(suite);
        let cipher = suite::find(TLS12, suite).unwrap().cipher();
        Self {
            key: encrypting_key(keys.key()).unwrap(),
            mac: Mac::new(cipher, keys.mac_key()).unwrap(),
        }
    }

    fn record(fragment: &[u8]) -> Vec<u8> {
        let len = u16::try_from(fragment.len()).unwrap().to_be_bytes();
        [&[23, 3, 3], &len[..], fragment].concat()
    }

    fn encrypt(&self, plaintext: &[u8]) -> Vec<u8> {
        let mut blocks = plaintext.to_vec();
        encrypt(&self.key, [6; BLOCK_LEN], &mut blocks).unwrap();
        [&[6; BLOCK_LEN], &blocks[..]].concat()
    }

    fn mac_then_encrypt(&self, content: &[u8], padding: &[u8]) -> Vec<u8> {
        let additional = additional_data(0, [23, 3, 3, 0, 0], content.len()).unwrap();
        let mac = self.mac.sign(&additional, content);
        Self::record(&self.encrypt(&[content, mac.as_ref(), padding].concat()))
    }

    fn encrypt_then_mac(&self, content: &[u8], padding: &[u8]) -> Vec<u8> {
        let encrypted = self.encrypt(&[content, padding].concat());
        let additional = additional_data(0, [23, 3, 3, 0, 0], encrypted.len()).unwrap();
        let mac = self.mac.sign(&additional, &encrypted);
        Self::record(&[&encrypted[..], mac.as_ref()].concat())
    }
}

/// All padding bytes count, also those that a MAC does not cover.
#[test]
fn refuses_wrong_padding_bytes_under_a_right_mac() {
    let forger = Forger::new(0x002f);
    let (first_mac, first_encrypt) = (opener(0x002f, false), opener(0x002f, true));
    // 12 bytes of content and 20 of MAC leave a whole block and more for padding.
    let right = [31; 32];
    let record = forger.mac_then_encrypt(&[7; 12], &right);
    assert_eq!(open(first_mac.as_ref(), 0, &record).unwrap().1, [7; 12]);
    let record = forger.encrypt_then_mac(&[7; 16], &right);
    assert_eq!(open(first_encrypt.as_ref(), 0, &record).unwrap().1, [7; 16]);
    for at in 0..right.len() {
        let mut wrong = right;
        wrong[at] ^= 1;
        let record = forger.mac_then_encrypt(&[7; 12], &wrong);
        assert_eq!(open(first_mac.as_ref(), 0, &record), Err(OpenError::Authentication));
        let record = forger.encrypt_then_mac(&[7; 16], &wrong);
        assert_eq!(open(first_encrypt.as_ref(), 0, &record), Err(OpenError::Malformed));
    }
}

#[test]
fn refuses_padding_that_does_not_fit() {
    let forger = Forger::new(0x002f);
    let (first_mac, first_encrypt) = (opener(0x002f, false), opener(0x002f, true));
    // Padding that would reach into the MAC or before the fragment.
    for padding_length in [12, 31, 32, 255] {
        let record = forger.mac_then_encrypt(&[], &[padding_length; 12]);
        assert_eq!(open(first_mac.as_ref(), 0, &record), Err(OpenError::Authentication));
    }
    let record = forger.mac_then_encrypt(&[], &[11; 12]);
    assert_eq!(open(first_mac.as_ref(), 0, &record).unwrap().1, []);
    for padding_length in [16, 255] {
        let record = forger.encrypt_then_mac(&[], &[padding_length; 16]);
        assert_eq!(open(first_encrypt.as_ref(), 0, &record), Err(OpenError::Malformed));
    }
    let record = forger.encrypt_then_mac(&[], &[15; 16]);
    assert_eq!(open(first_encrypt.as_ref(), 0, &record).unwrap().1, []);
}

#[test]
fn refuses_to_leave_unverified_plaintext() {
    let forger = Forger::new(0x002f);
    let record = forger.mac_then_encrypt(b"never to be seen", &[1; 12]);
    let mut out = vec![0xee; record.len() - 5];
    let header = record[..5].try_into().unwrap();
    assert!(opener(0x002f, false).open(0, header, &record[5..], &mut out).is_err());
    assert_eq!(out[..32], [0; 32]);
}

#[test]
fn refuses_authentic_records_over_the_limits() {
    let (longest, over) = (vec![1; 16384], vec![1; 16385]);
    let forger = Forger::new(0xc028);
    let first_mac = opener(0xc028, false);
    // The longest legal record of all: 2^14 content, 48 MAC, 256 padding.
    let record = forger.mac_then_encrypt(&longest, &[255; 256]);
    assert_eq!(record.len(), 5 + 16 + 16384 + 48 + 256);
    assert_eq!(open(first_mac.as_ref(), 0, &record).unwrap().1, longest);
    let record = forger.mac_then_encrypt(&over, &[14; 15]);
    assert_eq!(open(first_mac.as_ref(), 0, &record), Err(OpenError::Malformed));
    let record = forger.encrypt_then_mac(&over, &[14; 15]);
    assert_eq!(open(opener(0xc028, true).as_ref(), 0, &record), Err(OpenError::Malformed));

    for suite in [0xc02f, 0xc0ae, 0xcca8] {
        let keys = keys(suite);
        let found = suite::find(TLS12, suite).unwrap();
        let key = AeadKey::new(found.cipher(), keys.key()).unwrap();
        let (nonce, mut fragment) = match Nonces::new(found, keys.iv()).unwrap() {
            Nonces::Explicit(salt) => (salt.nonce([8; 8]), vec![8; 8]),
            Nonces::Sequence(iv) => (iv.nonce(0), Vec::new()),
        };
        let start = fragment.len();
        fragment.extend_from_slice(&over);
        let additional = additional_data(0, [23, 3, 3, 0, 0], over.len()).unwrap();
        key.seal(nonce, &additional, &mut fragment, start).unwrap();
        let record = Forger::record(&fragment);
        assert_eq!(open(opener(suite, false).as_ref(), 0, &record), Err(OpenError::Malformed));
        let record = Forger::record(&vec![0; MAX_FRAGMENT_LEN + 1]);
        assert_eq!(open(opener(suite, false).as_ref(), 0, &record), Err(OpenError::Malformed));
    }
}

#[test]
fn refuses_keys_of_wrong_length() {
    let new = |suite, key: usize, iv: usize, mac: usize| {
        open_record(TLS12, suite, &vec![0; key], &vec![0; iv], &vec![0; mac]).err()
    };
    assert_eq!(new(0xc02f, 16, 4, 0), None);
    assert_eq!(new(0xc02f, 32, 4, 0), Some(KeyError::KeyLength { expected: 16, actual: 32 }));
    assert_eq!(new(0xc02f, 16, 12, 0), Some(KeyError::IvLength { expected: 4, actual: 12 }));
    assert_eq!(new(0xcca8, 32, 4, 0), Some(KeyError::IvLength { expected: 12, actual: 4 }));
    assert_eq!(new(0xc02f, 16, 4, 20), Some(KeyError::MacKeyLength { expected: 0, actual: 20 }));
    assert_eq!(new(0x003c, 16, 0, 20), Some(KeyError::MacKeyLength { expected: 32, actual: 20 }));
    assert_eq!(new(0x003c, 16, 16, 32), Some(KeyError::IvLength { expected: 0, actual: 16 }));
    let other = open_record(0x0301, 0x002f, &[0; 16], &[], &[0; 20]).err();
    assert_eq!(other, Some(KeyError::UnsupportedVersion(0x0301)));
}

#[test]
fn tells_keys_apart() {
    for (suite, _) in CASES {
        let keys = keys(suite);
        let parts = [keys.key(), keys.iv(), keys.mac_key()].map(<[u8]>::to_vec);
        let fingerprint = |[key, iv, mac_key]: &[Vec<u8>; 3]| {
            open_record(TLS12, suite, key, iv, mac_key).unwrap().fingerprint()
        };
        assert_eq!(fingerprint(&parts), fingerprint(&parts), "{suite:04x}");
        for at in 0..parts.len() {
            let mut others = parts.clone();
            let Some(last) = others[at].last_mut() else {
                continue;
            };
            *last ^= 1;
            assert_ne!(fingerprint(&parts), fingerprint(&others), "{suite:04x}, part {at}");
        }
    }
}
