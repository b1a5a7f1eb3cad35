//! What is read again while the monitor runs: rules, and the key channel's certificates.
//!
//! By a thread of its own, since thousands of rules take a second. Refuses to be done twice at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mmtls::rules::Reloader;
use mmtls_middlebox::KeyCertificates;

use super::say::say;
use super::service;

/// Reads everything again that can be.
#[derive(Clone)]
pub struct Reload {
    certificates: KeyCertificates,
    rules: Option<Reloader>,
    runs: Arc<AtomicBool>,
}

impl Reload {
    pub fn new(certificates: KeyCertificates, rules: Option<Reloader>) -> Self {
        Self { certificates, rules, runs: Arc::default() }
    }

    /// Has a thread do it.
    pub fn start(&self) {
        let reload = self.clone();
        let thread = std::thread::Builder::new().name("reload".to_owned());
        if let Err(error) = thread.spawn(move || reload.now()) {
            say(&format!("no thread to read rules and certificates: {error}; those in force stay"));
        }
    }

    /// Does it, tells the operator, and returns what was told; of what failed the last one stays in force.
    pub fn now(&self) -> Result<Vec<String>, Vec<String>> {
        if self.runs.swap(true, Ordering::AcqRel) {
            let text = "rules and certificates: still being read".to_owned();
            say(&text);
            return Err(vec![text]);
        }
        service::reloading();
        let mut failed = false;
        let mut outcome = |result: Result<String, String>| {
            failed |= result.is_err();
            let text = result.unwrap_or_else(|error| error);
            say(&text);
            text
        };
        let mut told = vec![outcome(match self.certificates.reload() {
            Ok(()) => Ok("certificates: in force for connections to come".to_owned()),
            Err(error) => Err(format!("{error}; the certificates in force stay")),
        })];
        told.extend(self.rules.as_ref().map(|rules| {
            outcome(match rules.reload() {
                Ok(now) => {
                    Ok(format!("rules: read again, {} active, {} skipped", now.active, now.skipped))
                }
                Err(error) => Err(format!("{error}; those in force stay")),
            })
        }));
        service::ready();
        self.runs.store(false, Ordering::Release);
        if failed { Err(told) } else { Ok(told) }
    }
}
