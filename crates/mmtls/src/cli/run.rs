//! `mmtls run`: the inline monitor, or a passive one.
//!
//! Refuses to start without an explicit answer to missing keys where it can give one, and to keep
//! privileges that it no longer needs.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use mmtls::config::{self, File, Places};
use mmtls::eve::{Origin, STANDARD_OUTPUT};
use mmtls::monitor::{Inspect, Monitor, MonitorConfig, MonitorIoError, Stops};
use mmtls::patterns::PatternConfig;
use mmtls::rules::{Reloader, RulesConfig};
use mmtls::summary::Summary;
use mmtls_engine::Policy;
use mmtls_middlebox::Error;
use mmtls_middlebox::config::{PolicyName, address_and_port};
use mmtls_middlebox::worker::Worker;
use mmtls_middlebox::{KeyCertificates, KeyCounters, KeyMeter, Middlebox, Settings, Status};
use mmtls_packet_io::Ports;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::prepare::{Prepared, prepare};
use super::report::{
    ReportArgs, check_streams, counter_map, describe_rules, host_name, print_profile,
    print_summary, say,
};
use super::service::{self, Service};

#[derive(Args)]
pub struct RunArgs {
    /// The two interfaces to bridge.
    #[arg(long, value_name = "IF1:IF2")]
    inline: Option<String>,
    /// Instead: interfaces that are only looked at; somebody else forwards, and nothing is sent.
    #[arg(long, value_name = "IF1[:IF2]", conflicts_with = "inline")]
    passive: Option<String>,
    /// Take keys from endpoints at this address.
    #[arg(long, value_name = "ADDR:PORT", value_parser = address_and_port)]
    keys_listen: Option<SocketAddr>,
    /// PEM certificate that endpoints verify.
    #[arg(long, value_name = "FILE")]
    key_cert: Option<PathBuf>,
    /// PEM key of that certificate.
    #[arg(long, value_name = "FILE")]
    key_key: Option<PathBuf>,
    /// Require certificates of this authority from endpoints.
    #[arg(long, value_name = "FILE")]
    keys_client_ca: Option<PathBuf>,
    /// Follow a key log, too: a file as SSLKEYLOGFILE writes it, or a FIFO.
    #[arg(long, value_name = "FILE")]
    keylog: Option<PathBuf>,
    /// What to do with sessions whose keys do not come in time.
    #[arg(long, value_name = "POLICY", value_parser = ["forward", "reset"])]
    missing_keys: Option<String>,
    /// Threads that move frames and decrypt, 1 to 128.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=128))]
    workers: Option<u32>,
    /// Configuration file; options given here win.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and exit.
    #[arg(short = 'T', long = "test-config")]
    test_config: bool,
    #[command(flatten)]
    report: ReportArgs,
}

/// What the operator asked for by a signal.
#[derive(Default)]
struct Signals {
    stop: Arc<AtomicBool>,
    report: Arc<AtomicBool>,
    reopen: Arc<AtomicBool>,
}

