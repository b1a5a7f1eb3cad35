//! Admission control of the key server: whose connections are counted together, which one is closed when all
//! slots are taken, and how much is read of each network before the others get their turn.
//!
//! Refuses nothing by itself. An endpoint has as many addresses of its IPv6 network as it likes,
//! and whoever has a site's network has many of those: so the largest holder is sought from sites
//! down to addresses.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::peer::{ConnectionId, Peer};

/// Whose connections and messages are counted together: those of an IPv4 address or, since a host
/// has as many addresses of its network as it likes, of the first 64 bits of an IPv6 address.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    prefix(address, [32, 64])
}

/// How many connections the network of this address may have.
fn max_per_network(address: IpAddr, max_connections: usize) -> usize {
    let networks = if address.is_ipv4() { 16 } else { 4 };
    (max_connections / networks).max(8)
}

/// Whether a network may have one more connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Free,
    /// Where this one is closed.
    InPlaceOf(ConnectionId),
    Full,
}

/// The connections of each network.
#[derive(Default)]
pub(super) struct Networks(HashMap<IpAddr, OfNetwork>);

#[derive(Default)]
struct OfNetwork {
    open: usize,
    /// Those that have not said hello, oldest first. Whoever opens many must not have all of them looked through for each.
    handshakes: BTreeSet<ConnectionId>,
}

impl Networks {
    /// Whether the network of this address may have one more. Of those without a hello the oldest gives way: they cost
    /// whoever opens them next to nothing, and others of that network need theirs.
    pub(super) fn admits(&self, address: IpAddr, max_connections: usize) -> Admission {
        match self.0.get(&network(address)) {
            Some(own) if own.open >= max_per_network(address, max_connections) => {
                own.handshakes.first().map_or(Admission::Full, |it| Admission::InPlaceOf(*it))
            }
            _ => Admission::Free,
        }
    }

    /// A connection has begun.
    pub(super) fn begin(&mut self, peer: &Peer) {
        let own = self.0.entry(network(peer.address.ip())).or_default();
        own.open += 1;
        own.handshakes.insert(peer.connection);
    }

    /// It has said hello.
    pub(super) fn end_handshake(&mut self, peer: &Peer) {
        if let Some(own) = self.0.get_mut(&network(peer.address.ip())) {
            own.handshakes.remove(&peer.connection);
        }
    }

    /// It is over.
    pub(super) fn end(&mut self, peer: &Peer) {
        let network = network(peer.address.ip());
        if let Some(own) = self.0.get_mut(&network) {
            own.handshakes.remove(&peer.connection);
            own.open = own.open.saturating_sub(1);
            if own.open == 0 {
                self.0.remove(&network);
            }
        }
    }
}

/// Reads from the sockets of a network before the others get their turn, as many as from a single one; each is 4 KiB or more.
const READS: usize = 64;

/// What may still be read of each network in this loop.
#[derive(Default)]
pub(super) struct Reads(HashMap<IpAddr, usize>);

impl Reads {
    /// A new loop.
    pub(super) fn begin(&mut self) {
        self.0.clear();
    }

    /// How many are left of those of this address's network.
    pub(super) fn left(&mut self, address: IpAddr) -> &mut usize {
        self.0.entry(network(address)).or_insert(READS)
    }

    /// As many, for one who speaks for others.
    pub(super) fn of_key_server() -> usize {
        READS
    }
}

/// Bits of IPv4 and IPv6 that are compared, from sites to hosts.
const LEVELS: [[u32; 2]; 3] = [[24, 48], [32, 56], [32, 64]];

fn prefix(address: IpAddr, [v4, v6]: [u32; 2]) -> IpAddr {
    match address {
        IpAddr::V4(it) => {
            let mask = u32::MAX.checked_shl(32 - v4).unwrap_or(0);
            Ipv4Addr::from_bits(it.to_bits() & mask).into()
        }
        IpAddr::V6(it) => {
            let mask = u128::MAX.checked_shl(128 - v6).unwrap_or(0);
            Ipv6Addr::from_bits(it.to_bits() & mask).into()
        }
    }
}

/// Which of `open` connections (slots with their addresses, oldest first) is closed to admit one from `newcomer`: the
/// newest of the network that has the most, in the site that has the most. `None` when that is the
/// newcomer's own.
pub(super) fn connection_to_close(open: Vec<(usize, IpAddr)>, newcomer: IpAddr) -> Option<usize> {
    largest_network(open, Some(newcomer))?.last().map(|(slot, _)| *slot)
}

/// The same of those that are still in their handshake: the oldest, since it is the slowest.
pub(super) fn handshake_to_close(handshakes: Vec<(usize, IpAddr)>) -> Option<usize> {
    largest_network(handshakes, None)?.first().map(|(slot, _)| *slot)
}

