//! What a report says of a certificate: names, number, validity, fingerprint.
//!
//! Refuses to judge it, which is its receiver's business, and to keep long texts.

use core::fmt::{self, Write as _};
use core::net::IpAddr;

use aws_lc_rs::digest;
use serde::Serialize;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Longest text that is kept of one field, in bytes.
const MAX_TEXT: usize = 1024;
/// Most alternative names that are kept.
const MAX_NAMES: usize = 64;
/// Longest serial number in bytes; legal ones have 20 (RFC 5280, section 4.1.2.2).
const MAX_SERIAL: usize = 32;

/// One side's own certificate, as far as it could be read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CertificateFacts {
    /// Distinguished name as RFC 4514 writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Box<str>>,
    /// The issuer's.
    #[serde(rename = "issuerdn", skip_serializing_if = "Option::is_none")]
    pub issuer: Option<Box<str>>,
    /// Upper-case hexadecimal, bytes separated by colons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<Box<str>>,
    /// SHA-256 of the whole certificate, in lower-case hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint_sha256: Option<Box<str>>,
    /// First moment of its validity.
    #[serde(rename = "notbefore", skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Box<str>>,
    /// Last moment of its validity.
    #[serde(rename = "notafter", skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Box<str>>,
    /// Host names, addresses, mail addresses and URIs that it is for.
    #[serde(rename = "subjectaltname", skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<Box<str>>,
    /// Number of the algorithm when it came compressed (RFC 8879): nothing else is known then.
    #[serde(rename = "certificate_compression", skip_serializing_if = "Option::is_none")]
    pub compression: Option<u16>,
}

impl CertificateFacts {
    /// Reads a certificate. What is not X.509 has its fingerprint only.
    #[must_use]
    pub fn of(der: &[u8]) -> Self {
        let fingerprint =
            base16ct::lower::encode_string(digest::digest(&digest::SHA256, der).as_ref());
        let mut facts = Self { fingerprint_sha256: Some(fingerprint.into()), ..Self::default() };
        // Illegal serial numbers and the like are for the receiver to refuse.
        let Ok(certificate) = CertificateInner::<Raw>::from_der(der) else {
            return facts;
        };
        let tbs = certificate.tbs_certificate();
        facts.subject = Some(text(tbs.subject()));
        facts.issuer = Some(text(tbs.issuer()));
        facts.serial = Some(colons(tbs.serial_number().as_bytes()));
        facts.not_before = Some(text(&tbs.validity().not_before.to_date_time()));
        facts.not_after = Some(text(&tbs.validity().not_after.to_date_time()));
        if let Ok(Some((_, SubjectAltName(names)))) = tbs.get_extension::<SubjectAltName>() {
            facts.names = names.iter().take(MAX_NAMES).filter_map(name).collect();
        }
        facts
    }

    /// One that nobody decompressed.
    #[must_use]
    pub fn compressed(algorithm: u16) -> Self {
        Self { compression: Some(algorithm), ..Self::default() }
    }
}

fn name(name: &GeneralName) -> Option<Box<str>> {
    match name {
        GeneralName::DnsName(it) | GeneralName::Rfc822Name(it) => Some(text(&it.as_str())),
        GeneralName::UniformResourceIdentifier(it) => Some(text(&it.as_str())),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            address.ok().map(|address| text(&address))
        }
        _ => None,
    }
}

fn colons(bytes: &[u8]) -> Box<str> {
    let mut out = String::new();
    for byte in bytes.iter().take(MAX_SERIAL) {
        let colon = if out.is_empty() { "" } else { ":" };
        // Strings take everything.
        let _ = write!(out, "{colon}{byte:02X}");
    }
    out.into()
}

/// The text of a value, cut at [`MAX_TEXT`] without being made whole first.
fn text(value: &impl fmt::Display) -> Box<str> {
    struct Cut(String);
    impl fmt::Write for Cut {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = MAX_TEXT.saturating_sub(self.0.len());
            let end = room.min(text.len());
            let end = (0..=end).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            self.0.push_str(&text[..end]);
            if end < text.len() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut cut = Cut(String::new());
    // An error says that it was cut, or that the value could not be shown further.
    let _ = write!(cut, "{value}");
    cut.0.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's certificate of RFC 8448, section 3.
    fn rfc8448() -> Vec<u8> {
        let text = include_str!("../../mmtls-middlebox/tests/data/rfc8448-server.txt");
        let digits: String = text.split_whitespace().collect();
        base16ct::lower::decode_vec(digits).unwrap()
    }

    #[test]
    fn accepts_an_old_certificate_without_names() {
        let facts = CertificateFacts::of(&rfc8448());
        assert_eq!(facts.subject.as_deref(), Some("CN=rsa"));
        assert_eq!(facts.issuer.as_deref(), Some("CN=rsa"));
        assert_eq!(facts.serial.as_deref(), Some("02"));
        assert_eq!(facts.not_before.as_deref(), Some("2016-07-30T01:23:59Z"));
        assert_eq!(facts.not_after.as_deref(), Some("2026-07-30T01:23:59Z"));
        assert!(facts.names.is_empty() && facts.compression.is_none());
    }

    #[test]
    fn refuses_to_read_what_is_no_certificate() {
        let der = rfc8448();
        for len in 0..der.len() {
            let facts = CertificateFacts::of(&der[..len]);
            assert_eq!(facts.subject, None, "{len}");
            assert_eq!(facts.fingerprint_sha256.map(|it| it.len()), Some(64));
        }
        for at in 0..der.len() {
            let mut changed = der.clone();
            changed[at] ^= 0x80;
            let _ = CertificateFacts::of(&changed);
        }
    }

    #[test]
    fn refuses_long_texts() {
        assert_eq!(text(&"ä".repeat(4000)).len(), MAX_TEXT);
        assert_eq!(&*text(&"short"), "short");
        assert_eq!(&*colons(&[0xab, 1]), "AB:01");
        assert_eq!(colons(&[7; 100]).len(), 3 * MAX_SERIAL - 1);
    }
}
