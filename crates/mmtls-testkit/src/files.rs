//! Test content: deterministic, incompressible enough, printable.
//!
//! Refuses randomness: the same length and seed give the same bytes on every machine.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::testbed::error::TestbedError;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .";

/// An endless run of pseudo-random text in lines of 79 characters.
#[derive(Debug, Clone)]
struct Pattern {
    state: u64,
    column: u32,
}

impl Pattern {
    fn new(seed: u64) -> Self {
        Self {
            // An xorshift generator must not start at zero.
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            column: 0,
        }
    }
}

impl Iterator for Pattern {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        self.column += 1;
        if self.column == 80 {
            self.column = 0;
            return Some(b'\n');
        }
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        Some(ALPHABET[(self.state >> 58) as usize])
    }
}

/// The first `length` bytes of the pattern with this seed.
#[must_use]
pub fn pattern_bytes(length: usize, seed: u64) -> Vec<u8> {
    Pattern::new(seed).take(length).collect()
}

/// Writes `length` bytes of the pattern to a new file.
///
/// # Errors
/// [`TestbedError::Io`] when the file cannot be written.
pub fn pattern(path: &Path, length: u64, seed: u64) -> Result<(), TestbedError> {
    let mut source = Pattern::new(seed);
    let file = File::create(path).map_err(TestbedError::io(path))?;
    let mut file = BufWriter::with_capacity(1 << 16, file);
    let mut left = length;
    let mut block = Vec::with_capacity(1 << 16);
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 16);
        block.clear();
        block.extend(source.by_ref().take(size));
        file.write_all(&block).map_err(TestbedError::io(path))?;
        left -= size as u64;
    }
    file.flush().map_err(TestbedError::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_same_seed_twice() {
        assert_eq!(pattern_bytes(500, 3), pattern_bytes(500, 3));
        assert_ne!(pattern_bytes(500, 3), pattern_bytes(500, 4));
        assert_eq!(pattern_bytes(500, 3)[..100], pattern_bytes(100, 3)[..]);
    }

    #[test]
    fn accepts_files_longer_than_a_block() {
        let path = std::env::temp_dir().join(format!("mmtls-pattern-{}", std::process::id()));
        pattern(&path, 200_000, 9).unwrap();
        let read = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read, pattern_bytes(200_000, 9));
    }
}
