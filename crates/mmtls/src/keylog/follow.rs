//! Follows a key log on a thread of its own: a file that grows, is truncated or replaced, or a
//! FIFO. Hands on whole lines.
//!
//! Refuses to wait for a slow reader of its lines (they are dropped, and counted there), and lines
//! that are longer than any that is kept.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use zeroize::Zeroizing;

use super::MAX_LINE_LEN;

/// How long the end of a file is let alone: packets of a session wait for its line.
const PAUSE: Duration = Duration::from_millis(2);
/// The same after a second without anything new.
const LONG_PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: u32 = 500;

/// Starts to follow; `lines` takes what was read, and says whether to go on. The file may come into
/// being later.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(
    path: PathBuf,
    lines: impl FnMut(Zeroizing<Vec<u8>>) -> bool + Send + 'static,
) -> io::Result<()> {
    let mut lines = lines;
    thread::Builder::new().name("keylog".to_owned()).spawn(move || run(&path, &mut lines))?;
    Ok(())
}

fn run(path: &Path, lines: &mut dyn FnMut(Zeroizing<Vec<u8>>) -> bool) {
    let mut idle = 0;
    loop {
        let Ok(mut file) = open(path) else {
            thread::sleep(LONG_PAUSE);
            continue;
        };
        let mut kept = Zeroizing::new(Vec::with_capacity(2 * MAX_LINE_LEN));
        let mut buffer = Zeroizing::new(vec![0; 64 << 10]);
        // Ends when the file was replaced or cannot be read any more.
        loop {
            let count = match file.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if count == 0 {
                match changed(path, &mut file) {
                    Ok(Change::None) => {}
                    Ok(Change::Truncated) => kept.clear(),
                    Ok(Change::Replaced) | Err(_) => break,
                }
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
            if !lines(whole) {
                return;
            }
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
    OpenOptions::new().read(true).write(fifo).open(path)
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

    fn follow(path: &Path) -> Receiver<Vec<u8>> {
        let (sender, receiver) = channel();
        start(path.to_owned(), move |lines| sender.send(lines.to_vec()).is_ok()).unwrap();
        receiver
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
        let lines = follow(&path);
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
        let lines = follow(&path);
        for text in ["one\n", "two\n"] {
            let mut fifo = OpenOptions::new().write(true).open(&path).unwrap();
            fifo.write_all(text.as_bytes()).unwrap();
            drop(fifo);
            assert_eq!(next(&lines), text);
        }
    }
}
