//! Two Ethernet interfaces bridged transparently by one thread, or by several (Linux 4.20 or later; several: 5.1).
//!
//! Frames are received in batches from AF_PACKET sockets with `PACKET_VNET_HDR`, shown to the caller one by one, and
//! sent out of the other port as they came: segmentation-offload super-frames stay whole and unfinished checksums stay
//! unfinished. Only where one sender's segments follow each other, several frames may leave as one super-frame
//! ([`BridgeConfig::coalesce`]). A frame that is forwarded is not copied, and memory is allocated only in place of what
//! the caller keeps.
//!
//! A passive bridge sends nothing but what is injected, by an interface of its own; one socket reads both interfaces then, so that an
//! answer is not seen before its question.
//!
//! It refuses to change what frames carry, and to queue them: what an interface does not take is dropped and
//! counted ([`Counters`]). It does not stop the host's own stack from seeing the frames too; give it interfaces without
//! addresses, best in a network namespace of their own ([`Bridge::warnings`] says what stands out).
//!
//! Frames larger than [`MAX_FRAME_BYTES`] (BIG TCP) are dropped and counted as truncated. Frames with VLAN tags
//! may need an MTU on both ports that is larger than the endpoints' MTU: the kernel lets one outer tag of 802.1Q (0x8100) pass
//! without counting it, and no other. So 4 bytes for a second tag, or for one of 802.1ad (0x88a8); 8 for that with a second one.

mod bridged;
mod buffers;
mod coalesce;
mod config;
mod interface;
mod lease;
mod link;
mod offload;
mod queue;
mod sender;
mod slots;
mod steering;
mod system;
mod transmit;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub use self::bridged::refuse_bridged;
pub use self::config::{BridgeConfig, Offloading};
pub use self::interface::Warning;
pub(crate) use self::interface::{Interface, number};
pub use self::sender::Sender;
pub use self::slots::MAX_FRAME_BYTES;
pub use self::steering::Steering;
pub(crate) use self::system::{
    event_descriptor, inet_socket, interface_name, netns_cookie, poll_readable,
};
pub use crate::counters::{Counters, PortCounters, SendErrors};
pub use crate::error::Error;
pub use crate::frame::{Action, Frame, HeldFrame, Port, VnetHeader};
pub use crate::ports::Ready;
pub use crate::wake::WakeFd;

use self::offload::Offload;
use self::slots::{ReceiveSlots, Unusable};
use self::transmit::PortState;
use crate::guard::{self, Hold};
use crate::ports::{Lease, Ports};
use crate::receivers;
use crate::{Forwarded, OffloadFlow};

const MAX_BATCH: usize = 1024;

/// Two bridged interfaces. See the [module](self).
pub struct Bridge {
    slots: ReceiveSlots,
    outbox: Outbox,
    warnings: Vec<Warning>,
    /// Its part of the guard's lease, where it fails open.
    hold: Option<Hold>,
}

/// Both ports as places to send to: frames of the caller's leave in order with the forwarded ones.
pub struct Outbox {
    ports: [PortState; 2],
    /// Where a passive one's injected frames leave.
    resets: Option<PortState>,
    /// Bytes of payload that the frame that is being decided may be joined with others to.
    coalescing_limit: usize,
    /// Goes last: without its programs, what its filter takes at the sockets would be lost.
    offload: Option<Offload>,
}

impl Outbox {
    /// Releases a held frame, ahead of the frame that is being decided.
    pub fn send_held(&mut self, held: HeldFrame) {
        self.ports[held.egress().index()].push_owned(held.into_packet());
    }

    /// Sends a frame of the caller's making, ahead of the frame that is being decided.
    ///
    /// # Errors
    /// [`Error::InvalidFrame`].
    pub fn inject(&mut self, egress: Port, ethernet: &[u8]) -> Result<(), Error> {
        if !(14..=MAX_FRAME_BYTES).contains(&ethernet.len()) {
            return Err(Error::InvalidFrame { length: ethernet.len() });
        }
        let frame = HeldFrame::new(egress, VnetHeader::default(), ethernet);
        match &mut self.resets {
            Some(resets) => resets.push_owned(frame.into_packet()),
            None => self.send_held(frame),
        }
        Ok(())
    }
}

