//! What tells one connection from another.

use core::net::{IpAddr, SocketAddr};

use crate::port::PortId;

/// A four-tuple on a VLAN, the same for both directions. Numbers, since every packet's is hashed and
/// compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    /// The bits of two addresses in halves, of IPv4 with ports: a `u128` would be aligned to 16 bytes, and the
    /// table's entries take 16 more.
    addresses: [u64; 4],
    /// VLAN, family and, of IPv6, ports.
    rest: u64,
}

/// Marks a key as turned; identifiers of VLANs leave it free.
const TURNED: u64 = 1 << 62;

impl FlowKey {
    pub(crate) fn new(vlan: u32, a: SocketAddr, b: SocketAddr) -> Self {
        Self::ordered(vlan, a, b).0
    }

    /// The key of a segment that came in on this port; see [`FlowKey::turned`].
    #[inline]
    pub(crate) fn of(vlan: u32, source: SocketAddr, destination: SocketAddr, port: PortId) -> Self {
        let (key, in_order) = Self::ordered(vlan, source, destination);
        key.turned(in_order == (port.0 & 1 == 0))
    }

    /// The key of two ends, and whether the first of them is the lower one.
    #[inline]
    fn ordered(vlan: u32, a: SocketAddr, b: SocketAddr) -> (Self, bool) {
        /// Identifiers leave it free: they have 12 bits of each half.
        const IPV6: u64 = 1 << 63;
        let vlan = u64::from(vlan) << 32;
        if let (SocketAddr::V4(a), SocketAddr::V4(b)) = (a, b) {
            let [a, b] =
                [a, b].map(|end| u64::from(u32::from(*end.ip())) << 16 | u64::from(end.port()));
            let addresses = [0, a.min(b), 0, a.max(b)];
            return (Self { addresses, rest: vlan }, a <= b);
        }
        // Flow label and scope are not part of a parsed address.
        let [a, b] = [a, b].map(|end| match end.ip() {
            IpAddr::V4(ip) => (u128::from(ip.to_bits()), end.port()),
            IpAddr::V6(ip) => (u128::from(ip), end.port()),
        });
        let (low, high) = (a.min(b), a.max(b));
        let ports = u64::from(low.1) << 16 | u64::from(high.1);
        // Halves: truncation loses nothing.
        let upper = |it: u128| (it >> 64) as u64;
        let addresses = [upper(low.0), low.0 as u64, upper(high.0), high.0 as u64];
        (Self { addresses, rest: IPV6 | vlan | ports }, a <= b)
    }

    /// See [`FlowKey::turned`].
    pub(crate) fn is_turned(&self) -> bool {
        self.rest & TURNED != 0
    }

    /// The same four-tuple with its ends on the other sides of the monitor: another connection, since
    /// each end is on one side. So nobody speaks for somebody on the other side, and what is routed
    /// through the monitor twice is followed twice.
    pub(crate) fn turned(mut self, turned: bool) -> Self {
        self.rest = self.rest & !TURNED | if turned { TURNED } else { 0 };
        self
    }
}
