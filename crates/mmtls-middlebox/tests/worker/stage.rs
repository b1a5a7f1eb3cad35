//! A worker on a thread of its own, between the two wires of a [`Network`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mmtls_engine::session::{EndReason, Handler, Record};
use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_engine::{Config, Engine, Policy};
use mmtls_keyshare::message::{Message, NullKeys, SessionKeys};
use mmtls_keyshare::server::KeySink;
use mmtls_middlebox::keys::{self, WorkerSink};
use mmtls_middlebox::worker::{KeyInput, Settings, Worker};
use mmtls_middlebox::{Error, Share, Status, harden};
use mmtls_packet_io::{Outbox, Port, Ports};

use super::network::{BATCH, Network};
use mmtls_testkit::frames::{Packet, Session};

/// What [`Judge`] resets a session for.
pub const FORBIDDEN: &[u8] = b"forbidden-fruit";

/// What [`Judge`] resets a session for when that ends.
pub const FORBIDDEN_AT_THE_END: &[u8] = b"windfall";

/// Behind a record that ends so, [`Judge`] does not read the next [`PAUSED_BYTES`] of the server's content.
pub const ENOUGH: &[u8] = b"and so on";
/// See there.
pub const PAUSED_BYTES: u64 = 180_040;

/// Behind a record that ends so, nothing more of its direction.
pub const NO_MORE: &[u8] = b"all the rest";

/// Longer than anything here should take, nanoseconds.
const STALL_NS: u64 = 60_000_000_000;

/// An application that writes down what it is shown.
#[derive(Default)]
pub struct Judge {
    pub records: Vec<(Direction, Vec<u8>)>,
    pub ends: Vec<EndReason>,
    reset_at_end: bool,
}

impl Handler for Judge {
    type State = ();

    fn new_record(
        &mut self,
        session: &mut mmtls_engine::session::Session<'_>,
        (): &mut (),
        record: &mut Record<'_>,
    ) {
        let direction = record.direction();
        let plaintext = record.open().unwrap();
        assert_eq!(plaintext.content_type, ContentType::APPLICATION_DATA);
        self.records.push((direction, plaintext.bytes.to_vec()));
        if plaintext.bytes.ends_with(FORBIDDEN) {
            session.reset();
        }
        if plaintext.bytes.ends_with(ENOUGH) {
            session.pause(direction, Some(PAUSED_BYTES));
        }
        if plaintext.bytes.ends_with(NO_MORE) {
            session.pause(direction, None);
        }
        self.reset_at_end |= plaintext.bytes.ends_with(FORBIDDEN_AT_THE_END);
    }

    fn session_end(
        &mut self,
        session: &mut mmtls_engine::session::Session<'_>,
        (): &mut (),
        why: EndReason,
    ) {
        if self.reset_at_end {
            session.reset();
        }
        self.ends.push(why);
    }
}

/// What a worker leaves behind.
pub struct End<N> {
    pub judge: Judge,
    pub status: Status,
    pub result: Result<(), Error>,
    pub network: N,
}

/// A running worker.
pub struct Stage<N: Network> {
    network: N,
    keys: WorkerSink,
    stop: Arc<AtomicBool>,
    messages: Arc<Mutex<Vec<String>>>,
    worker: JoinHandle<(Judge, Status, Result<(), Error>)>,
    markers: u32,
    /// The ports can forward by themselves.
    pub offloads: bool,
}

impl<N: Network> Stage<N> {
    /// Starts a worker that holds records without keys for longer than a test takes; `None`, loudly,
    /// where this machine cannot have the network.
    pub fn new() -> Option<Self> {
        let (network, mut ports) = N::new()?;
        // A veth pair keeps frames in order that one processor sends.
        let cpu = harden::allowed_cpus().unwrap()[0];
        harden::bind_to_cpu(cpu).unwrap();
        let (keys, mut receivers, router) = keys::queues(Share::ALL).unwrap();
        let receiver = receivers.pop().unwrap();
        let mut config = Config::new(Policy::Reset);
        config.supports = keys::supports;
        let offloads = ports.outbox().offloads();
        config.offload = offloads;
        config.limits.stall_timeout_ns = STALL_NS;
        config.limits.unshared_stall_timeout_ns = STALL_NS;
        let engine = Engine::new(config, Judge::default());
        let input = KeyInput::new(receiver, router);
        let settings = Settings { batch: BATCH, moderation: Duration::ZERO, passive: false };
        let stop = Arc::new(AtomicBool::new(false));
        let messages = Arc::new(Mutex::new(Vec::new()));
        let (stopped, told) = (Arc::clone(&stop), Arc::clone(&messages));
        let run = move || {
            harden::bind_to_cpu(cpu).unwrap();
            let mut worker = Worker::new(ports, engine, input, settings);
            let result = worker.run(&stopped, |worker| {
                told.lock().unwrap().extend(worker.take_message());
            });
            worker.finish();
            let status = worker.status();
            (worker.into_handler(), status, result)
        };
        let worker = std::thread::spawn(run);
        Some(Self { network, keys, stop, messages, worker, markers: 0, offloads })
    }