pub fn run(args: &RunArgs) -> Result<ExitCode, Error> {
    let prepared = configured(args).and_then(|(file, places)| {
        prepare(file, &places, args.test_config, |file, settings| {
            monitor_config(file, settings, args.report.profile_rules)
        })
    });
    let Some(Prepared { file, settings, monitor: monitor_config }) = prepared else {
        return Ok(ExitCode::FAILURE);
    };
    if args.test_config {
        let _ = writeln!(std::io::stdout(), "configuration is valid");
        return Ok(ExitCode::SUCCESS);
    }
    // Before any file is opened that could end up in a core dump.
    mmtls_middlebox::harden::forbid_dumps()?;
    let signals = Signals::register()?;
    let mistake = |error: mmtls::monitor::MonitorError| Error::Usage(error.to_string());
    let first = Monitor::new(&monitor_config).map_err(mistake)?;
    let rules_reset = first.rules().is_some_and(|rules| rules.matcher().can_drop());
    if let Some(rules) = first.rules() {
        describe_rules(rules.matcher().len(), rules.skipped(), &mut say);
    }
    let rules = first.reloader();
    let mut monitors = Vec::new();
    for _ in 1..settings.workers {
        monitors.push(first.share(&monitor_config).map_err(mistake)?);
    }
    monitors.insert(0, first);
    let grace = file.limits.mid_stream_grace_seconds;
    let exceptions = config::exceptions(&settings.engine, grace);
    let uninspected = file.inspect.exceptions(rules_reset);
    let policies = settings.engine.policies.list();
    let policies: Vec<String> =
        policies.iter().map(|(name, policy)| format!("{name}={}", policy.name())).collect();
    let interfaces = match (&settings.bridge.left, &settings.bridge.right) {
        (left, Some(right)) => format!("{left} and {right}"),
        (left, None) => left.clone(),
    };
    let open_to_all = file.keys.accept_from.0.any && file.keys.client_ca_file.is_none();
    let passive = settings.bridge.passive;
    let doing = if passive { "watching" } else { "bridging" };

    let middlebox = Middlebox::open(settings)?;
    let reload = Reload::new(middlebox.key_certificates(), rules);
    check_streams(monitor_config.streams_dir.as_deref())?;
    for warning in middlebox.warnings() {
        say(&format!("warning: {warning}"));
    }
    say(&format!("policies: {}", policies.join(" ")));
    for exceptions in [exceptions, uninspected].into_iter().flatten() {
        say(&exceptions);
    }
    if middlebox.keys_address().ip().is_unspecified() {
        say("warning: keys are taken on every address of this host; if clients reach one across \
             the bridge, name it in policies.bypass");
    }
    if open_to_all {
        say(
            "warning: keys.accept_from = [\"any\"] without keys.client_ca_file: whoever reaches the key port and sees a \
             ClientHello can exempt its session (null keys), or have it end (keys that do not fit)",
        );
    }
    if middlebox.workers() > 1 {
        say(&format!("{} workers", middlebox.workers()));
    }
    say(&format!("{doing} {interfaces}, keys on {}", middlebox.keys_address()));

    let stats_interval = Duration::from_secs(file.log.stats_interval_seconds);
    let stats =
        StatsAggregator::new(middlebox.workers(), middlebox.key_meter(), stats_interval, passive);
    // Here, so that it inherits no capabilities and is bound to no worker's processor.
    for monitor in &mut monitors {
        let what = "the thread that writes eve.json";
        monitor.write_behind().map_err(|error| Error::System { what, error })?;
    }
    let service = Service::start(middlebox.workers(), format!("{doing} {interfaces}"))?;
    let finished = middlebox.run(monitors, &signals.stop, |number, worker| {
        stats.tick(number, worker, &signals, &reload);
        service.tick(number);
    });
    drop(service);
    let mut monitors = Vec::new();
    for (number, (mut monitor, status)) in finished.workers.into_iter().enumerate() {
        stats.flush(&mut monitor);
        stats.put(number, status, monitor.summary());
        monitors.push((monitor, status));
    }
    if let Some((first, _)) = monitors.first_mut() {
        stats.write_stats(first);
    }
    // What all of them wrote is in the file now, or is lost.
    for (monitor, _) in &mut monitors {
        stats.flush(monitor);
    }
    for (number, (monitor, status)) in monitors.iter_mut().enumerate() {
        stats.flush(monitor);
        stats.put(number, *status, monitor.summary());
    }
    stats.print(&mut std::io::stdout());
    // All workers apply the same ones.
    if let Some(rules) = monitors.first().and_then(|(first, _)| first.rules()) {
        print_profile(&mut std::io::stdout(), rules.matcher());
    }
    finished.result?;
    Ok(if stats.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Signals {
    fn register() -> Result<Self, Error> {
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

/// Rules and the key channel's certificates are read again, by a thread of its own: thousands of rules take a second.
struct Reload {
    certificates: KeyCertificates,
    rules: Option<Reloader>,
    runs: Arc<AtomicBool>,
}

impl Reload {
    fn new(certificates: KeyCertificates, rules: Option<Reloader>) -> Self {
        Self { certificates, rules, runs: Arc::default() }
    }

    fn start(&self) {
        if self.runs.swap(true, Ordering::Relaxed) {
            say("rules and certificates: still being read");
            return;
        }
        let (certificates, rules) = (self.certificates.clone(), self.rules.clone());
        let runs = Arc::clone(&self.runs);
        let work = move || {
            service::reloading();
            match certificates.reload() {
                Ok(()) => say("certificates: in force for connections to come"),
                Err(error) => say(&format!("{error}; the certificates in force stay")),
            }
            match rules.map(|rules| rules.reload()) {
                None => {}
                Some(Ok((active, skipped))) => {
                    say(&format!("rules: read again, {active} active, {skipped} skipped"));
                }
                Some(Err(error)) => say(&format!("{error}; those in force stay")),
            }
            service::ready();
            runs.store(false, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new().name("reload".to_owned()).spawn(work) {
            say(&format!("no thread to read rules and certificates: {error}; those in force stay"));
            self.runs.store(false, Ordering::Relaxed);
        }
    }
}

/// Where the workers say, several times a second, what they have counted.
struct StatsAggregator {
    start: Instant,
    workers: Vec<Mutex<(Status, Summary)>>,
    keys: KeyMeter,
    stats_interval: Duration,
    next_stats: Mutex<Instant>,
    passive: bool,
    /// The operator knows that the kernel drops frames.
    drops_reported: AtomicBool,
    /// Outputs that could not be written at the end.
    lost: AtomicUsize,
}

impl StatsAggregator {
    fn new(workers: usize, keys: KeyMeter, stats_interval: Duration, passive: bool) -> Self {
        let start = Instant::now();
        Self {
            start,
            workers: (0..workers).map(|_| Mutex::default()).collect(),
            keys,
            stats_interval,
            next_stats: Mutex::new(start + stats_interval),
            passive,
            drops_reported: AtomicBool::new(false),
            lost: AtomicUsize::new(0),
        }
    }

    fn put(&self, number: usize, status: Status, summary: &Summary) {
        if let Some(place) = self.workers.get(number) {
            *lock(place) = (status, summary.clone());
        }
    }

    /// What every worker does, and the first one for all.
    fn tick<P: Ports>(
        &self,
        number: usize,
        worker: &mut Worker<Monitor, P>,
        signals: &Signals,
        reload: &Reload,
    ) {
        let now_ns = worker.now_ns();
        worker.handler_mut().set_now(now_ns);
        for error in worker.handler_mut().flush() {
            say(&error.to_string());
        }
        let status = worker.status();
        self.put(number, status, worker.handler_mut().summary());
        if kernel_drops(&status) > 0 && !self.drops_reported.swap(true, Ordering::Relaxed) {
            say(
                "frames come faster than they are read, and the kernel drops some (kernel_drops in \
                 stats): more workers or a larger inline.socket_buffer_bytes may help",
            );
        }
        if number > 0 {
            return;
        }
        let due = Instant::now() >= *lock(&self.next_stats);
        if due {
            *lock(&self.next_stats) += self.stats_interval;
            self.write_stats(worker.handler_mut());
        }
        if signals.reopen.swap(false, Ordering::Relaxed) {
            worker.handler_mut().reopen_log();
            reload.start();
        }
        if let Some(error) = self.keys.take_key_log_error() {
            say(&format!("the key log cannot be read: {error}; going on when it can"));
        }
        // An interface that went down is the same for all workers.
        if let Some(message) = worker.take_message() {
            say(&message);
        }
        if signals.report.swap(false, Ordering::Relaxed) {
            self.print(&mut std::io::stderr());
        }
    }

    /// Writes what a monitor has buffered, at the end: an error is one of the outputs.
    fn flush(&self, monitor: &mut Monitor) {
        let failed = monitor.finish();
        for error in &failed {
            say(&error.to_string());
        }
        let lost = failed.iter().filter(|error| !matches!(error, MonitorIoError::Reopen(_)));
        self.lost.fetch_add(lost.count(), Ordering::Relaxed);
    }

    /// Whether the outputs hold all that they should; says what they lack.
    fn is_complete(&self) -> bool {
        let (_, summary) = self.sum();
        if summary.lost_log_lines > 0 {
            say(&format!("{} lines are missing in eve.json", summary.lost_log_lines));
        }
        if summary.failed_streams > 0 {
            say(&format!("the streams of {} sessions are incomplete", summary.failed_streams));
        }
        let errors = self.lost.load(Ordering::Relaxed) as u64;
        errors + summary.lost_log_lines + summary.failed_streams == 0
    }

    fn sum(&self) -> (Status, Summary) {
        let mut sum = (Status::default(), Summary::default());
        for worker in &self.workers {
            let worker = lock(worker);
            sum.0 += &worker.0;
            sum.1 += &worker.1;
        }
        sum
    }

    fn write_stats(&self, monitor: &mut Monitor) {
        let (status, summary) = self.sum();
        let mut all = status_map(&status);
        all.extend(key_map(&self.keys.read()));
        let each: Vec<_> = match self.workers.len() {
            1 => Vec::new(),
            _ => self.workers.iter().map(|worker| status_map(&lock(worker).0)).collect(),
        };
        monitor.write_stats(self.start.elapsed(), &summary, &all, &each);
    }

    /// Prints the sum, and what each of several workers had of it.
    fn print(&self, out: &mut impl Write) {
        let (status, summary) = self.sum();
        if self.passive {
            let (frames, lost) = (status.engine.frames, kernel_drops(&status));
            let _ = writeln!(out, "{summary}frames: {frames} (lost by the kernel {lost})");
        } else {
            print_summary(out, &summary, &status.engine);
        }
        if self.workers.len() == 1 {
            return;
        }
        for (number, worker) in self.workers.iter().enumerate() {
            // Not with the lock held: whoever reads may be slow.
            let (Status { engine, .. }, summary) = lock(worker).clone();
            let _ = writeln!(
                out,
                "worker {number}: frames {}, flows seen {}, TLS sessions {}, decrypted {}",
                engine.frames, summary.flows, summary.tls_sessions, summary.decrypted
            );
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Options and file together, and where each setting comes from; tells what makes no sense.
fn configured(args: &RunArgs) -> Option<(File, Places)> {
    let tell = |lines: Vec<String>| lines.iter().for_each(|line| say(line));
    let (mut file, mut places) = match &args.config {
        Some(path) => config::load(path).map_err(tell).ok()?,
        None => (File::default(), Places::default()),
    };
    let mut mistakes = Vec::new();
    apply(args, &mut file, &mut mistakes);
    note_options(args, &mut places);
    if mistakes.is_empty() {
        return Some((file, places));
    }
    tell(mistakes);
    None
}

/// Which settings come from the command line.
fn note_options(args: &RunArgs, places: &mut Places) {
    let RunArgs { inline, passive, keys_listen, key_cert, key_key, report, .. } = args;
    for (is_given, key, option) in [
        (inline.is_some(), "inline.interfaces", "--inline"),
        (passive.is_some(), "passive.interfaces", "--passive"),
        (keys_listen.is_some(), "keys.listen", "--keys-listen"),
        (key_cert.is_some(), "keys.certificate_file", "--key-cert"),
        (key_key.is_some(), "keys.key_file", "--key-key"),
        (args.keys_client_ca.is_some(), "keys.client_ca_file", "--keys-client-ca"),
        (args.keylog.is_some(), "keys.log_file", "--keylog"),
        (args.missing_keys.is_some(), "policies.missing_keys", "--missing-keys"),
        (args.workers.is_some(), "workers.count", "--workers"),
        (report.log_dir.is_some(), "log.directory", "--log-dir"),
        (report.streams.is_some(), "log.streams_directory", "--streams"),
        (report.patterns.is_some(), "inspect.patterns_file", "--patterns"),
        (report.pattern_action.is_some(), "inspect.pattern_action", "--pattern-action"),
        (report.plaintext.is_some(), "inspect.plaintext", "--plaintext"),
        (!report.only_rules.is_empty(), "inspect.rules_files", "--only-rules"),
    ] {
        if is_given {
            places.option(key, option);
        }
    }
}

/// Lets options win over the file.
fn apply(args: &RunArgs, file: &mut File, mistakes: &mut Vec<String>) {
    if let Some(names) = &args.passive {
        file.inline.interfaces = None;
        let names: Vec<String> = names.split(':').map(str::to_owned).collect();
        if names.len() > 2 || names.iter().any(String::is_empty) {
            mistakes.push("--passive takes one interface name or two: IF1[:IF2]".to_owned());
        }
        file.passive.interfaces = Some(names);
    }
    if let Some(pair) = &args.inline {
        file.passive.interfaces = None;
        file.inline.interfaces = match pair.split_once(':') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => {
                Some([left.to_owned(), right.to_owned()])
            }
            _ => {
                mistakes.push("--inline takes two interface names: IF1:IF2".to_owned());
                None
            }
        };
    }
    if let Some(count) = args.workers {
        file.workers.count = count;
    }
    if let Some(name) = &args.missing_keys {
        file.policies.missing_keys = Policy::from_name(name).map(PolicyName);
    }
    file.keys.listen = args.keys_listen.or(file.keys.listen);
    let or = |option: &Option<PathBuf>, place: &mut Option<PathBuf>| {
        if option.is_some() {
            place.clone_from(option);
        }
    };
    or(&args.key_cert, &mut file.keys.certificate_file);
    or(&args.key_key, &mut file.keys.key_file);
    or(&args.keys_client_ca, &mut file.keys.client_ca_file);
    or(&args.keylog, &mut file.keys.log_file);
    file.log.fileinfo |= args.report.fileinfo;
    or(&args.report.log_dir, &mut file.log.directory);
    if file.log.directory.as_deref() == Some(Path::new(STANDARD_OUTPUT)) {
        mistakes.push(
            "log.directory (-l): standard output is for `mmtls read`; name a directory".to_owned(),
        );
    }
    or(&args.report.streams, &mut file.log.streams_directory);
    or(&args.report.patterns, &mut file.inspect.patterns_file);
    if !args.report.only_rules.is_empty() {
        file.inspect.rules_files.clone_from(&args.report.only_rules);
    }
    file.inspect.rules_files.extend_from_slice(&args.report.rules);
    file.inspect.plaintext = args.report.plaintext.or(file.inspect.plaintext);
    file.inspect.pattern_action = args.report.pattern_action.unwrap_or(file.inspect.pattern_action);
}

fn monitor_config(file: &File, settings: &Settings, counts_costs: bool) -> MonitorConfig {
    let action = file.inspect.pattern_action.into();
    let patterns = file.inspect.patterns_file.clone();
    let bridge = &settings.bridge;
    let interfaces = [Some(&bridge.left), bridge.right.as_ref()].into_iter().flatten().cloned();
    let interfaces: Vec<String> = interfaces.collect();
    // A passive monitor does not learn which of two a frame came in by.
    let interfaces = if bridge.passive { vec![interfaces.join(":")] } else { interfaces };
    MonitorConfig {
        eve_dir: file.log.directory.clone(),
        origin: Origin {
            host: file.log.host.clone().or_else(host_name),
            interfaces,
            pcap_filename: None,
        },
        stops: match bridge.passive {
            false => Stops::Everything,
            true if bridge.reset_interface.is_some() => Stops::Rejects,
            true => Stops::Nothing,
        },
        fileinfo: file.log.fileinfo,
        fingerprints: file.log.fingerprints,
        empty_flows_per_second: Some(file.log.empty_flows_per_second),
        streams_dir: file.log.streams_directory.clone(),
        patterns: patterns.map(|file| PatternConfig { file, action }),
        rules: file.rules().map(|rules| RulesConfig {
            refuses_drop: bridge.passive,
            refuses_reject: bridge.passive && bridge.reset_interface.is_none(),
            refuses_faulty: true,
            counts_costs,
            ..rules
        }),
        inspect: if file.inspect.decrypt { Inspect::Http } else { Inspect::Nothing },
        inspect_limit_bytes: file.inspect.limit_bytes,
        limit_trusts_padding: file.inspect.limit_trusts_padding,
        uninspected_resets: file.inspect.uninspected_resets(false),
        uninspected_resets_beside_rules: file.inspect.uninspected_resets(true),
    }
}

/// Frames that a port lost: in the kernel, for their length, for their kind of offload, and when
/// they were to be sent. Then frames, and their bytes, that came in by it and that the kernel forwarded.
const LEFT: [&str; 6] = [
    "left_kernel_drops",
    "left_bad_length",
    "left_bad_offload",
    "left_send_errors",
    "left_kernel_forwarded",
    "left_kernel_forwarded_bytes",
];
const RIGHT: [&str; 6] = [
    "right_kernel_drops",
    "right_bad_length",
    "right_bad_offload",
    "right_send_errors",
    "right_kernel_forwarded",
    "right_kernel_forwarded_bytes",
];

fn kernel_drops(status: &Status) -> u64 {
    status.bridge.left.kernel_dropped + status.bridge.right.kernel_dropped
}

fn status_map(status: &Status) -> BTreeMap<&'static str, u64> {
    let mut all = counter_map(&status.engine);
    all.insert("flows_now", status.flows);
    all.insert("buffered_bytes_now", status.buffered_bytes);
    all.insert("held_frames_now", status.held_frames);
    all.insert("offloads_refused", status.refused_offloads);
    all.insert("interface_downs", status.interface_downs);
    for (names, port) in [(LEFT, &status.bridge.left), (RIGHT, &status.bridge.right)] {
        let counts = [
            port.kernel_dropped,
            port.truncated + port.runts,
            port.unsupported_offload,
            port.send_errors.total(),
            port.offloaded_frames,
            port.offloaded_bytes,
        ];
        all.extend(names.into_iter().zip(counts));
    }
    all
}

fn key_map(keys: &KeyCounters) -> [(&'static str, u64); 15] {
    let server = &keys.server;
    [
        ("key_connections_now", server.open),
        ("key_connections_refused", server.over_limit),
        ("key_messages_skipped", server.skipped),
        ("key_messages_undelivered", server.undelivered),
        ("key_connections", server.accepted),
        ("key_messages", server.messages),
        ("key_messages_malformed", server.malformed),
        ("key_handshakes_failed", server.failed_handshakes),
        ("key_queue_full", keys.queue_full),
        ("keys_unusable", keys.unusable),
        ("keys_sealed", keys.sealed.accepted),
        ("sealed_unknown", keys.sealed.unknown),
        ("sealed_forged", keys.sealed.forged),
        ("sealed_replayed", keys.sealed.replayed),
        ("sealed_malformed", keys.sealed.malformed),
    ]
}
