//! What may leave this host: keys of a direction that is refused become a refusal, as do those of a session that is
//! exempt, and what leaves is noted.
//!
//! Refuses to let such keys pass, whoever asks, and wherever they come from.

use std::hash::RandomState;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use mmtls_keyshare::message::{Message, NullKeys, Random, SessionKeys};
use mmtls_record::Direction;

use crate::audit::{Audit, Cause};
use crate::rules::{Facts, Rules, Share};

/// Exempt sessions that are remembered: a program may tell of one through its library, and write its key log as well. Many
/// times as many as key logs keep secrets of: those of a session that was forgotten here would be shared.
const MAX_EXEMPT: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// Sessions whose rule is remembered, for questions that come later; likewise.
const MAX_DECIDED: NonZeroUsize = MAX_EXEMPT;

/// What the user agrees to.
pub struct Consent {
    refused: Option<Direction>,
    rules: Rules,
    decided: Mutex<Decided>,
    exempt: Mutex<LruCache<Random, (), RandomState>>,
    audit: Audit,
}

/// What the rules have said.
struct Decided {
    of: LruCache<Random, (Share, Option<usize>), RandomState>,
    /// Sessions by rule, those of none at the end.
    counts: Vec<u64>,
}

/// What of a session is shared, and whether that was not known before.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    pub share: Share,
    pub is_new: bool,
}

impl Default for Consent {
    fn default() -> Self {
        Self::new(None, Rules::default(), Audit::default())
    }
}

impl Consent {
    /// Keys of this direction are not shared, if one is named, and of other sessions what rules say.
    pub fn new(refused: Option<Direction>, rules: Rules, audit: Audit) -> Self {
        let exempt = Mutex::new(LruCache::with_hasher(MAX_EXEMPT, RandomState::new()));
        let of = LruCache::with_hasher(MAX_DECIDED, RandomState::new());
        let decided = Mutex::new(Decided { of, counts: Vec::new() });
        Self { refused, rules, decided, exempt, audit }
    }

    /// What of a session is shared, by what is known when its first secret comes.
    pub fn decide(&self, client_random: &Random, facts: &Facts<'_>) -> Decision {
        let mut decided = self.decided_of();
        if let Some((share, _)) = decided.of.get(client_random) {
            return Decision { share: *share, is_new: false };
        }
        let (share, rule) = self.rules.decide(facts);
        decided.of.put(*client_random, (share, rule));
        let at = rule.map_or(0, |rule| rule + 1);
        if decided.counts.len() <= at {
            decided.counts.resize(at + 1, 0);
        }
        decided.counts[at] += 1;
        Decision { share, is_new: true }
    }

    /// Whether it is known what the rules say of a session. It is forgotten when many others have come: then nothing more
    /// of it may leave.
    pub fn knows(&self, client_random: &Random) -> bool {
        self.rules.is_empty() || self.decided_of().of.contains(client_random)
    }

    /// How many sessions each rule has decided about.
    pub fn decided(&self) -> Vec<(String, u64)> {
        let decided = self.decided_of();
        let of_rules = decided.counts.iter().skip(1).enumerate();
        let named = of_rules.filter_map(|(rule, count)| Some((self.rules.name(rule)?, *count)));
        named
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }

    fn decided_of(&self) -> MutexGuard<'_, Decided> {
        // As for the other one.
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rule_of(&self, client_random: &Random) -> (Share, Option<&str>) {
        let decided = self.decided_of().of.peek(client_random).copied();
        let (share, rule) = decided.unwrap_or_default();
        (share, rule.and_then(|rule| self.rules.name(rule)))
    }

    /// What leaves in place of a message.
    pub fn judge(&self, message: Message, cause: Cause) -> Vec<Message> {
        let messages = self.restrict(message);
        for message in &messages {
            if let Message::NullKeys(NullKeys { client_random, direction: None, .. }) = message {
                self.exempt().put(*client_random, ());
            }
        }
        for message in &messages {
            let random = random_of(message);
            let rule = random.and_then(|random| self.rule_of(random).1);
            self.audit.note(message, cause, rule);
        }
        messages
    }

    /// Notes what leaves by another random than that of its session, which was judged by its own.
    pub fn note(&self, message: &Message, cause: Cause, session: &Random) {
        self.audit.note(message, cause, self.rule_of(session).1);
    }

