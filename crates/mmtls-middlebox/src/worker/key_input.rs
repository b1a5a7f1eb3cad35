//! The key channel as a worker sees it: deliveries in, questions out.
//!
//! A question finds nobody when the endpoint is just not connected: the middlebox has started again, or the agent. So the last
//! ones are kept, and put once more to who connects.
//!
//! Refuses to keep more than [`MAX_ASKED`], to put them to networks that connect all the time, and to wait for a slow
//! endpoint.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use mmtls_engine::{KeyRefusal, KeySenders, KeysNeeded, SharedKeys};
use mmtls_keyshare::message::{Message, Refused};
use mmtls_keyshare::server::{ConnectionId, ServerHandle, network};

use crate::keylog::LiveKeys;
use crate::keys::sealed::SealedInput;
use crate::keys::{self, KeyReceiver, KeyRouter};

/// Questions that are kept; the oldest gives way.
const MAX_ASKED: usize = 4096;

/// Bytes of ClientHellos in them.
const MAX_HELLO_BYTES: usize = 4 << 20;

/// How long: few sessions wait for keys longer.
const ASKED_NS: u64 = 10_000_000_000;

/// Most of them that are put to one who connects: any endpoint can connect again and again.
const MAX_ASKED_AGAIN: usize = 256;

/// Bytes of ClientHellos in these: far from what closes the connection of one who does not read at once.
const MAX_HELLO_BYTES_AGAIN: usize = 32 << 10;

/// Most of those of its sessions that are looked at for that.
const MAX_LOOKED_AT: usize = 1024;

/// Questions whose look counts as much as a delivery: each is a comparison of addresses.
const LOOKED_AT_PER_DELIVERY: usize = 16;

/// Most connections of a network to which questions are put again within [`ASKED_NS`]: by default it may have no more at once.
const MAX_CONNECTED: u32 = 1024;

/// Questions to many connections that a network's sessions may cause within [`ASKED_NS`]: any packet of them may be one.
const MAX_ASKED_OF_MANY: u32 = 64;

/// Networks that are remembered for these.
const MAX_NETWORKS: usize = 65_536;

/// The key channel as the worker sees it.
pub struct KeyInput {
    /// Deliveries.
    pub receiver: KeyReceiver,
    /// Which endpoints are connected.
    pub router: Arc<KeyRouter>,
    /// Whose keys count.
    pub senders: KeySenders,
    /// The way back to the endpoints; set once the server runs.
    pub server: Option<ServerHandle>,
    /// A key log that is followed.
    pub log: Option<LiveKeys>,
    /// Packets of key servers, where there may be some.
    pub sealed: Option<SealedInput>,
    asked: Asked,
    /// Connections that have begun.
    connected: Lately,
    /// Questions to many.
    asked_of_many: Lately,
}

impl KeyInput {
    /// Deliveries alone: no way back, no key log.
    #[must_use]
    pub fn new(receiver: KeyReceiver, router: Arc<KeyRouter>) -> Self {
        Self {
            receiver,
            router,
            senders: KeySenders::CLIENT,
            server: None,
            log: None,
            sealed: None,
            asked: Asked::default(),
            connected: Lately::default(),
            asked_of_many: Lately::default(),
        }
    }

    /// Takes a frame that looks like a key server's: it must not go on.
    pub(super) fn takes(&mut self, frame: &[u8]) -> bool {
        let server = self.server.as_ref();
        self.sealed.as_mut().is_some_and(|sealed| sealed.take(frame, server))
    }

    /// The keys that the engine wants, where the key log has them; else they are given when their line comes.
    pub(super) fn find(&mut self, wanted: &KeysNeeded) -> Option<SharedKeys> {
        let log = self.log.as_mut()?;
        // The hello is kept once, not with every request.
        let of_log = KeysNeeded { client_hello: None, ..wanted.clone() };
        log.want(wanted.client_random, wanted.client_hello.as_ref(), of_log)
    }

    /// Asks the endpoints that may have keys which the engine wants. Returns how many.
    pub(super) fn ask(&mut self, wanted: KeysNeeded, now_ns: u64) -> usize {
        let Some(server) = &self.server else {
            return 0;
        };
        let may_ask_many =
            || self.asked_of_many.has_one_more(wanted.client.ip(), now_ns, MAX_ASKED_OF_MANY);
        let endpoints = self.router.connections_to_ask(&wanted, &self.senders, may_ask_many);
        put(server, &endpoints, &wanted);
        self.asked.note(wanted, now_ns);
        endpoints.len()
    }

