//! One port: its socket, and the frames waiting to leave by it, in order.
//!
//! Frames wait here only until the end of a batch. A congested interface is waited for a little, then frames are
//! dropped and counted: an endpoint's TCP copes with loss, a bridge that stands still does not.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::config::BridgeConfig;
use super::interface::{self, Interface};
use super::queue::Queue;
use super::system;
use crate::{Error, Port, PortCounters, VnetHeader};

/// How often, and how long, one flush waits for a congested interface if not told otherwise: 0.2 ms in all, since the other
/// direction waits too.
const MAX_WAITS: u32 = 4;
const WAIT: Duration = Duration::from_micros(50);

/// A bound socket and its queue.
pub(super) struct PortState {
    pub(super) port: Port,
    pub(super) socket: OwnedFd,
    pub(super) interface: String,
    pub(super) interface_index: i32,
    pub(super) counters: PortCounters,
    /// What the kernel reported so far; asking it resets its own number.
    kernel_dropped: Cell<u64>,
    /// Frames waiting.
    queue: Queue,
    /// The last flush dropped frames. The next one does not wait: only after one that dropped none is that worth it.
    congested: bool,
    /// The interface was found down or gone in a flush whose caller did not learn of it.
    down: bool,
    /// Nothing is sent here.
    passive: bool,
    /// How often one flush waits.
    waits: u32,
}

impl PortState {
    pub(super) fn new(
        port: Port,
        socket: OwnedFd,
        interface: Interface,
        config: &BridgeConfig,
    ) -> Self {
        Self {
            port,
            socket,
            interface: interface.name,
            interface_index: interface.index,
            counters: PortCounters::default(),
            kernel_dropped: Cell::new(0),
            queue: Queue::new(config.batch, config.coalesce),
            congested: false,
            down: false,
            passive: config.passive,
            waits: MAX_WAITS,
        }
    }

    /// Lets one flush wait so long for a congested interface.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        let waits = patience.as_micros() / WAIT.as_micros();
        self.waits = u32::try_from(waits).unwrap_or(u32::MAX);
    }

    /// Whether its socket receives nothing: another one watches this interface too.
    pub(super) fn is_receive_disabled(&self) -> bool {
        self.passive && self.port == Port::Right
    }

    /// Counters, the kernel's included.
    pub(super) fn counters(&self) -> PortCounters {
        // On failure the kernel keeps its number for the next time.
        let dropped = system::take_drops(&self.socket).unwrap_or(0);
        self.kernel_dropped.set(self.kernel_dropped.get() + dropped);
        PortCounters { kernel_dropped: self.kernel_dropped.get(), ..self.counters }
    }

    /// Queues offload header and frame in someone else's memory. It is joined with others to `most` bytes of payload.
    ///
    /// # Safety
    /// `packet` must stay valid and unchanged until the next [`Self::flush`].
    pub(super) unsafe fn push_borrowed(&mut self, vnet: VnetHeader, packet: &[u8], most: usize) {
        if self.passive {
            return;
        }
        if self.queue.is_full() {
            self.send_all();
        }
        // SAFETY: as the caller promises.
        unsafe { self.queue.push_borrowed(vnet, packet, most) };
    }

    /// Queues offload header and frame.
    pub(super) fn push_owned(&mut self, packet: Vec<u8>) {
        if self.passive {
            return;
        }
        if self.queue.is_full() {
            self.send_all();
        }
        self.queue.push_owned(packet);
    }

    /// Sends all that is queued.
    ///
    /// # Errors
    /// The interface is down or gone; what could not be sent is counted and forgotten.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.queue.messages() > 0 {
            self.send_all();
        }
        if std::mem::take(&mut self.down) { Err(self.down_error()) } else { Ok(()) }
    }

    /// Whether the interface exists, and is up where its socket would not hear of it.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.down_error() {
            Error::InterfaceDown { .. } if self.passive => {
                match Interface::check(&self.socket, &self.interface) {
                    Err(down @ Error::InterfaceDown { .. }) => Err(down),
                    // It has another name now.
                    Ok(_) | Err(_) => Ok(()),
                }
            }
            Error::InterfaceDown { .. } => Ok(()),
            gone => Err(gone),
        }
    }

    /// Whether the interface is up and has a carrier. Where the kernel does not say, it is.
    pub(super) fn check_link(&self) -> Result<(), Error> {
        // It may have another name now.
        let index = self.interface_index.cast_unsigned();
        let flags = system::interface_name(&self.socket, index)
            .map_err(|error| Error::system("SIOCGIFNAME", &self.interface, error))
            .and_then(|name| interface::flags(&self.socket, &name));
        let interface = self.interface.clone();
        match flags {
            Ok(flags) if flags & libc::IFF_UP == 0 => Err(Error::InterfaceDown { interface }),
            Ok(flags) if flags & libc::IFF_RUNNING == 0 => Err(Error::NoCarrier { interface }),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Says whether the interface is down or gone.
    pub(super) fn down_error(&self) -> Error {
        let interface = self.interface.clone();
        if system::interface_exists(&self.socket, self.interface_index) {
            Error::InterfaceDown { interface }
        } else {
            Error::InterfaceGone { interface, port: self.port }
        }
    }

    fn send_all(&mut self) {
        let mut next = 0;
        let mut waits_left = if self.congested { 0 } else { self.waits };
        self.congested = false;
        let mut failed_once = None;
        self.queue.gather();
        while next < self.queue.messages() {
            let error = match self.queue.send(&self.socket, next) {
                Ok(sent) if sent.messages > 0 => {
                    next += sent.messages;
                    self.counters.sent_bytes += sent.bytes;
                    self.counters.sent_frames += sent.frames;
                    self.counters.coalesced_frames += sent.frames - sent.messages as u64;
                    continue;
                }
                Ok(_) => io::Error::from_raw_os_error(libc::EIO),
                Err(error) => error,
            };
            let errors = &mut self.counters.send_errors;
            let frames = self.queue.frames(next..next + 1);
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::ENOBUFS) if waits_left > 0 => {
                    waits_left -= 1;
                    self.counters.send_waits += 1;
                    self.wait_for_room(error.raw_os_error() == Some(libc::EAGAIN));
                    continue;
                }
                Some(libc::EAGAIN) => {
                    self.congested = true;
                    errors.would_block += frames;
                }
                Some(libc::ENOBUFS) => {
                    self.congested = true;
                    errors.no_buffers += frames;
                }
                Some(libc::EMSGSIZE) => errors.too_long += frames,
                // The first send after an interface event or a failed receive is told about that instead of itself.
                _ if failed_once != Some(next) => {
                    failed_once = Some(next);
                    continue;
                }
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.down = true;
                    errors.interface_down += self.queue.frames(next..self.queue.messages());
                    break;
                }
                _ => errors.refused += frames,
            }
            next += 1;
        }
        self.queue.clear();
    }

    fn wait_for_room(&self, send_buffer_full: bool) {
        // A full send buffer becomes writable; a full device queue gives no sign, so that is plain waiting. Should
        // either fail, the next attempt comes a little early.
        let _ = if send_buffer_full {
            system::poll_writable(&self.socket, WAIT)
        } else {
            system::poll_readable([None], Some(WAIT)).map(|_| ())
        };
    }
}
