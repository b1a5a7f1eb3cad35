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
use crate::receivers::{Receiver, receivers};

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
        let names =
            interfaces.iter().filter_map(|interface| listen(interface.index.cast_unsigned()).ok());
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
    let sockets = receivers();
    for Interface { name, index, .. } in interfaces {
        if let Some(uid) = bridged_by(index.cast_unsigned(), &sockets) {
            return Err(Error::Bridged { interface: name.clone(), uid });
        }
    }
    Ok(())
}

/// The user whose bridge has an interface, where these are the sockets that receive.
pub(crate) fn bridged_by(index: u32, sockets: &[Receiver]) -> Option<u32> {
    let receives = |uid: u32| sockets.iter().any(|it| (it.interface, it.uid) == (index, uid));
    holder(index).filter(|uid| receives(*uid))
}

fn name(index: u32) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("mmtls-bridge-{index}").as_bytes())?)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

fn listen(index: u32) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &name(index)?)?;
    rustix::net::listen(&socket, MAX_WAITING)?;
    Ok(socket)
}

/// The user who has the name.
fn holder(index: u32) -> Option<u32> {
    let socket = socket().ok()?;
    rustix::net::connect(&socket, &name(index).ok()?).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    Some(peer.uid.as_raw())
}
