//! The format of the datagrams, and their codec.
//!
//! One datagram per message: version (1), type (1), fields. The sender encodes into a buffer of
//! its own and allocates nothing. Refuses: other versions, unknown types, lengths that do not
//! add up.
//!
//! A Unix socket of type SOCK_SEQPACKET in a directory with mode 0700: the agent accepts its own user only
//! (SO_PEERCRED), the library talks to an agent of its own user or root only. One datagram per message, at most 512
//! bytes, in the conventions of `docs/key-sharing.md`, section 2:
//!
//! | field | bytes | |
//! |---|---|---|
//! | version | 1 | 1 |
//! | type | 1 | 1 TrafficSecret, 2 Exempt |
//! | TrafficSecret: | | |
//! | kind | 1 | 1 `CLIENT_EARLY_TRAFFIC_SECRET`, 2 `CLIENT_HANDSHAKE_…`, 3 `SERVER_HANDSHAKE_…`, 4 `CLIENT_TRAFFIC_SECRET_0`, 5 `SERVER_…_0`, 6 `CLIENT_TRAFFIC_SECRET_N`, 7 `SERVER_…_N`, 8 `CLIENT_RANDOM` (TLS 1.2) |
//! | role | 1 | 0 the program is the client, 1 the server |
//! | client_random, server_random | 32 each | |
//! | version, cipher_suite | 2 each | |
//! | secret | opaque8 | 1 to 64 bytes |
//! | server_name | opaque8 | SNI, may be empty |
//! | flow | as there | |
//! | Exempt: | | |
//! | client_random | 32 | |
//! | flow | as there | |

use std::fmt;

use mmtls_tls::{Direction, KeyEpoch};

use crate::Flow;
use crate::keylog::Label;
use crate::message::Random;
use crate::wire::{Reader, Short, Writer};

/// The version in every datagram.
pub const VERSION: u8 = 1;
/// Longest datagram.
pub const MAX_DATAGRAM_BYTES: usize = 512;
/// Longest secret.
pub const MAX_SECRET_BYTES: usize = 64;

/// What a secret is, named after the labels of the key log format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SecretKind {
    /// `CLIENT_EARLY_TRAFFIC_SECRET`.
    ClientEarly,
    /// `CLIENT_HANDSHAKE_TRAFFIC_SECRET`.
    ClientHandshake,
    /// `SERVER_HANDSHAKE_TRAFFIC_SECRET`.
    ServerHandshake,
    /// `CLIENT_TRAFFIC_SECRET_0`.
    ClientTraffic0,
    /// `SERVER_TRAFFIC_SECRET_0`.
    ServerTraffic0,
    /// `CLIENT_TRAFFIC_SECRET_N`: the next one after a KeyUpdate.
    ClientTrafficN,
    /// `SERVER_TRAFFIC_SECRET_N`: the next one after a KeyUpdate.
    ServerTrafficN,
    /// `CLIENT_RANDOM`: the master secret of TLS 1.2.
    Tls12Master,
}

impl SecretKind {
    const ALL: [Self; 8] = [
        Self::ClientEarly,
        Self::ClientHandshake,
        Self::ServerHandshake,
        Self::ClientTraffic0,
        Self::ServerTraffic0,
        Self::ClientTrafficN,
        Self::ServerTrafficN,
        Self::Tls12Master,
    ];

    /// From its number in a datagram.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    fn number(self) -> u8 {
        match self {
            Self::ClientEarly => 1,
            Self::ClientHandshake => 2,
            Self::ServerHandshake => 3,
            Self::ClientTraffic0 => 4,
            Self::ServerTraffic0 => 5,
            Self::ClientTrafficN => 6,
            Self::ServerTrafficN => 7,
            Self::Tls12Master => 8,
        }
    }

    /// From the label of a key log line; `None` for the numbered secrets after a KeyUpdate, which OpenSSL does not log.
    #[must_use]
    pub fn from_label(label: Label) -> Option<Self> {
        let (direction, [client, server]) = match label {
            Label::Master => return Some(Self::Tls12Master),
            Label::Traffic(_, KeyEpoch::EarlyData) => return Some(Self::ClientEarly),
            Label::Traffic(direction, KeyEpoch::Handshake) => {
                (direction, [Self::ClientHandshake, Self::ServerHandshake])
            }
            Label::Traffic(direction, KeyEpoch::Application(0)) => {
                (direction, [Self::ClientTraffic0, Self::ServerTraffic0])
            }
            Label::Traffic(_, KeyEpoch::Application(_)) => return None,
            Label::NextTraffic(direction) => {
                (direction, [Self::ClientTrafficN, Self::ServerTrafficN])
            }
        };
        Some(match direction {
            Direction::ClientToServer => client,
            Direction::ServerToClient => server,
        })
    }
}

