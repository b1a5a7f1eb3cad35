//! Views of frames: Ethernet with VLAN tags, IPv4, IPv6, TCP. One length check per header; after
//! it no accessor can go out of bounds.
//!
//! Refuses to unpack tunnels, to reassemble IP fragments, to change a byte, and to panic on any input.

mod build;
mod checksum;
mod link;
mod network;
mod partial;
mod tcp;
mod tunnel;

pub(crate) use build::{Reset, build_probe, build_reset};
pub use link::Link;
pub(crate) use link::{link_addresses, turned};
pub use partial::{cuts_in_place, finishes_in_place};
pub(crate) use tcp::{Flags, TcpView};

use core::net::{IpAddr, SocketAddr};
pub(crate) use link::vlan_of;
use link::{Stripped, strip_link};
pub(crate) use network::Fragment;
use network::{Network, Reassembled, parse_network, parse_reassembled};

/// What a frame turned out to be.
pub(crate) enum Parsed<'a> {
    /// A TCP segment.
    Tcp(Segment<'a>),
    /// A fragment of an IP packet that may carry TCP, first or later, and the link header in front.
    Fragment(Fragment<'a>, &'a [u8]),
    /// The payload of a UDP datagram.
    Udp(&'a [u8]),
    /// IP in a form that is not followed: a tunnel, another frame format.
    Encapsulated,
    /// Anything else that is not TCP over IP: forwarded.
    Other,
    /// Claims to be TCP over IP, but its lengths contradict each other, or has more VLAN tags than
    /// are looked behind.
    Malformed,
}

/// One TCP segment and where it stood.
pub(crate) struct Segment<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) tcp: TcpView<'a>,
    /// Link header with VLAN tags, as it came: what an injected frame begins with.
    pub(crate) link_header: &'a [u8],
    /// VLAN identifiers, outer in the upper half; zero without tags.
    pub(crate) vlan: u32,
}

impl<'a> Segment<'a> {
    #[inline(always)]
    fn of(
        link_header: &'a [u8],
        source: IpAddr,
        destination: IpAddr,
        segment: &'a [u8],
    ) -> Option<Self> {
        let tcp = TcpView::parse(segment)?;
        Some(Self {
            source: SocketAddr::new(source, tcp.source_port()),
            destination: SocketAddr::new(destination, tcp.destination_port()),
            tcp,
            link_header,
            vlan: vlan_of(link_header),
        })
    }

    /// The segment in a packet that was put together from fragments; `payload` is behind the IP
    /// header, or behind that of the fragments.
    pub(crate) fn reassembled(
        link_header: &'a [u8],
        of: &Fragment<'_>,
        next: u8,
        payload: &'a [u8],
    ) -> Parsed<'a> {
        match parse_reassembled(next, payload) {
            Reassembled::Tcp(segment) => Self::of(link_header, of.source, of.destination, segment)
                .map_or(Parsed::Malformed, Parsed::Tcp),
            Reassembled::Encapsulated => Parsed::Encapsulated,
            Reassembled::Malformed => Parsed::Malformed,
            Reassembled::Other => Parsed::Other,
        }
    }

    /// Whether the TCP checksum over the pseudo header is right.
    pub(crate) fn checksum_ok(&self) -> bool {
        checksum::tcp_ok(self.source.ip(), self.destination.ip(), self.tcp.bytes())
    }
}

/// The payload of a UDP datagram in a packet that is whole and has no extension headers, whatever its ports say: for back ends
/// whose own packets come in between.
#[must_use]
pub fn udp_payload(link: Link, frame: &[u8]) -> Option<&[u8]> {
    let Stripped::Ip(_, ip) = strip_link(link, frame) else {
        return None;
    };
    network::udp_payload(ip)
}

/// Parses a frame down to TCP; `strict` as for [`parse_network`].
pub(crate) fn parse(link: Link, frame: &[u8], strict: bool) -> Parsed<'_> {
    let (link_header, ip) = match strip_link(link, frame) {
        Stripped::Ip(link_header, ip) => (link_header, ip),
        Stripped::Encapsulated => return Parsed::Encapsulated,
        Stripped::Other => return Parsed::Other,
        Stripped::TooManyTags => return Parsed::Malformed,
    };
    match parse_network(ip, strict) {
        Network::Tcp { source, destination, segment } => {
            match Segment::of(link_header, source, destination, segment) {
                Some(segment) => Parsed::Tcp(segment),
                None => Parsed::Malformed,
            }
        }
        Network::Fragment(fragment) => Parsed::Fragment(fragment, link_header),
        Network::Udp(payload) => Parsed::Udp(payload),
        Network::Encapsulated => Parsed::Encapsulated,
        Network::Other => Parsed::Other,
        Network::Malformed => Parsed::Malformed,
    }
}
