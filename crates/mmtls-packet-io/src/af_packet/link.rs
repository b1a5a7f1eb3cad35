//! What rtnetlink tells of an interface, and no ioctl: who has taken it, and how large its super-frames may be.
//!
//! Refuses nothing: what the kernel does not tell is `None`.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Lengths of `struct nlmsghdr` and `struct ifinfomsg`.
const HEADER: usize = 16;
const BODY: usize = 16;
/// Larger than any answer about one interface without its virtual functions.
const MAX_ANSWER: usize = 32 << 10;

/// What the kernel says of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Link {
    /// Index of the bridge or bond that it is a port of.
    pub(super) master: Option<u32>,
    /// Largest super-frame that reception makes, bytes.
    pub(super) gro_max_size: Option<u32>,
    /// Largest super-frame that may be sent, bytes.
    pub(super) gso_max_size: Option<u32>,
}

impl Link {
    /// Asks for an interface of the calling thread's network namespace.
    pub(super) fn ask(index: i32) -> io::Result<Self> {
        // NETLINK_ROUTE is protocol 0.
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        let mut request = [0; HEADER + BODY];
        let length = (HEADER + BODY) as u32;
        request[..4].copy_from_slice(&length.to_ne_bytes());
        request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
        request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
        // Behind family and type of the device.
        request[HEADER + 4..HEADER + 8].copy_from_slice(&index.to_ne_bytes());
        rustix::net::send(&socket, &request, SendFlags::empty())?;
        let mut answer = vec![0; MAX_ANSWER];
        let (received, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        Ok(Self::read(&answer[..received]))
    }

    /// Reads an answer as far as it goes.
    fn read(answer: &[u8]) -> Self {
        let mut link = Self::default();
        let kind = answer.get(4..6).and_then(|it| it.try_into().ok()).map(u16::from_ne_bytes);
        if kind != Some(libc::RTM_NEWLINK) {
            return link;
        }
        let mut rest = answer.get(HEADER + BODY..).unwrap_or_default();
        while let Some((head, _)) = rest.split_first_chunk::<4>() {
            let [length, kind] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_ne_bytes);
            let length = usize::from(length);
            let Some(value) = rest.get(4..length) else {
                break;
            };
            let number = value.try_into().ok().map(u32::from_ne_bytes);
            match kind {
                libc::IFLA_MASTER => link.master = number,
                // Those for IPv4 have attributes of their own.
                libc::IFLA_GSO_MAX_SIZE | IFLA_GSO_IPV4_MAX_SIZE => {
                    link.gso_max_size = link.gso_max_size.max(number);
                }
                IFLA_GRO_MAX_SIZE | IFLA_GRO_IPV4_MAX_SIZE => {
                    link.gro_max_size = link.gro_max_size.max(number);
                }
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        link
    }
}

/// Linux 5.17.
const IFLA_GRO_MAX_SIZE: u16 = 58;
/// Linux 6.3.
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + BODY];
        bytes[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        for (kind, value) in attributes {
            bytes.extend(((value.len() + 4) as u16).to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn accepts_answers_as_far_as_they_go() {
        let [seven, size] = [7u32, 65536].map(u32::to_ne_bytes);
        let whole = answer(&[(3, b"left\0"), (10, &seven), (41, &size), (58, &size)]);
        let sizes = (Some(65536), Some(65536));
        let link = Link::read(&whole);
        assert_eq!((link.master, (link.gso_max_size, link.gro_max_size)), (Some(7), sizes));
        for end in 0..whole.len() {
            let cut = Link::read(&whole[..end]);
            assert!(cut.master.is_none_or(|master| master == 7), "{end}");
        }
        // A length of nothing would be read for ever.
        let mut none = answer(&[(10, &seven)]);
        none[HEADER + BODY] = 0;
        assert_eq!(Link::read(&none), Link::default());
    }

    #[test]
    fn accepts_an_interface_that_there_is() {
        let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
        let link = Link::ask(index.trim().parse().unwrap()).unwrap();
        assert_eq!(link.master, None);
        assert!(link.gso_max_size.is_some_and(|size| size >= 65536), "{link:?}");
    }
}
