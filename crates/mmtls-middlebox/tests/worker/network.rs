//! What a worker's two ports are connected to, on each back end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mmtls_packet_io::af_packet::{Bridge, BridgeConfig, Offloading};
use mmtls_packet_io::memory::{self, MemoryPorts};
use mmtls_packet_io::{Action, Port, Ports, VnetHeader};
use mmtls_testkit::{Middle, Namespace, Testbed, require_testbed};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Longer than anything here should take.
const LIMIT: Duration = Duration::from_secs(40);

/// Frames per call.
pub const BATCH: usize = 32;

/// Both wires of a worker, seen from outside of it.
pub trait Network: Sized {
    /// The worker's end.
    type Ports: Ports + Send + 'static;

    /// A network and the ports in it; `None`, loudly, where this machine cannot have it.
    fn new() -> Option<(Self, Self::Ports)>;

    /// Lets a frame arrive at a port of the worker.
    fn send(&mut self, port: Port, frame: &[u8]);

    /// The next frame that left by a port of the worker; waits for it.
    fn receive(&mut self, port: Port) -> Vec<u8>;

    /// What else left by a port of a worker that is gone.
    fn rest(&mut self, port: Port) -> Vec<Vec<u8>>;
}

/// The in-memory back end.
pub struct Memory(pub memory::Network);

impl Network for Memory {
    type Ports = MemoryPorts;

    fn new() -> Option<(Self, MemoryPorts)> {
        let (ports, network) = memory::pair(1024, BATCH).unwrap();
        Some((Self(network), ports.with_offload()))
    }

    fn send(&mut self, port: Port, frame: &[u8]) {
        assert!(self.0.put(port, VnetHeader::default(), frame), "{port}: no room");
    }

    fn receive(&mut self, port: Port) -> Vec<u8> {
        let frame = self.0.take(port, LIMIT);
        frame.unwrap_or_else(|| panic!("nothing left by the {port} port")).bytes
    }

    fn rest(&mut self, port: Port) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.0.take(port, Duration::ZERO)).map(|it| it.bytes).collect()
    }
}

/// The AF_PACKET back end: two veth pairs in a namespace without addresses. The worker has one end of
/// each, another bridge the other ends.
pub struct AfPacket {
    outside: Bridge,
    received: [VecDeque<Vec<u8>>; 2],
    bed: Testbed,
}

/// Ends of the veth pairs: the worker's, and the ones outside.
const INSIDE: [&str; 2] = ["in0", "in1"];
const OUTSIDE: [&str; 2] = ["out0", "out1"];

/// A frame of no protocol; it is the last one that [`Network::rest`] sees.
const END: [u8; 60] = [0xee; 60];

fn open(namespace: &Namespace, [left, right]: [&str; 2]) -> Bridge {
    let handle = std::fs::File::open(namespace.path()).unwrap();
    let open = || {
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&handle), network).unwrap();
        let offload = Offloading::Always;
        let config = BridgeConfig { batch: BATCH, offload, ..BridgeConfig::new(left, right) };
        Bridge::open(&config).unwrap()
    };
    // A thread of its own, which stays in the namespace.
    std::thread::scope(|scope| scope.spawn(open).join().unwrap())
}

impl AfPacket {
    /// Takes in what has come out of both ports, after at most `timeout`.
    fn take_in(&mut self, timeout: Duration) {
        self.outside.wait(Some(timeout), None).unwrap();
        for port in Port::BOTH {
            let received = &mut self.received[port as usize];
            let keep = |frame: &mmtls_packet_io::Frame<'_>| {
                received.push_back(frame.bytes.to_vec());
                Action::Drop
            };
            self.outside.receive(port, keep).unwrap();
        }
    }
}

impl Network for AfPacket {
    type Ports = Bridge;

    fn new() -> Option<(Self, Bridge)> {
        if !require_testbed() {
            return None;
        }
        let bed = Testbed::new(Middle::Empty).unwrap();
        let mut commands = String::new();
        for (inside, outside) in INSIDE.iter().zip(OUTSIDE) {
            commands += &format!("link add {inside} type veth peer name {outside}\n");
            commands += &format!("link set {inside} up\nlink set {outside} up\n");
        }
        bed.middlebox.ip(&commands).unwrap();
        let ports = open(&bed.middlebox, INSIDE);
        let outside = open(&bed.middlebox, OUTSIDE);
        Some((Self { outside, received: Default::default(), bed }, ports))
    }

    fn send(&mut self, port: Port, frame: &[u8]) {
        self.outside.inject(port, frame).unwrap();
        self.outside.flush().unwrap();
    }

    fn receive(&mut self, port: Port) -> Vec<u8> {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(frame) = self.received[port as usize].pop_front() {
                return frame;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing left by the {port} port");
            self.take_in(left);
        }
    }

    fn rest(&mut self, port: Port) -> Vec<Vec<u8>> {
        // What a new bridge sends comes behind what the worker's has sent.
        let mut last = open(&self.bed.middlebox, INSIDE);
        last.inject(port, &END).unwrap();
        last.flush().unwrap();
        let mut rest = Vec::new();
        loop {
            match self.receive(port) {
                frame if frame == END => return rest,
                frame => rest.push(frame),
            }
        }
    }
}
