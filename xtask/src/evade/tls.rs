//! TLS of the attacker: 1.3 by rustls, 1.2 by [`super::tls12`]; the first flight may be cut into other
//! records, and a dialog in the clear may be in front.
//!
//! Refuses to answer in a dialog: that is the part of [`super::front`].

use std::collections::VecDeque;
use std::io::{Cursor, Read, Write};
use std::sync::Arc;

use mmtls_testkit::{Pki, address};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::front::{self, Turn};
use super::script::{Case, Kind, Token};
use super::tls12::{Identity, Tls12};

/// What a client must never read where a pattern file forbids it.
pub const PATTERN: &str = "forbidden-fruit";

/// The configurations of both roles.
#[derive(Clone)]
pub struct Settings {
    client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
    /// The server's, for TLS 1.2.
    identity: Arc<Identity>,
}

impl Settings {
    /// With the certificates of a testbed.
    pub fn new(pki: &Pki) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = client_config(pki, CryptoProvider::clone(&provider))?;
        let own = &pki.server;
        let chain = CertificateDer::from_pem_file(&own.certificate).map_err(|e| text(&e))?;
        let key = PrivateKeyDer::from_pem_file(&own.key).map_err(|e| text(&e))?;
        let identity = Identity { certificate: chain.to_vec(), key: key.secret_der().to_vec() };
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| text(&e))?
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .map_err(|e| text(&e))?;
        server.send_tls13_tickets = 0;
        let identity = Arc::new(identity);
        Ok(Self { client: Arc::new(client), server: Arc::new(server), identity })
    }
}

/// A client's: it trusts the testbed's authority.
pub fn client_config(pki: &Pki, provider: CryptoProvider) -> Result<ClientConfig, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(&pki.ca).map_err(|e| text(&e))?;
    roots.add(ca).map_err(|e| text(&e))?;
    let mut client = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| text(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Every case is a full handshake, whatever ran before it.
    client.resumption = Resumption::disabled();
    Ok(client)
}

/// What the attacker answers as a server.
pub fn response() -> String {
    let body = format!("{PATTERN} is what this body has\n");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len());
    format!("{head}Connection: close\r\n\r\n{body}")
}

/// Either version.
enum Tls {
    V12(Box<Tls12>),
    V13(Box<Connection>),
}

impl Tls {
    fn new(settings: &Settings, case: &Case) -> Result<Self, String> {
        let text = |error: rustls::Error| error.to_string();
        let name = address::SERVER_NAME;
        Ok(match (case.tls12, case.server) {
            (true, true) => Self::V12(Box::new(Tls12::server(&settings.identity)?)),
            (true, false) => Self::V12(Box::new(Tls12::client(name, case.big)?)),
            (false, true) => {
                let session = ServerConnection::new(Arc::clone(&settings.server)).map_err(text)?;
                Self::V13(Box::new(session.into()))
            }
            (false, false) => {
                let mut config = Arc::clone(&settings.client);
                if case.big > 0 {
                    // Protocols that nobody has heard of: a server without any of its own skips them.
                    let filler = |at: usize| format!("{at:0>250}").into_bytes();
                    Arc::make_mut(&mut config).alpn_protocols =
                        (0..case.big.div_ceil(251)).map(filler).collect();
                }
                let name = ServerName::try_from(name).map_err(|e| e.to_string())?;
                let session = ClientConnection::new(config, name).map_err(text)?;
                Self::V13(Box::new(session.into()))
            }
        })
    }

