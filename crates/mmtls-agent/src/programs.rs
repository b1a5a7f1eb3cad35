//! What the programs of this host tell, by the preload library's socket and by key logs, and what middleboxes are answered
//! from it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mmtls_keyshare::agent::socket::Sender;
use mmtls_keyshare::agent::{Datagram, Exempt, SecretKind};
use mmtls_keyshare::ech::{self, EchRequests, Known, Match};
use mmtls_keyshare::message::{
    EchKeyRequest, KeyEntry, KeyRequest, Message, NullKeys, Random, Reason, Refused,
};
use rustix::process::geteuid;

use crate::audit::Cause;
use crate::consent::{Consent, Decision, random_of};
use crate::key_logs::KeyLogs;
use crate::rules::{Facts, Share};
use crate::sessions::Sessions;

/// Both sources. Not `Debug`, because they hold secrets.
#[derive(Clone)]
pub struct Programs {
    sessions: Arc<Mutex<Sessions>>,
    logs: Option<Arc<KeyLogs>>,
    consent: Arc<Consent>,
    /// Requests of middleboxes that name sessions by another random than these programs do.
    ech: Arc<Mutex<EchRequests>>,
}

/// What becomes of key logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyLogUse {
    /// There are none.
    None,
    /// They are read, and forgotten.
    Discarded,
    /// Their sessions are shared.
    Shared,
}

impl Programs {
    /// Without key logs, first keys come unasked or not at all. Those that are not shared are read all the same, so that
    /// nobody waits who writes them.
    pub fn new(share_handshake: bool, key_logs: KeyLogUse, consent: Consent) -> Self {
        let sessions = Arc::new(Mutex::new(Sessions::new(share_handshake)));
        let consent = Arc::new(consent);
        let shared = key_logs == KeyLogUse::Shared;
        let logs = (key_logs != KeyLogUse::None)
            .then(|| KeyLogs::new(share_handshake, shared, Arc::clone(&consent)));
        Self { sessions, logs, consent, ech: Arc::default() }
    }

    /// The sessions that the preload library tells of.
    pub fn sessions(&self) -> MutexGuard<'_, Sessions> {
        // Consistent between any two statements, so poison means nothing here.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key logs.
    pub fn logs(&self) -> Option<&Arc<KeyLogs>> {
        self.logs.as_ref()
    }

    /// What the hello of this endpoint offers.
    pub fn capabilities(&self) -> u32 {
        self.logs.as_ref().map_or(0, |logs| logs.capabilities())
    }

    /// What middleboxes are told of a datagram that a program has sent.
    pub fn program_says(&self, sender: &Sender, datagram: &[u8]) -> Vec<Message> {
        let decoded = Datagram::decode(datagram);
        let decision = decoded.as_ref().map_or_else(|_| None, |it| self.decide(sender, it));
        let mut sessions = self.sessions();
        let message = match (&decoded, decision) {
            (Err(_), _) => sessions.malformed(),
            (
                Ok(Datagram::TrafficSecret(secret)),
                Some(Decision { share: Share::Nothing, is_new }),
            ) => {
                // Its secret goes nowhere, and the middlebox is told once.
                let (client_random, flow) = (secret.client_random, secret.flow);
                let exempt = Datagram::Exempt(Exempt { client_random, flow });
                is_new.then(|| sessions.datagram(&exempt)).flatten()
            }
            (Ok(datagram), _) => sessions.datagram(datagram),
        };
        drop(sessions);
        let mut messages =
            message.map_or_else(Vec::new, |message| self.consent.judge(message, Cause::Program));
        let server_random = decoded.ok().and_then(server_random_of);
        messages.extend(self.by_other_randoms(sender, server_random, &messages));
        messages
    }

