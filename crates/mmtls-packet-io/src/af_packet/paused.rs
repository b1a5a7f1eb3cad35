//! Connections of which the kernel forwards some records: their slots and entries, while they are left to it and for a while after.
//!
//! A connection is taken back for each segment that is to be seen, and left again: entries stay, and a closed slot is opened again,
//! which costs no system call. The kernel takes the records only from exactly where user space has left off: what still waits to be
//! received is not overtaken, only what waits to be sent has to be gone. The other direction begins while its socket is empty.
//!
//! Refuses to keep a slot for long that nobody uses.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::Key;
use super::programs::{Programs, SlotId};
use crate::{Extent, Forwarded, OffloadFlow, OffloadSide, Port, Records};

/// How long a connection that was taken back is expected to be left again.
const LINGER: Duration = Duration::from_secs(1);

/// Those of one bridge, by the key of the direction that has the records.
#[derive(Default)]
pub(super) struct PausedFlows {
    flows: HashMap<Key, Paused>,
    /// Those that are, or were, closed.
    closed: VecDeque<Key>,
    /// Those that are to be opened as soon as everything has been sent.
    waiting: Vec<Key>,
    /// Entries that are still to be made, by the port that their direction comes in by.
    pending: [HashMap<Key, SlotId>; 2],
}

struct Paused {
    slot: SlotId,
    /// What the slot was opened with, or is to be.
    side: OffloadSide,
    records: Records,
    /// Key of the other direction.
    other: Key,
    /// Since when the kernel forwards nothing of it.
    closed: Option<Instant>,
    /// It is to be opened.
    is_wanted: bool,
    /// It is in the list.
    is_listed: bool,
}

/// The direction of a connection that has records which may pass.
pub(super) fn with_records(flow: &OffloadFlow) -> Option<(OffloadSide, Records)> {
    flow.sides.into_iter().find_map(|side| match side.extent {
        Extent::Records(records) => Some((side, records)),
        Extent::Everything | Extent::Acknowledgments => None,
    })
}

impl PausedFlows {
    /// Leaves records of a connection to the kernel; false where there is no room.
    pub(super) fn add(
        &mut self,
        programs: &Programs,
        flow: &OffloadFlow,
        side: &OffloadSide,
        records: &Records,
    ) -> bool {
        let key = programs.key(side);
        if let Some(known) = self.flows.get_mut(&key) {
            if known.closed.is_some() {
                (known.side, known.records) = (*side, *records);
                if !core::mem::replace(&mut known.is_wanted, true) {
                    self.waiting.push(key);
                }
            }
            return true;
        }
        let Some(slot) = programs.take_slot().or_else(|| {
            self.release_oldest(programs);
            programs.take_slot()
        }) else {
            return false;
        };
        if !programs.begin_pause(&key, slot, false) {
            programs.give_slot(slot);
            return false;
        }
        let other = flow.sides.into_iter().find(|it| it != side).unwrap_or(*side);
        let other_key = programs.key(&other);
        self.pending[other.ingress.index()].insert(other_key, slot);
        let paused = Paused {
            slot,
            side: *side,
            records: *records,
            other: other_key,
            closed: Some(Instant::now()),
            is_wanted: true,
            is_listed: true,
        };
        self.flows.insert(key, paused);
        self.closed.push_back(key);
        self.waiting.push(key);
        true
    }

    /// To be called when all that was to be sent has been.
    pub(super) fn all_is_sent(&mut self, programs: &Programs) {
        for key in self.waiting.drain(..) {
            if let Some(known) = self.flows.get_mut(&key)
                && core::mem::take(&mut known.is_wanted)
            {
                known.closed = None;
                programs.open_slot(known.slot, &known.side, &known.records);
            }
        }
    }

    /// To be called when a port's socket is empty and all that came by it has left; false where there was no room.
    pub(super) fn port_is_empty(&mut self, programs: &Programs, port: Port) -> bool {
        self.sweep(programs);
        let pending = self.pending[port.index()].drain();
        pending.fold(true, |fit, (key, slot)| programs.begin_pause(&key, slot, true) && fit)
    }

    /// Takes a connection back; says what has come of the direction with the records, and of the other one.
    pub(super) fn take_back(&mut self, programs: &Programs, side: &OffloadSide) -> [Forwarded; 2] {
        let key = programs.key(side);
        let Some(known) = self.flows.get_mut(&key) else {
            return Default::default();
        };
        known.is_wanted = false;
        if known.closed.is_some() {
            return Default::default();
        }
        known.closed = Some(Instant::now());
        if !core::mem::replace(&mut known.is_listed, true) {
            self.closed.push_back(key);
        }
        programs.close_slot(known.slot, &known.records)
    }

    /// Lets go of those that were not left to the kernel again.
    fn sweep(&mut self, programs: &Programs) {
        for _ in 0..self.closed.len() {
            let Some(key) = self.closed.pop_front() else { break };
            let Some(known) = self.flows.get_mut(&key) else { continue };
            match known.closed {
                Some(since) if since.elapsed() >= LINGER => self.release(programs, &key),
                // Those behind it were closed later, or are open again.
                Some(_) => {
                    self.closed.push_back(key);
                    break;
                }
                None => known.is_listed = false,
            }
        }
    }

    /// Lets go of one that is closed.
    fn release_oldest(&mut self, programs: &Programs) {
        while let Some(key) = self.closed.pop_front() {
            if let Some(known) = self.flows.get_mut(&key) {
                known.is_listed = false;
                if known.closed.is_some() {
                    return self.release(programs, &key);
                }
            }
        }
    }

    fn release(&mut self, programs: &Programs, key: &Key) {
        if let Some(paused) = self.flows.remove(key) {
            for pending in &mut self.pending {
                pending.remove(&paused.other);
            }
            programs.end_pause(key);
            programs.end_pause(&paused.other);
            programs.give_slot(paused.slot);
        }
    }
}
