//! One bridge for an interface: a second one would forward every frame once more.
//!
//! A bridge has an abstract name of a Unix socket for each of its interfaces. These are of a network namespace, as interfaces are,
//! and go with the process, however it ends. Since anybody may take such a name, it counts only where the same user has a packet socket that
//! receives from the interface, which takes CAP_NET_RAW: nobody else can keep a monitor from starting, but hide that one is there.
//!
//! Refuses nothing where it cannot find out: of two that start at the same moment, and before they receive, neither.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Checked;
use super::interface::Interface;
use crate::Error;

/// How often, and how long apart, it is looked again: one that has been killed, or taken over, may still be ending.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Those who ask between two answers.
const MAX_WAITING: i32 = 128;

/// Both interfaces are this bridge's for as long as this lives.
#[derive(Default)]
pub(super) struct Claim {
    names: Vec<OwnedFd>,
}

impl Claim {
    /// That many look on does no harm: of passive ones there is nothing to claim.
    ///
    /// # Errors
    /// [`Error::Bridged`].
    pub(super) fn new(checked: &Checked) -> Result<Self, Error> {
        let interfaces = &checked.interfaces;
        if checked.passive {
            return Ok(Self::default());
        }
        for _ in 1..LOOKS {
            if check(interfaces).is_ok() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        check(interfaces)?;
        let names = interfaces.iter().filter_map(|interface| listen(interface.index).ok());
        Ok(Self { names: names.collect() })
    }

    /// Lets those go who have asked whose the names are: they know once they are connected, and a queue that is full would not tell
    /// the next one.
    pub(super) fn answer(&self) {
        for name in &self.names {
            for _ in 0..MAX_WAITING {
                if rustix::net::accept_with(name, SocketFlags::CLOEXEC).is_err() {
                    break;
                }
            }
        }
    }
}

/// Whether no other bridge has one of them.
///
/// # Errors
/// [`Error::Bridged`].
pub(super) fn check(interfaces: &[Interface; 2]) -> Result<(), Error> {
    // The calling thread's namespace, which need not be that of the process.
    let sockets = std::fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
    for Interface { name, index, .. } in interfaces {
        if let Some(uid) = holder(*index).filter(|uid| receives(&sockets, *index, *uid)) {
            return Err(Error::Bridged { interface: name.clone(), uid });
        }
    }
    Ok(())
}

fn name(index: i32) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("mmtls-bridge-{index}").as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn listen(index: i32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &name(index)?)?;
    rustix::net::listen(&socket, MAX_WAITING)?;
    Ok(socket)
}

/// The user who has the name.
fn holder(index: i32) -> Option<u32> {
    let socket = socket().ok()?;
    rustix::net::connect(&socket, &name(index).ok()?).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    Some(peer.uid.as_raw())
}

/// Whether the text of `/proc/net/packet` has a socket of this user that gets all of an interface's frames: sk, references, type,
/// protocol, interface, running, memory, user, …
fn receives(sockets: &str, index: i32, uid: u32) -> bool {
    sockets.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(3);
        let [protocol, number, _, _, user] = std::array::from_fn(|_| fields.next());
        protocol == Some("0003")
            && number.and_then(|it| it.parse().ok()) == Some(index)
            && user.and_then(|it| it.parse().ok()) == Some(uid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_kernels_table_of_packet_sockets() {
        let table = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n\
                     0000000000000000 3      3    0003   7     1 0      998    12345\n\
                     0000000000000000 3      3    0000   8     1 0      998    12346\n";
        assert!(receives(table, 7, 998));
        for (index, uid) in [(7, 0), (8, 998), (9, 998), (7, 12345)] {
            assert!(!receives(table, index, uid), "{index} {uid}");
        }
        assert!(!receives("", 7, 0) && !receives("\n\n3 3 3 0003\n", 3, 0));
    }
}
