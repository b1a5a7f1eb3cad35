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
//! | sealed, once or more: endpoint | 4 | what the key server calls it |
//! | address, port | 7 or 19 | of the endpoint: family (4 or 6), address, port (2) |
//! | message | | SessionKeys or NullKeys, as on the channel |
//! | tag | 16 | |
//!
//! Several messages in one are all the same worker's: the middlebox tells the key server how it shares connections out.
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
/// Longest message with what is in front of it.
const MAX_DELIVERY_BYTES: usize = 4 + ADDRESS_BYTES + MAX_MESSAGE_BYTES;
/// What sealing adds.
pub const OVERHEAD_BYTES: usize = HEADER_BYTES + TAG_BYTES;
/// Longest datagram.
pub const MAX_BYTES: usize = OVERHEAD_BYTES + MAX_DELIVERY_BYTES;

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

    /// Appends a datagram to `out`; `false`, with nothing appended, where the library fails, which it never does.
    #[must_use]
    pub fn seal(&mut self, deliveries: &Deliveries, out: &mut Vec<u8>) -> bool {
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
        out.extend_from_slice(&deliveries.0);
        let (header, text) = out[begin..].split_at_mut(HEADER_BYTES);
        let sealed = self.key.seal_in_place_separate_tag(nonce(number), Aad::from(&*header), text);
        match sealed {
            Ok(tag) => {
                out.extend_from_slice(tag.as_ref());
                self.next += 1;
                true
            }
            Err(_) => {
                out[begin..].zeroize();
                out.truncate(begin);
                false
            }
        }
    }
}

/// What goes into one datagram; wiped when dropped.
pub struct Deliveries(Zeroizing<Vec<u8>>);

impl Default for Deliveries {
    fn default() -> Self {
        // Never grows, which would leave copies of keys in freed memory.
        Self(Zeroizing::new(Vec::with_capacity(MAX_DELIVERY_BYTES)))
    }
}

impl Deliveries {
    /// Their bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes them out again.
    pub fn clear(&mut self) {
        self.0.zeroize();
    }

