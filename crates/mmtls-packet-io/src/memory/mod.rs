//! A pair of ports in memory, for tests and fuzzing of what is written for [`Ports`].
//!
//! [`pair`] gives two ends: [`MemoryPorts`], which a worker is given, and [`Network`], with which the test puts in
//! what is to arrive and takes out what was sent, from any thread. Frames that are held are stored as
//! [`af_packet`](crate::af_packet) stores them, offload header in front, and frames leave at the same moments: when a
//! batch has been decided, at the next [`Ports::receive_with`] or [`Ports::wait`], or when more than a batch waits.
//!
//! [`MemoryPorts::with_offload`] forwards connections by itself where it is asked to. It joins no frames, puts no VLAN tags back and is never passive. It refuses to grow
//! without bound: [`Network::put`] takes no more than its capacity, and what was sent and not taken out is dropped and
//! counted ([`SendErrors::no_buffers`](crate::SendErrors::no_buffers)) when there is too much of it.

mod offload;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::af_packet::{MAX_FRAME_BYTES, poll_readable};
use crate::{
    Action, Counters, Error, Extent, Forwarded, Frame, HeldFrame, OffloadFlow, OffloadSide, Outbox,
    Port, PortCounters, Ports, Ready, VnetHeader, WakeFd,
};
use offload::Entries;

/// Bytes of an Ethernet header.
const ETHERNET_HEADER: usize = 14;

/// A frame that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentFrame {
    /// Offload header.
    pub vnet: VnetHeader,
    /// The Ethernet frame.
    pub bytes: Vec<u8>,
    /// What [`Outbox::limit_coalescing`] was told while it was decided.
    pub coalescing_limit: Option<usize>,
}

/// Makes a pair of ports. At most `capacity` frames wait to be received on each port, and as many of those that each
/// port sent to be taken out; at most `batch` frames are received with one call, and as many wait to be sent.
///
/// # Errors
/// The system's, when out of descriptors.
pub fn pair(capacity: usize, batch: usize) -> io::Result<(MemoryPorts, Network)> {
    let shared = Arc::new(Shared {
        lines: Mutex::default(),
        arrived: WakeFd::new()?,
        sent: Condvar::new(),
        capacity,
    });
    let outbox = MemoryOutbox {
        shared: Arc::clone(&shared),
        waiting: Default::default(),
        coalescing_limit: None,
        counters: Default::default(),
        batch,
        pending: None,
    };
    Ok((MemoryPorts { outbox }, Network { shared }))
}

/// What lies between the two ends.
struct Shared {
    lines: Mutex<[Line; 2]>,
    /// Readable when frames were put in since the last wait.
    arrived: WakeFd,
    sent: Condvar,
    capacity: usize,
}

/// What is on its way to and from one port.
#[derive(Default)]
struct Line {
    incoming: VecDeque<(VnetHeader, Arc<[u8]>)>,
    outgoing: VecDeque<SentFrame>,
    link: Link,
    /// What comes in by it and leaves by the other one without being received.
    entries: Entries,
}

/// The state of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// It works.
    #[default]
    Up,
    /// Receiving says [`Error::InterfaceDown`], once for each call, and so does sending; what is sent is lost.
    Down,
    /// As `Down`, with [`Error::InterfaceGone`].
    Gone,
}

impl Line {
    /// Whether a port that is named so can be used.
    fn state(&self, port: Port) -> Result<(), Error> {
        let interface = port.to_string();
        match self.link {
            Link::Up => Ok(()),
            Link::Down => Err(Error::InterfaceDown { interface }),
            Link::Gone => Err(Error::InterfaceGone { interface, port }),
        }
    }
}

