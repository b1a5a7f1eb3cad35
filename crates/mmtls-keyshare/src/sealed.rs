//! Sealed datagrams: how a key server gives keys to the worker whose session they are of.
//!
//! A datagram has the ends of the monitored connection as its own addresses and ports, so what shares packets out among
//! workers takes it to the right one. It is sealed with AES-256-GCM under a secret that both sides export from the TLS
//! connection between key server and middlebox (RFC 8446, section 7.5): each connection has another one, so nothing of an
//! earlier connection opens in a later one.
//!
//! | field | bytes | |
//! |---|---|---|
//! | magic | 4 | `mmTK` |
//! | id | 8 | which connection's secret; exported, too |
//! | number | 8 | counts from 0 for each secret |
//! | sealed: endpoint | 4 | what the key server calls it |
//! | address, port | 7 or 19 | of the endpoint: family (4 or 6), address, port (2) |
//! | message | | SessionKeys or NullKeys, as on the channel |
//! | tag | 16 | |
//!
//! The nonce is the number, behind four zero bytes; everything in front of what is sealed is authenticated. After 2^32
//! datagrams the next key follows (HKDF-Expand of the secret by the upper half of the number), so that none seals more than
//! AES-GCM may.
//!
//! Refuses: what was not sealed by the peer, a number twice, one that is more than [`WINDOW`] behind the latest.

use std::fmt;
use std::net::SocketAddr;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use zeroize::{Zeroize, Zeroizing};

use crate::flow::{read_address, write_address};
use crate::message::{Decoded, MAX_MESSAGE_BYTES, Message, decode, encode_into};
use crate::wire::{Reader, Writer};

/// What every sealed datagram begins with.
pub const MAGIC: [u8; 4] = *b"mmTK";
/// Bytes that both sides export from their connection.
pub const EXPORTED_BYTES: usize = ID_BYTES + 32;
/// The label for that (RFC 8446, section 7.5).
pub const EXPORTER_LABEL: &[u8] = b"EXPORTER-mmtls-datagrams";
/// Of so many of the latest numbers it is known which have been seen.
pub const WINDOW: u64 = 64 * WINDOW_WORDS as u64;

const WINDOW_WORDS: usize = 16;
const ID_BYTES: usize = 8;
const HEADER_BYTES: usize = MAGIC.len() + ID_BYTES + 8;
const ADDRESS_BYTES: usize = 19;
const TAG_BYTES: usize = 16;
/// Longest datagram.
pub const MAX_BYTES: usize = HEADER_BYTES + 4 + ADDRESS_BYTES + MAX_MESSAGE_BYTES + TAG_BYTES;

/// Names a secret: it is in front of each datagram.
pub type Id = [u8; ID_BYTES];

/// What both sides have exported; wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; EXPORTED_BYTES]>);

impl Secret {
    /// From what was exported.
    #[must_use]
    pub fn new(exported: Zeroizing<[u8; EXPORTED_BYTES]>) -> Self {
        Self(exported)
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> Id {
        let mut id = Id::default();
        id.copy_from_slice(&self.0[..ID_BYTES]);
        id
    }

    /// The key of the `epoch`-th 2^32 datagrams. `None` where the library has no AES-256-GCM or HKDF, which is never.
    fn key(&self, epoch: u32) -> Option<LessSafeKey> {
        let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &self.0[ID_BYTES..]);
        let epoch = epoch.to_be_bytes();
        let info: [&[u8]; 2] = [b"mmtls datagram key", &epoch];
        let mut key = Zeroizing::new([0; 32]);
        secret.expand(&info, &AES_256_GCM).ok()?.fill(&mut key[..]).ok()?;
        UnboundKey::new(&AES_256_GCM, &key[..]).ok().map(LessSafeKey::new)
    }
}

