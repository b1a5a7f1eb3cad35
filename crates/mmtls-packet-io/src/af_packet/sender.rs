//! An interface to which frames of the caller's making are sent, and from which none is received.
//!
//! Refuses to queue: what the interface does not take within a moment is dropped and counted.

use std::time::Duration;

use super::config::BridgeConfig;
use super::interface::{self, Interface};
use super::sending_socket;
use super::transmit::PortState;
use crate::{Error, Port, PortCounters, VnetHeader};

/// Frames per system call.
const BATCH: usize = 64;

/// Sends frames out of an interface, several at a time, and queues none.
pub struct Sender {
    port: PortState,
    address: [u8; 6],
    mtu: u32,
    /// What waits: offload header and frame, one behind the other, and where each ends.
    packets: Vec<u8>,
    ends: Vec<usize>,
    /// What the caller of [`Self::flush`] is yet to hear of.
    failed: Option<Error>,
}

impl Sender {
    /// Opens an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// All of [`Error`]; [`Error::NotPermitted`] without CAP_NET_RAW.
    pub fn open(interface: &str) -> Result<Self, Error> {
        let socket = interface::open_socket()?;
        let checked = Interface::check(&socket, interface)?;
        let (address, mtu) = (checked.address, checked.mtu);
        let socket = sending_socket(&checked)?;
        let config =
            BridgeConfig { batch: BATCH, coalesce: false, ..BridgeConfig::new(interface, "") };
        let port = PortState::new(Port::Right, socket, checked, &config);
        Ok(Self { port, address, mtu, packets: Vec::new(), ends: Vec::new(), failed: None })
    }

    /// Waits so long for a congested interface before frames are dropped; without this for 0.2 ms.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.port.set_patience(patience);
        self
    }

    /// Whether it sends to the interface of this name, whatever other names that has.
    #[must_use]
    pub fn sends_to(&self, interface: &str) -> bool {
        let index = self.port.interface_index;
        Interface::check(&self.port.socket, interface).is_ok_and(|it| it.index == index)
    }

    /// The interface's link address.
    #[must_use]
    pub fn address(&self) -> [u8; 6] {
        self.address
    }

    /// Longest packet behind the link header, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Adds an Ethernet frame to those that are sent together, now or with the next [`Self::flush`].
    pub fn push(&mut self, frame: &[u8]) {
        self.packets.extend([0; VnetHeader::LEN]);
        self.packets.extend_from_slice(frame);
        self.ends.push(self.packets.len());
        if self.ends.len() >= BATCH
            && let Err(error) = self.send_all()
        {
            self.failed = Some(error);
        }
    }

    /// Sends what waits, with as few system calls as may be. What is dropped is counted.
    ///
    /// # Errors
    /// [`Error::InterfaceDown`], [`Error::InterfaceGone`], also where it was found by [`Self::push`].
    pub fn flush(&mut self) -> Result<(), Error> {
        let sent = self.send_all();
        self.failed.take().map_or(sent, Err)
    }

    /// Whether the interface is there and up.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn check(&self) -> Result<(), Error> {
        Interface::check(&self.port.socket, &self.port.interface).map(|_| ())
    }

    fn send_all(&mut self) -> Result<(), Error> {
        let mut begin = 0;
        for end in self.ends.drain(..) {
            let packet = self.packets.get(begin..end).unwrap_or_default();
            // SAFETY: the packets stay as they are until the port is flushed below.
            unsafe { self.port.push_borrowed(VnetHeader::default(), packet, 0) };
            begin = end;
        }
        let flushed = self.port.flush();
        self.packets.clear();
        flushed
    }

    /// Frames that were sent, and why others were not.
    #[must_use]
    pub fn counters(&self) -> PortCounters {
        // It receives nothing that the kernel could drop.
        self.port.counters
    }
}
