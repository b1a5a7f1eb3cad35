//! A file of lines that grows while it is read.
//!
//! Refuses lines that are not complete: those wait for their end.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A line is shorter than this; else it is no line of ours.
const LONGEST: usize = 16 << 20;
/// So much is read at a time.
const BLOCK: usize = 1 << 20;

/// Where it was read to.
pub struct Tail {
    path: PathBuf,
    /// `None` until it is there.
    file: Option<File>,
    rest: Vec<u8>,
}

impl Tail {
    /// From its beginning; the file may come later.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, rest: Vec::new() }
    }

    /// Gives the file, which is read on, another name.
    pub fn rename(&mut self, path: &Path) -> Result<(), String> {
        self.open();
        std::fs::rename(&self.path, path)
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// The name at present.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open(&mut self) {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
    }

    /// Hands over the lines that have come since.
    pub fn read(&mut self, mut line: impl FnMut(&[u8])) -> Result<(), String> {
        self.open();
        let Some(file) = &mut self.file else { return Ok(()) };
        loop {
            let begun = self.rest.len();
            let got = file.take(BLOCK as u64).read_to_end(&mut self.rest);
            let got = got.map_err(|error| format!("{}: {error}", self.path.display()))?;
            if got == 0 {
                return Ok(());
            }
            let Some(end) = self.rest[begun..].iter().rposition(|byte| *byte == b'\n') else {
                if self.rest.len() > LONGEST {
                    return Err(format!("{}: a line without an end", self.path.display()));
                }
                continue;
            };
            let rest = self.rest.split_off(begun + end + 1);
            self.rest.pop();
            self.rest.split(|byte| *byte == b'\n').for_each(&mut line);
            self.rest = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(tail: &mut Tail) -> Vec<String> {
        let mut lines = Vec::new();
        tail.read(|line| lines.push(String::from_utf8_lossy(line).into_owned())).unwrap();
        lines
    }

    #[test]
    fn lines_come_once_and_whole_under_any_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let mut tail = Tail::new(&path);
        assert!(lines(&mut tail).is_empty());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntwo\nthr").unwrap();
        assert_eq!(lines(&mut tail), ["one", "two"]);
        assert!(lines(&mut tail).is_empty());
        tail.rename(&place.path().join("other")).unwrap();
        file.write_all(b"ee\n\nfour\n").unwrap();
        assert_eq!(lines(&mut tail), ["three", "", "four"]);
        File::create(&path).unwrap().write_all(b"of the next file\n").unwrap();
        assert!(lines(&mut tail).is_empty());
    }
}
