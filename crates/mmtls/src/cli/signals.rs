//! What the operator asks for by a signal. Refuses to do anything in a handler but to set a flag.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mmtls_middlebox::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// What the operator asked for by a signal.
#[derive(Default)]
pub struct Signals {
    pub stop: Arc<AtomicBool>,
    pub report: Arc<AtomicBool>,
    pub reopen: Arc<AtomicBool>,
}

impl Signals {
    pub fn register() -> Result<Self, Error> {
        let signals = Self::default();
        let Self { stop, report, reopen } = &signals;
        for (signal, flag) in [(SIGINT, stop), (SIGTERM, stop), (SIGUSR1, report), (SIGHUP, reopen)]
        {
            signal_hook::flag::register(signal, Arc::clone(flag))
                .map_err(|error| Error::System { what: "signal handlers", error })?;
        }
        Ok(signals)
    }
}
