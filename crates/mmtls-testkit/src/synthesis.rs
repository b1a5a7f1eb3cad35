//! Synthetic TLS 1.3 sessions as TCP segments: for property tests, fuzzing and benchmarks of the
//! engine. Real stacks are tested in the testbed; this is for what they never send on demand.
//!
//! Refuses nothing: it can be told to produce nonsense.

use mmtls_engine::tls::{
    ContentType, Direction, KeyEpoch, LocateRecord, OpenError, OpenRecord, Opened,
    RECORD_HEADER_LEN,
};
use mmtls_record::{Sealer, Tls13Sealer};

/// Seals records of one direction and epoch.
pub trait Seal {
    /// One whole record, header included.
    fn seal(&self, sequence: u64, kind: ContentType, content: &[u8], padding: usize) -> Vec<u8>;
}

/// The null cipher: nothing is hidden, but a tag still binds key, sequence number, header and
/// content, so that everything behind decryption can be reached without cryptography.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NullKeys(pub u64);

const NULL_TAG: usize = 16;

/// FNV's prime, and its inverse modulo 2^64.
const PRIME: u64 = 0x0100_0000_01b3;
const PRIME_INVERSE: u64 = 0xce96_5057_aff6_957b;

/// What the half of the tag begins with that depends on the number.
const NUMBERED: u64 = 0x8422_2325_cbf2_9ce4;

impl NullKeys {
    fn tag(self, sequence: u64, header: [u8; RECORD_HEADER_LEN], inner: &[u8]) -> [u8; NULL_TAG] {
        // FNV-1a, twice: enough to tell records apart, and nothing more.
        let mut hash = [0xcbf2_9ce4_8422_2325 ^ self.0, NUMBERED ^ sequence];
        for &byte in header.iter().chain(inner) {
            for half in &mut hash {
                *half = (*half ^ u64::from(byte)).wrapping_mul(PRIME);
            }
        }
        let mut tag = [0; NULL_TAG];
        tag[..8].copy_from_slice(&hash[0].to_be_bytes());
        tag[8..].copy_from_slice(&hash[1].to_be_bytes());
        tag
    }
}

impl Seal for NullKeys {
    fn seal(&self, sequence: u64, kind: ContentType, content: &[u8], padding: usize) -> Vec<u8> {
        let len = u16::try_from(content.len() + 1 + padding + NULL_TAG).unwrap_or(u16::MAX);
        let [high, low] = len.to_be_bytes();
        let header = [23, 3, 3, high, low];
        let mut record = header.to_vec();
        record.extend_from_slice(content);
        record.push(kind.0);
        record.resize(record.len() + padding, 0);
        let tag = self.tag(sequence, header, &record[RECORD_HEADER_LEN..]);
        record.extend_from_slice(&tag);
        record
    }
}

impl OpenRecord for NullKeys {
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let len = fragment.len().checked_sub(NULL_TAG).ok_or(OpenError::Authentication)?;
        let (inner, tag) = fragment.split_at(len);
        if self.tag(sequence, header, inner) != tag {
            return Err(OpenError::Authentication);
        }
        let type_at = inner.iter().rposition(|&byte| byte != 0).ok_or(OpenError::Malformed)?;
        plaintext
            .get_mut(..type_at)
            .ok_or(OpenError::Malformed)?
            .copy_from_slice(&inner[..type_at]);
        Ok(Opened { content_type: ContentType(inner[type_at]), len: type_at })
    }

    fn fingerprint(&self) -> [u8; 32] {
        let mut fingerprint = [0; 32];
        fingerprint[..8].copy_from_slice(&self.0.to_be_bytes());
        fingerprint
    }

    fn share(&self) -> Option<Box<dyn OpenRecord>> {
        Some(Box::new(*self))
    }
}

impl LocateRecord for NullKeys {
    fn locate(&self, header: [u8; RECORD_HEADER_LEN], fragment: &[u8]) -> Option<u64> {
        let (inner, tag) = fragment.split_at(fragment.len().checked_sub(NULL_TAG)?);
        let (of_key, of_number) = tag.split_at(8);
        if self.tag(0, header, inner)[..8] != *of_key {
            return None;
        }
        let mut hash = u64::from_be_bytes(of_number.try_into().ok()?);
        for &byte in header.iter().chain(inner).rev() {
            hash = hash.wrapping_mul(PRIME_INVERSE) ^ u64::from(byte);
        }
        Some(hash ^ NUMBERED)
    }
}

/// The null cipher in the record format of TLS 1.2: the content type stands in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NullKeys12(pub u64);

