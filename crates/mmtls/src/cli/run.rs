//! `mmtls run`: the inline monitor.
//!
//! Refuses to start without an explicit answer to missing keys, and to keep privileges that it no
//! longer needs.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use mmtls::Error;
use mmtls::config::{self, BypassRule, File, PolicyName};
use mmtls::harden;
use mmtls::inline::{self, KeyInput, Worker};
use mmtls::keylog::{self, live::LiveKeys};
use mmtls::keys;
use mmtls::monitor::{Inspect, Monitor, MonitorConfig};
use mmtls::patterns::{PatternConfig, Patterns};
use mmtls::summary::Summary;
use mmtls_engine::{Config, Counters, Engine, Policy};
use mmtls_keyshare::server::{Identity, Server, ServerConfig, StartError};
use mmtls_packet_io::af_packet::{Bridge, BridgeConfig, WakeFd};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::ReportArgs;

#[derive(Args)]
pub struct RunArgs {
    /// The two interfaces to bridge.
    #[arg(long, value_name = "IF1:IF2")]
    inline: Option<String>,
    /// Take keys from endpoints at this address.
    #[arg(long, value_name = "ADDR:PORT")]
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
    /// Configuration file; options given here win.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check the configuration and exit.
    #[arg(short = 'T', long = "test-config")]
    test_config: bool,
    #[command(flatten)]
    report: ReportArgs,
}

/// Everything that is needed, from file and options together.
struct Settings {
    bridge: BridgeConfig,
    server: ServerConfig,
    engine: Config,
    monitor: MonitorConfig,
    worker: inline::Settings,
    stats_interval: Duration,
}

