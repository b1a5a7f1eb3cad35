//! Follows a key log on a thread of its own: a file that grows, is truncated or replaced, or a
//! FIFO. Hands on whole lines.
//!
//! Refuses to wait for a slow reader of its lines (they are dropped, and counted there), and lines
//! that are longer than any that is kept.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::OFlags;
use zeroize::Zeroizing;

use super::MAX_LINE_LEN;

/// How long the end of a file is let alone: packets of a session wait for its line.
const PAUSE: Duration = Duration::from_millis(2);
/// The same after a second without anything new.
const LONG_PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: u32 = 500;

/// A key log that is followed until this is dropped.
pub struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts to follow; `lines` takes what was read. The file may come into being later.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        path: PathBuf,
        lines: impl FnMut(Zeroizing<Vec<u8>>) + Send + 'static,
    ) -> io::Result<Self> {
        let mut lines = lines;
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("keylog".to_owned())
            .spawn(move || run(&path, &told, &mut lines))?;
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

fn run(path: &Path, stop: &AtomicBool, lines: &mut dyn FnMut(Zeroizing<Vec<u8>>)) {
    let mut idle = 0;
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut file) = open(path) else {
            thread::sleep(LONG_PAUSE);
            continue;
        };
        let mut kept = Zeroizing::new(Vec::with_capacity(2 * MAX_LINE_LEN));
        let mut buffer = Zeroizing::new(vec![0; 64 << 10]);
        // Ends when the file was replaced or cannot be read any more.
        while !stop.load(Ordering::Relaxed) {
            let (count, at_end) = match file.read(&mut buffer) {
                Ok(count) => (count, count == 0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // An empty FIFO: it has no end, and no place in it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, false),
                Err(_) => break,
            };
            if at_end {
                match changed(path, &mut file) {
                    Ok(Change::None) => {}
                    Ok(Change::Truncated) => kept.clear(),
                    Ok(Change::Replaced) | Err(_) => break,
                }
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
            lines(whole);
        }
        thread::sleep(LONG_PAUSE);
    }
}

/// Keeps the beginning of a line; one that is too long is malformed whatever is in it.
fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = (MAX_LINE_LEN + 1).saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn open(path: &Path) -> io::Result<File> {
    let fifo = path.metadata()?.file_type().is_fifo();
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
    let (ours, named) = (file.metadata()?, path.metadata()?);
    if (ours.dev(), ours.ino()) != (named.dev(), named.ino()) {
        return Ok(Change::Replaced);
    }
    if ours.len() < file.stream_position()? {
        file.seek(SeekFrom::Start(0))?;
        return Ok(Change::Truncated);
    }
    Ok(Change::None)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Command;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::eve::tests::TempDir;

    fn follow(path: &Path) -> (Receiver<Vec<u8>>, Follower) {
        let (sender, receiver) = channel();
        let lines = move |lines: Zeroizing<Vec<u8>>| sender.send(lines.to_vec()).unwrap();
        (receiver, Follower::start(path.to_owned(), lines).unwrap())
    }

    fn next(receiver: &Receiver<Vec<u8>>) -> String {
        let lines = receiver.recv_timeout(Duration::from_secs(20)).expect("lines");
        String::from_utf8(lines).unwrap()
    }

    #[test]
    fn accepts_a_file_that_grows_is_truncated_and_replaced() {
        let dir = TempDir::new("follow");
        std::fs::create_dir_all(&dir.0).unwrap();
        let path = dir.0.join("keys.log");
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
        std::fs::rename(&path, dir.0.join("keys.log.1")).unwrap();
        std::fs::write(&path, b"four\n").unwrap();
        assert_eq!(next(&lines), "four\n");
    }

    #[test]
    fn accepts_a_fifo_whose_writers_come_and_go() {
        let dir = TempDir::new("follow-fifo");
        std::fs::create_dir_all(&dir.0).unwrap();
        let path = dir.0.join("fifo");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (lines, follower) = follow(&path);
        for text in ["one\n", "two\n"] {
            let mut fifo = OpenOptions::new().write(true).open(&path).unwrap();
            fifo.write_all(text.as_bytes()).unwrap();
            drop(fifo);
            assert_eq!(next(&lines), text);
        }
        // The thread waits for a writer, and ends all the same.
        drop(follower);
        assert!(lines.recv().is_err());
    }
}