    /// The same for sessions that middleboxes have asked for by another random.
    fn by_other_randoms(
        &self,
        sender: &Sender,
        server_random: Option<&Random>,
        messages: &[Message],
    ) -> Vec<Message> {
        // A datagram's connection is what its sender says, and everybody on a host sees the ends of everybody's: another
        // user's word for it would keep others' sessions private, or end that.
        let is_own = sender.user == geteuid().as_raw();
        let (mut ech, now) = (self.ech(), Instant::now());
        let mut others = Vec::new();
        for message in messages {
            let (client_random, flow) = match message {
                Message::SessionKeys(keys) => (&keys.client_random, keys.flow),
                Message::NullKeys(null) => (&null.client_random, null.flow),
                _ => continue,
            };
            let flow = flow.filter(|_| is_own);
            if let Message::NullKeys(NullKeys { direction: None, .. }) = message {
                // Only the connection is looked at.
                let told = flow.into_iter().flat_map(|flow| ech.refuse(flow, now));
                others.extend(told.map(|it| (client_random, it)));
                continue;
            }
            if let Some(flow) = flow {
                ech.shares(flow);
            }
            let known = Known { client_random, server_random, flow };
            let told = ech.answers(known, now, |request, by| {
                answers(message, request)
                    .then(|| ech::renamed(message, request.client_random, by))?
            });
            others.extend(told.into_iter().map(|it| (client_random, it)));
        }
        drop(ech);
        for (session, told) in &others {
            self.consent.note(told, Cause::Program, session);
        }
        others.into_iter().map(|(_, told)| told).collect()
    }

    /// What is known of a session that is asked for by another random than its own, perhaps.
    fn answer_ech(&self, asked: &EchKeyRequest) -> Vec<Message> {
        let (request, now) = (&asked.request, Instant::now());
        let mut ech = self.ech();
        let refused = ech.refused(asked, now);
        ech.wait(asked.clone(), now, |_, _| None::<()>);
        drop(ech);
        let judge = |it| self.consent.judge(it, Cause::Request);
        if let Some(refused) = refused {
            return judge(refused);
        }
        let mut sessions = self.sessions();
        if let Some(client_random) = sessions.with_server_random(&request.server_random) {
            let own = KeyRequest { client_random, ..request.clone() };
            let answer = self.answer_of(&mut sessions, &own);
            drop(sessions);
            let judged = judge(answer).into_iter();
            let exact = judged.filter(|it| answers(it, request));
            return exact
                .filter_map(|it| ech::renamed(&it, request.client_random, Match::Exact))
                .collect();
        }
        drop(sessions);
        let guesses = self.logs.iter().flat_map(|logs| logs.guesses(asked));
        guesses
            .flat_map(judge)
            .filter_map(|it| ech::renamed(&it, request.client_random, Match::Guess))
            .collect()
    }

    fn ech(&self) -> MutexGuard<'_, EchRequests> {
        // As the sessions.
        self.ech.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a middlebox is told; nothing where it has asked for a key log's line that is yet to come.
    pub fn middlebox_says(&self, message: &Message) -> Vec<Message> {
        if matches!(message, Message::LiveKeysRequest) {
            return self.live_keys();
        }
        if let Message::EchKeyRequest(asked) = message {
            let request = &asked.request;
            if !self.sessions().knows(&request.client_random) {
                // Its lines may come by the random on the wire all the same: clients pretend to have encrypted hellos.
                let own = self.logs.as_ref().and_then(|logs| logs.answer_ech(asked));
                // What no key log may answer, the library may.
                let own = own.filter(|it| !matches!(it, Message::Refused(_)));
                let own = own.and_then(|it| self.consent.judge(it, Cause::Request).pop());
                let own = own.and_then(|it| ech::renamed(&it, request.client_random, Match::Exact));
                return match own {
                    Some(answer) => vec![answer],
                    None => self.answer_ech(asked),
                };
            }
            return self.middlebox_says(&Message::KeyRequest(request.clone()));
        }
        let answer = self.answer(message);
        // A question is for one direction, and so is its answer.
        let judged = answer.and_then(|it| self.consent.judge(it, Cause::Request).pop());
        judged.into_iter().collect()
    }

