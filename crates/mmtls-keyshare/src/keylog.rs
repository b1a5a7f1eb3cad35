//! Lines of key logs: label, client random, secret (RFC 9850, the format of NSS and `SSLKEYLOGFILE`).
//!
//! The only place where they are parsed, whether a program hands them over one by one or a file holds millions of
//! them. Digits are decoded in constant time, into a buffer that the caller wipes.
//!
//! Refuses lines that are no such thing, with the reason. Labels that are unknown or of no use here are no error.

use std::fmt;

use mmtls_tls::{Direction, KeyEpoch};

use crate::message::Random;

/// Longest line; nothing that is kept comes near.
pub const MAX_LINE_BYTES: usize = 4096;
/// Longest secret: the output of SHA-384, and the master secret of TLS 1.2.
pub const MAX_SECRET_BYTES: usize = 48;

/// Longest value of an Encrypted Client Hello line.
pub const MAX_ECH_BYTES: usize = 1024;
/// The secrets of the KEMs with SHA-256 to SHA-512.
const ECH_SECRET_BYTES: std::ops::RangeInclusive<usize> = 32..=64;

/// What a secret is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Label {
    /// `CLIENT_RANDOM`: the master secret of TLS 1.2.
    Master,
    /// A traffic secret of TLS 1.3, such as `CLIENT_TRAFFIC_SECRET_0`.
    Traffic(Direction, KeyEpoch),
    /// `CLIENT_TRAFFIC_SECRET_N` and `SERVER_TRAFFIC_SECRET_N`, as OpenSSL reports the secret after every KeyUpdate.
    NextTraffic(Direction),
}

impl Label {
    /// `None` for labels of no use here: exporters, ECH, unknown ones.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let (direction, rest) = match text {
            b"CLIENT_RANDOM" => return Some(Self::Master),
            _ => match text.strip_prefix(b"CLIENT_") {
                Some(rest) => (Direction::ClientToServer, rest),
                None => (Direction::ServerToClient, text.strip_prefix(b"SERVER_")?),
            },
        };
        let epoch = match (rest, direction) {
            (b"EARLY_TRAFFIC_SECRET", Direction::ClientToServer) => KeyEpoch::EarlyData,
            (b"HANDSHAKE_TRAFFIC_SECRET", _) => KeyEpoch::Handshake,
            (b"TRAFFIC_SECRET_N", _) => return Some(Self::NextTraffic(direction)),
            _ => {
                let updates = rest.strip_prefix(b"TRAFFIC_SECRET_")?;
                // `parse` alone would take a sign, too.
                let updates = updates.iter().all(u8::is_ascii_digit).then_some(updates)?;
                KeyEpoch::Application(str::from_utf8(updates).ok()?.parse().ok()?)
            }
        };
        Some(Self::Traffic(direction, epoch))
    }
}

/// What a line of Encrypted Client Hello has (draft-ietf-tls-ech-keylogfile).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EchPart {
    /// `ECH_SECRET`: the shared secret of the KEM.
    Secret,
    /// `ECH_CONFIG`: the server's `ECHConfig`.
    Config,
}

impl EchPart {
    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"ECH_SECRET" => Some(Self::Secret),
            b"ECH_CONFIG" => Some(Self::Config),
            _ => None,
        }
    }

    fn allows(self, length: usize) -> bool {
        match self {
            Self::Secret => ECH_SECRET_BYTES.contains(&length),
            Self::Config => (1..=MAX_ECH_BYTES).contains(&length),
        }
    }
}

/// What a line says. The secret is in the caller's buffer, since moving it would leave copies behind.
#[derive(PartialEq, Eq)]
pub enum Line<'a> {
    /// Nothing, or a comment.
    Empty,
    /// A secret of a session.
    Secret {
        /// What it is for.
        label: Label,
        /// Which session's.
        client_random: Random,
        /// 32 or 48 bytes.
        secret: &'a [u8],
    },
    /// What opens the hello inside another one.
    Ech {
        /// Which half of it.
        part: EchPart,
        /// Of the hello on the wire; the session's secrets may have the other one's.
        client_random: Random,
        /// Digits, or what is in their place, of a length that is allowed: see [`decode_ech`].
        digits: &'a [u8],
    },
    /// The premaster secret of an `RSA` line, which would need the whole handshake.
    RsaPremaster,
    /// A label of no use here.
    OtherLabel,
}

