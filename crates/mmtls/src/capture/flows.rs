//! The connections that a capture knows, and which of them is next to be let go.
//!
//! Those with a live session stay, however long they are silent: the engine tells of a session once, and once of its end. There
//! are no more of them than it has flows. All others wait in a queue for something. Refuses to look at the whole table.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::secrets::Random;

/// Between whom, whoever sends.
pub(super) type Ends = [SocketAddr; 2];

/// A connection.
pub(super) struct Flow {
    pub(super) phase: Phase,
    /// Of its latest session; the frames that are held back are this one's.
    pub(super) random: Option<Random>,
    /// Sessions that have begun and not ended: more than one where VLANs have the same addresses.
    pub(super) live: u32,
    /// When something came of it.
    pub(super) latest: Instant,
    place: Option<Place>,
}

pub(super) enum Phase {
    /// Its frames are held back.
    Held(Held),
    /// They go into the file.
    Written { has_secrets: bool },
    /// It carries no TLS, as far as is known.
    Ignored,
}

/// Frames, when they came, and what they take.
#[derive(Default)]
pub(super) struct Held {
    pub(super) frames: Vec<(u64, Box<[u8]>)>,
    pub(super) bytes: usize,
}

/// What a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    /// To be forgotten, or for TLS that comes late.
    Ignored,
    /// The frames that follow the end of its last session.
    Ended,
    /// To be found to carry TLS.
    Unknown,
    /// For secrets.
    Secrets,
}

/// A place in a queue.
#[derive(Clone, Copy)]
struct Place {
    queue: Queue,
    number: u64,
    since: Instant,
}

impl Flow {
    /// Its sessions, if it had any, are over, and nothing is held back: with a SYN another connection begins.
    pub(super) fn is_over(&self) -> bool {
        self.live == 0 && !matches!(self.phase, Phase::Held(_))
    }

    fn queue(&self) -> Option<Queue> {
        match self.phase {
            Phase::Held(_) if self.random.is_some() => Some(Queue::Secrets),
            Phase::Held(_) => Some(Queue::Unknown),
            Phase::Written { .. } if self.live > 0 => None,
            Phase::Written { .. } => Some(Queue::Ended),
            Phase::Ignored => Some(Queue::Ignored),
        }
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Flows {
    flows: HashMap<Ends, Flow>,
    /// By number: who has waited longest comes first.
    queues: [BTreeMap<u64, Ends>; 4],
    number: u64,
    /// Connections with a live session.
    live: usize,
}

impl Flows {
    pub(super) fn get(&self, ends: &Ends) -> Option<&Flow> {
        self.flows.get(ends)
    }

    /// For what changes nothing that it waits for.
    pub(super) fn get_mut(&mut self, ends: &Ends) -> Option<&mut Flow> {
        self.flows.get_mut(ends)
    }

    /// How many are without a live session.
    pub(super) fn others(&self) -> usize {
        self.flows.len() - self.live
    }

    #[cfg(test)]
    pub(super) fn len_all(&self) -> usize {
        assert!(self.flows.len() >= self.queues.iter().map(BTreeMap::len).sum());
        self.flows.len()
    }

    /// How many wait for it.
    pub(super) fn len(&self, queue: Queue) -> usize {
        self.queues[queue as usize].len()
    }

    /// Who has waited longest for it.
    pub(super) fn oldest(&self, queue: Queue) -> Option<Ends> {
        self.queues[queue as usize].first_key_value().map(|(_, ends)| *ends)
    }

    /// The same, if that is so long.
    pub(super) fn due(&self, queue: Queue, wait: Duration, now: Instant) -> Option<Ends> {
        let ends = self.oldest(queue)?;
        let since = self.flows.get(&ends)?.place?.since;
        (now.saturating_duration_since(since) >= wait).then_some(ends)
    }

    /// Whose frames have been held back longest.
    pub(super) fn oldest_held(&self) -> Option<Ends> {
        let first = |queue: Queue| self.queues[queue as usize].first_key_value();
        let held = [Queue::Unknown, Queue::Secrets].into_iter().filter_map(first);
        held.min_by_key(|(number, _)| **number).map(|(_, ends)| *ends)
    }

    /// Another connection, which may carry TLS; there must be none between these ends.
    pub(super) fn insert(&mut self, ends: Ends, now: Instant) {
        let phase = Phase::Held(Held::default());
        self.flows.insert(ends, Flow { phase, random: None, live: 0, latest: now, place: None });
        self.change(&ends, now, |_| ());
    }

    /// Changes a connection, and what it waits for.
    pub(super) fn change<R>(
        &mut self,
        ends: &Ends,
        now: Instant,
        change: impl FnOnce(&mut Flow) -> R,
    ) -> Option<R> {
        let flow = self.flows.get_mut(ends)?;
        let was_live = flow.live > 0;
        let result = change(flow);
        match (was_live, flow.live > 0) {
            (false, true) => self.live += 1,
            (true, false) => self.live -= 1,
            _ => {}
        }
        if flow.queue() != flow.place.map(|place| place.queue) {
            self.wait_anew(ends, now);
        }
        Some(result)
    }

    /// Puts a connection behind all that wait for the same.
    pub(super) fn wait_anew(&mut self, ends: &Ends, now: Instant) {
        let Some(flow) = self.flows.get_mut(ends) else {
            return;
        };
        if let Some(Place { queue, number, .. }) = flow.place.take() {
            self.queues[queue as usize].remove(&number);
        }
        if let Some(queue) = flow.queue() {
            self.number += 1;
            flow.place = Some(Place { queue, number: self.number, since: now });
            self.queues[queue as usize].insert(self.number, *ends);
        }
    }

    pub(super) fn remove(&mut self, ends: &Ends) -> Option<Flow> {
        let flow = self.flows.remove(ends)?;
        if let Some(Place { queue, number, .. }) = flow.place {
            self.queues[queue as usize].remove(&number);
        }
        self.live -= usize::from(flow.live > 0);
        Some(flow)
    }
}
