//! A file of whole lines that survives a full disk.
//!
//! Refuses to lose what it took, as long as it fits into a bounded buffer, and to fail: an error
//! is kept to be told once, lines that are not written count as lost, those that the buffer had no
//! room for will stay so, and writing goes on when the disk has room again.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Buffered bytes that make it write.
const WRITE_AT: usize = 64 << 10;
/// Most bytes that are kept while writing fails.
const MAX_PENDING: usize = 1 << 20;

/// Creates a directory for output, readable by its owner only, unless it exists.
pub(crate) fn create_private_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// One writer of the file. Its lines are gathered without a lock, and written together.
pub(super) struct LineFile {
    path: Arc<Path>,
    gathered: Vec<u8>,
    lines: u64,
    shared: Arc<Mutex<Shared>>,
}

/// What all writers of a file share.
struct Shared {
    file: File,
    buffer: Buffer,
}

impl LineFile {
    /// Opens a file to append to; a new one is readable by its owner only.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = options().open(path)?;
        let shared = Shared { file, buffer: Buffer::default() };
        Ok(Self {
            path: path.into(),
            gathered: Vec::new(),
            lines: 0,
            shared: Arc::new(Mutex::new(shared)),
        })
    }

    /// Another writer of the same file.
    pub(super) fn share(&self) -> Self {
        Self {
            path: Arc::clone(&self.path),
            gathered: Vec::new(),
            lines: 0,
            shared: Arc::clone(&self.shared),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is buffered, then goes on in a file that is opened anew under the same name:
    /// for all its writers.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        // Before anything is locked: a file system that hangs must not stop the other writers.
        let new = open_at_once(&self.path)?;
        self.flush();
        let mut shared = self.shared();
        let Shared { file, buffer } = &mut *shared;
        buffer.cut_torn(file);
        *file = new;
        Ok(())
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

    fn hand_over(&mut self, again: bool) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let Shared { file, buffer } = &mut *shared;
        buffer.push(&self.gathered, self.lines);
        if again || !buffer.failing {
            buffer.drain(file);
        }
        drop(shared);
        self.gathered.clear();
        self.lines = 0;
    }

    pub(super) fn take_error(&mut self) -> Option<io::Error> {
        self.shared().buffer.error.take()
    }

    /// Lines that are not in the file: what found no room in the buffer, and what waits there
    /// while writing fails.
    pub(super) fn lost_lines(&self) -> u64 {
        let buffer = &self.shared().buffer;
        let waiting = if buffer.failing { count_lines(&buffer.pending) } else { 0 };
        buffer.lost + waiting
    }
}

impl Drop for LineFile {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.buffer.cut_torn(&self.file);
    }
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
        if self.failing && self.pending.len() + lines.len() > MAX_PENDING {
            self.lost += count;
        } else {
            self.pending.extend_from_slice(lines);
        }
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
        let line = [b'x'; 1024];
        for _ in 0..2048 {
            buffer.push(&line, 1);
            buffer.drain(&mut disk);
        }
        assert_eq!(buffer.pending.len(), MAX_PENDING);
        assert_eq!(buffer.lost, 1024);
    }

    #[test]
    fn accepts_a_file_that_was_renamed() {
        let dir = std::env::temp_dir().join(format!("mmtls-reopen-{}", std::process::id()));
        create_private_dir(&dir).unwrap();
        let (path, rotated) = (dir.join("a"), dir.join("b"));
        let mut file = LineFile::open(&path).unwrap();
        file.push(b"1\n");
        std::fs::rename(&path, &rotated).unwrap();
        file.reopen().unwrap();
        file.push(b"2\n");
        file.flush();
        assert_eq!(std::fs::read(&rotated).unwrap(), b"1\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"2\n");
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(file.reopen().is_err());
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
        let error = file.reopen().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        // With a reader it is a file like any other.
        let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.reopen().unwrap();
        let flags = fcntl_getfl(&file.shared().file).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        drop(both);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
