//! What tells one connection from another.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

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

/// Marks a key as turned; identifiers of VLANs, 12 bits of each half, leave it free.
const TURNED: u64 = 1 << 62;

/// Marks a key of IPv6; so is this bit free.
const IPV6: u64 = 1 << 63;

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
        let vlan = u64::from(vlan) << 32;
        if let (SocketAddr::V4(a), SocketAddr::V4(b)) = (a, b) {
            let [a, b] = [a, b].map(bits_of_v4);
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

    /// The lower end, or the other one.
    #[inline]
    fn end(&self, lower: bool) -> SocketAddr {
        let [low_upper, low, high_upper, high] = self.addresses;
        let (upper, bits) = if lower { (low_upper, low) } else { (high_upper, high) };
        // Truncation takes apart what was put together.
        if self.rest & IPV6 == 0 {
            return (Ipv4Addr::from_bits((bits >> 16) as u32), bits as u16).into();
        }
        let port = if lower { self.rest >> 16 } else { self.rest } as u16;
        (Ipv6Addr::from_bits(u128::from(upper) << 64 | u128::from(bits)), port).into()
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

#[inline]
fn bits_of_v4(end: SocketAddrV4) -> u64 {
    u64::from(end.ip().to_bits()) << 16 | u64::from(end.port())
}

/// Who the ends of a connection are, and what tells it from others: in one piece, since there are many.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    key: FlowKey,
    client_is_lower: bool,
}

impl Ends {
    /// `turned`: see [`FlowKey::turned`].
    pub(crate) fn new(vlan: u32, client: SocketAddr, server: SocketAddr, turned: bool) -> Self {
        let (key, client_is_lower) = FlowKey::ordered(vlan, client, server);
        Self { key: key.turned(turned), client_is_lower }
    }

    pub(crate) fn key(&self) -> FlowKey {
        self.key
    }

    pub(crate) fn vlan(&self) -> u32 {
        ((self.key.rest & !(IPV6 | TURNED)) >> 32) as u32
    }

    #[inline]
    pub(crate) fn client(&self) -> SocketAddr {
        self.key.end(self.client_is_lower)
    }

    #[inline]
    pub(crate) fn server(&self) -> SocketAddr {
        self.key.end(!self.client_is_lower)
    }

    /// Whether this end, one of the two, is the client: asked of every packet.
    #[inline]
    pub(crate) fn is_client(&self, end: SocketAddr) -> bool {
        match end {
            SocketAddr::V4(end) => {
                let [_, low, _, high] = self.key.addresses;
                bits_of_v4(end) == if self.client_is_lower { low } else { high }
            }
            SocketAddr::V6(_) => end == self.client(),
        }
    }

    /// Client and server.
    pub(crate) fn both(&self) -> [SocketAddr; 2] {
        [self.client(), self.server()]
    }

    /// Client and server turn out to be the other way round.
    pub(crate) fn swap(&mut self) {
        self.client_is_lower = !self.client_is_lower;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_ends_as_they_were() {
        let ends = [("10.0.0.1:443", "10.0.0.2:1"), ("[2001:db8::ffff:1]:65535", "[fe80::2]:0")];
        let same = ("10.0.0.1:443", "10.0.0.1:443");
        for (a, b) in ends.into_iter().chain([same]) {
            let (a, b): (SocketAddr, SocketAddr) = (a.parse().unwrap(), b.parse().unwrap());
            for (client, server) in [(a, b), (b, a)] {
                for (vlan, turned) in [(0, false), (0x0fff_0fff, true), (7 << 16, false)] {
                    let mut ends = Ends::new(vlan, client, server, turned);
                    assert_eq!(ends.both(), [client, server]);
                    assert!(ends.is_client(client));
                    assert_eq!(ends.is_client(server), client == server);
                    assert_eq!((ends.vlan(), ends.key().is_turned()), (vlan, turned));
                    assert!(ends.key() == FlowKey::new(vlan, server, client).turned(turned));
                    ends.swap();
                    assert_eq!((ends.client(), ends.server()), (server, client));
                }
            }
        }
    }
}