    fn is_handshaking(&self) -> bool {
        match self {
            Self::V12(it) => it.is_handshaking(),
            Self::V13(it) => it.is_handshaking(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        match self {
            Self::V12(it) => it.write(bytes),
            Self::V13(it) => it.writer().write_all(bytes).map_err(|error| error.to_string()),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        match self {
            Self::V12(it) => it.close(),
            Self::V13(it) => {
                it.send_close_notify();
                Ok(())
            }
        }
    }

    fn output(&mut self) -> Vec<u8> {
        let connection = match self {
            Self::V12(it) => return it.output(),
            Self::V13(it) => it,
        };
        let mut bytes = Vec::new();
        while connection.wants_write() {
            // Into memory; an error would come again as one of the peer's.
            if connection.write_tls(&mut bytes).is_err() {
                break;
            }
        }
        bytes
    }

    /// Takes what came; what it opens is added to the plaintext.
    fn input(&mut self, bytes: &[u8], plaintext: &mut Vec<u8>) -> Result<(), String> {
        let connection = match self {
            Self::V12(it) => {
                let done = it.input(bytes);
                plaintext.append(&mut it.plaintext);
                return done;
            }
            Self::V13(it) => it,
        };
        let mut rest = Cursor::new(bytes);
        while (rest.position() as usize) < bytes.len() {
            match connection.read_tls(&mut rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return Err(error.to_string()),
            }
            connection.process_new_packets().map_err(|error| error.to_string())?;
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = connection.reader().read(&mut buffer) {
                plaintext.extend(&buffer[..count]);
            }
        }
        Ok(())
    }
}

/// One side of a TLS connection, and the dialog in front of it.
pub struct Session {
    tls: Tls,
    /// What is left of the dialog.
    dialog: VecDeque<Turn>,
    /// TLS does not wait for it.
    eager: bool,
    /// Bytes that the other side has said in its turn.
    heard: usize,
    flight: Vec<Token>,
    /// The first flight has been taken.
    begun: bool,
    /// Application data that came.
    pub plaintext: Vec<u8>,
    answered: bool,
}

impl Session {
    /// A session of the role that the case has; the client asks for `/c/NAME`.
    pub fn new(settings: &Settings, case: &Case, name: &str) -> Result<Self, String> {
        let mut tls = Tls::new(settings, case)?;
        if !case.server {
            tls.write(format!("GET /c/{name} HTTP/1.1\r\nHost: server.test\r\n\r\n").as_bytes())?;
        }
        let mut dialog: VecDeque<Turn> = match &case.front {
            Some(front) => front::find(front)?.turns.into(),
            None => VecDeque::new(),
        };
        if case.eager {
            // Whoever does not wait says everything first.
            dialog.make_contiguous().sort_by_key(|turn| !turn.client);
        }
        Ok(Self {
            tls,
            dialog,
            eager: case.eager,
            heard: 0,
            flight: case.flight.clone(),
            begun: false,
            plaintext: vec![],
            answered: !case.server,
        })
    }

    /// Whether keys are not there yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether everything that there is to say has been said.
    pub fn has_answered(&self) -> bool {
        self.answered
    }

    /// Whether TLS has not begun.
    pub fn is_in_dialog(&self) -> bool {
        !self.eager && !self.dialog.is_empty()
    }

    /// What is to be sent before TLS.
    pub fn dialog_output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(turn) = self.dialog.front()
            && turn.client
        {
            bytes.extend(&turn.bytes);
            self.dialog.pop_front();
        }
        bytes
    }

    /// What is to be sent.
    pub fn output(&mut self) -> Vec<u8> {
        let mut bytes = self.tls.output();
        if !self.begun && !bytes.is_empty() {
            self.begun = true;
            if !self.flight.is_empty() {
                bytes = rewrite(&bytes, &self.flight);
            }
        }
        bytes
    }

    /// Takes what came.
    pub fn input(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while let Some(turn) = self.dialog.front()
            && !turn.client
            && !bytes.is_empty()
        {
            let taken = bytes.len().min(turn.bytes.len() - self.heard);
            self.heard += taken;
            bytes = &bytes[taken..];
            if self.heard == turn.bytes.len() {
                self.heard = 0;
                self.dialog.pop_front();
            }
        }
        self.tls.input(bytes, &mut self.plaintext)?;
        if !self.answered && self.plaintext.windows(4).any(|it| it == b"\r\n\r\n") {
            self.answered = true;
            self.tls.write(response().as_bytes())?;
            self.tls.close()?;
        }
        Ok(())
    }
}

/// Puts the first handshake message of a flight into other records; what follows it stays.
fn rewrite(flight: &[u8], tokens: &[Token]) -> Vec<u8> {
    let mut message = Vec::new();
    let mut rest = flight;
    // The header of a handshake message has its length.
    let wanted = |message: &[u8]| match message.first_chunk::<4>() {
        Some([_, a, b, c]) => 4 + usize::from(*a) * 65536 + usize::from(*b) * 256 + usize::from(*c),
        None => 4,
    };
    while message.len() < wanted(&message) {
        let Some((&[22, _, _, high, low], after)) = rest.split_first_chunk() else { break };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let Some((content, after)) = after.split_at_checked(length) else { break };
        message.extend(content);
        rest = after;
    }
    let mut out = Vec::new();
    for token in tokens {
        for _ in 0..token.count {
            let (content_type, content): (u8, &[u8]) = match &token.kind {
                Kind::Hello(from, to) => {
                    let to = to.unwrap_or(message.len()).min(message.len());
                    (22, &message[(*from).min(to)..to])
                }
                Kind::Empty => (22, &[]),
                Kind::Ccs => (20, &[1]),
                Kind::EmptyCcs => (20, &[]),
                // no_renegotiation, the one warning that is about nothing.
                Kind::Warning => (21, &[1, 100]),
                Kind::EmptyAlert => (21, &[]),
                Kind::EmptyData => (23, &[]),
                Kind::Raw(bytes) => {
                    out.extend(bytes);
                    continue;
                }
            };
            out.push(content_type);
            out.extend(token.version.to_be_bytes());
            // A longer message than a record can say does not come from rustls.
            out.extend((content.len() as u16).to_be_bytes());
            out.extend(content);
        }
    }
    out.extend(rest);
    out
}

/// A ClientHello of nobody: TLS 1.2, one suite, no extensions.
pub fn decoy() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([0x5a; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2f, 1, 0]);
    message(1, &body)
}

/// A ServerHello of nobody: TLS 1.2.
pub fn server_hello() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([0xa5; 32]);
    body.extend([0, 0xc0, 0x2f, 0]);
    message(2, &body)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    // Both are shorter than 250 bytes.
    let length = body.len() as u8;
    let mut record = vec![22, 3, 3, 0, length + 4, kind, 0, 0, length];
    record.extend(body);
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        text.split_whitespace().map(|it| it.parse().unwrap()).collect()
    }

    #[test]
    fn accepts_a_flight_in_other_records() {
        let flight = [22, 3, 1, 0, 3, 1, 0, 0, 22, 3, 3, 0, 3, 2, 8, 9, 20, 3, 3, 0, 1, 1];
        let out = rewrite(&flight, &tokens("empty:0900*2 hello:ffff[0..1] raw:aa hello:0301[1..]"));
        let mut wanted = vec![22, 9, 0, 0, 0, 22, 9, 0, 0, 0, 22, 255, 255, 0, 1, 1, 0xaa];
        wanted.extend([22, 3, 1, 0, 5, 0, 0, 2, 8, 9, 20, 3, 3, 0, 1, 1]);
        assert_eq!(out, wanted);
    }

    #[test]
    fn refuses_to_read_beyond_a_flight() {
        assert_eq!(rewrite(&[22, 3, 1, 0, 9, 1], &tokens("hello:0301")).len(), 5 + 6);
        assert_eq!(rewrite(&[], &tokens("hello:0301[5..9]")), [22, 3, 1, 0, 0]);
    }
}
