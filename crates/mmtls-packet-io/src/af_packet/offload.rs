//! Connections that nobody reads, or not all of, are forwarded by the kernel: its programs (`bpf/offload.bpf.c`), and their entries.
//!
//! An entry is made at a moment when its port's socket is empty and all that came by it has left, since what waits there would
//! be overtaken. Should a frame come at that very moment all the same, the entry does not begin, and is made again behind that
//! frame. Everything belongs to this process: when it ends, the kernel lets go of programs and entries.
//!
//! Refuses to look at frames: what is taken, the programs decide.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::{BridgeConfig, Offloading};
use super::interface::Interface;
use crate::{Extent, Forwarded, OffloadFlow, OffloadSide, Port, PortCounters, Records};

#[cfg(has_offload)]
#[path = "pauses.rs"]
mod pauses;
#[cfg(has_offload)]
#[path = "programs.rs"]
mod programs;
/// Where they could not be built.
#[cfg(not(has_offload))]
#[path = "no_programs.rs"]
mod programs;

use programs::{Programs, SlotId};

/// As `struct key` of the programs.
type Key = [u8; 40];

/// What one bridge leaves to the kernel. Clones are for the other bridges over the same interfaces.
pub(super) struct Offload {
    programs: Arc<Programs>,
    /// Directions that are still to be left to it, by the port that they come in by.
    pending: [HashMap<Key, Pending>; 2],
    /// Connections of which only some records are left to it, by the key of the direction that has these.
    paused: HashMap<Key, Paused>,
    /// Its counters are told by one of them.
    first: bool,
    /// There was no room for an entry then.
    full: Option<Instant>,
    /// Why what the kernel forwards is not known any more.
    fault: Option<io::Error>,
}

/// An entry that is still to be made.
struct Pending {
    side: OffloadSide,
    slot: Option<SlotId>,
}

struct Paused {
    slot: SlotId,
    records: Records,
}

/// How long nothing is left to the kernel once it had no room.
const PAUSE: Duration = Duration::from_secs(1);

impl Offload {
    /// Loads the programs for these interfaces, or says why they are not to be had.
    pub(super) fn load(config: &BridgeConfig, interfaces: &[Interface; 2]) -> Result<Self, String> {
        let software = interfaces.iter().find(|it| !it.is_card);
        if config.offload == Offloading::OfCards
            && let Some(Interface { name, .. }) = software
        {
            return Err(format!(
                "frames of {name} come from software, which may leave checksums to be finished wherever it likes"
            ));
        }
        let programs = Arc::new(Programs::load(config, interfaces)?);
        Ok(Self::new(programs, true))
    }

    /// For one more bridge.
    pub(super) fn share(&self) -> Self {
        Self::new(Arc::clone(&self.programs), false)
    }

    fn new(programs: Arc<Programs>, first: bool) -> Self {
        let (pending, paused) = Default::default();
        Self { programs, pending, paused, first, full: None, fault: None }
    }

    /// From now on the kernel takes what it may of the frames that would come by this socket.
    pub(super) fn attach(&self, socket: &OwnedFd) -> io::Result<()> {
        self.programs.attach(socket)
    }

    /// Leaves a connection to the kernel, as soon as that overtakes nothing.
    pub(super) fn add(&mut self, flow: &OffloadFlow) {
        if self.full.is_some_and(|since| since.elapsed() < PAUSE) {
            return;
        }
        let mut slot = None;
        if let Some((side, records)) = with_records(flow) {
            let key = self.programs.key(&side);
            if self.paused.contains_key(&key) {
                return;
            }
            let Some(id) = self.programs.open_slot(&side, &records) else {
                self.full = Some(Instant::now());
                return;
            };
            self.paused.insert(key, Paused { slot: id, records });
            slot = Some(id);
        }
        for side in flow.sides {
            let pending = Pending { side, slot };
            self.pending[side.ingress.index()].insert(self.programs.key(&side), pending);
        }
    }

    /// To be called when a port's socket is empty and all that came by it has left.
    pub(super) fn port_is_empty(&mut self, port: Port) {
        for (key, Pending { side, slot }) in self.pending[port.index()].drain() {
            let has_begun = match slot {
                None => self.programs.begin(&key, &side),
                Some(slot) => {
                    let is_other = side.extent == Extent::Acknowledgments;
                    self.programs.begin_pause(&key, slot, is_other)
                }
            };
            if !has_begun {
                self.full = Some(Instant::now());
            }
        }
    }

    /// Takes a connection back, and says what has become of it.
    pub(super) fn take_back(&mut self, flow: &OffloadFlow) -> [Forwarded; 2] {
        if let Some((side, _)) = with_records(flow) {
            return self.take_pause_back(flow, &side);
        }
        flow.sides.map(|side| {
            let key = self.programs.key(&side);
            self.pending[side.ingress.index()].remove(&key);
            self.programs.end(&key).unwrap_or_else(|error| {
                self.fault = Some(error);
                Forwarded::default()
            })
        })
    }

    fn take_pause_back(&mut self, flow: &OffloadFlow, side: &OffloadSide) -> [Forwarded; 2] {
        let keys = flow.sides.map(|side| (self.programs.key(&side), side.ingress.index()));
        let Some(Paused { slot, records }) = self.paused.remove(&self.programs.key(side)) else {
            return Default::default();
        };
        let [of, other] = self.programs.close_slot(slot, &records);
        let mut forwarded = if flow.sides[0] == *side { [of, other] } else { [other, of] };
        for ((key, port), of) in keys.into_iter().zip(&mut forwarded) {
            if self.pending[port].remove(&key).is_some() {
                // It had not begun.
                *of = Forwarded::default();
            } else {
                // What goes by a closed slot is not taken, whatever comes of this.
                self.programs.end_pause(&key);
            }
        }
        forwarded
    }

    /// Why what the kernel forwards is not known any more, once.
    pub(super) fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take()
    }

    /// Adds what the kernel has forwarded.
    pub(super) fn count(&self, port: Port, counters: &mut PortCounters) {
        if self.first {
            let [frames, bytes] = self.programs.totals(port);
            counters.offloaded_frames = frames;
            counters.offloaded_bytes = bytes;
        }
    }
}

/// The direction of a connection that has records which may pass.
fn with_records(flow: &OffloadFlow) -> Option<(OffloadSide, Records)> {
    flow.sides.into_iter().find_map(|side| match side.extent {
        Extent::Records(records) => Some((side, records)),
        Extent::Everything | Extent::Acknowledgments => None,
    })
}

#[cfg(all(test, has_offload))]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_the_programs_read_them() {
        let side = OffloadSide {
            ingress: Port::Right,
            source: "10.1.2.3:443".parse().unwrap(),
            destination: "[2001:db8::5]:4660".parse().unwrap(),
            initial: 0,
            position: 0,
            extent: Extent::Everything,
        };
        let key = programs::key([6, 0x0102_0304], &side);
        assert_eq!(key[..4], 0x0102_0304u32.to_ne_bytes());
        assert_eq!(key[4..8], [1, 187, 0x12, 0x34]);
        assert_eq!(key[8..24], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 2, 3]);
        // Of IPv6 the whole, and nothing of IPv4.
        let of = |network: &str, len| programs::prefix(network.parse().unwrap(), len);
        assert_eq!(
            (of("::", 0).prefix_len(), of("::", 0).data()[..4].to_vec()),
            (32, vec![0, 0, 0, 6])
        );
        assert_eq!(of("10.0.0.0", 8).prefix_len(), 32 + 96 + 8);
        assert_eq!(of("10.0.0.0", 8).data()[3], 4);
        assert_eq!(key[24..], [0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    }
}
