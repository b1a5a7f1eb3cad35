//! What is mirrored to where: section `[mirror]` of the configuration.
//!
//! Refuses MTUs that no packet fits into, and ports that are none.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::rotation::Rotation;

/// `[mirror]`
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MirrorConfig {
    /// The pcapng file.
    pub file: Option<PathBuf>,
    /// The interface that frames are sent to.
    pub interface: Option<String>,
    /// What stands in the place of the server's port.
    pub port: ServerPort,
    /// Longest packet behind the link header, bytes.
    pub mtu: u16,
    /// Most bytes that wait to be written.
    pub max_buffered_bytes: usize,
    /// Bytes after which another file begins.
    pub max_file_bytes: u64,
    /// Seconds after which another file begins.
    pub max_file_seconds: Option<u64>,
    /// Most files, the one that is written included.
    pub max_files: u32,
    /// Interfaces that carry the traffic itself, and therefore not its mirror.
    #[serde(skip)]
    pub watched: Vec<String>,
}

impl Default for MirrorConfig {
    fn default() -> Self {
        Self {
            file: None,
            interface: None,
            port: ServerPort::Standard,
            mtu: 1500,
            max_buffered_bytes: 64 << 20,
            max_file_bytes: 1 << 30,
            max_file_seconds: None,
            max_files: 8,
            watched: Vec::new(),
        }
    }
}

impl MirrorConfig {
    /// Whether anything is mirrored.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.file.is_some() || self.interface.is_some()
    }

    /// Finds values that make no sense.
    ///
    /// # Errors
    /// Names the key.
    pub fn check(&self) -> Result<(), String> {
        // IPv6 asks for 1280 at least (RFC 8200, section 5), IPv4 for 576 (RFC 791).
        if self.mtu < 576 {
            return Err("mirror.mtu must be 576 to 65535".to_owned());
        }
        if self.max_buffered_bytes < 1 << 16 {
            return Err("mirror.max_buffered_bytes must be 65536 at least".to_owned());
        }
        self.rotation().check("mirror")
    }

    /// When another file begins.
    #[must_use]
    pub fn rotation(&self) -> Rotation {
        Rotation::of(Some(self.max_file_bytes), self.max_file_seconds, self.max_files)
    }
}

/// What stands in the place of a server's port.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize, Serialize)]
#[serde(try_from = "PortName", into = "String")]
pub enum ServerPort {
    /// The one that the same protocol has without TLS; 80 where none is known.
    #[default]
    Standard,
    /// The server's own: tools may take what is on 443 for TLS.
    Keep,
    /// Always this one.
    Number(u16),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum PortName {
    Number(i64),
    Name(String),
}

impl From<ServerPort> for String {
    fn from(port: ServerPort) -> Self {
        match port {
            ServerPort::Standard => "standard".to_owned(),
            ServerPort::Keep => "keep".to_owned(),
            ServerPort::Number(number) => number.to_string(),
        }
    }
}

impl TryFrom<PortName> for ServerPort {
    type Error = String;

    fn try_from(port: PortName) -> Result<Self, String> {
        match port {
            PortName::Name(name) if name == "standard" => Ok(Self::Standard),
            PortName::Name(name) if name == "keep" => Ok(Self::Keep),
            PortName::Number(number @ 1..=65535) => Ok(Self::Number(number as u16)),
            PortName::Number(number) => Err(format!("{number} is no port")),
            PortName::Name(name) => Err(format!("`{name}` is none of standard, keep, or a port")),
        }
    }
}

/// Ports of protocols over TLS, and those of the same without (IANA).
const STANDARD: [(u16, u16); 13] = [
    (443, 80),
    (465, 25),
    (563, 119),
    (636, 389),
    (853, 53),
    (990, 21),
    (992, 23),
    (993, 143),
    (995, 110),
    (5061, 5060),
    (5671, 5672),
    (6697, 6667),
    (8883, 1883),
];

impl ServerPort {
    /// The port in the mirror of a server's own, whose session began in the clear (STARTTLS) or not.
    #[must_use]
    pub fn of(self, port: u16, in_the_clear: bool) -> u16 {
        match self {
            Self::Number(number) => number,
            Self::Keep => port,
            // It is the protocol's own already.
            Self::Standard if in_the_clear => port,
            Self::Standard => {
                STANDARD.iter().find(|(tls, _)| *tls == port).map_or(80, |(_, plain)| *plain)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ports_by_name_and_number() {
        let parse = |text: &str| toml::from_str::<MirrorConfig>(text).map(|it| it.port);
        assert_eq!(parse("").unwrap().of(443, false), 80);
        assert_eq!(parse("port = \"standard\"").unwrap().of(993, false), 143);
        assert_eq!(parse("port = \"standard\"").unwrap().of(8443, false), 80);
        assert_eq!(parse("port = \"standard\"").unwrap().of(25, true), 25);
        assert_eq!(parse("port = \"keep\"").unwrap().of(443, false), 443);
        assert_eq!(parse("port = 8080").unwrap().of(443, true), 8080);
        for (text, words) in [
            ("port = 0", "0 is no port"),
            ("port = 65536", "is no port"),
            ("port = \"http\"", "`http`"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn refuses_values_without_sense() {
        assert_eq!(MirrorConfig::default().check(), Ok(()));
        for (text, key) in [
            ("mtu = 500", "mirror.mtu"),
            ("max_buffered_bytes = 1", "mirror.max_buffered_bytes"),
            ("max_file_bytes = 1", "mirror.max_file_bytes"),
            ("max_file_seconds = 0", "mirror.max_file_seconds"),
            ("max_files = 0", "mirror.max_files"),
        ] {
            let error = toml::from_str::<MirrorConfig>(text).unwrap().check().unwrap_err();
            assert!(error.starts_with(key), "{error}");
        }
    }
}