    /// The keys of all sessions that may be under way, the latest first.
    fn live_keys(&self) -> Vec<Message> {
        let mut messages = self.sessions().all();
        messages.retain(|it| random_of(it).is_some_and(|random| self.consent.knows(random)));
        if let Some(logs) = &self.logs {
            messages.extend(logs.all());
        }
        self.consent.judge_again(messages).into_iter().map(Message::LiveKeys).collect()
    }

    /// What the rules say of a session.
    fn decide(&self, sender: &Sender, datagram: &Datagram<'_>) -> Option<Decision> {
        let Datagram::TrafficSecret(secret) = datagram else {
            return None;
        };
        let port = secret.flow.map(|flow| flow.server().port());
        let Sender { program, user } = sender;
        let (server_name, program) = (secret.server_name, program.as_deref());
        let facts = Facts { server_name, program, user: Some(*user), port };
        Some(self.consent.decide(secret.client_random, &facts))
    }

    /// The sessions that each rule has decided about.
    pub fn decided(&self) -> Vec<(String, u64)> {
        self.consent.decided()
    }

    fn answer_of(&self, sessions: &mut Sessions, request: &KeyRequest) -> Message {
        let client_random = request.client_random;
        match sessions.knows(&client_random) && !self.consent.knows(&client_random) {
            true => Message::Refused(Refused { client_random, reason: Reason::POLICY }),
            false => sessions.answer(request),
        }
    }

    fn answer(&self, message: &Message) -> Option<Message> {
        match message {
            Message::KeyRequest(request) => {
                let mut sessions = self.sessions();
                match &self.logs {
                    // The program's library may have told of it both ways.
                    Some(logs) if !sessions.knows(&request.client_random) => {
                        drop(sessions);
                        logs.answer(request)
                    }
                    _ => Some(self.answer_of(&mut sessions, request)),
                }
            }
            Message::Refused(refused) => {
                self.sessions().refused(refused);
                None
            }
            _ => None,
        }
    }
}

/// The answer of a session's server, where there was one when its secret came.
fn server_random_of(datagram: Datagram<'_>) -> Option<&Random> {
    match datagram {
        Datagram::TrafficSecret(secret) if secret.kind != SecretKind::ClientEarly => {
            Some(secret.server_random)
        }
        _ => None,
    }
}