fn epoch_of(number: u64) -> u32 {
    (number >> 32) as u32
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// An endpoint, and its message.
pub struct Delivery {
    /// What the key server calls it.
    pub endpoint: u32,
    /// Where it connects from.
    pub address: SocketAddr,
    /// SessionKeys or NullKeys.
    pub message: Message,
}

/// Seals datagrams, each under a number of its own.
pub struct Sealer {
    secret: Secret,
    key: LessSafeKey,
    next: u64,
}

impl Sealer {
    /// From the first number on: one for each secret. `None`: see [`Secret`].
    #[must_use]
    pub fn new(secret: Secret) -> Option<Self> {
        let key = secret.key(0)?;
        Some(Self { secret, key, next: 0 })
    }

    /// Appends a datagram to `out`; `false`, with nothing appended, for a message that breaks the specification.
    #[must_use]
    pub fn seal(&mut self, delivery: &Delivery, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        let number = self.next;
        if number as u32 == 0 && number > 0 {
            let Some(key) = self.secret.key(epoch_of(number)) else {
                return false;
            };
            self.key = key;
        }
        out.extend(MAGIC);
        out.extend(self.secret.id());
        out.extend(number.to_be_bytes());
        let plain = out.len();
        out.resize(begin + MAX_BYTES, 0);
        let (header, body) = out[begin..].split_at_mut(plain - begin);
        let mut writer = Writer::new(body);
        writer.u32(delivery.endpoint);
        write_address(delivery.address, &mut writer);
        let length = writer.finish().and_then(|front| {
            Some(front + encode_into(&delivery.message, body.get_mut(front..)?).ok()?)
        });
        let sealed = length.and_then(|length| {
            let text = body.get_mut(..length)?;
            let tag = self
                .key
                .seal_in_place_separate_tag(nonce(number), Aad::from(&*header), text)
                .ok()?;
            body.get_mut(length..length + TAG_BYTES)?.copy_from_slice(tag.as_ref());
            Some(length + TAG_BYTES)
        });
        let Some(length) = sealed else {
            out[plain..].zeroize();
            out.truncate(begin);
            return false;
        };
        // What is behind it is still as it was.
        out.truncate(plain + length);
        self.next += 1;
        true
    }
}

/// Why a datagram is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// It does not begin as one of ours: it is somebody else's.
    Foreign,
    /// No such secret is known: an old connection's, or made up.
    UnknownSecret,
    /// It was not sealed by the peer, or has been changed.
    Forged,
    /// It has come before, or is too old to tell.
    Replayed,
    /// The peer has sealed what is no message of keys.
    Malformed,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "not a sealed key datagram",
            Self::UnknownSecret => "key datagram of an unknown connection",
            Self::Forged => "forged key datagram",
            Self::Replayed => "replayed key datagram",
            Self::Malformed => "malformed key datagram",
        })
    }
}

impl std::error::Error for OpenError {}

/// Whose secret opens it.
///
/// # Errors
/// [`OpenError::Foreign`]; [`OpenError::Forged`] where it is too short.
pub fn id_of(datagram: &[u8]) -> Result<Id, OpenError> {
    let Some((&magic, rest)) = datagram.split_first_chunk() else {
        return Err(OpenError::Foreign);
    };
    match magic == MAGIC {
        true => rest.first_chunk().copied().ok_or(OpenError::Forged),
        false => Err(OpenError::Foreign),
    }
}

/// Opens datagrams, each number once.
pub struct Opener {
    secret: Secret,
    key: LessSafeKey,
    epoch: u32,
    window: Window,
}

impl Opener {
    /// Where nothing was seen yet. `None`: see [`Secret`].
    #[must_use]
    pub fn new(secret: Secret) -> Option<Self> {
        let key = secret.key(0)?;
        Some(Self { secret, key, epoch: 0, window: Window::default() })
    }

    /// Opens one in place. What was opened is wiped.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&mut self, datagram: &mut [u8]) -> Result<Delivery, OpenError> {
        if datagram.len() > MAX_BYTES {
            return Err(OpenError::Forged);
        }
        let Some((header, sealed)) = datagram.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(OpenError::Forged);
        };
        let mut number = [0; 8];
        number.copy_from_slice(&header[HEADER_BYTES - 8..]);
        let number = u64::from_be_bytes(number);
        if !self.window.is_new(number) {
            return Err(OpenError::Replayed);
        }
        let epoch = epoch_of(number);
        // A key is made for the next ones, not for any number that somebody makes up.
        let next = match epoch.wrapping_sub(self.epoch) {
            0 => None,
            1 => self.secret.key(epoch),
            _ => return Err(OpenError::Forged),
        };
        let key = next.as_ref().unwrap_or(&self.key);
        let text = key
            .open_in_place(nonce(number), Aad::from(&*header), sealed)
            .map_err(|_| OpenError::Forged)?;
        let delivery = read(text);
        text.zeroize();
        self.window.note(number);
        if let Some(key) = next {
            (self.key, self.epoch) = (key, epoch);
        }
        delivery.ok_or(OpenError::Malformed)
    }
}

fn read(text: &[u8]) -> Option<Delivery> {
    let mut reader = Reader::new(text);
    let endpoint = reader.u32().ok()?;
    let address = read_address(&mut reader).ok()??;
    let frame = reader.rest();
    match decode(frame) {
        Ok(Decoded::Message {
            message: message @ (Message::SessionKeys(_) | Message::NullKeys(_)),
            consumed,
        }) if consumed == frame.len() => Some(Delivery { endpoint, address, message }),
        _ => None,
    }
}

/// Which of the latest numbers have been seen.
#[derive(Default)]
struct Window {
    /// Behind the highest one.
    next: u64,
    /// A ring of bits, by number.
    seen: [u64; WINDOW_WORDS],
}

impl Window {
    fn is_new(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        let is_in_window = number.saturating_add(WINDOW) >= self.next;
        let is_unseen = self.seen.get(word).is_some_and(|it| it & bit == 0);
        // The last number would leave no next one.
        number < u64::MAX && (number >= self.next || is_in_window && is_unseen)
    }

    fn note(&mut self, number: u64) {
        // What comes into the window has not been seen.
        let skipped = number.saturating_sub(self.next);
        if skipped >= WINDOW {
            self.seen = [0; WINDOW_WORDS];
        } else {
            (self.next..number).for_each(|it| self.set(it, false));
        }
        self.set(number, true);
        self.next = self.next.max(number + 1);
    }

