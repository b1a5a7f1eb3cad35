//! A file of whole lines that survives a full disk, and one that hangs; or a consumer elsewhere, that goes and comes back.
//!
//! Refuses to lose what it took, as long as it fits into a bounded buffer, and to fail: an error
//! is kept to be told once, lines that are not written count as lost, those that the buffer had no
//! room for will stay so, and writing goes on when the disk has room again. With a thread that
//! writes ([`LineFile::write_behind`]), handing lines over does not wait for the disk.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::out::{Cut, Out, Target, Written, open_at_once};
use crate::rotation::Rotation;

/// Buffered bytes that make it write.
const WRITE_AT: usize = 64 << 10;
/// Most bytes that are kept while writing fails or takes its time, of a file.
const MAX_PENDING: usize = 16 << 20;
/// How long the disk is waited for at the end, in all.
const LAST_WAIT: Duration = Duration::from_secs(4);

/// Creates a directory for output, readable by its owner only, unless it exists.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// One writer of the file. Its lines are gathered without a lock, and written together.
pub(super) struct LineFile {
    gathered: Vec<u8>,
    lines: u64,
    shared: Arc<Shared>,
    thread: Option<Arc<Thread>>,
}

/// What all writers of a file share.
struct Shared {
    /// Nothing where it is no file that can be opened again.
    path: Box<Path>,
    /// Of the thread.
    name: &'static str,
    rotation: Rotation,
    max_pending: usize,
    /// [`LAST_WAIT`], less in tests.
    last_wait: Duration,
    state: Mutex<State>,
    /// The thread has something to do.
    work: Condvar,
    /// The thread has done something.
    done: Condvar,
}

struct State {
    /// The thread has it while there is one.
    out: Option<Out>,
    thread: Weak<Thread>,
    /// A thread writes, and not who has the lines.
    behind: bool,
    /// The thread does something.
    busy: bool,
    /// Lines that nobody writes yet.
    pending: Vec<u8>,
    pending_lines: u64,
    /// What is being written, or waits there for the disk to have room.
    in_hand: usize,
    in_hand_lines: u64,
    lost: u64,
    /// Lines that were written.
    written: u64,
    /// Of those that are lost: they are too long for who takes them.
    too_long: u64,
    /// Writing failed, and is tried again when somebody asks for it.
    failing: bool,
    again: bool,
    /// The first error that was not taken yet.
    error: Option<io::Error>,
    /// This trouble was told; the next one, after something could be written, is told again.
    told: bool,
    /// It is over, and that was not told yet.
    recovered: bool,
    reopen: bool,
    reopen_error: Option<io::Error>,
    end: bool,
    /// What is not written yet is lost, unless more lines come.
    finished: bool,
    /// How long was waited, in all.
    waited: Duration,
    /// That was long enough, and nothing was written since.
    gave_up: bool,
}

/// Ends the thread when the last writer that has it goes, and waits for that.
struct Thread(Arc<Shared>);

