//! Waking the thread of a pair of ports from another thread. It carries no data: whoever wakes has put that elsewhere first.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::af_packet::event_descriptor;

/// An eventfd. Share it in an `Arc`: one side calls [`Self::wake`], the ports' thread passes it to
/// [`Ports::wait`](crate::Ports::wait) and calls [`Self::drain`] when told that it fired.
#[derive(Debug)]
pub struct WakeFd {
    event: File,
}

impl WakeFd {
    /// # Errors
    /// The kernel's, when out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { event: File::from(event_descriptor()?) })
    }

    /// Makes the descriptor readable. Never blocks; calls before the next [`Self::drain`] count as one.
    pub fn wake(&self) {
        // The only possible failure is a counter that is full, and then it is readable already.
        let _ = (&self.event).write(&1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable again. Look for the data after this call, not before.
    pub fn drain(&self) {
        let mut count = [0; 8];
        // Fails only when there was nothing to drain.
        let _ = (&self.event).read(&mut count);
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_packet::poll_readable;
    use std::time::Duration;

    fn readable(wake: &WakeFd) -> io::Result<bool> {
        let [readable] = poll_readable([Some(wake.as_fd())], Some(Duration::ZERO))?;
        Ok(readable)
    }

    #[test]
    fn accepts_wakes_until_drained() -> io::Result<()> {
        let wake = WakeFd::new()?;
        assert!(!readable(&wake)?);
        wake.wake();
        wake.wake();
        assert!(readable(&wake)?);
        wake.drain();
        wake.drain();
        assert!(!readable(&wake)?);
        Ok(())
    }
}
