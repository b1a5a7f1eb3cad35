//! Follows a key log on a thread of its own: a file that grows, is truncated or replaced, or a
//! FIFO. Hands on whole lines.
//!
//! Reads no faster than its lines are taken: the rest stays in the file. Refuses lines that are
//! longer than any that is kept, and to be silent about a file that cannot be read.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, OFlags, access};
use zeroize::Zeroizing;

use mmtls_keyshare::keylog::MAX_LINE_BYTES;

/// How long the end of a file is let alone: packets of a session wait for its line.
const PAUSE: Duration = Duration::from_millis(2);
/// The same after a second without anything new.
const LONG_PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: u32 = 500;
/// [`LONG_PAUSE`], as `poll` takes it.
const FIFO_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: LONG_PAUSE.subsec_nanos() as i64 };

/// Reads of what there is already, at the end: more than a FIFO holds, and not for as long as its writers write.
const LAST_READS: u32 = 64;

/// Where lines go.
pub trait LineSink: Send + 'static {
    /// Whether more lines are taken now; where not, the follower asks again soon.
    fn has_room(&self) -> bool;

    /// Looks at a file before it is opened, and once more before anything of it is read: what its name led to may be another one
    /// by then.
    ///
    /// # Errors
    /// Why it is not read, as if it could not be opened.
    fn admit(&mut self, _file: &Metadata) -> io::Result<()> {
        Ok(())
    }

    /// Takes whole lines.
    fn lines(&mut self, lines: Zeroizing<Vec<u8>>);

    /// The file cannot be read, though it is there: reported once until that changes. It is tried
    /// again in any case.
    fn failed(&mut self, error: io::Error);
}