impl Bridge {
    /// Opens both interfaces in the calling thread's network namespace. From now on frames are received and must be
    /// taken with [`Self::receive`].
    ///
    /// # Errors
    /// All of [`Error`]; [`Error::NotPermitted`] without CAP_NET_RAW.
    pub fn open(config: &BridgeConfig) -> Result<Self, Error> {
        let mut interfaces = prepared(config)?;
        let opening = Opening::new(config, &interfaces)?;
        interfaces.wait_until_free()?;
        let mut holds = interfaces.holds(config, 1)?;
        // Both together: a frame seen by one side only would be an unanswered one.
        opening.bind(&interfaces)?;
        let offload = interfaces.offload(config);
        let mut bridge = opening.finish(interfaces, config);
        bridge.hold = holds.pop();
        match offload {
            Some(Ok(offload)) => bridge.leave_to(offload)?,
            Some(Err(reason)) => bridge.warnings.push(Warning::NoOffload { reason }),
            None => {}
        }
        Ok(bridge)
    }

    /// Opens bridges that share both interfaces: each gets the frames that [`Steering::bridge_of`] says are its own,
    /// for a thread of its own. Warnings are the first one's. With one bridge this is [`Self::open`].
    ///
    /// # Errors
    /// As [`Self::open`], and [`Error::Unsupported`] where the kernel refuses such groups. Kernels before 5.1 do not
    /// refuse them, but are not supported.
    pub fn open_shared(config: &BridgeConfig, steering: Steering) -> Result<Vec<Self>, Error> {
        if steering.bridges <= 1 {
            return Ok(vec![Self::open(config)?]);
        }
        let mut first = prepared(config)?;
        first.wait_until_free()?;
        let holds = first.holds(config, steering.bridges as usize)?;
        let [left, right] = &first.interfaces;
        let mut openings = Vec::new();
        for _ in 0..steering.bridges {
            let opening = Opening::new(config, &first)?;
            for socket in &opening.sockets {
                // A bound socket gets every frame until it is in the group.
                system::refuse_all(socket).map_err(|e| Error::system("SO_ATTACH_FILTER", "", e))?;
            }
            openings.push(opening);
        }
        for (at, interface) in [left, right].into_iter().take(first.sockets()).enumerate() {
            let mut group = None;
            // The same order in both groups: the place in it is what the program's result means.
            for opening in &openings {
                let socket = &opening.sockets[at];
                first.bind(socket, interface)?;
                let joined = system::join_group(socket, group).map_err(|error| {
                    match error.raw_os_error() {
                        Some(libc::EINVAL) => Error::Unsupported { option: "PACKET_FANOUT" },
                        _ => Error::system("PACKET_FANOUT", &interface.name, error),
                    }
                })?;
                group = Some(joined);
            }
            if let Some(opening) = openings.first() {
                system::steer_group(&opening.sockets[at], &steering::program(steering.seed))
                    .map_err(|e| Error::system("PACKET_FANOUT_DATA", &interface.name, e))?;
            }
        }
        for socket in openings.iter().flat_map(|opening| &opening.sockets) {
            system::accept_received(socket, &first.watched())
                .map_err(|e| Error::system("SO_ATTACH_FILTER", "", e))?;
        }
        let offload = first.offload(config);
        let warnings = first.warnings;
        let mut bridges: Vec<Self> = Vec::new();
        for opening in openings {
            let interfaces = first.interfaces.clone();
            let Checked { passive, together, .. } = first;
            let resets = first.resets.clone();
            let checked = Checked { interfaces, warnings: Vec::new(), passive, together, resets };
            bridges.push(opening.finish(checked, config));
        }
        for (bridge, hold) in bridges.iter_mut().zip(holds) {
            bridge.hold = Some(hold);
        }
        // The others' sockets are like the first one's.
        for bridge in bridges.iter_mut().skip(1) {
            bridge.warnings.clear();
        }
        if let Some(bridge) = bridges.first_mut() {
            bridge.warnings.splice(0..0, warnings);
        }
        match offload {
            Some(Ok(offload)) => {
                for bridge in bridges.iter_mut().skip(1) {
                    bridge.leave_to(offload.share())?;
                }
                bridges[0].leave_to(offload)?;
            }
            Some(Err(reason)) => bridges[0].warnings.push(Warning::NoOffload { reason }),
            None => {}
        }
        Ok(bridges)
    }

