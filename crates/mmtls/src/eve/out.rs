//! The file, or the consumer, that lines go to: whole lines, also when a file is full, and cut where one is torn. A file
//! that is large or old is kept under another name, and another one begun.
//!
//! Refuses to try again by itself, and to wait for the reader of a FIFO when it opens.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::rotation::{Rotation, keep};

/// Most bytes that are written at once, unless a line is longer.
const MAX_PIECE: usize = 64 << 10;
/// Memory that is not given back between two batches.
const KEPT_CAPACITY: usize = 4 * MAX_PIECE;

/// How long after a failure to rotate nothing is tried.
const ROTATE_AGAIN: Duration = Duration::from_secs(60);

/// Where lines go.
pub(super) trait Target {
    /// Takes some of these lines; of a file, perhaps a part of one.
    ///
    /// # Errors
    /// Why none was taken.
    fn put(&mut self, lines: &[u8]) -> io::Result<Taken>;

    /// How many of the latest lines were given to no one, since they are too long for whoever takes them: once.
    fn take_too_long(&mut self) -> u64 {
        0
    }
}

/// How many bytes were taken.
pub(super) type Taken = usize;

impl<W: Write> Target for W {
    fn put(&mut self, lines: &[u8]) -> io::Result<Taken> {
        self.write(lines)
    }
}

/// A file, or a consumer elsewhere.
pub(super) enum Place {
    File(Opened),
    Consumer(Box<dyn Target + Send>),
}

/// A file that is open.
pub(super) struct Opened {
    file: File,
    /// And no FIFO or device, which somebody else reads under its name.
    is_regular: bool,
    /// Bytes in it.
    len: u64,
    since: Instant,
    /// When it could not be rotated.
    failed: Option<Instant>,
}

impl From<File> for Opened {
    fn from(file: File) -> Self {
        let regular = file.metadata().ok().filter(|it| it.is_file());
        let (is_regular, len) = (regular.is_some(), regular.map_or(0, |it| it.len()));
        Self { file, is_regular, len, since: Instant::now(), failed: None }
    }
}

impl Target for Place {
    fn put(&mut self, lines: &[u8]) -> io::Result<Taken> {
        match self {
            Self::File(opened) => {
                let taken = opened.file.write(lines)?;
                opened.len += taken as u64;
                Ok(taken)
            }
            Self::Consumer(consumer) => consumer.put(lines),
        }
    }

    fn take_too_long(&mut self) -> u64 {
        match self {
            Self::File(_) => 0,
            Self::Consumer(consumer) => consumer.take_too_long(),
        }
    }
}

/// A file or a consumer, and what it has got of the latest lines.
pub(super) struct Out<W = Place> {
    to: W,
    lines: Vec<u8>,
    /// How much of them is written.
    written: usize,
    /// Bytes written since the last line end.
    torn: u64,
    /// Somebody else's file: it is not cut, and stays although it has no name.
    borrowed: bool,
}

/// So many bytes of a line will not be written: its beginning was cut off.
pub(super) struct Cut(pub(super) usize);

/// What was written: bytes, and lines that ended there.
#[derive(Default)]
pub(super) struct Written {
    pub(super) bytes: usize,
    pub(super) lines: u64,
    /// Of these, those that were too long for whoever takes them.
    pub(super) too_long: u64,
}

