//! A whole middlebox: the bridged interfaces, the key server, and one worker per processor that
//! runs the application.
//!
//! `mmtls run` is one of these, and so is every program on the handler trait:
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use mmtls::middlebox::{Middlebox, Settings};
//! use mmtls::session::{Handler, Session};
//!
//! struct Names;
//!
//! impl Handler for Names {
//!     type State = ();
//!
//!     fn handshake_end(&mut self, session: &mut Session<'_>, _state: &mut ()) {
//!         println!("{:?}", session.info().server_name);
//!     }
//! }
//!
//! let file = mmtls::config::load("mmtls.toml".as_ref())?;
//! let middlebox = Middlebox::open(Settings::from_file(&file)?)?;
//! let handlers = (0..middlebox.workers()).map(|_| Names).collect();
//! let stop = AtomicBool::new(false);
//! middlebox.run(handlers, &stop, |_number, _worker| {}).result?;
//! # Ok::<(), mmtls::Error>(())
//! ```
//!
//! Nothing is shared between workers: each has its own sockets, engine, and handler, and both
//! directions of a connection come to the same one.
//!
//! Refuses to start without an explicit answer to missing keys, and to keep privileges that it no
//! longer needs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mmtls_engine::session::Handler;
use mmtls_engine::{Awaited, Config, Counters, Engine, Limits, Policies, Policy, Share};
use mmtls_keyshare::server::{Identity, Server, ServerConfig, ServerCounters, StartError};
use mmtls_packet_io::Counters as PortsCounters;
use mmtls_packet_io::af_packet::{Bridge, BridgeConfig, Steering, Warning};

use crate::config::{self, BypassRule, File, PolicyName};
use crate::inline::{self, KeyInput, Worker};
use crate::keylog::follow::{self, Follower};
use crate::keylog::live::LiveKeys;
use crate::keys::{self, Inbox, KeyDesk};
use crate::{Error, harden, offline};

/// Descriptors that one worker may need: its sockets, its wake, its application's stream files.
const DESCRIPTORS_PER_WORKER: u64 = 192;

/// Socket buffers are for all workers together, but no worker's gets smaller than this: some sixty
/// super-frames.
const MIN_SOCKET_BUFFER: usize = 4 << 20;

/// A passive monitor's least `stall_max_bytes`.
const PASSIVE_STALL_BYTES: usize = 64 << 20;

/// A passive monitor's longest idle timeout, which is Suricata's usual one.
const PASSIVE_IDLE_NS: u64 = 600_000_000_000;

/// Everything that a middlebox is started with; the application's own settings are not among it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Interfaces.
    pub bridge: BridgeConfig,
    /// Key server.
    pub server: ServerConfig,
    /// Policies and caps. The caps are for all workers together.
    pub engine: Config,
    /// How frames are moved.
    pub worker: inline::Settings,
    /// How many workers.
    pub workers: u32,
    /// Processors that workers are bound to, the first worker to the first one; empty binds none.
    pub cpus: Vec<usize>,
    /// A key log that is followed, a file or a FIFO.
    pub key_log: Option<PathBuf>,
}

