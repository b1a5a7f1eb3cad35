//! A pcapng file of a mirror, or of original packets, and those before it: `FILE` is written, `FILE.1` is the one before, and so on.
//!
//! Refuses more files than it was told, to write through symbolic links, and to leave half a block in a file: where writing
//! fails, what was not written whole is cut off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mmtls_packet_io::af_packet::MAX_FRAME_BYTES;
use mmtls_packet_io::capture::{PcapngWriter, SecretsKind};
use rustix::fs::{Access, access};
use zeroize::Zeroize;

use crate::eve::open_at_once;
use crate::rotation::{Rotation, keep};

/// Bytes that are gathered before they are written.
const WRITE_AT: usize = 256 << 10;
/// Most bytes of a block of a capture: a frame, or a session's secrets, and what stands around it.
const LARGEST_BLOCK: usize = MAX_FRAME_BYTES + 1024;
const IS_LINK: &str = "is a symbolic link, which is not followed";
/// How long after a failure nothing is tried.
const RETRY: Duration = Duration::from_secs(1);

/// Writes blocks to a file, and begins another one when it is large or old.
pub(crate) struct RotatingFile {
    path: PathBuf,
    rotation: Rotation,
    /// Room is there from the beginning: memory that grows leaves what was in it behind.
    blocks: PcapngWriter<Vec<u8>>,
    /// There are secrets among them.
    holds_secrets: bool,
    file: File,
    /// Bytes in the file: whole blocks.
    len: u64,
    /// Bytes before the first packet.
    header_len: u64,
    opened: Instant,
    /// How many files were begun.
    generation: u64,
    /// When it failed.
    failed: Option<Instant>,
}

impl RotatingFile {
    /// Begins a file; one that is there and holds packets is kept as `FILE.1`.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn create(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let mut blocks = PcapngWriter::new(Vec::with_capacity(WRITE_AT + LARGEST_BLOCK))?;
        let header_len = blocks.get_mut().len() as u64;
        Ok(Self {
            file: begin(path, rotation.files, header_len)?,
            path: path.to_owned(),
            rotation,
            blocks,
            holds_secrets: false,
            len: 0,
            header_len,
            opened: Instant::now(),
            generation: 0,
            failed: None,
        })
    }

    /// Which of its files is being written.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether something can be written, as far as is known.
    pub(crate) fn is_ready(&self) -> bool {
        self.failed.is_none_or(|failed| failed.elapsed() >= RETRY)
    }

    /// Adds a packet to what will be written.
    pub(crate) fn push(&mut self, time_ns: u64, frame: &[u8], comment: Option<&str>) {
        // Memory takes everything, and no frame is too large for a block.
        let _ = match comment {
            Some(comment) => self.blocks.commented_packet(time_ns, frame, comment),
            None => self.blocks.packet(time_ns, frame, frame.len()),
        };
    }

    /// Adds lines of a key log, for packets that come after them.
    pub(crate) fn push_secrets(&mut self, lines: &[u8]) {
        // Memory takes everything, and there are few lines.
        let _ = self.blocks.secrets(SecretsKind::TLS_KEY_LOG, lines);
        self.holds_secrets = true;
    }

    /// Whether enough has been gathered.
    pub(crate) fn is_due(&mut self) -> bool {
        self.blocks.get_mut().len() >= WRITE_AT
    }

    /// Writes what was gathered; what cannot be written is forgotten, and the file ends before it.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        if self.blocks.get_mut().is_empty() {
            return Ok(());
        }
        let written = self.go_on_elsewhere().and_then(|()| {
            let gathered = self.blocks.get_mut();
            self.file.write_all(gathered).map(|()| self.len += gathered.len() as u64)
        });
        match &written {
            Ok(()) => self.failed = None,
            Err(_) => {
                // Needs no space, and never makes a hole; a length that is not told cuts nothing away. What is no regular file
                // cannot be cut: whoever reads it next is told all again.
                let actual = self.file.metadata().map_or(self.len, |it| it.len());
                if self.file.set_len(self.len.min(actual)).is_err() {
                    self.len = 0;
                }
                self.failed = Some(Instant::now());
            }
        }
        let gathered = self.blocks.get_mut();
        // All of the memory would be written, each time.
        if std::mem::take(&mut self.holds_secrets) {
            gathered.as_mut_slice().zeroize();
        }
        gathered.clear();
        if self.len == 0 {
            self.blocks = PcapngWriter::new(std::mem::take(self.blocks.get_mut()))?;
        }
        written
    }

    /// Begins another file where somebody has removed this one, or cut it: nobody would find what is written, or could read it.
    fn go_on_elsewhere(&mut self) -> io::Result<()> {
        let found = self.file.metadata()?;
        if !found.is_file() || (found.nlink() > 0 && found.len() >= self.len) {
            return Ok(());
        }
        let mut file = begin(&self.path, self.rotation.files, self.header_len)?;
        // What was gathered for a file that had nothing begins with them.
        if self.len > 0 {
            file.write_all(PcapngWriter::new(Vec::new())?.get_mut())?;
            self.len = self.header_len;
        }
        (self.file, self.opened) = (file, Instant::now());
        self.generation += 1;
        Ok(())
    }

    /// Whether another file is to begin: between two events, so that each is in one file.
    pub(crate) fn is_full(&mut self) -> bool {
        let len = self.len + self.blocks.get_mut().len() as u64;
        len > self.header_len && self.rotation.is_due(len, self.opened.elapsed())
    }

    /// Begins another file, once everything has been written.
    ///
    /// # Errors
    /// Those of the file system; the file in use stays so.
    pub(crate) fn rotate(&mut self) -> io::Result<()> {
        match begin(&self.path, self.rotation.files, self.header_len) {
            Ok(file) => self.file = file,
            Err(error) => {
                self.failed = Some(Instant::now());
                return Err(error);
            }
        }
        self.blocks = PcapngWriter::new(std::mem::take(self.blocks.get_mut()))?;
        (self.len, self.opened) = (0, Instant::now());
        self.generation += 1;
        Ok(())
    }
}

