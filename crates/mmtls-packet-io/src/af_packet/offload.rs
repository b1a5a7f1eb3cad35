//! Connections that nobody reads, or not all of, are forwarded by the kernel: its programs (`bpf/offload.bpf.c`), and their entries.
//!
//! An entry is made at a moment when its port's socket is empty and all that came by it has left, since what waits there would
//! be overtaken. Should a frame come at that very moment all the same, the entry does not begin, and is made again behind that
//! frame. Everything belongs to this process: when it ends, the kernel lets go of programs and entries.
//!
//! Refuses to look at frames: what is taken, the programs decide.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::{BridgeConfig, Offloading};
use super::interface::Interface;
use crate::{Forwarded, OffloadFlow, OffloadSide, Port, PortCounters, Records};

#[cfg(has_offload)]
#[path = "pause_slots.rs"]
mod pause_slots;
#[path = "paused.rs"]
mod paused;
#[cfg(has_offload)]
#[path = "programs.rs"]
mod programs;
/// Where they could not be built.
#[cfg(not(has_offload))]
#[path = "no_programs.rs"]
mod programs;

use paused::{PausedFlows, with_records};
use programs::Programs;

/// As `struct key` of the programs.
type Key = [u8; 40];

/// What one bridge leaves to the kernel. Clones are for the other bridges over the same interfaces.
pub(super) struct Offload {
    programs: Arc<Programs>,
    /// Directions that are still to be left to it, by the port that they come in by.
    pending: [HashMap<Key, OffloadSide>; 2],
    /// Connections of which only some records are left to it.
    paused: PausedFlows,
    /// Its counters are told by one of them.
    first: bool,
    /// There was no room for an entry then.
    full: Option<Instant>,
    /// Why what the kernel forwards is not known any more.
    fault: Option<io::Error>,
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

    /// Leaves a connection to the kernel, as soon as that overtakes nothing; false where there is no room for it.
    pub(super) fn add(&mut self, flow: &OffloadFlow) -> bool {
        if let Some((side, records)) = with_records(flow) {
            return self.paused.add(&self.programs, flow, &side, &records);
        }
        if self.full.is_some_and(|since| since.elapsed() < PAUSE) {
            // It stays with user space until it is asked for again.
            return true;
        }
        for side in flow.sides {
            self.pending[side.ingress.index()].insert(self.programs.key(&side), side);
        }
        true
    }

    /// To be called when all that was to be sent has been.
    pub(super) fn all_is_sent(&mut self) {
        self.paused.all_is_sent(&self.programs);
    }

    /// To be called when a port's socket is empty and all that came by it has left.
    pub(super) fn port_is_empty(&mut self, port: Port) {
        let mut has_room = self.paused.port_is_empty(&self.programs, port);
        for (key, side) in self.pending[port.index()].drain() {
            has_room &= self.programs.begin(&key, &side);
        }
        if !has_room {
            self.full = Some(Instant::now());
        }
    }

    /// Takes a connection back, and says what has become of it.
    pub(super) fn take_back(&mut self, flow: &OffloadFlow) -> [Forwarded; 2] {
        if let Some((side, _)) = with_records(flow) {
            let [of, other] = self.paused.take_back(&self.programs, flow);
            return if flow.sides[0] == side { [of, other] } else { [other, of] };
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

    /// Takes back networks that were left alone.
    pub(super) fn show_again(&mut self, networks: &[(IpAddr, u8)]) {
        for &(address, prefix_len) in networks {
            if let Err(error) = self.programs.remove_rule(address, prefix_len) {
                self.fault = Some(error);
            }
        }
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
            peer_initial: 0,
            position: 0,
            extent: crate::Extent::Everything,
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