impl LineFile {
    /// Opens a file to append to; a new one is readable by its owner only.
    pub(super) fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        Self::open_with(path, rotation, LAST_WAIT)
    }

    /// Standard output as it is now, which is never opened anew.
    pub(super) fn standard_output() -> io::Result<Self> {
        Ok(Self::new(Shared::of(Path::new(""), Out::standard_output()?)))
    }

    /// Somebody else, for whom so many bytes may wait.
    pub(super) fn consumer(consumer: impl Target + Send + 'static, max_pending: usize) -> Self {
        let shared = Shared::of(Path::new(""), Out::consumer(consumer));
        Self::new(Shared { name: "eve-output", max_pending, ..shared })
    }

    fn open_with(path: &Path, rotation: Rotation, last_wait: Duration) -> io::Result<Self> {
        let shared = Shared::of(path, Out::open(path)?);
        Ok(Self::new(Shared { rotation, last_wait, ..shared }))
    }

    fn new(shared: Shared) -> Self {
        Self { gathered: Vec::new(), lines: 0, shared: Arc::new(shared), thread: None }
    }

    /// Another writer of the same file.
    pub(super) fn share(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        Self { gathered: Vec::new(), lines: 0, shared, thread: self.thread.clone() }
    }

    /// From here on, a thread writes: for all that share the file, as long as one of those lives
    /// that have asked for it. It has the privileges of the calling thread.
    pub(super) fn write_behind(&mut self) -> io::Result<()> {
        let mut state = self.shared.lock();
        let mut running = state.thread.upgrade();
        if running.is_none() && !state.behind {
            let shared = Arc::clone(&self.shared);
            // It takes the file once the lock is free.
            thread::Builder::new()
                .name(self.shared.name.to_owned())
                .spawn(move || shared.write_on())?;
            let thread = Arc::new(Thread(Arc::clone(&self.shared)));
            state.thread = Arc::downgrade(&thread);
            (state.behind, state.end) = (true, false);
            running = Some(thread);
        }
        drop(state);
        self.thread = running;
        Ok(())
    }

    /// Writes what is buffered, then goes on in a file that is opened anew under the same name:
    /// for all its writers. [`Self::take_reopen_error`] says whether it failed.
    pub(super) fn reopen(&mut self) {
        self.flush();
        if self.shared.path.as_os_str().is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        if state.behind {
            state.reopen = true;
            self.shared.work.notify_one();
            return;
        }
        drop(state);
        // Before anything is locked: a file system that hangs must not stop the other writers.
        let opened = open_at_once(&self.shared.path);
        let mut state = self.shared.lock();
        if let Some(mut out) = state.out.take() {
            let opened = opened.map(|file| out.go_on(file));
            state.out = Some(out);
            state.opened(opened);
        }
    }

    /// Takes a line, its line end included.
    pub(super) fn push(&mut self, line: &[u8]) {
        self.gathered.extend_from_slice(line);
        self.lines += 1;
        if self.gathered.len() >= WRITE_AT {
            self.hand_over(false);
        }
    }

    /// Writes what is buffered; after a failure this is also what tries again.
    pub(super) fn flush(&mut self) {
        self.hand_over(true);
    }

    /// As [`Self::flush`], and waits until it is written, but not for ever: a slow reader of a FIFO, or a disk that
    /// hangs, must not keep a program from ending. Others may have been waited for since `begun`.
    pub(super) fn finish(&mut self, begun: Instant) {
        self.flush();
        let spent = begun.elapsed();
        let mut state = self.shared.lock();
        state.waited = state.waited.max(spent);
        drop(state);
        self.shared.wait_until(|state| !state.busy && !state.has_work());
        self.shared.lock().finished = true;
    }

    fn hand_over(&mut self, again: bool) {
        let mut state = self.shared.lock();
        state.take(&self.gathered, self.lines, self.shared.max_pending);
        self.gathered.clear();
        self.lines = 0;
        if state.behind {
            state.again |= again && state.failing;
            if state.has_work() {
                self.shared.work.notify_one();
            }
        } else if let Some(mut out) = state.out.take() {
            if again || !state.failing {
                while state.fill(&mut out) {
                    let (cut, written) = self.shared.write(&mut out);
                    state.forget(&cut);
                    if let Some(error) = self.shared.rotate(&mut out) {
                        state.reopen_error = Some(error);
                    }
                    if !state.wrote(written) {
                        break;
                    }
                }
            }
            state.out = Some(out);
        }
    }

    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.shared.lock().error.take()
    }

    /// Whether a trouble that was told is over, once.
    pub(super) fn take_recovered(&mut self) -> bool {
        core::mem::take(&mut self.shared.lock().recovered)
    }

    /// Lines that were written, and those of them that were lost since they are too long.
    pub(super) fn counts(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.written, state.too_long)
    }

    /// Why the file could not be opened anew.
    pub(super) fn take_reopen_error(&mut self) -> Option<io::Error> {
        self.shared.lock().reopen_error.take()
    }

    /// Lines that are not in the file: what found no room in the buffer, and what waits there
    /// while writing fails, or was waited for in vain.
    pub(super) fn lost_lines(&self) -> u64 {
        let state = self.shared.lock();
        let waits = state.failing || state.gave_up || state.finished;
        state.lost + if waits { state.pending_lines + state.in_hand_lines } else { 0 }
    }
}

impl Drop for LineFile {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.lock().end = true;
        self.0.work.notify_one();
        self.0.wait_until(|_| false);
    }
}

impl State {
    fn new(out: Out) -> Self {
        Self {
            out: Some(out),
            thread: Weak::new(),
            behind: false,
            busy: false,
            pending: Vec::new(),
            pending_lines: 0,
            in_hand: 0,
            in_hand_lines: 0,
            lost: 0,
            written: 0,
            too_long: 0,
            failing: false,
            again: false,
            error: None,
            told: false,
            recovered: false,
            reopen: false,
            reopen_error: None,
            end: false,
            finished: false,
            waited: Duration::ZERO,
            gave_up: false,
        }
    }

    /// Whether the thread has something to do beside what it does.
    fn has_work(&self) -> bool {
        let waiting = !self.pending.is_empty() && !self.failing;
        self.end || self.reopen || self.again || waiting
    }

    /// Takes lines, or loses them.
    fn take(&mut self, lines: &[u8], count: u64, max_pending: usize) {
        self.finished &= count == 0;
        let waits = self.failing || self.behind;
        if waits && self.in_hand + self.pending.len() + lines.len() > max_pending {
            self.lost += count;
            self.tell(|| io::Error::other("it does not keep up, lines are lost"));
        } else {
            self.pending.extend_from_slice(lines);
            self.pending_lines += count;
        }
    }

    /// Gives what is to be written next; false when there is nothing.
    fn fill(&mut self, out: &mut Out) -> bool {
        if out.is_empty() {
            self.in_hand = self.pending.len();
            self.in_hand_lines = core::mem::take(&mut self.pending_lines);
            out.take(&mut self.pending);
        }
        !out.is_empty()
    }

