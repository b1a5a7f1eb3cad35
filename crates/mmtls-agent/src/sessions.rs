//! The sessions that the agent knows: secrets in, record keys out.
//!
//! Keeps traffic secrets of each direction, because a middlebox may ask for the keys after a
//! KeyUpdate. Refuses: more than [`MAX_SESSIONS`] (the least recently used goes first), keys of
//! the handshake unless asked for, and versions and suites without a key schedule here.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use mmtls_keyshare::Flow;
use mmtls_keyshare::agent::{Datagram, Exempt, SecretKind, TrafficSecret};
use mmtls_keyshare::message::{
    Direction, Epoch, KeyEntry, KeyRequest, Message, NullKeys, Random, Reason, Refused, SessionKeys,
};
use mmtls_record::key_schedule::{self, RecordKeys};
use mmtls_record::suite;
use mmtls_record::updates::{Unavailable, Updates};

/// Sessions whose secrets are kept.
const MAX_SESSIONS: usize = 4096;

/// What the agent did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions whose keys were derived.
    pub shared: u64,
    /// Sessions that the policy exempts.
    pub exempt: u64,
    /// Secrets of versions or suites without a key schedule here.
    pub unsupported: u64,
    /// Secrets after a KeyUpdate of sessions that are not known (any more), or that do not follow.
    pub lost: u64,
    /// Requests of a middlebox that were granted.
    pub granted: u64,
    /// Requests of a middlebox that were refused.
    pub denied: u64,
    /// Refusals by a middlebox.
    pub refused: u64,
    /// Datagrams that were none.
    pub malformed: u64,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sessions shared, {} exempt", self.shared, self.exempt)?;
        for (count, what) in [
            (self.unsupported, "secrets of unsupported versions or suites"),
            (self.lost, "updates lost"),
            (self.denied, "requests denied"),
            (self.refused, "refusals by a middlebox"),
            (self.malformed, "malformed datagrams"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// The sessions. Not `Debug`, because it holds secrets.
pub struct Sessions {
    known: HashMap<Random, Session>,
    /// Sessions in the order of use; entries with an old stamp are stale.
    order: VecDeque<(Random, u64)>,
    stamp: u64,
    capacity: usize,
    /// Handshake keys are shared, too.
    share_handshake: bool,
    counters: Counters,
}

struct Session {
    server_random: Random,
    version: u16,
    cipher_suite: u16,
    flow: Option<Flow>,
    /// By direction, client to server first.
    chains: [Option<Updates>; 2],
    stamp: u64,
}

fn entry(direction: Direction, epoch: Epoch, keys: &RecordKeys) -> Option<KeyEntry> {
    KeyEntry::new(direction, epoch, keys.key(), keys.iv(), keys.mac_key())
}

fn index(direction: Direction) -> usize {
    match direction {
        Direction::ClientToServer => 0,
        Direction::ServerToClient => 1,
    }
}

impl Session {
    fn message(&self, client_random: Random, keys: Vec<KeyEntry>) -> Message {
        Message::SessionKeys(SessionKeys {
            client_random,
            server_random: Some(self.server_random),
            version: self.version,
            cipher_suite: self.cipher_suite,
            flow: self.flow,
            keys,
        })
    }
}

impl Sessions {
    pub fn new(share_handshake: bool) -> Self {
        Self::with_capacity(MAX_SESSIONS, share_handshake)
    }

    fn with_capacity(capacity: usize, share_handshake: bool) -> Self {
        Self {
            known: HashMap::new(),
            order: VecDeque::new(),
            stamp: 0,
            capacity,
            share_handshake,
            counters: Counters::default(),
        }
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What a program sent; returns what the middleboxes are to be told.
    pub fn datagram(&mut self, datagram: &Datagram<'_>) -> Option<Message> {
        match datagram {
            Datagram::Exempt(exempt) => Some(self.exempt(exempt)),
            Datagram::TrafficSecret(secret) => match secret.kind {
                SecretKind::ClientTraffic0 => self.first(secret, Direction::ClientToServer),
                SecretKind::ServerTraffic0 => self.first(secret, Direction::ServerToClient),
                SecretKind::ClientTrafficN => self.later(secret, Direction::ClientToServer),
                SecretKind::ServerTrafficN => self.later(secret, Direction::ServerToClient),
                SecretKind::ClientEarly => {
                    self.single(secret, Direction::ClientToServer, Epoch::EARLY_DATA)
                }
                SecretKind::ClientHandshake => self.handshake(secret, Direction::ClientToServer),
                SecretKind::ServerHandshake => self.handshake(secret, Direction::ServerToClient),
                SecretKind::Tls12Master => self.master(secret),
            },
        }
    }

    /// Counts a datagram that was none.
    pub fn malformed(&mut self) -> Option<Message> {
        self.counters.malformed += 1;
        None
    }

    /// Counts a middlebox's refusal.
    pub fn refused(&mut self, _refused: &Refused) {
        self.counters.refused += 1;
    }

    /// The answer to a middlebox that asks for keys.
    pub fn answer(&mut self, request: &KeyRequest) -> Message {
        match self.grant(request) {
            Ok(message) => {
                self.counters.granted += 1;
                message
            }
            Err(reason) => {
                self.counters.denied += 1;
                Message::Refused(Refused { client_random: request.client_random, reason })
            }
        }
    }

    fn grant(&mut self, request: &KeyRequest) -> Result<Message, Reason> {
        let wanted = request.epoch.updates().ok_or(Reason::POLICY)?;
        self.touch(&request.client_random);
        let session = self.known.get_mut(&request.client_random).ok_or(Reason::UNKNOWN_SESSION)?;
        if session.server_random != request.server_random {
            return Err(Reason::UNKNOWN_SESSION);
        }
        let chain = session.chains[index(request.direction)].as_mut();
        let keys = chain.ok_or(Reason::UNKNOWN_SESSION)?.keys(wanted).map_err(|why| match why {
            Unavailable::Past => Reason::UNKNOWN_SESSION,
            Unavailable::TooFar => Reason::POLICY,
        })?;
        let keys = entry(request.direction, request.epoch, &keys).ok_or(Reason::UNSUPPORTED)?;
        Ok(session.message(request.client_random, vec![keys]))
    }

    fn exempt(&mut self, exempt: &Exempt<'_>) -> Message {
        self.counters.exempt += 1;
        Message::NullKeys(NullKeys { client_random: *exempt.client_random, flow: exempt.flow })
    }

    fn first(&mut self, secret: &TrafficSecret<'_>, direction: Direction) -> Option<Message> {
        let chain = Updates::new(secret.cipher_suite, secret.secret).ok();
        let Some(mut chain) = chain.filter(|_| secret.version == suite::TLS13) else {
            self.counters.unsupported += 1;
            return None;
        };
        let keys = entry(direction, Epoch::APPLICATION, &chain.keys(0).ok()?)?;
        let client_random = *secret.client_random;
        // Another server random is another session, however unlikely.
        if self.known.get(&client_random).is_some_and(|s| s.server_random != *secret.server_random)
        {
            self.known.remove(&client_random);
        }
        if !self.known.contains_key(&client_random) {
            self.counters.shared += 1;
            self.known.insert(
                client_random,
                Session {
                    server_random: *secret.server_random,
                    version: secret.version,
                    cipher_suite: secret.cipher_suite,
                    flow: secret.flow,
                    chains: [None, None],
                    stamp: 0,
                },
            );
        }
        self.touch(&client_random);
        let session = self.known.get_mut(&client_random)?;
        let place = &mut session.chains[index(direction)];
        // When both ends run under this agent, the second report brings nothing new.
        if place.is_some() {
            return None;
        }
        *place = Some(chain);
        Some(session.message(client_random, vec![keys]))
    }

    fn handshake(&mut self, secret: &TrafficSecret<'_>, direction: Direction) -> Option<Message> {
        if !self.share_handshake {
            return None;
        }
        if secret.version != suite::TLS13 {
            self.counters.unsupported += 1;
            return None;
        }
        self.single(secret, direction, Epoch::HANDSHAKE)
    }

    /// A secret of TLS 1.3 that has no successor, and nothing to ask for later.
    fn single(
        &mut self,
        secret: &TrafficSecret<'_>,
        direction: Direction,
        epoch: Epoch,
    ) -> Option<Message> {
        let Ok(keys) = key_schedule::traffic_keys(secret.cipher_suite, secret.secret) else {
            self.counters.unsupported += 1;
            return None;
        };
        let early = epoch == Epoch::EARLY_DATA;
        Some(Message::SessionKeys(SessionKeys {
            client_random: *secret.client_random,
            // There is none yet when early data begin, and the version may not be agreed on.
            server_random: (!early).then_some(*secret.server_random),
            version: suite::TLS13,
            cipher_suite: secret.cipher_suite,
            flow: secret.flow,
            keys: vec![entry(direction, epoch, &keys)?],
        }))
    }

    /// A master secret of TLS 1.2: both directions, one epoch, nothing to ask for later.
    fn master(&mut self, secret: &TrafficSecret<'_>) -> Option<Message> {
        let keys = key_schedule::tls12_keys(
            secret.cipher_suite,
            secret.secret,
            secret.client_random,
            secret.server_random,
        );
        // TLS 1.1 and DTLS log master secrets, too, and derive other keys from them.
        let Some(keys) = keys.ok().filter(|_| secret.version == suite::TLS12) else {
            self.counters.unsupported += 1;
            return None;
        };
        self.counters.shared += 1;
        let mut entries = Vec::new();
        for (direction, keys) in
            [Direction::ClientToServer, Direction::ServerToClient].into_iter().zip(&keys)
        {
            entries.push(entry(direction, Epoch::APPLICATION, keys)?);
        }
        Some(Message::SessionKeys(SessionKeys {
            client_random: *secret.client_random,
            server_random: Some(*secret.server_random),
            version: secret.version,
            cipher_suite: secret.cipher_suite,
            flow: secret.flow,
            keys: entries,
        }))
    }

    fn later(&mut self, secret: &TrafficSecret<'_>, direction: Direction) -> Option<Message> {
        self.touch(secret.client_random);
        let session = self.known.get_mut(secret.client_random);
        let keys = session.and_then(|session| {
            let keys = session.chains[index(direction)].as_mut()?.follow(secret.secret)?;
            let entries = keys
                .iter()
                .map(|(updates, keys)| entry(direction, Epoch::application(*updates)?, keys));
            Some((entries.collect::<Option<Vec<_>>>()?, session))
        });
        let Some((keys, session)) = keys else {
            self.counters.lost += 1;
            return None;
        };
        (!keys.is_empty()).then(|| session.message(*secret.client_random, keys))
    }

    /// Marks a session as used and lets the least recently used ones go.
    fn touch(&mut self, client_random: &Random) {
        let Some(session) = self.known.get_mut(client_random) else {
            return;
        };
        self.stamp += 1;
        session.stamp = self.stamp;
        self.order.push_back((*client_random, self.stamp));
        while self.known.len() > self.capacity {
            let Some((oldest, stamp)) = self.order.pop_front() else {
                break;
            };
            if self.known.get(&oldest).is_some_and(|session| session.stamp == stamp) {
                self.known.remove(&oldest);
            }
        }
        if self.order.len() > 4 * self.capacity {
            let known = &self.known;
            self.order
                .retain(|(random, stamp)| known.get(random).is_some_and(|s| s.stamp == *stamp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmtls_keyshare::agent::Role;
    use mmtls_record::updates::MAX_STEPS;

    const AES_128: u16 = 0x1301;

    fn random(number: u32) -> Random {
        let mut random = [0; 32];
        random[..4].copy_from_slice(&number.to_be_bytes());
        random
    }

    fn tell(
        sessions: &mut Sessions,
        number: u32,
        kind: SecretKind,
        secret: &[u8],
    ) -> Option<Message> {
        sessions.datagram(&Datagram::TrafficSecret(TrafficSecret {
            kind,
            role: Role::Client,
            client_random: &random(number),
            server_random: &[2; 32],
            version: 0x0304,
            cipher_suite: AES_128,
            secret,
            server_name: b"",
            flow: None,
        }))
    }

    fn ask(sessions: &mut Sessions, number: u32, epoch: Epoch) -> Message {
        sessions.answer(&KeyRequest {
            client_random: random(number),
            server_random: [2; 32],
            version: 0x0304,
            cipher_suite: AES_128,
            direction: Direction::ClientToServer,
            epoch,
        })
    }

    fn epochs(message: Option<Message>) -> Vec<u32> {
        match message {
            Some(Message::SessionKeys(session)) => session.keys.iter().map(|k| k.epoch.0).collect(),
            _ => Vec::new(),
        }
    }

    fn reason(message: Message) -> Option<Reason> {
        match message {
            Message::Refused(refused) => Some(refused.reason),
            _ => None,
        }
    }

    fn after(updates: u32) -> Vec<u8> {
        let mut secret = vec![7; 32];
        for _ in 0..updates {
            secret = key_schedule::next_secret(AES_128, &secret).unwrap().as_bytes().to_vec();
        }
        secret
    }

    #[test]
    fn accepts_secrets_and_their_updates() {
        let mut sessions = Sessions::new(false);
        let message = tell(&mut sessions, 1, SecretKind::ClientTraffic0, &after(0));
        let Some(Message::SessionKeys(session)) = &message else {
            panic!("no keys");
        };
        let keys = key_schedule::traffic_keys(AES_128, &after(0)).unwrap();
        assert_eq!(session.keys[0].key.as_bytes(), keys.key());
        assert_eq!(session.keys[0].iv.as_bytes(), keys.iv());
        assert_eq!(epochs(message), [2]);
        // The same again, from the other end.
        assert!(tell(&mut sessions, 1, SecretKind::ClientTraffic0, &after(0)).is_none());
        assert_eq!(epochs(tell(&mut sessions, 1, SecretKind::ClientTrafficN, &after(1))), [3]);
        // Two datagrams lost.
        let kind = SecretKind::ClientTrafficN;
        assert_eq!(epochs(tell(&mut sessions, 1, kind, &after(4))), [4, 5, 6]);
        assert_eq!(epochs(tell(&mut sessions, 1, SecretKind::ServerTraffic0, &[9; 32])), [2]);
        assert_eq!(sessions.counters(), Counters { shared: 1, ..Counters::default() });
    }

    #[test]
    fn accepts_early_secrets_always_and_handshake_secrets_when_asked() {
        for share in [false, true] {
            let mut sessions = Sessions::new(share);
            let early = tell(&mut sessions, 1, SecretKind::ClientEarly, &after(0));
            let Some(Message::SessionKeys(session)) = &early else {
                panic!("no keys");
            };
            assert_eq!((session.server_random, session.version), (None, 0x0304));
            assert_eq!(epochs(early), [0]);
            for kind in [SecretKind::ClientHandshake, SecretKind::ServerHandshake] {
                let told = tell(&mut sessions, 1, kind, &after(0));
                assert_eq!(epochs(told), if share { vec![1] } else { Vec::new() });
            }
            assert_eq!(sessions.counters(), Counters::default());
        }
    }

    #[test]
    fn accepts_requests_and_then_the_logged_secret() {
        let mut sessions = Sessions::new(false);
        tell(&mut sessions, 1, SecretKind::ClientTraffic0, &after(0));
        for updates in [0, 1, 1] {
            let epoch = Epoch::application(updates).unwrap();
            assert_eq!(epochs(Some(ask(&mut sessions, 1, epoch))), [epoch.0]);
        }
        // The program's own report comes after the request was answered; other middleboxes did
        // not ask.
        assert_eq!(epochs(tell(&mut sessions, 1, SecretKind::ClientTrafficN, &after(1))), [3]);
        assert!(tell(&mut sessions, 1, SecretKind::ClientTrafficN, &after(1)).is_none());
        assert_eq!(epochs(tell(&mut sessions, 1, SecretKind::ClientTrafficN, &after(2))), [4]);
        let counters = sessions.counters();
        assert_eq!((counters.granted, counters.denied, counters.lost), (3, 0, 0));
    }

    #[test]
    fn accepts_requests_of_middleboxes_at_different_paces() {
        let mut sessions = Sessions::new(false);
        tell(&mut sessions, 1, SecretKind::ClientTraffic0, &after(0));
        // One is ahead of the other, or asks for more and more of what is to come.
        for updates in [1, 2, 1, 8, 16, 24, 32, 1, 30] {
            let epoch = Epoch::application(updates).unwrap();
            assert_eq!(epochs(Some(ask(&mut sessions, 1, epoch))), [epoch.0], "{updates}");
        }
        // What the program reports still follows.
        let kind = SecretKind::ClientTrafficN;
        assert_eq!(epochs(tell(&mut sessions, 1, kind, &after(2))), [3, 4]);
        assert_eq!(reason(ask(&mut sessions, 1, Epoch(3))), Some(Reason::UNKNOWN_SESSION));
        assert_eq!(sessions.counters().lost, 0);
    }

    #[test]
    fn refuses_secrets_of_other_versions() {
        let mut sessions = Sessions::new(true);
        let mut tell = |kind, version, cipher_suite, secret: &[u8]| {
            sessions.datagram(&Datagram::TrafficSecret(TrafficSecret {
                kind,
                role: Role::Client,
                client_random: &random(1),
                server_random: &[2; 32],
                version,
                cipher_suite,
                secret,
                server_name: b"",
                flow: None,
            }))
        };
        for version in [0x0301, 0x0302, 0x0303, 0x0304, 0xfefd, 0xfefc] {
            let told = tell(SecretKind::Tls12Master, version, 0xc02f, &[8; 48]);
            assert_eq!(epochs(told).len(), if version == 0x0303 { 2 } else { 0 }, "{version:x}");
            for kind in [SecretKind::ClientHandshake, SecretKind::ServerTraffic0] {
                let told = tell(kind, version, AES_128, &after(0));
                assert_eq!(told.is_some(), version == 0x0304, "{version:x}");
            }
        }
        assert_eq!((sessions.counters().shared, sessions.counters().unsupported), (2, 15));
    }

    #[test]
    fn refuses_requests_beyond_the_policy() {
        let mut sessions = Sessions::new(false);
        assert_eq!(reason(ask(&mut sessions, 1, Epoch(2))), Some(Reason::UNKNOWN_SESSION));
        tell(&mut sessions, 1, SecretKind::ClientTraffic0, &after(0));
        tell(&mut sessions, 1, SecretKind::ClientTrafficN, &after(1));
        for (epoch, expected) in [
            (Epoch::EARLY_DATA, Reason::POLICY),
            (Epoch::HANDSHAKE, Reason::POLICY),
            (Epoch::APPLICATION, Reason::UNKNOWN_SESSION),
            (Epoch(3 + MAX_STEPS + 1), Reason::POLICY),
            (Epoch(u32::MAX), Reason::POLICY),
        ] {
            assert_eq!(reason(ask(&mut sessions, 1, epoch)), Some(expected));
        }
    }

    #[test]
    fn refuses_what_does_not_follow() {
        let mut sessions = Sessions::new(false);
        assert!(tell(&mut sessions, 1, SecretKind::ClientTrafficN, &after(1)).is_none());
        tell(&mut sessions, 1, SecretKind::ClientTraffic0, &after(0));
        assert!(tell(&mut sessions, 1, SecretKind::ClientTrafficN, &[8; 32]).is_none());
        assert!(tell(&mut sessions, 1, SecretKind::ClientTraffic0, &[8; 5]).is_none());
        assert!(tell(&mut sessions, 2, SecretKind::Tls12Master, &[8; 48]).is_none());
        let counters = sessions.counters();
        assert_eq!((counters.lost, counters.unsupported), (2, 2));
    }

    #[test]
    fn refuses_to_keep_more_than_its_capacity() {
        let mut sessions = Sessions::with_capacity(4, false);
        for number in 0..100 {
            tell(&mut sessions, number, SecretKind::ClientTraffic0, &after(0));
            // Session 0 stays in use.
            assert!(reason(ask(&mut sessions, 0, Epoch(2))).is_none());
            assert!(sessions.known.len() <= 4);
            assert!(sessions.order.len() <= 17);
        }
        assert!(reason(ask(&mut sessions, 99, Epoch(2))).is_none());
        assert!(reason(ask(&mut sessions, 50, Epoch(2))).is_some());
    }

    #[test]
    fn accepts_exemptions() {
        let mut sessions = Sessions::new(false);
        let exempt = Datagram::Exempt(Exempt { client_random: &[1; 32], flow: None });
        assert!(matches!(sessions.datagram(&exempt), Some(Message::NullKeys(_))));
        assert_eq!(sessions.counters().exempt, 1);
    }
}