/// Which end of the session the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It opened the session.
    Client,
    /// It accepted the session.
    Server,
}

/// A secret of a session. Borrowed: who owns the bytes wipes them.
pub struct TrafficSecret<'a> {
    /// What it is.
    pub kind: SecretKind,
    /// Which end the program is.
    pub role: Role,
    /// From the ClientHello.
    pub client_random: &'a Random,
    /// From the ServerHello.
    pub server_random: &'a Random,
    /// Negotiated version, such as 0x0304.
    pub version: u16,
    /// Negotiated cipher suite.
    pub cipher_suite: u16,
    /// The secret, one to 64 bytes.
    pub secret: &'a [u8],
    /// Server name in the ClientHello, empty when there was none.
    pub server_name: &'a [u8],
    /// The connection's ends, where the program's socket is known.
    pub flow: Option<Flow>,
}

/// "This session is exempt"; its secrets stay in the program.
pub struct Exempt<'a> {
    /// From the ClientHello.
    pub client_random: &'a Random,
    /// The connection's ends, where the program's socket is known.
    pub flow: Option<Flow>,
}

/// One datagram. Not `Debug` or `Clone`, because it may hold a secret.
pub enum Datagram<'a> {
    /// A secret.
    TrafficSecret(TrafficSecret<'a>),
    /// An exempt session.
    Exempt(Exempt<'a>),
}

impl<'a> Datagram<'a> {
    /// Encodes into `out` and returns the length; `None` when a field is too long.
    #[must_use]
    pub fn encode(&self, out: &mut [u8; MAX_DATAGRAM_BYTES]) -> Option<usize> {
        let mut out = Writer::new(out);
        out.u8(VERSION);
        match self {
            Self::TrafficSecret(secret) => {
                if secret.secret.is_empty() || secret.secret.len() > MAX_SECRET_BYTES {
                    return None;
                }
                out.u8(1);
                out.u8(secret.kind.number());
                out.u8(match secret.role {
                    Role::Client => 0,
                    Role::Server => 1,
                });
                out.bytes(secret.client_random);
                out.bytes(secret.server_random);
                out.u16(secret.version);
                out.u16(secret.cipher_suite);
                out.vec8(secret.secret);
                out.vec8(secret.server_name);
                Flow::write(secret.flow.as_ref(), &mut out);
            }
            Self::Exempt(exempt) => {
                out.u8(2);
                out.bytes(exempt.client_random);
                Flow::write(exempt.flow.as_ref(), &mut out);
            }
        }
        out.finish()
    }

    /// Decodes one whole datagram.
    ///
    /// # Errors
    /// [`DatagramError`].
    pub fn decode(input: &'a [u8]) -> Result<Self, DatagramError> {
        let mut input = Reader::new(input);
        let version = input.u8()?;
        if version != VERSION {
            return Err(DatagramError::Version(version));
        }
        let datagram = match input.u8()? {
            1 => Self::TrafficSecret(read_secret(&mut input)?),
            2 => Self::Exempt(Exempt {
                client_random: input.array_ref()?,
                flow: read_flow(&mut input)?,
            }),
            other => return Err(DatagramError::Type(other)),
        };
        if input.is_empty() { Ok(datagram) } else { Err(DatagramError::Malformed) }
    }
}

fn read_secret<'a>(input: &mut Reader<'a>) -> Result<TrafficSecret<'a>, DatagramError> {
    let kind = SecretKind::from_number(input.u8()?).ok_or(DatagramError::Malformed)?;
    let role = match input.u8()? {
        0 => Role::Client,
        1 => Role::Server,
        _ => return Err(DatagramError::Malformed),
    };
    let secret = TrafficSecret {
        kind,
        role,
        client_random: input.array_ref()?,
        server_random: input.array_ref()?,
        version: input.u16()?,
        cipher_suite: input.u16()?,
        secret: input.vec8()?,
        server_name: input.vec8()?,
        flow: read_flow(input)?,
    };
    if secret.secret.is_empty() || secret.secret.len() > MAX_SECRET_BYTES {
        return Err(DatagramError::Malformed);
    }
    Ok(secret)
}

