//! What a report says of a certificate: names, number, validity, fingerprint.
//!
//! Refuses to judge it, which is its receiver's business, and to keep long texts.

use core::fmt::{self, Write as _};
use core::net::IpAddr;

use aws_lc_rs::digest;
use serde::Serialize;
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::DB;
use x509_cert::der::{DateTime, Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;

/// Longest text that is kept of one field, in bytes.
const MAX_TEXT: usize = 1024;
/// Most alternative names that are kept.
const MAX_NAMES: usize = 64;
/// Longest serial number in bytes; legal ones have 20 (RFC 5280, section 4.1.2.2).
const MAX_SERIAL: usize = 32;
/// How Suricata abbreviates parts of names.
const ABBREVIATIONS: [(&str, &str); 8] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "Email"),
];

/// One side's own certificate, as far as it could be read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CertificateFacts {
    /// Distinguished name as Suricata writes it: in the certificate's order, nothing escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Box<str>>,
    /// The issuer's.
    #[serde(rename = "issuerdn", skip_serializing_if = "Option::is_none")]
    pub issuer: Option<Box<str>>,
    /// Upper-case hexadecimal, bytes separated by colons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<Box<str>>,
    /// SHA-1 of the whole certificate, in lower-case hexadecimal, bytes separated by colons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Box<str>>,
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
        // SHA-1 is a name here, by which others know the certificate; nothing relies on its strength.
        let sha1 = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, der);
        let sha256 = base16ct::lower::encode_string(digest::digest(&digest::SHA256, der).as_ref());
        let mut facts = Self {
            fingerprint: Some(colons(sha1.as_ref()).to_ascii_lowercase().into()),
            fingerprint_sha256: Some(sha256.into()),
            ..Self::default()
        };
        // Illegal serial numbers and the like are for the receiver to refuse.
        let Ok(certificate) = CertificateInner::<Raw>::from_der(der) else {
            return facts;
        };
        let tbs = certificate.tbs_certificate();
        facts.subject = Some(text(&Distinguished(tbs.subject())));
        facts.issuer = Some(text(&Distinguished(tbs.issuer())));
        facts.serial = Some(colons(tbs.serial_number().as_bytes()));
        facts.not_before = Some(moment(tbs.validity().not_before.to_date_time()));
        facts.not_after = Some(moment(tbs.validity().not_after.to_date_time()));
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

/// `C=US, O=Example, CN=example.org`.
struct Distinguished<'a>(&'a Name);

impl fmt::Display for Distinguished<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.0.iter_rdn().enumerate() {
            f.write_str(if at > 0 { ", " } else { "" })?;
            for (at, attribute) in part.iter().enumerate() {
                f.write_str(if at > 0 { " + " } else { "" })?;
                attribute_text(attribute, f)?;
            }
        }
        Ok(())
    }
}

fn attribute_text(
    attribute: &AttributeTypeAndValue,
    f: &mut fmt::Formatter<'_>,
) -> Result<(), fmt::Error> {
    write!(f, "{}=", attribute_name(attribute.oid))?;
    let bytes = attribute.value.value();
    match attribute.value.tag() {
        Tag::Utf8String
        | Tag::PrintableString
        | Tag::Ia5String
        | Tag::NumericString
        | Tag::VisibleString
        | Tag::TeletexString => f.write_str(&String::from_utf8_lossy(bytes)),
        Tag::BmpString => {
            let units = bytes.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
            char::decode_utf16(units)
                .try_for_each(|it| f.write_char(it.unwrap_or(char::REPLACEMENT_CHARACTER)))
        }
        _ => bytes.iter().try_for_each(|byte| write!(f, "{byte:02X}")),
    }
}

/// The number of what has no name.
fn attribute_name(oid: ObjectIdentifier) -> Box<str> {
    let number = oid.to_string();
    let short = ABBREVIATIONS.into_iter().find(|(of, _)| *of == number).map(|(_, name)| name);
    // The long one where there are several: `givenName`, not `gn`.
    let long = || DB.find_names_for_oid(oid).max_by_key(|name| name.len());
    short.or_else(long).map_or_else(|| number.into(), Box::from)
}

/// `2024-01-31T23:59:59`, UTC.
fn moment(time: DateTime) -> Box<str> {
    time.to_string().trim_end_matches('Z').into()
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
        assert_eq!(facts.not_before.as_deref(), Some("2016-07-30T01:23:59"));
        assert_eq!(facts.not_after.as_deref(), Some("2026-07-30T01:23:59"));
        let sha1 = "23:e0:f7:b6:a9:5d:df:a9:65:58:49:4a:94:94:fe:a0:78:5a:ce:45";
        assert_eq!(facts.fingerprint.as_deref(), Some(sha1));
        assert!(facts.names.is_empty() && facts.compression.is_none());
    }

    #[test]
    fn accepts_names_in_the_order_of_the_certificate() {
        use x509_cert::der::Encode;
        let show = |der: &[u8]| text(&Distinguished(&Name::from_der(der).unwrap()));
        let name: Name = "CN=a\\, b+GN=c,2.5.4.5=d,1.2.3.4=#0c0165,O=e,C=US".parse().unwrap();
        assert_eq!(
            &*show(&name.to_der().unwrap()),
            "C=US, O=e, 1.2.3.4=e, serialNumber=d, givenName=c + CN=a, b"
        );
        assert_eq!(&*show(b"\x30\0"), "");
        // A BMPString, and something that is no text.
        let attribute = |value: &[u8]| {
            let pair = [b"\x06\x03\x55\x04\x03", value].concat();
            let wrap = |tag: u8, inner: &[u8]| [&[tag, inner.len() as u8], inner].concat();
            wrap(0x30, &wrap(0x31, &wrap(0x30, &pair)))
        };
        assert_eq!(&*show(&attribute(b"\x1e\x04\0h\x20\xac")), "CN=h\u{20ac}");
        assert_eq!(&*show(&attribute(b"\x04\x02\xab\x01")), "CN=AB01");
        assert_eq!(&*show(&attribute(b"\x0c\x02\xff!")), "CN=\u{fffd}!");
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