/// Whether the file, if it is there, is one that can be replaced, or written as it is. A FIFO may lack a reader all the same:
/// opened and closed, it would show one the end.
pub(super) fn check(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if found.is_symlink() => Err(io::Error::other(IS_LINK)),
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Ok(access(path, Access::WRITE_OK)?),
    }
}

/// Creates the file, readable by its owner only. Devices and FIFOs are written as they are.
fn begin(path: &Path, files: u32, header_len: u64) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if found.is_symlink() => {
            return Err(io::Error::other(IS_LINK));
        }
        Ok(found) if !found.is_file() => return open_at_once(path),
        Ok(found) => keep(path, if found.len() > header_len { files } else { 1 })?,
    }
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::eve::tests::TempDir;

    fn rotation(bytes: u64, files: u32) -> Rotation {
        Rotation { bytes: Some(bytes), age: None, files }
    }

    fn names(dir: &TempDir) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(&dir.0)
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn accepts_as_many_files_as_it_was_told() {
        let dir = TempDir::new("mirror-rotate");
        fs::create_dir_all(&dir.0).unwrap();
        let path = dir.0.join("m");
        let mut file = RotatingFile::create(&path, rotation(1000, 3)).unwrap();
        for number in 0..50 {
            if file.is_full() {
                file.commit().unwrap();
                file.rotate().unwrap();
            }
            file.push(number, &[number as u8; 100], None);
        }
        file.commit().unwrap();
        assert!(file.generation() > 3, "{}", file.generation());
        assert_eq!(names(&dir), ["m", "m.1", "m.2"]);
        for name in names(&dir) {
            let metadata = fs::metadata(dir.0.join(name)).unwrap();
            assert!(metadata.len() < 1200, "{}", metadata.len());
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        }
        // Another run keeps the last one, and puts nothing in the place of a file without packets.
        for _ in 0..2 {
            let mut file = RotatingFile::create(&path, rotation(1000, 3)).unwrap();
            file.commit().unwrap();
        }
        assert_eq!(names(&dir), ["m", "m.1", "m.2"]);
        assert!(fs::metadata(dir.0.join("m.1")).unwrap().len() > file.header_len);
    }

    /// As an operator does who wants the space, or a rotation that knows nothing of this one.
    #[test]
    fn accepts_that_the_file_is_removed_or_cut_by_others() {
        let dir = TempDir::new("mirror-removed");
        fs::create_dir_all(&dir.0).unwrap();
        let path = dir.0.join("m");
        let mut file = RotatingFile::create(&path, rotation(1 << 20, 3)).unwrap();
        let write = |file: &mut RotatingFile| {
            file.push(1, &[7; 100], None);
            file.commit().unwrap();
        };
        fs::remove_file(&path).unwrap();
        // Its headers were still to be written.
        write(&mut file);
        let whole = fs::read(&path).unwrap();
        assert_eq!((file.generation(), whole.len() as u64), (1, file.len));
        fs::remove_file(&path).unwrap();
        write(&mut file);
        assert_eq!((file.generation(), fs::read(&path).unwrap() == whole), (2, true));
        for len in [0, file.header_len + 8] {
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
            write(&mut file);
            assert!(fs::read(&path).unwrap() == whole, "{len}");
        }
        assert_eq!((file.generation(), names(&dir)), (4, vec!["m".into(), "m.1".into()]));
        write(&mut file);
        assert_eq!(fs::metadata(&path).unwrap().len(), file.len);
    }

    #[test]
    fn refuses_symbolic_links() {
        let dir = TempDir::new("mirror-link");
        fs::create_dir_all(&dir.0).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.0.join("m")).unwrap();
        let error = RotatingFile::create(&dir.0.join("m"), rotation(1000, 3)).err().unwrap();
        let checked = check(&dir.0.join("m")).unwrap_err();
        for error in [error, checked] {
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        assert_eq!(check(&dir.0).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        check(&dir.0.join("none")).unwrap();
        assert!(!dir.0.join("none").exists());
    }

    #[test]
    fn refuses_to_go_on_at_once_after_an_error() {
        let mut file = RotatingFile::create(Path::new("/dev/full"), rotation(1000, 3)).unwrap();
        file.push(1, b"frame", None);
        assert_eq!(file.commit().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(!file.is_ready());
        // The headers come before the next packet, which is the first one.
        assert_eq!(file.blocks.get_mut().len() as u64, file.header_len);
    }

    /// Memory that is given back for a larger one keeps what was in it, and what is no secret need not be wiped.
    #[test]
    fn wipes_secrets_and_never_moves_them() {
        let dir = TempDir::new("mirror-wipe");
        fs::create_dir_all(&dir.0).unwrap();
        let mut file = RotatingFile::create(&dir.0.join("m"), rotation(1 << 30, 1)).unwrap();
        let memory = file.blocks.get_mut().as_ptr();
        let frame = [7; MAX_FRAME_BYTES];
        for has_secrets in [true, false] {
            if has_secrets {
                file.push_secrets(b"CLIENT_RANDOM");
            }
            while !file.is_due() {
                file.push(1, &frame, Some("comment"));
            }
            assert!(file.blocks.get_mut().len() > WRITE_AT, "filled beyond");
            assert_eq!(file.blocks.get_mut().as_ptr(), memory);
            assert_eq!(file.holds_secrets, has_secrets);
            file.commit().unwrap();
            assert!(!file.holds_secrets && file.blocks.get_mut().is_empty());
        }
    }
}
