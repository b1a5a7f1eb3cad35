//! Connections of which the kernel forwards some records: their slots and entries, while they are left to it and for a while after.
//!
//! A connection is taken back for each segment that is to be seen, and left again: entries stay, and a closed slot is opened again,
//! which costs no system call. The kernel takes the records only from exactly where user space has left off: what still waits to be
//! received is not overtaken, only what waits to be sent has to be gone. Acknowledgments of the other direction begin while its
//! socket is empty, and later may overtake what waits there, which is harmless.
//!
//! Refuses to keep a slot for a connection that does not use it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Key;
use super::programs::{Programs, SlotId};
use crate::{Extent, Forwarded, OffloadFlow, OffloadSide, Port, Records};

/// How often is looked for connections that do not use their slots.
const LOOK: Duration = Duration::from_secs(1);

/// Those of one bridge, by the key of their first direction.
#[derive(Default)]
pub(super) struct PausedFlows {
    flows: HashMap<Key, Paused>,
    /// Those that are to be opened as soon as everything has been sent.
    wanted: Vec<Key>,
    /// Entries that are still to be made, by the port that their direction comes in by.
    pending: [HashMap<Key, SlotId>; 2],
    looked: Option<Instant>,
}

struct Paused {
    /// What the slot was opened with, or is to be.
    side: OffloadSide,
    records: Records,
    /// Keys of that direction, and of the other one.
    keys: [Key; 2],
    state: State,
}

/// Of a slot.
enum State {
    /// The kernel forwards nothing since then.
    Closed(SlotId, Instant),
    /// It is to be opened.
    Wanted(SlotId),
    /// It had forwarded so many frames when it was looked at last.
    Open(SlotId, u64),
    /// Taken away while it was open and nothing was forwarded; this had been before.
    Lost([Forwarded; 2]),
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
        let name = programs.key(&flow.sides[0]);
        let key = programs.key(side);
        match self.flows.get_mut(&name) {
            Some(Paused { side: known, records: of, keys, state }) if keys[0] == key => {
                if let State::Closed(slot, _) = *state {
                    (*known, *of) = (*side, *records);
                    *state = State::Wanted(slot);
                    self.wanted.push(name);
                }
                if !matches!(state, State::Lost(_)) {
                    return true;
                }
            }
            Some(_) | None => {}
        }
        // Another direction's, or one that lost its slot.
        self.release(programs, &name);
        let Some(slot) = programs.take_slot().or_else(|| {
            self.look(programs);
            programs.take_slot()
        }) else {
            return false;
        };
        if !programs.begin_pause(&key, slot, false) {
            programs.give_slot(slot);
            return false;
        }
        let other = flow.sides.into_iter().find(|it| it != side).unwrap_or(*side);
        let keys = [key, programs.key(&other)];
        self.pending[other.ingress.index()].insert(keys[1], slot);
        let (side, records, state) = (*side, *records, State::Wanted(slot));
        self.flows.insert(name, Paused { side, records, keys, state });
        self.wanted.push(name);
        true
    }

    /// To be called when all that was to be sent has been.
    pub(super) fn all_is_sent(&mut self, programs: &Programs) {
        for name in self.wanted.drain(..) {
            if let Some(known) = self.flows.get_mut(&name)
                && let State::Wanted(slot) = known.state
            {
                known.state = State::Open(slot, 0);
                programs.open_slot(slot, &known.side, &known.records);
            }
        }
    }

    /// To be called when a port's socket is empty and all that came by it has left; false where there was no room.
    pub(super) fn port_is_empty(&mut self, programs: &Programs, port: Port) -> bool {
        self.look(programs);
        let pending = self.pending[port.index()].drain();
        pending.fold(true, |fit, (key, slot)| programs.begin_pause(&key, slot, true) && fit)
    }

    /// Takes a connection back; says what has come of the direction with the records, and of the other one.
    pub(super) fn take_back(&mut self, programs: &Programs, flow: &OffloadFlow) -> [Forwarded; 2] {
        let name = programs.key(&flow.sides[0]);
        let Some(known) = self.flows.get_mut(&name) else {
            return Default::default();
        };
        match &mut known.state {
            State::Closed(..) => Default::default(),
            State::Wanted(slot) => {
                known.state = State::Closed(*slot, Instant::now());
                Default::default()
            }
            State::Open(slot, _) => {
                let forwarded = programs.close_slot(*slot, &known.records);
                known.state = State::Closed(*slot, Instant::now());
                forwarded
            }
            State::Lost(forwarded) => {
                let forwarded = core::mem::take(forwarded);
                self.flows.remove(&name);
                forwarded
            }
        }
    }

    /// Lets go of slots that nobody has used since the last look.
    fn look(&mut self, programs: &Programs) {
        if self.looked.is_some_and(|last| last.elapsed() < LOOK) {
            return;
        }
        self.looked = Some(Instant::now());
        let mut unused = Vec::new();
        for (name, known) in &mut self.flows {
            match &mut known.state {
                State::Closed(_, since) if since.elapsed() >= LOOK => unused.push(*name),
                State::Open(slot, seen) => {
                    let frames = programs.slot_frames(*slot);
                    if core::mem::replace(seen, frames + 1) == frames + 1 {
                        unused.push(*name);
                    }
                }
                State::Closed(..) | State::Wanted(_) | State::Lost(_) => {}
            }
        }
        for name in unused {
            // Whoever has left it there asks for it some day.
            if let Some(known @ Paused { state: State::Lost(_), .. }) =
                self.release(programs, &name)
            {
                self.flows.insert(name, known);
            }
        }
    }

    /// Lets go of a connection's slot and entries; what the kernel has forwarded of an open one is told by what comes back.
    fn release(&mut self, programs: &Programs, name: &Key) -> Option<Paused> {
        let mut paused = self.flows.remove(name)?;
        let slot = match paused.state {
            State::Closed(slot, _) | State::Wanted(slot) => slot,
            State::Open(slot, _) => {
                paused.state = State::Lost(programs.close_slot(slot, &paused.records));
                slot
            }
            State::Lost(_) => return Some(paused),
        };
        let [key, other] = paused.keys;
        self.pending.iter_mut().for_each(|pending| {
            pending.remove(&other);
        });
        programs.end_pause(&key);
        programs.end_pause(&other);
        programs.give_slot(slot);
        Some(paused)
    }
}
