//! The secrets of a key log.
//!
//! Lines are parsed by [`mmtls_keyshare::keylog`]. Unknown labels are counted; malformed lines are counted, and the
//! first one's number is kept; the latest of repeated lines wins. Refuses to print a secret or to leave one in freed memory, and to use the
//! premaster secrets of old `RSA` lines, which would need the whole handshake. Exporter secrets
//! are not kept.

use std::io::{self, Read};

use mmtls_keyshare::keylog::{
    self, EchPart, Label, Line, LineError, MAX_ECH_BYTES, MAX_LINE_BYTES, MAX_SECRET_BYTES,
};
use mmtls_record::key_schedule::RecordKeys;
use mmtls_record::keyring::{self, Keyring, SessionParameters};
use mmtls_record::suite::TLS12;
use mmtls_record::{Direction, KeyEpoch};
use zeroize::Zeroizing;

use crate::ech_lines::EchLines;
use crate::store::Store;

/// Highest epoch of application keys that a secret is derived for, one hash after another.
pub const MAX_EPOCH: u32 = 64;

/// How reading went.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KeyLogReport {
    /// Lines read, of any kind.
    pub lines: u64,
    /// Secrets kept, repeated ones included.
    pub secrets: u64,
    /// Lines of Encrypted Client Hello that were kept, repeated ones included.
    pub ech: u64,
    /// Lines with a label that is not kept: unknown, exporters.
    pub other_labels: u64,
    /// `RSA` lines: premaster secrets of TLS 1.2, which are not used.
    pub rsa_premaster: u64,
    /// Lines that are not in the format.
    pub malformed: u64,
    /// Number of the first malformed line, from 1, and what is wrong with it.
    pub first_malformed: Option<(u64, LineError)>,
    /// Secrets and lines of Encrypted Client Hello that were not kept because there is no room for more.
    pub no_room: u64,
}

/// The secrets of a key log.
#[derive(Default)]
pub struct KeyLog {
    store: Store,
    ech: EchLines,
    report: KeyLogReport,
}

/// Of which session a line was kept.
pub(crate) enum Kept {
    /// A secret.
    Secret([u8; 32]),
    /// What opens the hello inside the one with this random.
    Ech([u8; 32]),
}

