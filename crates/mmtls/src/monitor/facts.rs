//! What rules may ask of a TLS handshake, from what the session, its hellos and certificates tell.
//!
//! Refuses to say of one side what the other one has shown.

use mmtls_engine::session::SessionInfo;
use mmtls_engine::tls::Direction;
use mmtls_inspect::detect::Facts;
use mmtls_inspect::rules::Buffer;

use crate::certificate::CertificateFacts;
use crate::fingerprint::{Fingerprints, Ja3};

/// One side's part of a handshake.
pub(super) struct SideFacts<'a> {
    pub(super) info: &'a SessionInfo,
    pub(super) from: Direction,
    /// Of its own certificate.
    pub(super) certificate: Option<&'a CertificateFacts>,
    /// Its certificates, where they are at hand.
    pub(super) chain: &'a [&'a [u8]],
    /// Of both sides.
    pub(super) fingerprints: Option<&'a Fingerprints>,
}

impl Facts for SideFacts<'_> {
    fn version(&self) -> Option<u16> {
        self.info.version.map(|version| version.0)
    }

    fn each(&self, buffer: Buffer, show: &mut dyn FnMut(&[u8])) {
        let certificate = |text: fn(&CertificateFacts) -> Option<&str>| {
            self.certificate.and_then(text).map(str::as_bytes)
        };
        let ja3 = |text: fn(&Ja3) -> &str| {
            let ja3 = self.fingerprints.and_then(|it| match self.from {
                Direction::ClientToServer => it.ja3.as_ref(),
                Direction::ServerToClient => it.ja3s.as_ref(),
            });
            ja3.map(|it| text(it).as_bytes())
        };
        let single = match (buffer, self.from) {
            (Buffer::TlsSni, Direction::ClientToServer) => {
                self.info.server_name.as_deref().map(str::as_bytes)
            }
            (Buffer::TlsCertSubject, _) => certificate(|it| it.subject.as_deref()),
            (Buffer::TlsCertIssuer, _) => certificate(|it| it.issuer.as_deref()),
            (Buffer::TlsCertSerial, _) => certificate(|it| it.serial.as_deref()),
            (Buffer::TlsCertFingerprint, _) => certificate(|it| it.fingerprint.as_deref()),
            (Buffer::TlsAlpn, Direction::ClientToServer) => {
                return self.info.alpn_offered.iter().for_each(|name| show(name));
            }
            (Buffer::TlsAlpn, Direction::ServerToClient) => self.info.alpn.as_deref(),
            (Buffer::Ja3Hash, Direction::ClientToServer)
            | (Buffer::Ja3sHash, Direction::ServerToClient) => ja3(|it| &it.hash),
            (Buffer::Ja3String, Direction::ClientToServer)
            | (Buffer::Ja3sString, Direction::ServerToClient) => ja3(|it| &it.string),
            (Buffer::Ja4Hash, Direction::ClientToServer) => {
                self.fingerprints.and_then(|it| it.ja4.as_deref()).map(str::as_bytes)
            }
            (Buffer::TlsCerts, _) => return self.chain.iter().for_each(|der| show(der)),
            _ => None,
        };
        if let Some(single) = single {
            show(single);
        }
    }
}
