//! `mmtls run`: the inline monitor, or a passive one.
//!
//! Refuses to start without an explicit answer to missing keys where it can give one, and to keep
//! privileges that it no longer needs.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Args;
use mmtls::check;
use mmtls::config::{self, File, Places};
use mmtls::control::{Controls, Desks};
use mmtls::eve::{Origin, STANDARD_OUTPUT};
use mmtls::monitor::{Inspect, Monitor, MonitorConfig, Stops};
use mmtls::patterns::PatternConfig;
use mmtls::reload::Exchange;
use mmtls::rules::RulesConfig;
use mmtls::sandbox::calls::KEY_CHANNEL;
use mmtls::stats::Snapshots;
use mmtls_engine::Policy;
use mmtls_middlebox::Error;
use mmtls_middlebox::config::{PolicyName, address_and_port};
use mmtls_middlebox::{Middlebox, Settings};

use super::confine;
use super::prepare::{Prepared, prepare};
use super::reload::{Parts, Reload, told_exceptions, told_policies};
use super::report::{
    ReportArgs, check_mirror, check_streams, describe_rules, host_name, print_profile,
};
use super::say::{Behind, say};
use super::service::{self, Service};
use super::services::{Services, run_facts, why_not_forwarded};
use super::signals::Signals;
use super::stats::StatsAggregator;
use super::take_over::{self, Vacancy, take_over};

#[derive(Args, Clone)]
pub struct RunArgs {
    /// The two interfaces to bridge.
    #[arg(long, value_name = "IF1:IF2")]
    inline: Option<String>,
    /// Instead: interfaces that are only looked at; somebody else forwards, and nothing is sent but the RSTs of rules with
    /// `reject` (passive.reset_interface).
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
    /// Serve metrics in Prometheus' format at http://ADDR:PORT/metrics.
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Serve a page that shows the run, at a loopback address: http://ADDR:PORT/#TOKEN, which is told at the start.
    #[arg(long, value_name = "ADDR:PORT")]
    web: Option<SocketAddr>,
    /// Take questions and orders of `mmtls ctl` at this socket.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Configuration file; options given here win.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and exit.
    #[arg(short = 'T', long = "test-config")]
    test_config: bool,
    /// Send decrypted sessions as TCP conversations in the clear to this interface.
    #[arg(long, value_name = "IF")]
    mirror: Option<String>,
    /// Take the place of the run whose control socket this is: it ends once everything here is ready, and what it listened
    /// at is listened at again. Where nobody answers, there is none.
    #[arg(long, value_name = "PATH", conflicts_with = "test_config")]
    take_over: Option<PathBuf>,
    /// Write the original packets of TLS sessions into this pcapng file; capture.secrets in the configuration file puts the
    /// key log's secrets before them.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Keep every file, connection and system call that this user has, as [sandbox] with enabled = false.
    #[arg(long)]
    no_sandbox: bool,
    #[command(flatten)]
    report: ReportArgs,
}

