//! Files that are kept under other names when they are large or old: `FILE` is written, `FILE.1` is the one before, and so on.
//!
//! Refuses more files than it was told.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// When another file begins, and how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rotation {
    /// The file has so many bytes.
    pub bytes: Option<u64>,
    /// It is so old.
    pub age: Option<Duration>,
    /// Most files, the one that is written included.
    pub files: u32,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { bytes: None, age: None, files: 1 }
    }
}

impl Rotation {
    /// As sections of the configuration say it.
    #[must_use]
    pub fn of(bytes: Option<u64>, seconds: Option<u64>, files: u32) -> Self {
        Self { bytes, age: seconds.map(Duration::from_secs), files }
    }

    /// Whether a file ever ends.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.bytes.is_some() || self.age.is_some()
    }

    /// Whether a file that has something in it is to end.
    #[must_use]
    pub fn is_due(&self, len: u64, age: Duration) -> bool {
        let is_large = self.bytes.is_some_and(|most| len >= most);
        len > 0 && (is_large || self.age.is_some_and(|most| age >= most))
    }

    /// Finds values that make no sense; `section` is whose they are.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self, section: &str) -> Result<(), String> {
        if self.bytes.is_some_and(|bytes| bytes < 1 << 16) {
            return Err(format!("{section}.max_file_bytes must be 65536 at least"));
        }
        if self.age == Some(Duration::ZERO) {
            return Err(format!("{section}.max_file_seconds must be 1 at least"));
        }
        if !(1..=10_000).contains(&self.files) {
            return Err(format!("{section}.max_files must be 1 to 10000"));
        }
        Ok(())
    }
}

/// Takes a file's name from it, so that another one can begin: gives every file the next number, and the last one goes.
///
/// # Errors
/// Those of the file system.
pub(crate) fn keep(path: &Path, files: u32) -> io::Result<()> {
    if files <= 1 {
        return fs::remove_file(path);
    }
    let name = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    // Up to the first number that is free: there may be thousands.
    let last = (1..files - 1).find(|number| !name(*number).exists()).unwrap_or(files - 1);
    for number in (1..last).rev() {
        fs::rename(name(number), name(number + 1))?;
    }
    fs::rename(path, name(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_when_a_file_ends() {
        let hour = Duration::from_secs(3600);
        let by_size = Rotation { bytes: Some(1 << 16), ..Rotation::default() };
        assert!(by_size.is_on() && by_size.is_due(1 << 16, Duration::ZERO));
        assert!(!by_size.is_due((1 << 16) - 1, hour));
        let by_age = Rotation { age: Some(hour), ..Rotation::default() };
        assert!(by_age.is_due(1, hour) && !by_age.is_due(0, hour), "an empty one goes on");
        assert!(!Rotation::default().is_on() && !Rotation::default().is_due(u64::MAX, hour));
    }

    #[test]
    fn refuses_values_without_sense() {
        let check = |bytes, seconds, files| {
            let rotation = Rotation::of(Some(bytes), Some(seconds), files);
            rotation.check("log").err().unwrap_or_default()
        };
        assert_eq!(check(1 << 16, 1, 1), "");
        assert!(check(1, 1, 1).starts_with("log.max_file_bytes"));
        assert!(check(1 << 16, 0, 1).starts_with("log.max_file_seconds"));
        assert!(check(1 << 16, 1, 0).starts_with("log.max_files"));
        assert!(check(1 << 16, 1, 10_001).starts_with("log.max_files"));
    }
}