pub fn run(args: &RunArgs) -> Result<ExitCode, Error> {
    let file = match &args.config {
        Some(path) => config::load(path)?,
        None => File::default(),
    };
    let settings = settings(args, file)?;
    if args.test_config {
        settings.check()?;
        let _ = writeln!(std::io::stdout(), "configuration is valid");
        return Ok(ExitCode::SUCCESS);
    }
    harden::forbid_dumps()?;
    harden::allow_descriptors(settings.server.max_connections as u64 + harden::SPARE_DESCRIPTORS)?;
    let stop = Arc::new(AtomicBool::new(false));
    let report = Arc::new(AtomicBool::new(false));
    let reopen = Arc::new(AtomicBool::new(false));
    for (signal, flag) in [(SIGINT, &stop), (SIGTERM, &stop), (SIGUSR1, &report), (SIGHUP, &reopen)]
    {
        signal_hook::flag::register(signal, Arc::clone(flag))
            .map_err(|error| Error::System { what: "signal handlers", error })?;
    }

    let monitor =
        Monitor::new(&settings.monitor).map_err(|error| Error::Usage(error.to_string()))?;
    let bridge = Bridge::open(&settings.bridge).map_err(Error::Interface)?;
    let wake = WakeFd::new().map_err(|error| Error::System { what: "eventfd", error })?;
    let wake = Arc::new(wake);
    let (sink, queue, desk) = keys::queue(Arc::clone(&wake));
    // The port may need privileges; the server's thread inherits what this one has left.
    let key_server = |error: StartError| Error::KeyServer(error.to_string());
    let lines = sink.lines();
    let server = Server::bind(settings.server, sink).map_err(key_server)?;
    harden::drop_capabilities()?;
    let server = server.start().map_err(key_server)?;
    if let Some(path) = &args.keylog {
        keylog::follow::start(path.clone(), lines)
            .map_err(|error| Error::System { what: "key log thread", error })?;
    }
    let log = args.keylog.as_ref().map(|_| LiveKeys::default());
    let keys = KeyInput { queue, wake, desk, server: Some(server.handle()), log };

    let started = format!(
        "bridging {} and {}, keys on {}",
        settings.bridge.left,
        settings.bridge.right,
        server.local_addr()
    );
    let policies: Vec<String> = settings
        .engine
        .policies
        .list()
        .iter()
        .map(|(name, policy)| format!("{name}={}", policy.name()))
        .collect();
    for warning in bridge.warnings() {
        say(&format!("warning: {warning}"));
    }
    say(&format!("policies: {}", policies.join(" ")));
    if server.local_addr().ip().is_unspecified() {
        say("warning: keys are taken on every address of this host; if clients reach one across \
             the bridge, name it in policies.bypass");
    }
    say(&started);

    let mut worker =
        Worker::new(bridge, Engine::new(settings.engine, monitor), keys, settings.worker);
    let start = Instant::now();
    let mut next_stats = start + settings.stats_interval;
    let outcome = worker.run(&stop, |worker| {
        let counters = *worker.engine().counters();
        let now_ns = worker.now_ns();
        worker.handler_mut().set_now(now_ns);
        if Instant::now() >= next_stats {
            next_stats += settings.stats_interval;
            let all = all_counters(worker, &server);
            worker.handler_mut().write_stats(start.elapsed(), &all);
        }
        for error in worker.handler_mut().flush() {
            say(&error.to_string());
        }
        if reopen.swap(false, Ordering::Relaxed)
            && let Err(error) = worker.handler_mut().reopen_log()
        {
            say(&format!("the log goes on in the old file: {error}"));
        }
        if let Some(message) = worker.take_message() {
            say(&message);
        }
        if report.swap(false, Ordering::Relaxed) {
            print_summary(&mut std::io::stderr(), worker.engine().handler().summary(), &counters);
        }
    });
    worker.finish();
    let counters = *worker.engine().counters();
    let all = all_counters(&worker, &server);
    let mut monitor = worker.into_handler();
    monitor.write_stats(start.elapsed(), &all);
    let lost = monitor.flush();
    for error in &lost {
        say(&error.to_string());
    }
    print_summary(&mut std::io::stdout(), monitor.summary(), &counters);
    outcome?;
    Ok(if lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Settings {
    /// What a start would find wrong in files, without opening sockets or writing anything.
    fn check(&self) -> Result<(), Error> {
        self.server.check().map_err(|error| Error::KeyServer(error.to_string()))?;
        if let Some(patterns) = &self.monitor.patterns {
            Patterns::load(patterns).map_err(|error| Error::Usage(error.to_string()))?;
        }
        Ok(())
    }
}

/// One line for the operator. Where nobody reads it any more, the bridge goes on.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "mmtls: {text}");
}

fn settings(args: &RunArgs, file: File) -> Result<Settings, Error> {
    let interfaces = match &args.inline {
        Some(pair) => match pair.split_once(':') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => {
                [left.to_owned(), right.to_owned()]
            }
            _ => return usage("--inline takes two interface names: IF1:IF2"),
        },
        None => file.inline.interfaces.clone().ok_or_else(|| missing("--inline IF1:IF2"))?,
    };
    let [left, right] = interfaces;
    let missing_keys = match &args.missing_keys {
        Some(name) => Policy::from_name(name),
        None => file.policies.missing_keys.map(|PolicyName(policy)| policy),
    }
    .ok_or_else(|| missing("--missing-keys forward|reset"))?;

    let mut engine = Config::new(missing_keys);
    engine.policies = file.policies.policies(missing_keys);
    engine.limits = file.limits.limits();
    engine.mid_stream_grace_ns = file.limits.mid_stream_grace_seconds.saturating_mul(1_000_000_000);
    engine.supports = keys::supports;
    engine.any_key_sender = file.keys.accept_any_sender;
    engine.hash_seed = random_seed()?;

    let need = |option: Option<&PathBuf>, file: Option<PathBuf>, name| {
        option.cloned().or(file).ok_or_else(|| missing(name))
    };
    let listen =
        args.keys_listen.or(file.keys.listen).ok_or_else(|| missing("--keys-listen ADDR:PORT"))?;
    let identity = Identity {
        certificate_file: need(
            args.key_cert.as_ref(),
            file.keys.certificate_file,
            "--key-cert FILE",
        )?,
        key_file: need(args.key_key.as_ref(), file.keys.key_file, "--key-key FILE")?,
    };
    let mut server = ServerConfig::new(listen, identity);
    server.client_ca_file = args.keys_client_ca.clone().or(file.keys.client_ca_file);
    server.max_connections = file.keys.max_connections;
    engine.bypass = file.policies.bypass.iter().map(|BypassRule(bypass)| *bypass).collect();
    // The session that brings keys has none itself.
    if !listen.ip().is_unspecified() {
        engine.bypass.push(config::only(listen));
    }

    let action = args.report.pattern_action.unwrap_or(file.inspect.pattern_action).into();
    let patterns = args.report.patterns.clone().or(file.inspect.patterns_file);
    let monitor = MonitorConfig {
        eve_dir: args.report.log_dir.clone().or(file.log.directory),
        streams_dir: args.report.streams.clone().or(file.log.streams_directory),
        patterns: patterns.map(|file| PatternConfig { file, action }),
        inspect: if file.inspect.decrypt { Inspect::Http } else { Inspect::Nothing },
        inspect_limit_bytes: file.inspect.limit_bytes,
    };
    let mut bridge = BridgeConfig::new(left, right);
    bridge.batch = file.inline.batch_frames;
    bridge.socket_buffer_bytes = file.inline.socket_buffer_bytes;
    let stats_interval = Duration::from_secs(file.log.stats_interval_seconds);
    let moderation = Duration::from_micros(file.inline.moderation_microseconds);
    let worker = inline::Settings { batch: bridge.batch, moderation };
    Ok(Settings { bridge, server, engine, monitor, worker, stats_interval })
}

