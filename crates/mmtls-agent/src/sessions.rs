//! The sessions that the agent knows: secrets in, record keys out.
//!
//! Keeps the secrets of each direction, because a middlebox may ask for the keys after a KeyUpdate, or for those of
//! sessions whose beginning it has not seen. Refuses: more than [`MAX_SESSIONS`] (the least recently used goes first), keys of
//! the handshake unless asked for, and versions and suites without a key schedule here.

use std::fmt;
use std::hash::RandomState;
use std::num::NonZeroUsize;

use lru::LruCache;

use mmtls_keyshare::Flow;
use mmtls_keyshare::agent::{Datagram, Exempt, SecretKind, TrafficSecret};
use mmtls_keyshare::message::{
    Epoch, KeyEntry, KeyRequest, Message, NullKeys, Random, Reason, Refused, SessionKeys,
};
use mmtls_record::key_schedule::RecordKeys;
use mmtls_record::suite::TLS13;
use mmtls_record::{Direction, KeyEpoch, KeyError, Keyring, SessionParameters};

/// Sessions whose secrets are kept.
const MAX_SESSIONS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// KeyUpdates that are caught up with at once, and how far ahead a middlebox may ask.
const MAX_UPDATES: u32 = 8;

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

impl Counters {
    /// Whether the program has told of nothing at all.
    pub fn heard_nothing(&self) -> bool {
        self.shared + self.exempt + self.unsupported + self.malformed == 0
    }
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

/// Most reasons of refusals that are told apart: a middlebox cannot fill a terminal with made-up ones.
const MAX_REASONS: usize = 8;

/// The sessions. Not `Debug`, because it holds secrets.
pub struct Sessions {
    // Clients choose the randoms of sessions in which the program is the server, so the hash is a keyed one.
    known: LruCache<Random, Session, RandomState>,
    /// Handshake keys are shared, too.
    share_handshake: bool,
    counters: Counters,
    /// Why middleboxes have refused keys.
    reasons: Vec<Reason>,
}

struct Session {
    flow: Option<Flow>,
    keyring: Keyring,
}

impl Session {
    fn new(secret: &TrafficSecret<'_>) -> Result<Self, KeyError> {
        let parameters = SessionParameters {
            version: secret.version,
            cipher_suite: secret.cipher_suite,
            client_random: *secret.client_random,
            server_random: Some(*secret.server_random),
        };
        Ok(Self { flow: secret.flow, keyring: Keyring::new(parameters, MAX_UPDATES)? })
    }

    /// Takes a traffic secret, and returns the message with its keys.
    fn share(
        &mut self,
        direction: Direction,
        epoch: KeyEpoch,
        secret: &[u8],
    ) -> Result<Message, KeyError> {
        self.keyring.insert_traffic_secret(direction, epoch, secret)?;
        self.keys(direction, epoch)
    }

    fn keys(&mut self, direction: Direction, epoch: KeyEpoch) -> Result<Message, KeyError> {
        let keys = self.keyring.record_keys(direction, epoch)?;
        Ok(self.message(vec![entry(direction, epoch, &keys)?]))
    }

    /// The keys of the epochs that the program is in, as far as it has told of them.
    fn present(&mut self) -> Option<Message> {
        let mut keys = Vec::with_capacity(2);
        for direction in Direction::BOTH {
            let Some(updates) = self.keyring.present_updates(direction) else {
                continue;
            };
            let epoch = KeyEpoch::Application(updates);
            let made = self.keyring.record_keys(direction, epoch).ok()?;
            keys.push(entry(direction, epoch, &made).ok()?);
        }
        (!keys.is_empty()).then(|| self.message(keys))
    }

    fn message(&self, keys: Vec<KeyEntry>) -> Message {
        let SessionParameters { version, cipher_suite, client_random, server_random } =
            *self.keyring.parameters();
        let flow = self.flow;
        Message::SessionKeys(SessionKeys {
            client_random,
            server_random,
            version,
            cipher_suite,
            flow,
            keys,
        })
    }
}

/// Keys as a message carries them. The error is that of lengths and epochs beyond what it has room for.
fn entry(direction: Direction, epoch: KeyEpoch, keys: &RecordKeys) -> Result<KeyEntry, KeyError> {
    Epoch::from_key_epoch(epoch)
        .and_then(|epoch| KeyEntry::new(direction, epoch, keys.key(), keys.iv(), keys.mac_key()))
        .ok_or(KeyError::FutureEpoch)
}

impl Sessions {
    pub fn new(share_handshake: bool) -> Self {
        Self::with_capacity(MAX_SESSIONS, share_handshake)
    }

