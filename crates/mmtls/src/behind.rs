//! A queue of bounded bytes, and the thread that writes what is in it, for those who must not wait for a disk.
//!
//! Refuses what it has no room for: whoever hands it over decides what is lost with it. Without a thread, whoever has
//! something writes it, and waits.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What an item costs of the queue beside its bytes.
pub(crate) const ITEM_BYTES: usize = 256;
/// How often the thread looks after its outputs while nothing comes.
const IDLE: Duration = Duration::from_millis(500);
/// How long the outputs are waited for at the end, in all.
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
    /// [`LAST_WAIT`], less in tests.
    last_wait: Duration,
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
    /// How long was waited, in all.
    waited: Duration,
}

/// Ends the thread when the last one that has it goes.
struct Thread<W: Writer>(Arc<Shared<W>>);

impl<W: Writer> Behind<W> {
    /// For so many bytes that wait.
    pub(crate) fn new(writer: W, max_bytes: usize) -> Self {
        Self::with_wait(writer, max_bytes, LAST_WAIT)
    }

    fn with_wait(writer: W, max_bytes: usize, last_wait: Duration) -> Self {
        let queue = Queue {
            items: Vec::new(),
            behind: false,
            busy: false,
            end: false,
            error: None,
            waited: Duration::ZERO,
        };
        let shared = Shared {
            max_bytes,
            last_wait,
            bytes: AtomicUsize::new(0),
            queue: Mutex::new(queue),
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

    /// Waits until what was handed over is written, but not for ever: a disk that hangs must not keep a program from ending.
    /// Others may have been waited for since `begun`, in whose time this one could have written.
    pub(crate) fn finish(&self, begun: Instant) {
        if let Some(writer) = &mut *lock(&self.shared.writer) {
            return writer.flush();
        }
        let mut queue = lock(&self.shared.queue);
        queue.waited = queue.waited.max(begun.elapsed());
        drop(queue);
        self.shared.wait();
    }

    /// Has trouble told that the writer does not know of.
    pub(crate) fn tell(&self, error: W::Error) {
        lock(&self.shared.queue).error.get_or_insert(error);
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

    /// Takes an item without bytes, for which there always is room. Only for ends, two at most, of what [`Self::push`] has taken
    /// the beginning of: with a disk that hangs there are no more of them than there were sessions, and beginnings had room.
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
        let queue = lock(&self.queue);
        let (begun, left) = (Instant::now(), self.last_wait.saturating_sub(queue.waited));
        // What is not written by then is lost, and so is what would have told so.
        let waited = self.done.wait_timeout_while(queue, left, is_working);
        // Never more than that, whoever asks again.
        waited.unwrap_or_else(PoisonError::into_inner).0.waited += begun.elapsed().min(left);
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    /// Hangs until whoever could wake it is gone.
    struct Hung(Receiver<()>);

    impl Writer for Hung {
        type Item = ();
        type Error = ();

        fn bytes((): &()) -> usize {
            0
        }

        fn handle(&mut self, (): ()) {
            let _ = self.0.recv();
        }

        fn flush(&mut self) {}

        fn take_error(&mut self) -> Option<()> {
            None
        }
    }

    /// Every worker asks several times, and ends are ordered after that.
    #[test]
    fn refuses_to_wait_for_a_disk_that_hangs_longer_in_all_than_it_was_told() {
        let wait = Duration::from_secs(2);
        let hung = [(); 2].map(|()| {
            let (wake, hangs) = mpsc::channel();
            let mut behind = Behind::with_wait(Hung(hangs), 1 << 20, wait);
            behind.start("hung").unwrap();
            assert!(behind.push(0, || ()));
            (behind, wake)
        });
        let begun = Instant::now();
        for _ in 0..5 {
            let begun = Instant::now();
            hung.iter().for_each(|(behind, _)| behind.finish(begun));
        }
        assert!(begun.elapsed() >= wait);
        let (behinds, _wakes): (Vec<_>, Vec<_>) = hung.into_iter().unzip();
        drop(behinds);
        assert!(begun.elapsed() < 4 * wait, "{:?}", begun.elapsed());
    }

    #[test]
    fn accepts_trouble_that_the_writer_does_not_know_of() {
        let behind = Behind::new(Hung(mpsc::channel().1), 0);
        assert!(!behind.push(0, || ()));
        behind.tell(());
        assert_eq!((behind.take_error(), behind.take_error()), (Some(()), None));
    }
}