impl Shared {
    fn lines(&self) -> MutexGuard<'_, [Line; 2]> {
        // Consistent between any two statements, so poison means nothing here.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is outside of the ports: the test's end. Clones share it.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

impl Network {
    /// Lets a frame arrive at a port, behind those that wait there. False, and the frame is lost, when as many wait as
    /// may, and where the port is not [`Link::Up`].
    #[must_use]
    pub fn put(&self, port: Port, vnet: VnetHeader, ethernet: &[u8]) -> bool {
        let mut lines = self.shared.lines();
        let line = &mut lines[port.index()];
        if line.link != Link::Up || line.incoming.len() >= self.shared.capacity {
            return false;
        }
        if line.entries.takes(ethernet) {
            let Line { outgoing, link, .. } = &mut lines[port.other().index()];
            let leaves = *link == Link::Up && outgoing.len() < self.shared.capacity;
            if leaves {
                outgoing.push_back(SentFrame {
                    vnet,
                    bytes: ethernet.to_vec(),
                    coalescing_limit: None,
                });
                drop(lines);
                self.shared.sent.notify_all();
            }
            return leaves;
        }
        line.incoming.push_back((vnet, ethernet.into()));
        drop(lines);
        self.shared.arrived.wake();
        true
    }

    /// The next frame that left by a port. Waits for one for at most `timeout`.
    #[must_use]
    pub fn take(&self, port: Port, timeout: Duration) -> Option<SentFrame> {
        let end = Instant::now() + timeout;
        let mut lines = self.shared.lines();
        loop {
            if let Some(frame) = lines[port.index()].outgoing.pop_front() {
                return Some(frame);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.shared.sent.wait_timeout(lines, left);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Changes the state of a port. What waits to be received there is lost when that is not [`Link::Up`].
    pub fn set_link(&self, port: Port, link: Link) {
        let line = &mut self.shared.lines()[port.index()];
        line.link = link;
        if link != Link::Up {
            line.incoming.clear();
        }
        // The next receive says so.
        self.shared.arrived.wake();
    }
}

/// Two ports in memory. See the [module](self).
pub struct MemoryPorts {
    outbox: MemoryOutbox,
}

/// Both ports of [`MemoryPorts`] as places to send to.
pub struct MemoryOutbox {
    shared: Arc<Shared>,
    /// Offload header and frame in one piece, of what waits to leave by each port, and what was said of it.
    waiting: [Vec<(Vec<u8>, Option<usize>)>; 2],
    /// Of the frame that is being decided.
    coalescing_limit: Option<usize>,
    counters: [PortCounters; 2],
    batch: usize,
    /// Directions of connections that it is to forward by itself, where it does that.
    pending: Option<Vec<OffloadSide>>,
}

impl MemoryPorts {
    /// From now on it forwards connections by itself where it is asked to, as interfaces do.
    #[must_use]
    pub fn with_offload(mut self) -> Self {
        self.outbox.pending = Some(Vec::new());
        self
    }
}

impl MemoryOutbox {
    fn push(&mut self, egress: Port, packet: Vec<u8>, coalescing_limit: Option<usize>) {
        if self.waiting[egress.index()].len() >= self.batch {
            self.send_all(egress);
        }
        self.waiting[egress.index()].push((packet, coalescing_limit));
    }

    fn send_all(&mut self, port: Port) {
        let at = port.index();
        let mut lines = self.shared.lines();
        let Line { outgoing, link, .. } = &mut lines[at];
        let counters = &mut self.counters[at];
        for (packet, coalescing_limit) in self.waiting[at].drain(..) {
            let Some((vnet, bytes)) = packet.split_first_chunk() else { continue };
            if *link != Link::Up {
                counters.send_errors.interface_down += 1;
            } else if outgoing.len() >= self.shared.capacity {
                counters.send_errors.no_buffers += 1;
            } else {
                counters.sent_frames += 1;
                counters.sent_bytes += bytes.len() as u64;
                let vnet = VnetHeader::from_bytes(*vnet);
                outgoing.push_back(SentFrame { vnet, bytes: bytes.to_vec(), coalescing_limit });
            }
        }
        drop(lines);
        self.shared.sent.notify_all();
    }

    fn flush(&mut self) -> Result<(), Error> {
        let mut result = Ok(());
        for port in Port::BOTH {
            if !self.waiting[port.index()].is_empty() {
                self.send_all(port);
                result = result.and(self.shared.lines()[port.index()].state(port));
            }
        }
        if let Some(pending) = &mut self.pending {
            // From exactly where what was sent has ended: what still waits is not overtaken.
            let has_records = |it: &mut OffloadSide| matches!(it.extent, Extent::Records(_));
            let mut lines = self.shared.lines();
            for side in pending.extract_if(.., has_records) {
                lines[side.ingress.index()].entries.begin(&side);
            }
        }
        result
    }
}

impl Outbox for MemoryOutbox {
    fn send_held(&mut self, held: HeldFrame) {
        self.push(held.egress(), held.into_packet(), None);
    }

    fn limit_coalescing(&mut self, bytes: usize) {
        self.coalescing_limit = Some(bytes);
    }

    fn inject(&mut self, egress: Port, ethernet: &[u8]) -> Result<(), Error> {
        if !(ETHERNET_HEADER..=MAX_FRAME_BYTES).contains(&ethernet.len()) {
            return Err(Error::InvalidFrame { length: ethernet.len() });
        }
        self.send_held(HeldFrame::new(egress, VnetHeader::default(), ethernet));
        Ok(())
    }

    fn offload(&mut self, flow: &OffloadFlow) -> bool {
        if let Some(pending) = &mut self.pending {
            pending.extend(flow.sides);
        }
        self.pending.is_some()
    }

    fn take_back(&mut self, flow: &OffloadFlow) -> [Forwarded; 2] {
        let mut lines = self.shared.lines();
        flow.sides.map(|side| {
            let same =
                |it: &OffloadSide| (it.source, it.destination) == (side.source, side.destination);
            if let Some(pending) = &mut self.pending {
                pending.retain(|it| !same(it));
            }
            lines[side.ingress.index()].entries.end(&side)
        })
    }

    fn offloads(&self) -> bool {
        self.pending.is_some()
    }
}

impl Ports for MemoryPorts {
    type Outbox = MemoryOutbox;

    fn receive_with<F>(&mut self, port: Port, mut decide: F) -> Result<usize, Error>
    where
        F: FnMut(&Frame<'_>, &mut MemoryOutbox) -> Action,
    {
        self.outbox.flush()?;
        let batch: Vec<_> = {
            let line = &mut self.outbox.shared.lines()[port.index()];
            line.state(port)?;
            let count = line.incoming.len().min(self.outbox.batch);
            if count == 0
                && let Some(pending) = &mut self.outbox.pending
            {
                // Nothing waits that could be overtaken.
                pending
                    .extract_if(.., |it| it.ingress == port)
                    .for_each(|it| line.entries.begin(&it));
            }
            line.incoming.drain(..count).collect()
        };
        let count = batch.len();
        for (vnet, memory) in batch {
            let counters = &mut self.outbox.counters[port.index()];
            if memory.len() < ETHERNET_HEADER {
                counters.runts += 1;
                continue;
            }
            if memory.len() > MAX_FRAME_BYTES {
                counters.truncated += 1;
                continue;
            }
            let frame = Frame { bytes: &memory, memory: Some(&memory), vnet, ingress: port };
            counters.received_frames += 1;
            counters.received_bytes += memory.len() as u64;
            counters.received_super_frames += u64::from(frame.gso_size().is_some());
            self.outbox.coalescing_limit = None;
            match decide(&frame, &mut self.outbox) {
                Action::Forward => {
                    let (held, limit) = (frame.hold(), self.outbox.coalescing_limit);
                    self.outbox.push(held.egress(), held.into_packet(), limit);
                }
                Action::Drop | Action::Taken => {}
            }
        }
        self.outbox.flush()?;
        Ok(count)
    }

    fn outbox(&mut self) -> &mut MemoryOutbox {
        &mut self.outbox
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<Ready, Error> {
        self.outbox.flush()?;
        let shared = &self.outbox.shared;
        let waiting = || {
            let lines = shared.lines();
            Port::BOTH.map(|port| !lines[port.index()].incoming.is_empty())
        };
        // What waits already is found without any wake; the caller's descriptor is looked at all the same.
        let timeout = if waiting().contains(&true) { Some(Duration::ZERO) } else { timeout };
        let [arrived, woken] = poll_readable([Some(shared.arrived.as_fd()), wake], timeout)
            .map_err(|error| Error::system("ppoll", "", error))?;
        if arrived {
            shared.arrived.drain();
        }
        let [left, right] = waiting();
        Ok(Ready { left, right, woken })
    }

    fn check(&self) -> Result<(), Error> {
        let lines = self.outbox.shared.lines();
        Port::BOTH.iter().try_for_each(|&port| match lines[port.index()].link {
            Link::Gone => lines[port.index()].state(port),
            // As an interface that is down, which the next receive says.
            Link::Up | Link::Down => Ok(()),
        })
    }

    fn check_link(&self, port: Port) -> Result<(), Error> {
        match self.outbox.shared.lines()[port.index()].state(port) {
            Err(Error::InterfaceGone { .. }) => Ok(()),
            other => other,
        }
    }

    fn counters(&self) -> Counters {
        let lines = self.outbox.shared.lines();
        let [left, right] = [0, 1].map(|at| {
            let [offloaded_frames, offloaded_bytes] = lines[at].entries.taken;
            PortCounters { offloaded_frames, offloaded_bytes, ..self.outbox.counters[at] }
        });
        Counters { left, right }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 8;
    const BATCH: usize = 4;

    fn frame(byte: u8) -> Vec<u8> {
        vec![byte; 60]
    }

    fn put(network: &Network, port: Port, byte: u8) -> bool {
        network.put(port, VnetHeader::default(), &frame(byte))
    }

    /// First bytes of what left by a port.
    fn sent(network: &Network, port: Port) -> Vec<u8> {
        std::iter::from_fn(|| network.take(port, Duration::ZERO)).map(|it| it.bytes[0]).collect()
    }

    #[test]
    fn accepts_forward_hold_release_inject_in_order() -> Result<(), Box<dyn std::error::Error>> {
        let (mut ports, network) = pair(CAPACITY, BATCH)?;
        for byte in [1, 2, 3] {
            assert!(put(&network, Port::Left, byte));
        }
        assert!(put(&network, Port::Right, 4));
        let mut held = Vec::new();
        for port in Port::BOTH {
            ports.receive_with(port, |frame, outbox| match frame.bytes.first() {
                Some(2) => {
                    held.push(frame.hold());
                    Action::Taken
                }
                Some(3) => {
                    held.drain(..).for_each(|frame| outbox.send_held(frame));
                    outbox.inject(Port::Left, &[9; 60]).expect("a legal length");
                    Action::Forward
                }
                Some(4) => Action::Drop,
                _ => Action::Forward,
            })?;
        }
        assert_eq!(sent(&network, Port::Right), [1, 2, 3]);
        assert_eq!(sent(&network, Port::Left), [9]);
        let Counters { left, right } = ports.counters();
        assert_eq!([left.received_frames, right.received_frames], [3, 1]);
        assert_eq!([left.sent_frames, right.sent_frames], [1, 3]);
        Ok(())
    }

    #[test]
    fn accepts_offload_headers_through_hold_and_release() -> Result<(), Box<dyn std::error::Error>>
    {
        let (mut ports, network) = pair(CAPACITY, BATCH)?;
        let vnet = VnetHeader { flags: VnetHeader::NEEDS_CHECKSUM, ..VnetHeader::default() };
        assert!(network.put(Port::Right, vnet, &frame(1)));
        assert!(network.put(Port::Right, vnet, &frame(2)));
        let mut held = None;
        ports.receive_with(Port::Right, |frame, _| {
            if frame.bytes[0] == 2 {
                return Action::Forward;
            }
            held = Some(frame.hold());
            Action::Taken
        })?;
        ports.outbox().send_held(held.ok_or("nothing was held")?);
        assert_eq!(sent(&network, Port::Left), [2], "it leaves with the next wait");
        ports.wait(Some(Duration::ZERO), None)?;
        let released = network.take(Port::Left, Duration::ZERO);
        assert_eq!(released, Some(SentFrame { vnet, bytes: frame(1), coalescing_limit: None }));
        Ok(())
    }

    #[test]
    fn accepts_frames_and_wakes_while_it_waits() -> Result<(), Box<dyn std::error::Error>> {
        const LONG: Option<Duration> = Some(Duration::from_secs(20));
        let (mut ports, network) = pair(CAPACITY, BATCH)?;
        let wake = WakeFd::new()?;
        assert_eq!(ports.wait(Some(Duration::ZERO), Some(wake.as_fd()))?, Ready::default());
        std::thread::scope(|scope| {
            scope.spawn(|| put(&network, Port::Right, 1));
            while !ports.wait(LONG, Some(wake.as_fd()))?.port(Port::Right) {}
            // Without a further wake too, since the frame still waits.
            assert!(ports.wait(LONG, Some(wake.as_fd()))?.right);
            assert_eq!(ports.receive_with(Port::Right, |_, _| Action::Drop)?, 1);
            scope.spawn(|| wake.wake());
            let ready = ports.wait(LONG, Some(wake.as_fd()))?;
            assert_eq!(ready, Ready { woken: true, ..Ready::default() });
            Ok(())
        })
    }

    #[test]
    fn refuses_more_than_fits() -> Result<(), Box<dyn std::error::Error>> {
        let (mut ports, network) = pair(CAPACITY, BATCH)?;
        let put = |count| (0..count).filter(|_| put(&network, Port::Left, 7)).count();
        assert_eq!(put(20), CAPACITY);
        assert!(network.put(Port::Right, VnetHeader::default(), &[1; 13]));
        assert!(network.put(Port::Right, VnetHeader::default(), &vec![1; MAX_FRAME_BYTES + 1]));
        let mut received = Vec::new();
        for port in [Port::Left, Port::Left, Port::Left, Port::Right] {
            received.push(ports.receive_with(port, |_, _| Action::Forward)?);
        }
        assert_eq!(received, [BATCH, BATCH, 0, 2]);
        assert_eq!(put(3), 3);
        ports.receive_with(Port::Left, |_, _| Action::Forward)?;
        let Counters { left, right } = ports.counters();
        assert_eq!((left.received_frames, right.received_frames), (11, 0));
        assert_eq!((right.runts, right.truncated), (1, 1));
        assert_eq!((right.sent_frames, right.send_errors.no_buffers), (8, 3));
        assert_eq!(sent(&network, Port::Right).len(), CAPACITY);
        let short = ports.outbox().inject(Port::Left, &[1; 13]);
        assert!(matches!(short, Err(Error::InvalidFrame { length: 13 })));
        Ok(())
    }

    #[test]
    fn refuses_to_send_by_a_port_that_is_down() -> Result<(), Box<dyn std::error::Error>> {
        let (mut ports, network) = pair(CAPACITY, BATCH)?;
        network.set_link(Port::Right, Link::Down);
        assert!(put(&network, Port::Left, 1));
        let outcome = ports.receive_with(Port::Left, |_, _| Action::Forward);
        assert!(matches!(outcome, Err(Error::InterfaceDown { .. })), "{outcome:?}");
        assert!(ports.receive_with(Port::Right, |_, _| Action::Forward).is_err());
        assert_eq!(ports.counters().right.send_errors.interface_down, 1);
        ports.check()?;
        network.set_link(Port::Right, Link::Up);
        assert!(put(&network, Port::Left, 2));
        ports.receive_with(Port::Left, |_, _| Action::Forward)?;
        assert_eq!(sent(&network, Port::Right), [2]);
        network.set_link(Port::Left, Link::Gone);
        let gone = ports.check();
        assert!(matches!(gone, Err(Error::InterfaceGone { port: Port::Left, .. })), "{gone:?}");
        Ok(())
    }
}
