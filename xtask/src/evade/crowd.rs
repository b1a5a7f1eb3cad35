//! Many hostile connections that hold all that they may, and honest ones beside them.
//!
//! ```text
//!  hostile   SYN ─► SYN-ACK ─► ACK, half a ClientHello, pieces out of order … and there it stays
//!  honest    TLS with keys, there and back, before, during and after that; each is timed
//! ```
//! The hostile ones have sixteen addresses, the honest ones another. Refuses to judge times: it prints
//! them; that a policy is met, or a byte is missing, is an error.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mmtls_packet_io::af_packet::{Action, Bridge, BridgeConfig, Port};

use super::honest::{self, Plan};
use super::lane::{CLIENTS, Lane, SERVER, host};
use super::peers;
use super::station::ATTACKERS;
use super::wire::{self, Oddity, Segment, flag};
use crate::netns::enter;

/// Pieces out of order of each, and their bytes.
const PIECES: u32 = 16;
const PIECE_LEN: u32 = 1400;
/// Frames at a time, so that queues on the way do not overflow.
const BURST: u32 = 32;

/// A thread that keeps hostile connections open; ends when dropped.
struct Crowd {
    stop: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Crowd {
    fn start(namespace: PathBuf, count: u32, server: SocketAddr) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let open = Arc::new(AtomicUsize::new(0));
        let (ready, started) = channel();
        let (stopped, opened) = (Arc::clone(&stop), Arc::clone(&open));
        let thread = std::thread::spawn(move || {
            keep_open(namespace, count, server, &stopped, &opened, &ready)
        });
        let mut crowd = Self { stop, open, thread: Some(thread) };
        match started.recv() {
            Ok(()) => Ok(crowd),
            Err(_) => Err(crowd.end().err().unwrap_or_default()),
        }
    }

    fn end(&mut self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err("the crowd has panicked".to_owned()))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("evade: crowd: {error}");
        }
    }
}

/// One of them by number.
fn own_end(number: u32) -> SocketAddr {
    let address: IpAddr = host(10 + (number as usize % CLIENTS) as u16, false);
    // At most 16 times 60,000.
    (address, 1024 + (number / CLIENTS as u32) as u16).into()
}

fn keep_open(
    namespace: PathBuf,
    count: u32,
    server: SocketAddr,
    stop: &AtomicBool,
    open: &AtomicUsize,
    ready: &Sender<()>,
) -> Result<(), String> {
    enter(&namespace)?;
    let failed = |error: mmtls_packet_io::af_packet::Error| error.to_string();
    let mut config = BridgeConfig::new("eth0", "nowhere0");
    config.socket_buffer_bytes = 32 << 20;
    config.coalesce = false;
    let mut bridge = Bridge::open(&config).map_err(failed)?;
    let _ = ready.send(());
    let segment = |source, sequence, acknowledgment, flags, payload| {
        let segment = Segment {
            source,
            destination: server,
            sequence,
            acknowledgment,
            flags,
            window: 0xffff,
            urgent: 0,
            options: &[],
            payload,
            ttl: 64,
            oddity: Oddity::default(),
        };
        wire::frames(&segment, ATTACKERS[0], SERVER)
    };
    // A record that announces more than will come, with the beginning of a hello in it.
    let mut hello = vec![22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3];
    hello.resize(PIECE_LEN as usize, 7);
    let mut next = 0;
    let mut known = HashSet::new();
    let mut begun = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if next >= count && begun.elapsed() > Duration::from_secs(1) {
            // Once more those that got lost.
            (next, begun) = (0, Instant::now());
        }
        let unanswered = |number: &u32| !known.contains(&own_end(*number));
        for number in (next..(next + BURST).min(count)).filter(unanswered) {
            for frame in segment(own_end(number), number, 0, flag::SYN, &[]) {
                bridge.inject(Port::Left, &frame).map_err(failed)?;
            }
        }
        next = (next + BURST).min(count);
        let mut answers = Vec::new();
        bridge
            .receive(Port::Left, |frame| {
                if let Some(seen) = wire::read(frame.bytes)
                    && seen.source == server
                    && seen.flags & (flag::SYN | flag::ACK) == flag::SYN | flag::ACK
                {
                    answers.push((seen.destination, seen.acknowledgment, seen.sequence));
                }
                Action::Drop
            })
            .map_err(failed)?;
        for (own, first, answer) in answers {
            let acknowledgment = answer.wrapping_add(1);
            let mut frames = segment(own, first, acknowledgment, flag::ACK, &[]);
            frames.extend(segment(own, first, acknowledgment, flag::ACK, &hello));
            for piece in 0..PIECES {
                let place = first.wrapping_add((2 + 2 * piece) * PIECE_LEN);
                frames.extend(segment(own, place, acknowledgment, flag::ACK, &hello));
            }
            for frame in frames {
                bridge.inject(Port::Left, &frame).map_err(failed)?;
            }
            // A server that has not seen the acknowledgment answers again.
            open.fetch_add(usize::from(known.insert(own)), Ordering::Relaxed);
        }
        bridge.wait(Some(Duration::from_millis(2)), None).map_err(failed)?;
    }
    Ok(())
}

/// Times of honest connections, in milliseconds.
struct Times {
    median: f64,
    p99: f64,
}

fn honest(lane: &Lane, count: usize, seed: u64) -> Result<(Times, Vec<String>), String> {
    let plans: Vec<Plan> = (0..count)
        .map(|number| Plan {
            tls: true,
            v6: false,
            port: None,
            bytes: 20_000,
            seed: seed ^ number as u64,
            limit: Duration::from_secs(20),
        })
        .collect();
    let times = std::sync::Mutex::new(Vec::new());
    let results = honest::each(lane, &plans, 1, |clients, plan| {
        let start = Instant::now();
        let result = clients.run(plan);
        let taken = start.elapsed().as_secs_f64() * 1000.0;
        times.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(taken);
        result
    })?;
    let mut times = times.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let harmed = results.into_iter().filter_map(Result::err).collect();
    Ok((Times { median: at(0.5), p99: at(0.99) }, harmed))
}

/// Runs it: `hostile` connections, and so many honest ones in each of the three parts. Returns what was
/// harmed.
pub fn run(lane: &Lane, hostile: u32, count: usize, seed: u64) -> Result<Vec<String>, String> {
    let Some(program) = lane.programs.iter().find(|it| it.name == "go") else {
        return Err("the hostile connections need the Go server".to_owned());
    };
    let server = peers::address(program.name, false, false);
    let mut harm = Vec::new();
    let mut part = |name: &str, open: usize| {
        let (times, harmed) = honest(lane, count, seed)?;
        println!(
            "evade: {count} honest connections {name} {open} hostile ones: median {:.2} ms, p99 {:.2} ms, {} harmed",
            times.median,
            times.p99,
            harmed.len()
        );
        harm.extend(harmed);
        Ok::<_, String>(())
    };
    part("before", 0)?;
    let crowd = Crowd::start(lane.bed.client.path(), hostile, server)?;
    let end = Instant::now() + Duration::from_secs(60);
    while crowd.open.load(Ordering::Relaxed) < hostile as usize && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    // Some answers are lost in such a burst, and come again after one second and after three: what is
    // measured is what is held, not the burst.
    std::thread::sleep(Duration::from_secs(5));
    part("beside", crowd.open.load(Ordering::Relaxed))?;
    drop(crowd);
    part("after", 0)?;
    Ok(harm)
}
