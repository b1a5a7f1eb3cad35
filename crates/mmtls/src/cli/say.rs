//! Lines for the operator, on standard error.
//!
//! While frames are moved, a thread of its own writes them: whoever reads may be slow. Refuses to fail, to keep a worker
//! waiting, and to keep more than some lines: those beyond are counted, and told of.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mmtls_middlebox::Error;

/// Lines, or summaries, that may wait.
const MAX_WAITING: usize = 256;
/// How long is waited at the end for what was not written yet.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The way to the thread, where there is one.
static QUEUE: Mutex<Option<SyncSender<String>>> = Mutex::new(None);
/// Lines that nobody made room for.
static LOST: AtomicU64 = AtomicU64::new(0);

/// One line for the operator. Where nobody reads it any more, the bridge goes on.
pub fn say(text: &str) {
    tell(format!("mmtls: {text}\n"));
}

/// The same for text that has its line ends.
pub fn tell(text: String) {
    // Not written with the lock held.
    let queue = queue().clone();
    match queue {
        None => write(&text),
        Some(queue) => {
            if queue.try_send(text).is_err() {
                LOST.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The thread, as long as this is there.
pub struct Behind(Receiver<()>);

impl Behind {
    /// Has a thread write from here on, with the privileges of the calling one.
    ///
    /// # Errors
    /// [`Error::System`] when it cannot be started.
    pub fn start() -> Result<Self, Error> {
        let (waiting, texts) = mpsc::sync_channel::<String>(MAX_WAITING);
        let (running, end) = mpsc::channel();
        let work = move || {
            let _running: mpsc::Sender<()> = running;
            for text in texts {
                write(&text);
                let lost = LOST.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    write(&format!("mmtls: {lost} messages are missing here: nobody read\n"));
                }
            }
        };
        let thread = thread::Builder::new().name("say".to_owned()).spawn(work);
        thread.map_err(|error| Error::System { what: "the thread for messages", error })?;
        *queue() = Some(waiting);
        Ok(Self(end))
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        *queue() = None;
        // Nothing is ever sent: what comes is that the thread has ended.
        let _ = self.0.recv_timeout(LAST_WAIT);
    }
}

fn write(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn queue() -> MutexGuard<'static, Option<SyncSender<String>>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}
