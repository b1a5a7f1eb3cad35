//! A capture file through the same engine as live traffic.
//!
//! Refuses nothing that is readable: packets before a damaged place are handled, then the damage
//! is reported.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use mmtls_engine::session::Handler;
use mmtls_engine::{
    Config, Engine, FrameInput, KeysNeeded, Link, Output, Policy, PortId, SharedKeys,
};
use mmtls_packet_io::capture::{self, CaptureReader, Item, SecretsKind};

use crate::keylog::{InnerRandoms, KeyLog, shared_keys, shared_keys_of};
use crate::{Error, keys};

/// The engine configuration for captures: nothing can be held back any more, so every policy
/// lets things pass; checksums are often wrong because of offloading.
#[must_use]
pub fn config() -> Config {
    let mut config = Config::new(Policy::Bypass);
    config.policies.integrity_failure = Policy::Forward;
    config.policies.lost_synchronisation = Policy::Bypass;
    config.policies.memory_cap = Policy::Bypass;
    config.policies.too_many_null_keys = Policy::Bypass;
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
    let file = File::open(path).map_err(Error::file(path))?;
    KeyLog::load(file).map_err(Error::file(path))
}

/// Sessions with Encrypted Client Hello in one of two generations: some of them are in a capture at the same time.
const MAX_ECH_SESSIONS: usize = 1 << 16;

/// An engine that is fed from captures.
pub struct Replay<H: Handler> {
    engine: Engine<H>,
    keys: KeyLog,
    randoms: InnerRandoms,
}

impl<H: Handler> Replay<H> {
    /// An engine that knows these keys.
    #[must_use]
    pub fn new(config: Config, keys: KeyLog, handler: H) -> Self {
        let randoms = InnerRandoms::new(MAX_ECH_SESSIONS);
        Self { engine: Engine::new(config, handler), keys, randoms }
    }

    /// The engine, for its counters and its handler.
    #[must_use]
    pub fn engine(&self) -> &Engine<H> {
        &self.engine
    }

    /// The handler.
    pub fn handler_mut(&mut self) -> &mut H {
        self.engine.handler_mut()
    }

    /// Replays one file and returns what its reader warns about.
    ///
    /// # Errors
    /// [`Error::File`] and [`Error::Capture`]; everything before the damage was handled.
    pub fn run(&mut self, path: &Path) -> Result<Vec<capture::CaptureWarning>, Error> {
        self.run_until(path, &AtomicBool::new(false))
    }

    /// As [`Replay::run`], and ends early once `stop` is set.
    ///
    /// # Errors
    /// As [`Replay::run`].
    pub fn run_until(
        &mut self,
        path: &Path,
        stop: &AtomicBool,
    ) -> Result<Vec<capture::CaptureWarning>, Error> {
        let file = File::open(path).map_err(Error::file(path))?;
        self.run_file(path, file, |_| !stop.load(Ordering::Relaxed))
    }

    /// As [`Replay::run`], with a file that was opened before: for those who drop their
    /// capabilities in between, as nobody should have any who reads captures of others. `path` is
    /// what errors call it. After each packet `goes_on` is asked whether to read on.
    ///
    /// # Errors
    /// As [`Replay::run`].
    pub fn run_file(
        &mut self,
        path: &Path,
        file: impl Read,
        mut goes_on: impl FnMut(&mut Engine<H>) -> bool,
    ) -> Result<Vec<capture::CaptureWarning>, Error> {
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
                    if !goes_on(&mut self.engine) {
                        break;
                    }
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
        while self.engine.next_timeout().is_some_and(|due| due <= timestamp_ns) {
            self.engine.handle_timeout(timestamp_ns);
            self.drain(timestamp_ns);
        }
        let frame =
            FrameInput { port: PortId(0), link, bytes, memory: None, checksum_trusted: false };
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

    /// Keys by the session's random, else by that of the hello inside.
    fn find(&mut self, wanted: &KeysNeeded) -> Option<SharedKeys> {
        let outer = wanted.client_random;
        if let Some(keys) = shared_keys(&self.keys, wanted) {
            return Some(keys);
        }
        if let Some(hello) = &wanted.client_hello {
            self.randoms.open(slice::from_ref(&self.keys), outer, hello);
        }
        shared_keys_of(&self.keys, self.randoms.inner(&outer)?, wanted)
    }
}
