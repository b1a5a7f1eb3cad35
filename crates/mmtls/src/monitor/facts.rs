//! What rules may ask of a TLS handshake, from what the session and its certificates tell.
//!
//! Refuses fingerprints of hellos (JA3, JA4): the packet engine does not tell them.

use mmtls_engine::session::SessionInfo;
use mmtls_engine::tls::Direction;
use mmtls_inspect::detect::Facts;
use mmtls_inspect::rules::Buffer;

use crate::certificate::CertificateFacts;

/// One side's part of a handshake.
pub(super) struct SideFacts<'a> {
    pub(super) info: &'a SessionInfo,
    pub(super) from: Direction,
    /// Of its own certificate.
    pub(super) certificate: Option<&'a CertificateFacts>,
    /// Its certificates, where they are at hand.
    pub(super) chain: &'a [&'a [u8]],
}

impl Facts for SideFacts<'_> {
    fn version(&self) -> Option<u16> {
        self.info.version.map(|version| version.0)
    }

    fn each(&self, buffer: Buffer, show: &mut dyn FnMut(&[u8])) {
        let certificate = |text: fn(&CertificateFacts) -> Option<&str>| {
            self.certificate.and_then(text).map(str::as_bytes)
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
            (Buffer::TlsCerts, _) => return self.chain.iter().for_each(|der| show(der)),
            _ => None,
        };
        if let Some(single) = single {
            show(single);
        }
    }
}