    /// The keys of sessions that were shared before, for a middlebox that has started again.
    pub fn judge_again(&self, messages: Vec<Message>) -> Vec<SessionKeys> {
        let keys = messages.into_iter().flat_map(|it| self.restrict(it));
        // What is refused of a session needs no word: keys of it do not come.
        let keys = keys.filter_map(|message| match message {
            Message::SessionKeys(keys) => Some(keys),
            _ => None,
        });
        let keys: Vec<_> = keys.collect();
        self.audit.note_all(keys.len());
        keys
    }

    fn restrict(&self, message: Message) -> Vec<Message> {
        let refused = random_of(&message).and_then(|it| self.rule_of(it).0.refused());
        match (message, refused.or(self.refused)) {
            (Message::SessionKeys(keys), _) if self.is_exempt(&keys.client_random) => {
                let (client_random, flow) = (keys.client_random, keys.flow);
                vec![Message::NullKeys(NullKeys { client_random, direction: None, flow })]
            }
            (Message::SessionKeys(keys), Some(refused)) => restrict(keys, refused),
            (message, _) => vec![message],
        }
    }

    fn exempt(&self) -> MutexGuard<'_, LruCache<Random, (), RandomState>> {
        // Consistent between any two statements, so poison means nothing here.
        self.exempt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_exempt(&self, client_random: &Random) -> bool {
        self.exempt().contains(client_random)
    }
}

/// Which session a message is about.
pub fn random_of(message: &Message) -> Option<&Random> {
    match message {
        Message::SessionKeys(keys) => Some(&keys.client_random),
        Message::NullKeys(null) => Some(&null.client_random),
        Message::Refused(refused) => Some(&refused.client_random),
        _ => None,
    }
}

/// Takes out the keys of a direction. Its refusal names the session, which whoever refuses it must know: others may share
/// theirs from this address.
fn restrict(mut keys: SessionKeys, refused: Direction) -> Vec<Message> {
    let all = keys.keys.len();
    keys.keys.retain(|entry| entry.direction != refused);
    let null = (keys.keys.len() < all).then_some(NullKeys {
        client_random: keys.client_random,
        direction: Some(refused),
        flow: keys.flow,
    });
    let keys = (!keys.keys.is_empty()).then_some(Message::SessionKeys(keys));
    null.map(Message::NullKeys).into_iter().chain(keys).collect()
}

#[cfg(test)]
mod tests {
    use mmtls_keyshare::message::{Epoch, KeyEntry};

    use super::*;

    fn keys(directions: &[Direction]) -> Message {
        let entry = |direction: &Direction| {
            KeyEntry::new(*direction, Epoch::APPLICATION, &[7; 16], &[8; 12], &[]).unwrap()
        };
        Message::SessionKeys(SessionKeys {
            client_random: [3; 32],
            server_random: None,
            version: 0x0303,
            cipher_suite: 0xc02f,
            flow: None,
            keys: directions.iter().map(entry).collect(),
        })
    }

    #[test]
    fn refuses_keys_of_exempt_sessions_wherever_they_come_from() {
        let consent = Consent::default();
        let client_random = [3; 32];
        let null = Message::NullKeys(NullKeys { client_random, direction: None, flow: None });
        assert_eq!(consent.judge(null, Cause::Program).len(), 1);
        // Its line in a key log.
        let messages = consent.judge(keys(&[Direction::ClientToServer]), Cause::KeyLog);
        assert!(matches!(&messages[..], [Message::NullKeys(null)] if null.direction.is_none()));
    }

    #[test]
    fn refuses_keys_of_a_direction_and_says_so() {
        let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
        let left = |refused, directions: &[Direction]| {
            let consent = Consent::new(refused, Rules::default(), Audit::default());
            let messages = consent.judge(keys(directions), Cause::Program);
            let name = |it: &Message| match it {
                Message::SessionKeys(keys) => (false, keys.keys[0].direction, keys.keys.len()),
                Message::NullKeys(null) => (true, null.direction.unwrap(), 0),
                _ => unreachable!(),
            };
            messages.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(left(None, &[client, server]), [(false, client, 2)]);
        assert_eq!(left(Some(client), &[client, server]), [(true, client, 0), (false, server, 1)]);
        assert_eq!(left(Some(server), &[client]), [(false, client, 1)]);
        assert_eq!(left(Some(server), &[server]), [(true, server, 0)]);
    }
}
