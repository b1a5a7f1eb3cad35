//! Endpoints behind key servers, as the middlebox's server presents them: peers like any other, with connections of their
//! own.
//!
//! Refuses: more than [`MAX_ENDPOINTS`] of a key server, and messages of those it has not told of.

use std::collections::HashMap;

use super::peer::{ConnectionId, Peer};
use super::sink::KeySink;
use crate::message::{EndpointOpened, Message, Relayed};

/// Endpoints of one key server; further ones are not known, and what they send is passed over.
const MAX_ENDPOINTS: usize = 65_536;

/// The endpoints of the key servers that are connected.
#[derive(Default)]
pub(super) struct Relay {
    /// By the number of the key server's connection.
    key_servers: HashMap<u64, KeyServer>,
}

struct KeyServer {
    connection: ConnectionId,
    /// By what it calls them.
    endpoints: HashMap<u32, Peer>,
}

impl Relay {
    /// A key server has said hello.
    pub(super) fn opened(&mut self, peer: &Peer) {
        let key_server = KeyServer { connection: peer.connection, endpoints: HashMap::new() };
        self.key_servers.insert(peer.connection.count(), key_server);
    }

    /// It is gone, and with it all of its endpoints.
    pub(super) fn closed(&mut self, peer: &Peer, sink: &mut dyn KeySink) {
        let gone = self.key_servers.remove(&peer.connection.count());
        for endpoint in gone.iter().flat_map(|it| it.endpoints.values()) {
            sink.closed(endpoint);
        }
    }

    /// What it says: the answer is for it, and whether that was a message of an endpoint. `None`: it was not known.
    pub(super) fn message(
        &mut self,
        from: &Peer,
        message: Message,
        sink: &mut dyn KeySink,
    ) -> Option<Option<Message>> {
        let key_server = self.key_servers.get_mut(&from.connection.count())?;
        match message {
            Message::EndpointOpened(opened) => {
                let is_known = key_server.endpoints.contains_key(&opened.endpoint);
                if !is_known && key_server.endpoints.len() >= MAX_ENDPOINTS {
                    return None;
                }
                let peer = endpoint(from, &opened);
                if let Some(before) = key_server.endpoints.insert(opened.endpoint, peer.clone()) {
                    sink.closed(&before);
                }
                sink.opened(&peer);
                Some(None)
            }
            Message::EndpointClosed(number) => {
                sink.closed(&key_server.endpoints.remove(&number)?);
                Some(None)
            }
            Message::Relayed(Relayed { endpoint, message }) => {
                let peer = key_server.endpoints.get(&endpoint)?;
                let answer = sink.message(peer, *message);
                Some(answer.map(|answer| {
                    Message::Relayed(Relayed { endpoint, message: Box::new(answer) })
                }))
            }
            _ => None,
        }
    }

    /// The connection that messages for an endpoint take.
    pub(super) fn way(&self, to: ConnectionId) -> Option<ConnectionId> {
        let key_server = self.key_servers.get(&to.count())?;
        key_server.endpoints.contains_key(&to.low()).then_some(key_server.connection)
    }
}

fn endpoint(key_server: &Peer, opened: &EndpointOpened) -> Peer {
    Peer {
        address: opened.address,
        connection: ConnectionId::of_endpoint(key_server.connection, opened.endpoint),
        capabilities: opened.capabilities,
        authenticated: opened.authenticated,
        is_key_server: false,
    }
}
