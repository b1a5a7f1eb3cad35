//! The key channel as a worker sees it: deliveries in, questions out.
//!
//! A question finds nobody when the endpoint is just not connected: the middlebox has started again, or the agent. So the last
//! ones are kept, and put once more to who connects.
//!
//! An endpoint that is asked for all its sessions answers with thousands of messages: it is not asked for them again soon.
//!
//! Refuses to keep more than [`MAX_ASKED`], and to wait for a slow endpoint.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use mmtls_engine::{KeyRefusal, KeysNeeded};
use mmtls_keyshare::message::{Message, Refused};
use mmtls_keyshare::server::{ConnectionId, ServerHandle};

use crate::keylog::LiveKeys;
use crate::keys::{self, KeyReceiver, KeyRouter};

/// Questions that are kept; the oldest gives way.
const MAX_ASKED: usize = 4096;

/// How long: few sessions wait for keys longer.
const ASKED_NS: u64 = 10_000_000_000;

/// Most of them that are put to one who connects: any endpoint can connect again and again.
const MAX_ASKED_AGAIN: usize = 256;

/// Most of them that are looked at for that.
const MAX_LOOKED_AT: usize = 1024;

/// Pause between two questions for all sessions of an endpoint: for connections that were picked up since.
const LIVE_KEYS_PAUSE_NS: u64 = 10_000_000_000;

/// The key channel as the worker sees it.
pub struct KeyInput {
    /// Deliveries.
    pub receiver: KeyReceiver,
    /// Which endpoints are connected.
    pub router: Arc<KeyRouter>,
    /// Keys may come from any address, not only from the client's.
    pub any_sender: bool,
    /// The way back to the endpoints; set once the server runs.
    pub server: Option<ServerHandle>,
    /// A key log that is followed.
    pub log: Option<LiveKeys>,
    asked: Asked,
    /// When endpoints were asked for all their sessions, by connection.
    live_asked: HashMap<ConnectionId, u64>,
}

impl KeyInput {
    /// Deliveries alone: no way back, no key log.
    #[must_use]
    pub fn new(receiver: KeyReceiver, router: Arc<KeyRouter>) -> Self {
        let (asked, live_asked) = (Asked::default(), HashMap::new());
        Self { receiver, router, any_sender: false, server: None, log: None, asked, live_asked }
    }

    /// Asks the endpoints that may have keys which the engine wants.
    pub(super) fn ask(&mut self, wanted: KeysNeeded, now_ns: u64) {
        let Some(server) = &self.server else {
            return;
        };
        self.asked.note(wanted, now_ns);
        put(server, self.endpoints_of(&wanted), &wanted);
    }

    /// An endpoint has connected: what it could not be asked before.
    pub(super) fn ask_again(&mut self, address: IpAddr, connection: ConnectionId, now_ns: u64) {
        let Some(server) = &self.server else {
            return;
        };
        let may_know = |it: &&KeysNeeded| self.any_sender || it.client.ip() == address;
        let looked_at = self.asked.recent(now_ns).filter(may_know).take(MAX_LOOKED_AT);
        let its = looked_at.filter(|wanted| self.endpoints_of(wanted).contains(&connection));
        its.take(MAX_ASKED_AGAIN).for_each(|wanted| put(server, [connection], wanted));
    }

    /// There are connections whose beginning was not seen: asks endpoints for the keys of what is under way.
    pub(super) fn ask_for_live_keys(
        &mut self,
        connections: impl IntoIterator<Item = ConnectionId>,
        now_ns: u64,
    ) {
        let Some(server) = &self.server else {
            return;
        };
        let is_recent = |at: &u64| now_ns.saturating_sub(*at) < LIVE_KEYS_PAUSE_NS;
        for connection in connections {
            if self.live_asked.get(&connection).is_some_and(is_recent) {
                continue;
            }
            if self.live_asked.len() >= MAX_ASKED {
                self.live_asked.retain(|_, at| is_recent(at));
            }
            // A full queue means that the endpoint is slow.
            if server.send_to(connection, &Message::LiveKeysRequest).is_ok()
                && self.live_asked.len() < MAX_ASKED
            {
                self.live_asked.insert(connection, now_ns);
            }
        }
    }

    fn endpoints_of(&self, wanted: &KeysNeeded) -> Vec<ConnectionId> {
        self.router.connections_to_ask(wanted.client.ip(), self.any_sender, wanted.epoch)
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
fn put(server: &ServerHandle, to: impl IntoIterator<Item = ConnectionId>, wanted: &KeysNeeded) {
    let Some(message) = keys::request(wanted) else {
        return;
    };
    for connection in to {
        // A full queue means that the endpoint is slow.
        let _ = server.send_to(connection, &message);
    }
}

/// The last questions, and when they were asked.
#[derive(Default)]
struct Asked {
    questions: VecDeque<(u64, KeysNeeded)>,
}

impl Asked {
    fn note(&mut self, wanted: KeysNeeded, now_ns: u64) {
        if self.questions.len() >= MAX_ASKED {
            self.questions.pop_front();
        }
        self.questions.push_back((now_ns, wanted));
    }

    /// Those that may still be waited for, the latest first.
    fn recent(&self, now_ns: u64) -> impl Iterator<Item = &KeysNeeded> {
        let is_recent = move |at: u64| now_ns.saturating_sub(at) < ASKED_NS;
        let questions = self.questions.iter().rev();
        questions.take_while(move |(at, _)| is_recent(*at)).map(|(_, wanted)| wanted)
    }
}

#[cfg(test)]
mod tests {
    use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, ProtocolVersion};

    use super::*;

    #[test]
    fn accepts_the_latest_questions_first_and_forgets_the_oldest() {
        let wanted = |number: usize| KeysNeeded {
            client: "10.0.0.2:40000".parse().unwrap(),
            client_random: [number as u8; 32],
            server_random: Some([9; 32]),
            version: ProtocolVersion(0x0304),
            cipher_suite: Some(CipherSuite(0x1301)),
            direction: Direction::ClientToServer,
            epoch: KeyEpoch::Application(0),
        };
        let mut asked = Asked::default();
        let last = MAX_ASKED + 9;
        for number in 0..=last {
            asked.note(wanted(number), number as u64);
        }
        assert_eq!(asked.recent(last as u64).next(), Some(&wanted(last)));
        assert_eq!(asked.recent(last as u64).count(), MAX_ASKED);
        assert_eq!(asked.recent(ASKED_NS + last as u64 - 2).count(), 2);
        assert_eq!(asked.recent(2 * ASKED_NS).count(), 0);
    }
}