    /// What is suspicious about the interfaces; found at opening.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Whether both interfaces still exist; one that was down before it was deleted says so in no other way. Of a
    /// passive one, also whether they are up.
    ///
    /// # Errors
    /// [`Error::InterfaceGone`], [`Error::InterfaceDown`].
    pub fn check(&self) -> Result<(), Error> {
        self.outbox.ports.iter().try_for_each(PortState::check)
    }

    /// What nobody reads is left to the kernel from now on.
    fn leave_to(&mut self, offload: Offload) -> Result<(), Error> {
        for port in &self.outbox.ports {
            offload
                .attach(&port.socket)
                .map_err(|e| Error::system("SO_ATTACH_BPF", &port.interface, e))?;
        }
        self.outbox.offload = Some(offload);
        Ok(())
    }

    /// Counters since opening.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let [left, right] = &self.outbox.ports;
        let mut counters = Counters { left: left.counters(), right: right.counters() };
        if let Some(offload) = &self.outbox.offload {
            offload.count(Port::Left, &mut counters.left);
            offload.count(Port::Right, &mut counters.right);
        }
        let left = self.outbox.ports[0].interface_index.cast_unsigned();
        if let Some(passed) = self.hold.as_ref().and_then(|hold| hold.passed(left)) {
            for (port, of) in [&mut counters.left, &mut counters.right].into_iter().zip(passed) {
                [port.guard_forwarded_frames, port.guard_forwarded_bytes] = of.since;
                [port.guard_passed_frames, port.guard_passed_bytes] = of.ever;
            }
        }
        if let Some(resets) = &self.outbox.resets {
            counters.right += resets.counters();
        }
        counters
    }

    /// Sends what is still queued, then waits until a port has frames, `wake` becomes readable, or `timeout` passes
    /// (`None`: for ever). May also return early with nothing ready, after a signal.
    ///
    /// # Errors
    /// [`Error::InterfaceDown`] and [`Error::InterfaceGone`] from sending; [`Error::System`].
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<Ready, Error> {
        self.flush()?;
        let timeout = match &self.hold {
            Some(hold) => Some(timeout.unwrap_or(Duration::MAX).min(hold.pause())),
            None => timeout,
        };
        let [left, right] = &self.outbox.ports;
        let set = [Some(left.socket.as_fd()), Some(right.socket.as_fd()), wake];
        let [left, right, woken] =
            system::poll_readable(set, timeout).map_err(|e| Error::system("ppoll", "", e))?;
        Ok(Ready { left, right, woken })
    }

    /// Receives one batch from a port without blocking, calls `decide` once per frame in order of arrival, and sends
    /// the forwarded frames out of the other port before it returns. Returns how many frames came, 0 when none waited.
    /// A passive one forwards nothing, whatever is decided.
    ///
    /// # Errors
    /// [`Error::InterfaceDown`], [`Error::InterfaceGone`]: of the receiving port, or of a sending port after the whole
    /// batch was decided. [`Error::System`].
    pub fn receive<F>(&mut self, port: Port, mut decide: F) -> Result<usize, Error>
    where
        F: FnMut(&Frame<'_>) -> Action,
    {
        self.receive_with(port, |frame, _| decide(frame))
    }

    /// As [`Self::receive`], with the means to release held frames and to inject others between the forwarded ones:
    /// what `decide` sends leaves before the frame that it is deciding about.
    ///
    /// # Errors
    /// As for [`Self::receive`].
    pub fn receive_with<F>(&mut self, port: Port, mut decide: F) -> Result<usize, Error>
    where
        F: FnMut(&Frame<'_>, &mut Outbox) -> Action,
    {
        // Also what a panic of `decide` left behind: its slots are intact until the next line.
        self.flush()?;
        if let Some(fault) = self.outbox.offload.as_mut().and_then(Offload::take_fault) {
            return Err(Error::system("BPF_MAP_DELETE_ELEM", "", fault));
        }
        let count = self.receive_batch(port)?;
        if self.hold.as_ref().is_some_and(|hold| !hold.is_held()) {
            // This thread may have stood still since it renewed.
            let counters = &mut self.outbox.ports[port.index()].counters;
            counters.guard_discarded_frames += count as u64;
            return Ok(0);
        }
        for index in 0..count {
            let counters = &mut self.outbox.ports[port.index()].counters;
            let received = match self.slots.take(index) {
                Ok(received) => received,
                Err(Unusable::Truncated) => {
                    counters.truncated += 1;
                    continue;
                }
                Err(Unusable::Runt) => {
                    counters.runts += 1;
                    continue;
                }
            };
            let (bytes, memory) = self.slots.bytes(received);
            let frame = Frame { bytes, memory: Some(memory), vnet: received.vnet, ingress: port };
            counters.received_frames += 1;
            counters.received_bytes += received.length as u64;
            counters.received_super_frames += u64::from(frame.gso_size().is_some());
            counters.received_vlan_frames += u64::from(received.tag_restored);
            self.outbox.coalescing_limit = usize::MAX;
            match decide(&frame, &mut self.outbox) {
                Action::Forward => {
                    let (packet, most) =
                        (self.slots.packet(received), self.outbox.coalescing_limit);
                    let egress = &mut self.outbox.ports[port.other().index()];
                    // SAFETY: the slots stay as they are until the next batch, and the queue is flushed below; should
                    // `decide` panic, it is flushed before the next batch, also where that is discarded.
                    unsafe { egress.push_borrowed(received.vnet, packet, most) };
                }
                Action::Drop | Action::Taken => {}
            }
        }
        self.flush()?;
        Ok(count)
    }

    /// Queues a held frame behind all that left by its port so far. It goes with the next [`Self::flush`],
    /// [`Self::wait`] or [`Self::receive`].
    pub fn send_held(&mut self, held: HeldFrame) {
        self.outbox.send_held(held);
    }

    /// Queues a frame of the caller's making, checksums complete, behind all that left by the port so far. It goes with
    /// the next [`Self::flush`], [`Self::wait`] or [`Self::receive`].
    ///
    /// # Errors
    /// [`Error::InvalidFrame`].
    pub fn inject(&mut self, egress: Port, ethernet: &[u8]) -> Result<(), Error> {
        self.outbox.inject(egress, ethernet)
    }

    /// Sends what is queued.
    ///
    /// # Errors
    /// [`Error::InterfaceDown`], [`Error::InterfaceGone`].
    pub fn flush(&mut self) -> Result<(), Error> {
        if let Some(resets) = &mut self.outbox.resets {
            // Best effort: watching goes on when this interface is down, and its frames are counted.
            let _ = resets.flush();
        }
        let [left, right] = &mut self.outbox.ports;
        // Both, even when the first fails.
        let (left, right) = (left.flush(), right.flush());
        left.and(right)?;
        if let Some(offload) = &mut self.outbox.offload {
            offload.all_is_sent();
        }
        Ok(())
    }
}

impl crate::Outbox for Outbox {
    fn send_held(&mut self, held: HeldFrame) {
        Self::send_held(self, held);
    }

    fn inject(&mut self, egress: Port, ethernet: &[u8]) -> Result<(), Error> {
        Self::inject(self, egress, ethernet)
    }

    fn limit_coalescing(&mut self, bytes: usize) {
        self.coalescing_limit = bytes;
    }

    fn offload(&mut self, flow: &OffloadFlow) -> bool {
        self.offload.as_mut().is_some_and(|offload| offload.add(flow))
    }

    fn take_back(&mut self, flow: &OffloadFlow) -> [Forwarded; 2] {
        self.offload.as_mut().map_or_else(Default::default, |offload| offload.take_back(flow))
    }

    fn show_again(&mut self, networks: &[(IpAddr, u8)]) {
        if let Some(offload) = &mut self.offload {
            offload.show_again(networks);
        }
    }

    fn offloads(&self) -> bool {
        self.offload.is_some()
    }
}

impl Ports for Bridge {
    type Outbox = Outbox;

    fn receive_with<F>(&mut self, port: Port, decide: F) -> Result<usize, Error>
    where
        F: FnMut(&Frame<'_>, &mut Outbox) -> Action,
    {
        Self::receive_with(self, port, decide)
    }

    fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<Ready, Error> {
        Self::wait(self, timeout, wake)
    }

    fn renew(&mut self) -> Result<Lease, Error> {
        self.renew_lease()
    }

    fn lease(&self) -> Option<Duration> {
        self.hold.as_ref().map(Hold::lease)
    }

    fn release(&mut self) {
        if let Some(hold) = &mut self.hold {
            hold.release();
        }
    }

    fn check(&self) -> Result<(), Error> {
        Self::check(self)
    }

    fn check_link(&self, port: Port) -> Result<(), Error> {
        self.outbox.ports[port.index()].check_link()
    }

    fn counters(&self) -> Counters {
        Self::counters(self)
    }
}

impl Bridge {
    fn receive_batch(&mut self, port: Port) -> Result<usize, Error> {
        let state = &mut self.outbox.ports[port.index()];
        if state.is_receive_disabled() {
            return Ok(0);
        }
        // Each EINVAL is one frame that the kernel could not hand over, and more may wait behind it.
        for _ in 0..MAX_BATCH {
            let error = match self.slots.receive(&state.socket) {
                Ok(count) => return Ok(count),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EAGAIN) => {
                    if let Some(offload) = &mut self.outbox.offload {
                        offload.port_is_empty(port);
                    }
                    return Ok(0);
                }
                Some(libc::EINTR) => {}
                Some(libc::EINVAL) => state.counters.unsupported_offload += 1,
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => return Err(state.down_error()),
                _ => return Err(Error::system("recvmmsg", &state.interface, error)),
            }
        }
        Ok(0)
    }
}

/// Both interfaces, as they may be bridged.
struct Checked {
    /// The second is the first once more where there is only one.
    interfaces: [Interface; 2],
    /// Only the first socket receives; the other stays unbound.
    passive: bool,
    /// It watches both, so that what comes is in order.
    together: bool,
    /// See [`BridgeConfig::reset_interface`].
    resets: Option<Interface>,
    warnings: Vec<Warning>,
}

/// What a bridge would find wrong, and what is suspicious.
#[derive(Debug, Default)]
pub struct Findings {
    /// What [`Bridge::open`] would say; it says the first.
    pub errors: Vec<Error>,
    /// What [`Bridge::warnings`] would say.
    pub warnings: Vec<Warning>,
}

/// Finds all that would keep a bridge from being opened. No frame is received meanwhile, and nothing is changed.
#[must_use]
pub fn check(config: &BridgeConfig) -> Findings {
    let (checked, mut errors) = prepare(config);
    let mut warnings = Vec::new();
    if let Some(checked) = checked {
        // Which the kernel would note in its log.
        let config = BridgeConfig { promiscuous: false, ..config.clone() };
        if errors.is_empty() && !config.passive {
            let guarded = match config.fails_open {
                true => guard::check(&checked.interfaces, config.takes_over).map(|()| None),
                false => guard::refuse(&checked.interfaces),
            };
            match guarded {
                Ok(unseen) => warnings.extend(unseen),
                Err(error) => errors.push(error),
            }
            if errors.is_empty() && !config.takes_over {
                errors.extend(checked.refuse_bridged().err());
            }
        }
        let opening = match errors.is_empty() {
            true => Opening::new(&config, &checked).map_err(|error| errors.push(error)).ok(),
            false => None,
        };
        warnings.extend(checked.warnings);
        warnings.extend(opening.into_iter().flat_map(|opening| opening.warnings));
    }
    Findings { errors, warnings }
}

/// Checks what is configured, to be opened.
fn prepared(config: &BridgeConfig) -> Result<Checked, Error> {
    let (checked, errors) = prepare(config);
    let nothing = || Error::InvalidConfig { reason: "a bridge needs two interfaces" };
    errors.into_iter().next().map_or(Ok(()), Err)?;
    checked.ok_or_else(nothing)
}

/// Checks what is configured: all of it, whatever is wrong.
fn prepare(config: &BridgeConfig) -> (Option<Checked>, Vec<Error>) {
    let mut errors = Vec::new();
    if !(1..=MAX_BATCH).contains(&config.batch) {
        errors.push(Error::InvalidConfig { reason: "batch must be 1 to 1024" });
    }
    if i32::try_from(config.socket_buffer_bytes).is_err() {
        let reason = "socket_buffer_bytes must be below 2 GiB";
        errors.push(Error::InvalidConfig { reason });
    }
    let socket = match interface::open_socket() {
        Ok(socket) => socket,
        Err(error) => {
            errors.push(error);
            // Interfaces can be looked at by everybody.
            match system::inet_socket() {
                Ok(socket) => socket,
                Err(_) => return (None, errors),
            }
        }
    };
    let passive = config.passive;
    if config.right.is_none() && !passive {
        errors.push(Error::InvalidConfig { reason: "a bridge needs two interfaces" });
    }
    if config.reset_interface.is_some() && !passive {
        let reason = "a bridge sends resets on its own ports";
        errors.push(Error::InvalidConfig { reason });
    }
    let mut check = |name: &String| {
        let checked = Interface::check(&socket, name).and_then(|interface| {
            // Of what a bridge of the kernel forwards, a passive one is shown a copy.
            if passive { Ok(interface) } else { interface.check_free(&socket) }
        });
        checked.map_err(|error| errors.push(error)).ok()
    };
    let left = check(&config.left);
    let right = config.right.as_ref().map(&mut check);
    let resets = config.reset_interface.as_ref().map(&mut check);
    // What was not asked for is not missing.
    let right = right.map_or(Some(None), |checked| checked.map(Some));
    let resets = resets.map_or(Some(None), |checked| checked.map(Some));
    let (Some(left), Some(right), Some(resets)) = (left, right, resets) else {
        return (None, errors);
    };
    let mut warnings = Vec::new();
    if let Some(right) = &right {
        if left.index == right.index {
            errors.push(Error::SameInterface { interface: right.name.clone() });
        } else if left.mtu != right.mtu && !passive {
            warnings.push(Warning::MtuDiffers { left: left.mtu, right: right.mtu });
        }
    }
    for interface in [Some(&left), right.as_ref()].into_iter().flatten() {
        interface.warn(&socket, passive, &mut warnings);
    }
    let together = passive && right.is_some();
    let interfaces = [left.clone(), right.unwrap_or(left)];
    (Some(Checked { interfaces, passive, together, resets, warnings }), errors)
}

impl Checked {
    /// How many sockets receive.
    fn sockets(&self) -> usize {
        if self.passive { 1 } else { 2 }
    }

    /// Of which interfaces a socket that is bound to none takes frames.
    fn watched(&self) -> Vec<i32> {
        let both = self.interfaces.iter().filter(|_| self.together);
        both.map(|interface| interface.index).collect()
    }

    /// What keeps the guard from forwarding, for so many bridges; nothing where nobody is to forward in their place.
    fn holds(&mut self, config: &BridgeConfig, bridges: usize) -> Result<Vec<Hold>, Error> {
        match config.fails_open {
            true if self.passive => {
                let reason = "a passive bridge forwards nothing, and has nothing to fail";
                Err(Error::InvalidConfig { reason })
            }
            true => Ok(guard::open_or_install(&self.interfaces)?.claim(bridges)?),
            false => {
                if !self.passive {
                    self.warnings.extend(guard::refuse(&self.interfaces)?);
                }
                Ok(Vec::new())
            }
        }
    }

    /// Loads what the kernel needs to forward by itself, where that is wanted.
    fn offload(&self, config: &BridgeConfig) -> Option<Result<Offload, String>> {
        let wanted = config.offload != Offloading::Off && !self.passive;
        wanted.then(|| Offload::load(config, &self.interfaces))
    }

    fn bind(&self, socket: &OwnedFd, interface: &Interface) -> Result<(), Error> {
        // Index 0: all of them.
        let index = if self.together { 0 } else { interface.index };
        system::bind(socket, index).map_err(|e| Error::system("bind", &interface.name, e))
    }
}

/// A bridge whose sockets are not bound yet.
struct Opening {
    sockets: [OwnedFd; 2],
    /// The one that only sends.
    resets: Option<OwnedFd>,
    slots: ReceiveSlots,
    warnings: Vec<Warning>,
}

impl Opening {
    fn new(config: &BridgeConfig, checked: &Checked) -> Result<Self, Error> {
        let sockets = [interface::open_socket()?, interface::open_socket()?];
        let mut warnings = Vec::new();
        for (at, (socket, interface)) in sockets.iter().zip(&checked.interfaces).enumerate() {
            let receives = at < checked.sockets();
            configure(socket, interface, config, receives, &mut warnings)?;
        }
        let slots = ReceiveSlots::new(config.batch).map_err(|e| Error::system("mmap", "", e))?;
        let resets = match &checked.resets {
            Some(interface) => Some(sending_socket(interface)?),
            None => None,
        };
        Ok(Self { sockets, resets, slots, warnings })
    }

    fn bind(&self, checked: &Checked) -> Result<(), Error> {
        let receiving = self.sockets.iter().zip(&checked.interfaces).take(checked.sockets());
        for (socket, interface) in receiving {
            if checked.together {
                system::accept_received(socket, &checked.watched())
                    .map_err(|e| Error::system("SO_ATTACH_FILTER", &interface.name, e))?;
            }
            checked.bind(socket, interface)?;
        }
        Ok(())
    }

    fn finish(self, checked: Checked, config: &BridgeConfig) -> Bridge {
        let Checked { interfaces: [left, right], resets, mut warnings, .. } = checked;
        warnings.extend(self.warnings);
        let sending = BridgeConfig { passive: false, ..config.clone() };
        let resets = self
            .resets
            .zip(resets)
            .map(|(socket, interface)| PortState::new(Port::Right, socket, interface, &sending));
        let [left_socket, right_socket] = self.sockets;
        let state =
            |port, socket, interface: Interface| PortState::new(port, socket, interface, config);
        let ports = [state(Port::Left, left_socket, left), state(Port::Right, right_socket, right)];
        let outbox = Outbox { ports, resets, coalescing_limit: usize::MAX, offload: None };
        Bridge { slots: self.slots, outbox, warnings, hold: None }
    }
}

/// A socket that sends frames with an offload header, as the others do.
fn sending_socket(interface: &Interface) -> Result<OwnedFd, Error> {
    let socket = interface::open_socket()?;
    let named = |name: &'static str| move |e: io::Error| Error::system(name, &interface.name, e);
    system::set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1i32)
        .map_err(named("PACKET_VNET_HDR"))?;
    system::bind_to_send(&socket, interface.index).map_err(named("bind"))?;
    Ok(socket)
}