    /// Adds one where all of them then have at most `limit` bytes. Nothing is added of a message that breaks the
    /// specification, or is too long.
    #[must_use]
    pub fn add(&mut self, delivery: &Delivery, limit: usize) -> bool {
        let begin = self.0.len();
        let end = limit.min(MAX_DELIVERY_BYTES);
        if begin >= end {
            return false;
        }
        self.0.resize(end, 0);
        let room = &mut self.0[begin..];
        let mut writer = Writer::new(room);
        writer.u32(delivery.endpoint);
        write_address(delivery.address, &mut writer);
        let length = writer.finish().and_then(|front| {
            Some(front + encode_into(&delivery.message, room.get_mut(front..)?).ok()?)
        });
        if length.is_none() {
            room.zeroize();
        }
        self.0.truncate(begin + length.unwrap_or(0));
        length.is_some()
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

    /// Opens one in place, and hands over what is in it, in its order. What was opened is wiped.
    ///
    /// # Errors
    /// [`OpenError`]; where it is malformed, what stood before was handed over.
    pub fn open(
        &mut self,
        datagram: &mut [u8],
        each: impl FnMut(Delivery),
    ) -> Result<(), OpenError> {
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
        let read = read(text, each);
        text.zeroize();
        self.window.note(number);
        if let Some(key) = next {
            (self.key, self.epoch) = (key, epoch);
        }
        read.ok_or(OpenError::Malformed)
    }
}

fn read(text: &[u8], mut each: impl FnMut(Delivery)) -> Option<()> {
    let mut reader = Reader::new(text);
    loop {
        let endpoint = reader.u32().ok()?;
        let address = read_address(&mut reader).ok()??;
        match decode(reader.rest()) {
            Ok(Decoded::Message {
                message: message @ (Message::SessionKeys(_) | Message::NullKeys(_)),
                consumed,
            }) => {
                reader.take(consumed).ok()?;
                each(Delivery { endpoint, address, message });
            }
            _ => return None,
        }
        if reader.is_empty() {
            return Some(());
        }
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

    fn sealed(sealer: &mut Sealer, endpoints: &[u32]) -> Vec<u8> {
        let mut deliveries = Deliveries::default();
        assert!(endpoints.iter().all(|it| deliveries.add(&delivery(*it), usize::MAX)));
        let mut out = Vec::new();
        assert!(sealer.seal(&deliveries, &mut out));
        out
    }

    fn opened(opener: &mut Opener, datagram: &[u8]) -> Result<Vec<u32>, OpenError> {
        let mut endpoints = Vec::new();
        opener.open(&mut datagram.to_vec(), |delivery| {
            assert_eq!(delivery.address.port(), 4000);
            assert!(matches!(delivery.message, Message::NullKeys(_)));
            endpoints.push(delivery.endpoint);
        })?;
        Ok(endpoints)
    }

    #[test]
    fn accepts_each_datagram_once_in_any_order() {
        let (mut sealer, mut opener) =
            (Sealer::new(secret(1)).unwrap(), Opener::new(secret(1)).unwrap());
        let mut all: Vec<_> = (0..40).map(|it| sealed(&mut sealer, &[it, it + 1])).collect();
        all.reverse();
        for (datagram, endpoint) in all.iter().zip((0..40).rev()) {
            assert_eq!(id_of(datagram), Ok([1; 8]));
            assert_eq!(opened(&mut opener, datagram), Ok(vec![endpoint, endpoint + 1]));
        }
        for datagram in &all {
            assert_eq!(opened(&mut opener, datagram), Err(OpenError::Replayed));
        }
    }

    #[test]
    fn refuses_what_the_peer_has_not_sealed() {
        let mut sealer = Sealer::new(secret(1)).unwrap();
        let datagram = sealed(&mut sealer, &[1]);
        let mut other = Opener::new(secret(2)).unwrap();
        assert_eq!(opened(&mut other, &datagram), Err(OpenError::Forged));
        let mut opener = Opener::new(secret(1)).unwrap();
        for at in 0..datagram.len() {
            let mut changed = datagram.clone();
            changed[at] ^= 1;
            assert!(opened(&mut opener, &changed).is_err(), "byte {at}");
            assert!(opened(&mut opener, &datagram[..at]).is_err(), "{at} bytes");
        }
        // None of that has spoilt it.
        assert_eq!(opened(&mut opener, &datagram), Ok(vec![1]));
        for foreign in [&b""[..], b"mmT", b"mmTL and more", &[0; 100]] {
            assert_eq!(id_of(foreign), Err(OpenError::Foreign));
        }
        assert_eq!(id_of(b"mmTK1234567"), Err(OpenError::Forged));
        assert_eq!(opened(&mut opener, &[0; MAX_BYTES + 1]), Err(OpenError::Forged));
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
        let last = sealed(&mut sealer, &[1]);
        let mut next = sealed(&mut sealer, &[2]);
        assert_eq!(opened(&mut opener, &last), Ok(vec![1]));
        assert_eq!(opened(&mut opener, &next), Ok(vec![2]));
        assert_eq!(opened(&mut opener, &next), Err(OpenError::Replayed));
        // Keys of far away are not made.
        next[12] = 1;
        assert_eq!(opened(&mut opener, &next), Err(OpenError::Forged));
    }

    #[test]
    fn refuses_other_messages_and_more_than_fits() {
        let (mut sealer, mut opener) =
            (Sealer::new(secret(1)).unwrap(), Opener::new(secret(1)).unwrap());
        let mut deliveries = Deliveries::default();
        let one = {
            assert!(deliveries.add(&delivery(1), usize::MAX));
            deliveries.len()
        };
        assert!(!deliveries.add(&delivery(2), 2 * one - 1) && !deliveries.add(&delivery(2), 1));
        assert!(deliveries.add(&delivery(2), 2 * one));
        let keys = crate::message::SessionKeys {
            client_random: [0; 32],
            server_random: None,
            version: 0x0304,
            cipher_suite: 0x1301,
            flow: None,
            keys: Vec::new(),
        };
        let none = Delivery { message: Message::SessionKeys(keys), ..delivery(1) };
        assert!(!deliveries.add(&none, usize::MAX));
        let mut out = Vec::new();
        assert!(sealer.seal(&deliveries, &mut out));
        assert_eq!(opened(&mut opener, &out), Ok(vec![1, 2]));
        // What stands before is taken.
        assert!(deliveries.add(&Delivery { message: Message::Ping(1), ..delivery(1) }, usize::MAX));
        let (mut out, mut seen) = (Vec::new(), 0);
        assert!(sealer.seal(&deliveries, &mut out));
        assert_eq!(opener.open(&mut out, |_| seen += 1), Err(OpenError::Malformed));
        assert_eq!(seen, 2);
        // Nothing in it.
        deliveries.clear();
        out.clear();
        assert!(deliveries.is_empty() && sealer.seal(&deliveries, &mut out));
        assert_eq!(opened(&mut opener, &out), Err(OpenError::Malformed));
    }
}