/// The slots of the network that has the most of them, a newcomer's counted; `None` when that is
/// the newcomer's own.
fn largest_network(
    mut left: Vec<(usize, IpAddr)>,
    newcomer: Option<IpAddr>,
) -> Option<Vec<(usize, IpAddr)>> {
    let mut newcomer = newcomer;
    for level in LEVELS {
        let mut sizes: HashMap<IpAddr, usize> = HashMap::new();
        for (_, address) in &left {
            *sizes.entry(prefix(*address, level)).or_default() += 1;
        }
        let own = newcomer.map(|it| prefix(it, level));
        if let Some(own) = own {
            *sizes.entry(own).or_default() += 1;
        }
        let most = sizes.values().copied().max()?;
        // Equals do not displace each other in turn.
        let largest = match own.filter(|own| sizes.get(own) == Some(&most)) {
            Some(own) => own,
            None => {
                newcomer = None;
                sizes.into_iter().filter(|(_, size)| *size == most).map(|(it, _)| it).max()?
            }
        };
        left.retain(|(_, address)| prefix(*address, level) == largest);
    }
    newcomer.is_none().then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_network_more_reads_with_more_connections() {
        let mut reads = Reads::default();
        let [one, same, other] =
            ["2001:db8::1", "2001:db8::2", "10.0.0.1"].map(|it| it.parse().unwrap());
        *reads.left(one) -= 60;
        assert_eq!([one, same, other].map(|it| *reads.left(it)), [4, 4, READS]);
        reads.begin();
        assert_eq!(*reads.left(same), READS);
    }

    #[test]
    fn accepts_one_more_of_a_network_in_place_of_its_oldest_without_a_hello() {
        let mut networks = Networks::default();
        let peer = |number: u32, last: u8| Peer {
            address: ([10, 0, 0, last], 50_000).into(),
            connection: ConnectionId::of_place(number, 100 - number as usize),
            capabilities: 0,
            authenticated: false,
            is_key_server: false,
        };
        let peers: Vec<Peer> = (1..=8).map(|number| peer(number, 2)).collect();
        for peer in &peers {
            assert_eq!(networks.admits(peer.address.ip(), 64), Admission::Free);
            networks.begin(peer);
        }
        let [own, other] = [2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        assert_eq!(networks.admits(other, 64), Admission::Free);
        for peer in &peers {
            assert_eq!(networks.admits(own, 64), Admission::InPlaceOf(peer.connection));
            networks.end_handshake(peer);
        }
        assert_eq!(networks.admits(own, 64), Admission::Full);
        networks.end(&peers[3]);
        assert_eq!(networks.admits(own, 64), Admission::Free);
        networks.begin(&peer(9, 2));
        networks.end(&peer(9, 2));
        peers
            .iter()
            .filter(|it| it.connection != peers[3].connection)
            .for_each(|it| networks.end(it));
        assert!(networks.0.is_empty());
    }

    /// Opens so many connections, from addresses in turn, where there are 64 slots; returns how many were admitted.
    fn fill(slots: &mut Vec<(usize, IpAddr)>, addresses: &[&str], count: usize) -> usize {
        let mut admitted = 0;
        for number in 0..count {
            let address = addresses[number % addresses.len()].parse().unwrap();
            if slots.len() >= 64 {
                match connection_to_close(slots.clone(), address) {
                    Some(slot) => slots.retain(|(at, _)| *at != slot),
                    None => continue,
                }
            }
            let next = slots.last().map_or(0, |(at, _)| at + 1);
            slots.push((next, address));
            admitted += 1;
        }
        admitted
    }

    fn of(slots: &[(usize, IpAddr)], start: &str) -> usize {
        slots.iter().filter(|(_, address)| address.to_string().starts_with(start)).count()
    }

    #[test]
    fn refuses_to_let_networks_of_one_site_take_every_slot() {
        let mut slots = Vec::new();
        let site = ["2001:db8:1:0::1", "2001:db8:1:1::1", "2001:db8:1:2::1", "2001:db8:1:3::1"];
        assert_eq!(fill(&mut slots, &site, 1000), 64);
        // Others get in, each with as many as the site has left.
        assert_eq!(fill(&mut slots, &["2001:db8:2::1"], 10), 10);
        assert_eq!(fill(&mut slots, &["10.0.0.1"], 10), 10);
        assert_eq!(of(&slots, "2001:db8:1:"), 44);
        // The site cannot take them back.
        assert_eq!(fill(&mut slots, &site, 1000), 0);
        assert_eq!((of(&slots, "2001:db8:2"), of(&slots, "10.")), (10, 10));
        // Nor can one of its networks take another's.
        let networks: Vec<usize> =
            ["2001:db8:1::", "2001:db8:1:1:", "2001:db8:1:2:", "2001:db8:1:3:"]
                .map(|it| of(&slots, it))
                .to_vec();
        assert!(networks.iter().all(|it| *it == 11), "{networks:?}");
    }

    #[test]
    fn refuses_addresses_of_a_small_ipv4_network_the_same() {
        let mut slots = Vec::new();
        let addresses: Vec<String> = (1..17).map(|last| format!("10.0.0.{last}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        assert_eq!(fill(&mut slots, &addresses, 1000), 64);
        assert_eq!(fill(&mut slots, &["10.1.0.1", "192.0.2.1"], 40), 40);
        // The oldest of whoever gives way stay.
        assert!((0..20).all(|slot| slots.iter().any(|(at, _)| *at == slot)));
        assert_eq!(network("10.0.0.1".parse().unwrap()), "10.0.0.1".parse::<IpAddr>().unwrap());
    }
}
