//! Key sharing for rustls clients: record keys go to the middleboxes, secrets stay.
//!
//! rustls reports traffic secrets to the key log of a configuration; ours derives the record keys
//! in the process and sends only those, without waiting for the network; a process that is forked shares nothing. The private-tag key and the handshake's
//! keys are never shared. Server names that the policy exempts get null keys instead.
//!
//! Refuses: to block a connection for the network, to write secrets anywhere, TLS 1.2 (rustls
//! does not say which suite and server random a master secret belongs to), and suites of
//! providers other than [`crate::provider`]. Not for QUIC: a key log does not say what transport a
//! secret is for, so its keys would be sent as if they were those of TLS records.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mmtls_keyshare::Flow;
use mmtls_keyshare::client::{Client, ClientConfig as ChannelConfig, ClientCounters, StartError};
use mmtls_keyshare::keylog::Label;
use mmtls_keyshare::message::{Message, NullKeys, Random};
use mmtls_keyshare::policy::ServerNames;
use mmtls_record::{Direction, KeyEpoch};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, KeyLog};

use crate::hkdf;
use crate::sessions::{self, Sessions};

/// Shares the keys of a program's connections with its middleboxes.
pub struct Sharing {
    client: Client,
    sessions: Arc<Mutex<Sessions>>,
    exempt: ServerNames,
    unsupported: AtomicU64,
}

impl Sharing {
    /// Connects to the middleboxes in the background. Sessions with servers of `exempt` names are
    /// not shared.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(channel: ChannelConfig, exempt: ServerNames) -> Result<Arc<Self>, StartError> {
        let sessions = Arc::new(Mutex::new(Sessions::new()));
        let answering = Arc::clone(&sessions);
        let client = Client::start(
            channel,
            Box::new(move |message| match message {
                Message::KeyRequest(request) => {
                    vec![answering.lock().unwrap_or_else(PoisonError::into_inner).answer(&request)]
                }
                Message::EchKeyRequest(asked) => {
                    answering.lock().unwrap_or_else(PoisonError::into_inner).answer_ech(asked)
                }
                Message::LiveKeysRequest => {
                    answering.lock().unwrap_or_else(PoisonError::into_inner).all()
                }
                _ => Vec::new(),
            }),
        )?;
        Ok(Arc::new(Self { client, sessions, exempt, unsupported: AtomicU64::new(0) }))
    }

    /// Waits until every middlebox is connected; `false` when `timeout` passes first.
    #[must_use]
    pub fn wait_connected(&self, timeout: Duration) -> bool {
        self.client.wait_connected(timeout)
    }

    /// What was sent so far.
    #[must_use]
    pub fn counters(&self) -> ClientCounters {
        self.client.counters()
    }

    /// Secrets whose keys could not be shared: of TLS 1.2, or of a configuration that was not made
    /// with [`crate::provider`].
    #[must_use]
    pub fn unsupported(&self) -> u64 {
        self.unsupported.load(Ordering::Relaxed)
    }

    fn count_unsupported(&self) {
        self.unsupported.fetch_add(1, Ordering::Relaxed);
    }

    /// The configuration for one connection to `name`: `base` with our key log. Sessions of
    /// `base` can be resumed with it and the other way round.
    #[must_use]
    pub fn client_config(
        self: &Arc<Self>,
        base: &ClientConfig,
        name: &ServerName<'_>,
    ) -> Arc<ClientConfig> {
        self.config(base, name, None)
    }

    /// As [`Self::client_config`], for a connection whose ends are known: its keys need not be looked for at each of a
    /// middlebox's workers, and a key server can steer them.
    #[must_use]
    pub fn client_config_of(
        self: &Arc<Self>,
        base: &ClientConfig,
        name: &ServerName<'_>,
        flow: Flow,
    ) -> Arc<ClientConfig> {
        self.config(base, name, Some(flow))
    }

    fn config(
        self: &Arc<Self>,
        base: &ClientConfig,
        name: &ServerName<'_>,
        flow: Option<Flow>,
    ) -> Arc<ClientConfig> {
        let exempt = self.exempt.matches(name.to_str().as_bytes());
        let mut config = base.clone();
        config.key_log = Arc::new(SharingLog { sharing: Arc::clone(self), exempt, flow });
        Arc::new(config)
    }

    fn send(&self, message: &Message) {
        // A full queue is in the counters; our own messages keep to the limits.
        let _ = self.client.send(message);
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").field("counters", &self.counters()).finish_non_exhaustive()
    }
}

/// The key log of connections to one server.
struct SharingLog {
    sharing: Arc<Sharing>,
    exempt: bool,
    flow: Option<Flow>,
}

impl fmt::Debug for SharingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharingLog").field("exempt", &self.exempt).finish_non_exhaustive()
    }
}

impl KeyLog for SharingLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let Ok(client_random) = Random::try_from(client_random) else {
            return;
        };
        let traffic = match Label::parse(label.as_bytes()) {
            // The first secret of a session, of whatever version: nothing of it is ever shared.
            Some(
                Label::Master
                | Label::Traffic(_, KeyEpoch::EarlyData)
                | Label::Traffic(Direction::ClientToServer, KeyEpoch::Handshake),
            ) if self.exempt => {
                let null = NullKeys { client_random, direction: None, flow: self.flow };
                self.sharing.send(&Message::NullKeys(null));
                // By its other random, if it has one.
                if let Some(flow) = self.flow {
                    let sessions = self.sharing.sessions.lock();
                    let told = sessions.unwrap_or_else(PoisonError::into_inner).refuse(flow);
                    told.iter().for_each(|message| self.sharing.send(message));
                }
                return;
            }
            Some(Label::Master) => return self.sharing.count_unsupported(),
            Some(Label::Traffic(_, KeyEpoch::EarlyData)) => None,
            Some(Label::Traffic(direction, KeyEpoch::Application(0))) => Some(direction),
            _ => return,
        };
        if self.exempt {
            return;
        }
        let keys = hkdf::suite_of(secret).and_then(|suite| match traffic {
            None => sessions::early(client_random, suite, secret),
            Some(direction) => {
                let sessions = self.sharing.sessions.lock();
                let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
                sessions.first(client_random, suite, direction, secret, self.flow)
            }
        });
        match keys {
            Some(mut message) => {
                if let Message::SessionKeys(keys) = &mut message {
                    // Also of early data.
                    keys.flow = self.flow;
                }
                self.sharing.send(&message);
                let sessions = self.sharing.sessions.lock();
                let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
                let others = sessions.by_other_randoms(&message);
                drop(sessions);
                others.iter().for_each(|message| self.sharing.send(message));
            }
            None => self.sharing.count_unsupported(),
        }
    }
}
