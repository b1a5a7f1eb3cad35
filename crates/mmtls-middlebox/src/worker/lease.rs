//! What a worker does while the guard forwards in its place, and when it has the traffic again.
//!
//! Refuses to take for known what was known before: frames have passed that were not shown.

use std::time::{Duration, Instant};

use mmtls_engine::session::Handler;
use mmtls_packet_io::{Lease, Ports};

use super::Worker;
use crate::Error;

/// For how long more has to come than is discarded before the operator is told: a monitor that was stopped finds its sockets full.
const FLOOD: Duration = Duration::from_secs(1);

/// A time in which the guard forwards.
#[derive(Default)]
pub(super) struct Outage {
    /// The lease was lost, and is not held again.
    is_lost: bool,
    /// Since when more comes than is discarded of what the guard has forwarded.
    flooded_since: Option<Instant>,
    is_flood_told: bool,
}

impl<H: Handler, P: Ports> Worker<H, P> {
    pub(super) fn renew(&mut self, now: Instant) -> Result<Lease, Error> {
        self.ports.renew().map_or_else(
            // Which counts as waiting: an interface that is down has no frames.
            |error| self.tolerate_down(Err(error), now).map(|()| Lease::Waiting),
            Ok,
        )
    }

    /// The guard has forwarded frames that were not shown: what is held was sent again, and of no connection it is known where
    /// it stands.
    pub(super) fn lose_track(&mut self, now_ns: u64) {
        self.faults.leases_lost += 1;
        self.outage.is_lost = true;
        self.engine.take_all_back();
        self.act(now_ns);
        let flows = self.engine.counters().failed_open;
        self.engine.forget_flows(now_ns);
        self.act(now_ns);
        let flows = self.engine.counters().failed_open - flows;
        self.held.clear();
        self.faults.message = Some(format!(
            "failed open: this monitor was silent for longer than the guard's lease, and the kernel has forwarded in its place; \
             {flows} connections have to be found again, as after a start"
        ));
    }

    /// Frames are shown. If others were not before: however long that took, connections that were there have the time of a start
    /// from now on to be found again.
    pub(super) fn find_track(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.outage).is_lost {
            self.engine.forget_flows(now_ns);
            self.act(now_ns);
        }
    }

    /// More has come than could be discarded: nobody was silent, but the kernel goes on.
    pub(super) fn note_flood(&mut self, now: Instant) {
        let since = *self.outage.flooded_since.get_or_insert(now);
        let is_long = now.saturating_duration_since(since) >= FLOOD;
        if is_long && !self.outage.is_flood_told && self.faults.message.is_none() {
            self.outage.is_flood_told = true;
            let text = "the kernel goes on forwarding: more frames come than this monitor can discard of those that have passed \
                        (more processors, more workers)";
            self.faults.message = Some(text.to_owned());
        }
    }
}
