//! Endpoint on rustls. The contract is in ../README.md.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::exit;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, HandshakeKind, KeyLogFile, NamedGroup,
    RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};

struct Arguments {
    is_server: bool,
    values: HashMap<String, String>,
}

impl Arguments {
    fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    fn required(&self, name: &str) -> &str {
        self.text(name).unwrap_or_else(|| fail(&format!("{name}= is missing")))
    }

    fn number(&self, name: &str, otherwise: usize) -> usize {
        self.text(name).map_or(otherwise, |value| value.parse().unwrap_or_else(|_| fail(name)))
    }
}

fn fail(what: &str) -> ! {
    eprintln!("{what}");
    exit(1)
}

fn must<T, E: std::fmt::Display>(result: Result<T, E>, what: &str) -> T {
    result.unwrap_or_else(|error| fail(&format!("{what}: {error}")))
}

/// The provider with one suite and some groups, where they are given.
fn provider(arguments: &Arguments) -> CryptoProvider {
    let mut provider = match arguments.number("private-tag", 0) {
        0 => aws_lc_rs::default_provider(),
        _ => mmtls_endpoint::provider(),
    };
    if let Some(name) = arguments.text("suite") {
        provider.cipher_suites.retain(|suite| {
            // rustls spells TLS 1.3 suites with the version, and has no names for ours.
            let ours = mmtls_record::suite::name(suite.suite().into());
            format!("{:?}", suite.suite()).replace("TLS13_", "TLS_") == name || ours == Some(name)
        });
    }
    if let Some(names) = arguments.text("groups") {
        let all = std::mem::take(&mut provider.kx_groups);
        for name in names.split(':') {
            let group = match name {
                "P-256" => NamedGroup::secp256r1,
                "P-384" => NamedGroup::secp384r1,
                "X25519MLKEM768" => NamedGroup::X25519MLKEM768,
                _ => fail(name),
            };
            provider.kx_groups.extend(all.iter().copied().find(|it| it.name() == group));
        }
    }
    provider
}

fn identity(arguments: &Arguments) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificate = must(CertificateDer::from_pem_file(arguments.required("cert")), "cert");
    (vec![certificate], must(PrivateKeyDer::from_pem_file(arguments.required("key")), "key"))
}

fn roots(arguments: &Arguments) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let authority = must(CertificateDer::from_pem_file(arguments.required("ca")), "ca");
    must(roots.add(authority), "ca");
    Arc::new(roots)
}

fn client_config(
    arguments: &Arguments,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider(arguments)));
    let builder = must(builder.with_protocol_versions(versions), "version");
    let builder = builder.with_root_certificates(roots(arguments));
    let mut config = if arguments.text("cert").is_some() {
        let (chain, key) = identity(arguments);
        must(builder.with_client_auth_cert(chain, key), "certificate")
    } else {
        builder.with_no_client_auth()
    };
    config.key_log = Arc::new(KeyLogFile::new());
    config.enable_early_data = arguments.number("early", 0) > 0;
    if arguments.text("resume").is_none() {
        config.resumption = Resumption::disabled();
    }
    if arguments.text("mfl").is_some() || arguments.text("fragment").is_some() {
        config.max_fragment_size = Some(arguments.number("fragment", 512));
    }
    config
}

fn server_config(
    arguments: &Arguments,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let provider = Arc::new(provider(arguments));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = must(builder.with_protocol_versions(versions), "version");
    let builder = if arguments.number("auth", 0) > 0 {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(arguments), provider);
        builder.with_client_cert_verifier(must(verifier.build(), "ca"))
    } else {
        builder.with_no_client_auth()
    };
    let (chain, key) = identity(arguments);
    let mut config = must(builder.with_single_cert(chain, key), "certificate");
    config.key_log = Arc::new(KeyLogFile::new());
    if arguments.text("resume") == Some("ticket") {
        config.ticketer = must(aws_lc_rs::Ticketer::new(), "tickets");
    }
    if arguments.number("early", 0) > 0 {
        // rustls takes early data only with state of its own.
        config.ticketer = Arc::new(NoTickets);
        config.max_early_data_size = 16384;
    }
    config
}

/// Tickets switched off, which leaves the server's session cache.
#[derive(Debug)]
struct NoTickets;

impl rustls::server::ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }
    fn lifetime(&self) -> u32 {
        0
    }
    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// One connection with its payload.
struct Endpoint<'a> {
    arguments: &'a Arguments,
    tls: Connection,
    tcp: TcpStream,
    received: Vec<u8>,
    early_sent: usize,
}