/// What is wrong with a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LineError {
    /// It has more than [`MAX_LINE_BYTES`].
    TooLong,
    /// It has not three fields.
    Fields,
    /// The second field is not 32 bytes in hexadecimal (8 of an `RSA` line).
    ClientRandom,
    /// The third field is not 32 or 48 bytes in hexadecimal.
    Secret,
    /// The third field of an Encrypted Client Hello line is not a secret or a configuration in hexadecimal.
    Ech,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "the line is too long",
            Self::Fields => "a line has three fields: label, client random, secret",
            Self::ClientRandom => "the client random is not 32 bytes in hexadecimal",
            Self::Secret => "the secret is not 32 or 48 bytes in hexadecimal",
            Self::Ech => "not 32 to 64 bytes (ECH_SECRET) or 1 to 1024 (ECH_CONFIG) in hexadecimal",
        })
    }
}

impl std::error::Error for LineError {}

/// Parses a line, with or without its end. `secret` is written to, and is the caller's to wipe.
///
/// # Errors
/// [`LineError`].
pub fn parse<'a>(
    line: &'a [u8],
    secret: &'a mut [u8; MAX_SECRET_BYTES],
) -> Result<Line<'a>, LineError> {
    if line.len() > MAX_LINE_BYTES {
        return Err(LineError::TooLong);
    }
    let line = line.trim_ascii();
    if line.is_empty() || line.starts_with(b"#") {
        return Ok(Line::Empty);
    }
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let (Some(label), Some(random), Some(digits), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(LineError::Fields);
    };
    if label == b"RSA" {
        // Eight bytes of the encrypted premaster secret, and the secret.
        return match (random.len(), digits.len()) {
            (16, 96) => Ok(Line::RsaPremaster),
            (16, _) => Err(LineError::Secret),
            _ => Err(LineError::ClientRandom),
        };
    }
    let Some(label) = Label::parse(label) else {
        let part = EchPart::parse(label);
        return part.map_or(Ok(Line::OtherLabel), |part| ech_line(part, random, digits));
    };
    let client_random = client_random(random)?;
    match decode(digits, secret) {
        Some(length @ (32 | 48)) => {
            Ok(Line::Secret { label, client_random, secret: &secret[..length] })
        }
        _ => Err(LineError::Secret),
    }
}

fn ech_line<'a>(part: EchPart, random: &[u8], digits: &'a [u8]) -> Result<Line<'a>, LineError> {
    let client_random = client_random(random)?;
    let is_legal = digits.len().is_multiple_of(2) && part.allows(digits.len() / 2);
    is_legal.then_some(Line::Ech { part, client_random, digits }).ok_or(LineError::Ech)
}

fn client_random(digits: &[u8]) -> Result<Random, LineError> {
    let mut random = [0; 32];
    match decode(digits, &mut random) {
        Some(32) => Ok(random),
        _ => Err(LineError::ClientRandom),
    }
}

/// The value of [`Line::Ech`]. `out` is written to, and is the caller's to wipe.
///
/// # Errors
/// [`LineError::Ech`]: they are no digits.
pub fn decode_ech<'a>(
    digits: &[u8],
    out: &'a mut [u8; MAX_ECH_BYTES],
) -> Result<&'a [u8], LineError> {
    base16ct::mixed::decode(digits, out).map_err(|_| LineError::Ech)
}