/// A key log that is followed until this is dropped; what was written before is read.
pub struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts to follow; `sink` takes what was read. The file may come into being later.
    ///
    /// # Errors
    /// When the file is there and cannot be opened, or `sink` does not want it, or the thread cannot be started.
    pub fn start(path: PathBuf, sink: impl LineSink) -> io::Result<Self> {
        let mut sink = sink;
        // Opened once: a FIFO that was closed in between would lose what was written to it.
        let file = existing(open_for(&path, &mut sink))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("keylog".to_owned())
            .spawn(move || run(&path, file, &stopping, &mut sink))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread never waits for longer than a pause.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether a key log can be followed by this process, as far as that can be known without opening a
/// FIFO: its writer would take that for a reader.
///
/// # Errors
/// When it is there and cannot be opened.
pub fn check(path: &Path) -> io::Result<()> {
    let metadata = existing(path.metadata())?;
    if metadata.is_some_and(|metadata| metadata.file_type().is_fifo()) {
        return Ok(access(path, Access::READ_OK | Access::WRITE_OK)?);
    }
    existing(open(path)).map(drop)
}

/// A file that may come into being later is no error.
fn existing<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

fn run(path: &Path, first: Option<File>, stop: &AtomicBool, sink: &mut dyn LineSink) {
    let mut opened = first;
    let mut reported = None;
    while !stop.load(Ordering::Relaxed) {
        let file =
            opened.take().map_or_else(|| existing(open_for(path, sink)), |file| Ok(Some(file)));
        let outcome = match file {
            Ok(Some(file)) => follow(path, file, stop, sink, &mut reported),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = outcome
            && reported != Some(error.kind())
        {
            reported = Some(error.kind());
            sink.failed(error);
        }
        thread::sleep(LONG_PAUSE);
    }
}

/// Reads until the file is replaced or gone, or the follower stops. `reported` is the last failure,
/// which is over once something can be read.
fn follow(
    path: &Path,
    mut file: File,
    stop: &AtomicBool,
    sink: &mut dyn LineSink,
    reported: &mut Option<io::ErrorKind>,
) -> io::Result<()> {
    let mut idle = 0;
    let mut kept = Zeroizing::new(Vec::with_capacity(2 * MAX_LINE_BYTES));
    let mut buffer = Zeroizing::new(vec![0; 64 << 10]);
    let mut last_reads = 0..LAST_READS;
    loop {
        let stopping = stop.load(Ordering::Relaxed);
        if stopping && (last_reads.next().is_none() || !sink.has_room()) {
            return Ok(());
        }
        if !sink.has_room() {
            thread::sleep(PAUSE);
            continue;
        }
        let (count, at_end) = match file.read(&mut buffer) {
            Ok(count) => (count, count == 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // An empty FIFO: it has no end, and tells when there is something.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if stopping || !wait(&file) && is_replaced(path, &file).unwrap_or(true) {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        *reported = None;
        if at_end {
            match changed(path, &mut file) {
                Ok(Change::None) => {}
                Ok(Change::Truncated) => kept.clear(),
                // What is wrong with the name is found when it is opened.
                Ok(Change::Replaced) | Err(_) => return Ok(()),
            }
        }
        if count == 0 && stopping {
            return Ok(());
        }
        if count == 0 {
            idle = (idle + 1).min(PATIENCE);
            thread::sleep(if idle < PATIENCE { PAUSE } else { LONG_PAUSE });
            continue;
        }
        idle = 0;
        let Some(end) = buffer[..count].iter().rposition(|&byte| byte == b'\n') else {
            keep(&mut kept, &buffer[..count]);
            continue;
        };
        let mut whole = Zeroizing::new(Vec::with_capacity(kept.len() + end + 1));
        whole.extend_from_slice(&kept);
        whole.extend_from_slice(&buffer[..=end]);
        kept.clear();
        keep(&mut kept, &buffer[end + 1..count]);
        sink.lines(whole);
    }
}

/// Waits until there is something in a FIFO, but for no longer than a pause: the follower may have to stop. Whether
/// there is.
fn wait(fifo: &File) -> bool {
    let mut readable = [PollFd::new(fifo, PollFlags::IN)];
    match poll(&mut readable, Some(&FIFO_PAUSE)) {
        Ok(count) => count > 0,
        Err(_) => {
            thread::sleep(PAUSE);
            false
        }
    }
}

/// Keeps the beginning of a line; one that is too long is malformed whatever is in it.
fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = (MAX_LINE_BYTES + 1).saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn open_for(path: &Path, sink: &mut dyn LineSink) -> io::Result<File> {
    // A writer of a FIFO goes on as soon as that is opened.
    sink.admit(&path.metadata()?)?;
    let file = open(path)?;
    sink.admit(&file.metadata()?)?;
    Ok(file)
}

fn open(path: &Path) -> io::Result<File> {
    let kind = path.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let fifo = kind.is_fifo();
    // A FIFO that is open for writing too has no end while writers come and go.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).write(fifo).custom_flags(flags).open(path)
}

enum Change {
    None,
    Truncated,
    Replaced,
}

/// What happened to a file whose end was reached.
fn changed(path: &Path, file: &mut File) -> io::Result<Change> {
    if is_replaced(path, file)? {
        return Ok(Change::Replaced);
    }
    if file.metadata()?.len() < file.stream_position()? {
        file.seek(SeekFrom::Start(0))?;
        return Ok(Change::Truncated);
    }
    Ok(Change::None)
}

/// Whether another file has this name now.
pub fn is_replaced(path: &Path, file: &File) -> io::Result<bool> {
    let (ours, named) = (file.metadata()?, path.metadata()?);
    Ok((ours.dev(), ours.ino()) != (named.dev(), named.ino()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Hands lines on, and failures as lines.
    struct Sink {
        sender: Sender<Vec<u8>>,
        full: Arc<AtomicBool>,
    }

    impl LineSink for Sink {
        fn has_room(&self) -> bool {
            !self.full.load(Ordering::Relaxed)
        }

        fn lines(&mut self, lines: Zeroizing<Vec<u8>>) {
            self.sender.send(lines.to_vec()).unwrap();
        }

        fn failed(&mut self, error: io::Error) {
            self.sender.send(format!("{:?}", error.kind()).into_bytes()).unwrap();
        }
    }

    fn follow(path: &Path) -> (Receiver<Vec<u8>>, Follower) {
        let (sender, receiver) = channel();
        let sink = Sink { sender, full: Arc::default() };
        (receiver, Follower::start(path.to_owned(), sink).unwrap())
    }

    fn next(receiver: &Receiver<Vec<u8>>) -> String {
        let lines = receiver.recv_timeout(Duration::from_secs(20)).expect("lines");
        String::from_utf8(lines).unwrap()
    }

    #[test]
    fn accepts_a_file_that_grows_is_truncated_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.log");
        let (lines, _follower) = follow(&path);
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(next(&lines), "one\n");
        file.write_all(b"o\n").unwrap();
        assert_eq!(next(&lines), "two\n");
        file.write_all(b"cut off").unwrap();
        thread::sleep(Duration::from_millis(100));
        file.set_len(0).unwrap();
        thread::sleep(Duration::from_millis(100));
        file.rewind().unwrap();
        file.write_all(b"three\n").unwrap();
        assert_eq!(next(&lines), "three\n");
        std::fs::rename(&path, dir.path().join("keys.log.1")).unwrap();
        std::fs::write(&path, b"four\n").unwrap();
        assert_eq!(next(&lines), "four\n");
    }

    #[test]
    fn accepts_a_fifo_whose_writers_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (lines, follower) = follow(&path);
        for text in ["one\n", "two\n"] {
            let mut fifo = OpenOptions::new().write(true).open(&path).unwrap();
            fifo.write_all(text.as_bytes()).unwrap();
            drop(fifo);
            assert_eq!(next(&lines), text);
        }
        // Somebody puts another one in its place.
        std::fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut fifo = OpenOptions::new().write(true).open(&path).unwrap();
        fifo.write_all(b"three\n").unwrap();
        assert_eq!(next(&lines), "three\n");
        // The thread waits for a writer, and ends all the same.
        drop(follower);
        assert!(lines.recv().is_err());
    }

    #[test]
    fn accepts_a_reader_that_is_slower_than_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.log");
        std::fs::write(&path, b"line\n".repeat(50_000)).unwrap();
        let (sender, lines) = channel();
        let full = Arc::new(AtomicBool::new(true));
        let sink = Sink { sender, full: Arc::clone(&full) };
        let follower = Follower::start(path, sink).unwrap();
        assert!(lines.recv_timeout(Duration::from_millis(100)).is_err(), "it waits");
        full.store(false, Ordering::Relaxed);
        let mut taken = 0;
        while taken < 250_000 {
            taken += next(&lines).len();
        }
        assert_eq!(taken, 250_000, "nothing is lost");
        // It ends while there is no room, too.
        full.store(true, Ordering::Relaxed);
        drop(follower);
        assert!(lines.recv().is_err());
    }

    #[test]
    fn refuses_what_cannot_be_read_and_says_so_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.log");
        std::fs::create_dir_all(&path).unwrap();
        assert!(check(&path).is_err());
        let (sender, _lines) = channel();
        let sink = Sink { sender, full: Arc::default() };
        assert!(Follower::start(path.clone(), sink).is_err(), "a directory");
        // The same when it comes later.
        std::fs::remove_dir(&path).unwrap();
        check(&path).unwrap();
        let (lines, _follower) = follow(&path);
        std::fs::create_dir(&path).unwrap();
        assert_eq!(next(&lines), "IsADirectory");
        assert!(lines.recv_timeout(Duration::from_millis(100)).is_err(), "reported once");
        std::fs::remove_dir(&path).unwrap();
        std::fs::write(&path, b"one\n").unwrap();
        assert_eq!(next(&lines), "one\n");
    }
}
