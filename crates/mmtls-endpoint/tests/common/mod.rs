//! rustls on both ends of a wire in memory, certificates of the testkit, key logs.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use mmtls_testkit::{Pki, require_program};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, KeyLog, RootCertStore, ServerConfig,
    ServerConnection, SideData, SupportedCipherSuite,
};

/// rustls as it comes.
pub fn plain() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

/// Ours, or rustls' own, reduced to one suite.
pub fn only(suite: SupportedCipherSuite) -> CryptoProvider {
    CryptoProvider { cipher_suites: vec![suite], ..mmtls_endpoint::provider() }
}

/// Certificates of this process, or `None` with a loud skip.
pub fn pki() -> Option<Arc<Pki>> {
    require_program("openssl").then(|| Pki::shared().unwrap())
}

pub fn client_config(pki: &Pki, provider: CryptoProvider) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&pki.ca).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

pub fn server_config(pki: &Pki, provider: CryptoProvider) -> ServerConfig {
    let chain = vec![CertificateDer::from_pem_file(&pki.server.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&pki.server.key).unwrap();
    ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap()
}

pub fn name() -> ServerName<'static> {
    ServerName::try_from("server.test").unwrap()
}

/// What goes over the wire: bytes and whether the client sent them, back what arrives.
pub type Wire<'a> = dyn FnMut(bool, Vec<u8>) -> Vec<u8> + 'a;

/// A connection in memory.
pub struct Pair {
    pub client: ClientConnection,
    pub server: ServerConnection,
}

impl Pair {
    pub fn new(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Self {
        Self {
            client: ClientConnection::new(Arc::clone(client), name()).unwrap(),
            server: ServerConnection::new(Arc::clone(server)).unwrap(),
        }
    }

    /// A connection whose handshake is done, tickets included.
    pub fn connected(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Self {
        let mut pair = Self::new(client, server);
        pair.exchange().unwrap();
        assert!(!pair.client.is_handshaking() && !pair.server.is_handshaking());
        pair
    }

    /// Lets both sides say all that they have to say.
    pub fn exchange(&mut self) -> Result<(), rustls::Error> {
        self.exchange_over(&mut |_, bytes| bytes)
    }

    pub fn exchange_over(&mut self, wire: &mut Wire<'_>) -> Result<(), rustls::Error> {
        loop {
            let up = carry(&mut self.client, &mut self.server, &mut |bytes| wire(true, bytes))?;
            let down = carry(&mut self.server, &mut self.client, &mut |bytes| wire(false, bytes))?;
            if !up && !down {
                return Ok(());
            }
        }
    }

    /// The suite, on which both sides agree.
    pub fn suite(&self) -> SupportedCipherSuite {
        let suite = self.client.negotiated_cipher_suite().unwrap();
        assert_eq!(Some(suite), self.server.negotiated_cipher_suite());
        suite
    }

    /// Sends `content` each way and checks that it arrives.
    pub fn talk(&mut self, content: &[u8]) {
        // What rustls buffers without being told otherwise, without the framing.
        const PIECE: usize = 8192;
        for piece in content.chunks(PIECE) {
            self.client.writer().write_all(piece).unwrap();
            self.server.writer().write_all(piece).unwrap();
            self.exchange().unwrap();
            assert_eq!(read(&mut self.server), piece);
            assert_eq!(read(&mut self.client), piece);
        }
    }
}

/// Moves what `from` has to say to `to`; whether there was anything.
fn carry<A: SideData, B: SideData>(
    from: &mut ConnectionCommon<A>,
    to: &mut ConnectionCommon<B>,
    wire: &mut dyn FnMut(Vec<u8>) -> Vec<u8>,
) -> Result<bool, rustls::Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let any = !bytes.is_empty();
    let bytes = if any { wire(bytes) } else { bytes };
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        if to.read_tls(&mut rest).unwrap() == 0 {
            break;
        }
        to.process_new_packets()?;
    }
    Ok(any)
}

/// Everything that has arrived.
pub fn read<Side: SideData>(connection: &mut ConnectionCommon<Side>) -> Vec<u8> {
    let mut content = Vec::new();
    // Ends with WouldBlock, or at the end of the stream.
    let _ = connection.reader().read_to_end(&mut content);
    content
}

/// Keeps the secrets of the sessions it hears of.
#[derive(Debug, Default)]
pub struct Secrets(Mutex<HashMap<String, Vec<u8>>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().insert(label.to_owned(), secret.to_vec());
    }
}

impl Secrets {
    /// The latest of a kind.
    pub fn get(&self, label: &str) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(label).cloned()
    }
}
