//! How far `mmtls read` is: one line on a terminal, rewritten.
//!
//! Refuses to write anything where standard error is no terminal, and more than five lines a second.

use std::cell::Cell;
use std::io::{self, IsTerminal, Read, Write};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often it is looked at the clock, in packets, unless more was read: a pipe may give few at a time.
const PACKETS: u32 = 64;
/// How often something is done.
pub(super) const INTERVAL: Duration = Duration::from_millis(200);

/// Counts what is read through it.
pub(super) struct Counted<R> {
    inner: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes.set(self.bytes.get() + count as u64);
        Ok(count)
    }
}

/// What is shown.
pub(super) struct Progress {
    shows: bool,
    begun: Instant,
    next: Instant,
    packets: u32,
    seen_bytes: u64,
    bytes: Rc<Cell<u64>>,
    /// Of all files, where it is known.
    total: Option<u64>,
    written: bool,
}

impl Progress {
    pub(super) fn new(total: Option<u64>) -> Self {
        let begun = Instant::now();
        Self {
            shows: io::stderr().is_terminal(),
            begun,
            next: begun + INTERVAL,
            packets: 0,
            seen_bytes: 0,
            bytes: Rc::default(),
            total,
            written: false,
        }
    }

    /// The file, counted.
    pub(super) fn count<R: Read>(&self, inner: R) -> Counted<R> {
        Counted { inner, bytes: Rc::clone(&self.bytes) }
    }

    /// Takes note of a packet; true when something is due.
    pub(super) fn packet(&mut self) -> bool {
        self.packets = self.packets.wrapping_add(1);
        let bytes = self.bytes.get();
        if bytes == self.seen_bytes && !self.packets.is_multiple_of(PACKETS) {
            return false;
        }
        self.seen_bytes = bytes;
        let now = Instant::now();
        let is_due = now >= self.next;
        if is_due {
            self.next = now + INTERVAL;
        }
        is_due
    }

    /// Shows how far it is.
    pub(super) fn show(&mut self, sessions: u64) {
        if self.shows {
            let line = describe(self.bytes.get(), self.total, self.begun.elapsed(), sessions);
            // To the beginning of the line, and what was there is erased.
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
            self.written = true;
        }
    }

    /// Takes the line away, before something else is written.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.written) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn describe(bytes: u64, total: Option<u64>, elapsed: Duration, sessions: u64) -> String {
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let rate = megabytes(bytes) / elapsed.as_secs_f64().max(1e-3);
    let done = match total {
        Some(total @ 1..) => {
            let percent = (bytes.min(total) as f64 / total as f64 * 100.0).floor();
            format!("{percent:.0} % of {:.1} MB", megabytes(total))
        }
        _ => format!("{:.1} MB", megabytes(bytes)),
    };
    format!("mmtls: {done}, {rate:.0} MB/s, {sessions} TLS sessions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_sizes_that_are_known_and_others() {
        let second = Duration::from_secs(2);
        let text = describe(50_000_000, Some(200_000_000), second, 7);
        assert_eq!(text, "mmtls: 25 % of 200.0 MB, 25 MB/s, 7 TLS sessions");
        // A file that grows.
        assert!(describe(9, Some(3), second, 0).starts_with("mmtls: 100 % of"));
        assert_eq!(describe(1_500_000, None, second, 1), "mmtls: 1.5 MB, 1 MB/s, 1 TLS sessions");
        assert!(describe(0, Some(0), Duration::ZERO, 0).starts_with("mmtls: 0.0 MB, 0 MB/s"));
    }
}
