//! What a run takes over while it runs: its configuration file, rules, patterns and the key channel's certificates are read again,
//! and what has changed is exchanged.
//!
//! By a thread of its own, since thousands of rules take a second. All or nothing: where anything is wrong, or cannot
//! change, what is in force stays. Refuses to be done twice at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mmtls::check;
use mmtls::config::{self, File, Places};
use mmtls::control::RunFacts;
use mmtls::monitor::MonitorConfig;
use mmtls::reload::{Change, Exchange};
use mmtls::rules::Reloader;
use mmtls::stats::Snapshots;
use mmtls_middlebox::{KeyCertificates, Settings};
use mmtls_packet_io::Ports;

use super::prepare::settings;
use super::say::say;
use super::service;
use super::services::run_facts;

/// Within this time all workers have had a tick, unless one stands still.
const TAKE_TIME: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

const KEPT: &str = "nothing was changed: what is in force stays";

/// Reads the configuration once more, options included.
pub type Read = dyn Fn() -> Result<(File, Places), Vec<String>> + Send + Sync;

/// How the application is configured by it.
pub type Configure = dyn Fn(&File, &Settings) -> MonitorConfig + Send + Sync;

/// Reads everything again that can be.
#[derive(Clone)]
pub struct Reload(Arc<Parts>);

/// What a reload reads, and where it puts it.
pub struct Parts {
    pub read: Box<Read>,
    pub configure: Box<Configure>,
    pub certificates: KeyCertificates,
    pub rules: Option<Reloader>,
    pub exchange: Arc<Exchange>,
    pub facts: Arc<Mutex<Arc<RunFacts>>>,
    pub snapshots: Arc<Snapshots>,
    /// Has `stats` records be that far apart.
    pub set_stats_interval: Box<dyn Fn(Duration) + Send + Sync>,
    /// What is in force.
    pub running: Mutex<File>,
    pub runs: AtomicBool,
}

impl Reload {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    /// Has a thread do it.
    pub fn start(&self) {
        let reload = self.clone();
        let thread = std::thread::Builder::new().name("reload".to_owned());
        if let Err(error) = thread.spawn(move || reload.now()) {
            self.0.snapshots.add_reload(false);
            say(&format!("reload: no thread: {error}; {KEPT}"));
        }
    }

    /// What a worker does at its tick.
    pub fn work<P: Ports>(
        &self,
        number: usize,
        worker: &mut mmtls_middlebox::worker::Worker<mmtls::monitor::Monitor, P>,
    ) {
        self.0.exchange.work(number, worker);
        if number == 0 && self.0.rules.as_ref().is_some_and(Reloader::has_unused) {
            self.free_rules();
        }
    }

    /// Has a thread free versions of the rules that nobody goes by any more.
    fn free_rules(&self) {
        let parts = Arc::clone(&self.0);
        let free = move || parts.rules.iter().for_each(Reloader::free_unused);
        let thread = std::thread::Builder::new().name("reload".to_owned());
        // Without a thread it is tried again at the next tick.
        let _ = thread.spawn(free);
    }

    /// Does it, tells the operator, and returns what was told.
    pub fn now(&self) -> Result<Vec<String>, Vec<String>> {
        let Self(parts) = self;
        if parts.runs.swap(true, Ordering::AcqRel) {
            let text = "reload: another one is under way".to_owned();
            say(&text);
            return Err(vec![text]);
        }
        service::reloading();
        let mut outcome = parts.all();
        if let Err(mistakes) = &mut outcome {
            mistakes.push(KEPT.to_owned());
        }
        parts.snapshots.add_reload(outcome.is_ok());
        service::ready();
        // Who reads what is told may ask for the next one at once.
        parts.runs.store(false, Ordering::Release);
        let (Ok(told) | Err(told)) = &outcome;
        told.iter().for_each(|text| say(&format!("reload: {text}")));
        outcome
    }
}

