//! A file with a secret of the operator's: a password, a token.
//!
//! Refuses what is no file, what others can read, and more than its reader wants; nothing is waited for, and nothing of it
//! stays in freed memory.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use zeroize::Zeroizing;

/// The text of a file, of at most so many bytes.
///
/// # Errors
/// Those of the system; what is wrong with the file.
pub(crate) fn read(path: &Path, most: usize) -> io::Result<Zeroizing<String>> {
    let invalid = |text: &str| Err(io::Error::new(io::ErrorKind::InvalidData, text));
    // Of a FIFO, an open that waits would.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return invalid("it is no file");
    }
    if metadata.mode() & 0o077 != 0 {
        return invalid("others may read it: chmod 600");
    }
    // One byte more tells of a longer one; the text does not move to a larger place.
    let mut text = Zeroizing::new(String::with_capacity(most + 1));
    file.take(most as u64 + 1).read_to_string(&mut text)?;
    if text.len() > most {
        return invalid("it is too long");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn refuses_files_that_others_read_long_ones_and_what_is_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        for (len, mode, is_good) in [
            (0, 0o600, true),
            (8, 0o400, true),
            (9, 0o600, false),
            (8, 0o640, false),
            (8, 0o604, false),
        ] {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, "x".repeat(len)).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path, 8).is_ok(), is_good, "{len} {mode:o}");
        }
        assert!(read(directory.path(), 8).is_err());
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(read(&pipe, 8).is_err(), "at once");
    }
}
