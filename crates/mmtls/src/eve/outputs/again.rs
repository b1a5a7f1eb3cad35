//! When a consumer that is gone is tried again. Refuses to try at every line.

use std::io;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// Waits longer each time, up to some seconds.
#[derive(Default)]
pub(super) struct Again {
    pause: Duration,
    not_before: Option<Instant>,
}

impl Again {
    /// Connects, unless that has failed just now.
    pub(super) fn attempt<T>(&mut self, connect: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        connect().inspect_err(|_| self.failed())
    }

    /// It was lost, or not reached.
    pub(super) fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(FIRST, LONGEST);
        self.not_before = Some(Instant::now() + self.pause);
    }

    /// Something was taken.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_try_at_once_what_failed() {
        let mut again = Again::default();
        let fail = || Err::<(), _>(io::ErrorKind::ConnectionRefused.into());
        assert_eq!(again.attempt(fail).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let error = again.attempt(|| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        for _ in 0..20 {
            again.failed();
        }
        assert_eq!(again.pause, LONGEST);
        again.succeeded();
        again.attempt(|| Ok(())).unwrap();
    }
}
