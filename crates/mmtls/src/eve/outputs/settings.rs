//! Where lines of `eve.json` go beside the file: `log.outputs` of the configuration, with the names that Suricata's `eve-log` has.
//!
//! Refuses settings that belong to another kind of output, and names of hosts: a confined process looks none up.

use core::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Kinds of events, by the names that lines have for them.
const TYPES: [&str; 11] = [
    "alert", "anomaly", "control", "drop", "fileinfo", "flow", "http", "keys", "mmtls", "stats",
    "tls",
];

/// One of `log.outputs`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OutputSection {
    /// What takes the lines.
    pub filetype: FileType,
    /// The socket of `unix_stream` and `unix_dgram`; that of `syslog`, where it is not `/dev/log`.
    pub filename: Option<PathBuf>,
    /// Only these kinds of events; none: all.
    #[serde(default)]
    pub types: Vec<String>,
    /// Most bytes that wait.
    #[serde(default = "max_buffered_bytes")]
    pub max_buffered_bytes: usize,
    /// What `syslog` files the lines under.
    pub facility: Option<Facility>,
    /// How grave they are.
    pub level: Option<Level>,
    /// Whose they are.
    pub identity: Option<String>,
    /// The server.
    pub redis: Option<RedisSection>,
}

fn max_buffered_bytes() -> usize {
    16 << 20
}

/// What takes lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FileType {
    /// A stream socket in the file system: lines with line ends.
    UnixStream,
    /// A datagram socket in the file system: each line is one.
    UnixDgram,
    /// The system's log.
    Syslog,
    /// A Redis server.
    Redis,
}

impl FileType {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnixStream => "unix_stream",
            Self::UnixDgram => "unix_dgram",
            Self::Syslog => "syslog",
            Self::Redis => "redis",
        }
    }
}

/// `redis` of an output.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedisSection {
    /// Where it is.
    pub server: RedisServer,
    /// What is done with a line.
    pub mode: RedisMode,
    /// The list, channel or stream.
    pub key: String,
    /// Lines that are sent at once.
    pub batch_size: usize,
    /// About how many entries a stream keeps; without it, all.
    pub stream_maxlen: Option<usize>,
    /// Who logs in.
    pub username: Option<String>,
    /// A file whose first line is the password.
    pub password_file: Option<PathBuf>,
}

impl Default for RedisSection {
    fn default() -> Self {
        Self {
            server: RedisServer::Address(SocketAddr::from(([127, 0, 0, 1], 6379))),
            mode: RedisMode::Lpush,
            key: "mmtls".to_owned(),
            batch_size: 100,
            stream_maxlen: None,
            username: None,
            password_file: None,
        }
    }
}

/// Where a Redis server is.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub enum RedisServer {
    /// By TCP, in the clear.
    Address(SocketAddr),
    /// A socket in the file system.
    Socket(PathBuf),
}

impl TryFrom<String> for RedisServer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.parse() {
            Ok(address) => Ok(Self::Address(address)),
            Err(_) if text.starts_with('/') => Ok(Self::Socket(text.into())),
            Err(_) => Err(format!(
                "`{text}` is neither ADDRESS:PORT, as 127.0.0.1:6379 (no names), nor the path of a socket"
            )),
        }
    }
}

impl fmt::Display for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// What is done with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RedisMode {
    /// Put at the head of a list.
    #[serde(alias = "list")]
    Lpush,
    /// Put at its tail.
    Rpush,
    /// Told to a channel.
    #[serde(alias = "channel")]
    Publish,
    /// Added to a stream.
    #[serde(alias = "stream")]
    Xadd,
}

/// What the system's log files a line under; its number is half of a priority (RFC 5424, section 6.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct Facility(pub u8);

/// How grave a line is; the other half.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(try_from = "String")]
pub struct Level(pub u8);

const FACILITIES: [(&str, u8); 20] = [
    ("kern", 0),
    ("user", 1),
    ("mail", 2),
    ("daemon", 3),
    ("auth", 4),
    ("syslog", 5),
    ("lpr", 6),
    ("news", 7),
    ("uucp", 8),
    ("cron", 9),
    ("authpriv", 10),
    ("ftp", 11),
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
];

const LEVELS: [(&str, u8); 8] = [
    ("emergency", 0),
    ("alert", 1),
    ("critical", 2),
    ("error", 3),
    ("warning", 4),
    ("notice", 5),
    ("info", 6),
    ("debug", 7),
];

fn named(names: &[(&str, u8)], name: &str) -> Result<u8, String> {
    let found = names.iter().find(|(it, _)| it.eq_ignore_ascii_case(name));
    let all = || names.iter().map(|(it, _)| *it).collect::<Vec<_>>().join(", ");
    found.map(|(_, number)| *number).ok_or_else(|| format!("`{name}` is none of {}", all()))
}

impl TryFrom<String> for Facility {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        named(&FACILITIES, &name).map(Self)
    }
}

impl TryFrom<String> for Level {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        named(&LEVELS, &name).map(Self)
    }
}

impl OutputSection {
    /// What people call it.
    #[must_use]
    pub fn name(&self) -> String {
        let kind = self.filetype.name();
        match (self.filetype, self.socket(), &self.redis) {
            (FileType::Redis, _, redis) => {
                format!("{kind} {}", redis.clone().unwrap_or_default().server)
            }
            (_, Some(path), _) => format!("{kind} {}", path.display()),
            (_, None, _) => kind.to_owned(),
        }
    }