impl Seal for NullKeys12 {
    fn seal(&self, sequence: u64, kind: ContentType, content: &[u8], _: usize) -> Vec<u8> {
        let [high, low] = u16::try_from(content.len() + NULL_TAG).unwrap_or(u16::MAX).to_be_bytes();
        let header = [kind.0, 3, 3, high, low];
        let tag = NullKeys(self.0).tag(sequence, header, content);
        [&header[..], content, &tag].concat()
    }
}

impl OpenRecord for NullKeys12 {
    fn open(
        &self,
        sequence: u64,
        header: [u8; RECORD_HEADER_LEN],
        fragment: &[u8],
        plaintext: &mut [u8],
    ) -> Result<Opened, OpenError> {
        let len = fragment.len().checked_sub(NULL_TAG).ok_or(OpenError::Authentication)?;
        let (content, tag) = fragment.split_at(len);
        if NullKeys(self.0).tag(sequence, header, content) != tag {
            return Err(OpenError::Authentication);
        }
        plaintext.get_mut(..len).ok_or(OpenError::Malformed)?.copy_from_slice(content);
        Ok(Opened { content_type: ContentType(header[0]), len })
    }

    fn content_len(&self, fragment_len: usize) -> usize {
        fragment_len.saturating_sub(NULL_TAG)
    }

    fn fingerprint(&self) -> [u8; 32] {
        NullKeys(self.0).fingerprint()
    }

    fn share(&self) -> Option<Box<dyn OpenRecord>> {
        Some(Box::new(*self))
    }
}

impl Seal for Tls13Sealer {
    fn seal(&self, sequence: u64, kind: ContentType, content: &[u8], padding: usize) -> Vec<u8> {
        Self::seal(self, sequence, kind, content, padding).unwrap_or_default()
    }
}

/// Without keys the record is empty.
impl Seal for Option<Sealer> {
    fn seal(&self, sequence: u64, kind: ContentType, content: &[u8], padding: usize) -> Vec<u8> {
        let sealed = self.as_ref().and_then(|keys| keys.seal(sequence, kind, content, padding));
        sealed.unwrap_or_default()
    }
}

/// A stretch of one direction's bytes that its sender sends without waiting for the peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Who sends.
    pub direction: Direction,
    /// What.
    pub bytes: Vec<u8>,
}

/// An application-epoch record and where it ends in its direction's stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Offset behind its last byte.
    pub end: u64,
    /// What it protects.
    pub kind: ContentType,
    /// Its content.
    pub content: Vec<u8>,
}

/// A whole session: who sends what in which order, and what should be seen.
#[derive(Clone, Debug)]
pub struct Script {
    /// In causal order.
    pub turns: Vec<Turn>,
    /// Application-epoch records per direction, client first.
    pub records: [Vec<Placed>; 2],
    /// `ClientHello.random`, of each handshake in turn.
    pub client_randoms: Vec<[u8; 32]>,
    /// How many of the client's records are early data, that a handler is shown.
    pub early: usize,
    /// Early data behind them that the ServerHello refuses.
    pub void: Vec<Vec<u8>>,
    /// Whether it speaks TLS 1.2.
    pub tls12: bool,
}

/// What becomes of early data (0-RTT).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarlyFate {
    /// The server takes them, and the client ends them with EndOfEarlyData.
    Accepted,
    /// The server takes the pre-shared key, but not the early data.
    Refused,
    /// The server does not take the pre-shared key.
    RefusedWithKey,
    /// The server asks for another ClientHello.
    RefusedByRetry,
}

/// Early data of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EarlyScript {
    /// What becomes of them.
    pub fate: EarlyFate,
    /// Contents of the records that are sent before the server has answered.
    pub before: Vec<Vec<u8>>,
    /// Of those that are still on their way then.
    pub after: Vec<Vec<u8>>,
}

/// Builds a [`Script`]; the keys of each epoch are made by `keys(direction, epoch)`.
pub struct ScriptBuilder<K, F: Fn(Direction, KeyEpoch) -> K> {
    keys: F,
    script: Script,
    sent: [u64; 2],
    epoch: [u32; 2],
    sequence: [u64; 2],
    _keys: std::marker::PhantomData<K>,
}