    pub fn network(&self) -> &N {
        &self.network
    }

    /// Lets a session begin, with the keys of its handshake.
    #[track_caller]
    pub fn open(&mut self, session: &Session) {
        self.deliver_of(session, KeyEpoch::Handshake);
        self.pass(&session.handshake);
    }

    /// Gives the worker the keys of a session's records, as the key server does.
    pub fn deliver(&mut self, session: &Session) {
        self.deliver_of(session, KeyEpoch::Application(0));
    }

    /// Tells the worker that a session's endpoint refuses to share.
    pub fn refuse(&mut self, session: &Session) {
        let Message::SessionKeys(keys) = session.keys(KeyEpoch::Handshake) else {
            unreachable!("keys of a session");
        };
        let SessionKeys { client_random, flow, .. } = keys;
        let refusal = Message::NullKeys(NullKeys { client_random, direction: None, flow });
        assert!(self.keys.deliver(session.sender(), 1, refusal).is_ok());
        self.keys.batch_end();
    }

    fn deliver_of(&mut self, session: &Session, epoch: KeyEpoch) {
        assert!(self.keys.deliver(session.sender(), 1, session.keys(epoch)).is_ok());
        self.keys.batch_end();
    }

    pub fn send(&mut self, packets: &[Packet]) {
        for Packet { port, frame } in packets {
            self.network.send(*port, frame);
        }
    }

    /// These are what leaves next, as they came in.
    #[track_caller]
    pub fn expect(&mut self, packets: &[Packet]) {
        for (at, packet) in packets.iter().enumerate() {
            let egress = packet.port.other();
            let frame = self.network.receive(egress);
            let count = packets.len();
            assert!(frame == packet.frame, "{egress}: packet {at} of {count} is {frame:02x?}");
        }
    }

    /// Each of these leaves before the next one is sent: between two directions nothing else gives
    /// them an order.
    #[track_caller]
    pub fn pass(&mut self, packets: &[Packet]) {
        for packet in packets {
            let packet = std::slice::from_ref(packet);
            self.send(packet);
            self.expect(packet);
        }
    }

    /// Nothing has left that was not expected, and nothing does of all that was sent before.
    #[track_caller]
    pub fn expect_nothing_more(&mut self) {
        let more = self.take_more();
        assert!(more.is_empty(), "{} packets, {:02x?}", more.len(), more[0].frame);
    }

    /// All that leaves because of what was sent before: a frame of no protocol that comes behind it
    /// passes at once, and comes out behind the last of it.
    pub fn take_more(&mut self) -> Vec<Packet> {
        let mut more = Vec::new();
        // Keys are looked at once per turn, each of which takes frames from the left and then from the
        // right: the second round is behind what keys that came before the first one cause.
        for port in Port::BOTH.into_iter().cycle().take(4) {
            self.markers += 1;
            let mut marker = vec![0xaa; 60];
            marker[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
            marker[14..18].copy_from_slice(&self.markers.to_be_bytes());
            self.network.send(port, &marker);
            loop {
                match self.network.receive(port.other()) {
                    frame if frame == marker => break,
                    frame => more.push(Packet { port: port.other(), frame }),
                }
            }
        }
        more
    }

    /// Waits until the operator is told something that begins so.
    pub fn await_message(&self, start: &str) {
        let end = Instant::now() + Duration::from_nanos(STALL_NS);
        while !self.messages.lock().unwrap().iter().any(|message| message.starts_with(start)) {
            assert!(Instant::now() < end, "{:?}", self.messages.lock().unwrap());
            assert!(!self.worker.is_finished(), "the worker has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the worker end and waits for that.
    pub fn stop(self) -> End<N> {
        self.stop.store(true, Ordering::Relaxed);
        self.await_end()
    }

    /// Waits for the worker's end.
    pub fn await_end(self) -> End<N> {
        let (judge, status, result) = self.worker.join().unwrap();
        End { judge, status, result, network: self.network }
    }
}
