//! A long or a bad line between middle and server: frames leave half of a round trip after they came, in order, and of those
//! from the server some are lost, by a seed. In user space, by a thread in the testbed's `line` namespace, since not
//! every kernel has netem.
//!
//! Refuses to hide what it could not carry: a line that lost another frame than it was told to has failed.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mmtls_packet_io::WakeFd;
use mmtls_packet_io::af_packet::{Action, Bridge, BridgeConfig, Frame, HeldFrame, Port};
use mmtls_testkit::segments::Seeded;
use mmtls_testkit::{Testbed, address};
use serde::Serialize;

use crate::netns::enter;

/// Of the generator that says which frames are lost: the same for all lanes.
const SEED: u64 = 7;
/// What is on its way in one direction at most: 5 Gbit/s for 100 ms.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Timers of the thread are as late as this; the kernel's default is 50 µs.
const TIMER_SLACK_NS: NonZeroU64 = NonZeroU64::MIN;

/// What a line does to frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineOptions {
    /// What it adds to a round trip, half of it each way.
    pub round_trip: Duration,
    /// Of a thousand frames from the server.
    pub lost_per_mille: usize,
}

/// What a line carried.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Carried {
    /// Frames from the server.
    pub from_server: u64,
    /// Of these the lost ones.
    pub lost: u64,
    /// The most that was on its way in one direction.
    pub queued_bytes: usize,
    /// Frames, both ways, for which there was no place in a queue or a buffer.
    not_carried: u64,
}

/// A running line.
pub struct Line {
    stop: Arc<(AtomicBool, WakeFd)>,
    thread: Option<JoinHandle<Result<Carried, String>>>,
}

impl Line {
    /// Joins middlebox and server of a testbed with a line.
    pub fn start(bed: &Testbed, options: LineOptions) -> Result<Self, String> {
        let place = bed.line.as_ref().ok_or("the testbed has no place for a line")?.path();
        let wake = WakeFd::new().map_err(|error| format!("an eventfd: {error}"))?;
        let stop = Arc::new((AtomicBool::new(false), wake));
        let (ready, started) = channel();
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || run(place, options, &told, &ready));
        let line = Self { stop, thread: Some(thread) };
        match started.recv() {
            Ok(()) => Ok(line),
            Err(_) => Err(line.stop().err().unwrap_or_else(|| "the line has ended".to_owned())),
        }
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<Carried, String> {
        let carried = self.end().unwrap_or_else(|| Err("it has ended before".to_owned()));
        let carried = carried.map_err(|error| format!("the line: {error}"))?;
        match carried.not_carried {
            0 => Ok(carried),
            frames => Err(format!("the line could not carry {frames} frames")),
        }
    }

    fn end(&mut self) -> Option<Result<Carried, String>> {
        let thread = self.thread.take()?;
        self.stop.0.store(true, Ordering::Relaxed);
        self.stop.1.wake();
        Some(thread.join().unwrap_or_else(|_| Err("a panic".to_owned())))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Whoever wants to know has called `stop`.
        let _ = self.end();
    }
}