impl<K: Seal, F: Fn(Direction, KeyEpoch) -> K> ScriptBuilder<K, F> {
    /// Begins with both hellos and the encrypted handshake: the server's in records of the given
    /// lengths each (and what they do not hold in the last one). `retry` puts a HelloRetryRequest
    /// in front.
    pub fn new(
        client_random: [u8; 32],
        suite: u16,
        retry: bool,
        flight: &[usize],
        keys: F,
    ) -> Self {
        let mut builder = Self::empty(client_random, false, keys);
        let hello = client_hello(&client_random, "server.test", 200);
        builder.send(Direction::ClientToServer, &plain(ContentType::HANDSHAKE, &hello));
        if retry {
            builder.retry(&hello, suite);
        }
        builder.server_flight(suite, None, flight);
        builder.client_finished();
        builder
    }

    /// As [`ScriptBuilder::new`], with a pre-shared key and early data.
    pub fn early(
        client_random: [u8; 32],
        suite: u16,
        flight: &[usize],
        early: &EarlyScript,
        keys: F,
    ) -> Self {
        const CLIENT: Direction = Direction::ClientToServer;
        let mut builder = Self::empty(client_random, false, keys);
        let hello = early_client_hello(&client_random, true);
        builder.send(CLIENT, &plain(ContentType::HANDSHAKE, &hello));
        builder.send(CLIENT, &plain(ContentType(20), &[1]));
        let early_keys = (builder.keys)(CLIENT, KeyEpoch::EarlyData);
        let mut sequence = 0;
        let mut send = |builder: &mut Self, kind, content: &[u8], shown: bool| {
            let record = early_keys.seal(sequence, kind, content, 0);
            sequence += 1;
            builder.send(CLIENT, &record);
            if shown {
                let placed = Placed { end: builder.sent[0], kind, content: content.to_vec() };
                builder.script.records[0].push(placed);
                builder.script.early += 1;
            }
        };
        for content in &early.before {
            send(&mut builder, ContentType::APPLICATION_DATA, content, true);
        }
        if early.fate == EarlyFate::RefusedByRetry {
            let again = early_client_hello(&client_random, false);
            builder.retry(&again, suite);
        }
        builder.server_flight(suite, Some(early.fate), flight);
        if early.fate != EarlyFate::RefusedByRetry {
            for content in &early.after {
                let shown = early.fate != EarlyFate::RefusedWithKey;
                if !shown {
                    builder.script.void.push(content.clone());
                }
                send(&mut builder, ContentType::APPLICATION_DATA, content, shown);
            }
        }
        if early.fate == EarlyFate::Accepted {
            send(&mut builder, ContentType::HANDSHAKE, &message(5, &[]), false);
        }
        builder.client_finished();
        builder
    }

    fn empty(client_random: [u8; 32], tls12: bool, keys: F) -> Self {
        Self {
            keys,
            script: Script {
                turns: Vec::new(),
                records: [Vec::new(), Vec::new()],
                client_randoms: vec![client_random],
                early: 0,
                void: Vec::new(),
                tls12,
            },
            sent: [0; 2],
            epoch: [0; 2],
            sequence: [0; 2],
            _keys: std::marker::PhantomData,
        }
    }

    fn retry(&mut self, second_hello: &[u8], suite: u16) {
        let hello_retry = server_hello(&HELLO_RETRY_RANDOM, suite);
        self.send(Direction::ServerToClient, &plain(ContentType::HANDSHAKE, &hello_retry));
        self.send(Direction::ClientToServer, &plain(ContentType(20), &[1]));
        self.send(Direction::ClientToServer, &plain(ContentType::HANDSHAKE, second_hello));
    }

    fn server_flight(&mut self, suite: u16, early: Option<EarlyFate>, flight: &[usize]) {
        const SERVER: Direction = Direction::ServerToClient;
        let takes_key = matches!(early, Some(EarlyFate::Accepted | EarlyFate::Refused));
        let hello = match takes_key {
            true => psk_server_hello(&[0x5a; 32], suite),
            false => server_hello(&[0x5a; 32], suite),
        };
        self.send(SERVER, &plain(ContentType::HANDSHAKE, &hello));
        self.send(SERVER, &plain(ContentType(20), &[1]));
        let keys = (self.keys)(SERVER, KeyEpoch::Handshake);
        let accepts = early == Some(EarlyFate::Accepted);
        let messages = server_messages(flight.iter().sum(), accepts);
        let mut rest = &messages[..];
        for (at, &len) in flight.iter().enumerate() {
            let len = if at + 1 == flight.len() { rest.len() } else { len.min(rest.len()) };
            let (content, behind) = rest.split_at(len);
            rest = behind;
            self.send(SERVER, &keys.seal(at as u64, ContentType::HANDSHAKE, content, 0));
        }
    }

