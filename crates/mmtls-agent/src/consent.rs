//! What may leave this host: keys of a direction that is refused become a refusal, and what leaves is noted.
//!
//! Refuses to let keys of that direction pass, whoever asks.

use mmtls_keyshare::message::{Message, NullKeys, SessionKeys};
use mmtls_record::Direction;

use crate::audit::{Audit, Cause};

/// What the user agrees to.
#[derive(Default)]
pub struct Consent {
    refused: Option<Direction>,
    audit: Audit,
}

impl Consent {
    /// Keys of this direction are not shared, if one is named.
    pub fn new(refused: Option<Direction>, audit: Audit) -> Self {
        Self { refused, audit }
    }

    /// What leaves in place of a message.
    pub fn judge(&self, message: Message, cause: Cause) -> Vec<Message> {
        let messages = match (message, self.refused) {
            (Message::SessionKeys(keys), Some(refused)) => restrict(keys, refused),
            (message, _) => vec![message],
        };
        messages.iter().for_each(|message| self.audit.note(message, cause));
        messages
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
    fn refuses_keys_of_a_direction_and_says_so() {
        let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
        let left = |refused, directions: &[Direction]| {
            let consent = Consent::new(refused, Audit::default());
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