fn missing(what: &str) -> Error {
    Error::Usage(format!("{what} is needed, as an option or in the configuration file"))
}

fn usage<T>(text: &str) -> Result<T, Error> {
    Err(Error::Usage(text.to_owned()))
}

/// Hash keys that an attacker cannot know.
fn random_seed() -> Result<[u64; 4], Error> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::System {
        what: "random numbers",
        error: std::io::Error::other("the crypto library has none"),
    })?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([0, 1, 2, 3].map(|at| u64::from_ne_bytes(words[at])))
}

/// Counters by name, for `stats` records.
pub fn counter_map(counters: &Counters) -> BTreeMap<&'static str, u64> {
    counters.list().collect()
}

/// Frames that a port lost: in the kernel, for their length, for their kind of offload, and when
/// they were to be sent.
const LEFT: [&str; 4] =
    ["left_kernel_drops", "left_bad_length", "left_bad_offload", "left_send_errors"];
const RIGHT: [&str; 4] =
    ["right_kernel_drops", "right_bad_length", "right_bad_offload", "right_send_errors"];

fn all_counters(worker: &Worker<Monitor>, server: &Server) -> BTreeMap<&'static str, u64> {
    let mut all = counter_map(worker.engine().counters());
    all.insert("flows_now", worker.engine().flow_count() as u64);
    all.insert("buffered_bytes_now", worker.engine().buffered_bytes() as u64);
    all.insert("held_frames_now", worker.held_frames() as u64);
    all.insert("offloads_refused", worker.refused_offloads());
    all.insert("interface_downs", worker.interface_downs());
    let bridge = worker.bridge().counters();
    for (names, port) in [(LEFT, &bridge.left), (RIGHT, &bridge.right)] {
        let lost = [
            port.kernel_dropped,
            port.truncated + port.runts,
            port.unsupported_offload,
            port.send_errors.total(),
        ];
        all.extend(names.into_iter().zip(lost));
    }
    let server = server.handle().counters();
    all.insert("key_connections_now", server.open);
    all.insert("key_connections_refused", server.over_limit);
    all.insert("key_messages_skipped", server.skipped);
    all.insert("key_messages_undelivered", server.undelivered);
    all.insert("key_connections", server.accepted);
    all.insert("key_messages", server.messages);
    all.insert("key_messages_malformed", server.malformed);
    all.insert("key_handshakes_failed", server.failed_handshakes);
    all.insert("key_queue_full", worker.desk().queue_full.load(Ordering::Relaxed));
    all.insert("keys_unusable", worker.desk().unusable.load(Ordering::Relaxed));
    all
}

/// Prints the summary and what the engine did to frames.
pub fn print_summary(out: &mut impl Write, summary: &Summary, counters: &Counters) {
    // Where nobody reads it, nothing is lost.
    let _ = write!(out, "{summary}");
    let _ = writeln!(
        out,
        "frames: {} (forwarded {}, held {}, dropped {})",
        counters.frames, counters.forwarded, counters.held, counters.dropped
    );
}
