//! What a service manager is told (`sd_notify`): that frames are moved, that certificates and rules are read again, that it
//! ends; and that every worker still turns.
//!
//! Refuses to let anything wait for the service manager: what it does not read is lost. Refuses to feed the watchdog while any
//! worker stands.

use std::fmt::Write as _;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mmtls_middlebox::Error;
use sd_notify::NotifyState;

use super::say::say;

/// How soon it is noticed that all workers turn; they say so several times a second.
const POLL: Duration = Duration::from_millis(50);

/// The way to the service manager, where there is one: connected before sockets can be made no more.
static MANAGER: OnceLock<Option<UnixDatagram>> = OnceLock::new();

/// The workers of a monitor, as the service manager sees them.
pub struct Service {
    workers: Option<Arc<Workers>>,
}

/// Which workers have turned since it was asked last.
struct Workers(Vec<AtomicBool>);

impl Workers {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| AtomicBool::new(false)).collect())
    }

    /// Whether all have turned since the last time that this was so.
    fn have_turned(&self) -> bool {
        let all = self.0.iter().all(|turned| turned.load(Ordering::Relaxed));
        if all {
            self.0.iter().for_each(|turned| turned.store(false, Ordering::Relaxed));
        }
        all
    }
}

impl Service {
    /// Starts the thread where a service manager wants to know; `status` is what it shows.
    ///
    /// # Errors
    /// [`Error::System`] when the thread cannot be started.
    pub fn start(workers: usize, status: String) -> Result<Self, Error> {
        if MANAGER.get().is_none_or(Option::is_none) {
            return Ok(Self { workers: None });
        }
        let watchdog = sd_notify::watchdog_enabled();
        let workers = Arc::new(Workers::new(workers));
        let shared = Arc::clone(&workers);
        let work = move || tell(&shared, &status, watchdog);
        let thread = thread::Builder::new().name("service".to_owned()).spawn(work);
        thread.map_err(|error| Error::System { what: "the thread for sd_notify", error })?;
        Ok(Self { workers: Some(workers) })
    }

    /// A worker has turned.
    pub fn tick(&self, number: usize) {
        if let Some(turned) = self.workers.as_ref().and_then(|workers| workers.0.get(number)) {
            turned.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.workers.is_some() {
            notify(&[NotifyState::Stopping]);
        }
    }
}

/// Connects to the service manager that has asked for it. To be called before the process is confined.
pub fn connect() {
    MANAGER.get_or_init(|| {
        let name = std::env::var_os("NOTIFY_SOCKET")?;
        let connected = (|| {
            let address = match name.as_bytes() {
                [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
                _ => SocketAddr::from_pathname(&name)?,
            };
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })();
        connected
            .map_err(|error: io::Error| {
                say(&format!("NOTIFY_SOCKET {}: {error}", name.display()));
            })
            .ok()
    });
}

/// Something is read again from now on; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(_) => notify(&[NotifyState::Reloading]),
    }
}

/// What was to be read is in force, or what was stays.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Where nobody listens, there is nobody to tell.
fn notify(states: &[NotifyState<'_>]) {
    if let Some(Some(manager)) = MANAGER.get() {
        let mut text = String::new();
        for state in states {
            // To memory.
            let _ = writeln!(text, "{state}");
        }
        let _ = manager.send(text.as_bytes());
    }
}

/// The thread's life, as long as the process's.
fn tell(workers: &Workers, status: &str, watchdog: Option<Duration>) {
    while !workers.have_turned() {
        thread::sleep(POLL);
    }
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    let Some(interval) = watchdog else {
        return;
    };
    // Twice in each interval, where workers turn as often.
    let mut next = Instant::now();
    loop {
        thread::sleep(POLL.min(interval / 8));
        if Instant::now() >= next && workers.have_turned() {
            next = Instant::now() + interval / 2;
            notify(&[NotifyState::Watchdog]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_to_feed_while_one_worker_stands() {
        let workers = Workers::new(3);
        let turn = |numbers: &[usize]| {
            numbers.iter().for_each(|&number| workers.0[number].store(true, Ordering::Relaxed));
            workers.have_turned()
        };
        assert!(!turn(&[0, 1]) && turn(&[2]), "all of them, at different times");
        assert!(!turn(&[]) && !turn(&[0, 2, 0, 2]), "the second one stands");
        assert!(turn(&[1]));
    }
}
