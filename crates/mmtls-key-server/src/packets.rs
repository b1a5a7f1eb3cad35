//! Sealed datagrams as packets: with the ends of the monitored connection, and sent several at a time.
//!
//! Refuses packets that would not fit the network: fragments are steered by other rules.

use etherparse::PacketBuilder;
use mmtls_keyshare::Flow;
use mmtls_keyshare::sealed::{Delivery, Sealer};
use mmtls_packet_io::PortCounters;
use mmtls_packet_io::af_packet::Sender;
use std::net::SocketAddr;

/// No router is to be crossed; the middlebox takes the packet.
const HOP_LIMIT: u8 = 64;
const LINK_BYTES: usize = 14;

/// The way out.
pub(crate) struct Packets {
    sender: Sender,
    destination: [u8; 6],
    /// The packet at hand, and its datagram.
    packet: Vec<u8>,
    datagram: Vec<u8>,
}

impl Packets {
    pub(crate) fn new(sender: Sender, destination: [u8; 6]) -> Self {
        Self { sender, destination, packet: Vec::new(), datagram: Vec::new() }
    }

    /// Seals what is delivered into a packet of its connection; `false` where it cannot be.
    pub(crate) fn push(&mut self, sealer: &mut Sealer, flow: Flow, delivery: &Delivery) -> bool {
        self.datagram.clear();
        if !sealer.seal(delivery, &mut self.datagram) {
            return false;
        }
        let link = PacketBuilder::ethernet2(self.sender.address(), self.destination);
        let packet = match (flow.client(), flow.server()) {
            (SocketAddr::V4(client), SocketAddr::V4(server)) => {
                link.ipv4(client.ip().octets(), server.ip().octets(), HOP_LIMIT)
            }
            (SocketAddr::V6(client), SocketAddr::V6(server)) => {
                link.ipv6(client.ip().octets(), server.ip().octets(), HOP_LIMIT)
            }
            // No flow has these.
            _ => return false,
        };
        let packet = packet.udp(flow.client().port(), flow.server().port());
        self.packet.clear();
        if packet.size(self.datagram.len()) > LINK_BYTES + self.sender.mtu() as usize
            || packet.write(&mut self.packet, &self.datagram).is_err()
        {
            return false;
        }
        self.sender.push(&self.packet);
        true
    }

    /// Sends what waits. What the interface does not take is counted.
    pub(crate) fn flush(&mut self) {
        // An interface that is down is tried again with the next ones.
        let _ = self.sender.flush();
    }

    pub(crate) fn counters(&self) -> PortCounters {
        self.sender.counters()
    }
}
