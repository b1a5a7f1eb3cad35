//! What the programs of this host tell, by the preload library's socket and by key logs, and what middleboxes are answered
//! from it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mmtls_keyshare::agent::{Datagram, Exempt};
use mmtls_keyshare::message::Message;

use crate::audit::Cause;
use crate::consent::{Consent, Decision};
use crate::key_logs::KeyLogs;
use crate::rules::{Facts, Share};
use crate::sessions::Sessions;

/// Both sources. Not `Debug`, because they hold secrets.
#[derive(Clone)]
pub struct Programs {
    sessions: Arc<Mutex<Sessions>>,
    logs: Option<Arc<KeyLogs>>,
    consent: Arc<Consent>,
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
        Self { sessions, logs, consent }
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

    /// What middleboxes are told of a datagram that this program has sent.
    pub fn program_says(&self, program: Option<&Path>, datagram: &[u8]) -> Vec<Message> {
        let decoded = Datagram::decode(datagram);
        let decision = decoded.as_ref().map_or_else(|_| None, |it| self.decide(program, it));
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
        message.map_or_else(Vec::new, |message| self.consent.judge(message, Cause::Program))
    }

    /// What a middlebox is told; nothing where it has asked for a key log's line that is yet to come.
    pub fn middlebox_says(&self, message: &Message) -> Vec<Message> {
        if matches!(message, Message::LiveKeysRequest) {
            return self.live_keys();
        }
        let answer = self.answer(message);
        // A question is for one direction, and so is its answer.
        let judged = answer.and_then(|it| self.consent.judge(it, Cause::Request).pop());
        judged.into_iter().collect()
    }

    /// The keys of all sessions that may be under way, the latest first.
    fn live_keys(&self) -> Vec<Message> {
        let mut messages = self.sessions().all();
        if let Some(logs) = &self.logs {
            messages.extend(logs.all());
        }
        self.consent.judge_again(messages).into_iter().map(Message::LiveKeys).collect()
    }

    /// What the rules say of a session.
    fn decide(&self, program: Option<&Path>, datagram: &Datagram<'_>) -> Option<Decision> {
        let Datagram::TrafficSecret(secret) = datagram else {
            return None;
        };
        let port = secret.flow.map(|flow| flow.server().port());
        let facts = Facts { server_name: secret.server_name, program, port };
        Some(self.consent.decide(secret.client_random, &facts))
    }

    /// The sessions that each rule has decided about.
    pub fn decided(&self) -> Vec<(String, u64)> {
        self.consent.decided()
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
                    _ => Some(sessions.answer(request)),
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
