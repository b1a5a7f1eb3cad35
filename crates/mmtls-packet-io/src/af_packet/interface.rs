//! What must be true of an interface before it is bridged, and what is merely suspicious.
//!
//! Refuses interfaces that do not exist, are down, are not Ethernet, or are another bridge's. Changes nothing on them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use super::link::Link;
use super::system::{self, INTERFACE_NAME_SIZE};
use crate::Error;

/// Largest super-frame without BIG TCP, as `ip link` counts.
const MAX_SUPER_FRAME: u32 = 65536;

/// Something about the set-up that works but is probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The host's own stack will answer on this interface too.
    HasAddress {
        /// The interface.
        interface: String,
        /// IPv4 or IPv6 address.
        address: std::net::IpAddr,
    },
    /// No cable, or the other end of a veth pair is down.
    NoCarrier {
        /// The interface.
        interface: String,
    },
    /// Super-frames may be larger than any that is taken (BIG TCP): those are dropped.
    LargeFrames {
        /// The interface.
        interface: String,
        /// `gro_max_size` or `gso_max_size`.
        bytes: u32,
    },
    /// Frames that fit one side do not fit the other, and will be dropped.
    MtuDiffers {
        /// MTU of the left interface, bytes.
        left: u32,
        /// MTU of the right interface, bytes.
        right: u32,
    },
    /// The kernel forwards nothing by itself: what nobody reads costs as much as what is followed.
    NoOffload {
        /// Why.
        reason: String,
    },
    /// Nobody could say whether a guard would forward every frame beside this bridge.
    UnseenGuard {
        /// The interfaces.
        names: String,
        /// What the system said.
        reason: String,
    },
    /// The kernel granted less receive buffer than asked for: expect drops under load.
    SmallBuffer {
        /// The interface.
        interface: String,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes granted.
        granted: usize,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::HasAddress { interface, address } => write!(
                f,
                "{interface} has the address {address}: this host will answer there by itself (remove it, and set \
                 net.ipv6.conf.{interface}.disable_ipv6=1)"
            ),
            Self::NoCarrier { interface } => write!(f, "{interface} has no carrier"),
            Self::LargeFrames { interface, bytes } => write!(
                f,
                "{interface}: super-frames may have {bytes} bytes, and those above {MAX_SUPER_FRAME} are dropped (ip link \
                 set {interface} gro_max_size {MAX_SUPER_FRAME} gso_max_size {MAX_SUPER_FRAME})"
            ),
            Self::MtuDiffers { left, right } => {
                write!(
                    f,
                    "the MTU differs (left {left}, right {right}): larger frames will be dropped"
                )
            }
            Self::NoOffload { reason } => {
                write!(f, "connections that are not inspected are not left to the kernel: {reason}")
            }
            Self::UnseenGuard { names, reason } => write!(
                f,
                "cannot see whether a guard is installed for {names} ({reason}): it would forward every frame beside this \
                 monitor (`mmtls guard status`, as root, lists them)"
            ),
            Self::SmallBuffer { interface, wanted, granted } => write!(
                f,
                "{interface}: only {granted} of {wanted} bytes of socket buffer were granted (CAP_NET_ADMIN is needed, \
                 or a larger net.core.rmem_max)"
            ),
        }
    }
}

/// An interface that may be bridged.
#[derive(Clone)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: i32,
    /// Its link address.
    pub(super) address: [u8; 6],
    pub(super) mtu: u32,
    pub(super) running: bool,
    /// Its frames come from a card, which leaves no checksum to be finished.
    pub(super) is_card: bool,
}

/// Drivers of virtual cards: what they hand over may come from a neighbour on the same host.
const VIRTUAL: [&str; 7] =
    ["virtio_net", "vmxnet3", "vif", "hv_netvsc", "ibmveth", "netvsc", "gve"];

/// Cards are on a PCI or USB bus, whose places have a colon or a dash in their names.
fn is_card(driver: &str, bus: &str) -> bool {
    bus.contains([':', '-']) && !VIRTUAL.contains(&driver)
}

impl Interface {
    /// Looks the interface up in the socket's network namespace and checks it.
    pub(super) fn check(socket: &OwnedFd, name: &str) -> Result<Self, Error> {
        let padded = padded_name(name)?;
        let ask = |request| system::interface_request(socket, request, padded);
        let index = number(socket, name)?;
        let hardware =
            ask(libc::SIOCGIFHWADDR as _).map_err(|e| Error::system("SIOCGIFHWADDR", name, e))?;
        // A `sockaddr`: the family, then the address.
        let mut address = [0; 6];
        address.copy_from_slice(&hardware[2..8]);
        let hardware = u16::from_ne_bytes([hardware[0], hardware[1]]);
        if hardware != libc::ARPHRD_ETHER {
            return Err(Error::NotEthernet { interface: name.to_owned(), hardware });
        }
        let flags = flags(socket, name)?;
        if flags & libc::IFF_UP == 0 {
            return Err(Error::InterfaceDown { interface: name.to_owned() });
        }
        let mtu = ask(libc::SIOCGIFMTU as _).map_err(|e| Error::system("SIOCGIFMTU", name, e))?;
        Ok(Self {
            name: name.to_owned(),
            index,
            address,
            mtu: u32::try_from(first_i32(&mtu)).unwrap_or(0),
            running: flags & libc::IFF_RUNNING != 0,
            is_card: system::driver(socket, padded)
                .is_ok_and(|[driver, bus]| is_card(&driver, &bus)),
        })
    }

