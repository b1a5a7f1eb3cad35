//! The key channel as a worker sees it: deliveries in, questions out.
//!
//! A question finds nobody when the endpoint is just not connected: the middlebox has started again, or the agent. So the last
//! ones are kept, and put once more to who connects.
//!
//! Refuses to keep more than [`MAX_ASKED`], and to wait for a slow endpoint.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use mmtls_engine::{KeyRefusal, KeySenders, KeysNeeded, SharedKeys};
use mmtls_keyshare::message::{Message, Refused};
use mmtls_keyshare::server::{ConnectionId, ServerHandle};

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

/// Most of them that are looked at for that.
const MAX_LOOKED_AT: usize = 1024;

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
}

impl KeyInput {
    /// Deliveries alone: no way back, no key log.
    #[must_use]
    pub fn new(receiver: KeyReceiver, router: Arc<KeyRouter>) -> Self {
        let asked = Asked::default();
        let senders = KeySenders::CLIENT;
        Self { receiver, router, senders, server: None, log: None, sealed: None, asked }
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

    /// Asks the endpoints that may have keys which the engine wants.
    pub(super) fn ask(&mut self, wanted: KeysNeeded, now_ns: u64) {
        let Some(server) = &self.server else {
            return;
        };
        put(server, self.endpoints_of(&wanted), &wanted);
        self.asked.note(wanted, now_ns);
    }

    /// An endpoint has connected: what it could not be asked before.
    pub(super) fn ask_again(&mut self, address: IpAddr, connection: ConnectionId, now_ns: u64) {
        let Some(server) = &self.server else {
            return;
        };
        let identity = self.senders.identity(Some(address));
        let may_know =
            |it: &&KeysNeeded| self.senders.accepts(identity, it.client.ip(), it.server.ip());
        let looked_at = self.asked.recent(now_ns).filter(may_know).take(MAX_LOOKED_AT);
        let its = looked_at.filter(|wanted| self.endpoints_of(wanted).contains(&connection));
        let mut room = MAX_HELLO_BYTES_AGAIN;
        for wanted in its.take(MAX_ASKED_AGAIN) {
            match room.checked_sub(hello_bytes(wanted)) {
                Some(left) => {
                    room = left;
                    put(server, [connection], wanted);
                }
                None => {
                    let without = KeysNeeded { client_hello: None, ..wanted.clone() };
                    put(server, [connection], &without);
                }
            }
        }
    }

    /// There are connections whose beginning was not seen: asks endpoints for the keys of what is under way.
    pub(super) fn ask_for_live_keys(&self, connections: impl IntoIterator<Item = ConnectionId>) {
        let Some(server) = &self.server else {
            return;
        };
        for connection in connections {
            if self.router.asks_for_live_keys(connection) {
                // A full queue means that the endpoint is slow.
                let _ = server.send_to(connection, &Message::LiveKeysRequest);
            }
        }
    }

    fn endpoints_of(&self, wanted: &KeysNeeded) -> Vec<ConnectionId> {
        let ends = [wanted.client.ip(), wanted.server.ip()];
        self.router.connections_to_ask(ends, &self.senders, wanted.epoch, wanted.offers_ech)
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

#[cfg(test)]
mod tests {
    use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, ProtocolVersion};

    use super::*;

    #[test]
    fn accepts_the_latest_questions_first_and_forgets_the_oldest() {
        let wanted = |number: usize| KeysNeeded {
            client: "10.0.0.2:40000".parse().unwrap(),
            server: "10.0.0.3:443".parse().unwrap(),
            client_random: [number as u8; 32],
            server_random: Some([9; 32]),
            version: ProtocolVersion(0x0304),
            cipher_suite: Some(CipherSuite(0x1301)),
            direction: Direction::ClientToServer,
            epoch: KeyEpoch::Application(0),
            offers_ech: false,
            client_hello: None,
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
        let most = KeysNeeded::MAX_CLIENT_HELLO_BYTES;
        for number in 0..=last {
            let client_hello = Some(vec![0; most].into());
            asked.note(KeysNeeded { client_hello, ..wanted(number) }, 0);
        }
        assert_eq!(asked.questions.len(), MAX_HELLO_BYTES / most);
        assert_eq!(asked.hello_bytes, MAX_HELLO_BYTES / most * most);
    }
}
