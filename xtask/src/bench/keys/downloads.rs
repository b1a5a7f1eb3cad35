//! The client of part (i): one new connection after another, as rustls makes it, with its keys shared.
//!
//! Refuses to go on after an answer that is not what was asked for.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mmtls_endpoint::Sharing;
use mmtls_keyshare::Flow;
use mmtls_keyshare::client::ClientConfig as Channel;
use mmtls_keyshare::policy::ServerNames;
use mmtls_testkit::address;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Arguments of the hidden subcommand.
#[derive(clap::Args)]
pub struct DownloadArgs {
    /// Where keys go.
    #[arg(long)]
    middlebox: String,
    /// Who certified that, and the server.
    #[arg(long)]
    ca: PathBuf,
    /// How many connections.
    #[arg(long)]
    sessions: u32,
}

/// Downloads.
pub fn run(args: &DownloadArgs) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let middlebox = args.middlebox.parse().map_err(|error| text(&error))?;
    let channel = Channel::new(vec![middlebox], args.ca.clone());
    let exempt = ServerNames::default();
    let sharing = Sharing::start(channel, exempt).map_err(|error| text(&error))?;
    if !sharing.wait_connected(Duration::from_secs(5)) {
        return Err("no middlebox takes keys".to_owned());
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(&args.ca).map_err(|error| text(&error))? {
        let certificate = certificate.map_err(|error| text(&error))?;
        roots.add(certificate).map_err(|error| text(&error))?;
    }
    let mut base = ClientConfig::builder_with_provider(Arc::new(mmtls_endpoint::provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| text(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    base.resumption = rustls::client::Resumption::disabled();
    for _ in 0..args.sessions {
        download(&sharing, &base).map_err(|error| text(&error))?;
    }
    Ok(())
}

fn download(sharing: &Arc<Sharing>, base: &ClientConfig) -> std::io::Result<()> {
    let name = ServerName::try_from(address::SERVER_NAME).map_err(std::io::Error::other)?;
    let socket = TcpStream::connect((address::SERVER_V4, 443))?;
    socket.set_nodelay(true)?;
    let flow = Flow::new(socket.local_addr()?, socket.peer_addr()?);
    let config = match flow {
        Some(flow) => sharing.client_config_of(base, &name, flow),
        None => sharing.client_config(base, &name),
    };
    let tls = ClientConnection::new(config, name).map_err(std::io::Error::other)?;
    let mut tls = StreamOwned::new(tls, socket);
    let host = address::SERVER_NAME;
    write!(tls, "GET /1k HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer)?;
    match answer.starts_with(b"HTTP/1.1 200") && answer.len() > 1024 {
        true => Ok(()),
        false => Err(std::io::Error::other("not the answer that was asked for")),
    }
}
