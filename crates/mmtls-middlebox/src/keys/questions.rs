//! Which of the connected endpoints are asked for the keys of a session.
//!
//! Refuses to ask many of them about one session, and to go through all of them for each question that is put again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use mmtls_engine::tls::KeyEpoch;
use mmtls_engine::{KeySenders, KeysNeeded};
use mmtls_keyshare::message::Greeting;
use mmtls_keyshare::server::ConnectionId;

use super::{Agent, KeyRouter};

/// Most connections that are asked for the keys of one session: any client can make the monitor
/// ask, with one record.
const MAX_ASKED: usize = 256;

/// The same at the client's own address, for the first keys of each session: agents of a host's users.
const MAX_ASKED_FIRST: usize = 16;

impl KeyRouter {
    /// Who is asked for keys of a session between a client and a server at these addresses: the connections from those that
    /// may share them; where there are none, some of those whose keys count for any session. Keys before any KeyUpdate come
    /// unasked, but for those whose hello asks to be asked; elsewhere than at the session's ends and in trusted networks they
    /// need a certificate for that, since whoever knows a session's random can exempt it.
    #[must_use]
    pub fn connections_to_ask(
        &self,
        [client, server]: [IpAddr; 2],
        senders: &KeySenders,
        epoch: KeyEpoch,
        offers_ech: bool,
    ) -> Vec<ConnectionId> {
        let Some(needed) = needed_capability(epoch, offers_ech) else {
            return Vec::new();
        };
        if needed != 0 && self.answering.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = |agent: &&Agent| agent.offers(needed);
        let own: Vec<_> =
            senders.ends(client, server).filter_map(|it| connections.get(&it)).collect();
        if !own.is_empty() {
            let most = if is_first(epoch) { MAX_ASKED_FIRST } else { usize::MAX };
            let of_each = own.into_iter().flat_map(|it| it.iter().filter(asked).take(most));
            return of_each.map(|agent| agent.connection).collect();
        }
        let others = trusted(&connections, senders).filter(|(agent, in_network)| {
            asked(agent) && may_be_asked_for_others(agent, *in_network, epoch)
        });
        // Any hello may look like one with an encrypted hello in it.
        let most = if is_first(epoch) && offers_ech { MAX_ASKED_FIRST } else { MAX_ASKED };
        others.take(most).map(|(agent, _)| agent.connection).collect()
    }

    /// Which questions one endpoint, which has just connected, can be asked, as [`Self::connections_to_ask`] says. The limits
    /// there on how many are asked do not count here: it is one.
    pub(crate) fn questions_for<'a>(
        &self,
        address: IpAddr,
        connection: ConnectionId,
        senders: &KeySenders,
        questions: &[&'a KeysNeeded],
        most: usize,
    ) -> Vec<&'a KeysNeeded> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = connections.get(&address).into_iter().flatten();
        let Some(agent) = of_address.into_iter().find(|agent| agent.connection == connection)
        else {
            // It has gone since.
            return Vec::new();
        };
        let (is_trusted, in_network) = (senders.trusts(address), is_in_network(senders, address));
        let is_asked = |wanted: &&&KeysNeeded| {
            let epoch = wanted.epoch;
            let ends = || senders.ends(wanted.client.ip(), wanted.server.ip());
            let for_others = || is_trusted && may_be_asked_for_others(agent, in_network, epoch);
            needed_capability(epoch, wanted.offers_ech).is_some_and(|it| agent.offers(it))
                && (ends().any(|end| end == address)
                    || for_others() && !ends().any(|end| connections.contains_key(&end)))
        };
        questions.iter().filter(is_asked).take(most).copied().collect()
    }
}

impl Agent {
    fn offers(&self, capability: u32) -> bool {
        self.capabilities & capability == capability
    }
}

/// What the hello of whoever is asked has to offer; `None`: nobody is asked.
fn needed_capability(epoch: KeyEpoch, offers_ech: bool) -> Option<u32> {
    match epoch {
        KeyEpoch::Application(1..) => Some(0),
        // Whoever sends keys unasked may send them under another random.
        KeyEpoch::Application(0) if offers_ech => Some(0),
        KeyEpoch::Application(0) => Some(Greeting::FIRST_KEYS_ON_REQUEST),
        KeyEpoch::Handshake => Some(Greeting::HANDSHAKE_KEYS_ON_REQUEST),
        KeyEpoch::EarlyData => None,
    }
}

fn is_first(epoch: KeyEpoch) -> bool {
    matches!(epoch, KeyEpoch::Application(0) | KeyEpoch::Handshake)
}

/// Whether one whose keys count for any session is asked for those of others'.
fn may_be_asked_for_others(agent: &Agent, in_network: bool, epoch: KeyEpoch) -> bool {
    !is_first(epoch) || in_network || agent.authenticated
}

fn is_in_network(senders: &KeySenders, address: IpAddr) -> bool {
    senders.networks.iter().any(|network| network.contains(address))
}

/// Connections whose keys count for any session, and whether that is because of their network.
pub(super) fn trusted<'a>(
    connections: &'a HashMap<IpAddr, Vec<Agent>>,
    senders: &'a KeySenders,
) -> impl Iterator<Item = (&'a Agent, bool)> {
    let of = connections.iter().filter(|(address, _)| senders.trusts(**address));
    of.flat_map(|(address, agents)| {
        let in_network = is_in_network(senders, *address);
        agents.iter().map(move |agent| (agent, in_network))
    })
}
