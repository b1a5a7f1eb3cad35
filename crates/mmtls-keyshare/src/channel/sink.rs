//! Who takes what endpoints send to the key server. Refuses nothing by itself.

use super::peer::Peer;
use crate::message::Message;
use crate::sealed::Secret;

/// Takes what the endpoints send. Runs on the server's thread, so it must not block.
pub trait KeySink: Send {
    /// A peer has said hello.
    fn opened(&mut self, _peer: &Peer) {}

    /// One message: session keys, null keys, or refused. What it returns is for this peer.
    fn message(&mut self, peer: &Peer, message: Message) -> Option<Message>;

    /// Whether so much of this peer waits already that no more is to be read from it. It is asked
    /// again soon; meanwhile the network slows the peer down.
    fn is_backlogged(&self, _peer: &Peer) -> bool {
        false
    }

    /// No more messages for now: the time to wake who waits for them.
    fn batch_end(&mut self) {}

    /// The peer is gone.
    fn closed(&mut self, _peer: &Peer) {}

    /// A key server has said hello, whose sealed datagrams this opens; it hears of its welcome later, and then what this
    /// returns. Endpoints for which it speaks are peers like others.
    fn key_server_opened(&mut self, _peer: &Peer, _secret: Secret) -> Option<Message> {
        None
    }

    /// A key server is gone; its endpoints went before.
    fn key_server_closed(&mut self, _peer: &Peer) {}
}
