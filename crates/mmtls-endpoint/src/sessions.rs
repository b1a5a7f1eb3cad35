//! The sessions whose keys are shared: secrets in, record keys out.
//!
//! Keeps traffic secrets of each direction, because a middlebox may ask for the keys after a
//! KeyUpdate, which rustls does not log. Refuses more than [`MAX_SESSIONS`] (the least recently used
//! goes first).

use std::hash::RandomState;
use std::num::NonZeroUsize;
use std::time::Instant;

use lru::LruCache;
use mmtls_keyshare::Flow;
use mmtls_keyshare::ech::{self, EchRequests, Match};
use mmtls_keyshare::message::{
    EchKeyRequest, Epoch, KeyEntry, KeyRequest, Message, Random, Reason, Refused, SessionKeys,
};
use mmtls_record::suite::TLS13;
use mmtls_record::{Direction, KeyEpoch, KeyError, Keyring, SessionParameters};

/// Sessions whose secrets are kept.
const MAX_SESSIONS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
/// How many KeyUpdates ahead of what was handed out a middlebox may ask.
const MAX_UPDATES: u32 = 8;

/// The sessions. Not `Debug`, because it holds secrets.
pub struct Sessions {
    known: Known,
    ech: EchRequests,
}

type Known = LruCache<Random, Session, RandomState>;

struct Session {
    keyring: Keyring,
    flow: Option<Flow>,
}

fn keyring(client_random: Random, cipher_suite: u16) -> Result<Keyring, KeyError> {
    // The server's random is not in what rustls logs; the middlebox knows it.
    let (version, server_random) = (TLS13, None);
    let parameters = SessionParameters { version, cipher_suite, client_random, server_random };
    Keyring::new(parameters, MAX_UPDATES)
}

/// The record keys of a session's early data for the middleboxes. `None` when the suite has no key
/// schedule here.
pub fn early(client_random: Random, suite: u16, secret: &[u8]) -> Option<Message> {
    let mut keyring = keyring(client_random, suite).ok()?;
    let (direction, epoch) = (Direction::ClientToServer, KeyEpoch::EarlyData);
    keyring.insert_traffic_secret(direction, epoch, secret).ok()?;
    message(&mut keyring, direction, epoch).ok()
}

/// Keys of one direction and epoch: the traffic secret stays here.
fn message(
    keyring: &mut Keyring,
    direction: Direction,
    epoch: KeyEpoch,
) -> Result<Message, KeyError> {
    let keys = vec![entry(keyring, direction, epoch)?];
    Ok(Message::SessionKeys(session(keyring, keys)))
}

fn entry(
    keyring: &mut Keyring,
    direction: Direction,
    epoch: KeyEpoch,
) -> Result<KeyEntry, KeyError> {
    let keys = keyring.record_keys(direction, epoch)?;
    Epoch::from_key_epoch(epoch)
        .and_then(|epoch| KeyEntry::new(direction, epoch, keys.key(), keys.iv(), keys.mac_key()))
        .ok_or(KeyError::FutureEpoch)
}

fn session(keyring: &Keyring, keys: Vec<KeyEntry>) -> SessionKeys {
    let SessionParameters { version, cipher_suite, client_random, server_random } =
        *keyring.parameters();
    SessionKeys { client_random, server_random, version, cipher_suite, flow: None, keys }
}

impl Sessions {
    pub fn new() -> Self {
        Self::with_capacity(MAX_SESSIONS)
    }

    fn with_capacity(capacity: NonZeroUsize) -> Self {
        let known = LruCache::with_hasher(capacity, RandomState::new());
        Self { known, ech: EchRequests::default() }
    }