impl Settings {
    /// What a configuration file says.
    ///
    /// # Errors
    /// [`Error::Usage`] names what is missing or makes no sense.
    pub fn from_file(file: &File) -> Result<Self, Error> {
        if file.offline.capture_file.is_some() {
            let text = "section [offline] is for programs that use the C library; a capture is read \
                        with `mmtls read`";
            return Err(Error::Usage(text.to_owned()));
        }
        let bridge = bridge(file)?;
        let passive = bridge.passive;
        let missing_keys = match file.policies.missing_keys {
            None if passive => Policy::Forward,
            // What it cannot do is refused below.
            Some(PolicyName(policy)) if passive => policy,
            Some(PolicyName(policy @ (Policy::Forward | Policy::Reset))) => policy,
            Some(PolicyName(policy)) => {
                let name = policy.name();
                let text = format!("policies.missing_keys must be forward or reset, not {name}");
                return Err(Error::Usage(text));
            }
            None => return Err(missing("--missing-keys forward|reset", "policies.missing_keys")),
        };
        let mut engine = Config::new(missing_keys);
        engine.inline = !passive;
        engine.policies = match passive {
            true => passive_policies(file)?,
            false => file.policies.policies(Policies::new(missing_keys)),
        };
        engine.limits = file.limits.limits();
        if passive {
            // Nothing slows a sender down whose keys are late, and nothing depends on knowing who
            // has long been silent.
            let Limits { stall_max_bytes, idle_timeout_ns, .. } = &mut engine.limits;
            *stall_max_bytes = (*stall_max_bytes).max(PASSIVE_STALL_BYTES);
            *idle_timeout_ns = (*idle_timeout_ns).min(PASSIVE_IDLE_NS);
        }
        engine.mid_stream_grace_ns =
            file.limits.mid_stream_grace_seconds.saturating_mul(1_000_000_000);
        if let Some(ports) = &file.policies.tls_ports {
            engine.tls_ports.clone_from(ports);
        }
        engine.supports = keys::supports;
        engine.any_key_sender = file.keys.accept_any_sender;

        let listen =
            file.keys.listen.ok_or_else(|| missing("--keys-listen ADDR:PORT", "keys.listen"))?;
        let need =
            |file: &Option<PathBuf>, option, key| file.clone().ok_or_else(|| missing(option, key));
        let identity = Identity {
            certificate_file: need(
                &file.keys.certificate_file,
                "--key-cert FILE",
                "keys.certificate_file",
            )?,
            key_file: need(&file.keys.key_file, "--key-key FILE", "keys.key_file")?,
        };
        let mut server = ServerConfig::new(listen, identity);
        server.client_ca_file = file.keys.client_ca_file.clone();
        server.max_connections = file.keys.max_connections;
        engine.bypass = file.policies.bypass.iter().map(|BypassRule(bypass)| *bypass).collect();
        // The session that brings keys has none itself.
        if !listen.ip().is_unspecified() {
            engine.bypass.push(config::only(listen));
        }

        let moderation = Duration::from_micros(file.inline.moderation_microseconds);
        let worker = inline::Settings { batch: bridge.batch, moderation, passive };
        let workers = file.workers.count;
        let cpus = match &file.workers.cpus {
            Some(cpus) if !cpus.is_empty() && cpus.len() != workers as usize => {
                let text = "workers.cpus must name one processor for each worker, or none";
                return Err(Error::Usage(text.to_owned()));
            }
            Some(cpus) => cpus.clone(),
            // One worker gains nothing from staying where it is.
            None if workers == 1 => Vec::new(),
            None => harden::allowed_cpus()?.into_iter().cycle().take(workers as usize).collect(),
        };
        let key_log = file.keys.log_file.clone();
        Ok(Self { bridge, server, engine, worker, workers, cpus, key_log })
    }

    /// Finds what a start would find wrong on this machine, without opening a socket; not the key
    /// log, see [`Settings::check_key_log`].
    ///
    /// # Errors
    /// Those that [`Middlebox::open`] and [`Middlebox::run`] would give.
    pub fn check(&self) -> Result<(), Error> {
        self.server.check().map_err(|error| Error::KeyServer(error.to_string()))?;
        if i32::try_from(self.socket_buffer()).is_err() {
            let text = "inline.socket_buffer_bytes must be below 2 GiB for each worker";
            return Err(Error::Usage(text.to_owned()));
        }
        self.cpus.iter().try_for_each(|cpu| harden::check_cpu(*cpu))
    }

    /// Finds out whether the key log could be followed, if it is there. What counts is what the
    /// caller may do: a middlebox has dropped its capabilities then.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check_key_log(&self) -> Result<(), Error> {
        match &self.key_log {
            Some(path) => follow::check(path).map_err(key_log_error(path)),
            None => Ok(()),
        }
    }

    /// One worker's share of the socket buffers.
    fn socket_buffer(&self) -> usize {
        let buffer = self.bridge.socket_buffer_bytes;
        (buffer / self.workers.max(1) as usize).max(buffer.min(MIN_SOCKET_BUFFER))
    }
}