    fn with_capacity(capacity: NonZeroUsize, share_handshake: bool) -> Self {
        let known = LruCache::with_hasher(capacity, RandomState::new());
        Self { known, share_handshake, counters: Counters::default(), reasons: Vec::new() }
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What a program sent; returns what the middleboxes are to be told.
    pub fn datagram(&mut self, datagram: &Datagram<'_>) -> Option<Message> {
        let secret = match datagram {
            Datagram::Exempt(exempt) => return Some(self.exempt(exempt)),
            Datagram::TrafficSecret(secret) => secret,
        };
        let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
        let message = match secret.kind {
            SecretKind::ClientTraffic0 => self.first(secret, client),
            SecretKind::ServerTraffic0 => self.first(secret, server),
            SecretKind::ClientTrafficN => return self.later(secret, client),
            SecretKind::ServerTrafficN => return self.later(secret, server),
            SecretKind::ClientEarly => early(secret).map(Some),
            SecretKind::ClientHandshake => self.handshake(secret, client),
            SecretKind::ServerHandshake => self.handshake(secret, server),
            SecretKind::Tls12Master => self.master(secret).map(Some),
        };
        message.unwrap_or_else(|_| {
            self.counters.unsupported += 1;
            None
        })
    }

    /// Counts a datagram that was none.
    pub fn malformed(&mut self) -> Option<Message> {
        self.counters.malformed += 1;
        None
    }

    /// Counts a middlebox's refusal.
    pub fn refused(&mut self, refused: &Refused) {
        self.counters.refused += 1;
        if self.reasons.len() < MAX_REASONS && !self.reasons.contains(&refused.reason) {
            self.reasons.push(refused.reason);
        }
    }

    /// Why middleboxes have refused keys.
    pub fn reasons(&self) -> Vec<Reason> {
        self.reasons.clone()
    }

    /// Whether a program has told of this session.
    pub fn knows(&self, client_random: &Random) -> bool {
        self.known.contains(client_random)
    }

    /// The session with this answer of its server.
    pub fn with_server_random(&self, server_random: &Random) -> Option<Random> {
        let is = |session: &Session| {
            session.keyring.parameters().server_random.as_ref() == Some(server_random)
        };
        self.known.iter().find(|(_, session)| is(session)).map(|(random, _)| *random)
    }

    /// The present keys of every session, the latest used first.
    pub fn all(&mut self) -> Vec<Message> {
        self.known.iter_mut().filter_map(|(_, session)| session.present()).collect()
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
        let session = self.known.get_mut(&request.client_random).ok_or(Reason::UNKNOWN_SESSION)?;
        if session.keyring.parameters().server_random != Some(request.server_random) {
            return Err(Reason::UNKNOWN_SESSION);
        }
        let epoch = KeyEpoch::Application(wanted);
        session.keys(request.direction, epoch).map_err(|why| match why {
            KeyError::NoSecret | KeyError::PastEpoch => Reason::UNKNOWN_SESSION,
            KeyError::FutureEpoch => Reason::POLICY,
            _ => Reason::UNSUPPORTED,
        })
    }

    fn exempt(&mut self, exempt: &Exempt<'_>) -> Message {
        self.counters.exempt += 1;
        Message::NullKeys(NullKeys {
            client_random: *exempt.client_random,
            direction: None,
            flow: exempt.flow,
        })
    }

    fn first(
        &mut self,
        secret: &TrafficSecret<'_>,
        direction: Direction,
    ) -> Result<Option<Message>, KeyError> {
        let epoch = KeyEpoch::Application(0);
        let mut new = Session::new(secret)?;
        let message = new.share(direction, epoch, secret.secret)?;
        let known = self.known.get_mut(secret.client_random);
        // Another server random is another session, however unlikely.
        match known.filter(|it| it.keyring.parameters() == new.keyring.parameters()) {
            // When both ends run under this agent, the second report brings nothing new.
            Some(session) if session.keyring.has_application_secret(direction) => Ok(None),
            Some(session) => session.share(direction, epoch, secret.secret).map(Some),
            None => {
                self.counters.shared += 1;
                self.known.put(*secret.client_random, new);
                Ok(Some(message))
            }
        }
    }

    fn handshake(
        &mut self,
        secret: &TrafficSecret<'_>,
        direction: Direction,
    ) -> Result<Option<Message>, KeyError> {
        if !self.share_handshake {
            return Ok(None);
        }
        // There is no later epoch to ask for, so the secret is not kept.
        Session::new(secret)?.share(direction, KeyEpoch::Handshake, secret.secret).map(Some)
    }

    /// A master secret of TLS 1.2: both directions, one epoch.
    fn master(&mut self, secret: &TrafficSecret<'_>) -> Result<Message, KeyError> {
        // TLS 1.1 and DTLS log master secrets, too, and derive other keys from them: refused here.
        let mut session = Session::new(secret)?;
        session.keyring.insert_master_secret(secret.secret)?;
        let epoch = KeyEpoch::Application(0);
        let mut keys = Vec::with_capacity(2);
        for direction in Direction::BOTH {
            keys.push(entry(direction, epoch, &session.keyring.record_keys(direction, epoch)?)?);
        }
        self.counters.shared += 1;
        let message = session.message(keys);
        self.known.put(*secret.client_random, session);
        Ok(message)
    }

    /// A secret after a KeyUpdate.
    fn later(&mut self, secret: &TrafficSecret<'_>, direction: Direction) -> Option<Message> {
        let session = self.known.get_mut(secret.client_random);
        let keys = session.ok_or(KeyError::NoSecret).and_then(|session| {
            let keys = session.keyring.follow_update(direction, secret.secret)?;
            let entries = keys.iter().map(|(epoch, keys)| entry(direction, *epoch, keys));
            Ok((entries.collect::<Result<Vec<_>, _>>()?, session))
        });
        let Ok((keys, session)) = keys else {
            self.counters.lost += 1;
            return None;
        };
        (!keys.is_empty()).then(|| session.message(keys))
    }
}

/// The secret of early data. There is no server random yet when they begin, and the version may not be agreed on.
fn early(secret: &TrafficSecret<'_>) -> Result<Message, KeyError> {
    let parameters = SessionParameters {
        version: TLS13,
        cipher_suite: secret.cipher_suite,
        client_random: *secret.client_random,
        server_random: None,
    };
    let keyring = Keyring::new(parameters, MAX_UPDATES)?;
    let mut session = Session { flow: secret.flow, keyring };
    session.share(Direction::ClientToServer, KeyEpoch::EarlyData, secret.secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmtls_keyshare::agent::Role;
    use mmtls_record::key_schedule;

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
                let message = tell(&mut sessions, 1, kind, &after(0));
                assert_eq!(epochs(message), if share { vec![1] } else { Vec::new() });
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
    fn accepts_questions_for_all_sessions() {
        let mut sessions = Sessions::new(false);
        tell(&mut sessions, 1, SecretKind::ClientTraffic0, &after(0));
        tell(&mut sessions, 2, SecretKind::ClientTraffic0, &after(0));
        tell(&mut sessions, 2, SecretKind::ServerTraffic0, &[9; 32]);
        tell(&mut sessions, 1, SecretKind::ClientTrafficN, &after(3));
        // What somebody asks for ahead is not where the program is.
        ask(&mut sessions, 1, Epoch(9));
        let all = sessions.all();
        let epochs: Vec<_> = all.into_iter().map(|it| epochs(Some(it))).collect();
        assert_eq!(epochs, [vec![5], vec![2, 2]], "the latest used first");
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
            let message = tell(SecretKind::Tls12Master, version, 0xc02f, &[8; 48]);
            assert_eq!(epochs(message).len(), if version == 0x0303 { 2 } else { 0 }, "{version:x}");
            for kind in [SecretKind::ClientHandshake, SecretKind::ServerTraffic0] {
                let message = tell(kind, version, AES_128, &after(0));
                assert_eq!(message.is_some(), version == 0x0304, "{version:x}");
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
            (Epoch(3 + MAX_UPDATES + 1), Reason::POLICY),
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
        let mut sessions = Sessions::with_capacity(NonZeroUsize::new(4).unwrap(), false);
        for number in 0..100 {
            tell(&mut sessions, number, SecretKind::ClientTraffic0, &after(0));
            // Session 0 stays in use.
            assert!(reason(ask(&mut sessions, 0, Epoch(2))).is_none());
            assert!(sessions.known.len() <= 4);
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