fn run(
    place: PathBuf,
    options: LineOptions,
    stop: &(AtomicBool, WakeFd),
    ready: &Sender<()>,
) -> Result<Carried, String> {
    let failed = |error: mmtls_packet_io::Error| error.to_string();
    enter(&place)?;
    rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NS))
        .map_err(|error| format!("timer slack: {error}"))?;
    let mut config = BridgeConfig::new("left".to_owned(), "right".to_owned());
    // A wire joins nothing.
    config.coalesce = false;
    let mut bridge = Bridge::open(&config).map_err(failed)?;
    // Whoever waits for it is there, or the process ends.
    let _ = ready.send(());
    let mut random = Seeded::new(SEED);
    let mut carried = Carried::default();
    let mut ways = [Way::default(), Way::default()];
    while !stop.0.load(Ordering::Relaxed) {
        let next = ways.iter().filter_map(Way::next_due).min();
        let timeout = next.map(|due| due.saturating_duration_since(Instant::now()));
        bridge.wait(timeout, Some(stop.1.as_fd())).map_err(failed)?;
        for (port, way) in Port::BOTH.into_iter().zip(&mut ways) {
            let due = Instant::now() + options.round_trip / 2;
            let decide = |frame: &Frame<'_>| {
                if port == Port::Right {
                    carried.from_server += 1;
                    if random.below(1000) < options.lost_per_mille {
                        carried.lost += 1;
                        return Action::Drop;
                    }
                }
                if options.round_trip.is_zero() {
                    return Action::Forward;
                }
                carried.not_carried += u64::from(!way.push(due, frame.hold()));
                Action::Taken
            };
            bridge.receive(port, decide).map_err(failed)?;
            carried.queued_bytes = carried.queued_bytes.max(way.bytes);
        }
        let now = Instant::now();
        for way in &mut ways {
            while let Some(frame) = way.pop_due(now) {
                bridge.send_held(frame);
            }
        }
        bridge.flush().map_err(failed)?;
    }
    let counters = bridge.counters();
    for port in [counters.left, counters.right] {
        let unread = port.kernel_dropped + port.truncated + port.runts + port.unsupported_offload;
        carried.not_carried += unread + port.send_errors.total();
    }
    Ok(carried)
}

/// Frames on their way in one direction, with the time when they arrive.
#[derive(Default)]
struct Way {
    frames: VecDeque<(Instant, HeldFrame)>,
    bytes: usize,
}

impl Way {
    /// Takes a frame that arrives after all others; false, where there is no place for it.
    fn push(&mut self, due: Instant, frame: HeldFrame) -> bool {
        let bytes = self.bytes + frame.bytes().len();
        if bytes > MAX_QUEUED_BYTES {
            return false;
        }
        self.bytes = bytes;
        self.frames.push_back((due, frame));
        true
    }

    fn next_due(&self) -> Option<Instant> {
        self.frames.front().map(|(due, _)| *due)
    }

    /// The next frame, if it has arrived.
    fn pop_due(&mut self, now: Instant) -> Option<HeldFrame> {
        self.next_due().filter(|due| *due <= now)?;
        let (_, frame) = self.frames.pop_front()?;
        self.bytes -= frame.bytes().len();
        Some(frame)
    }
}

/// How long the client waits for a TCP connection to where the server is, so many times, in milliseconds: a round trip.
pub fn round_trips(bed: &Testbed, times: u32) -> Result<Vec<f64>, String> {
    let server: SocketAddr = format!("{}:443", address::SERVER_V4)
        .parse()
        .map_err(|error| format!("the server's address: {error}"))?;
    let client = bed.client.path();
    let connect = move || {
        enter(&client)?;
        let one = |_| {
            let start = Instant::now();
            TcpStream::connect(server).map_err(|error| format!("{server}: {error}"))?;
            Ok(start.elapsed().as_secs_f64() * 1e3)
        };
        (0..times).map(one).collect()
    };
    std::thread::spawn(connect).join().unwrap_or_else(|_| Err("a panic".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mmtls_packet_io::af_packet::VnetHeader;

    fn frame(bytes: usize) -> HeldFrame {
        HeldFrame::new(Port::Left, VnetHeader::default(), &vec![0; bytes])
    }

    #[test]
    fn frames_leave_in_order_when_they_are_due() {
        let (mut way, start) = (Way::default(), Instant::now());
        let due = |ms| start + Duration::from_millis(ms);
        assert!(way.push(due(5), frame(60)) && way.push(due(6), frame(61)));
        assert_eq!(way.next_due(), Some(due(5)));
        assert!(way.pop_due(due(4)).is_none());
        assert_eq!(way.pop_due(due(9)).unwrap().bytes().len(), 60);
        assert_eq!(way.pop_due(due(9)).unwrap().bytes().len(), 61);
        assert_eq!((way.next_due(), way.bytes), (None, 0));
    }

    #[test]
    fn refuses_more_than_a_queue_holds() {
        let (mut way, now) = (Way::default(), Instant::now());
        let frames = MAX_QUEUED_BYTES / 65_536;
        assert!((0..frames).all(|_| way.push(now, frame(65_536))));
        assert!(!way.push(now, frame(60)));
        assert!(way.pop_due(now).is_some() && way.push(now, frame(60)));
    }
}
