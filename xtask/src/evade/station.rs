//! The attacker's place: a thread inside a namespace that runs many attacks over raw frames.
//!
//! Frames go through the packet I/O of mmTLS, whose second port is an interface that leads nowhere.
//! Refuses to answer for addresses: neighbours are told of them beforehand ([`super::lane`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mmtls_packet_io::af_packet::{Action, Bridge, BridgeConfig, Port};

use super::attack::{Attack, Outcome};
use super::script::Case;
use super::tls::Settings;
use super::wire::{self, Mac, flag};
use crate::netns::enter;

/// The attacker's Ethernet addresses on the clients' and on the servers' side: a bridge learns on which
/// side each is.
pub const ATTACKERS: [Mac; 2] = [[2, 0, 0, 0, 0, 0xaa], [2, 0, 0, 0, 0, 0xbb]];

/// An attack to run.
#[derive(Clone, Debug)]
pub struct Job {
    pub case: Arc<Case>,
    /// In the request, so that a server's log tells whose it was.
    pub name: String,
    pub local: SocketAddr,
    /// `None` to listen.
    pub remote: Option<SocketAddr>,
    pub iss: u32,
}

/// Attacks in which something happens at a time: more would wait for the processor, and take that for
/// silence. Those that only wait for a silent peer come on top.
const BUSY: usize = 20;
/// Nothing has happened for so long: it waits.
const QUIET: Duration = Duration::from_millis(150);

type Order = (Job, usize, Sender<(usize, Outcome)>);

/// A running thread; ends when dropped.
pub struct Station {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Station {
    /// Starts one on `eth0` of a namespace that also has `nowhere0`. `macs`: its own address and
    /// the other end's.
    pub fn start(namespace: PathBuf, settings: Settings, macs: (Mac, Mac)) -> Result<Self, String> {
        let (orders, inbox) = channel();
        let (ready, started) = channel();
        let thread = std::thread::spawn(move || {
            enter(&namespace)?;
            let mut config = BridgeConfig::new("eth0", "nowhere0");
            config.socket_buffer_bytes = 32 << 20;
            config.coalesce = false;
            let bridge = Bridge::open(&config).map_err(|error| error.to_string())?;
            let _ = ready.send(());
            Work::new(bridge, settings, macs).run(&inbox)
        });
        let mut station = Self { orders: Some(orders), thread: Some(thread) };
        match started.recv() {
            Ok(()) => Ok(station),
            Err(_) => Err(station.end().err().unwrap_or_default()),
        }
    }

    /// Starts an attack; its outcome comes later.
    pub fn submit(&self, job: Job) -> Result<Receiver<(usize, Outcome)>, String> {
        let (reply, outcome) = channel();
        self.order((job, 0, reply))?;
        Ok(outcome)
    }

    fn order(&self, order: Order) -> Result<(), String> {
        let orders = self.orders.as_ref().ok_or("the station has ended")?;
        orders.send(order).map_err(|_| "the station has ended".to_owned())
    }

    /// Runs attacks, so many at a time; the outcomes are in the same order.
    pub fn run(&self, jobs: Vec<Job>, parallel: usize) -> Result<Vec<Outcome>, String> {
        let (reply, outcomes) = channel();
        let mut results = vec![Outcome::Silent; jobs.len()];
        let mut jobs = jobs.into_iter().enumerate();
        let mut open = 0;
        loop {
            while open < parallel
                && let Some((number, job)) = jobs.next()
            {
                self.order((job, number, reply.clone()))?;
                open += 1;
            }
            if open == 0 {
                return Ok(results);
            }
            let limit = Duration::from_secs(120);
            let (number, outcome) =
                outcomes.recv_timeout(limit).map_err(|_| "the station does not answer")?;
            results[number] = outcome;
            open -= 1;
        }
    }

    fn end(&mut self) -> Result<(), String> {
        self.orders = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err("the station has panicked".to_owned()))
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("evade: station: {error}");
        }
    }
}

struct Running {
    attack: Attack,
    number: usize,
    reply: Sender<(usize, Outcome)>,
    give_up: Instant,
}