    /// An endpoint has connected: what it could not be asked before. Returns as how many deliveries that counts.
    pub(super) fn ask_again(
        &mut self,
        address: IpAddr,
        connection: ConnectionId,
        now_ns: u64,
    ) -> usize {
        let Some(server) = &self.server else {
            return 0;
        };
        if !self.connected.has_one_more(address, now_ns, MAX_CONNECTED) {
            return 0;
        }
        let identity = self.senders.identity(Some(address));
        let mut looked_at = 0;
        let may_know = |it: &&KeysNeeded| {
            looked_at += 1;
            self.senders.accepts(identity, it.client.ip(), it.server.ip())
        };
        let questions = self.asked.recent(now_ns).filter(may_know).take(MAX_LOOKED_AT);
        let questions: Vec<_> = questions.collect();
        let cost = looked_at / LOOKED_AT_PER_DELIVERY;
        if questions.is_empty() {
            return cost;
        }
        let senders = &self.senders;
        let its =
            self.router.questions_for(address, connection, senders, &questions, MAX_ASKED_AGAIN);
        let mut room = MAX_HELLO_BYTES_AGAIN;
        for &wanted in &its {
            match room.checked_sub(hello_bytes(wanted)) {
                Some(left) => {
                    room = left;
                    put(server, &[connection], wanted);
                }
                None => {
                    let without = KeysNeeded { client_hello: None, ..wanted.clone() };
                    put(server, &[connection], &without);
                }
            }
        }
        cost + its.len()
    }

    /// There are connections whose beginning was not seen: asks endpoints for the keys of what is under way.
    pub(super) fn ask_for_live_keys(&self, connections: impl IntoIterator<Item = ConnectionId>) {
        let Some(server) = &self.server else {
            return;
        };
        for connection in connections {
            // Where the queue is full, the endpoint is slow: it is asked with the next connection.
            let ask = || server.send_to(connection, &Message::LiveKeysRequest).is_ok();
            self.router.ask_for_live_keys(connection, ask);
        }
    }

    /// Tells an endpoint that its keys are not taken, and why: it cannot know otherwise. Without a sender the
    /// number of the connection says whose they are; 0 is a key log.
    pub(super) fn refuse(
        &self,
        sender: Option<IpAddr>,
        source: u64,
        client_random: [u8; 32],
        why: KeyRefusal,
    ) {
        let (Some(server), Some(reason)) = (&self.server, keys::reason(why)) else {
            return;
        };
        if let Some(connection) = self.router.connection(source, sender) {
            let refused = Message::Refused(Refused { client_random, reason });
            // A full queue means that the endpoint is slow, or flooded with refusals.
            let _ = server.send_to(connection, &refused);
        }
    }
}

/// Puts a question. Who does not know the session says so, which is ignored.
fn put(server: &ServerHandle, to: &[ConnectionId], wanted: &KeysNeeded) {
    if !to.is_empty()
        && let Some(message) = keys::request(wanted)
    {
        // A full queue means that endpoints are slow.
        let _ = server.send_to_each(to, &message);
    }
}

fn hello_bytes(wanted: &KeysNeeded) -> usize {
    wanted.client_hello.as_ref().map_or(0, |hello| hello.len())
}

/// The last questions, and when they were asked.
#[derive(Default)]
struct Asked {
    questions: VecDeque<(u64, KeysNeeded)>,
    hello_bytes: usize,
}

impl Asked {
    fn note(&mut self, wanted: KeysNeeded, now_ns: u64) {
        self.hello_bytes += hello_bytes(&wanted);
        self.questions.push_back((now_ns, wanted));
        while (self.questions.len() > MAX_ASKED || self.hello_bytes > MAX_HELLO_BYTES)
            && let Some((_, oldest)) = self.questions.pop_front()
        {
            self.hello_bytes -= hello_bytes(&oldest);
        }
    }

    /// Those that may still be waited for, the latest first.
    fn recent(&self, now_ns: u64) -> impl Iterator<Item = &KeysNeeded> {
        let is_recent = move |at: u64| now_ns.saturating_sub(at) < ASKED_NS;
        let questions = self.questions.iter().rev();
        questions.take_while(move |(at, _)| is_recent(*at)).map(|(_, wanted)| wanted)
    }
}

/// How much of something each network has had lately.
#[derive(Default)]
struct Lately {
    since_ns: u64,
    of_networks: HashMap<IpAddr, u32>,
}

impl Lately {
    /// Whether the network of this address may have one more, of at most so many.
    fn has_one_more(&mut self, address: IpAddr, now_ns: u64, most: u32) -> bool {
        let is_over = now_ns.saturating_sub(self.since_ns) >= ASKED_NS;
        if is_over || self.of_networks.len() >= MAX_NETWORKS {
            self.of_networks.clear();
            self.since_ns = now_ns;
        }
        let count = self.of_networks.entry(network(address)).or_default();
        *count = count.saturating_add(1);
        *count <= most
    }
}

#[cfg(test)]
mod tests;
