//! What workers do several times a second beside moving frames: they put down what they have counted, and the first one
//! sees to what is the same for all. Refuses to wait for whoever reads it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mmtls::control::Desks;
use mmtls::monitor::Monitor;
use mmtls::stats::Snapshots;
use mmtls::stats::counts::{self, kernel_drops, status_map};
use mmtls_middlebox::Status;
use mmtls_middlebox::worker::Worker;
use mmtls_packet_io::Ports;

use super::reload::Reload;
use super::report::print_summary;
use super::say::{say, tell};
use super::signals::Signals;

/// Where the workers say, several times a second, what they have counted.
pub struct StatsAggregator {
    snapshots: Arc<Snapshots>,
    desks: Arc<Desks>,
    workers: usize,
    /// Of `stats` records, and when the next one is due.
    stats: Mutex<(Duration, Instant)>,
    passive: bool,
    /// The operator knows that the kernel drops frames.
    drops_reported: AtomicBool,
    /// Outputs that could not be written at the end.
    lost: AtomicUsize,
}

impl StatsAggregator {
    pub fn new(
        snapshots: Arc<Snapshots>,
        desks: Arc<Desks>,
        workers: usize,
        stats_interval: Duration,
        passive: bool,
    ) -> Self {
        Self {
            snapshots,
            desks,
            workers,
            stats: Mutex::new((stats_interval, Instant::now() + stats_interval)),
            passive,
            drops_reported: AtomicBool::new(false),
            lost: AtomicUsize::new(0),
        }
    }

    /// What a worker has counted in the end.
    pub fn put(&self, number: usize, status: Status, monitor: &Monitor) {
        self.snapshots.put(number, status, monitor.summary());
    }

    /// What every worker does, and the first one for all.
    pub fn tick<P: Ports>(
        &self,
        number: usize,
        worker: &mut Worker<Monitor, P>,
        signals: &Signals,
        reload: &Reload,
    ) {
        let now_ns = worker.now_ns();
        worker.handler_mut().set_now(now_ns);
        for error in worker.handler_mut().flush() {
            say(&error.to_string());
        }
        reload.work(number, worker);
        self.desks.work(number, worker);
        let status = worker.status();
        self.snapshots.put(number, status, worker.handler_mut().summary());
        if kernel_drops(&status) > 0 && !self.drops_reported.swap(true, Ordering::Relaxed) {
            say(
                "frames come faster than they are read, and the kernel drops some (kernel_drops in \
                 stats): more workers or a larger inline.socket_buffer_bytes may help",
            );
        }
        if number > 0 {
            return;
        }
        if self.is_time_for_stats() {
            self.write_stats(worker.handler_mut());
        }
        if signals.reopen.swap(false, Ordering::Relaxed) {
            worker.handler_mut().reopen_log();
            reload.start();
        }
        if let Some(error) = self.snapshots.key_meter().take_key_log_error() {
            say(&format!("the key log cannot be read: {error}; going on when it can"));
        }
        // An interface that went down is the same for all workers.
        while let Some(message) = worker.take_message() {
            say(&message);
        }
        if signals.report.swap(false, Ordering::Relaxed) {
            let mut text = Vec::new();
            self.print(&mut text);
            tell(String::from_utf8_lossy(&text).into_owned());
        }
    }

    /// Writes what a monitor has buffered, at the end: an error is one of the outputs.
    pub fn flush(&self, monitor: &mut Monitor) {
        let failed = monitor.finish();
        for error in &failed {
            say(&error.to_string());
        }
        let lost = failed.iter().filter(|error| error.is_loss()).count();
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }

    /// Whether the outputs hold all that they should; says what they lack.
    pub fn is_complete(&self) -> bool {
        let (_, summary) = self.snapshots.sum();
        if summary.lost_log_lines > 0 {
            say(&format!("{} lines are missing in eve.json", summary.lost_log_lines));
        }
        if summary.lost_output_lines > 0 {
            say(&format!("log.outputs have not got {} lines", summary.lost_output_lines));
        }
        if summary.failed_streams > 0 {
            say(&format!("the streams of {} sessions are incomplete", summary.failed_streams));
        }
        if summary.mirror_sessions_cut > 0 {
            say(&format!("{} sessions are cut in the mirror", summary.mirror_sessions_cut));
        }
        if summary.capture_sessions_lost > 0 {
            say(&format!("{} sessions are missing in the capture", summary.capture_sessions_lost));
        }
        if summary.capture_frames_lost > 0 {
            say(&format!("{} frames are missing in the capture", summary.capture_frames_lost));
        }
        let errors = self.lost.load(Ordering::Relaxed) as u64;
        errors + summary.losses() == 0
    }

    pub fn write_stats(&self, monitor: &mut Monitor) {
        let (status, summary) = self.snapshots.sum();
        let mut all = status_map(&status);
        let keys = counts::keys(&self.snapshots.keys());
        let reloads = self.snapshots.reloads().counts();
        all.extend(keys.into_iter().chain(reloads).map(|(name, _, value)| (name, value)));
        let each: Vec<_> = match self.workers {
            1 => Vec::new(),
            _ => self.snapshots.each().iter().map(|worker| status_map(&worker.0)).collect(),
        };
        monitor.write_stats(self.snapshots.uptime(), &summary, &all, &each);
    }

    /// Prints the sum, and what each of several workers had of it.
    pub fn print(&self, out: &mut impl Write) {
        let (status, summary) = self.snapshots.sum();
        if self.passive {
            let (frames, lost) = (status.engine.frames, kernel_drops(&status));
            let _ = writeln!(out, "{summary}frames: {frames} (lost by the kernel {lost})");
        } else {
            print_summary(out, &summary, &status.engine);
        }
        if self.workers == 1 {
            return;
        }
        for (number, (Status { engine, .. }, summary)) in self.snapshots.each().iter().enumerate() {
            let _ = writeln!(
                out,
                "worker {number}: frames {}, flows seen {}, TLS sessions {}, decrypted {}",
                engine.frames, summary.flows, summary.tls_sessions, summary.decrypted
            );
        }
    }

    /// From now on so much time is between two `stats` records.
    pub fn set_interval(&self, interval: Duration) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        if stats.0 != interval {
            *stats = (interval, Instant::now() + interval);
        }
    }

    fn is_time_for_stats(&self) -> bool {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let (interval, next) = &mut *stats;
        let due = Instant::now() >= *next;
        if due {
            *next += *interval;
        }
        due
    }
}
