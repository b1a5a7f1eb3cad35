//! A middlebox that was taken over: it has the record keys, as every middlebox of mmTLS has, and
//! changes what goes through it. For tests only.
//!
//! Job: play the attacker that the private tag is against, so that tests can show that it is
//! noticed with the tag, and not noticed without. It works on the byte stream of one direction of
//! a TCP connection; [`relay`] puts it between two real programs.
//!
//! Refuses to know more than such a middlebox does: key and IV of a direction and epoch, never a
//! traffic secret or the private tag's key.

pub mod collision;
mod field;
pub mod relay;

use mmtls_engine::tls::{ContentType, OpenRecord, RECORD_HEADER_LEN};
use mmtls_record::private_tag::{self, PRIVATE_TAG_LEN};
use mmtls_record::suite::{self, Cipher, TLS13};
use mmtls_record::{PrivateTagSealer, Tls13Opener, Tls13Sealer};

/// What the sender wrote: 32 bytes, and then a comment with room for what attacks leave behind.
pub const ORDER: &[u8; 112] = b"Transfer 100 EUR to account 1111 /* \
    a comment that nobody reads, over some blocks of sixteen bytes each...... */";

/// What a compromised middlebox makes of it.
pub const FORGED: &[u8; 32] = b"Transfer 999 EUR to account 6666";

/// Where collisions may leave garbage in [`ORDER`].
pub const GARBAGE: usize = 48;

/// What is done to one record of application data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// Other plaintext, tag made anew with the record key.
    Rewrite,
    /// Other plaintext and the same tag ([`collision`]).
    Collide,
    /// This record and the one behind it change places, under each other's sequence number.
    Swap,
    /// The record comes twice, the second time under the next sequence number.
    Replay,
    /// The record ends early, with a tag of its own.
    Truncate,
}

impl Attack {
    /// Every kind.
    pub const ALL: [Self; 5] =
        [Self::Rewrite, Self::Collide, Self::Swap, Self::Replay, Self::Truncate];
}

/// What endpoints share with a middlebox, for one direction and epoch.
pub struct RecordKey {
    /// The negotiated suite.
    pub suite: u16,
    /// The record key.
    pub key: Vec<u8>,
    /// The record IV, 12 bytes.
    pub iv: Vec<u8>,
}

impl RecordKey {
    /// The nonce of a record (RFC 8446, section 5.3).
    pub(crate) fn nonce(&self, sequence: u64) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&sequence.to_be_bytes());
        for (byte, iv) in nonce.iter_mut().zip(&self.iv) {
            *byte ^= iv;
        }
        nonce
    }

    /// Bytes of a record's tags. `None` when the suite is not of TLS 1.3.
    pub(crate) fn overhead(&self) -> Option<usize> {
        let found = suite::find(TLS13, self.suite).ok()?;
        let tag = if found.cipher() == Cipher::Aes128Ccm8 { 8 } else { 16 };
        Some(tag + if found.has_private_tag() { PRIVATE_TAG_LEN } else { 0 })
    }

    /// A record with a right first tag. Its private tag, where there must be one, is `private`:
    /// the best that one has is another record's.
    fn seal(&self, sequence: u64, plain: &Plain) -> Option<Vec<u8>> {
        if !suite::has_private_tag(self.suite) {
            let sealer = Tls13Sealer::new(self.suite, &self.key, &self.iv).ok()?;
            return sealer.seal(sequence, plain.content_type, &plain.content, 0);
        }
        let unknown = vec![0; private_tag::key_len(self.suite).ok()?];
        let sealer = PrivateTagSealer::new(self.suite, &self.key, &self.iv, &unknown).ok()?;
        let mut record = sealer.seal(sequence, plain.content_type, &plain.content, 0)?;
        *record.last_chunk_mut()? = plain.private_tag;
        Some(record)
    }
}

/// A record's plaintext, and its last bytes as they came.
#[derive(Clone)]
struct Plain {
    content_type: ContentType,
    content: Vec<u8>,
    private_tag: [u8; PRIVATE_TAG_LEN],
}

/// The attacker on one direction of a connection.
pub struct Compromised {
    keys: RecordKey,
    opener: Tls13Opener,
    attack: Attack,
    /// Records of application data to leave alone first.
    wait: u64,
    buffer: Vec<u8>,
    /// Sequence number of the next record of the epoch, as the sender counts and as we do.
    sequence: u64,
    sent: u64,
    held: Option<Plain>,
    attacked: bool,
}

