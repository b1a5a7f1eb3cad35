//! Which endpoints are connected, by their addresses and by their connections' numbers.
//!
//! Refuses to go through all of them for one, while packets wait; only where some may share for any session are those looked for
//! among all.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use mmtls_keyshare::message::Greeting;
use mmtls_keyshare::server::{ConnectionId, Peer};

/// An endpoint's connection, what its hello offers, and whether a certificate says who it is.
#[derive(Clone, Copy)]
pub(super) struct Agent {
    pub(super) connection: ConnectionId,
    pub(super) capabilities: u32,
    pub(super) authenticated: bool,
    pub(super) address: SocketAddr,
    pub(super) since: SystemTime,
}

impl Agent {
    /// One that has just said hello.
    pub(super) fn new(peer: &Peer) -> Self {
        let &Peer { connection, capabilities, authenticated, address, .. } = peer;
        Self { connection, capabilities, authenticated, address, since: SystemTime::now() }
    }

    pub(super) fn offers(&self, capability: u32) -> bool {
        self.capabilities & capability == capability
    }

    pub(super) fn answers_first_requests(&self) -> bool {
        self.offers(Greeting::FIRST_KEYS_ON_REQUEST)
    }
}

/// All that are connected.
#[derive(Default)]
pub(super) struct Connections {
    of_addresses: HashMap<IpAddr, Vec<Agent>>,
    /// The same: a number alone does not say which address.
    all: HashMap<ConnectionId, Agent>,
}

impl Connections {
    pub(super) fn add(&mut self, agent: Agent) {
        self.of_addresses.entry(agent.address.ip()).or_default().push(agent);
        self.all.insert(agent.connection, agent);
    }

    /// Takes one out, if it is there.
    pub(super) fn remove(&mut self, connection: ConnectionId) -> Option<Agent> {
        let agent = self.all.remove(&connection)?;
        let address = agent.address.ip();
        if let Some(agents) = self.of_addresses.get_mut(&address) {
            agents.retain(|it| it.connection != connection);
            if agents.is_empty() {
                self.of_addresses.remove(&address);
            }
        }
        Some(agent)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn get(&self, connection: ConnectionId) -> Option<&Agent> {
        self.all.get(&connection)
    }

    /// Those from an address.
    pub(super) fn at(&self, address: IpAddr) -> &[Agent] {
        self.of_addresses.get(&address).map_or(&[], |agents| agents)
    }

    /// Whether there are some.
    pub(super) fn are_at(&self, address: IpAddr) -> bool {
        self.of_addresses.contains_key(&address)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Agent> {
        self.all.values()
    }

    /// All of them, by address.
    pub(super) fn of_addresses(&self) -> impl Iterator<Item = (IpAddr, &[Agent])> {
        self.of_addresses.iter().map(|(address, agents)| (*address, &agents[..]))
    }
}
