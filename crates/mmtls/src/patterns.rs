//! Literal patterns in decrypted bodies, and what to do about them.
//!
//! Refuses to report without bound: at most [`MAX_MATCHES`] matches per body.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use mmtls_inspect::Form;
use mmtls_inspect::literal::{PatternError, PatternSet, Scanner};
use thiserror::Error;

/// Most matches that are looked at per body; the rest of that body is not searched.
pub const MAX_MATCHES: u32 = 64;
/// Largest pattern file in bytes.
const MAX_FILE_LEN: u64 = 16 << 20;

/// What to do when a pattern is found.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PatternAction {
    /// Report it; once per pattern and body.
    #[default]
    Alert,
    /// Report the first one and reset the session. Sessions are also reset where HTTP is faulty
    /// such that the client may take another response body than the one that was searched.
    Reset,
}

/// Where the patterns are and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PatternConfig {
    /// One pattern per line; see [`PatternSet::from_lines`].
    pub file: PathBuf,
    /// What to do when one is found.
    pub action: PatternAction,
}

/// Patterns, ready for searching.
pub struct Patterns {
    /// The patterns.
    pub set: PatternSet,
    /// What to do when one is found.
    pub action: PatternAction,
    /// How often others were in force before: searches that are under way begin anew with these.
    pub version: u64,
}

impl Patterns {
    /// Reads the file.
    ///
    /// # Errors
    /// [`PatternsError`], which names the file and the line.
    pub fn load(config: &PatternConfig) -> Result<Self, PatternsError> {
        let in_file = |fault| PatternsError { file: config.file.clone(), fault };
        let text = read_limited(&config.file).map_err(|e| in_file(PatternsFault::Read(e)))?;
        let set = PatternSet::from_bytes(&text).map_err(|e| in_file(PatternsFault::Syntax(e)))?;
        Ok(Self { set, action: config.action, version: 0 })
    }
}

fn read_limited(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE_LEN + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE_LEN {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// The search of one body after another on a connection, in all forms of each.
#[derive(Default)]
pub struct BodySearch {
    scanners: Vec<(Form, Scanner)>,
    matches: u32,
    /// Patterns already found in this body.
    found: Vec<u32>,
}

impl BodySearch {
    /// The next body begins.
    pub fn restart(&mut self) {
        for (_, scanner) in &mut self.scanners {
            scanner.restart();
        }
        self.matches = 0;
        self.found.clear();
    }

    /// Searches the next bytes of one form; `hit` gets the pattern's index and the offset of its end,
    /// once per pattern and body, or only once if the action is to reset.
    pub fn search(
        &mut self,
        patterns: &Patterns,
        form: Form,
        bytes: &[u8],
        mut hit: impl FnMut(usize, u64),
    ) {
        let most = match patterns.action {
            PatternAction::Alert => MAX_MATCHES,
            PatternAction::Reset => 1,
        };
        let at = match self.scanners.iter().position(|(of, _)| *of == form) {
            Some(at) => at,
            None => {
                self.scanners.push((form, Scanner::default()));
                self.scanners.len() - 1
            }
        };
        let mut rest = bytes;
        while self.matches < most {
            let Some(found) = patterns.set.scan(&mut self.scanners[at].1, rest) else {
                return;
            };
            rest = &rest[found.consumed..];
            self.matches += 1;
            let pattern = u32::try_from(found.pattern).unwrap_or(u32::MAX);
            if !self.found.contains(&pattern) {
                self.found.push(pattern);
                hit(found.pattern, found.end);
            }
        }
    }
}

/// Why patterns could not be loaded.
#[derive(Debug, Error)]
#[error("pattern file {}: {fault}", file.display())]
pub struct PatternsError {
    file: PathBuf,
    fault: PatternsFault,
}

#[derive(Debug, Error)]
enum PatternsFault {
    #[error("{0}")]
    Read(io::Error),
    #[error("{0}")]
    Syntax(PatternError),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(action: PatternAction, lines: &str, chunks: &[&[u8]]) -> Vec<(usize, u64)> {
        let patterns = Patterns { set: PatternSet::from_lines(lines).unwrap(), action, version: 0 };
        let mut search = BodySearch::default();
        search.search(&patterns, Form::AsSent, b"one tw", |_, _| {});
        search.restart();
        let mut hits = Vec::new();
        for chunk in chunks {
            search.search(&patterns, Form::AsSent, chunk, |pattern, end| hits.push((pattern, end)));
        }
        hits
    }

    #[test]
    fn accepts_each_pattern_once_per_body() {
        let chunks: [&[u8]; 3] = [b"o one one", b" tw", b"o one"];
        assert_eq!(search(PatternAction::Alert, "one\ntwo", &chunks), [(0, 5), (1, 13)]);
        assert_eq!(search(PatternAction::Reset, "one\ntwo", &chunks), [(0, 5)]);
    }

    #[test]
    fn refuses_matches_beyond_the_cap() {
        let many = b"a".repeat(100);
        assert_eq!(search(PatternAction::Alert, "a\nb", &[&many, b"b"]), [(0, 1)]);
    }

    #[test]
    fn refuses_missing_and_bad_files_by_name() {
        let config = |file: &str| PatternConfig { file: file.into(), action: PatternAction::Alert };
        let error = Patterns::load(&config("/nonexistent")).err().unwrap();
        assert!(error.to_string().starts_with("pattern file /nonexistent: "));
        let error = Patterns::load(&config("/dev/null")).err().unwrap();
        assert_eq!(error.to_string(), "pattern file /dev/null: no patterns");
        assert!(Patterns::load(&config("/dev/zero")).is_err());
    }
}
