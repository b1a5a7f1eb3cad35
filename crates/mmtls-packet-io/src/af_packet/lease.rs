//! How a bridge gets the guard's lease back, without forwarding what the guard has forwarded.
//!
//! Refuses to hold it before everything is discarded that came while it was not held.

use std::time::{Duration, Instant};

use super::Bridge;
use crate::guard::Hold;
use crate::{Error, Lease, Port};

impl Bridge {
    /// See [`Ports::renew`](crate::Ports::renew).
    pub(super) fn renew_lease(&mut self) -> Result<Lease, Error> {
        let Some(hold) = &mut self.hold else {
            return Ok(Lease::Held);
        };
        let lease = hold.renew()?;
        if lease != Lease::Waiting {
            return Ok(lease);
        }
        let lease = hold.lease();
        // The guard has forwarded what waits here. It goes on with that until this is done, so that little is lost.
        if !self.discard(lease)? {
            return Ok(Lease::Flooded);
        }
        let has_all = self.hold.as_mut().map_or(Ok(true), Hold::take)?;
        if !has_all {
            return Ok(Lease::Waiting);
        }
        // Of what has come meanwhile nobody knows who forwards it: rather nobody than both. Where not all of it can be discarded,
        // the lease is not held, and the next turn begins anew.
        if !self.discard(lease / 4)? {
            return Ok(Lease::Flooded);
        }
        let is_held = self.hold.as_mut().is_none_or(Hold::hold);
        Ok(if is_held { Lease::Held } else { Lease::Waiting })
    }

    /// Discards what waits at both ports, for about so long at most: whether that was all.
    fn discard(&mut self, time: Duration) -> Result<bool, Error> {
        // What a panic of `decide` left behind is in the slots that are used now.
        self.flush()?;
        let end = Instant::now() + time;
        for port in Port::BOTH {
            loop {
                let count = self.receive_batch(port)?;
                if count == 0 {
                    break;
                }
                let counters = &mut self.outbox.ports[port.index()].counters;
                counters.guard_discarded_frames += count as u64;
                if Instant::now() > end {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
