//! Pins: which keys a middlebox may have, besides being certified. An authority that certifies others in its name gets no
//! keys then.
//!
//! Refuses to replace the certificate check.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

const HASH_LEN: usize = 32;

/// SHA-256 of a certificate's SubjectPublicKeyInfo, written `sha256/BASE64` (as in RFC 7469, section 2.4).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Pin([u8; HASH_LEN]);

impl Pin {
    /// That of a key.
    #[must_use]
    pub fn of(subject_public_key_info: &[u8]) -> Self {
        let mut hash = [0; HASH_LEN];
        if let Some(suite) = TLS13_AES_128_GCM_SHA256.tls13() {
            hash.copy_from_slice(suite.common.hash_provider.hash(subject_public_key_info).as_ref());
        }
        Self(hash)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; HASH_LEN.div_ceil(3) * 4];
        write!(f, "sha256/{}", Base64::encode(&self.0, &mut text).unwrap_or_default())
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not `sha256/BASE64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPin(pub String);

impl fmt::Display for BadPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not sha256/ and 44 characters of base64", self.0)
    }
}

impl std::error::Error for BadPin {}

impl FromStr for Pin {
    type Err = BadPin;

    fn from_str(text: &str) -> Result<Self, BadPin> {
        let mut hash = [0; HASH_LEN];
        let decoded =
            text.strip_prefix("sha256/").and_then(|it| Base64::decode(it, &mut hash).ok());
        match decoded.map(<[u8]>::len) {
            Some(HASH_LEN) => Ok(Self(hash)),
            _ => Err(BadPin(text.to_owned())),
        }
    }
}

/// A middlebox whose key is not among the pins.
struct NotPinned(Pin);

impl fmt::Display for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its key, {}, is not pinned", self.0)
    }
}

// What rustls shows of such an error.
impl fmt::Debug for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for NotPinned {}

/// Asks for a certificate that the authority has signed, and for one of some keys in it.
#[derive(Debug)]
pub(super) struct PinnedVerifier {
    pub(super) certified: Arc<WebPkiServerVerifier>,
    pub(super) pins: Vec<Pin>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certified = self.certified.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let key = ParsedCertificate::try_from(end_entity)?.subject_public_key_info();
        let pin = Pin::of(&key);
        match self.pins.contains(&pin) {
            true => Ok(certified),
            false => Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(
                NotPinned(pin),
            ))))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.certified.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.certified.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.certified.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_its_own_text_and_refuses_others() {
        let pin = Pin::of(b"");
        // SHA-256 of nothing.
        let text = "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        assert_eq!(pin.to_string(), text);
        assert_eq!(text.parse(), Ok(pin));
        for other in [
            "",
            "sha256/",
            &text[..text.len() - 1],
            &text[7..],
            &text.replace("sha256", "sha1"),
            "sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFVV",
        ] {
            assert_eq!(other.parse::<Pin>(), Err(BadPin(other.to_owned())), "{other}");
        }
    }
}