/// The number of a label in the store: below 64 what comes once in a session, then the epochs of both directions.
/// `None` for what is not kept: epochs beyond [`MAX_EPOCH`], and OpenSSL's updates without a number, which are derived.
fn label_number(label: Label) -> Option<u8> {
    let epoch = match label {
        Label::Master => return Some(3),
        Label::NextTraffic(_) => return None,
        Label::Traffic(_, epoch) if epoch > KeyEpoch::Application(MAX_EPOCH) => return None,
        Label::Traffic(direction, epoch) => (epoch, direction),
    };
    match epoch {
        (KeyEpoch::EarlyData, _) => Some(0),
        (KeyEpoch::Handshake, Direction::ClientToServer) => Some(1),
        (KeyEpoch::Handshake, Direction::ServerToClient) => Some(2),
        (KeyEpoch::Application(updates), Direction::ClientToServer) => {
            u8::try_from(updates).ok()?.checked_add(64)
        }
        (KeyEpoch::Application(updates), Direction::ServerToClient) => {
            u8::try_from(updates).ok()?.checked_add(160)
        }
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
            if skipping || filled - from > MAX_LINE_BYTES {
                if !skipping {
                    log.report.lines += 1;
                    log.count_malformed(LineError::TooLong);
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
        self.add_lines(text, |_| {});
    }

    /// The same; `kept` hears of each line that was kept.
    pub(crate) fn add_lines(&mut self, text: &[u8], mut kept: impl FnMut(Kept)) {
        let mut lines = text.split(|&byte| byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            // What follows the last line end is a line only if there is something.
            if (lines.peek().is_some() || !line.is_empty())
                && let Some(of) = self.add_line(line)
            {
                kept(of);
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

    /// How many hellos on the wire have lines of Encrypted Client Hello here.
    pub(crate) fn ech_hellos(&self) -> usize {
        self.ech.hellos()
    }

    /// The configuration and the shared secret of a hello on the wire, as far as they are here.
    pub(crate) fn ech(&self, client_random: &[u8; 32]) -> [Option<&[u8]>; 2] {
        [EchPart::Config, EchPart::Secret].map(|part| self.ech.get(client_random, part))
    }

    /// Whether there is any secret of a session.
    #[must_use]
    pub fn knows(&self, client_random: &[u8; 32]) -> bool {
        self.store.knows(client_random)
    }

    /// The suites of TLS 1.3 that a secret's length fits: nothing on the wire tells that of early data.
    pub fn candidate_suites(
        &self,
        client_random: &[u8; 32],
        direction: Direction,
        epoch: KeyEpoch,
    ) -> impl Iterator<Item = u16> + use<> {
        let label = label_number(Label::Traffic(direction, epoch));
        let secret = label.and_then(|label| self.store.get(client_random, label));
        // No secret is empty, and no hash.
        keyring::candidate_suites(secret.map_or(0, <[u8]>::len)).map(|suite| suite.number())
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

    /// A keyring with the secret that leads to the keys of a direction and epoch; see [`Self::record_keys`].
    #[must_use]
    pub fn keyring(
        &self,
        parameters: SessionParameters,
        direction: Direction,
        epoch: KeyEpoch,
    ) -> Option<Keyring> {
        let get = |label| self.store.get(&parameters.client_random, label_number(label)?);
        let mut keyring = Keyring::new(parameters, MAX_EPOCH).ok()?;
        if parameters.version == TLS12 {
            keyring.insert_master_secret(get(Label::Master)?).ok()?;
            return Some(keyring);
        }
        let known = |epoch| Some((epoch, get(Label::Traffic(direction, epoch))?));
        let (known, secret) = match epoch {
            KeyEpoch::Application(wanted) if wanted > MAX_EPOCH => return None,
            KeyEpoch::Application(wanted) => {
                (0..=wanted).rev().find_map(|updates| known(KeyEpoch::Application(updates)))?
            }
            epoch => known(epoch)?,
        };
        keyring.insert_traffic_secret(direction, known, secret).ok()?;
        Some(keyring)
    }

    /// Takes in a line, and returns of whom it was kept.
    fn add_line(&mut self, line: &[u8]) -> Option<Kept> {
        self.report.lines += 1;
        let mut buffer = Zeroizing::new([0; MAX_SECRET_BYTES]);
        let (label, client_random, secret) = match keylog::parse(line, &mut buffer) {
            Ok(Line::Secret { label, client_random, secret }) => (label, client_random, secret),
            Ok(Line::Ech { part, client_random, digits }) => {
                return self.add_ech(part, client_random, digits);
            }
            Ok(Line::Empty) => return None,
            Ok(Line::RsaPremaster) => {
                self.report.rsa_premaster += 1;
                return None;
            }
            Ok(Line::OtherLabel) => {
                self.report.other_labels += 1;
                return None;
            }
            Err(error) => {
                self.count_malformed(error);
                return None;
            }
        };
        let Some(number) = label_number(label) else {
            self.report.other_labels += 1;
            return None;
        };
        if !self.store.insert(client_random, number, secret) {
            self.report.no_room += 1;
            return None;
        }
        self.report.secrets += 1;
        Some(Kept::Secret(client_random))
    }

    fn add_ech(&mut self, part: EchPart, client_random: [u8; 32], digits: &[u8]) -> Option<Kept> {
        let mut buffer = Zeroizing::new([0; MAX_ECH_BYTES]);
        match keylog::decode_ech(digits, &mut buffer) {
            Ok(value) if self.ech.insert(client_random, part, value) => {
                self.report.ech += 1;
                Some(Kept::Ech(client_random))
            }
            Ok(_) => {
                self.report.no_room += 1;
                None
            }
            Err(error) => {
                self.count_malformed(error);
                None
            }
        }
    }

    fn count_malformed(&mut self, error: LineError) {
        self.report.malformed += 1;
        self.report.first_malformed.get_or_insert((self.report.lines, error));
    }
}

#[cfg(test)]
mod tests;
