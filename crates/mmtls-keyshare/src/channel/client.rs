//! The endpoint's side of the channel: sends keys to every middlebox of a chain.
//!
//! One background thread per middlebox; a caller never waits for the network, and sends its message itself where the
//! connection is free. After a fork the child sends nothing. Every middlebox has its own bounded queue: while it is away,
//! messages wait, and when the queue is full the oldest gives way (its session is the most likely to be over). Messages that
//! were under way when a connection broke are sent again, so a middlebox may see one twice. Refuses nothing at run time but
//! messages that break the specification.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;

use super::link::{self, Link};
pub use super::pin::{BadPin, Pin};
pub use super::sending::{ClientCounters, RequestHandler, SendError, WelcomeHandler};
pub use super::tls::{Identity, TlsError};
use crate::message::{self, EncodeError, Message};

/// Where a middlebox listens for keys and what its certificate must say.
///
/// Written `HOST:PORT` or, when the certificate has another name, `NAME@HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Middlebox {
    address: String,
    server_name: ServerName<'static>,
}

impl Middlebox {
    /// Host and port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl fmt::Display for Middlebox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

/// Text that is not `[NAME@]HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMiddlebox(pub String);

impl fmt::Display for BadMiddlebox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not [NAME@]HOST:PORT", self.0)
    }
}

impl std::error::Error for BadMiddlebox {}

impl FromStr for Middlebox {
    type Err = BadMiddlebox;

    fn from_str(text: &str) -> Result<Self, BadMiddlebox> {
        let bad = || BadMiddlebox(text.to_owned());
        let (name, address) = match text.split_once('@') {
            Some((name, address)) => (Some(name), address),
            None => (None, text),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(bad)?,
            None if host.contains(':') => return Err(bad()),
            None => host,
        };
        if bare.is_empty() || port.parse::<u16>().map_err(|_| bad())? == 0 {
            return Err(bad());
        }
        let server_name = ServerName::try_from(name.unwrap_or(bare).to_owned());
        Ok(Self { address: address.to_owned(), server_name: server_name.map_err(|_| bad())? })
    }
}

/// What a client needs to know.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Every one of them gets every message.
    pub middleboxes: Vec<Middlebox>,
    /// PEM file with the authorities that may certify a middlebox.
    pub ca_file: PathBuf,
    /// Which keys they may have, besides; none of these is asked for where there are none.
    pub pins: Vec<Pin>,
    /// Shown to a middlebox that asks for a certificate.
    pub identity: Option<Identity>,
    /// Name and version of this program, for the middlebox's log.
    pub software: String,
    /// What this endpoint offers: bits of [`Greeting`](message::Greeting).
    pub capabilities: u32,
    /// Messages that wait per middlebox before the oldest gives way.
    pub queue_messages: usize,
    /// Limit for the TCP and TLS handshakes together with the middlebox's welcome.
    pub connect_timeout: Duration,
    /// First pause after a failed connection; doubles up to `max_pause`, with jitter. Keys that come cut it short,
    /// to a tenth of a second at least.
    pub min_pause: Duration,
    /// Longest pause between attempts; ten seconds where a middlebox was reached and gave no welcome.
    pub max_pause: Duration,
    /// How often one that gives first keys when asked ([`Greeting`](message::Greeting::FIRST_KEYS_ON_REQUEST)) looks whether its
    /// host's address has changed: nobody asks an old address, so nobody tells.
    pub look_pause: Duration,
}

impl ClientConfig {
    /// The defaults: 8192 messages, 5 s to connect, pauses from 50 ms to half a second: whoever waits for keys does
    /// not wait for long. A look at the address once a minute.
    #[must_use]
    pub fn new(middleboxes: Vec<Middlebox>, ca_file: PathBuf) -> Self {
        Self {
            middleboxes,
            ca_file,
            pins: Vec::new(),
            identity: None,
            software: concat!("mmtls/", env!("CARGO_PKG_VERSION")).to_owned(),
            capabilities: 0,
            queue_messages: 8192,
            connect_timeout: Duration::from_secs(5),
            min_pause: Duration::from_millis(50),
            max_pause: Duration::from_millis(500),
            look_pause: Duration::from_secs(60),
        }
    }
}