    /// Takes the first application traffic secret of a direction, and returns its record keys for
    /// the middleboxes. `None` when the suite has no key schedule here.
    pub fn first(
        &mut self,
        client_random: Random,
        suite: u16,
        direction: Direction,
        secret: &[u8],
        flow: Option<Flow>,
    ) -> Option<Message> {
        let epoch = KeyEpoch::Application(0);
        let mut new = keyring(client_random, suite).ok()?;
        new.insert_traffic_secret(direction, epoch, secret).ok()?;
        let mut keys = message(&mut new, direction, epoch).ok()?;
        let known = self.known.get_mut(&client_random);
        match known.filter(|known| known.keyring.parameters() == new.parameters()) {
            Some(known) => known.keyring.insert_traffic_secret(direction, epoch, secret).ok()?,
            None => drop(self.known.put(client_random, Session { keyring: new, flow })),
        }
        if let Message::SessionKeys(keys) = &mut keys {
            keys.flow = flow;
        }
        Some(keys)
    }

    /// The keys of every session for a middlebox that has not seen their beginnings, the latest used first. rustls does
    /// not report KeyUpdates: those are of the first epoch.
    pub fn all(&mut self) -> Vec<Message> {
        let live = |keyring: &mut Keyring| {
            let mut keys = Vec::with_capacity(2);
            for direction in Direction::BOTH {
                if let Some(updates) = keyring.present_updates(direction) {
                    keys.push(entry(keyring, direction, KeyEpoch::Application(updates)).ok()?);
                }
            }
            (!keys.is_empty()).then(|| Message::LiveKeys(session(keyring, keys)))
        };
        self.known.iter_mut().filter_map(|(_, session)| live(&mut session.keyring)).collect()
    }

    /// The answer to a middlebox that asks for keys.
    pub fn answer(&mut self, request: &KeyRequest) -> Message {
        let client_random = request.client_random;
        grant(&mut self.known, request)
            .unwrap_or_else(|reason| Message::Refused(Refused { client_random, reason }))
    }

    /// The answers to one that asks for a session with Encrypted Client Hello: of each that may be the one.
    pub fn answer_ech(&mut self, asked: EchKeyRequest) -> Vec<Message> {
        let request = asked.request.clone();
        if self.known.contains(&request.client_random) {
            self.ech.is_known(&request.client_random);
            return vec![self.answer(&request)];
        }
        let (Self { known, ech }, now) = (self, Instant::now());
        if let Some(refused) = ech.refused(&asked, now) {
            return vec![refused];
        }
        let has_flow = |session: &Session| session.flow.is_some() && session.flow == asked.flow;
        let exact = known.iter().find(|(_, session)| has_flow(session)).map(|(random, _)| *random);
        let mut answer = |client_random, by| {
            let own = KeyRequest { client_random, ..request.clone() };
            ech::renamed(&grant(known, &own).ok()?, request.client_random, by)
        };
        let exact = exact.and_then(|random| answer(random, Match::Exact));
        match exact {
            Some(exact) => vec![exact],
            None => ech.wait(asked, now, answer),
        }
    }

    /// What those are told who have asked for the session of this connection, which is private.
    pub fn refuse(&mut self, flow: Flow) -> Vec<Message> {
        self.ech.refuse(flow, Instant::now())
    }

    /// Keys of a session that is new, for those that were asked for by another random.
    pub fn by_other_randoms(&mut self, message: &Message) -> Vec<Message> {
        let Message::SessionKeys(keys) = message else {
            return Vec::new();
        };
        let (now, flow) = (Instant::now(), keys.flow);
        if let Some(flow) = flow {
            self.ech.shares(flow);
        }
        let known = ech::Known { client_random: &keys.client_random, server_random: None, flow };
        self.ech.answers(known, now, |request, by| {
            let is = |it: &KeyEntry| (it.direction, it.epoch) == (request.direction, request.epoch);
            let has = keys.keys.iter().any(is);
            has.then(|| ech::renamed(message, request.client_random, by))?
        })
    }
}