    fn client_finished(&mut self) {
        let keys = (self.keys)(Direction::ClientToServer, KeyEpoch::Handshake);
        let finished = keys.seal(0, ContentType::HANDSHAKE, &message(20, &[7; 48]), 0);
        self.send(Direction::ClientToServer, &finished);
    }

    /// As [`ScriptBuilder::new`], in TLS 1.2; `keys` are asked for application epochs only.
    pub fn tls12(client_random: [u8; 32], suite: u16, keys: F) -> Self {
        let mut builder = Self::empty(client_random, true, keys);
        let [hello, answer, exchange] = tls12_flights(&client_random, suite);
        let handshake = ContentType::HANDSHAKE;
        builder.send(Direction::ClientToServer, &plain(handshake, &hello));
        // Messages split over records at an odd place.
        let (head, tail) = answer.split_at(answer.len() / 3);
        builder.send(Direction::ServerToClient, &plain(handshake, head));
        builder.send(Direction::ServerToClient, &plain(handshake, tail));
        builder.send(Direction::ClientToServer, &plain(handshake, &exchange));
        for direction in Direction::BOTH {
            builder.send(direction, &plain(ContentType(20), &[1]));
            builder.silent(direction, handshake, &FINISHED);
        }
        builder
    }

    /// Renegotiates (TLS 1.2): a whole handshake under the keys of the one before.
    pub fn renegotiate(&mut self, client_random: [u8; 32], suite: u16) -> &mut Self {
        self.script.client_randoms.push(client_random);
        let [hello, answer, exchange] = tls12_flights(&client_random, suite);
        self.record(Direction::ServerToClient, ContentType::HANDSHAKE, &[0, 0, 0, 0], 0);
        self.record(Direction::ClientToServer, ContentType::HANDSHAKE, &hello, 0);
        let (head, tail) = answer.split_at(answer.len() / 2);
        self.record(Direction::ServerToClient, ContentType::HANDSHAKE, head, 0);
        self.record(Direction::ServerToClient, ContentType::HANDSHAKE, tail, 0);
        self.record(Direction::ClientToServer, ContentType::HANDSHAKE, &exchange, 0);
        for direction in Direction::BOTH {
            self.record(direction, ContentType(20), &[1], 0);
            self.epoch[side(direction)] += 1;
            self.sequence[side(direction)] = 0;
            self.silent(direction, ContentType::HANDSHAKE, &FINISHED);
        }
        self
    }

    /// Sends a protected record that no handler needs to judge.
    fn silent(&mut self, direction: Direction, kind: ContentType, content: &[u8]) {
        let at = side(direction);
        let keys = (self.keys)(direction, KeyEpoch::Application(self.epoch[at]));
        let record = keys.seal(self.sequence[at], kind, content, 0);
        self.sequence[at] += 1;
        self.send(direction, &record);
    }

    /// Sends one application-epoch record.
    pub fn record(
        &mut self,
        direction: Direction,
        kind: ContentType,
        content: &[u8],
        padding: usize,
    ) -> &mut Self {
        let side = side(direction);
        let keys = (self.keys)(direction, KeyEpoch::Application(self.epoch[side]));
        let record = keys.seal(self.sequence[side], kind, content, padding);
        self.sequence[side] += 1;
        self.send(direction, &record);
        let end = self.sent[side];
        self.script.records[side].push(Placed { end, kind, content: content.to_vec() });
        self
    }

    /// Sends a KeyUpdate and goes on under the next epoch's keys.
    pub fn key_update(&mut self, direction: Direction) -> &mut Self {
        self.record(direction, ContentType::HANDSHAKE, &[24, 0, 0, 1, 0], 0);
        self.epoch[side(direction)] += 1;
        self.sequence[side(direction)] = 0;
        self
    }

    /// The finished script.
    pub fn build(self) -> Script {
        self.script
    }

    fn send(&mut self, direction: Direction, bytes: &[u8]) {
        self.sent[side(direction)] += bytes.len() as u64;
        match self.script.turns.last_mut() {
            Some(turn) if turn.direction == direction => turn.bytes.extend_from_slice(bytes),
            _ => self.script.turns.push(Turn { direction, bytes: bytes.to_vec() }),
        }
    }
}

