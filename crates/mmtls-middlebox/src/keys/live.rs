//! Keys of sessions that are under way: from the endpoints to every worker, since nothing says whose connection it is.

use std::net::IpAddr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use mmtls_engine::tls::{CipherSuite, ProtocolVersion};
use mmtls_engine::{LiveKey, LiveKeys};
use mmtls_keyshare::message::{Reason, Refused, SessionKeys};
use mmtls_keyshare::server::ConnectionId;
use mmtls_record::{open_record, record_locator};

use super::{KeyDelivery, KeyRouter, Routed, WorkerSink};

/// Most connections that are asked about one connection of a client.
const MAX_ASKED: usize = 16;

impl KeyRouter {
    /// Who may have the keys of a session between these addresses: the connections from there; where any sender may deliver,
    /// some of the others.
    #[must_use]
    pub fn connections_at(&self, addresses: [IpAddr; 2], any_sender: bool) -> Vec<ConnectionId> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let own = addresses.iter().filter_map(|it| connections.get(it)).flatten();
        let mut asked: Vec<_> = own.take(MAX_ASKED).map(|agent| agent.connection).collect();
        if any_sender && asked.is_empty() {
            let others = connections.values().flatten().filter(|agent| agent.authenticated);
            asked.extend(others.take(MAX_ASKED).map(|agent| agent.connection));
        }
        asked
    }
}

impl WorkerSink {
    /// Puts the keys of a session that is under way into every worker's queue.
    ///
    /// # Errors
    /// As [`WorkerSink::deliver`].
    pub(super) fn deliver_live(
        &mut self,
        sender: IpAddr,
        source: u64,
        message: &SessionKeys,
    ) -> Result<(), Refused> {
        let client_random = message.client_random;
        let refused = |reason| Refused { client_random, reason };
        let mut outcome = Ok(());
        for at in 0..self.queues.len() {
            let Some(keys) = open_live_keys(sender, source, message) else {
                self.router.unusable.fetch_add(1, Ordering::Relaxed);
                return Err(refused(Reason::UNSUPPORTED));
            };
            let routed = Routed { delivery: KeyDelivery::Live(Box::new(keys)), passed: 0 };
            match self.queues[at].queue.push(Some(sender), routed) {
                Ok(()) => self.dirty[at] = true,
                Err(_) => {
                    self.router.count_lost();
                    outcome = Err(refused(Reason::CAPACITY));
                }
            }
        }
        outcome
    }
}

/// Sets up what finds and opens records; `None` when no key can be used.
fn open_live_keys(sender: IpAddr, source: u64, message: &SessionKeys) -> Option<LiveKeys> {
    let (version, suite) = (message.version, message.cipher_suite);
    let mut keys = Vec::with_capacity(message.keys.len());
    for entry in &message.keys {
        let (key, iv) = (entry.key.as_bytes(), entry.iv.as_bytes());
        // The handshake is over.
        let Some(updates) = entry.epoch.updates() else {
            continue;
        };
        if let Ok(opener) = open_record(version, suite, key, iv, entry.mac_key.as_bytes())
            && let Ok(locator) = record_locator(version, suite, key, iv)
        {
            keys.push(LiveKey { direction: entry.direction, updates, opener, locator });
        }
    }
    (!keys.is_empty()).then(|| LiveKeys {
        sender: Some(sender),
        source,
        client_random: message.client_random,
        server_random: message.server_random,
        version: ProtocolVersion(version),
        cipher_suite: CipherSuite(suite),
        flow: message.flow.map(|flow| (flow.client(), flow.server())),
        keys,
    })
}
