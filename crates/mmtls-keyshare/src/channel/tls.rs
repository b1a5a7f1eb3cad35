//! TLS 1.3 configurations from PEM files. Refuses empty and unreadable files, other versions,
//! and peers that a configured authority did not certify.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "client")]
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ConnectionCommon, RootCertStore, SideData, version};
use zeroize::{Zeroize, Zeroizing};

#[cfg(feature = "client")]
use super::pin::{Pin, PinnedVerifier};
use crate::message::{ALPN, DecodeError, Decoder, Message};
use crate::sealed::{self, Secret};

/// A certificate chain and its private key, both PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Own certificate first, then intermediates.
    pub certificate_file: PathBuf,
    /// PKCS #8, SEC 1 or PKCS #1.
    pub key_file: PathBuf,
}

/// Why a TLS configuration cannot be built: the caller's fault.
#[derive(Debug)]
pub enum TlsError {
    /// A PEM file that cannot be read or holds nothing of the wanted kind.
    Pem {
        /// Which file.
        file: PathBuf,
        /// What went wrong, never the content.
        reason: String,
    },
    /// Certificate, key and authority do not fit together.
    Rejected(String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem { file, reason } => write!(f, "{}: {reason}", file.display()),
            Self::Rejected(reason) => write!(f, "TLS configuration: {reason}"),
        }
    }
}

impl std::error::Error for TlsError {}

fn rejected(error: impl fmt::Display) -> TlsError {
    TlsError::Rejected(error.to_string())
}

/// What is wrong with a certificate and its key together.
fn unfit(identity: &Identity) -> impl FnOnce(rustls::Error) -> TlsError + '_ {
    |error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Pem {
            file: identity.key_file.clone(),
            reason: format!(
                "not the key of the first certificate in {}",
                identity.certificate_file.display()
            ),
        },
        error => rejected(format!("{}: {error}", identity.certificate_file.display())),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The certificates in a PEM file, in DER.
///
/// # Errors
/// [`TlsError::Pem`], also where there is none.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let fault = |reason: String| TlsError::Pem { file: file.to_owned(), reason };
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fault(error.to_string()))?;
    if certificates.is_empty() {
        return Err(fault("no certificate in it".into()));
    }
    Ok(certificates)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(file)
        .map_err(|error| TlsError::Pem { file: file.to_owned(), reason: error.to_string() })
}

fn roots(file: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(file)? {
        store.add(certificate).map_err(|error| TlsError::Pem {
            file: file.to_owned(),
            reason: format!("not a certificate of an authority: {error}"),
        })?;
    }
    Ok(Arc::new(store))
}

#[cfg(feature = "client")]
pub(super) fn client_config(
    ca_file: &Path,
    identity: Option<&Identity>,
    pins: &[Pin],
) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(rejected)?;
    let roots = roots(ca_file)?;
    let builder = match pins {
        [] => builder.with_root_certificates(roots),
        pins => {
            let certified = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
            let (certified, pins) = (certified.map_err(rejected)?, pins.to_vec());
            let verifier = PinnedVerifier { certified, pins };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let mut config = match identity {
        Some(identity) => builder
            .with_client_auth_cert(
                certificates(&identity.certificate_file)?,
                private_key(&identity.key_file)?,
            )
            .map_err(unfit(identity))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Reconnects are rare, and a stored ticket would be one more secret in memory.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

#[cfg(feature = "server")]
pub(super) fn server_config(
    identity: &Identity,
    client_ca_file: Option<&Path>,
) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    use rustls::server::WebPkiClientVerifier;
    let builder = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(rejected)?;
    let builder = match client_ca_file {
        Some(file) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots(file)?, provider())
                .build()
                .map_err(rejected)?,
        ),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(
            certificates(&identity.certificate_file)?,
            private_key(&identity.key_file)?,
        )
        .map_err(unfit(identity))?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Why no more messages can be read from a connection.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The peer broke the specification.
    Malformed(DecodeError),
    /// TLS gave up, or the peer cut the stream without a close_notify.
    Tls(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
        }
    }
}

