//! Equation 1 of the paper, and how it breaks: a tag over header and original tag cannot notice
//! a changed ciphertext whose original tag is the same, and with the record key such ciphertexts
//! can be computed for all five AEADs. Ours, over the same records, notices.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use mmtls_record::private_tag::{self, PRIVATE_TAG_LEN, PrivateTagKey, SUITES};
use mmtls_record::suite::{self, Cipher, TLS13};
use mmtls_record::{PrivateTagOpener, PrivateTagSealer, open_record};
use mmtls_testkit::compromised::collision::collide;
use mmtls_testkit::compromised::{FORGED, GARBAGE, ORDER, RecordKey};
use mmtls_tls::{ContentType, OpenError};

/// Tag2 = GHASH(H2, A, Tag) xor E(K2, Y), H2 = E(K2, 0): the tag of GCM for a ciphertext that is
/// the original tag. Encrypting what decrypts to it, with counter 2, gives that.
fn equation_1(k2: [u8; 16], nonce: [u8; 12], header: &[u8], tag: &[u8]) -> Vec<u8> {
    let aes = aes::Aes128Enc::new_from_slice(&k2).unwrap();
    let mut counter = [0; 16];
    counter[..12].copy_from_slice(&nonce);
    counter[15] = 2;
    let mut stream = counter.into();
    aes.encrypt_block(&mut stream);
    let mut text: Vec<u8> = tag.iter().zip(stream).map(|(tag, stream)| tag ^ stream).collect();
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &k2).unwrap());
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag2 = key.seal_in_place_separate_tag(nonce, Aad::from(header), &mut text).unwrap();
    assert_eq!(text, tag, "the original tag is what is hashed");
    tag2.as_ref().to_vec()
}

#[test]
fn refuses_what_the_papers_tag_lets_pass() {
    for number in SUITES {
        let found = suite::find(TLS13, number).unwrap();
        let key_len = found.cipher().key_len();
        for attempt in 0..20u8 {
            let (k1, iv) = (vec![attempt; key_len], [0xa5; 12]);
            let k2 = vec![0x3c; private_tag::key_len(number).unwrap()];
            let sequence = u64::from(attempt);
            let sealer = PrivateTagSealer::new(number, &k1, &iv, &k2).unwrap();
            let record = sealer.seal(sequence, ContentType::APPLICATION_DATA, ORDER, 0).unwrap();
            let mut forged = record.clone();
            let stolen = RecordKey { suite: number, key: k1.clone(), iv: iv.to_vec() };
            let known = &ORDER[..FORGED.len()];
            collide(&stolen, sequence, &mut forged, known, FORGED, GARBAGE).unwrap();

            // The ciphertext is another, both tags are the same.
            let tag_len = if found.cipher() == Cipher::Aes128Ccm8 { 8 } else { 16 };
            let end = record.len() - PRIVATE_TAG_LEN;
            assert_ne!(record[..end - tag_len], forged[..end - tag_len]);
            assert_eq!(record[end - tag_len..], forged[end - tag_len..]);

            // The AEAD accepts it, with the attacker's text.
            let (header, fragment) = forged.split_first_chunk::<5>().unwrap();
            let mut out = vec![0; fragment.len()];
            let opener = open_record(TLS13, number, &k1, &iv, &[]).unwrap();
            let opened = opener.open(sequence, *header, fragment, &mut out).unwrap();
            assert_eq!(opened.len, ORDER.len());
            assert_eq!(&out[..FORGED.len()], FORGED);
            assert_eq!(out[FORGED.len()..GARBAGE], ORDER[FORGED.len()..GARBAGE]);
            assert_eq!(out[GARBAGE + 32..ORDER.len()], ORDER[GARBAGE + 32..]);

            // The paper's tag is a function of header and original tag, so it does too.
            let nonce = [7; 12];
            let paper = |record: &[u8]| {
                let tag = &record[end - tag_len..end];
                equation_1([9; 16], nonce, &record[..5], tag)
            };
            assert_eq!(paper(&record), paper(&forged));

            // Ours does not.
            let mut out = vec![0; forged.len()];
            let opener = PrivateTagOpener::new(number, &k1, &iv, &k2).unwrap();
            assert!(opener.open(sequence, &record, &mut out).is_ok());
            let answer = opener.open(sequence, &forged, &mut out);
            assert_eq!(answer, Err(OpenError::Authentication));
        }
    }
}

/// The tags differ although everything that the paper's covers is the same.
#[test]
fn accepts_that_ours_depends_on_the_ciphertext() {
    let key = PrivateTagKey::new(0xff31, &[1; 16]).unwrap();
    let text = |byte| [&[23, 3, 3, 0, 48][..], &[byte; 16], &[2; 16]].concat();
    assert_ne!(key.tag([3; 12], &text(0)), key.tag([3; 12], &text(1)));
}