/// Why a client cannot start: the caller's fault, but for [`StartError::Io`].
#[derive(Debug)]
pub enum StartError {
    /// No middlebox was named.
    NoMiddlebox,
    /// Certificates or keys are unusable.
    Tls(TlsError),
    /// The software name breaks the specification.
    Software(EncodeError),
    /// The system refused a thread or a poll.
    Io(std::io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMiddlebox => f.write_str("no middlebox to share keys with"),
            Self::Tls(error) => error.fmt(f),
            Self::Software(error) => error.fmt(f),
            Self::Io(error) => write!(f, "key-sharing client: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Sends keys in the background. Dropping it stops without waiting.
pub struct Client {
    links: Vec<Link>,
}

impl Client {
    /// Starts the background threads; connecting happens there.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: ClientConfig, on_request: RequestHandler) -> Result<Self, StartError> {
        Self::start_with(config, on_request, None)
    }

    /// As a key server, which speaks for others: [`Message::Relayed`] comes to `on_request`, too.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_key_server(
        mut config: ClientConfig,
        on_request: RequestHandler,
        on_welcome: WelcomeHandler,
    ) -> Result<Self, StartError> {
        config.capabilities |= message::Greeting::KEY_SERVER;
        Self::start_with(config, on_request, Some(on_welcome))
    }

    fn start_with(
        config: ClientConfig,
        on_request: RequestHandler,
        on_welcome: Option<WelcomeHandler>,
    ) -> Result<Self, StartError> {
        if config.middleboxes.is_empty() {
            return Err(StartError::NoMiddlebox);
        }
        let tls =
            super::tls::client_config(&config.ca_file, config.identity.as_ref(), &config.pins)
                .map_err(StartError::Tls)?;
        let hello = Message::Hello(message::Greeting {
            software: config.software.clone(),
            capabilities: config.capabilities,
        });
        let hello = Arc::new(message::encode(&hello).map_err(StartError::Software)?);
        // A key server's address is not that of the sessions.
        let is_asked = config.capabilities & message::Greeting::FIRST_KEYS_ON_REQUEST != 0;
        let look_pause = (is_asked && on_welcome.is_none()).then_some(config.look_pause);
        let on_request: Arc<RequestHandler> = Arc::new(on_request);
        let links = config
            .middleboxes
            .iter()
            .map(|middlebox| {
                link::start(link::Settings {
                    address: middlebox.address.clone(),
                    server_name: middlebox.server_name.clone(),
                    tls: Arc::clone(&tls),
                    hello: Arc::clone(&hello),
                    queue_messages: config.queue_messages.max(1),
                    connect_timeout: config.connect_timeout,
                    min_pause: config.min_pause,
                    max_pause: config.max_pause,
                    look_pause,
                    on_request: Arc::clone(&on_request),
                    on_welcome: on_welcome.clone(),
                })
            })
            .collect::<Result<_, _>>()
            .map_err(StartError::Io)?;
        Ok(Self { links })
    }

    /// Queues a message for every middlebox. Never waits for the network.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::QueueFull`] the message itself is queued.
    pub fn send(&self, message: &Message) -> Result<(), SendError> {
        let bytes = Arc::new(message::encode(message).map_err(SendError::Message)?);
        // Every link gets its copy, whatever happens to the others.
        let results: Vec<_> = self.links.iter().map(|l| l.push(Arc::clone(&bytes))).collect();
        results.into_iter().collect()
    }

    /// Waits until every middlebox is connected; `false` when `timeout` passes first.
    #[must_use]
    pub fn wait_connected(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.links.iter().all(|link| link.wait_connected(deadline))
    }

    /// The middleboxes' addresses, as they were given.
    pub fn addresses(&self) -> impl Iterator<Item = String> {
        self.links.iter().map(|link| link.address().to_owned())
    }

    /// Per middlebox that is not connected: its address and why the last attempt failed.
    #[must_use]
    pub fn connection_errors(&self) -> Vec<(String, String)> {
        self.links.iter().filter_map(Link::last_error).collect()
    }

    /// Sums over all middleboxes.
    #[must_use]
    pub fn counters(&self) -> ClientCounters {
        let mut sum = ClientCounters::default();
        for link in &self.links {
            link.add_counters(&mut sum);
        }
        sum
    }

    /// Delivers what is queued, closes the connections, and returns the final counters. Returns
    /// after `timeout` at the latest; what is queued then is counted as dropped.
    #[must_use]
    pub fn shutdown(&self, timeout: Duration) -> ClientCounters {
        let deadline = Instant::now() + timeout;
        for link in &self.links {
            link.stop(deadline);
        }
        for link in &self.links {
            link.wait_finished(deadline);
        }
        self.counters()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for link in &self.links {
            link.stop(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_middlebox_addresses() {
        for (text, address) in [
            ("box.example:4433", "box.example:4433"),
            ("192.0.2.1:4433", "192.0.2.1:4433"),
            ("[2001:db8::1]:4433", "[2001:db8::1]:4433"),
            ("box.example@192.0.2.1:4433", "192.0.2.1:4433"),
        ] {
            let middlebox: Middlebox = text.parse().unwrap();
            assert_eq!(middlebox.address(), address);
        }
    }

    #[test]
    fn refuses_other_addresses() {
        for text in
            ["", "host", "host:", ":1", "host:0", "host:99999", "::1:4", "[::1:4", "a b:1", "@h:1"]
        {
            assert!(text.parse::<Middlebox>().is_err(), "{text}");
        }
    }
}