/// The interfaces.
fn bridge(file: &File) -> Result<BridgeConfig, Error> {
    let mut bridge = match (&file.inline.interfaces, &file.passive.interfaces) {
        (Some([left, right]), None) => BridgeConfig::new(left, right),
        (None, Some(interfaces)) => {
            let (left, right) = match interfaces.as_slice() {
                [one] => (one, None),
                [left, right] => (left, Some(right.clone())),
                _ => {
                    let text = "passive.interfaces must name one interface or two";
                    return Err(Error::Usage(text.to_owned()));
                }
            };
            BridgeConfig { right, passive: true, ..BridgeConfig::new(left, "") }
        }
        (Some(_), Some(_)) => {
            let text = "inline.interfaces (--inline) excludes passive.interfaces (--passive)";
            return Err(Error::Usage(text.to_owned()));
        }
        (None, None) => {
            let option = "--inline IF1:IF2 (or --passive IF1[:IF2])";
            return Err(missing(option, "inline.interfaces"));
        }
    };
    bridge.batch = file.inline.batch_frames;
    bridge.socket_buffer_bytes = file.inline.socket_buffer_bytes;
    bridge.coalesce = file.inline.coalesce;
    Ok(bridge)
}

/// The policies of a middlebox that only looks: it can stop nothing, and must not be asked to.
fn passive_policies(file: &File) -> Result<Policies, Error> {
    // As for captures, which have been where they were going, too.
    let defaults = Policies { missing_keys: Policy::Forward, ..offline::config().policies };
    let policies = file.policies.policies(defaults);
    let impossible = |(name, policy): &(&str, Policy)| match policy {
        Policy::Drop | Policy::Reset => Some(format!("policies.{name} = \"{}\"", policy.name())),
        Policy::Forward | Policy::Bypass => None,
    };
    let asked = policies.list().iter().find_map(impossible).or_else(|| {
        let reset = file.inspect.pattern_action == config::ActionName::Reset;
        reset.then(|| "inspect.pattern_action = \"reset\" (--pattern-action)".to_owned())
    });
    match asked {
        Some(setting) => Err(Error::Usage(format!(
            "{setting} needs --inline: a passive monitor can stop nothing"
        ))),
        None => Ok(policies),
    }
}

/// What is wrong with a key log that is there and cannot be followed.
fn key_log_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    |error| {
        let hint = match error.kind() {
            std::io::ErrorKind::PermissionDenied => {
                " (capabilities are given up before it is opened: its mode must let this user)"
            }
            _ => "",
        };
        Error::Usage(format!("key log {}: {error}{hint}", path.display()))
    }
}

fn missing(option: &str, key: &str) -> Error {
    Error::Usage(format!("{option} is needed, or {key} in the configuration file"))
}

/// An opened middlebox: frames are being received, and wait for [`Middlebox::run`].
pub struct Middlebox {
    bridges: Vec<Bridge>,
    inboxes: Vec<Inbox>,
    desk: Arc<KeyDesk>,
    server: Server,
    settings: Settings,
    steering: Steering,
    follower: Option<Follower>,
}

/// Counters that all workers share.
#[derive(Clone, Copy, Debug)]
pub struct KeyCounters {
    /// The key server's.
    pub server: ServerCounters,
    /// Deliveries dropped because a worker's queue was full.
    pub queue_full: u64,
    /// Deliveries whose keys fit no supported suite.
    pub unusable: u64,
}

/// Reads [`KeyCounters`] from any thread.
#[derive(Clone)]
pub struct KeyMeter {
    server: mmtls_keyshare::server::ServerHandle,
    desk: Arc<KeyDesk>,
}

impl KeyMeter {
    /// The counters now.
    #[must_use]
    pub fn read(&self) -> KeyCounters {
        KeyCounters {
            server: self.server.counters(),
            queue_full: self.desk.queue_full.load(Ordering::Relaxed),
            unusable: self.desk.unusable.load(Ordering::Relaxed),
        }
    }

    /// Why the key log that is followed cannot be read, once. It is tried again in any case.
    #[must_use]
    pub fn take_key_log_error(&self) -> Option<std::io::Error> {
        self.desk.take_log_error()
    }
}