fn grant(known: &mut Known, request: &KeyRequest) -> Result<Message, Reason> {
    let wanted = request.epoch.updates().ok_or(Reason::POLICY)?;
    let session = known.get_mut(&request.client_random).ok_or(Reason::UNKNOWN_SESSION)?;
    let epoch = KeyEpoch::Application(wanted);
    message(&mut session.keyring, request.direction, epoch).map_err(|why| match why {
        KeyError::NoSecret | KeyError::PastEpoch => Reason::UNKNOWN_SESSION,
        KeyError::FutureEpoch => Reason::POLICY,
        _ => Reason::UNSUPPORTED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmtls_record::key_schedule;

    fn ask(sessions: &mut Sessions, number: u8, epoch: Epoch) -> Message {
        sessions.answer(&KeyRequest {
            client_random: [number; 32],
            server_random: [9; 32],
            version: 0x0304,
            cipher_suite: 0xff31,
            direction: Direction::ClientToServer,
            epoch,
        })
    }

    fn start(sessions: &mut Sessions, number: u8) -> Option<Message> {
        sessions.first([number; 32], 0xff31, Direction::ClientToServer, &[7; 32], None)
    }

    #[test]
    fn accepts_secrets_and_gives_keys_of_this_and_later_epochs() {
        let mut sessions = Sessions::new();
        let mut secret = vec![7; 32];
        for updates in 0..3 {
            let message = match updates {
                0 => start(&mut sessions, 1).unwrap(),
                _ => ask(&mut sessions, 1, Epoch::application(updates).unwrap()),
            };
            let Message::SessionKeys(session) = message else {
                panic!("no keys");
            };
            let keys = key_schedule::traffic_keys(0xff31, &secret).unwrap();
            assert_eq!(session.cipher_suite, 0xff31);
            assert_eq!(session.keys[0].key.as_bytes(), keys.key());
            assert_eq!(session.keys[0].iv.as_bytes(), keys.iv());
            // Neither of what stays.
            let private = key_schedule::private_tag_key(0xff31, &secret).unwrap();
            assert_ne!(session.keys[0].key.as_bytes(), private.as_bytes());
            assert_eq!(session.keys[0].mac_key.as_bytes(), b"");
            secret = key_schedule::next_secret(0xff31, &secret).unwrap().as_bytes().to_vec();
        }
    }

    #[test]
    fn accepts_requests_of_middleboxes_at_different_paces() {
        let mut sessions = Sessions::new();
        start(&mut sessions, 1);
        let mut key = |updates| match ask(&mut sessions, 1, Epoch::application(updates).unwrap()) {
            Message::SessionKeys(session) => session.keys[0].key.as_bytes().to_vec(),
            _ => panic!("refused: {updates}"),
        };
        let first = [key(1), key(2), key(3)];
        // One asks as far ahead as it can, again and again.
        for updates in (8..=64).step_by(8) {
            key(updates);
        }
        // The other one still gets what it needs, then and later.
        assert_eq!([key(1), key(2), key(3)], first);
        assert_eq!(key(60), key(60));
        let mut secret = vec![7; 32];
        for _ in 0..60 {
            secret = key_schedule::next_secret(0xff31, &secret).unwrap().as_bytes().to_vec();
        }
        assert_eq!(key(60), key_schedule::traffic_keys(0xff31, &secret).unwrap().key());
        assert!(matches!(ask(&mut sessions, 1, Epoch(2 + 73)), Message::Refused(_)));
    }

    #[test]
    fn accepts_questions_for_all_sessions() {
        let mut sessions = Sessions::new();
        start(&mut sessions, 1);
        start(&mut sessions, 2);
        sessions.first([1; 32], 0xff31, Direction::ServerToClient, &[8; 32], None);
        let all = sessions.all();
        let entries = |it: &Message| match it {
            Message::LiveKeys(keys) => (keys.client_random[0], keys.keys.len()),
            _ => panic!("another message"),
        };
        assert_eq!(all.iter().map(entries).collect::<Vec<_>>(), [(1, 2), (2, 1)]);
    }

    #[test]
    fn refuses_what_is_unknown_or_too_far() {
        let mut sessions = Sessions::new();
        let refused = |message| match message {
            Message::Refused(refused) => Some(refused.reason),
            _ => None,
        };
        let unknown = Some(Reason::UNKNOWN_SESSION);
        assert_eq!(refused(ask(&mut sessions, 1, Epoch::APPLICATION)), unknown);
        start(&mut sessions, 1);
        assert_eq!(refused(ask(&mut sessions, 1, Epoch::HANDSHAKE)), Some(Reason::POLICY));
        assert_eq!(refused(ask(&mut sessions, 1, Epoch(u32::MAX))), Some(Reason::POLICY));
        assert!(
            sessions.first([1; 32], 0x1399, Direction::ClientToServer, &[7; 32], None).is_none()
        );
        assert!(
            sessions.first([1; 32], 0xff31, Direction::ClientToServer, &[7; 5], None).is_none()
        );
    }

    #[test]
    fn refuses_to_keep_more_than_its_capacity() {
        let mut sessions = Sessions::with_capacity(NonZeroUsize::new(4).unwrap());
        for number in 0..100 {
            start(&mut sessions, number).unwrap();
            assert!(sessions.known.len() <= 4);
        }
        assert!(matches!(ask(&mut sessions, 99, Epoch(2)), Message::SessionKeys(_)));
    }

    /// With Encrypted Client Hello the middlebox knows another random, and where the connection is known that will do, also
    /// behind a KeyUpdate.
    #[test]
    fn accepts_requests_by_the_random_on_the_wire() {
        let flow = |port| Flow::new(([10, 0, 0, 2], port).into(), ([10, 0, 0, 3], 443).into());
        let asked = |epoch, port| EchKeyRequest {
            request: KeyRequest {
                client_random: [9; 32],
                server_random: [2; 32],
                version: TLS13,
                cipher_suite: 0xff31,
                direction: Direction::ClientToServer,
                epoch,
            },
            flow: flow(port),
            client_hello: [].into(),
        };
        let (secret, direction) = ([7; 32], Direction::ClientToServer);
        let mut sessions = Sessions::new();
        assert!(sessions.answer_ech(asked(Epoch::APPLICATION, 1)).is_empty());
        let first = sessions.first([1; 32], 0xff31, direction, &secret, flow(1)).unwrap();
        let kinds = |messages: &[Message], wire: u8| {
            let is = |it: &Message| match it {
                Message::SessionKeys(keys) => keys.client_random == [wire; 32],
                Message::NullKeys(null) => null.client_random == [wire; 32],
                _ => false,
            };
            assert!(messages.iter().all(is));
            messages.iter().map(Message::kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&sessions.by_other_randoms(&first), 9), [3]);
        for epoch in [Epoch::APPLICATION, Epoch(3), Epoch(4)] {
            assert_eq!(kinds(&sessions.answer_ech(asked(epoch, 1)), 9), [3]);
        }
        // Another connection, and one of which nothing is known: tried, but not behind a KeyUpdate.
        assert!(sessions.answer_ech(asked(Epoch::APPLICATION, 2)).is_empty());
        let mut sessions = Sessions::new();
        let first = sessions.first([1; 32], 0xff31, direction, &secret, None).unwrap();
        assert!(sessions.by_other_randoms(&first).is_empty());
        assert_eq!(kinds(&sessions.answer_ech(asked(Epoch::APPLICATION, 1)), 9), [3]);
        assert!(sessions.answer_ech(asked(Epoch(3), 1)).is_empty());
        // What is private is so by its connection, asked for before or after.
        assert_eq!(kinds(&sessions.refuse(flow(1).unwrap()), 9), [4]);
        assert_eq!(kinds(&sessions.answer_ech(asked(Epoch::APPLICATION, 1)), 9), [4]);
    }
}
