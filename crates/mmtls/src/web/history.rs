//! What a run did in each of the last seconds, so that a page that is opened, or opened again, has something to draw.
//!
//! Refuses to keep more than ten minutes, and to touch a worker: it reads what they have put down.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mmtls_middlebox::Status;
use mmtls_packet_io::PortCounters;
use serde_json::{Value, json};

use crate::stats::Snapshots;
use crate::summary::Summary;

/// Seconds that are kept.
const MAX_SAMPLES: usize = 600;

const INTERVAL: Duration = Duration::from_secs(1);

/// What a sample has, in this order: since 1970 in milliseconds; bits per second by the port where they came in, those
/// included that the kernel forwards; frames, what became of sessions, and stalls, each per second; what is kept.
const FIELDS: [&str; 14] = [
    "time_ms",
    "left_bits",
    "right_bits",
    "frames",
    "dropped",
    "decrypted",
    "missing_key",
    "exempt",
    "failed",
    "nothing_opened",
    "stalls",
    "live",
    "held_frames",
    "buffered_bytes",
];

type Sample = [u64; FIELDS.len()];

#[derive(Default)]
struct Kept {
    samples: VecDeque<Sample>,
    /// The number of the first of them.
    first: u64,
}

/// The samples.
#[derive(Default)]
pub struct History(Mutex<Kept>);

impl History {
    /// Has a thread take a sample each second. `prepare` is the first that it does.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        self: &Arc<Self>,
        snapshots: Arc<Snapshots>,
        prepare: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let history = Arc::clone(self);
        let work = move || {
            prepare();
            let mut sampler = Sampler { before: snapshots.each_with_time() };
            let mut next = Instant::now() + INTERVAL;
            loop {
                thread::sleep(next.saturating_duration_since(Instant::now()));
                // After a process that was stopped, one sample is enough.
                next = (next + INTERVAL).max(Instant::now());
                let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let time_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                history.push(sampler.sample(time_ms, snapshots.each_with_time()));
            }
        };
        thread::Builder::new().name("history".to_owned()).spawn(work).map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, sample: Sample) {
        let mut kept = self.lock();
        if kept.samples.len() == MAX_SAMPLES {
            kept.samples.pop_front();
            kept.first += 1;
        }
        kept.samples.push_back(sample);
    }

    /// Samples from this number on, and the number of the next one.
    #[must_use]
    pub fn since(&self, number: u64) -> Value {
        let kept = self.lock();
        let skip = usize::try_from(number.saturating_sub(kept.first)).unwrap_or(usize::MAX);
        let samples: Vec<_> = kept.samples.iter().skip(skip).collect();
        let next = kept.first + kept.samples.len() as u64;
        json!({"fields": FIELDS, "samples": samples, "next": next})
    }
}

/// What there was at the last sample.
struct Sampler {
    before: Vec<(Instant, Status, Summary)>,
}

impl Sampler {
    /// What has happened since. Of a worker that has put down nothing new, nothing; it comes with the next sample.
    fn sample(&mut self, time_ms: u64, now: Vec<(Instant, Status, Summary)>) -> Sample {
        let mut rates = [0.0; 10];
        let mut sums = (Status::default(), Summary::default());
        for (before, after) in self.before.iter().zip(&now) {
            let seconds = after.0.saturating_duration_since(before.0).as_secs_f64();
            if seconds > 0.0 {
                let (before, after) = (counted(&before.1, &before.2), counted(&after.1, &after.2));
                for ((rate, before), after) in rates.iter_mut().zip(before).zip(after) {
                    *rate += after.saturating_sub(before) as f64 / seconds;
                }
            }
            sums.0 += &after.1;
            sums.1 += &after.2;
        }
        self.before = now;
        let (status, summary) = sums;
        let mut sample = [0; FIELDS.len()];
        sample[0] = time_ms;
        // Within 64 bits: no port has more than that.
        rates
            .into_iter()
            .zip(&mut sample[1..])
            .for_each(|(rate, place)| *place = rate.round() as u64);
        let kept = [summary.live_sessions(), status.held_frames, status.buffered_bytes];
        sample[11..].copy_from_slice(&kept);
        sample
    }
}

/// What rates are made of, in the order of [`FIELDS`].
fn counted(status: &Status, summary: &Summary) -> [u64; 10] {
    let bits = |port: &PortCounters| 8 * (port.received_bytes + port.offloaded_bytes);
    [
        bits(&status.bridge.left),
        bits(&status.bridge.right),
        status.engine.frames,
        status.engine.dropped,
        summary.decrypted,
        summary.missing_key,
        summary.exempt,
        summary.failed,
        summary.nothing_opened,
        status.engine.stalls,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64, bytes: u64, decrypted: u64) -> (Instant, Status, Summary) {
        let mut status = Status { held_frames: 3, ..Status::default() };
        status.bridge.left.received_bytes = bytes;
        status.bridge.left.offloaded_bytes = bytes;
        let summary = Summary { decrypted, tls_sessions: decrypted + 2, ..Summary::default() };
        (start + Duration::from_millis(ms), status, summary)
    }

    #[test]
    fn accepts_ticks_that_are_not_even() {
        let start = Instant::now();
        let mut sampler = Sampler { before: vec![at(start, 0, 0, 0), at(start, 0, 0, 0)] };
        let both = vec![at(start, 500, 1000, 1), at(start, 1250, 1000, 0)];
        let sample = sampler.sample(7, both);
        // 2 kB in a half, and in five quarters of a second.
        assert_eq!(&sample[..3], [7, 32_000 + 12_800, 0]);
        assert_eq!(sample[5], 2);
        assert_eq!(&sample[11..], [4, 6, 0]);
        // Nothing new of the first one; nobody divides by nothing.
        let one = vec![at(start, 500, 1000, 1), at(start, 2250, 1000, 4)];
        let sample = sampler.sample(8, one);
        assert_eq!((sample[1], sample[5]), (0, 4));
    }

    #[test]
    fn keeps_ten_minutes_and_tells_what_is_new() {
        let history = History::default();
        for number in 0..MAX_SAMPLES as u64 + 10 {
            history.push([number; FIELDS.len()]);
        }
        let all = history.since(0);
        assert_eq!(all["samples"].as_array().unwrap().len(), MAX_SAMPLES);
        assert_eq!((&all["samples"][0][0], &all["next"]), (&10.into(), &610.into()));
        let last = history.since(608);
        assert_eq!(
            (last["samples"].as_array().unwrap().len(), &last["samples"][0][0]),
            (2, &608.into())
        );
        for number in [610, u64::MAX] {
            assert_eq!(history.since(number)["samples"], json!([]));
        }
    }
}