    /// Takes what was written into account; false when writing failed.
    fn wrote(&mut self, written: io::Result<Written>) -> bool {
        match written {
            Ok(Written { bytes, lines, too_long }) => {
                self.in_hand -= bytes;
                self.in_hand_lines = self.in_hand_lines.saturating_sub(lines);
                self.written += lines.saturating_sub(too_long);
                self.lost += too_long;
                self.too_long += too_long;
                self.proceed();
                self.failing = false;
                if self.in_hand == 0 && self.pending.len() < WRITE_AT {
                    self.recovered |= core::mem::take(&mut self.told);
                }
                // Once in all: the next one is nothing new.
                if too_long > 0 && self.too_long == too_long {
                    let text = "it does not take lines as long as some are, and those are lost";
                    self.error.get_or_insert_with(|| io::Error::other(text));
                }
                true
            }
            Err(error) => {
                self.failing = true;
                self.tell(|| error);
                false
            }
        }
    }

    fn opened(&mut self, opened: io::Result<Cut>) {
        self.proceed();
        match opened {
            Ok(cut) => {
                self.forget(&cut);
                self.reopen_error = None;
            }
            Err(error) => self.reopen_error = Some(error),
        }
    }

    /// The rest of a line was cut off.
    fn forget(&mut self, cut: &Cut) {
        self.in_hand -= cut.0;
        if cut.0 > 0 {
            self.in_hand_lines = self.in_hand_lines.saturating_sub(1);
            self.lost += 1;
        }
    }

    /// The disk does something.
    fn proceed(&mut self) {
        self.gave_up = false;
    }

    fn tell(&mut self, error: impl FnOnce() -> io::Error) {
        if !core::mem::replace(&mut self.told, true) {
            self.error = Some(error());
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(out) = &mut self.out {
            out.cut_torn();
        }
    }
}

impl Shared {
    fn of(path: &Path, out: Out) -> Self {
        Self {
            path: path.into(),
            name: "eve-log",
            rotation: Rotation::default(),
            max_pending: MAX_PENDING,
            last_wait: LAST_WAIT,
            state: Mutex::new(State::new(out)),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a piece; into a new file where somebody has removed the old one.
    fn write(&self, out: &mut Out) -> (Cut, io::Result<Written>) {
        if !out.is_removed() {
            return (Cut(0), out.write_piece());
        }
        match open_at_once(&self.path) {
            Ok(file) => {
                let cut = out.go_on(file);
                let nothing = Written::default();
                // Not asked again before something is written: some file systems count no links.
                (cut, if out.is_empty() { Ok(nothing) } else { out.write_piece() })
            }
            Err(error) => (Cut(0), Err(error)),
        }
    }

    /// Begins another file where it is time for that; why it could not.
    fn rotate(&self, out: &mut Out) -> Option<io::Error> {
        out.rotate_if_due(&self.path, &self.rotation).err()
    }

    /// Waits for the thread, if there is one, but not for ever.
    fn wait_until(&self, is_done: impl Fn(&State) -> bool) {
        let mut state = self.lock();
        let begun = Instant::now();
        let left = self.last_wait.saturating_sub(state.waited);
        let waits = |state: &mut State| state.behind && !is_done(state);
        let waited = self.done.wait_timeout_while(state, left, waits);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        // Never more than that, whoever asks again.
        state.waited += begun.elapsed().min(left);
        if state.behind && !is_done(&state) {
            state.gave_up = true;
            if state.pending_lines + state.in_hand_lines > 0 {
                state.tell(|| io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// The thread's life: it writes without the lock.
    fn write_on(&self) {
        let mut state = self.lock();
        let Some(mut out) = state.out.take() else {
            return;
        };
        loop {
            state.busy = false;
            self.done.notify_all();
            let waited = self.work.wait_while(state, |state| !state.has_work());
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.busy = true;
            let (reopen, end) = (core::mem::take(&mut state.reopen), state.end);
            let mut going = core::mem::take(&mut state.again) || !state.failing || end;
            // More may come for ever: what asks for another file is for what came before.
            let mut asked = false;
            while going && !(asked && out.is_empty()) && state.fill(&mut out) {
                drop(state);
                let (cut, written) = self.write(&mut out);
                let rotated = self.rotate(&mut out);
                state = self.lock();
                state.forget(&cut);
                if let Some(error) = rotated {
                    state.reopen_error = Some(error);
                }
                going = state.wrote(written);
                asked = reopen || state.reopen;
                self.done.notify_all();
            }
            if reopen {
                drop(state);
                let opened = open_at_once(&self.path).map(|file| out.go_on(file));
                state = self.lock();
                state.opened(opened);
            } else if end && !state.reopen {
                break;
            }
        }
        drop(state);
        let cut = out.cut_torn();
        state = self.lock();
        state.forget(&cut);
        state.out = Some(out);
        (state.behind, state.busy) = (false, false);
        self.done.notify_all();
    }
}

#[cfg(test)]
mod tests;
