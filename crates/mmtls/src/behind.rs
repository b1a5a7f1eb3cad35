//! A queue of bounded bytes, and the thread that writes what is in it, for those who must not wait for a disk.
//!
//! Refuses what it has no room for: whoever hands it over decides what is lost with it. Without a thread, whoever has
//! something writes it, and waits.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// What an item costs of the queue beside its bytes.
pub(crate) const ITEM_BYTES: usize = 256;
/// How often the thread looks after its outputs while nothing comes.
const IDLE: Duration = Duration::from_millis(500);
/// How long the outputs are waited for at the end.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Who writes.
pub(crate) trait Writer: Send + 'static {
    /// What is handed over.
    type Item: Send;
    /// What is told when an output has lost something.
    type Error: Send;

    /// The bytes that an item has to itself.
    fn bytes(item: &Self::Item) -> usize;

    fn handle(&mut self, item: Self::Item);

    /// There is nothing more at the moment.
    fn flush(&mut self);

    /// Trouble that was not told yet.
    fn take_error(&mut self) -> Option<Self::Error>;
}

/// The way to a writer; clones lead to the same one.
pub(crate) struct Behind<W: Writer> {
    shared: Arc<Shared<W>>,
    /// Lives as long as somebody has asked for it.
    thread: Option<Arc<Thread<W>>>,
}

impl<W: Writer> Clone for Behind<W> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), thread: self.thread.clone() }
    }
}

struct Shared<W: Writer> {
    max_bytes: usize,
    /// Bytes of items that were not written yet.
    bytes: AtomicUsize,
    queue: Mutex<Queue<W>>,
    /// There is something in the queue, or the thread is to end.
    work: Condvar,
    /// The thread has written what there was.
    done: Condvar,
    /// While there is no thread, whoever has an item writes.
    writer: Mutex<Option<W>>,
}

struct Queue<W: Writer> {
    items: Vec<W::Item>,
    /// A thread writes.
    behind: bool,
    /// It is writing.
    busy: bool,
    end: bool,
    error: Option<W::Error>,
}

/// Ends the thread when the last one that has it goes.
struct Thread<W: Writer>(Arc<Shared<W>>);

impl<W: Writer> Behind<W> {
    /// For so many bytes that wait.
    pub(crate) fn new(writer: W, max_bytes: usize) -> Self {
        let (items, error) = (Vec::new(), None);
        let shared = Shared {
            max_bytes,
            bytes: AtomicUsize::new(0),
            queue: Mutex::new(Queue { items, behind: false, busy: false, end: false, error }),
            work: Condvar::new(),
            done: Condvar::new(),
            writer: Mutex::new(Some(writer)),
        };
        Self { shared: Arc::new(shared), thread: None }
    }

    /// Has a thread write from here on, with the privileges of the calling one: for all that share the writer.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(crate) fn start(&mut self, name: &str) -> io::Result<()> {
        let mut queue = lock(&self.shared.queue);
        let Some(writer) = lock(&self.shared.writer).take() else {
            return Ok(());
        };
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name(name.to_owned()).spawn(move || shared.write_on(writer))?;
        queue.behind = true;
        drop(queue);
        self.thread = Some(Arc::new(Thread(Arc::clone(&self.shared))));
        Ok(())
    }

    /// Waits until what was handed over is written, but not for outputs that do nothing for five seconds.
    pub(crate) fn finish(&self) {
        if let Some(writer) = &mut *lock(&self.shared.writer) {
            writer.flush();
        } else {
            self.shared.wait();
        }
    }

    /// Trouble that was not told yet.
    pub(crate) fn take_error(&self) -> Option<W::Error> {
        let of_writer = lock(&self.shared.writer).as_mut().and_then(W::take_error);
        of_writer.or_else(|| lock(&self.shared.queue).error.take())
    }

    /// Takes an item with so many bytes if there is room for it: they are copied after that.
    pub(crate) fn push(&self, bytes: usize, item: impl FnOnce() -> W::Item) -> bool {
        let bytes = ITEM_BYTES + bytes;
        let before = self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before + bytes <= self.shared.max_bytes;
        if fits {
            self.shared.push(item());
        } else {
            self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Takes an item without bytes, for which there always is room: an end, of which everything has one.
    pub(crate) fn push_end(&self, item: W::Item) {
        self.shared.bytes.fetch_add(cost::<W>(&item), Ordering::Relaxed);
        self.shared.push(item);
    }

    /// Bytes that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Whether a thread writes.
    #[cfg(test)]
    pub(crate) fn is_behind(&self) -> bool {
        lock(&self.shared.queue).behind
    }

    /// The same one for somebody who does not keep the thread.
    #[cfg(test)]
    pub(crate) fn without_thread(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), thread: None }
    }
}

fn cost<W: Writer>(item: &W::Item) -> usize {
    ITEM_BYTES + W::bytes(item)
}

impl<W: Writer> Shared<W> {
    /// Queues an item whose room was reserved, or writes it where no thread does.
    fn push(&self, item: W::Item) {
        let mut queue = lock(&self.queue);
        if queue.behind {
            queue.items.push(item);
            if queue.items.len() == 1 {
                self.work.notify_one();
            }
            return;
        }
        // With the lock held: no thread takes the writer meanwhile.
        self.bytes.fetch_sub(cost::<W>(&item), Ordering::Relaxed);
        if let Some(writer) = &mut *lock(&self.writer) {
            writer.handle(item);
        }
    }

    /// The thread's life.
    fn write_on(&self, mut writer: W) {
        let mut items = Vec::new();
        loop {
            let mut queue = lock(&self.queue);
            queue.busy = false;
            self.done.notify_all();
            if queue.items.is_empty() && !queue.end {
                let is_idle = |queue: &mut Queue<W>| queue.items.is_empty() && !queue.end;
                let waited = self.work.wait_timeout_while(queue, IDLE, is_idle);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            std::mem::swap(&mut items, &mut queue.items);
            let is_last = items.is_empty() && queue.end;
            queue.busy = true;
            drop(queue);
            for item in items.drain(..) {
                let cost = cost::<W>(&item);
                writer.handle(item);
                self.bytes.fetch_sub(cost, Ordering::Relaxed);
            }
            writer.flush();
            if let Some(error) = writer.take_error() {
                lock(&self.queue).error = Some(error);
            }
            if is_last {
                break;
            }
        }
        let mut queue = lock(&self.queue);
        queue.behind = false;
        queue.busy = false;
        *lock(&self.writer) = Some(writer);
        self.done.notify_all();
    }

    /// Waits for the thread, but not for ever.
    fn wait(&self) {
        let is_working = |queue: &mut Queue<W>| {
            queue.behind && (queue.busy || queue.end || !queue.items.is_empty())
        };
        // What is not written by then is lost, and so is what would have told so.
        let _ = self.done.wait_timeout_while(lock(&self.queue), LAST_WAIT, is_working);
    }
}

impl<W: Writer> Drop for Thread<W> {
    fn drop(&mut self) {
        lock(&self.0.queue).end = true;
        self.0.work.notify_one();
        self.0.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
