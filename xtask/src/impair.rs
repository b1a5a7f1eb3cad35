//! A bad link: frames that are lost, repeated and late, by a seed.
//!
//! Job: stand between an interface of mmTLS and the one that was there before. Offloads are off there, so a frame
//! is what a wire would carry. Refuses to change a frame, and to keep one for longer than it was told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mmtls_packet_io::af_packet::{Action, Bridge, BridgeConfig, HeldFrame, Port};
use mmtls_testkit::segments::Seeded;
use mmtls_testkit::{Testbed, TestbedError};

use crate::netns::enter;

/// Of a thousand frames each, in each direction and on each link.
#[derive(Clone, Copy, Debug)]
pub struct Badness {
    pub lost: usize,
    pub late: usize,
    pub twice: usize,
    /// The longest that a frame is late.
    pub longest: Duration,
}

/// What happened to frames.
#[derive(Debug, Default)]
pub struct Counts {
    pub frames: AtomicU64,
    pub lost: AtomicU64,
    pub late: AtomicU64,
    pub twice: AtomicU64,
}

/// Running links; they end when dropped.
pub struct Links {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), String>>>,
    pub counts: Arc<Counts>,
}

impl Links {
    /// Puts a bad link before each port of the middlebox, which then has the ports' names. To be
    /// called before anything uses them.
    pub fn install(bed: &Testbed, badness: Badness, seed: u64) -> Result<Self, String> {
        let failed = |error: TestbedError| error.to_string();
        let mut links = Self {
            stop: Arc::new(AtomicBool::new(false)),
            threads: vec![],
            counts: Arc::new(Counts::default()),
        };
        // Losing one super-frame would be losing forty frames.
        let single = |port: &str| format!("ethtool -K {port} tso off gso off gro off\n");
        for namespace in [&bed.client, &bed.server] {
            namespace.shell(&single("eth0")).map_err(failed)?;
        }
        for (number, port) in ["left", "right"].into_iter().enumerate() {
            let (outer, inner) = (format!("{port}out"), format!("{port}in"));
            bed.middlebox
                .ip(&format!(
                    "link set {port} down\nlink set {port} name {outer}\nlink set {outer} up\n\
                     link add {port} type veth peer name {inner}\n\
                     link set {port} up\nlink set {inner} up\n"
                ))
                .map_err(failed)?;
            let ports = [port, &outer, &inner].map(single).concat();
            bed.middlebox.shell(&ports).map_err(failed)?;
            let (namespace, stop) = (bed.middlebox.path(), Arc::clone(&links.stop));
            let counts = Arc::clone(&links.counts);
            let (ready, started) = channel();
            links.threads.push(std::thread::spawn(move || {
                enter(&namespace)?;
                let mut config = BridgeConfig::new(outer, inner);
                config.coalesce = false;
                config.socket_buffer_bytes = 16 << 20;
                let bridge = Bridge::open(&config).map_err(|error| error.to_string())?;
                let _ = ready.send(());
                let random = Seeded::new(seed + number as u64);
                Link { bridge, random, badness, late: vec![], counts }.run(&stop)
            }));
            started.recv().map_err(|_| "a bad link could not be opened".to_owned())?;
        }
        Ok(links)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if let Ok(Err(error)) = thread.join() {
                eprintln!("xtask: bad link: {error}");
            }
        }
    }
}

struct Link {
    bridge: Bridge,
    random: Seeded,
    badness: Badness,
    late: Vec<(Instant, HeldFrame)>,
    counts: Arc<Counts>,
}

impl Link {
    fn run(mut self, stop: &AtomicBool) -> Result<(), String> {
        let failed = |error: mmtls_packet_io::af_packet::Error| error.to_string();
        while !stop.load(Ordering::Relaxed) {
            self.bridge.wait(Some(Duration::from_millis(1)), None).map_err(failed)?;
            for port in Port::BOTH {
                let Self { bridge, random, badness, late, counts } = &mut self;
                bridge
                    .receive_with(port, |frame, outbox| {
                        counts.frames.fetch_add(1, Ordering::Relaxed);
                        let draw = random.below(1000);
                        let lost = badness.lost;
                        if draw < lost {
                            counts.lost.fetch_add(1, Ordering::Relaxed);
                            return Action::Drop;
                        }
                        if draw < lost + badness.late {
                            counts.late.fetch_add(1, Ordering::Relaxed);
                            let time = badness.longest.mul_f64(random.below(100) as f64 / 100.0);
                            late.push((Instant::now() + time, frame.hold()));
                            return Action::Taken;
                        }
                        if draw < lost + badness.late + badness.twice {
                            counts.twice.fetch_add(1, Ordering::Relaxed);
                            outbox.send_held(frame.hold());
                        }
                        Action::Forward
                    })
                    .map_err(failed)?;
            }
            let now = Instant::now();
            let mut rest = vec![];
            for (due, frame) in self.late.drain(..) {
                if due <= now {
                    self.bridge.send_held(frame);
                } else {
                    rest.push((due, frame));
                }
            }
            self.late = rest;
            self.bridge.flush().map_err(failed)?;
        }
        Ok(())
    }
}