/// Bytes of records that are joined for one write.
const MAX_JOINED_BYTES: usize = 16 * 1024;

/// A socket to write TLS to. The standard library writes one buffer with `send` and
/// `MSG_NOSIGNAL`, but several with `writev`, which has no such flag: on a connection that the
/// peer reset, SIGPIPE would end a host that does not ignore it, as C programs do not. So several are joined first.
pub(super) struct Output<'a, W>(pub(super) &'a mut W);

impl<W: Write> Write for Output<'_, W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.write(buffer)
    }

    fn write_vectored(&mut self, buffers: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let mut joined = Vec::new();
        for (at, buffer) in buffers.iter().enumerate() {
            if joined.len() + buffer.len() > MAX_JOINED_BYTES || buffers.len() == 1 {
                return self.0.write(if at == 0 { buffer } else { &joined });
            }
            joined.extend_from_slice(buffer);
        }
        self.0.write(&joined)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What sealed datagrams of this connection are sealed with, once its handshake is through.
pub(super) fn export<S: SideData>(tls: &ConnectionCommon<S>) -> Result<Secret, rustls::Error> {
    let exported = Zeroizing::new([0; sealed::EXPORTED_BYTES]);
    tls.export_keying_material(exported, sealed::EXPORTER_LABEL, None).map(Secret::new)
}

/// Takes what was decrypted and cuts it into messages.
pub(super) fn read_messages<S: SideData>(
    tls: &mut ConnectionCommon<S>,
    decoder: &mut Decoder,
    mut each: impl FnMut(Message),
) -> Result<(), ReadError> {
    // Small, since all of it is wiped at the end, however little was read.
    let mut buffer = Zeroizing::new([0; 1024]);
    loop {
        match tls.reader().read(&mut buffer[..]) {
            // The peer's close_notify; the end of the stream follows and is handled there.
            Ok(0) => return Ok(()),
            Ok(length) => {
                let fed = decoder.feed(&buffer[..length], &mut each);
                buffer[..length].zeroize();
                fed.map_err(ReadError::Malformed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(ReadError::Tls(error)),
        }
    }
}

#[cfg(all(test, feature = "client"))]
mod tests {
    use super::*;

    /// How many bytes were written, and how often.
    struct NoVectors(usize, usize);

    impl Write for NoVectors {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.0 += buffer.len();
            self.1 += 1;
            Ok(buffer.len())
        }

        fn write_vectored(&mut self, _: &[io::IoSlice<'_>]) -> io::Result<usize> {
            panic!("writev raises SIGPIPE");
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn accepts_output_without_vectors() {
        let config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        tls.send_close_notify();
        let mut socket = NoVectors(0, 0);
        while tls.wants_write() {
            assert!(tls.write_tls(&mut Output(&mut socket)).unwrap() > 0);
        }
        assert!(socket.0 > 0);
        // The hello and the alert.
        assert_eq!(socket.1, 1);
    }

    #[test]
    fn accepts_any_number_of_buffers() {
        let buffers = |sizes: &[usize]| {
            let bytes = vec![0; sizes.iter().copied().max().unwrap_or(0)];
            let buffers: Vec<_> =
                sizes.iter().map(|size| io::IoSlice::new(&bytes[..*size])).collect();
            let mut socket = NoVectors(0, 0);
            let written = Output(&mut socket).write_vectored(&buffers).unwrap();
            assert_eq!((socket.0, socket.1), (written, 1));
            written
        };
        assert_eq!(buffers(&[]), 0);
        assert_eq!(buffers(&[100_000]), 100_000);
        assert_eq!(buffers(&[100_000, 5]), 100_000);
        assert_eq!(buffers(&[1, 2, 3]), 6);
        assert_eq!(buffers(&[5, MAX_JOINED_BYTES - 5, 1]), MAX_JOINED_BYTES);
        assert_eq!(buffers(&[5, MAX_JOINED_BYTES]), 5);
    }
}