pub fn run(args: &RunArgs) -> Result<ExitCode, Error> {
    let tell = |lines: Vec<String>| lines.iter().for_each(|line| say(line));
    let counts_costs = args.report.profile_rules;
    let configure =
        move |file: &File, settings: &Settings| monitor_config(file, settings, counts_costs);
    let prepared = configured(args).map_err(tell).ok();
    let prepared = prepared.and_then(|(file, places)| {
        prepare(file, &places, args.test_config, args.take_over.is_some(), configure)
    });
    let Some(Prepared { file, settings, monitor: monitor_config }) = prepared else {
        return Ok(ExitCode::FAILURE);
    };
    if args.test_config {
        let _ = writeln!(std::io::stdout(), "configuration is valid");
        return Ok(ExitCode::SUCCESS);
    }
    args.take_over.iter().try_for_each(|socket| take_over::check(socket, &file, &settings))?;
    // Before any file is opened that could end up in a core dump.
    mmtls_middlebox::harden::forbid_dumps()?;
    if file.sandbox.lock_memory {
        mmtls::sandbox::lock_memory().map_err(confine::usage)?;
    }
    let signals = Signals::register()?;
    let mistake = |error: mmtls::monitor::MonitorError| Error::Usage(error.to_string());
    let first = Monitor::new(&monitor_config).map_err(mistake)?;
    let rules_reset = first.rules().is_some_and(|rules| rules.matcher().can_drop());
    if let Some(rules) = first.rules() {
        describe_rules(rules.matcher().len(), rules.skipped(), &mut say);
    }
    let (rules, recent) = (first.reloader(), first.recent());
    let mut monitors = Vec::new();
    for _ in 1..settings.workers {
        monitors.push(first.share());
    }
    monitors.insert(0, first);
    let told = told_exceptions(&file, &settings, rules_reset);
    let policies = told_policies(&settings);
    let interfaces = match (&settings.bridge.left, &settings.bridge.right) {
        (left, Some(right)) => format!("{left} and {right}"),
        (left, None) => left.clone(),
    };
    let open_to_all = file.keys.accept_from.0.any && file.keys.client_ca_file.is_none();
    let passive = settings.bridge.passive;
    let when_down = match settings.bridge.fails_open {
        true => "; fails open",
        false => "",
    };
    let doing = if passive { "watching" } else { "bridging" };

    let without = match (passive, settings.bridge.fails_open) {
        (true, _) => "nobody watches",
        (false, true) => "what a guard forwards passes uninspected, and nothing else",
        (false, false) => "nothing is forwarded",
    };
    let vacancy = args.take_over.as_ref().map(|socket| take_over(socket, without)).transpose()?;
    // Ports, and the socket's directory, may need privileges.
    let services = Services::open(&file)?;
    let mut facts = run_facts(&file, &settings, told.clone());
    let limits = settings.engine.limits;
    let key_certificate_end = check::key_certificate_end(&settings);
    let settings =
        Settings { key_log_tap: monitors.first().and_then(Monitor::key_log_tap), ..settings };
    service::connect();
    let process = std::fs::File::open("/proc/self/status").ok();
    let lists = monitors.first().and_then(Monitor::rules).map(|rules| rules.lists().to_vec());
    let sandbox = confine::of_run(
        args.config.as_deref(),
        &file,
        &monitor_config,
        lists.as_deref().unwrap_or_default(),
    );
    let middlebox = Middlebox::open_confined(settings, || {
        sandbox.enter().map_err(confine::usage)?.iter().for_each(|text| say(text));
        confine::thread(&file.sandbox, KEY_CHANNEL)
    })?;
    if let Some(why_not) = why_not_forwarded(&middlebox) {
        facts.kernel_forwarding = why_not;
    }
    check_streams(monitor_config.streams_dir.as_deref())?;
    check_mirror(file.mirror.file.as_deref())?;
    check_mirror(file.capture.file.as_deref())?;
    if file.capture.secrets {
        say(
            "warning: capture.secrets: whoever has the capture reads what is in its sessions, and can pretend to be in them",
        );
    }
    for warning in middlebox.warnings() {
        say(&format!("warning: {warning}"));
    }
    say(&policies);
    for exceptions in &told {
        say(exceptions);
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
    for output in &file.log.outputs {
        let elsewhere = |it: &SocketAddr| !it.ip().to_canonical().is_loopback();
        if let Some(address) = output.address().filter(elsewhere) {
            say(&format!(
                "warning: log.outputs: redis {address} is another machine: lines, and the password, go there in the clear"
            ));
        }
    }
    if middlebox.workers() > 1 {
        say(&format!("{} workers", middlebox.workers()));
    }
    say(&format!("{doing} {interfaces}, keys on {}{when_down}", middlebox.keys_address()));

    let stats_interval = Duration::from_secs(file.log.stats_interval_seconds);
    let workers = middlebox.workers();
    let snapshots = Arc::new(Snapshots::new(workers, middlebox.key_meter(), limits, rules.clone()));
    snapshots.set_key_certificate_end(key_certificate_end);
    let desks = Arc::new(Desks::new(workers));
    let stats = Arc::new(StatsAggregator::new(
        Arc::clone(&snapshots),
        Arc::clone(&desks),
        workers,
        stats_interval,
        passive,
    ));
    let facts = Arc::new(Mutex::new(Arc::new(facts)));
    let (again, stats_of_reload) = (args.clone(), Arc::clone(&stats));
    let reload = Reload::new(Parts {
        read: Box::new(move || configured(&again)),
        configure: Box::new(configure),
        certificates: middlebox.key_certificates(),
        rules,
        exchange: Arc::new(Exchange::new(workers)),
        facts: Arc::clone(&facts),
        snapshots: Arc::clone(&snapshots),
        set_stats_interval: Box::new(move |interval| stats_of_reload.set_interval(interval)),
        running: Mutex::new(file.clone()),
        runs: AtomicBool::new(false),
    });
    let reread = reload.clone();
    let controls = Controls {
        facts,
        snapshots: Arc::clone(&snapshots),
        desks,
        reload: Box::new(move || reread.now()),
        stop: Arc::clone(&signals.stop),
        drain: Arc::default(),
        process,
        say,
    };
    // Bound to a name, so that the file is there until the end.
    let _socket_file = services.start(snapshots, controls, recent)?;
    // Here, so that it inherits no capabilities and is bound to no worker's processor.
    for monitor in &mut monitors {
        let what = "the threads that write eve.json, outputs, streams and the mirror";
        monitor.write_behind().map_err(|error| Error::System { what, error })?;
    }
    // Until the end of everything that is said.
    let _behind = Behind::start()?;
    let service = Service::start(middlebox.workers(), format!("{doing} {interfaces}"))?;
    vacancy.into_iter().for_each(Vacancy::fill);
    let finished = middlebox.run(monitors, &signals.stop, |number, worker| {
        stats.tick(number, worker, &signals, &reload);
        service.tick(number);
    });
    drop(service);
    let mut monitors = Vec::new();
    for (number, (mut monitor, status)) in finished.workers.into_iter().enumerate() {
        stats.flush(&mut monitor);
        stats.put(number, status, &monitor);
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
        stats.put(number, *status, monitor);
    }
    stats.print(&mut std::io::stdout());
    // All workers apply the same ones.
    if let Some(rules) = monitors.first().and_then(|(first, _)| first.rules()) {
        print_profile(&mut std::io::stdout(), rules.matcher());
    }
    finished.result?;
    Ok(if stats.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Options and file together, and where each setting comes from.
///
/// # Errors
/// A line for each thing that makes no sense.
fn configured(args: &RunArgs) -> Result<(File, Places), Vec<String>> {
    let (mut file, mut places) = match &args.config {
        Some(path) => config::load(path)?,
        None => (File::default(), Places::default()),
    };
    let mut mistakes = Vec::new();
    apply(args, &mut file, &mut mistakes);
    note_options(args, &mut places);
    if mistakes.is_empty() { Ok((file, places)) } else { Err(mistakes) }
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
        (args.metrics.is_some(), "metrics.listen", "--metrics"),
        (args.web.is_some(), "web.listen", "--web"),
        (args.control.is_some(), "control.socket", "--control"),
        (args.mirror.is_some(), "mirror.interface", "--mirror"),
        (args.capture.is_some(), "capture.file", "--capture"),
        (report.write.is_some(), "mirror.file", "--write"),
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
    file.metrics.listen = args.metrics.or(file.metrics.listen);
    file.web.listen = args.web.or(file.web.listen);
    let or = |option: &Option<PathBuf>, place: &mut Option<PathBuf>| {
        if option.is_some() {
            place.clone_from(option);
        }
    };
    file.sandbox.enabled &= !args.no_sandbox;
    or(&args.control, &mut file.control.socket);
    or(&args.capture, &mut file.capture.file);
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
    or(&args.report.write, &mut file.mirror.file);
    file.mirror.interface = args.mirror.clone().or(file.mirror.interface.take());
    or(&args.report.patterns, &mut file.inspect.patterns_file);
    if !args.report.only_rules.is_empty() {
        file.inspect.rules_files.clone_from(&args.report.only_rules);
    }
    file.inspect.rules_files.extend_from_slice(&args.report.rules);
    file.inspect.plaintext = args.report.plaintext.or(file.inspect.plaintext);
    file.inspect.pattern_action = args.report.pattern_action.unwrap_or(file.inspect.pattern_action);
}

pub(super) fn monitor_config(
    file: &File,
    settings: &Settings,
    counts_costs: bool,
) -> MonitorConfig {
    let action = file.inspect.pattern_action.into();
    let patterns = file.inspect.patterns_file.clone();
    let bridge = &settings.bridge;
    let interfaces = [Some(&bridge.left), bridge.right.as_ref()].into_iter().flatten().cloned();
    let interfaces: Vec<String> = interfaces.collect();
    // A passive monitor does not learn which of two a frame came in by.
    let interfaces = if bridge.passive { vec![interfaces.join(":")] } else { interfaces };
    MonitorConfig {
        eve_dir: file.log.directory.clone(),
        eve_rotation: file.log.rotation(),
        eve_outputs: file.log.outputs.clone(),
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
        keeps_recent: file.web.listen.is_some(),
        empty_flows_per_second: Some(file.log.empty_flows_per_second),
        streams_dir: file.log.streams_directory.clone(),
        mirror: file.mirror(bridge),
        capture: file.capture.clone(),
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