/// How many bytes these digits are, if they are digits and fit.
fn decode(digits: &[u8], out: &mut [u8]) -> Option<usize> {
    base16ct::mixed::decode(digits, out).ok().map(<[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> Option<LineError> {
        parse(line.as_bytes(), &mut [0; MAX_SECRET_BYTES]).err()
    }

    #[test]
    fn accepts_labels_of_secrets() {
        let (client, server) = (Direction::ClientToServer, Direction::ServerToClient);
        for (text, label) in [
            ("CLIENT_RANDOM", Label::Master),
            ("CLIENT_EARLY_TRAFFIC_SECRET", Label::Traffic(client, KeyEpoch::EarlyData)),
            ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", Label::Traffic(client, KeyEpoch::Handshake)),
            ("SERVER_HANDSHAKE_TRAFFIC_SECRET", Label::Traffic(server, KeyEpoch::Handshake)),
            ("CLIENT_TRAFFIC_SECRET_0", Label::Traffic(client, KeyEpoch::Application(0))),
            ("SERVER_TRAFFIC_SECRET_64", Label::Traffic(server, KeyEpoch::Application(64))),
            ("CLIENT_TRAFFIC_SECRET_N", Label::NextTraffic(client)),
            ("SERVER_TRAFFIC_SECRET_N", Label::NextTraffic(server)),
        ] {
            assert_eq!(Label::parse(text.as_bytes()), Some(label), "{text}");
        }
        for text in [
            "",
            "client_random",
            "SERVER_RANDOM",
            "SERVER_EARLY_TRAFFIC_SECRET",
            "CLIENT_TRAFFIC_SECRET_",
            "CLIENT_TRAFFIC_SECRET_x",
            "CLIENT_TRAFFIC_SECRET_+1",
            "CLIENT_TRAFFIC_SECRET_4294967296",
            "EXPORTER_SECRET",
            "ECH_SECRET",
        ] {
            assert_eq!(Label::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn accepts_lines_with_a_secret() {
        let text = format!(" CLIENT_RANDOM\t{}  {}\r\n", "aB".repeat(32), "01".repeat(48));
        let mut secret = [0; MAX_SECRET_BYTES];
        let line = parse(text.as_bytes(), &mut secret);
        let (label, client_random) = (Label::Master, [0xab; 32]);
        assert!(line == Ok(Line::Secret { label, client_random, secret: &[1; 48] }));
        // The caller wipes it.
        assert_eq!(secret, [1; 48]);
    }

    #[test]
    fn accepts_lines_of_encrypted_client_hello() {
        let (mut secret, mut value) = ([0; MAX_SECRET_BYTES], [0; MAX_ECH_BYTES]);
        for (label, part, lengths) in [
            ("ECH_SECRET", EchPart::Secret, [32, 48, 64]),
            ("ECH_CONFIG", EchPart::Config, [1, 66, 1024]),
        ] {
            for length in lengths {
                let text = format!("{label} {} {}\r\n", "aB".repeat(32), "cD".repeat(length));
                let line = parse(text.as_bytes(), &mut secret);
                let Ok(Line::Ech { part: found, client_random, digits }) = line else {
                    panic!("{text}");
                };
                assert_eq!((found, client_random), (part, [0xab; 32]));
                assert_eq!(decode_ech(digits, &mut value).unwrap(), vec![0xcd; length]);
            }
        }
        assert!(decode_ech(b"0g", &mut value).is_err());
        assert_eq!(secret, [0; MAX_SECRET_BYTES], "it is not there");
    }

    #[test]
    fn accepts_lines_without_a_secret_of_use() {
        let random = "ab".repeat(32);
        for (text, line) in [
            (String::new(), Line::Empty),
            (" \r".to_owned(), Line::Empty),
            ("# comment".to_owned(), Line::Empty),
            (format!("EXPORTER_SECRET {random} 00"), Line::OtherLabel),
            (format!("RSA {} {}", "0".repeat(16), "0".repeat(96)), Line::RsaPremaster),
        ] {
            assert!(parse(text.as_bytes(), &mut [0; MAX_SECRET_BYTES]) == Ok(line), "{text}");
        }
    }

    #[test]
    fn refuses_other_lines_with_the_reason() {
        let random = "ab".repeat(32);
        let secret = "cd".repeat(32);
        for (text, expected) in [
            ("x".repeat(MAX_LINE_BYTES + 1), LineError::TooLong),
            ("CLIENT_RANDOM".to_owned(), LineError::Fields),
            (format!("CLIENT_RANDOM {random}"), LineError::Fields),
            (format!("CLIENT_RANDOM {random} {secret} 00"), LineError::Fields),
            (format!("CLIENT_RANDOM {random}00 {secret}"), LineError::ClientRandom),
            (format!("CLIENT_RANDOM {} {secret}", &random[1..]), LineError::ClientRandom),
            (format!("CLIENT_RANDOM {} {secret}", "0x".repeat(32)), LineError::ClientRandom),
            (format!("CLIENT_RANDOM {random} 0"), LineError::Secret),
            (format!("CLIENT_RANDOM {random} {}", "0g".repeat(32)), LineError::Secret),
            (format!("CLIENT_RANDOM {random} {}", "00".repeat(31)), LineError::Secret),
            (format!("CLIENT_RANDOM {random} {}", "00".repeat(49)), LineError::Secret),
            (format!("ECH_SECRET {} {secret}", &random[1..]), LineError::ClientRandom),
            (format!("ECH_SECRET {random} {}", "00".repeat(31)), LineError::Ech),
            (format!("ECH_SECRET {random} {}", "00".repeat(65)), LineError::Ech),
            (format!("ECH_CONFIG {random} {}", "00".repeat(1025)), LineError::Ech),
            (format!("ECH_CONFIG {random} {}0", "00".repeat(9)), LineError::Ech),
            (format!("RSA {random} {secret}"), LineError::ClientRandom),
            (format!("RSA {} {secret}", "0".repeat(16)), LineError::Secret),
        ] {
            assert_eq!(error(&text), Some(expected), "{text}");
        }
    }
}
