//! Which original packets are kept where: section `[capture]` of the configuration.
//!
//! Refuses secrets without a file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::rotation::Rotation;

/// `[capture]`
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureConfig {
    /// The pcapng file.
    pub file: Option<PathBuf>,
    /// Whether the key log's secrets stand in it before the packets that they open.
    pub secrets: bool,
    /// How long packets of a session wait for its secrets, in seconds.
    pub secrets_wait_seconds: u64,
    /// Most bytes that wait: for secrets, and as many again to be written.
    pub max_buffered_bytes: usize,
    /// Bytes after which another file begins.
    pub max_file_bytes: u64,
    /// Seconds after which another file begins.
    pub max_file_seconds: Option<u64>,
    /// Most files, the one that is written included.
    pub max_files: u32,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self {
            file: None,
            secrets: false,
            secrets_wait_seconds: 5,
            max_buffered_bytes: 64 << 20,
            max_file_bytes: 1 << 30,
            max_file_seconds: None,
            max_files: 8,
        }
    }
}

impl CaptureConfig {
    /// When another file begins.
    #[must_use]
    pub fn rotation(&self) -> Rotation {
        Rotation::of(Some(self.max_file_bytes), self.max_file_seconds, self.max_files)
    }

    /// Finds values that make no sense.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=60).contains(&self.secrets_wait_seconds) {
            return Err("capture.secrets_wait_seconds must be 1 to 60".to_owned());
        }
        if self.max_buffered_bytes < 1 << 20 {
            return Err("capture.max_buffered_bytes must be 1048576 at least".to_owned());
        }
        self.rotation().check("capture")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_values_without_sense() {
        assert_eq!(CaptureConfig::default().check(), Ok(()));
        for (text, key) in [
            ("secrets_wait_seconds = 0", "capture.secrets_wait_seconds"),
            ("secrets_wait_seconds = 61", "capture.secrets_wait_seconds"),
            ("max_buffered_bytes = 1", "capture.max_buffered_bytes"),
            ("max_file_bytes = 1", "capture.max_file_bytes"),
            ("max_files = 0", "capture.max_files"),
        ] {
            let error = toml::from_str::<CaptureConfig>(text).unwrap().check().unwrap_err();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
