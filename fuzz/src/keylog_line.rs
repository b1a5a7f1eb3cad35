//! One line of a key log, for itself: what [`crate::keylog`] does with whole logs takes a thousand times as long.
//!
//! Claims: white space around and between the fields, and the case of digits, do not matter; a secret has a length that a
//! secret can have.

use mmtls_keyshare::keylog::{self, Label, Line, LineError, MAX_ECH_BYTES, MAX_SECRET_BYTES};

/// What a line says.
#[derive(PartialEq, Debug)]
enum Said {
    Secret(Label, [u8; 32], Vec<u8>),
    Ech([u8; 32], Result<Vec<u8>, LineError>),
    Other,
    Wrong(LineError),
}

fn said(line: &[u8]) -> Said {
    let mut secret = [0; MAX_SECRET_BYTES];
    match keylog::parse(line, &mut secret) {
        Ok(Line::Secret { label, client_random, secret }) => {
            assert!(matches!(secret.len(), 32 | 48));
            Said::Secret(label, client_random, secret.to_vec())
        }
        Ok(Line::Ech { client_random, digits, .. }) => {
            let mut value = [0; MAX_ECH_BYTES];
            Said::Ech(client_random, keylog::decode_ech(digits, &mut value).map(<[u8]>::to_vec))
        }
        Ok(Line::Empty | Line::RsaPremaster | Line::OtherLabel) => Said::Other,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Said::Wrong(error)
        }
    }
}

/// Input: the line.
pub fn keylog_line(data: &[u8]) {
    let first = said(data);
    let mut fields: Vec<Vec<u8>> = data
        .split(u8::is_ascii_whitespace)
        .filter(|field| !field.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    // Of the label the case matters.
    for field in fields.iter_mut().skip(1) {
        field.make_ascii_uppercase();
    }
    let again = [b"\t".as_slice(), &fields.join(&b"  "[..]), b"\r\n"].concat();
    if again.len() <= keylog::MAX_LINE_BYTES && data.len() <= keylog::MAX_LINE_BYTES {
        assert_eq!(said(&again), first, "the same line");
    }
}