/// What a worker has counted, and what it keeps at the moment.
#[derive(Clone, Copy, Default, Debug)]
pub struct Status {
    /// The engine's counters.
    pub engine: Counters,
    /// The interfaces' counters, as this worker's sockets saw them.
    pub bridge: PortsCounters,
    /// Flows in the table.
    pub flows: u64,
    /// Bytes kept.
    pub buffered_bytes: u64,
    /// Frames held.
    pub held_frames: u64,
    /// Frames dropped because finishing their checksum would have changed their content.
    pub refused_offloads: u64,
    /// How often an interface went down.
    pub interface_downs: u64,
}

impl core::ops::AddAssign<&Self> for Status {
    /// That of another worker. All of them see an interface go down.
    fn add_assign(&mut self, other: &Self) {
        self.engine += other.engine;
        self.bridge += other.bridge;
        self.flows += other.flows;
        self.buffered_bytes += other.buffered_bytes;
        self.held_frames += other.held_frames;
        self.refused_offloads += other.refused_offloads;
        self.interface_downs = self.interface_downs.max(other.interface_downs);
    }
}

/// How a run ended.
pub struct Finished<H> {
    /// The handlers, in the order of the workers, and what their workers counted.
    pub workers: Vec<(H, Status)>,
    /// The first error that ended a worker, and with it all of them.
    pub result: Result<(), Error>,
}

impl Middlebox {
    /// Opens interfaces and key server, then drops this process's capabilities and core dumps.
    /// Threads started before keep theirs.
    ///
    /// # Errors
    /// All of [`Error`].
    pub fn open(settings: Settings) -> Result<Self, Error> {
        let mut settings = settings;
        settings.workers = settings.workers.max(1);
        settings.bridge.socket_buffer_bytes = settings.socket_buffer();
        harden::forbid_dumps()?;
        let workers = u64::from(settings.workers) * DESCRIPTORS_PER_WORKER;
        let connections = settings.server.max_connections as u64;
        harden::allow_descriptors(connections + harden::SPARE_DESCRIPTORS + workers)?;
        let random = random_words()?;
        settings.engine.hash_seed = [random[0], random[1], random[2], random[3]];
        // Truncation takes some of the random bits.
        let steering = Steering { bridges: settings.workers, seed: random[4] as u32 };

        let bridges = Bridge::open_shared(&settings.bridge, steering).map_err(Error::Interface)?;
        let (sink, inboxes, desk) =
            keys::queues(steering).map_err(|error| Error::System { what: "eventfd", error })?;
        // The port may need privileges; the server's thread inherits what this one has left.
        let key_server = |error: StartError| Error::KeyServer(error.to_string());
        let lines = sink.lines();
        let server = Server::bind(settings.server.clone(), sink).map_err(key_server)?;
        harden::drop_capabilities()?;
        let server = server.start().map_err(key_server)?;
        let follower = match &settings.key_log {
            Some(path) => Some(Follower::start(path.clone(), lines).map_err(key_log_error(path))?),
            None => None,
        };
        Ok(Self { bridges, inboxes, desk, server, settings, steering, follower })
    }