/// A Finished of TLS 1.2.
const FINISHED: [u8; 16] = [20, 0, 0, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// ClientHello; ServerHello to ServerHelloDone; ClientKeyExchange.
fn tls12_flights(client_random: &[u8; 32], suite: u16) -> [Vec<u8>; 3] {
    let mut hello = vec![3, 3];
    hello.extend_from_slice(&[0x5a; 32]);
    hello.push(0);
    hello.extend_from_slice(&suite.to_be_bytes());
    hello.push(0);
    let mut answer = message(2, &hello);
    answer.extend_from_slice(&message(11, &vector24(&vector24(&[0x30; 894]))));
    answer.extend_from_slice(&message(14, &[]));
    [client_hello(client_random, "server.test", 60), answer, message(16, &[9; 66])]
}

/// 0 for the client's direction, 1 for the server's.
#[must_use]
pub const fn side(direction: Direction) -> usize {
    match direction {
        Direction::ClientToServer => 0,
        Direction::ServerToClient => 1,
    }
}

const HELLO_RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// A plaintext record.
#[must_use]
pub fn plain(kind: ContentType, content: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    [&[kind.0, 3, 3, high, low], content].concat()
}

/// A ClientHello message with a server name and `filler` bytes of an unknown extension (as long
/// as a post-quantum key share, if wanted).
#[must_use]
pub fn client_hello(random: &[u8; 32], server_name: &str, filler: usize) -> Vec<u8> {
    extended_client_hello(random, server_name, |extensions| {
        extension(extensions, 0xfff0, |out| out.resize(out.len() + filler, 0));
    })
}

/// One that offers a pre-shared key, and early data unless it is the second one.
fn early_client_hello(random: &[u8; 32], first: bool) -> Vec<u8> {
    extended_client_hello(random, "server.test", |extensions| {
        if first {
            extension(extensions, 42, |_| {});
        }
        extension(extensions, 41, |out| out.extend_from_slice(&[9; 80]));
    })
}

fn extended_client_hello(
    random: &[u8; 32],
    server_name: &str,
    more: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let name = server_name.as_bytes();
    let mut extensions = Vec::new();
    extension(&mut extensions, 0, |out| {
        vector16(out, |out| {
            out.push(0);
            vector16(out, |out| out.extend_from_slice(name));
        });
    });
    extension(&mut extensions, 43, |out| out.extend_from_slice(&[2, 3, 4]));
    more(&mut extensions);
    let mut body = vec![3, 3];
    body.extend_from_slice(random);
    body.extend_from_slice(&[0, 0, 6, 0x13, 1, 0x13, 2, 0x13, 3, 1, 0]);
    vector16(&mut body, |out| out.extend_from_slice(&extensions));
    message(1, &body)
}

/// A ServerHello message that chooses TLS 1.3 and a suite.
#[must_use]
pub fn server_hello(random: &[u8; 32], suite: u16) -> Vec<u8> {
    extended_server_hello(random, suite, |_| {})
}

/// One that takes the first pre-shared key.
fn psk_server_hello(random: &[u8; 32], suite: u16) -> Vec<u8> {
    extended_server_hello(random, suite, |out| {
        extension(out, 41, |out| out.extend_from_slice(&[0, 0]));
    })
}

fn extended_server_hello(
    random: &[u8; 32],
    suite: u16,
    more: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(random);
    body.push(0);
    body.extend_from_slice(&suite.to_be_bytes());
    body.push(0);
    vector16(&mut body, |out| {
        extension(out, 43, |out| out.extend_from_slice(&[3, 4]));
        more(out);
    });
    message(2, &body)
}

/// EncryptedExtensions, Certificate and Finished, together `len` bytes where that is enough.
fn server_messages(len: usize, accepts_early_data: bool) -> Vec<u8> {
    let mut extensions = Vec::new();
    vector16(&mut extensions, |out| {
        extension(out, 16, |out| vector16(out, |out| out.extend_from_slice(b"\x02h2")));
        if accepts_early_data {
            extension(out, 42, |_| {});
        }
    });
    let mut messages = message(8, &extensions);
    let finished = message(20, &[7; 32]);
    // Message header, context, list, one entry and its extensions.
    const AROUND: usize = 4 + 1 + 3 + 3 + 2;
    let room = len.saturating_sub(messages.len() + finished.len() + AROUND).max(1);
    let der = vec![0x30; room];
    let mut entry = vector24(&der);
    entry.extend_from_slice(&[0, 0]);
    let mut body = vec![0];
    body.extend_from_slice(&vector24(&entry));
    messages.extend_from_slice(&message(11, &body));
    messages.extend_from_slice(&finished);
    messages
}

fn vector24(bytes: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
    [&[a, b, c], bytes].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &vector24(body)].concat()
}

fn extension(out: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&kind.to_be_bytes());
    vector16(out, fill);
}

fn vector16(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    fill(out);
    let len = u16::try_from(out.len() - at - 2).unwrap_or(u16::MAX).to_be_bytes();
    out[at..at + 2].copy_from_slice(&len);
}
