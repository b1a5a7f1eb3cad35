//! Consumers of lines beside the file: sockets, the system's log, Redis. Each has a thread, and memory for lines that wait.
//!
//! Refuses to keep a worker waiting, whoever does not read: lines beyond a bound are lost, and counted.

mod again;
mod redis;
pub mod settings;
mod socket;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::redis::Redis;
use self::settings::{Facility, FileType, Level, OutputSection};
use self::socket::{Datagrams, Stream, SyslogHead};
use super::line_file::LineFile;

/// What syslog files lines under by default, as Suricata's example has it.
const LOCAL5: Facility = Facility(21);
const INFO: Level = Level(6);

/// One of them, and which events it gets.
pub(super) struct Output {
    pub(super) name: Arc<str>,
    pub(super) lines: LineFile,
    types: Arc<[String]>,
}

impl Output {
    /// Connects to nobody: whoever takes the lines may come later.
    ///
    /// # Errors
    /// When a password cannot be read.
    pub(super) fn open(section: &OutputSection) -> io::Result<Self> {
        let most = section.max_buffered_bytes;
        let path = section.socket().unwrap_or_default();
        let lines = match section.filetype {
            FileType::UnixStream => LineFile::consumer(Stream::new(&path), most),
            FileType::UnixDgram => LineFile::consumer(Datagrams::new(&path, None), most),
            FileType::Syslog => {
                let (facility, level) = (section.facility, section.level);
                let identity = section.identity.as_deref().unwrap_or("mmtls");
                let head =
                    SyslogHead::new(facility.unwrap_or(LOCAL5), level.unwrap_or(INFO), identity);
                LineFile::consumer(Datagrams::new(&path, Some(head)), most)
            }
            FileType::Redis => {
                let redis = Redis::open(&section.redis.clone().unwrap_or_default())?;
                LineFile::consumer(redis, most)
            }
        };
        let types = section.types.clone().into();
        Ok(Self { name: section.name().into(), lines, types })
    }

    /// Another writer of the same one.
    pub(super) fn share(&self) -> Self {
        let Self { name, lines, types } = self;
        Self { name: Arc::clone(name), lines: lines.share(), types: Arc::clone(types) }
    }

    pub(super) fn push(&mut self, event_type: &str, line: &[u8]) {
        if self.types.is_empty() || self.types.iter().any(|it| it == event_type) {
            self.lines.push(line);
        }
    }
}

/// Finds what `Output::open` would find wrong, and who is not there yet.
///
/// # Errors
/// What would be wrong.
pub fn check(section: &OutputSection) -> io::Result<Option<PathBuf>> {
    if let Some(file) = section.redis.as_ref().and_then(|redis| redis.password_file.as_deref()) {
        redis::password(file)?;
    }
    Ok(section.socket().filter(|path| !Path::exists(path)))
}
