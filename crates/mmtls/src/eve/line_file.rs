//! A file of whole lines that survives a full disk, and one that hangs.
//!
//! Refuses to lose what it took, as long as it fits into a bounded buffer, and to fail: an error
//! is kept to be told once, lines that are not written count as lost, those that the buffer had no
//! room for will stay so, and writing goes on when the disk has room again. With a thread of its own
//! ([`LineFile::write_behind`]) it also refuses to let anybody wait for the disk.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Buffered bytes that make it write.
const WRITE_AT: usize = 64 << 10;
/// Most bytes that are kept while writing fails or takes its time.
const MAX_PENDING: usize = 16 << 20;
/// What is waited at the end for a disk that hangs.
const LAST_WAIT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Creates a directory for output, readable by its owner only, unless it exists.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// One writer of the file. Its lines are gathered without a lock, and written together.
pub(super) struct LineFile {
    gathered: Vec<u8>,
    lines: u64,
    shared: Arc<Shared>,
    /// Ends the thread with the last writer.
    thread: Option<Arc<Thread>>,
}

/// What all writers of a file share.
struct Shared {
    path: Box<Path>,
    state: Mutex<State>,
    /// The thread has something to do.
    work: Condvar,
    /// The thread has done something.
    done: Condvar,
}

struct State {
    /// Not there while the thread writes.
    file: Option<File>,
    buffer: Buffer,
    /// Lines that the thread is writing.
    in_hand: u64,
    /// The thread that writes, where there is one.
    thread: Weak<Thread>,
    /// After a failure, try again.
    again: bool,
    reopen: bool,
    reopen_error: Option<io::Error>,
    end: bool,
    ended: bool,
}

/// The end of the thread.
struct Thread(Arc<Shared>);

