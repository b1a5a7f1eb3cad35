//! Which of the connected endpoints are asked for the keys of a session.
//!
//! Refuses to ask many of them about one session, and to go through all of them for each question that is put again.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use mmtls_engine::tls::KeyEpoch;
use mmtls_engine::{KeySenders, KeysNeeded};
use mmtls_keyshare::message::Greeting;
use mmtls_keyshare::server::ConnectionId;

use super::KeyRouter;
use super::connections::{Agent, Connections};

/// Most connections that are asked for the keys of one session: any client can make the monitor
/// ask, with one record.
const MAX_ASKED: usize = 256;

/// The same at the address of each of its ends, for the first keys of each session: agents of a host's users. And for later
/// ones, beside whom its keys came from.
const MAX_ASKED_FIRST: usize = 16;

impl KeyRouter {
    /// Who is asked for keys of a session: whom its keys came from, and connections from the addresses that may share them;
    /// where there are none, some of those whose keys count for any session. Keys before any KeyUpdate come
    /// unasked, but for those whose hello asks to be asked; elsewhere than at the session's ends and in trusted networks they
    /// need a certificate for that, since whoever knows a session's random can exempt it.
    ///
    /// Whoever shares keys can make each of them cause a question for the next ones. So these go to many only where nobody
    /// is connected whom keys came from, and `may_ask_many` says so.
    #[must_use]
    pub fn connections_to_ask(
        &self,
        wanted: &KeysNeeded,
        senders: &KeySenders,
        may_ask_many: impl FnOnce() -> bool,
    ) -> Vec<ConnectionId> {
        let &KeysNeeded { client, server, source, epoch, offers_ech, .. } = wanted;
        let ends = || senders.ends(client.ip(), server.ip());
        let Some(needed) = needed_capability(epoch, offers_ech) else {
            return Vec::new();
        };
        if needed != 0 && self.answering.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let connections = self.connections();
        let may_share = |agent: &&Agent| {
            let address = agent.address.ip();
            let for_others =
                || may_be_asked_for_others(agent, is_in_network(senders, address), epoch);
            ends().any(|end| end == address) || senders.trusts(address) && for_others()
        };
        let known = connections.get(ConnectionId::from_number(source));
        let known = known.filter(|agent| agent.offers(needed)).filter(may_share);
        let known = known.map(|agent| agent.connection);
        let asked = |agent: &&Agent| agent.offers(needed) && known != Some(agent.connection);
        let are_at_ends = ends().any(|end| connections.are_at(end));
        let are_many = || ends().any(|end| connections.at(end).len() > MAX_ASKED_FIRST);
        let most = if is_first(epoch) {
            // Any hello may look like one with an encrypted hello in it.
            if are_at_ends || offers_ech { MAX_ASKED_FIRST } else { MAX_ASKED }
        } else if known.is_some() || are_at_ends && !are_many() || !may_ask_many() {
            MAX_ASKED_FIRST
        } else {
            MAX_ASKED
        };
        let mut all: Vec<_> = known.into_iter().collect();
        if are_at_ends {
            for end in ends() {
                let agents = connections.at(end);
                // Of those whom a session's keys came from the latest may have come back just now.
                let latest = if is_first(epoch) { 0 } else { agents.len().min(most / 2) };
                let (earlier, latest) = agents.split_at(agents.len() - latest);
                let chosen = latest.iter().rev().chain(earlier).filter(asked).take(most);
                all.extend(chosen.map(|agent| agent.connection));
            }
            return all;
        }
        let others = trusted(&connections, senders).filter(|(agent, in_network)| {
            asked(agent) && may_be_asked_for_others(agent, *in_network, epoch)
        });
        all.extend(others.take(most).map(|(agent, _)| agent.connection));
        all
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
        let connections = self.connections();
        // If not, it has gone since.
        let Some(agent) = connections.get(connection) else {
            return Vec::new();
        };
        let (is_trusted, in_network) = (senders.trusts(address), is_in_network(senders, address));
        let is_asked = |wanted: &&&KeysNeeded| {
            let epoch = wanted.epoch;
            let ends = || senders.ends(wanted.client.ip(), wanted.server.ip());
            let for_others = || is_trusted && may_be_asked_for_others(agent, in_network, epoch);
            needed_capability(epoch, wanted.offers_ech).is_some_and(|it| agent.offers(it))
                && (ends().any(|end| end == address)
                    || for_others() && !ends().any(|end| connections.are_at(end)))
        };
        questions.iter().filter(is_asked).take(most).copied().collect()
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
    connections: &'a Connections,
    senders: &'a KeySenders,
) -> impl Iterator<Item = (&'a Agent, bool)> {
    // By default nobody's: then nobody looks through all addresses, while packets wait.
    let all = senders.has_trusted().then(|| connections.of_addresses());
    let of = all.into_iter().flatten().filter(|(address, _)| senders.trusts(*address));
    of.flat_map(|(address, agents)| {
        let in_network = is_in_network(senders, address);
        agents.iter().map(move |agent| (agent, in_network))
    })
}