    /// Refuses one whose frames go elsewhere in any case.
    pub(super) fn check_free(self, socket: &OwnedFd) -> Result<Self, Error> {
        // A kernel that does not tell is no reason not to try.
        let Some(master) = Link::ask(self.index).ok().and_then(|link| link.master) else {
            return Ok(self);
        };
        let master =
            system::interface_name(socket, master).unwrap_or_else(|_| "another".to_owned());
        Err(Error::Enslaved { interface: self.name, master })
    }

    /// Adds what is suspicious about it. Failing to find out is not. Whoever forwards in place of a passive one may
    /// have addresses.
    pub(super) fn warn(&self, socket: &OwnedFd, passive: bool, warnings: &mut Vec<Warning>) {
        if !self.running {
            warnings.push(Warning::NoCarrier { interface: self.name.clone() });
        }
        let link = Link::ask(self.index).unwrap_or_default();
        let largest = link.gro_max_size.max(link.gso_max_size).unwrap_or_default();
        if largest > MAX_SUPER_FRAME {
            let interface = self.name.clone();
            warnings.push(Warning::LargeFrames { interface, bytes: largest });
        }
        if passive {
            return;
        }
        if let Some(address) = self.ipv4_address(socket) {
            let (interface, address) = (self.name.clone(), address.into());
            warnings.push(Warning::HasAddress { interface, address });
        }
        // The calling thread's namespace, which need not be that of the process.
        if let Ok(table) = std::fs::read_to_string("/proc/thread-self/net/if_inet6")
            && let Some(address) = ipv6_address(&table, &self.name)
        {
            let (interface, address) = (self.name.clone(), address.into());
            warnings.push(Warning::HasAddress { interface, address });
        }
    }

    fn ipv4_address(&self, socket: &OwnedFd) -> Option<Ipv4Addr> {
        let name = padded_name(&self.name).ok()?;
        // struct sockaddr_in: family, port, address.
        let value = system::interface_request(socket, libc::SIOCGIFADDR as _, name).ok()?;
        let bytes: [u8; 4] = value.get(4..8)?.try_into().ok()?;
        Some(bytes.into())
    }
}

/// The interface's number in the socket's network namespace.
pub(crate) fn number(socket: &OwnedFd, name: &str) -> Result<i32, Error> {
    match system::interface_request(socket, libc::SIOCGIFINDEX as _, padded_name(name)?) {
        Ok(value) => Ok(first_i32(&value)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
            Err(Error::NoSuchInterface { interface: name.to_owned() })
        }
        Err(error) => Err(Error::system("SIOCGIFINDEX", name, error)),
    }
}

/// `IFF_…` of an interface, as far as they have 16 bits.
pub(super) fn flags(socket: &OwnedFd, name: &str) -> Result<i32, Error> {
    let value = system::interface_request(socket, libc::SIOCGIFFLAGS as _, padded_name(name)?)
        .map_err(|error| Error::system("SIOCGIFFLAGS", name, error))?;
    Ok(i32::from(u16::from_ne_bytes([value[0], value[1]])))
}

fn first_i32(value: &[u8; 24]) -> i32 {
    i32::from_ne_bytes([value[0], value[1], value[2], value[3]])
}

fn padded_name(name: &str) -> Result<[u8; INTERFACE_NAME_SIZE], Error> {
    let mut padded = [0; INTERFACE_NAME_SIZE];
    // The last byte stays zero.
    match padded[..INTERFACE_NAME_SIZE - 1].get_mut(..name.len()) {
        Some(room) if !name.is_empty() && !name.contains('\0') => {
            room.copy_from_slice(name.as_bytes());
            Ok(padded)
        }
        _ => Err(Error::NoSuchInterface { interface: name.to_owned() }),
    }
}

/// First address of an interface in the text of `/proc/net/if_inet6`: address, index, prefix, scope, flags, name.
fn ipv6_address(table: &str, name: &str) -> Option<Ipv6Addr> {
    let line = table.lines().find(|line| line.split_whitespace().nth(5) == Some(name))?;
    let digits = line.split_whitespace().next()?;
    u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)
}

/// Opens a socket only to say early and clearly when that is not permitted.
pub(super) fn open_socket() -> Result<OwnedFd, Error> {
    system::packet_socket().map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::NotPermitted,
        Some(libc::EAFNOSUPPORT) => Error::Unsupported { option: "AF_PACKET sockets" },
        _ => Error::system("socket", "", error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_impossible_names() {
        for name in ["", "sixteen-letters!", "a\0b"] {
            assert!(matches!(padded_name(name), Err(Error::NoSuchInterface { .. })), "{name:?}");
        }
        assert!(padded_name("fifteen-letters").is_ok());
    }

    #[test]
    fn accepts_address_table() {
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe8000000000000002155dfffe012345 02 40 20 80     eth0\n";
        let address = ipv6_address(table, "eth0").map(|a| a.to_string());
        assert_eq!(address.as_deref(), Some("fe80::215:5dff:fe01:2345"));
        assert_eq!(ipv6_address(table, "eth"), None);
        assert_eq!(ipv6_address("rubbish\n\n", "eth0"), None);
    }
}