impl LineFile {
    /// Opens a file to append to; a new one is readable by its owner only.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let state = State {
            file: Some(options().open(path)?),
            buffer: Buffer::default(),
            in_hand: 0,
            thread: Weak::new(),
            again: false,
            reopen: false,
            reopen_error: None,
            end: false,
            ended: false,
        };
        let (work, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { path: path.into(), state: Mutex::new(state), work, done });
        Ok(Self { gathered: Vec::new(), lines: 0, shared, thread: None })
    }

    /// Another writer of the same file.
    pub(super) fn share(&self) -> Self {
        let shared = Arc::clone(&self.shared);
        Self { gathered: Vec::new(), lines: 0, shared, thread: self.thread.clone() }
    }

    /// From here on, a thread writes: handing lines over does not wait for the disk. It has the
    /// privileges of the calling thread. Others that share the file do so too.
    pub(super) fn write_behind(&mut self) -> io::Result<()> {
        self.thread = self.shared.lock().thread.upgrade();
        if self.thread.is_some() {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        thread::Builder::new().name("eve-log".to_owned()).spawn(move || shared.write_on())?;
        let thread = Arc::new(Thread(Arc::clone(&self.shared)));
        self.shared.lock().thread = Arc::downgrade(&thread);
        self.thread = Some(thread);
        Ok(())
    }

    /// Writes what is buffered, then goes on in a file that is opened anew under the same name:
    /// for all its writers. [`Self::take_reopen_error`] says whether it failed.
    pub(super) fn reopen(&mut self) {
        self.flush();
        let mut state = self.shared.lock();
        state.reopen = true;
        if state.is_behind() {
            self.shared.work.notify_one();
        } else {
            let State { file, buffer, .. } = &mut *state;
            let failed =
                file.as_mut().map_or(Ok(()), |file| open_anew(&self.shared.path, file, buffer));
            state.reopen = false;
            state.reopen_error = failed.err();
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

    /// As [`Self::flush`], and waits until it is written, but not for ever.
    pub(super) fn finish(&mut self) {
        self.flush();
        if self.thread.is_some() {
            self.shared.wait_until(|state| state.file.is_some() && !state.has_work());
        }
    }

    fn hand_over(&mut self, again: bool) {
        let mut state = self.shared.lock();
        let behind = state.is_behind();
        let State { file, buffer, .. } = &mut *state;
        buffer.push(&self.gathered, self.lines);
        if behind {
            state.again |= again;
            if state.has_work() {
                self.shared.work.notify_one();
            }
        } else if let Some(file) = file
            && (again || !buffer.failing)
        {
            buffer.drain(file);
        }
        drop(state);
        self.gathered.clear();
        self.lines = 0;
    }

    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.shared.lock().buffer.error.take()
    }

    /// Why the file could not be opened anew.
    pub(super) fn take_reopen_error(&mut self) -> Option<io::Error> {
        self.shared.lock().reopen_error.take()
    }

    /// Lines that are not in the file: what found no room in the buffer, and what waits there
    /// while writing fails.
    pub(super) fn lost_lines(&self) -> u64 {
        let state = self.shared.lock();
        let failing = state.buffer.failing;
        state.buffer.lost + if failing { state.waiting() } else { 0 }
    }
}

impl State {
    /// Whether a thread writes, and not who has the lines.
    fn is_behind(&self) -> bool {
        self.thread.strong_count() > 0
    }

    fn has_work(&self) -> bool {
        let waiting = !self.buffer.pending.is_empty();
        self.end || self.reopen || self.again || (waiting && !self.buffer.failing)
    }

    /// Lines that wait to be written.
    fn waiting(&self) -> u64 {
        count_lines(&self.buffer.pending) + self.in_hand
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the thread, if there is one. Whoever hangs may be lost.
    fn wait_until(&self, is_done: impl Fn(&State) -> bool) {
        let wait = |state: &mut State| !state.ended && !is_done(state);
        let waited = self.done.wait_timeout_while(self.lock(), LAST_WAIT, wait);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            state.buffer.failing = true;
            state.buffer.error.get_or_insert_with(|| io::ErrorKind::TimedOut.into());
        }
    }

    /// The thread's life: takes what has come together, and writes it without the lock.
    fn write_on(&self) {
        let mut state = self.lock();
        while !state.ended {
            state = self
                .work
                .wait_while(state, |it| !it.has_work())
                .unwrap_or_else(PoisonError::into_inner);
            let Some(mut file) = state.file.take() else {
                break;
            };
            let mut buffer = core::mem::take(&mut state.buffer);
            state.in_hand = count_lines(&buffer.pending);
            state.buffer.failing = buffer.failing;
            let try_it = core::mem::take(&mut state.again) || !buffer.failing;
            let (reopen, end) = (core::mem::take(&mut state.reopen), state.end);
            drop(state);

            if try_it {
                buffer.drain(&mut file);
            }
            let opened =
                if reopen { open_anew(&self.path, &mut file, &mut buffer) } else { Ok(()) };
            if end {
                buffer.cut_torn(&file);
            }

            state = self.lock();
            let came = core::mem::take(&mut state.buffer);
            buffer.follow(came);
            state.buffer = buffer;
            state.in_hand = 0;
            state.file = Some(file);
            state.reopen_error = opened.err().or(state.reopen_error.take());
            state.ended = end;
            self.done.notify_all();
        }
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

impl Drop for State {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            self.buffer.cut_torn(file);
        }
    }
}

/// Goes on in a new file under the same name.
fn open_anew(path: &Path, file: &mut File, buffer: &mut Buffer) -> io::Result<()> {
    let new = open_at_once(path)?;
    buffer.cut_torn(file);
    *file = new;
    Ok(())
}

fn count_lines(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options
}

/// Opens the file without waiting for the reader of a FIFO, which is an error then.
fn open_at_once(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options().custom_flags(flags).open(path)?;
    // A slow reader is waited for, as before.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[derive(Default)]
struct Buffer {
    pending: Vec<u8>,
    failing: bool,
    /// Bytes written since the last line end.
    torn: u64,
    /// The first error that was not taken yet.
    error: Option<io::Error>,
    /// This failure was told; the next one, after something could be written, is told again.
    told: bool,
    lost: u64,
}

impl Buffer {
    fn push(&mut self, lines: &[u8], count: u64) {
        if self.pending.len() + lines.len() > MAX_PENDING {
            self.lost += count;
        } else {
            self.pending.extend_from_slice(lines);
        }
    }

    /// Takes what came while this was written.
    fn follow(&mut self, came: Self) {
        self.lost += came.lost;
        if self.pending.is_empty() {
            self.pending = came.pending;
        } else {
            self.push(&came.pending, count_lines(&came.pending));
        }
        self.error = self.error.take().or(came.error);
    }

    fn drain(&mut self, out: &mut impl Write) {
        let mut written = 0;
        while written < self.pending.len() {
            match out.write(&self.pending[written..]) {
                Ok(0) => return self.failed(written, io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.failed(written, error),
            }
        }
        self.pending.clear();
        self.pending.shrink_to(4 * WRITE_AT);
        self.torn = 0;
        self.failing = false;
        self.told = false;
    }

    /// Cuts off a torn last line, which would break readers of the whole file. Needs no space.
    fn cut_torn(&mut self, file: &File) {
        if self.torn > 0
            && let Ok(metadata) = file.metadata()
            && metadata.is_file()
        {
            let _ = file.set_len(metadata.len().saturating_sub(self.torn));
            self.torn = 0;
            // The rest of that line would be the first one elsewhere.
            if let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
                self.pending.drain(..=end);
                self.lost += 1;
            }
        }
    }

    fn failed(&mut self, written: usize, error: io::Error) {
        let gone = &self.pending[..written];
        self.torn = match gone.iter().rposition(|&byte| byte == b'\n') {
            Some(at) => (written - at - 1) as u64,
            None => self.torn + written as u64,
        };
        self.pending.drain(..written);
        self.failing = true;
        if !self.told {
            self.told = true;
            self.error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Has room for so many bytes, then fails.
    struct Disk {
        room: usize,
        data: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let count = bytes.len().min(self.room).min(7);
            self.room -= count;
            self.data.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn accepts_a_full_disk_that_gets_room_again() {
        let mut disk = Disk { room: 12, data: Vec::new() };
        let mut buffer = Buffer::default();
        for line in ["12345678\n", "abcdefgh\n"] {
            buffer.push(line.as_bytes(), 1);
        }
        buffer.drain(&mut disk);
        assert!(buffer.failing);
        assert_eq!(buffer.torn, 3);
        assert_eq!(buffer.error.take().map(|e| e.kind()), Some(io::ErrorKind::StorageFull));
        disk.room = 1;
        buffer.push(b"later\n", 1);
        buffer.drain(&mut disk);
        assert_eq!(buffer.torn, 4);
        assert!(buffer.error.is_none(), "told once");
        disk.room = 100;
        buffer.drain(&mut disk);
        assert_eq!(disk.data, b"12345678\nabcdefgh\nlater\n");
        assert_eq!((buffer.failing, buffer.torn, buffer.lost), (false, 0, 0));
        // Full once more: that is another failure.
        disk.room = 0;
        buffer.push(b"again\n", 1);
        buffer.drain(&mut disk);
        assert!(buffer.error.is_some());
    }

    #[test]
    fn refuses_to_grow_without_bound() {
        let mut disk = Disk { room: 0, data: Vec::new() };
        let mut buffer = Buffer::default();
        let line = [b'x'; 1 << 16];
        for _ in 0..512 {
            buffer.push(&line, 1);
            buffer.drain(&mut disk);
        }
        assert_eq!(buffer.pending.len(), MAX_PENDING);
        assert_eq!(buffer.lost, 256);
    }

    #[test]
    fn accepts_a_file_that_was_renamed() {
        let dir = std::env::temp_dir().join(format!("mmtls-reopen-{}", std::process::id()));
        create_private_dir(&dir).unwrap();
        let (path, rotated) = (dir.join("a"), dir.join("b"));
        let mut file = LineFile::open(&path).unwrap();
        file.push(b"1\n");
        std::fs::rename(&path, &rotated).unwrap();
        file.reopen();
        assert!(file.take_reopen_error().is_none());
        file.push(b"2\n");
        file.flush();
        assert_eq!(std::fs::read(&rotated).unwrap(), b"1\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"2\n");
        std::fs::remove_dir_all(&dir).unwrap();
        file.reopen();
        assert!(file.take_reopen_error().is_some());
        file.push(b"3\n");
        file.flush();
        assert!(file.take_error().is_none(), "the old file is still there");
    }

    #[test]
    fn refuses_nothing_when_the_device_is_full() {
        let mut file = LineFile::open(Path::new("/dev/full")).unwrap();
        file.push(b"{}\n");
        file.flush();
        assert!(file.take_error().is_some());
        file.push(b"{}\n");
        file.flush();
        assert!(file.take_error().is_none());
        assert_eq!(file.lost_lines(), 2, "they are nowhere when the program ends now");
    }

    #[test]
    fn refuses_to_wait_for_the_reader_of_a_fifo_when_it_opens_again() {
        let dir = std::env::temp_dir().join(format!("mmtls-reopen-fifo-{}", std::process::id()));
        create_private_dir(&dir).unwrap();
        let path = dir.join("eve.json");
        let mut file = LineFile::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        file.reopen();
        let error = file.take_reopen_error().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        // With a reader it is a file like any other.
        let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.reopen();
        assert!(file.take_reopen_error().is_none());
        let flags = fcntl_getfl(file.shared.lock().file.as_ref().unwrap()).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        drop(both);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// A pipe as a log, and its reading end. Nobody reads: it hangs once it is full.
    fn hanging(name: &str) -> (std::path::PathBuf, LineFile, File) {
        let dir = std::env::temp_dir().join(format!("mmtls-{name}-{}", std::process::id()));
        create_private_dir(&dir).unwrap();
        let path = dir.join("eve.json");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut file = LineFile::open(&path).unwrap();
        file.write_behind().unwrap();
        (dir, file, reader)
    }

    /// Reads so many lines.
    fn read_lines(reader: File, count: u64) -> (File, u64) {
        let (mut reader, mut read) = (io::BufReader::new(reader), 0);
        let mut line = Vec::new();
        while read < count {
            line.clear();
            io::BufRead::read_until(&mut reader, b'\n', &mut line).unwrap();
            assert_eq!(line.len(), 1024);
            read += 1;
        }
        assert!(reader.buffer().is_empty());
        (reader.into_inner(), read)
    }

    const LINE: [u8; 1024] = {
        let mut line = [b'x'; 1024];
        line[1023] = b'\n';
        line
    };

    #[test]
    fn refuses_to_let_anybody_wait_for_a_disk_that_hangs() {
        let (dir, mut file, reader) = hanging("behind");
        let mut other = file.share();
        other.write_behind().unwrap();
        let begun = std::time::Instant::now();
        for _ in 0..1000 {
            file.push(&LINE);
            other.push(&LINE);
        }
        file.flush();
        other.flush();
        assert!(begun.elapsed() < LAST_WAIT / 2, "{:?}", begun.elapsed());
        assert_eq!((file.lost_lines(), file.take_error().is_none()), (0, true));
        let reader = thread::spawn(move || read_lines(reader, 2000));
        file.finish();
        let (reader, _) = reader.join().unwrap();
        assert_eq!(file.lost_lines(), 0);
        // Whoever is left goes on, without the thread too.
        drop(file);
        other.push(&LINE);
        other.finish();
        let (reader, _) = read_lines(reader, 1);
        drop((other, reader));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn names_what_a_disk_that_hangs_has_no_room_for() {
        let (dir, mut file, reader) = hanging("overflow");
        // The pipe, the thread's hand and the buffer are full.
        for _ in 0..40_000 {
            file.push(&LINE);
        }
        file.flush();
        let lost = file.lost_lines();
        assert!((1..40_000).contains(&lost), "{lost}");
        // The end does not wait for ever, and counts what it leaves behind.
        file.finish();
        assert_eq!(file.take_error().map(|it| it.kind()), Some(io::ErrorKind::TimedOut));
        let left = file.lost_lines();
        assert!(left > lost && left <= 40_000, "{left}");
        // When it works again, only what found no room is lost.
        let reader = thread::spawn(move || read_lines(reader, 40_000 - lost));
        while file.lost_lines() != lost {
            file.finish();
        }
        let reader = reader.join().unwrap();
        drop((file, reader));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn accepts_a_rename_while_a_thread_writes() {
        let dir = std::env::temp_dir().join(format!("mmtls-behind-reopen-{}", std::process::id()));
        create_private_dir(&dir).unwrap();
        let (path, rotated) = (dir.join("a"), dir.join("b"));
        let mut file = LineFile::open(&path).unwrap();
        file.write_behind().unwrap();
        file.push(b"1\n");
        std::fs::rename(&path, &rotated).unwrap();
        file.reopen();
        file.finish();
        file.push(b"2\n");
        file.finish();
        assert_eq!(std::fs::read(&rotated).unwrap(), b"1\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"2\n");
        std::fs::remove_dir_all(&dir).unwrap();
        file.reopen();
        file.finish();
        assert!(file.take_reopen_error().is_some());
        file.push(b"3\n");
        drop(file);
    }
}
