//! What happens when what is shared is all taken: who has the most of it makes room.
//!
//! Refuses to let the connection at hand pay for what another client has taken. Only where no client
//! has notably much does it.

use super::payload::Payload;
use super::{Engine, context};
use crate::session::{EndReason, Handler, SessionError};
use crate::tcp::{FlowIndex, Phase, Resource, TcpDirection};
use crate::tls::Direction;

/// Connections that make room for one packet, at most.
const MAX_PAYERS: usize = 64;

/// One part in so many of the memory is left to what can wait, bytes out of order and those not
/// acknowledged: otherwise connections that lose packets would stand still while it is taken.
const SPARE_SHARE: usize = 8;

impl<H: Handler> Engine<H> {
    /// Bytes that a connection may still keep of those that can be sent again. Its client may not
    /// have more than is left for all others, so that a few cannot take everything: one can have
    /// half, two a third each, and so on.
    pub(super) fn room_for(&self, index: FlowIndex) -> usize {
        let max = self.config.limits.max_buffered_bytes;
        let left = max.saturating_sub(self.buffered);
        if self.buffered <= max / 4 {
            // No client can have more than that.
            return left;
        }
        left.saturating_sub(self.flows.held_by_client(index, Resource::KeptBytes))
    }

    /// Too many frames are held: of the client that holds the most, the session that does meets the
    /// policy for missing keys.
    pub(super) fn end_largest_stall(&mut self, index: FlowIndex, direction: Direction) {
        let max = self.config.limits.max_held_frames;
        for _ in 0..MAX_PAYERS {
            if self.held_frames <= max {
                return;
            }
            let Some(payer) = self.flows.largest(Resource::HeldFrames) else {
                break;
            };
            let Some(flow) = self.flows.get(payer) else {
                break;
            };
            let before = self.held_frames;
            let [client, server] = flow.halves.each_ref().map(TcpDirection::held_frames);
            let more = match client > server {
                true => Direction::ClientToServer,
                false => Direction::ServerToClient,
            };
            self.give_up_stall(payer, more);
            if self.held_frames >= before {
                break;
            }
        }
        if self.held_frames > max {
            self.give_up_stall(index, direction);
        }
    }

    fn give_up_stall(&mut self, index: FlowIndex, direction: Direction) {
        if let Some(flow) = self.flows.get(index)
            && let Payload::Tls(tls) = &mut flow.payload
        {
            let mut ctx = context!(self, tls.state);
            tls.session.handle_missing_keys(direction, &mut ctx);
            self.conclude(index);
        }
    }

    /// Too much is kept: of the client that has the most, the connection that does is followed no
    /// longer.
    pub(super) fn make_room(&mut self) {
        let max = self.config.limits.max_buffered_bytes;
        for _ in 0..MAX_PAYERS {
            let resource = if self.undecided > max / 2 {
                Resource::UndecidedBytes
            } else if self.buffered > max - max / SPARE_SHARE {
                Resource::KeptBytes
            } else {
                return;
            };
            let Some(payer) = self.flows.largest(resource) else {
                return;
            };
            let before = self.buffered;
            self.stop_following(payer);
            if self.buffered >= before {
                return;
            }
        }
    }

    fn stop_following(&mut self, index: FlowIndex) {
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        match &flow.payload {
            Payload::Tls(tls) if tls.session.following() => {
                self.fail(index, Direction::ClientToServer, SessionError::MemoryCap);
                self.conclude(index);
            }
            // Its end was seen, but what was kept could still be sent again as something else.
            Payload::Tls(_) if matches!(flow.phase, Phase::Closed(_)) => {
                self.kill(index, false, EndReason::ResetByPolicy(SessionError::MemoryCap));
            }
            Payload::Tls(_) | Payload::Resting(_) => {}
            Payload::Undecided(..) | Payload::Plain(_) => {
                self.give_up(index, Direction::ClientToServer, SessionError::MemoryCap)
            }
        }
    }
}
