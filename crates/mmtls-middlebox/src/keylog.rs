//! Key logs in NSS format (RFC 9850): from a file, a capture's own secrets blocks, or live.
//!
//! Unknown labels, comments and CRLF are accepted; malformed lines are counted; the latest of
//! repeated lines wins. Refuses to print a secret or to leave one in freed memory, and to use the
//! premaster secrets of old `RSA` lines, which would need the whole handshake. Exporter secrets
//! are not kept.

pub mod follow;
pub mod live;
mod store;

use std::io::{self, Read};

use mmtls_engine::tls::{CipherSuite, Direction, KeyEpoch, ProtocolVersion};
use mmtls_engine::{KeysNeeded, SharedKeys};
use mmtls_record::key_schedule::RecordKeys;
use mmtls_record::keyring::{self, Keyring, SessionParameters};
use zeroize::Zeroizing;

use store::{MAX_SECRET_LEN, Store};

/// Longest line; nothing that is kept comes near.
const MAX_LINE_LEN: usize = 4096;
/// Highest epoch of application keys that a secret is derived for, one hash after another.
pub const MAX_EPOCH: u32 = 64;

/// How reading went.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KeyLogReport {
    /// Lines read, of any kind.
    pub lines: u64,
    /// Secrets kept, repeated ones included.
    pub secrets: u64,
    /// Lines with a label that is not kept: unknown, exporters, ECH.
    pub other_labels: u64,
    /// `RSA` lines: premaster secrets of TLS 1.2, which are not used.
    pub rsa_premaster: u64,
    /// Lines that are not in the format.
    pub malformed: u64,
    /// Number of the first malformed line, from 1.
    pub first_malformed: Option<u64>,
    /// Secrets that were not kept because there is no room for more.
    pub no_room: u64,
}

/// The secrets of a key log.
#[derive(Default)]
pub struct KeyLog {
    store: Store,
    report: KeyLogReport,
}

/// What a kept secret is for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label(u8);

impl Label {
    const CLIENT_EARLY: Self = Self(0);
    const CLIENT_HANDSHAKE: Self = Self(1);
    const SERVER_HANDSHAKE: Self = Self(2);
    /// `CLIENT_RANDOM`: the master secret of TLS 1.2.
    const MASTER: Self = Self(3);
    const CLIENT_APPLICATION: u8 = 64;
    const SERVER_APPLICATION: u8 = 160;

    /// The label of application secrets; `None` beyond [`MAX_EPOCH`].
    fn application(direction: Direction, epoch: u32) -> Option<Self> {
        let base = match direction {
            Direction::ClientToServer => Self::CLIENT_APPLICATION,
            Direction::ServerToClient => Self::SERVER_APPLICATION,
        };
        let epoch = u8::try_from(epoch).ok()?;
        (u32::from(epoch) <= MAX_EPOCH).then_some(Self(base + epoch))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"CLIENT_EARLY_TRAFFIC_SECRET" => return Some(Self::CLIENT_EARLY),
            b"CLIENT_HANDSHAKE_TRAFFIC_SECRET" => return Some(Self::CLIENT_HANDSHAKE),
            b"SERVER_HANDSHAKE_TRAFFIC_SECRET" => return Some(Self::SERVER_HANDSHAKE),
            b"CLIENT_RANDOM" => return Some(Self::MASTER),
            _ => {}
        }
        let (direction, epoch) = if let Some(epoch) = text.strip_prefix(b"CLIENT_TRAFFIC_SECRET_") {
            (Direction::ClientToServer, epoch)
        } else {
            let epoch = text.strip_prefix(b"SERVER_TRAFFIC_SECRET_")?;
            (Direction::ServerToClient, epoch)
        };
        if epoch.is_empty() || epoch.len() > 2 || !epoch.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let epoch = epoch.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
        Self::application(direction, epoch)
    }
}

impl KeyLog {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a whole key log.
    ///
    /// # Errors
    /// Those of the reader; what was read before is kept by nobody.
    pub fn load(mut reader: impl Read) -> io::Result<Self> {
        let mut log = Self::new();
        let mut buffer = Zeroizing::new(vec![0; 64 << 10]);
        let mut filled = 0;
        // Inside a line that is too long; it was counted when it was found.
        let mut skipping = false;
        loop {
            let count = match reader.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            filled += count;
            let mut from = 0;
            while let Some(len) = buffer[from..filled].iter().position(|&byte| byte == b'\n') {
                if !core::mem::take(&mut skipping) {
                    log.add_line(&buffer[from..from + len]);
                }
                from += len + 1;
            }
            if skipping || filled - from > MAX_LINE_LEN {
                if !skipping {
                    log.report.lines += 1;
                    log.count_malformed();
                }
                skipping = true;
                filled = 0;
            } else {
                buffer.copy_within(from..filled, 0);
                filled -= from;
            }
        }
        if filled > 0 && !skipping {
            log.add_line(&buffer[..filled]);
        }
        Ok(log)
    }

    /// Takes in the text of a secrets block, or any other whole lines.
    pub fn add_text(&mut self, text: &[u8]) {
        let mut lines = text.split(|&byte| byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            // What follows the last line end is a line only if there is something.
            if lines.peek().is_some() || !line.is_empty() {
                self.add_line(line);
            }
        }
    }

    /// How reading went so far.
    #[must_use]
    pub fn report(&self) -> KeyLogReport {
        self.report
    }