impl Parts {
    /// Reads and checks everything, and only then exchanges anything.
    fn all(&self) -> Result<Vec<String>, Vec<String>> {
        let (file, places) = (self.read)()?;
        let mut running = lock(&self.running);
        let changed = config::changes(&running, &file, &places)?;
        let mut settings = settings(&file, &places)?;
        let monitor = (self.configure)(&file, &settings);
        settings.engine.tell_hellos = monitor.wants_hellos();
        let mut mistakes = Vec::new();
        let mut mistake = |text: String| mistakes.push(text);
        let certificates = self.certificates.read(&settings).map_err(|it| mistake(it.to_string()));
        let patterns = monitor.load_patterns().map_err(|it| mistake(it.to_string()));
        let rules = self.rules.as_ref().zip(monitor.rules.as_ref());
        let rules =
            rules.map(|(rules, config)| rules.read(config).map(|read| (rules, config, read)));
        let rules = rules.transpose().map_err(|it| mistake(it.to_string()));
        let (Ok(certificates), Ok(patterns), Ok(rules)) = (certificates, patterns, rules) else {
            return Err(mistakes);
        };

        // Nothing fails from here on.
        let mut told: Vec<String> =
            check::certificates(&settings, &places).iter().map(ToString::to_string).collect();
        self.certificates.exchange(certificates);
        told.push("certificates: in force for connections to come".to_owned());
        if let Some((rules, config, read)) = rules {
            let now = rules.exchange(config.clone(), read);
            told.push(format!("rules: read again, {} active, {} skipped", now.active, now.skipped));
        }
        if !changed.is_empty() {
            told.push(format!("changed: {}", changed.join(", ")));
        }
        if changed.iter().any(|key| key.starts_with("policies.")) {
            told.push(told_policies(&settings));
        }
        self.put_facts(&file, &settings, &mut told);
        self.snapshots.set_limits(settings.engine.limits);
        self.snapshots.set_key_certificate_end(check::key_certificate_end(&settings));
        (self.set_stats_interval)(Duration::from_secs(file.log.stats_interval_seconds));
        self.exchange.put(Change { settings, monitor, patterns: patterns.map(Arc::new) });
        *running = file;
        if !self.has_been_taken() {
            told.push(
                "a worker has not taken it over yet, and does so at its next tick".to_owned(),
            );
        }
        Ok(told)
    }

    /// For who asks by the control socket, and what passes all the same.
    fn put_facts(&self, file: &File, settings: &Settings, told: &mut Vec<String>) {
        let can_drop = self.rules.as_ref().is_some_and(Reloader::can_drop);
        let exceptions = told_exceptions(file, settings, can_drop);
        let mut facts = lock(&self.facts);
        told.extend(exceptions.iter().filter(|it| !facts.exceptions.contains(it)).cloned());
        let kernel_forwarding = facts.kernel_forwarding.clone();
        *facts = Arc::new(RunFacts { kernel_forwarding, ..run_facts(file, settings, exceptions) });
    }

    /// Waits until every worker goes by it.
    fn has_been_taken(&self) -> bool {
        let end = Instant::now() + TAKE_TIME;
        while !self.exchange.is_in_force() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// What passes although sessions without keys do not, or though a pattern or rule resets its session.
pub fn told_exceptions(file: &File, settings: &Settings, rules_reset: bool) -> Vec<String> {
    let (grace, bypasses) =
        (file.limits.mid_stream_grace_seconds, !file.policies.bypass.is_empty());
    let exceptions = config::exceptions(&settings.engine, grace, bypasses);
    [exceptions, file.inspect.exceptions(rules_reset)].into_iter().flatten().collect()
}

/// All policies, for the operator.
pub fn told_policies(settings: &Settings) -> String {
    let policies = settings.engine.policies.list();
    let policies = policies.map(|(name, policy)| format!("{name}={}", policy.name()));
    format!("policies: {}", policies.join(" "))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