impl<W: Target> Out<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, lines: Vec::new(), written: 0, torn: 0, borrowed: false }
    }

    /// Nothing is left to be written.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Takes lines when nothing is left, and gives empty memory for them.
    pub(super) fn take(&mut self, lines: &mut Vec<u8>) {
        debug_assert!(self.is_empty(), "they would come back as new ones");
        core::mem::swap(&mut self.lines, lines);
    }

    /// Writes some of what is left: whole lines, for those who read or write the same file.
    pub(super) fn write_piece(&mut self) -> io::Result<Written> {
        let left = &self.lines[self.written..];
        let is_end = |&byte: &u8| byte == b'\n';
        let piece = match left.get(..MAX_PIECE).map(|most| most.iter().rposition(is_end)) {
            Some(Some(end)) => &left[..=end],
            Some(None) => left.split_inclusive(is_end).next().unwrap_or(left),
            None => left,
        };
        let bytes = loop {
            match self.to.put(piece) {
                Ok(0) if !piece.is_empty() => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        let gone = &piece[..bytes];
        self.torn = match gone.iter().rposition(is_end) {
            Some(at) => (bytes - at - 1) as u64,
            None => self.torn + bytes as u64,
        };
        let lines = gone.iter().filter(|byte| is_end(byte)).count() as u64;
        self.pass_over(bytes);
        Ok(Written { bytes, lines, too_long: self.to.take_too_long() })
    }

    fn pass_over(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.lines.len() {
            self.lines.clear();
            // It would stay as large as the most that ever waited.
            self.lines.shrink_to(KEPT_CAPACITY);
            self.written = 0;
        }
    }

    /// Passes over the rest of a torn line.
    fn pass_over_line(&mut self) -> Cut {
        let left = &self.lines[self.written..];
        let len = left.iter().position(|&byte| byte == b'\n').map_or(left.len(), |end| end + 1);
        self.torn = 0;
        self.pass_over(len);
        Cut(len)
    }
}

impl Out {
    /// Opens a file to append to; a new one is readable by its owner only.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::of(open_at_once(path)?))
    }

    fn of(file: File) -> Self {
        Self::new(Place::File(file.into()))
    }

    /// Somebody else, who takes lines.
    pub(super) fn consumer(consumer: impl Target + Send + 'static) -> Self {
        Self::new(Place::Consumer(Box::new(consumer)))
    }

    /// What this process was started with as its standard output.
    pub(super) fn standard_output() -> io::Result<Self> {
        let file = io::stdout().as_fd().try_clone_to_owned()?;
        Ok(Self { borrowed: true, ..Self::of(file.into()) })
    }

    fn file(&self) -> Option<&File> {
        match &self.to {
            Place::File(opened) => Some(&opened.file),
            Place::Consumer(_) => None,
        }
    }

    /// Whether nobody can find the file any more.
    pub(super) fn is_removed(&self) -> bool {
        let is_gone = |file: &File| file.metadata().is_ok_and(|it| it.is_file() && it.nlink() == 0);
        !self.borrowed && self.file().is_some_and(is_gone)
    }

    /// Goes on in another file.
    pub(super) fn go_on(&mut self, file: File) -> Cut {
        let mut cut = self.cut_torn();
        if self.torn > 0 {
            // A FIFO has half a line; its rest would be the first line here.
            cut = self.pass_over_line();
        }
        self.to = Place::File(file.into());
        cut
    }

    /// Goes on in another file where this one is large or old: it is kept as `FILE.1`.
    ///
    /// # Errors
    /// Those of the file system; the file in use stays so.
    pub(super) fn rotate_if_due(&mut self, path: &Path, rotation: &Rotation) -> io::Result<()> {
        // Not within a line.
        let Place::File(opened) = &mut self.to else {
            return Ok(());
        };
        let is_left_alone = opened.failed.is_some_and(|failed| failed.elapsed() < ROTATE_AGAIN);
        if self.borrowed
            || !opened.is_regular
            || self.torn > 0
            || is_left_alone
            || !rotation.is_due(opened.len, opened.since.elapsed())
        {
            return Ok(());
        }
        // Somebody else may have given it another name, and so may have what failed here before.
        let kept = if path.exists() { keep(path, rotation.files) } else { Ok(()) };
        match kept.and_then(|()| open_at_once(path)) {
            Ok(file) => *opened = file.into(),
            Err(error) => {
                opened.failed = Some(Instant::now());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Cuts off a torn last line, which would break readers of the whole file. Needs no space.
    pub(super) fn cut_torn(&mut self) -> Cut {
        if self.torn > 0
            && !self.borrowed
            && let Place::File(opened) = &mut self.to
            && let Ok(metadata) = opened.file.metadata()
            && metadata.is_file()
        {
            let whole = metadata.len().saturating_sub(self.torn);
            let _ = opened.file.set_len(whole);
            opened.len = whole;
            return self.pass_over_line();
        }
        Cut(0)
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options
}

/// Opens the file without waiting for the reader of a FIFO: without one that is an error.
pub(crate) fn open_at_once(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options().custom_flags(flags).open(path).map_err(|error| {
        let no_reader = error.raw_os_error() == Some(Errno::NXIO.raw_os_error());
        if no_reader { io::Error::other("nobody reads this FIFO") } else { error }
    })?;
    // A slow reader is waited for, as before.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

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

    /// Writes until nothing is left, or an error; lines that ended.
    fn write_all<W: Target>(out: &mut Out<W>) -> (u64, Option<io::ErrorKind>) {
        let mut lines = 0;
        while !out.is_empty() {
            match out.write_piece() {
                Ok(written) => lines += written.lines,
                Err(error) => return (lines, Some(error.kind())),
            }
        }
        (lines, None)
    }

    #[test]
    fn accepts_a_full_disk_that_gets_room_again() {
        let mut out = Out::new(Disk { room: 12, data: Vec::new() });
        out.take(&mut b"12345678\nabcdefgh\n".to_vec());
        let full = Some(io::ErrorKind::StorageFull);
        assert_eq!((write_all(&mut out), out.torn), ((1, full), 3));
        out.to.room = 1;
        assert_eq!((write_all(&mut out), out.torn), ((0, full), 4));
        out.to.room = 100;
        assert_eq!((write_all(&mut out), out.torn), ((1, None), 0));
        assert_eq!(out.to.data, b"12345678\nabcdefgh\n");
    }

    #[test]
    fn accepts_lines_and_writes_them_whole() {
        let mut lines = vec![b'x'; MAX_PIECE - 10];
        lines.extend_from_slice(b"\n0123456789abcdef\n");
        lines.extend(vec![b'y'; 2 * MAX_PIECE]);
        lines.extend_from_slice(b"\nend\n");
        let all = lines.clone();
        let mut out = Out::new(Vec::new());
        out.take(&mut lines);
        let mut pieces = 0;
        while !out.is_empty() {
            out.write_piece().unwrap();
            assert_eq!((out.torn, out.to.last()), (0, Some(&b'\n')));
            pieces += 1;
        }
        assert!(out.to == all && pieces == 4, "{pieces}");
    }

    #[test]
    fn refuses_to_leave_half_a_line_in_a_file_or_to_begin_one_with_it() {
        let dir = std::env::temp_dir().join(format!("mmtls-torn-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut out = Out::open(&dir.join("a")).unwrap();
        for lines in [&b"whole\n"[..], b"to"] {
            out.take(&mut lines.to_vec());
            assert_eq!(write_all(&mut out).1, None);
        }
        out.take(&mut b"rn\nnext\n".to_vec());
        let file = open_at_once(&dir.join("b")).unwrap();
        assert_eq!(out.go_on(file).0, 3);
        assert_eq!(write_all(&mut out), (1, None));
        let [a, b] = ["a", "b"].map(|name| std::fs::read(dir.join(name)).unwrap());
        assert_eq!((a, b), (b"whole\n".to_vec(), b"next\n".to_vec()));

        // A pipe cannot be cut.
        let (mut reader, writer) = io::pipe().unwrap();
        let mut out = Out::of(File::from(std::os::fd::OwnedFd::from(writer)));
        out.take(&mut b"to".to_vec());
        assert_eq!(write_all(&mut out).1, None);
        out.take(&mut b"rn\nlast\n".to_vec());
        assert_eq!(out.cut_torn().0, 0);
        assert_eq!(out.go_on(open_at_once(&dir.join("b")).unwrap()).0, 3);
        assert_eq!(write_all(&mut out), (1, None));
        let mut piped = Vec::new();
        reader.read_to_end(&mut piped).unwrap();
        assert_eq!(piped, b"to");
        assert_eq!(std::fs::read(dir.join("b")).unwrap(), b"next\nlast\n");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
