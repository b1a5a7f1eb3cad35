//! Keys of sessions that are under way: from the endpoints that were asked for them to every worker, since nothing says whose
//! connection it is.
//!
//! Refuses them from anybody who was not asked: each session costs memory in every worker.

use std::net::IpAddr;
use std::sync::PoisonError;

use mmtls_engine::tls::{CipherSuite, ProtocolVersion};
use mmtls_engine::{KeySenders, LiveKey, LiveKeys};
use mmtls_keyshare::message::{Reason, Refused, SessionKeys};
use mmtls_keyshare::server::ConnectionId;
use mmtls_record::{open_record, record_locator};

use super::questions::trusted;
use super::{KeyDelivery, KeyRouter, Routed, WorkerSink};

/// Most connections that are asked about one connection of a client.
const MAX_ASKED: usize = 16;

impl KeyRouter {
    /// Asks an endpoint for all its sessions where it is time to. `ask` says whether the question is on its way; no answer is
    /// looked at meanwhile.
    pub fn ask_for_live_keys(&self, connection: ConnectionId, ask: impl FnOnce() -> bool) {
        self.live_asked.lock().unwrap_or_else(PoisonError::into_inner).ask(connection, ask);
    }

    fn was_asked_for_live_keys(&self, connection: ConnectionId) -> bool {
        self.live_asked.lock().unwrap_or_else(PoisonError::into_inner).awaits(connection)
    }

    /// Who may have the keys of a session between these addresses, whichever is the client's: the connections from there;
    /// else some of those whose keys count for any session.
    #[must_use]
    pub fn connections_at(
        &self,
        addresses: [IpAddr; 2],
        senders: &KeySenders,
    ) -> Vec<ConnectionId> {
        let connections = self.connections();
        let own = addresses.iter().flat_map(|address| connections.at(*address));
        let mut asked: Vec<_> = own.take(MAX_ASKED).map(|agent| agent.connection).collect();
        if asked.is_empty() {
            let others = trusted(&connections, senders);
            let others = others.filter(|(agent, in_network)| *in_network || agent.authenticated);
            asked.extend(others.take(MAX_ASKED).map(|(agent, _)| agent.connection));
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
        if !self.router.was_asked_for_live_keys(ConnectionId::from_number(source)) {
            return Err(refused(Reason::POLICY));
        }
        // No fault of anybody: most suites' records do not tell which they are.
        let Some(keys) = open_live_keys(sender, message) else {
            return Ok(());
        };
        for at in 0..self.queues.len() {
            let Some(keys) = share(&keys) else {
                continue;
            };
            let routed = Routed { delivery: KeyDelivery::Live(Box::new(keys)), passed: 0 };
            match self.queues[at].push(Some(sender), routed) {
                true => self.dirty[at] = true,
                false => {
                    self.router.count_lost();
                    return Err(refused(Reason::CAPACITY));
                }
            }
        }
        Ok(())
    }
}

/// Sets up what finds and opens records; `None` when no key can be used.
fn open_live_keys(sender: IpAddr, message: &SessionKeys) -> Option<LiveKeys> {
    let (version, suite) = (message.version, message.cipher_suite);
    let mut keys = Vec::with_capacity(message.keys.len());
    for entry in &message.keys {
        let (key, iv) = (entry.key.as_bytes(), entry.iv.as_bytes());
        // The handshake is over.
        let Some(updates) = entry.epoch.updates() else {
            continue;
        };
        if let Ok(Some(locator)) = record_locator(version, suite, key, iv)
            && let Ok(opener) = open_record(version, suite, key, iv, entry.mac_key.as_bytes())
        {
            keys.push(LiveKey { direction: entry.direction, updates, opener, locator });
        }
    }
    (!keys.is_empty()).then(|| LiveKeys {
        sender: Some(sender),
        client_random: message.client_random,
        server_random: message.server_random,
        version: ProtocolVersion(version),
        cipher_suite: CipherSuite(suite),
        keys,
    })
}

/// The same for another worker.
fn share(keys: &LiveKeys) -> Option<LiveKeys> {
    let of_each = keys.keys.iter().map(|it| {
        let opener = it.opener.share()?;
        Some(LiveKey { opener, locator: it.locator.clone(), ..*it })
    });
    Some(LiveKeys { keys: of_each.collect::<Option<Vec<_>>>()?, ..*keys })
}