    /// How many workers there are: as many handlers are needed.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.bridges.len()
    }

    /// Where keys are taken.
    #[must_use]
    pub fn keys_address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// What is suspicious about the interfaces.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.bridges.iter().flat_map(Bridge::warnings)
    }

    /// Reads the key channel's counters while the middlebox runs.
    #[must_use]
    pub fn key_meter(&self) -> KeyMeter {
        KeyMeter { server: self.server.handle(), desk: Arc::clone(&self.desk) }
    }

    /// Moves frames until `stop` is set, which every error does: the first worker on the calling
    /// thread, each further one on a thread of its own. `tick` runs on every worker's thread several
    /// times a second.
    ///
    /// # Panics
    /// When there are not as many handlers as [`Middlebox::workers`], and when a handler panics.
    pub fn run<H: Handler + Send>(
        self,
        handlers: Vec<H>,
        stop: &AtomicBool,
        tick: impl Fn(usize, &mut Worker<H, Bridge>) + Sync,
    ) -> Finished<H> {
        // Bound to a name, so that the key log is followed until the end.
        let Self { bridges, inboxes, desk, server, settings, steering, follower: _follower } = self;
        assert_eq!(handlers.len(), bridges.len(), "one handler for each worker");
        let parts = bridges.into_iter().zip(inboxes).zip(handlers).enumerate();
        let (settings, tick) = (&settings, &tick);
        let mut jobs = parts.map(|(number, ((bridge, inbox), handler))| {
            let log = settings.key_log.as_ref().map(|_| LiveKeys::default());
            let (desk, watched) = (Arc::clone(&desk), Arc::clone(&desk));
            let any_sender = settings.engine.any_key_sender;
            let keys = KeyInput { inbox, desk, any_sender, server: Some(server.handle()), log };
            move || {
                let ending = StopAtEnd(stop);
                let mut config = engine_config(settings, steering, number);
                // A key log's lines come without any connection.
                config.awaited = settings.key_log.is_none().then(|| awaited(watched, any_sender));
                let engine = Engine::new(config, handler);
                let mut worker = Worker::new(bridge, engine, keys, settings.worker);
                let result = place(settings, number)
                    .and_then(|()| worker.run(stop, |worker| tick(number, worker)));
                drop(ending);
                worker.finish();
                let status = worker.status();
                (worker.into_handler(), status, result)
            }
        });
        let (outcomes, failed) = std::thread::scope(|scope| {
            let first = jobs.next();
            let others: Vec<_> = jobs
                .enumerate()
                .map(|(at, job)| {
                    let thread = std::thread::Builder::new().name(format!("worker-{}", at + 1));
                    thread.spawn_scoped(scope, job)
                })
                .collect();
            if others.iter().any(Result::is_err) {
                stop.store(true, Ordering::Relaxed);
            }
            let mut outcomes: Vec<_> = first.into_iter().map(|job| job()).collect();
            let mut failed = None;
            for other in others {
                match other.map(std::thread::ScopedJoinHandle::join) {
                    Ok(Ok(outcome)) => outcomes.push(outcome),
                    Ok(Err(panic)) => std::panic::resume_unwind(panic),
                    Err(error) => failed = Some(error),
                }
            }
            (outcomes, failed)
        });
        let failed = failed.map(|error| Error::System { what: "worker thread", error });
        let mut finished = Finished { workers: Vec::new(), result: failed.map_or(Ok(()), Err) };
        for (handler, status, result) in outcomes {
            finished.workers.push((handler, status));
            finished.result = finished.result.and(result);
        }
        finished
    }
}

/// Sets a flag when it goes, also when that is because of a panic: a worker that moves nothing any
/// more must not leave the others half a network.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What one of several engines is started with: its share of everything.
fn engine_config(settings: &Settings, steering: Steering, number: usize) -> Config {
    let mut config = settings.engine.clone();
    if settings.workers > 1 {
        let of = |whole: usize| whole.div_ceil(settings.workers as usize);
        let Limits { max_flows, max_buffered_bytes, max_held_frames, max_pending_keys, .. } =
            config.limits;
        config.limits.max_flows = of(max_flows);
        config.limits.max_buffered_bytes = of(max_buffered_bytes);
        config.limits.max_held_frames = of(max_held_frames);
        config.limits.max_pending_keys = of(max_pending_keys);
        config.share = Some(Share {
            // At most as many as there are workers.
            own: number as u32,
            engines: steering.bridges,
            seed: steering.seed,
            owner: |bridges, seed, one, other| Steering { bridges, seed }.bridge_of(one, other),
        });
    }
    config
}

/// Who is awaited: clients whose agent, or where any may deliver, some agent is connected.
fn awaited(desk: Arc<KeyDesk>, any_sender: bool) -> Awaited {
    Awaited(Arc::new(move |address| desk.is_connected((!any_sender).then_some(address))))
}

/// Binds the calling thread to its worker's processor.
fn place(settings: &Settings, number: usize) -> Result<(), Error> {
    settings.cpus.get(number).map_or(Ok(()), |cpu| harden::bind_to_cpu(*cpu))
}

/// Numbers that an attacker cannot know.
fn random_words() -> Result<[u64; 5], Error> {
    let mut bytes = [0; 40];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::System {
        what: "random numbers",
        error: std::io::Error::other("the crypto library has none"),
    })?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok([0, 1, 2, 3, 4].map(|at| u64::from_ne_bytes(words[at])))
}