    fn set(&mut self, number: u64, seen: bool) {
        let (word, bit) = place(number);
        if let Some(word) = self.seen.get_mut(word) {
            *word = if seen { *word | bit } else { *word & !bit };
        }
    }
}

fn place(number: u64) -> (usize, u64) {
    ((number % WINDOW / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::NullKeys;

    fn secret(fill: u8) -> Secret {
        Secret::new(Zeroizing::new([fill; EXPORTED_BYTES]))
    }

    fn delivery(endpoint: u32) -> Delivery {
        let null = NullKeys { client_random: [3; 32], direction: None, flow: None };
        let address = "10.0.0.2:4000".parse().unwrap();
        Delivery { endpoint, address, message: Message::NullKeys(null) }
    }

    fn sealed(sealer: &mut Sealer, endpoint: u32) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(sealer.seal(&delivery(endpoint), &mut out));
        out
    }

    #[test]
    fn accepts_each_datagram_once_in_any_order() {
        let (mut sealer, mut opener) =
            (Sealer::new(secret(1)).unwrap(), Opener::new(secret(1)).unwrap());
        let mut all: Vec<_> = (0..40).map(|it| sealed(&mut sealer, it)).collect();
        all.reverse();
        for (datagram, endpoint) in all.iter().zip((0..40).rev()) {
            assert_eq!(id_of(datagram), Ok([1; 8]));
            let delivery = opener.open(&mut datagram.clone()).ok().unwrap();
            assert_eq!((delivery.endpoint, delivery.address.port()), (endpoint, 4000));
            assert!(matches!(delivery.message, Message::NullKeys(_)));
        }
        for datagram in &mut all {
            assert_eq!(opener.open(datagram).err(), Some(OpenError::Replayed));
        }
    }

    #[test]
    fn refuses_what_the_peer_has_not_sealed() {
        let mut sealer = Sealer::new(secret(1)).unwrap();
        let datagram = sealed(&mut sealer, 1);
        let mut other = Opener::new(secret(2)).unwrap();
        assert_eq!(other.open(&mut datagram.clone()).err(), Some(OpenError::Forged));
        let mut opener = Opener::new(secret(1)).unwrap();
        for at in 0..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            assert!(opener.open(&mut changed).is_err(), "byte {at}");
            assert!(opener.open(&mut datagram[..at].to_vec()).is_err(), "{at} bytes");
        }
        // None of that has spoilt it.
        assert!(opener.open(&mut datagram.clone()).is_ok());
        for foreign in [&b""[..], b"mmT", b"mmTL and more", &[0; 100]] {
            assert_eq!(id_of(foreign), Err(OpenError::Foreign));
        }
        assert_eq!(id_of(b"mmTK1234567"), Err(OpenError::Forged));
        assert_eq!(opener.open(&mut [0; MAX_BYTES + 1]).err(), Some(OpenError::Forged));
    }

    #[test]
    fn refuses_what_is_behind_the_window() {
        let mut window = Window::default();
        for number in [0, 5, 3, WINDOW + 4] {
            assert!(window.is_new(number), "{number}");
            window.note(number);
            assert!(!window.is_new(number), "{number}");
        }
        // 5 is the last one of the window.
        assert!(!window.is_new(4) && !window.is_new(5) && window.is_new(6));
        window.note(6);
        window.note(10 * WINDOW);
        assert!(!window.is_new(WINDOW + 5) && window.is_new(10 * WINDOW - 1));
        window.note(u64::MAX - 1);
        assert!(!window.is_new(u64::MAX) && !window.is_new(u64::MAX - 1));
    }

    #[test]
    fn accepts_the_next_key_after_many_datagrams() {
        let (mut sealer, mut opener) =
            (Sealer::new(secret(1)).unwrap(), Opener::new(secret(1)).unwrap());
        sealer.next = u64::from(u32::MAX);
        let mut last = sealed(&mut sealer, 1);
        let mut next = sealed(&mut sealer, 2);
        assert!(opener.open(&mut last).is_ok());
        assert!(opener.open(&mut next.clone()).is_ok());
        assert_eq!(opener.open(&mut next).err(), Some(OpenError::Replayed));
        // Keys of far away are not made.
        next[12] = 1;
        assert_eq!(opener.open(&mut next).err(), Some(OpenError::Forged));
    }

    #[test]
    fn refuses_other_messages() {
        let (mut sealer, mut opener) =
            (Sealer::new(secret(1)).unwrap(), Opener::new(secret(1)).unwrap());
        let mut out = Vec::new();
        assert!(sealer.seal(&Delivery { message: Message::Ping(1), ..delivery(1) }, &mut out));
        assert_eq!(opener.open(&mut out).err(), Some(OpenError::Malformed));
        let keys = crate::message::SessionKeys {
            client_random: [0; 32],
            server_random: None,
            version: 0x0304,
            cipher_suite: 0x1301,
            flow: None,
            keys: Vec::new(),
        };
        let mut out = vec![7];
        let none = Delivery { message: Message::SessionKeys(keys), ..delivery(1) };
        assert!(!sealer.seal(&none, &mut out));
        assert_eq!(out, [7]);
    }
}
