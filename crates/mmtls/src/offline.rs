//! A capture file through the same engine as live traffic.
//!
//! Refuses nothing that is readable: packets before a damaged place are handled, then the damage
//! is reported.

use std::path::Path;

use mmtls_engine::session::Handler;
use mmtls_engine::tls::{CipherSuite, OpenRecord, ProtocolVersion};
use mmtls_engine::{
    Config, Engine, FrameInput, KeysNeeded, Link, Output, Policy, PortId, SharedKeys,
};
use mmtls_packet_io::capture::{self, CaptureReader, Item, SecretsKind};

use crate::keylog::KeyLog;
use crate::{Error, keys};

/// What early data can be protected with; a secret of 48 bytes fits the last one only.
const EARLY_SUITES: [CipherSuite; 5] = [
    CipherSuite::TLS_AES_128_GCM_SHA256,
    CipherSuite::TLS_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_AES_128_CCM_SHA256,
    CipherSuite::TLS_AES_128_CCM_8_SHA256,
    CipherSuite::TLS_AES_256_GCM_SHA384,
];

/// The engine configuration for captures: nothing can be held back any more, so every policy
/// lets things pass; checksums are often wrong because of offloading.
#[must_use]
pub fn config() -> Config {
    let mut config = Config::new(Policy::Bypass);
    config.policies.integrity_failure = Policy::Forward;
    config.policies.lost_synchronisation = Policy::Bypass;
    config.policies.memory_cap = Policy::Bypass;
    config.inline = false;
    config.supports = keys::supports;
    config.verify_checksums = false;
    config
}

/// Replays a capture into a handler, with the keys of a key log file and of the capture itself.
///
/// # Errors
/// When a file cannot be read. A damaged capture is an error too, but only after everything
/// before the damage was handled; see [`Replay`] to keep the handler then.
pub fn replay<H: Handler>(capture: &Path, keylog: Option<&Path>, handler: H) -> Result<H, Error> {
    let keys = match keylog {
        Some(path) => load_keylog(path)?,
        None => KeyLog::new(),
    };
    let mut replay = Replay::new(config(), keys, handler);
    replay.run(capture)?;
    Ok(replay.finish())
}

/// Reads a key log file.
///
/// # Errors
/// When it cannot be read. Malformed lines are counted, not errors.
pub fn load_keylog(path: &Path) -> Result<KeyLog, Error> {
    let file = std::fs::File::open(path).map_err(Error::file(path))?;
    KeyLog::load(file).map_err(Error::file(path))
}

/// An engine that is fed from captures.
pub struct Replay<H: Handler> {
    engine: Engine<H>,
    keys: KeyLog,
}

impl<H: Handler> Replay<H> {
    /// An engine that knows these keys.
    #[must_use]
    pub fn new(config: Config, keys: KeyLog, handler: H) -> Self {
        Self { engine: Engine::new(config, handler), keys }
    }

    /// The engine, for its counters and its handler.
    #[must_use]
    pub fn engine(&self) -> &Engine<H> {
        &self.engine
    }

    /// Replays one file and returns what its reader warns about.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Capture`]; everything before the damage was handled.
    pub fn run(&mut self, path: &Path) -> Result<Vec<capture::CaptureWarning>, Error> {
        let file = std::fs::File::open(path).map_err(Error::file(path))?;
        let damaged = |error| Error::Capture { path: path.to_owned(), error };
        let mut reader = CaptureReader::new(file).map_err(damaged)?;
        while let Some(item) = reader.next().map_err(damaged)? {
            match item {
                Item::Packet { timestamp_ns, link, bytes, .. } => {
                    let link = match link {
                        capture::Link::Ethernet => Link::Ethernet,
                        capture::Link::Ip => Link::Ip,
                    };
                    self.handle_packet(timestamp_ns, link, bytes);
                }
                Item::Secrets { kind: SecretsKind::TLS_KEY_LOG, bytes } => {
                    self.keys.add_text(bytes);
                }
                Item::Secrets { .. } => {}
            }
        }
        Ok(reader.warnings())
    }

    /// Handles one packet.
    pub fn handle_packet(&mut self, timestamp_ns: u64, link: Link, bytes: &[u8]) {
        if self.engine.next_timeout().is_some_and(|due| due <= timestamp_ns) {
            self.engine.handle_timeout(timestamp_ns);
            self.drain(timestamp_ns);
        }
        let frame = FrameInput { port: PortId(0), link, bytes, checksum_trusted: false };
        // Whatever the verdict, the packet has long been where it was going.
        let _ = self.engine.handle_frame(timestamp_ns, &frame);
        self.drain(timestamp_ns);
    }

    /// Ends every session.
    pub fn end(&mut self) {
        self.engine.finish();
    }

    /// Ends every session and gives the handler back.
    #[must_use]
    pub fn finish(mut self) -> H {
        self.end();
        self.engine.into_handler()
    }

    fn drain(&mut self, now_ns: u64) {
        while let Some(output) = self.engine.poll_output() {
            if let Output::KeysNeeded(wanted) = output
                && let Some(keys) = self.find(&wanted)
            {
                // A refusal is counted by the engine.
                let _ = self.engine.handle_keys(now_ns, keys);
            }
        }
    }

    fn find(&mut self, wanted: &KeysNeeded) -> Option<SharedKeys> {
        // Nothing on the wire tells the suite of early data: each one that the secret fits is
        // offered, and the records tell.
        let suites = match &wanted.cipher_suite {
            Some(suite) => core::slice::from_ref(suite),
            None => &EARLY_SUITES,
        };
        let openers = suites.iter().filter_map(|suite| self.opener(wanted, *suite));
        let keys: Vec<_> = openers.map(|opener| (wanted.direction, wanted.epoch, opener)).collect();
        (!keys.is_empty()).then_some(SharedKeys {
            sender: None,
            client_random: wanted.client_random,
            server_random: wanted.server_random,
            cipher_suite: suites[0],
            keys,
        })
    }

    fn opener(&self, wanted: &KeysNeeded, suite: CipherSuite) -> Option<Box<dyn OpenRecord>> {
        let (client_random, direction) = (&wanted.client_random, wanted.direction);
        let keys = match wanted.version {
            ProtocolVersion::TLS_1_2 => {
                let server_random = wanted.server_random.as_ref()?;
                self.keys.lookup_tls12(client_random, server_random, direction, suite)?
            }
            _ => self.keys.lookup(client_random, direction, suite, wanted.epoch)?,
        };
        let (key, iv, mac_key) = (keys.key(), keys.iv(), keys.mac_key());
        mmtls_record::open_record(wanted.version.0, suite.0, key, iv, mac_key).ok()
    }
}
