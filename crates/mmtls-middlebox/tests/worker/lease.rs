//! A worker whose ports say what becomes of the guard's lease.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mmtls_engine::{Config, Engine, Policy};
use mmtls_keyshare::message::{Message, NullKeys, SessionKeys};
use mmtls_keyshare::server::KeySink;
use mmtls_middlebox::Share;
use mmtls_middlebox::keys::{self, WorkerSink};
use mmtls_middlebox::worker::{KeyInput, Settings, Worker};
use mmtls_packet_io::memory::{self, MemoryOutbox, MemoryPorts, Network};
use mmtls_packet_io::{Action, Counters, Error, Frame, Lease, Port, Ports, Ready, VnetHeader};
use mmtls_testkit::frames::{CLIENT, Session};

use super::network::BATCH;
use super::stage::Judge;
use mmtls_engine::tls::KeyEpoch;

const SECOND: Duration = Duration::from_secs(1);

/// Ports in memory with a lease.
struct Leased {
    ports: MemoryPorts,
    /// What is said of it, turn by turn; [`Lease::Held`] behind that.
    says: VecDeque<Lease>,
    lease: Option<Duration>,
    /// Is set when the lease is lost.
    stop: Arc<AtomicBool>,
}

impl Ports for Leased {
    type Outbox = MemoryOutbox;

    fn receive_with<F>(&mut self, port: Port, decide: F) -> Result<usize, Error>
    where
        F: FnMut(&Frame<'_>, &mut MemoryOutbox) -> Action,
    {
        self.ports.receive_with(port, decide)
    }

    fn outbox(&mut self) -> &mut MemoryOutbox {
        self.ports.outbox()
    }

    fn wait(
        &mut self,
        timeout: Option<Duration>,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<Ready, Error> {
        self.ports.wait(timeout, wake)
    }

    fn renew(&mut self) -> Result<Lease, Error> {
        let lease = self.says.pop_front().unwrap_or(Lease::Held);
        self.stop.fetch_or(lease == Lease::Lost, Ordering::Relaxed);
        Ok(lease)
    }

    fn lease(&self) -> Option<Duration> {
        self.lease
    }

    fn check(&self) -> Result<(), Error> {
        self.ports.check()
    }

    fn check_link(&self, port: Port) -> Result<(), Error> {
        self.ports.check_link(port)
    }

    fn counters(&self) -> Counters {
        self.ports.counters()
    }
}

struct Stage {
    worker: Worker<Judge, Leased>,
    network: Network,
    keys: WorkerSink,
    stop: Arc<AtomicBool>,
    now: Instant,
}

impl Stage {
    fn new(says: &[Lease], lease: Option<Duration>) -> Self {
        let (ports, network) = memory::pair(1024, BATCH).unwrap();
        let (keys, mut receivers, router) = keys::queues(Share::ALL).unwrap();
        let mut config = Config::new(Policy::Reset);
        config.supports = keys::supports;
        config.policies.mid_stream = Policy::Reset;
        config.mid_stream_grace_ns = 60 * SECOND.as_nanos() as u64;
        let engine = Engine::new(config, Judge::default());
        let input = KeyInput::new(receivers.pop().unwrap(), router);
        let settings = Settings { batch: BATCH, moderation: Duration::ZERO, passive: false };
        let stop = Arc::new(AtomicBool::new(false));
        let says = says.iter().copied().collect();
        let ports = Leased { ports, says, lease, stop: Arc::clone(&stop) };
        let worker = Worker::new(ports, engine, input, settings);
        Self { worker, network, keys, stop, now: Instant::now() }
    }

    fn turn_after(&mut self, time: Duration) {
        self.now += time;
        self.worker.turn(self.now).unwrap();
    }

    /// Whether it passes as it is.
    fn passes(&mut self, frame: &[u8]) -> bool {
        assert!(self.network.put(Port::Left, VnetHeader::default(), frame));
        self.turn_after(Duration::ZERO);
        // What was forwarded has left with the turn.
        let left = self.network.take(Port::Right, Duration::ZERO);
        left.is_some_and(|it| it.bytes == frame)
    }
}

/// One worker of two that hangs for long takes none of that time from the connections that all of them have to find again.
#[test]
fn connections_have_their_time_from_when_the_traffic_is_shown_again() {
    let says = [Lease::Held, Lease::Lost, Lease::Waiting, Lease::Waiting];
    let mut stage = Stage::new(&says, None);
    assert!(stage.passes(&[0xaa; 60]));
    stage.turn_after(10 * SECOND);
    stage.turn_after(60 * SECOND);
    stage.turn_after(60 * SECOND);
    let session = Session::new(&[(CLIENT, vec![7; 300])]);
    let frame = &session.records[0][0].frame;
    assert!(stage.passes(frame), "as after a start");
    let status = stage.worker.status();
    assert_eq!((status.leases_lost, status.engine.mid_stream), (1, 1));
    // Which a start is not once more with each turn.
    stage.turn_after(SECOND);
    stage.turn_after(SECOND);
    assert_eq!(stage.worker.status().flows, 1);
}

/// Each may open all that its session holds.
#[test]
fn deliveries_of_keys_take_a_part_of_the_lease_alone() {
    let all = 5;
    for lease in [None, Some(Duration::ZERO)] {
        let mut stage = Stage::new(&[], lease);
        let session = Session::new(&[]);
        let Message::SessionKeys(SessionKeys { flow, .. }) = session.keys(KeyEpoch::Handshake)
        else {
            unreachable!("keys of a session");
        };
        for number in 0..all {
            let client_random = [number as u8 + 1; 32];
            let refusal = Message::NullKeys(NullKeys { client_random, direction: None, flow });
            assert!(stage.keys.deliver(session.sender(), 1, refusal).is_ok());
        }
        stage.keys.batch_end();
        for turn in 1..=all {
            stage.turn_after(Duration::ZERO);
            let taken = if lease.is_some() { turn } else { all };
            assert_eq!(stage.worker.engine().pending_claims(), taken, "{lease:?}");
        }
    }
}

#[test]
fn a_worker_that_is_to_end_was_not_silent() {
    let mut stage = Stage::new(&[Lease::Held, Lease::Lost], None);
    let stop = Arc::clone(&stage.stop);
    stage.worker.run(&stop, |_| {}).unwrap();
    assert!(stop.load(Ordering::Relaxed));
    stage.worker.finish();
    assert_eq!(stage.worker.status().leases_lost, 0);
    assert_eq!(stage.worker.take_message(), None);
}

#[test]
fn a_flood_is_told_once_and_not_as_silence() {
    let mut stage = Stage::new(&[Lease::Flooded; 6], None);
    stage.turn_after(Duration::ZERO);
    stage.turn_after(SECOND / 2);
    assert_eq!(stage.worker.take_message(), None, "it may be what waited in the sockets");
    stage.turn_after(SECOND);
    let told = stage.worker.take_message().unwrap();
    assert!(told.contains("the kernel goes on forwarding"), "{told}");
    for _ in 0..4 {
        stage.turn_after(10 * SECOND);
        assert_eq!(stage.worker.take_message(), None);
    }
    assert_eq!(stage.worker.status().leases_lost, 0);
    assert!(stage.passes(&[0xaa; 60]));
}