    /// How many sessions have secrets here.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.store.sessions()
    }

    /// Whether there is any secret of a session.
    #[must_use]
    pub fn knows(&self, client_random: &[u8; 32]) -> bool {
        self.store.knows(client_random)
    }

    /// The keys that an engine wants, if their secret is here.
    #[must_use]
    pub fn shared_keys(&self, wanted: &KeysNeeded) -> Option<SharedKeys> {
        let &KeysNeeded { client_random, server_random, direction, epoch, .. } = wanted;
        let open = |cipher_suite| {
            let version = wanted.version.0;
            let parameters =
                SessionParameters { version, cipher_suite, client_random, server_random };
            let opener = self.keyring(parameters, direction, epoch)?.open_record(direction, epoch);
            Some((CipherSuite(cipher_suite), opener.ok()?))
        };
        // Nothing on the wire tells the suite of early data: each one that the secret fits is
        // offered, and the records tell.
        let openers: Vec<_> = match wanted.cipher_suite {
            Some(suite) => open(suite.0).into_iter().collect(),
            None => {
                let secret = self.store.get(&client_random, Label::CLIENT_EARLY.0)?;
                keyring::candidate_suites(secret.len())
                    .filter_map(|suite| open(suite.number()))
                    .collect()
            }
        };
        Some(SharedKeys {
            sender: None,
            source: 0,
            client_random,
            server_random,
            cipher_suite: openers.first()?.0,
            keys: openers.into_iter().map(|(_, opener)| (direction, epoch, opener)).collect(),
        })
    }

    /// The record keys of a session's direction and epoch, derived from the latest secret that
    /// leads there. `None` when there is none, when its length does not fit the suite, or when
    /// the epoch is beyond [`MAX_EPOCH`].
    #[must_use]
    pub fn record_keys(
        &self,
        parameters: SessionParameters,
        direction: Direction,
        epoch: KeyEpoch,
    ) -> Option<RecordKeys> {
        self.keyring(parameters, direction, epoch)?.record_keys(direction, epoch).ok()
    }

    /// A keyring with the secret that leads to the keys of a direction and epoch.
    fn keyring(
        &self,
        parameters: SessionParameters,
        direction: Direction,
        epoch: KeyEpoch,
    ) -> Option<Keyring> {
        let get = |label: Label| self.store.get(&parameters.client_random, label.0);
        let mut keyring = Keyring::new(parameters, MAX_EPOCH).ok()?;
        if parameters.version == ProtocolVersion::TLS_1_2.0 {
            keyring.insert_master_secret(get(Label::MASTER)?).ok()?;
            return Some(keyring);
        }
        let (known, secret) = match (epoch, direction) {
            (KeyEpoch::Application(wanted), _) if wanted > MAX_EPOCH => return None,
            (KeyEpoch::Application(wanted), _) => (0..=wanted).rev().find_map(|updates| {
                let label = Label::application(direction, updates)?;
                Some((KeyEpoch::Application(updates), get(label)?))
            })?,
            (KeyEpoch::EarlyData, _) => (epoch, get(Label::CLIENT_EARLY)?),
            (KeyEpoch::Handshake, Direction::ClientToServer) => {
                (epoch, get(Label::CLIENT_HANDSHAKE)?)
            }
            (KeyEpoch::Handshake, Direction::ServerToClient) => {
                (epoch, get(Label::SERVER_HANDSHAKE)?)
            }
        };
        keyring.insert_traffic_secret(direction, known, secret).ok()?;
        Some(keyring)
    }

    fn add_line(&mut self, line: &[u8]) {
        self.report.lines += 1;
        if line.len() > MAX_LINE_LEN {
            return self.count_malformed();
        }
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            return;
        }
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (Some(label), Some(random), Some(secret), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return self.count_malformed();
        };
        if label == b"RSA" {
            // Eight bytes of the encrypted premaster secret, and the secret.
            match (random.len(), secret.len()) {
                (16, 96) => self.report.rsa_premaster += 1,
                _ => self.count_malformed(),
            }
            return;
        }
        let Some(label) = Label::parse(label) else {
            self.report.other_labels += 1;
            return;
        };
        let mut random_bytes = [0; 32];
        let mut secret_bytes = Zeroizing::new([0; MAX_SECRET_LEN]);
        let (Some(32), Some(secret_len @ (32 | 48))) =
            (unhex(random, &mut random_bytes), unhex(secret, &mut secret_bytes[..]))
        else {
            return self.count_malformed();
        };
        if self.store.insert(random_bytes, label.0, &secret_bytes[..secret_len]) {
            self.report.secrets += 1;
        } else {
            self.report.no_room += 1;
        }
    }

    fn count_malformed(&mut self) {
        self.report.malformed += 1;
        self.report.first_malformed.get_or_insert(self.report.lines);
    }
}

/// The client random of a line, if it is one of a session.
fn line_random(line: &[u8]) -> Option<[u8; 32]> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut random = [0; 32];
    (unhex(words.nth(1)?, &mut random) == Some(32)).then_some(random)
}

/// Decodes hexadecimal into `out`, in constant time; how many bytes there were, if they are that and fit.
fn unhex(text: &[u8], out: &mut [u8]) -> Option<usize> {
    base16ct::mixed::decode(text, out).ok().map(<[u8]>::len)
}

#[cfg(test)]
mod tests;
