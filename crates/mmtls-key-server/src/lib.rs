//! A key server apart from the middlebox: on a SmartNIC, or on another host of the monitored network.
//!
//! Endpoints share their keys with it as they would with the middlebox. It holds one connection to the middlebox, which it
//! tells of each endpoint, and over which the middlebox's questions and refusals come back. Keys whose connection is known go
//! as sealed datagrams ([`mmtls_keyshare::sealed`]) out of an interface in the monitored network, with the connection's own
//! addresses and ports: whatever shares packets out among the middlebox's workers takes them to the one that follows it.
//! Everything else, and all while there is no such interface, goes over the connection to the middlebox.
//!
//! Refuses: to keep keys (what the middlebox asks for is asked of the endpoint), endpoints beyond the key channel's limits,
//! and to read on from endpoints while the middlebox takes nothing: from those first of whose network most waits for it.

#![forbid(unsafe_code)]

mod backlog;
mod counters;
mod packets;
mod relay;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mmtls_keyshare::client::{self, Client, ClientConfig};
use mmtls_keyshare::server::{self, BoundServer, Identity, Server, ServerConfig, TlsError};
use mmtls_packet_io::af_packet::Sender;
use thiserror::Error;

pub use counters::Counters;
use packets::Packets;
use relay::{Relay, RelaySink};

/// A link address that no interface has (locally administered): packets to it come past the middlebox, whose ports take all
/// of them, and hosts beside their way do not look at them.
pub const DESTINATION: [u8; 6] = [0x02, 0x00, 0x00, 0x4b, 0x45, 0x59];

/// What a key server is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where endpoints connect to.
    pub server: ServerConfig,
    /// The way to the middlebox.
    pub client: ClientConfig,
    /// An interface of the monitored network, for sealed datagrams.
    pub interface: Option<String>,
    /// The link address that these are sent to.
    pub destination: [u8; 6],
}

/// Why it cannot start.
#[derive(Debug, Error)]
pub enum Error {
    /// The endpoints' side.
    #[error(transparent)]
    Server(#[from] server::StartError),
    /// The middlebox's side.
    #[error(transparent)]
    Client(#[from] client::StartError),
    /// The interface.
    #[error(transparent)]
    Interface(#[from] mmtls_packet_io::Error),
}

/// One that has opened its sockets and takes nothing yet: now the process can give up its privileges.
pub struct BoundKeyServer {
    server: BoundServer,
    relay: Arc<Relay>,
    client: ClientConfig,
}

/// A running key server. Dropping it stops it.
pub struct KeyServer {
    server: Server,
    relay: Arc<Relay>,
}

impl KeyServer {
    /// Opens the interface and the port.
    ///
    /// # Errors
    /// [`enum@Error`].
    pub fn bind(settings: Settings) -> Result<BoundKeyServer, Error> {
        let relay = Arc::new(Relay::default());
        let packets = match &settings.interface {
            Some(name) => Some(Packets::new(Sender::open(name)?, settings.destination)),
            None => None,
        };
        let sink = RelaySink::new(Arc::clone(&relay), packets, settings.client.queue_messages);
        let server = Server::bind(settings.server, sink)?;
        Ok(BoundKeyServer { server, relay, client: settings.client })
    }

    /// Where endpoints connect to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Why the middlebox is not connected; `None` where it is.
    #[must_use]
    pub fn connection_error(&self) -> Option<String> {
        let errors = self.relay.client().map(Client::connection_errors).unwrap_or_default();
        errors.into_iter().next().map(|(_, error)| error)
    }

    /// Reads the certificates for endpoints again, for connections that begin from now on.
    ///
    /// # Errors
    /// [`TlsError`]; then the last ones stay.
    pub fn reload(&self, identity: &Identity, client_ca: Option<&Path>) -> Result<(), TlsError> {
        self.server.handle().reload(identity, client_ca)
    }

    /// Takes nothing more, and delivers what waits for the middlebox, for so long at most. The final counters.
    #[must_use]
    pub fn stop(self, patience: Duration) -> Counters {
        let Self { server, relay } = self;
        let handle = server.handle();
        server.stop();
        let client = relay.client().map(|client| client.shutdown(patience)).unwrap_or_default();
        Counters { server: handle.counters(), client, ..relay.counters() }
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let client = self.relay.client().map(Client::counters).unwrap_or_default();
        Counters { server: self.server.counters(), client, ..self.relay.counters() }
    }
}

impl BoundKeyServer {
    /// Starts the threads; `prepare` is the first that the one does which takes keys.
    ///
    /// # Errors
    /// [`enum@Error`].
    pub fn start(self, prepare: impl FnOnce() + Send + 'static) -> Result<KeyServer, Error> {
        let Self { server, relay, client } = self;
        relay.connect(client)?;
        let server = server.start_with(prepare)?;
        relay.answer_through(server.handle());
        Ok(KeyServer { server, relay })
    }
}