impl Compromised {
    /// An attacker that attacks once, after `wait` records of application data.
    ///
    /// `None` when the keys do not fit a suite of TLS 1.3.
    #[must_use]
    pub fn new(keys: RecordKey, attack: Attack, wait: u64) -> Option<Self> {
        let opener = Tls13Opener::new(keys.suite, &keys.key, &keys.iv).ok()?;
        Some(Self {
            keys,
            opener,
            attack,
            wait,
            buffer: Vec::new(),
            sequence: 0,
            sent: 0,
            held: None,
            attacked: false,
        })
    }

    /// Whether the attack has been carried out.
    #[must_use]
    pub fn attacked(&self) -> bool {
        self.attacked
    }

    /// Takes bytes of the sender and returns those for the receiver. Records that the keys do not
    /// open, of the handshake for instance, pass as they are.
    pub fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.buffer.extend_from_slice(bytes);
        let mut out = Vec::new();
        while let Some(len) = self.record_len() {
            let record: Vec<u8> = self.buffer.drain(..len).collect();
            match self.open(&record) {
                Some(plain) => self.handle(record, plain, &mut out),
                None => out.extend_from_slice(&record),
            }
        }
        out
    }

    /// Length of the record at the start of the buffer, when it is there as a whole.
    fn record_len(&self) -> Option<usize> {
        let header = self.buffer.first_chunk::<RECORD_HEADER_LEN>()?;
        let len = RECORD_HEADER_LEN + usize::from(u16::from_be_bytes([header[3], header[4]]));
        (self.buffer.len() >= len).then_some(len)
    }

    fn open(&self, record: &[u8]) -> Option<Plain> {
        let (header, fragment) = record.split_first_chunk()?;
        let mut content = vec![0; fragment.len()];
        let opened = self.opener.open(self.sequence, *header, fragment, &mut content).ok()?;
        content.truncate(opened.len);
        let private_tag = *record.last_chunk()?;
        Some(Plain { content_type: opened.content_type, content, private_tag })
    }

    fn handle(&mut self, mut record: Vec<u8>, plain: Plain, out: &mut Vec<u8>) {
        let sequence = self.sequence;
        self.sequence += 1;
        if let Some(held) = self.held.take() {
            self.send(&plain, out);
            self.send(&held, out);
            self.attacked = true;
            return;
        }
        let data = plain.content_type == ContentType::APPLICATION_DATA;
        if self.attacked || !data || self.wait > 0 {
            self.wait = self.wait.saturating_sub(u64::from(data));
            if self.sent == sequence {
                self.sent += 1;
                out.extend_from_slice(&record);
            } else {
                // Behind a replayed record everything has another number.
                self.send(&plain, out);
            }
            return;
        }
        match self.attack {
            Attack::Swap => {
                self.held = Some(plain);
                return;
            }
            Attack::Rewrite => self.send(&Plain { content: forged(&plain.content), ..plain }, out),
            Attack::Truncate => {
                let half = plain.content.len() / 2;
                self.send(&Plain { content: plain.content[..half].to_vec(), ..plain }, out);
            }
            Attack::Replay => {
                // The first one is genuine.
                self.sent += 1;
                out.extend_from_slice(&record);
                self.send(&plain, out);
            }
            Attack::Collide => {
                let known = plain.content.get(..FORGED.len()).unwrap_or(&[]);
                let collided =
                    collision::collide(&self.keys, sequence, &mut record, known, FORGED, GARBAGE);
                // Content without room for it passes unchanged, and `attacked` stays false.
                if collided.is_some() {
                    self.attacked = true;
                }
                self.sent += 1;
                out.extend_from_slice(&record);
                return;
            }
        }
        self.attacked = true;
    }

    fn send(&mut self, plain: &Plain, out: &mut Vec<u8>) {
        if let Some(record) = self.keys.seal(self.sent, plain) {
            self.sent += 1;
            out.extend_from_slice(&record);
        }
    }
}

/// The content with our account number, or else with its first bit changed.
fn forged(content: &[u8]) -> Vec<u8> {
    let mut forged = content.to_vec();
    if forged.starts_with(&ORDER[..FORGED.len()]) {
        forged[..FORGED.len()].copy_from_slice(FORGED);
    } else if let Some(first) = forged.first_mut() {
        *first ^= 1;
    }
    forged
}
