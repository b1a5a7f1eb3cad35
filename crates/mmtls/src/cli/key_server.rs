//! `mmtls key-server`: keys are taken here, and go to a middlebox's workers.
//!
//! Refuses to start where keys would have no way at all: certificates, interface and addresses are looked at first.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use mmtls::sandbox::SandboxSection;
use mmtls::sandbox::calls::{KEY_CHANNEL, KEY_SENDER};
use mmtls_agent::Channel;
use mmtls_key_server::{Counters, DESTINATION, KeyServer, Settings};
use mmtls_keyshare::server::{Identity, ServerConfig};
use mmtls_middlebox::{Error, harden};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::confine;
use super::service;

#[derive(Args)]
pub struct KeyServerArgs {
    /// Take keys from endpoints at this address.
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// PEM certificate: endpoints verify it, and it is shown to the middlebox, whose keys.key_servers names it.
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// PEM key of that certificate.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Require certificates of this authority from endpoints.
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Endpoints that may be connected at a time.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// The middlebox; NAME is what its certificate must say.
    #[arg(long, value_name = "[NAME@]HOST:PORT")]
    middlebox: String,
    /// PEM file of the authorities that may certify the middlebox.
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// A key that the middlebox may have, by its hash (repeatable): others are refused, whoever certifies them.
    #[arg(long, value_name = "sha256/BASE64")]
    pin: Vec<String>,
    /// An interface in the monitored network: keys go out of it as sealed packets of their connections, past no router, to
    /// the middlebox's worker. Without it they go over the connection to the middlebox.
    #[arg(long, value_name = "IF")]
    interface: Option<String>,
    /// The link address for these packets: one that leads across the middlebox. Without it one that nobody has, to which
    /// switches send by every port.
    #[arg(long, value_name = "MAC", requires = "interface", value_parser = link_address)]
    destination: Option<[u8; 6]>,
    /// Bind the thread that takes keys to this processor.
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Keep every file, connection and system call that this user has.
    #[arg(long)]
    no_sandbox: bool,
}

fn link_address(text: &str) -> Result<[u8; 6], String> {
    let octets = text.split(':').map(|octet| u8::from_str_radix(octet, 16));
    let octets: Result<Vec<_>, _> = octets.collect();
    let is_plain = text.bytes().all(|byte| byte == b':' || byte.is_ascii_hexdigit());
    let address = octets.ok().and_then(|octets| octets.try_into().ok()).filter(|_| is_plain);
    address.ok_or_else(|| "expected six octets as in 02:00:00:00:00:01".to_owned())
}

impl KeyServerArgs {
    /// Does what was asked for, until a signal says that it is enough.
    pub fn run(self) -> Result<ExitCode, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Usage(format!("key-server: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1, SIGHUP])
            .map_err(|error| Error::System { what: "signal handlers", error })?;
        harden::forbid_dumps()?;
        let connections = self.max_connections as u64;
        harden::allow_descriptors(connections + harden::SPARE_DESCRIPTORS)?;
        let settings = self.settings()?;
        let prepare = harden::binding_to(self.cpu)?;
        let bound = KeyServer::bind(settings).map_err(|error| wrong(&error))?;
        service::connect();
        let section = SandboxSection { enabled: !self.no_sandbox, ..SandboxSection::default() };
        let certificates =
            [Some(&self.cert), Some(&self.key), Some(&self.ca), self.client_ca.as_ref()];
        let certificates = certificates.into_iter().flatten();
        let sandbox = confine::of_key_server(section.clone(), certificates, &self.middlebox);
        harden::drop_capabilities()?;
        sandbox.enter().map_err(confine::usage)?.iter().for_each(|text| say(text));
        let confine_thread = confine::thread(&section, KEY_CHANNEL | KEY_SENDER)?;
        let prepare = || {
            prepare();
            confine_thread();
        };
        let server = bound.start(prepare).map_err(|error| wrong(&error))?;
        say(&format!("keys on {}, for {}", server.local_addr(), self.middlebox));
        match &self.interface {
            Some(name) => say(&format!("sealed packets leave by {name}")),
            None => say("no --interface: keys go over the connection to the middlebox"),
        }
        service::ready();
        let mut connected = None;
        loop {
            for signal in signals.pending() {
                match signal {
                    SIGINT | SIGTERM => {
                        print(&server.stop(PATIENCE));
                        return Ok(ExitCode::SUCCESS);
                    }
                    SIGUSR1 => print(&server.counters()),
                    _ => match server.reload(&self.identity(), self.client_ca.as_deref()) {
                        Ok(()) => say("certificates were read again"),
                        Err(error) => say(&format!("{error}; the last certificates stay")),
                    },
                }
            }
            let error = server.connection_error();
            if connected.as_ref() != Some(&error) {
                match &error {
                    None => say(&format!("connected to {}", self.middlebox)),
                    Some(error) => say(&format!("middlebox {}: {error}", self.middlebox)),
                }
                connected = Some(error);
            }
            std::thread::sleep(TICK);
        }
    }

    fn identity(&self) -> Identity {
        Identity { certificate_file: self.cert.clone(), key_file: self.key.clone() }
    }

    fn settings(&self) -> Result<Settings, Error> {
        let mut server = ServerConfig::new(self.listen, self.identity());
        server.client_ca_file.clone_from(&self.client_ca);
        server.max_connections = self.max_connections;
        let channel = Channel {
            middleboxes: vec![self.middlebox.clone()],
            ca_file: self.ca.clone(),
            pins: self.pin.clone(),
            client_certificate: Some((self.cert.clone(), self.key.clone())),
        };
        let client = channel.config("mmtls-key-server");
        let client = client.map_err(|error| Error::Usage(format!("key-server: {error}")))?;
        let (interface, destination) =
            (self.interface.clone(), self.destination.unwrap_or(DESTINATION));
        Ok(Settings { server, client, interface, destination })
    }
}

/// What is left at the end has so long to reach the middlebox.
const PATIENCE: Duration = Duration::from_secs(2);
/// How late a signal, and news of the middlebox, may be.
const TICK: Duration = Duration::from_millis(100);

/// A closed stderr must not end it.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "mmtls key-server: {text}");
}

fn print(counters: &Counters) {
    let Counters { server, client, sealed, relayed, interface } = counters;
    let lines = [
        ("endpoints", server.accepted),
        ("endpoints open", server.open),
        ("endpoints over limit", server.over_limit),
        ("failed handshakes", server.failed_handshakes),
        ("malformed", server.malformed),
        ("messages", server.messages),
        ("undelivered", server.undelivered),
        ("sealed", *sealed),
        ("packets sent", interface.sent_frames),
        ("packets lost", interface.send_errors.total()),
        ("relayed", *relayed),
        ("dropped for the middlebox", client.dropped),
        ("middlebox connections", client.connects),
    ];
    let mut out = std::io::stdout();
    for (name, value) in lines {
        // Where nobody reads it, nothing is lost.
        let _ = writeln!(out, "{name}: {value}");
    }
}