/// Whether a message has the keys that are asked for, or says that there are none.
fn answers(message: &Message, request: &KeyRequest) -> bool {
    match message {
        Message::SessionKeys(keys) => {
            let is = |it: &KeyEntry| (it.direction, it.epoch) == (request.direction, request.epoch);
            keys.keys.iter().any(is)
        }
        Message::NullKeys(null) => null.direction.is_none_or(|it| it == request.direction),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use mmtls_keyshare::Flow;
    use mmtls_keyshare::agent::{MAX_DATAGRAM_BYTES, Role, TrafficSecret};
    use mmtls_keyshare::message::Epoch;
    use mmtls_record::Direction;

    use super::*;
    use crate::audit::Audit;
    use crate::rules::{AgentFile, Rules};

    fn secret(client_random: &[u8; 32], kind: SecretKind) -> Datagram<'_> {
        secret_at(client_random, &[2; 32], kind, None)
    }

    fn secret_at<'a>(
        client_random: &'a [u8; 32],
        server_random: &'a [u8; 32],
        kind: SecretKind,
        flow: Option<Flow>,
    ) -> Datagram<'a> {
        Datagram::TrafficSecret(TrafficSecret {
            kind,
            role: Role::Client,
            client_random,
            server_random,
            version: 0x0304,
            cipher_suite: 0x1301,
            secret: &[7; 32],
            server_name: b"",
            flow,
        })
    }

    fn say(programs: &Programs, datagram: &Datagram<'_>) -> Vec<Message> {
        say_as(programs, geteuid().as_raw(), datagram)
    }

    fn say_as(programs: &Programs, user: u32, datagram: &Datagram<'_>) -> Vec<Message> {
        let mut room = [0; MAX_DATAGRAM_BYTES];
        let len = datagram.encode(&mut room).unwrap();
        programs.program_says(&Sender { program: None, user }, &room[..len])
    }

    fn flow(port: u16) -> Option<Flow> {
        Flow::new(([10, 0, 0, 2], port).into(), ([10, 0, 0, 3], 443).into())
    }

    /// A question by the random 9, for what the client sends.
    fn asked(server_random: u8, port: u16) -> Message {
        Message::EchKeyRequest(EchKeyRequest {
            request: request(9, server_random, Direction::ClientToServer),
            flow: flow(port),
            client_hello: [].into(),
        })
    }

    /// Types and randoms: SessionKeys is 3, NullKeys 4.
    fn kinds(messages: &[Message]) -> Vec<(u8, u8)> {
        messages.iter().map(|it| (it.kind(), random_of(it).unwrap()[0])).collect()
    }

    fn request(client_random: u8, server_random: u8, direction: Direction) -> KeyRequest {
        KeyRequest {
            client_random: [client_random; 32],
            server_random: [server_random; 32],
            version: 0x0304,
            cipher_suite: 0x1301,
            direction,
            epoch: Epoch::APPLICATION,
        }
    }

    /// What a rule keeps private stays so when the rule's decision is forgotten, and the session's secrets are not.
    #[test]
    fn refuses_keys_of_sessions_whose_rule_is_forgotten() {
        let text = "[[rules]]\nname = \"own data\"\nshare = \"toserver\"\n";
        let file: AgentFile = toml::from_str(text).unwrap();
        let consent = Consent::new(None, file.rules(), Audit::default());
        let programs = Programs::new(false, KeyLogUse::None, consent);
        let tell = |client_random: &[u8; 32], kind| say(&programs, &secret(client_random, kind));
        let ask = || {
            let asked =
                |direction| programs.middlebox_says(&Message::KeyRequest(request(1, 2, direction)));
            let live = programs.middlebox_says(&Message::LiveKeysRequest);
            let [own, others] = Direction::BOTH.map(asked);
            [own, others, live].map(|it| it.iter().map(Message::kind).collect::<Vec<_>>())
        };
        for kind in [SecretKind::ClientTraffic0, SecretKind::ServerTraffic0] {
            assert_eq!(tell(&[1; 32], kind).len(), 1);
        }
        // SessionKeys, NullKeys, LiveKeys.
        assert_eq!(ask(), [vec![3], vec![4], vec![10]]);
        // Sessions that come no further than their handshakes.
        for number in 0..70_000_u32 {
            let mut random = [3; 32];
            random[..4].copy_from_slice(&number.to_be_bytes());
            assert!(tell(&random, SecretKind::ClientHandshake).is_empty());
        }
        assert_eq!(ask(), [vec![6], vec![6], vec![]]);
    }

    /// With Encrypted Client Hello the library tells of the random inside, and the middlebox asks by the one outside.
    #[test]
    fn accepts_requests_that_name_a_session_by_the_random_on_the_wire() {
        let consent = || Consent::new(None, Rules::default(), Audit::default());
        // A key log that is not shared answers nothing, and keeps nobody else from it.
        let uses = [KeyLogUse::None, KeyLogUse::Discarded, KeyLogUse::Shared];
        let secret = secret(&[1; 32], SecretKind::ClientTraffic0);
        let exempt = Datagram::Exempt(Exempt { client_random: &[1; 32], flow: flow(4000) });
        for (datagram, kind) in [(secret, 3), (exempt, 4)] {
            for key_logs in uses {
                let before = Programs::new(false, key_logs, consent());
                assert!(before.middlebox_says(&asked(8, 4001)).is_empty(), "another one");
                assert!(before.middlebox_says(&asked(2, 4000)).is_empty(), "not yet");
                assert_eq!(kinds(&say(&before, &datagram)), [(kind, 1), (kind, 9)]);
                let after = Programs::new(false, key_logs, consent());
                assert_eq!(kinds(&say(&after, &datagram)), [(kind, 1)]);
                assert_eq!(kinds(&after.middlebox_says(&asked(2, 4000))), [(kind, 9)]);
                assert!(after.middlebox_says(&asked(8, 4001)).is_empty());
            }
        }
    }

    /// Everybody on a host sees the ends of everybody's connections.
    #[test]
    fn refuses_other_users_a_say_in_sessions_that_are_known_by_their_connection() {
        let other = geteuid().as_raw() + 1;
        let consent = |refused| Consent::new(refused, Rules::default(), Audit::default());
        let kind = SecretKind::ClientTraffic0;
        let exempt = Datagram::Exempt(Exempt { client_random: &[1; 32], flow: flow(4000) });
        for asked_before in [true, false] {
            let programs = Programs::new(false, KeyLogUse::None, consent(None));
            let ask = || kinds(&programs.middlebox_says(&asked(2, 4000)));
            assert!(!asked_before || ask().is_empty());
            assert_eq!(kinds(&say_as(&programs, other, &exempt)), [(4, 1)]);
            assert!(ask().is_empty(), "it is not kept private");
            let told = kinds(&say(&programs, &exempt));
            assert_eq!(told, [(4, 1), (4, 9)], "whoever has asked waits");
            let elsewhere = secret_at(&[3; 32], &[5; 32], kind, flow(4000));
            assert_eq!(kinds(&say_as(&programs, other, &elsewhere)), [(3, 3)]);
            assert_eq!(ask(), [(4, 9)], "it stays private");
            assert_eq!(
                kinds(&say(&programs, &secret_at(&[4; 32], &[5; 32], kind, flow(4000)))),
                [(3, 4)]
            );
            assert!(ask().is_empty(), "the control");
        }
        // A direction that is not shared: whose session it is shows by the server's random.
        let direction = Some(Direction::ClientToServer);
        for (server_random, told) in [(5, vec![(4, 3)]), (2, vec![(4, 3), (4, 9)])] {
            let programs = Programs::new(false, KeyLogUse::None, consent(direction));
            assert!(programs.middlebox_says(&asked(2, 4000)).is_empty());
            let server_random = [server_random; 32];
            let secret = secret_at(&[3; 32], &server_random, kind, flow(4000));
            let said = kinds(&say_as(&programs, other, &secret));
            // Nothing is left of the keys, which were of that direction.
            assert_eq!(said, told);
        }
    }

    #[test]
    fn audits_answers_by_other_randoms() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let text = "[[rules]]\nname = \"all\"\nshare = \"everything\"\n";
        let file: AgentFile = toml::from_str(text).unwrap();
        let audit = Audit::open(&path, |text| panic!("{text}")).unwrap();
        let consent = Consent::new(None, file.rules(), audit);
        let programs = Programs::new(false, KeyLogUse::None, consent);
        assert!(programs.middlebox_says(&asked(2, 4000)).is_empty());
        let told = say(&programs, &secret(&[1; 32], SecretKind::ClientTraffic0));
        assert_eq!(kinds(&told), [(3, 1), (3, 9)]);
        let exempt = Datagram::Exempt(Exempt { client_random: &[6; 32], flow: flow(4000) });
        assert_eq!(kinds(&say(&programs, &exempt)), [(4, 6), (4, 9)]);
        let lines = std::fs::read_to_string(&path).unwrap();
        let lines =
            lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let noted: Vec<_> = lines
            .map(|it| {
                ["decision", "client_random", "rule"]
                    .map(|name| it[name].as_str().unwrap_or_default().to_owned())
            })
            .collect();
        let line = |decision: &str, random: &str, rule: &str| {
            [decision.to_owned(), random.repeat(32), rule.to_owned()]
        };
        let (shared, exempt) = ("shared", "exempt");
        assert_eq!(
            noted,
            [
                line(shared, "01", "all"),
                line(shared, "09", "all"),
                line(exempt, "06", ""),
                line(exempt, "09", ""),
            ]
        );
    }
}