struct Work {
    bridge: Bridge,
    settings: Settings,
    macs: (Mac, Mac),
    running: BTreeMap<u64, Running>,
    next: u64,
    /// By own and other end; without the latter while it listens.
    by_ends: HashMap<(SocketAddr, Option<SocketAddr>), u64>,
    /// Orders that have not begun.
    queue: VecDeque<Order>,
}

impl Work {
    fn new(bridge: Bridge, settings: Settings, macs: (Mac, Mac)) -> Self {
        Self {
            bridge,
            settings,
            macs,
            running: BTreeMap::new(),
            next: 0,
            by_ends: HashMap::new(),
            queue: VecDeque::new(),
        }
    }

    fn run(mut self, inbox: &Receiver<Order>) -> Result<(), String> {
        let failed = |error: mmtls_packet_io::af_packet::Error| error.to_string();
        let mut frames = Vec::new();
        loop {
            loop {
                match inbox.try_recv() {
                    // Somebody is about to connect to one that listens.
                    Ok(order) if order.0.remote.is_none() => self.begin(order),
                    Ok(order) => self.queue.push_back(order),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
            let mut seen = Vec::new();
            for port in Port::BOTH {
                let take = |bytes: &[u8]| {
                    // Of what the kernel of this namespace sends and receives nothing is ours.
                    if wire::read(bytes).is_some() {
                        seen.push(bytes.to_vec());
                    }
                };
                let mut take = take;
                self.bridge
                    .receive(port, |frame| {
                        take(frame.bytes);
                        Action::Drop
                    })
                    .map_err(failed)?;
            }
            let now = Instant::now();
            for frame in &seen {
                self.take(frame, now);
            }
            let busy = |it: &&Running| it.attack.last_activity() + QUIET > now;
            let busy = self.running.values().filter(busy).count();
            for _ in busy..BUSY {
                let Some(order) = self.queue.pop_front() else { break };
                self.begin(order);
            }
            self.poll(now, &mut frames);
            for frame in frames.drain(..) {
                self.bridge.inject(Port::Left, &frame).map_err(failed)?;
            }
            let due = self.running.values().map(|it| it.attack.due()).min();
            // Orders come by another way than frames do.
            let rest =
                due.map_or(Duration::from_millis(2), |due| due.saturating_duration_since(now));
            let rest = rest.min(Duration::from_millis(2));
            self.bridge.wait(Some(rest), None).map_err(failed)?;
        }
    }

    fn begin(&mut self, (job, number, reply): Order) {
        let now = Instant::now();
        let give_up = now + Duration::from_secs(60);
        let ends = (job.local, job.remote);
        let attack = Attack::new(job.case, &self.settings, job.name, ends, self.macs, job.iss, now);
        self.by_ends.insert(ends, self.next);
        self.running.insert(self.next, Running { attack, number, reply, give_up });
        self.next += 1;
    }

    fn take(&mut self, frame: &[u8], now: Instant) {
        let Some(seen) = wire::read(frame) else { return };
        let ends = (seen.destination, Some(seen.source));
        let mut found = self.by_ends.get(&ends).copied();
        if found.is_none() && seen.flags & (flag::SYN | flag::ACK) == flag::SYN {
            found = self.by_ends.remove(&(seen.destination, None));
            if let Some(id) = found {
                self.by_ends.insert(ends, id);
            }
        }
        if let Some(running) = found.and_then(|id| self.running.get_mut(&id)) {
            running.attack.remote = Some(seen.source);
            running.attack.handle_segment(&seen, now);
        }
    }

    fn poll(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        let mut ended = Vec::new();
        for (id, running) in &mut self.running {
            if running.attack.due() <= now {
                running.attack.poll(now, frames);
            }
            let outcome = running.attack.outcome().cloned();
            let outcome = outcome.or((now >= running.give_up).then_some(Outcome::Silent));
            if let Some(outcome) = outcome {
                let _ = running.reply.send((running.number, outcome));
                ended.push(*id);
            }
        }
        for id in ended {
            if let Some(running) = self.running.remove(&id) {
                self.by_ends.remove(&(running.attack.local, running.attack.remote));
            }
        }
    }
}