impl Endpoint<'_> {
    /// Moves records until there is plaintext; false at the end of the peer's stream.
    fn read_some(&mut self) -> bool {
        let mut buffer = [0; 1 << 14];
        loop {
            match self.tls.reader().read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.received.extend_from_slice(&buffer[..count]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => fail(&format!("read: {error}")),
            }
            while self.tls.wants_write() {
                must(self.tls.write_tls(&mut self.tcp), "write");
            }
            must(self.tls.read_tls(&mut self.tcp), "read");
            must(self.tls.process_new_packets(), "records");
            if let Connection::Server(server) = &mut self.tls
                && let Some(mut early) = server.early_data()
            {
                must(early.read_to_end(&mut self.received), "early data");
            }
        }
    }

    fn flush(&mut self) {
        while self.tls.wants_write() {
            must(self.tls.write_tls(&mut self.tcp), "write");
        }
    }

    fn send(&mut self, part: &[u8]) {
        let chunk = match self.arguments.number("chunk", 0) {
            0 => 1 << 14,
            chunk => chunk,
        };
        for piece in part.chunks(chunk) {
            must(self.tls.writer().write_all(piece), "write");
            self.flush();
        }
    }

    fn receive(&mut self, length: usize) {
        while self.received.len() < length {
            if !self.read_some() {
                fail(&format!("the peer ended after {} bytes", self.received.len()));
            }
        }
    }

    fn handshake(&mut self) {
        while self.tls.is_handshaking() {
            must(self.tls.complete_io(&mut self.tcp), "handshake");
            if let Connection::Server(server) = &mut self.tls
                && let Some(mut early) = server.early_data()
            {
                must(early.read_to_end(&mut self.received), "early data");
            }
        }
        self.flush();
    }

    fn exchange(&mut self, payload: &[u8]) {
        let is_server = self.arguments.is_server;
        let rounds = self.arguments.number("rounds", 1);
        let expected = self.arguments.number("expect", 0);
        for round in 0..rounds {
            let edge = |length: usize, round: usize| length * round / rounds;
            let from = edge(payload.len(), round).max(self.early_sent);
            let part = &payload[from..edge(payload.len(), round + 1)];
            if is_server {
                self.receive(edge(expected, round + 1));
            }
            if round > 0 && self.arguments.text("keyupdate").is_some() {
                must(self.tls.refresh_traffic_keys(), "key update");
            }
            self.send(part);
            if !is_server {
                self.receive(edge(expected, round + 1));
            }
        }
        // The client closes first, and each side reads to the end.
        if !is_server {
            self.tls.send_close_notify();
            self.flush();
        }
        if self.read_some() {
            fail("more bytes than expected");
        }
        if is_server {
            self.tls.send_close_notify();
            self.flush();
        }
    }
}

/// The library does not tell its version.
fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let package = lock.split_once("name = \"rustls\"\nversion = \"").map_or("", |it| it.1);
    package.split('"').next().unwrap_or_default()
}

fn main() {
    let mut words = std::env::args().skip(1);
    let role = words.next().unwrap_or_default();
    if role == "version" {
        println!("rustls {}", version());
        return;
    }
    let is_server = role == "server";
    let values = words.filter_map(|word| {
        word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    });
    let arguments = Arguments { is_server, values: values.collect() };
    let versions: &[&SupportedProtocolVersion] = match arguments.required("version") {
        "1.2" => &[&rustls::version::TLS12],
        _ => &[&rustls::version::TLS13],
    };
    let address = format!("{}:{}", arguments.required("host"), arguments.required("port"));
    let client = (!is_server).then(|| Arc::new(client_config(&arguments, versions)));
    let server = is_server.then(|| Arc::new(server_config(&arguments, versions)));
    let listener = is_server.then(|| {
        let listener = must(TcpListener::bind(&address), "listen");
        println!("ready");
        listener
    });
    for index in 0..arguments.number("connections", 1) {
        let path = format!("{}.{index}", arguments.required("send"));
        let payload = must(fs::read(path), "payload");
        let (tcp, tls) = if let (Some(listener), Some(config)) = (&listener, &server) {
            let tcp = must(listener.accept(), "accept").0;
            (tcp, Connection::Server(must(ServerConnection::new(Arc::clone(config)), "session")))
        } else if let Some(config) = &client {
            let name = must(ServerName::try_from("server.test"), "name");
            let tls = must(ClientConnection::new(Arc::clone(config), name), "session");
            (must(TcpStream::connect(&address), "connect"), Connection::Client(tls))
        } else {
            fail("neither client nor server");
        };
        must(tcp.set_nodelay(true), "socket");
        let mut endpoint =
            Endpoint { arguments: &arguments, tls, tcp, received: Vec::new(), early_sent: 0 };
        let early = arguments.number("early", 0);
        if index > 0
            && let Connection::Client(client) = &mut endpoint.tls
            && early > 0
        {
            match client.early_data() {
                Some(mut writer) => {
                    endpoint.early_sent = must(writer.write(&payload[..early]), "early")
                }
                None => fail("no early data possible"),
            }
        }
        endpoint.handshake();
        if arguments.text("resume").is_some()
            && index > 0
            && endpoint.tls.handshake_kind() != Some(HandshakeKind::Resumed)
        {
            fail("not resumed");
        }
        let group = endpoint.tls.negotiated_key_exchange_group().map(|it| it.name());
        if arguments.text("groups") == Some("X25519MLKEM768")
            && group != Some(NamedGroup::X25519MLKEM768)
        {
            fail("the key exchange is not post-quantum");
        }
        endpoint.exchange(&payload);
        must(
            fs::write(format!("{}.{index}", arguments.required("received")), &endpoint.received),
            "received",
        );
    }
}