/// Sets all options of an unbound socket. One that receives nothing makes its interface promiscuous.
fn configure(
    socket: &OwnedFd,
    interface: &Interface,
    config: &BridgeConfig,
    receives: bool,
    warnings: &mut Vec<Warning>,
) -> Result<(), Error> {
    let switch_on = |option: libc::c_int, name: &'static str| {
        system::set_option(socket, libc::SOL_PACKET, option, &1i32).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ENOPROTOOPT) => Error::Unsupported { option: name },
                _ => Error::system(name, &interface.name, error),
            }
        })
    };
    switch_on(libc::PACKET_VNET_HDR, "PACKET_VNET_HDR")?;
    if config.passive {
        // Says who it is: see there.
        switch_on(receivers::MARK, "PACKET_LOSS")?;
    }
    switch_on(libc::PACKET_AUXDATA, "PACKET_AUXDATA")?;
    // Otherwise each frame that we send would come back to us as one that we received.
    switch_on(libc::PACKET_IGNORE_OUTGOING, "PACKET_IGNORE_OUTGOING (Linux 4.20)")?;
    if config.promiscuous {
        system::promiscuous(socket, interface.index)
            .map_err(|e| Error::system("PACKET_ADD_MEMBERSHIP", &interface.name, e))?;
    }
    if !receives {
        return Ok(());
    }
    let bytes = config.socket_buffer_bytes as libc::c_int;
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        // Without CAP_NET_ADMIN the plain option gives as much as the administrator allows everyone.
        system::set_option(socket, libc::SOL_SOCKET, force, &bytes)
            .or_else(|_: io::Error| system::set_option(socket, libc::SOL_SOCKET, plain, &bytes))
            .map_err(|e| Error::system("SO_RCVBUF", &interface.name, e))?;
    }
    // The kernel doubles what it is asked for and reports that.
    let granted = system::receive_buffer_bytes(socket)
        .map_err(|e| Error::system("SO_RCVBUF", &interface.name, e))?
        / 2;
    if granted < config.socket_buffer_bytes {
        let (wanted, interface) = (config.socket_buffer_bytes, interface.name.clone());
        warnings.push(Warning::SmallBuffer { interface, wanted, granted });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_moving_a_bridge_to_its_worker() {
        fn movable<T: Send>() {}
        movable::<Bridge>();
    }

    #[test]
    fn refuses_senseless_configurations() {
        let good = BridgeConfig::new("a", "b");
        for bad in [
            BridgeConfig { batch: 0, ..good.clone() },
            BridgeConfig { batch: MAX_BATCH + 1, ..good.clone() },
            BridgeConfig { socket_buffer_bytes: 1 << 31, ..good },
        ] {
            assert!(matches!(Bridge::open(&bad), Err(Error::InvalidConfig { .. })), "{bad:?}");
        }
    }
}