    /// The socket in the file system that it goes to.
    #[must_use]
    pub fn socket(&self) -> Option<PathBuf> {
        match (self.filetype, &self.redis) {
            (FileType::Redis, Some(RedisSection { server: RedisServer::Socket(path), .. })) => {
                Some(path.clone())
            }
            (FileType::Redis, _) => None,
            (FileType::Syslog, _) => Some(self.filename.clone().unwrap_or("/dev/log".into())),
            (FileType::UnixStream | FileType::UnixDgram, _) => self.filename.clone(),
        }
    }

    /// The address that it goes to.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self.redis.clone().unwrap_or_default().server {
            RedisServer::Address(address) if self.filetype == FileType::Redis => Some(address),
            _ => None,
        }
    }

    /// Finds values that make no sense.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self) -> Result<(), String> {
        let kind = self.filetype;
        let told = |text: &str| Err(format!("log.outputs: {}: {text}", kind.name()));
        let is_socket = matches!(kind, FileType::UnixStream | FileType::UnixDgram);
        if is_socket && self.filename.is_none() {
            return told("filename is missing: the path of the socket that somebody listens at");
        }
        if kind == FileType::Redis && self.filename.is_some() {
            return told("filename is not for redis: redis.server may be the path of a socket");
        }
        let of_syslog = self.facility.is_some() || self.level.is_some() || self.identity.is_some();
        if kind != FileType::Syslog && of_syslog {
            return told("facility, level and identity are for filetype = \"syslog\"");
        }
        if kind != FileType::Redis && self.redis.is_some() {
            return told("redis is for filetype = \"redis\"");
        }
        let of_redis = self.redis.clone().unwrap_or_default();
        if of_redis.key.is_empty() {
            return told("redis.key must not be empty");
        }
        if !(1..=10_000).contains(&of_redis.batch_size) {
            return told("redis.batch_size must be 1 to 10000");
        }
        if of_redis.stream_maxlen.is_some() && of_redis.mode != RedisMode::Xadd {
            return told("redis.stream_maxlen is for redis.mode = \"xadd\"");
        }
        if of_redis.username.is_some() && of_redis.password_file.is_none() {
            return told("redis.username needs redis.password_file");
        }
        let is_word = |byte: u8| byte.is_ascii_graphic() && !b":[]".contains(&byte);
        if let Some(identity) = &self.identity
            && (identity.is_empty() || identity.len() > 48 || !identity.bytes().all(is_word))
        {
            return told("identity must be a word of 1 to 48 characters");
        }
        if !(1 << 16..=1 << 30).contains(&self.max_buffered_bytes) {
            return told("max_buffered_bytes must be 65536 to 1073741824");
        }
        if let Some(name) = self.types.iter().find(|it| !TYPES.contains(&it.as_str())) {
            return told(&format!("types: `{name}` is none of {}", TYPES.join(", ")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<OutputSection, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.message().to_owned())
    }

    #[test]
    fn accepts_the_names_that_suricata_has() {
        let syslog = "filetype = \"syslog\"\nfacility = \"local5\"\nlevel = \"Info\"\n";
        let output = parse(syslog).unwrap();
        assert_eq!((output.facility, output.level), (Some(Facility(21)), Some(Level(6))));
        assert_eq!((output.check(), output.name()), (Ok(()), "syslog /dev/log".to_owned()));
        for (name, mode) in [
            ("list", RedisMode::Lpush),
            ("lpush", RedisMode::Lpush),
            ("rpush", RedisMode::Rpush),
            ("channel", RedisMode::Publish),
            ("publish", RedisMode::Publish),
            ("stream", RedisMode::Xadd),
            ("xadd", RedisMode::Xadd),
        ] {
            let output = parse(&format!("filetype = \"redis\"\nredis = {{ mode = \"{name}\" }}\n"));
            let output = output.unwrap();
            assert_eq!(output.redis.as_ref().unwrap().mode, mode);
            assert_eq!((output.check(), output.name().as_str()), (Ok(()), "redis 127.0.0.1:6379"));
        }
        for kind in ["unix_stream", "unix_dgram"] {
            let output = parse(&format!("filetype = \"{kind}\"\nfilename = \"/run/s\"")).unwrap();
            assert_eq!((output.check(), output.name()), (Ok(()), format!("{kind} /run/s")));
        }
    }

    #[test]
    fn refuses_what_belongs_to_another_kind() {
        for (text, words) in [
            ("filetype = \"unix_stream\"", "filename is missing"),
            ("filetype = \"redis\"\nfilename = \"/x\"", "redis.server"),
            ("filetype = \"redis\"\nlevel = \"info\"", "for filetype = \"syslog\""),
            ("filetype = \"syslog\"\nredis = {}", "for filetype = \"redis\""),
            ("filetype = \"redis\"\nredis = { key = \"\" }", "redis.key"),
            ("filetype = \"redis\"\nredis = { batch_size = 0 }", "redis.batch_size"),
            ("filetype = \"redis\"\nredis = { stream_maxlen = 1 }", "redis.stream_maxlen"),
            ("filetype = \"redis\"\nredis = { username = \"u\" }", "needs redis.password_file"),
            ("filetype = \"syslog\"\nidentity = \"a b\"", "identity"),
            ("filetype = \"syslog\"\nmax_buffered_bytes = 1", "max_buffered_bytes"),
            ("filetype = \"syslog\"\ntypes = [\"dns\"]", "`dns` is none of alert"),
        ] {
            let error = parse(text).unwrap().check().unwrap_err();
            assert!(error.starts_with("log.outputs: ") && error.contains(words), "{error}");
        }
        for (text, words) in [
            ("filetype = \"regular\"", "unknown variant `regular`"),
            ("filetype = \"syslog\"\nfacility = \"local9\"", "`local9` is none of"),
            ("filetype = \"redis\"\nredis = { server = \"localhost:6379\" }", "no names"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
