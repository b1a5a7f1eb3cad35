//! What the programs of this host tell, by the preload library's socket and by key logs, and what middleboxes are answered
//! from it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mmtls_keyshare::agent::Datagram;
use mmtls_keyshare::message::Message;

use crate::audit::Cause;
use crate::consent::Consent;
use crate::key_logs::KeyLogs;
use crate::sessions::Sessions;

/// Both sources. Not `Debug`, because they hold secrets.
#[derive(Clone)]
pub struct Programs {
    sessions: Arc<Mutex<Sessions>>,
    logs: Option<Arc<KeyLogs>>,
    consent: Arc<Consent>,
}

impl Programs {
    /// Without key logs, first keys come unasked or not at all.
    pub fn new(share_handshake: bool, key_logs: bool, consent: Consent) -> Self {
        let sessions = Arc::new(Mutex::new(Sessions::new(share_handshake)));
        let consent = Arc::new(consent);
        let logs = key_logs.then(|| KeyLogs::new(share_handshake, Arc::clone(&consent)));
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

    /// What middleboxes are told of a datagram.
    pub fn program_says(&self, datagram: &[u8]) -> Vec<Message> {
        let mut sessions = self.sessions();
        let message = match Datagram::decode(datagram) {
            Ok(datagram) => sessions.datagram(&datagram),
            Err(_) => sessions.malformed(),
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
