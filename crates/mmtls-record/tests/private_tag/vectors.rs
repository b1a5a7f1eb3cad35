//! The test vectors of `docs/private-tag.md`: `docs/private-tag-vectors.json`.
//!
//! `MMTLS_WRITE_VECTORS=1` writes the file anew. `scripts/check-private-tag.py` computes every
//! value again with Python's HMAC, the `cryptography` package, and an AEGIS of its own.

use std::path::PathBuf;
use std::process::Command;

use base16ct::lower::encode_string as hex;
use mmtls_record::private_tag::SUITES;
use mmtls_record::suite::{self, IV_LEN, TLS13};
use mmtls_record::{PrivateTagOpener, PrivateTagSealer, key_schedule, open_record};
use mmtls_tls::ContentType;
use serde_json::{Value, json};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Sequence number, content type, content, padding.
type Record = (u64, u8, &'static [u8], usize);

const RECORDS: [Record; 4] = [
    (0, 22, b"\x08\x00\x00\x02\x00\x00", 0),
    (0, 23, b"Transfer 100 EUR to account 1111", 0),
    (1, 23, b"", 7),
    (0x0102_0304_0506_0708, 21, b"\x01\x00", 300),
];

fn vectors() -> Vec<Value> {
    let mut out = Vec::new();
    for number in SUITES {
        let found = suite::find(TLS13, number).unwrap();
        let first: Vec<u8> = (0..found.hash().output_len() as u8).collect();
        let second = key_schedule::next_secret(number, &first).unwrap();
        for (updates, secret) in [(0, &first[..]), (1, second.as_bytes())] {
            let keys = key_schedule::traffic_keys(number, secret).unwrap();
            let private = key_schedule::private_tag_key(number, secret).unwrap();
            let (key, iv, private) = (keys.key(), keys.iv(), private.as_bytes());
            let sealer = PrivateTagSealer::new(number, key, iv, private).unwrap();
            for (sequence, kind, content, padding) in RECORDS {
                let record = sealer.seal(sequence, ContentType(kind), content, padding).unwrap();
                let mut nonce: [u8; IV_LEN] = iv.try_into().unwrap();
                for (byte, with) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
                    *byte ^= with;
                }
                out.push(json!({
                    "suite": format!("{number:04x}"),
                    "name": found.name(),
                    "key_updates": updates,
                    "traffic_secret": hex(secret),
                    "k1": hex(key),
                    "iv": hex(iv),
                    "k2": hex(private),
                    "sequence": sequence,
                    "nonce": hex(&nonce),
                    "content_type": kind,
                    "content": hex(content),
                    "padding": padding,
                    "record": hex(&record),
                }));
            }
        }
    }
    out
}

fn unhex(value: &Value) -> Vec<u8> {
    base16ct::lower::decode_vec(value.as_str().unwrap()).unwrap()
}

#[test]
fn accepts_the_vectors_of_the_specification() {
    let path = root().join("docs/private-tag-vectors.json");
    let made = vectors();
    if std::env::var_os("MMTLS_WRITE_VECTORS").is_some() {
        let mut text = serde_json::to_string_pretty(&made).unwrap();
        text.push('\n');
        std::fs::write(&path, text).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let vectors: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(vectors, made);
    for vector in &vectors {
        let number = u16::from_str_radix(vector["suite"].as_str().unwrap(), 16).unwrap();
        let (key, iv, private) = (unhex(&vector["k1"]), unhex(&vector["iv"]), unhex(&vector["k2"]));
        let (sequence, record) = (vector["sequence"].as_u64().unwrap(), unhex(&vector["record"]));
        let mut out = vec![0; record.len()];
        let opener = PrivateTagOpener::new(number, &key, &iv, &private).unwrap();
        let opened = opener.open(sequence, &record, &mut out).unwrap();
        assert_eq!(u64::from(opened.content_type.0), vector["content_type"]);
        assert_eq!(&out[..opened.len], unhex(&vector["content"]));
        // The middlebox has no k2.
        let opener = open_record(TLS13, number, &key, &iv, &[]).unwrap();
        let (header, fragment) = record.split_first_chunk().unwrap();
        let again = opener.open(sequence, *header, fragment, &mut out).unwrap();
        assert_eq!(again, opened);
        assert_eq!(&out[..again.len], unhex(&vector["content"]));
    }
}

/// Runs the other implementation. Where its library is missing, a loud skip.
#[test]
fn accepts_what_python_computes() {
    if !mmtls_testkit::require_python("cryptography") {
        return;
    }
    let output = Command::new("python3")
        .arg(root().join("scripts/check-private-tag.py"))
        .arg(root().join("docs/private-tag-vectors.json"))
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert_eq!(out.trim(), "40 vectors right, 40 changed ones refused");
}
