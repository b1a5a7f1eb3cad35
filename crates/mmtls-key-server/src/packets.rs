//! Sealed datagrams as packets: with the ends of a monitored connection, and sent several at a time.
//!
//! Where the middlebox has told how it shares connections out, keys of connections that one worker has share a packet: a
//! packet costs more than what is in it.
//!
//! Refuses packets that would not fit the network: fragments are steered by other rules.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use etherparse::PacketBuilder;
use mmtls_keyshare::Flow;
use mmtls_keyshare::message::Steering;
use mmtls_keyshare::sealed::{Deliveries, Delivery, OVERHEAD_BYTES, Sealer};
use mmtls_packet_io::PortCounters;
use mmtls_packet_io::af_packet::{self, Sender};

/// No router is to be crossed; the middlebox takes the packet.
const HOP_LIMIT: u8 = 64;
/// IPv6 and UDP.
const HEADER_BYTES: usize = 40 + 8;
/// How often an interface that is down is looked at again; keys go over the connection to the middlebox meanwhile.
const RETRY: Duration = Duration::from_millis(200);
/// Most workers that are told apart; others share.
const MAX_WORKERS: u32 = 128;

/// The way out.
pub(crate) struct Packets {
    sender: Sender,
    destination: [u8; 6],
    /// Longest text of a packet.
    limit: usize,
    /// What waits for each worker, as this says which one has a connection.
    bundles: Vec<Bundle>,
    steering: Option<Steering>,
    /// When it was found that the interface takes nothing.
    down: Option<Instant>,
    /// The packet at hand, and its datagram.
    packet: Vec<u8>,
    datagram: Vec<u8>,
}

#[derive(Default)]
struct Bundle {
    /// A connection that the worker has.
    flow: Option<Flow>,
    deliveries: Deliveries,
}

impl Packets {
    pub(crate) fn new(sender: Sender, destination: [u8; 6]) -> Self {
        let limit = (sender.mtu() as usize).saturating_sub(HEADER_BYTES + OVERHEAD_BYTES);
        let (bundles, packet, datagram) = (Vec::new(), Vec::new(), Vec::new());
        let (steering, down) = (None, None);
        Self { sender, destination, limit, bundles, steering, down, packet, datagram }
    }

    /// Adds what is delivered to a packet that goes to the worker of its connection; `false` where none can take it.
    pub(crate) fn push(
        &mut self,
        sealer: &mut Sealer,
        steering: Option<Steering>,
        flow: Flow,
        delivery: &Delivery,
    ) -> bool {
        if self.is_down() {
            return false;
        }
        if self.steering != steering {
            (0..self.bundles.len()).for_each(|at| self.seal(sealer, at));
            self.steering = steering;
        }
        let worker = steering.map_or(0, |Steering { workers, seed }| {
            let steering = af_packet::Steering { bridges: workers, seed };
            steering.bridge_of(flow.client(), flow.server()) % MAX_WORKERS
        });
        let at = worker as usize;
        if self.bundles.len() <= at {
            self.bundles.resize_with(at + 1, Bundle::default);
        }
        // Of two connections nothing else tells whether one worker has both.
        let is_steered = steering.is_some_and(|it| it.workers <= MAX_WORKERS);
        let other = self.bundles[at].flow.is_some_and(|it| it != flow);
        if other && !is_steered || !self.bundles[at].deliveries.add(delivery, self.limit) {
            self.seal(sealer, at);
            if !self.bundles[at].deliveries.add(delivery, self.limit) {
                return false;
            }
        }
        self.bundles[at].flow.get_or_insert(flow);
        true
    }

    /// Whether the interface takes nothing: looked at now and then, since to try would cost keys.
    fn is_down(&mut self) -> bool {
        if self.down.is_some_and(|since| since.elapsed() >= RETRY) {
            self.down = self.sender.check().is_err().then(Instant::now);
        }
        self.down.is_some()
    }

    /// Sends what waits. What the interface does not take is counted.
    pub(crate) fn flush(&mut self, sealer: &mut Sealer) {
        (0..self.bundles.len()).for_each(|at| self.seal(sealer, at));
        if self.sender.flush().is_err() {
            self.down = Some(Instant::now());
        }
    }

    /// The middlebox is gone, and with it what the packets would have been sealed with: what waits is lost.
    pub(crate) fn forget(&mut self) {
        self.bundles.clear();
    }

    fn seal(&mut self, sealer: &mut Sealer, at: usize) {
        let Bundle { flow, deliveries } = &mut self.bundles[at];
        let Some(flow) = flow.take() else {
            return;
        };
        self.datagram.clear();
        // The library does not fail.
        let sealed = sealer.seal(deliveries, &mut self.datagram);
        deliveries.clear();
        let link = PacketBuilder::ethernet2(self.sender.address(), self.destination);
        let packet = match (flow.client(), flow.server()) {
            (SocketAddr::V4(client), SocketAddr::V4(server)) => {
                link.ipv4(client.ip().octets(), server.ip().octets(), HOP_LIMIT)
            }
            (SocketAddr::V6(client), SocketAddr::V6(server)) => {
                link.ipv6(client.ip().octets(), server.ip().octets(), HOP_LIMIT)
            }
            // No flow has these.
            _ => return,
        };
        let packet = packet.udp(flow.client().port(), flow.server().port());
        self.packet.clear();
        if sealed && packet.write(&mut self.packet, &self.datagram).is_ok() {
            self.sender.push(&self.packet);
        }
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.sender.counters()
    }
}