fn read_flow(input: &mut Reader<'_>) -> Result<Option<Flow>, DatagramError> {
    Flow::read(input)?.map_err(|()| DatagramError::Malformed)
}

/// Why bytes are not a datagram: the sender's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramError {
    /// A version other than [`VERSION`].
    Version(u8),
    /// An unknown type.
    Type(u8),
    /// Cut short, left over, or a value out of range.
    Malformed,
}

impl From<Short> for DatagramError {
    fn from(Short: Short) -> Self {
        Self::Malformed
    }
}

impl fmt::Display for DatagramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "agent datagram of unknown version {version}"),
            Self::Type(kind) => write!(f, "agent datagram of unknown type {kind}"),
            Self::Malformed => f.write_str("malformed agent datagram"),
        }
    }
}

impl std::error::Error for DatagramError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        Flow::new("[2001:db8::1]:40000".parse().unwrap(), "[2001:db8::2]:443".parse().unwrap())
            .unwrap()
    }

    fn encoded(datagram: &Datagram<'_>) -> Vec<u8> {
        let mut out = [0; MAX_DATAGRAM_BYTES];
        let length = datagram.encode(&mut out).unwrap();
        out[..length].to_vec()
    }

    fn samples() -> Vec<Vec<u8>> {
        let mut samples = vec![encoded(&Datagram::Exempt(Exempt {
            client_random: &[1; 32],
            flow: Some(flow()),
        }))];
        for kind in SecretKind::ALL {
            for (secret, server_name) in
                [(&[5; 32][..], &b"a.example"[..]), (&[6; 64], &[b'x'; 255])]
            {
                samples.push(encoded(&Datagram::TrafficSecret(TrafficSecret {
                    kind,
                    role: Role::Server,
                    client_random: &[1; 32],
                    server_random: &[2; 32],
                    version: 0x0304,
                    cipher_suite: 0x1301,
                    secret,
                    server_name,
                    flow: Some(flow()),
                })));
            }
        }
        samples
    }

    #[test]
    fn accepts_what_it_encodes() {
        for bytes in samples() {
            assert_eq!(encoded(&Datagram::decode(&bytes).unwrap()), bytes);
        }
    }

    #[test]
    fn refuses_truncation_and_trailing_bytes() {
        for mut bytes in samples() {
            for length in 0..bytes.len() {
                assert!(Datagram::decode(&bytes[..length]).is_err());
            }
            bytes.push(0);
            assert!(Datagram::decode(&bytes).is_err());
        }
    }

    #[test]
    fn refuses_or_re_encodes_every_byte_change() {
        for bytes in samples() {
            for index in 0..bytes.len() {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[index] = value;
                    if let Ok(datagram) = Datagram::decode(&changed) {
                        assert_eq!(encoded(&datagram), changed);
                    }
                }
            }
        }
    }

    #[test]
    fn refuses_long_secrets() {
        let secret = |secret| {
            let mut out = [0; MAX_DATAGRAM_BYTES];
            Datagram::TrafficSecret(TrafficSecret {
                kind: SecretKind::ClientTraffic0,
                role: Role::Client,
                client_random: &[1; 32],
                server_random: &[2; 32],
                version: 0x0304,
                cipher_suite: 0x1301,
                secret,
                server_name: b"",
                flow: None,
            })
            .encode(&mut out)
        };
        assert!(secret(&[0; 65]).is_none());
        assert!(secret(&[]).is_none());
        assert!(secret(&[0; 64]).is_some());
    }
}
