//! What a worker has counted, and what it keeps.

use mmtls_engine::{Counters, Histogram};
use mmtls_packet_io::Counters as PortsCounters;

/// What a worker has counted, and what it keeps at the moment.
#[derive(Clone, Copy, Default, Debug)]
pub struct Status {
    /// The engine's counters.
    pub engine: Counters,
    /// The interfaces' counters, as this worker's sockets saw them.
    pub bridge: PortsCounters,
    /// Flows in the table.
    pub flows: u64,
    /// Bytes kept.
    pub buffered_bytes: u64,
    /// Frames held.
    pub held_frames: u64,
    /// How long frames were held that are not any more.
    pub held_times: Histogram,
    /// Frames dropped because finishing their checksum would have changed their content, or the kernel cannot cut them.
    pub refused_offloads: u64,
    /// How often an interface went down or lost its carrier.
    pub interface_downs: u64,
    /// Of both ports, whether it is down or without a carrier now.
    pub ports_down: [bool; 2],
    /// How often the guard's lease was lost: the kernel has forwarded in this worker's place.
    pub leases_lost: u64,
}

impl core::ops::AddAssign<&Self> for Status {
    /// That of another worker. All of them see an interface go down.
    fn add_assign(&mut self, other: &Self) {
        self.engine += other.engine;
        self.bridge += other.bridge;
        self.flows += other.flows;
        self.buffered_bytes += other.buffered_bytes;
        self.held_frames += other.held_frames;
        self.held_times += other.held_times;
        self.refused_offloads += other.refused_offloads;
        self.interface_downs = self.interface_downs.max(other.interface_downs);
        for (down, other) in self.ports_down.iter_mut().zip(other.ports_down) {
            *down |= other;
        }
        self.leases_lost += other.leases_lost;
    }
}
