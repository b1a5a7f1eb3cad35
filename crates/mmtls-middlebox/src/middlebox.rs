//! A whole middlebox: the bridged interfaces, the key server, and one worker per processor that
//! runs the application.
//!
//! `mmtls run` is one of these, and so is every program on the handler trait:
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use mmtls_middlebox::config::Configuration;
//! use mmtls_middlebox::{Middlebox, Settings};
//! use mmtls_middlebox::session::{Handler, Session};
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
//! // Any format that serde reads; the crate `toml` for one.
//! # fn read() -> Configuration { Configuration::default() }
//! let configuration: Configuration = read();
//! let middlebox = Middlebox::open(Settings::from_configuration(&configuration)?)?;
//! let handlers = (0..middlebox.workers()).map(|_| Names).collect();
//! let stop = AtomicBool::new(false);
//! middlebox.run(handlers, &stop, |_number, _worker| {}).result?;
//! # Ok::<(), mmtls_middlebox::Error>(())
//! ```
//!
//! Nothing is shared between workers: each has its own sockets, engine, and handler, and both
//! directions of a connection come to the same one.
//!
//! Refuses to start without an explicit answer to missing keys, and to keep privileges that it no
//! longer needs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mmtls_engine::session::Handler;
use mmtls_engine::{Awaited, Config, Engine, KeySenders, Share};
use mmtls_keyshare::message;
use mmtls_keyshare::server::{
    Certificates, Server, ServerConfig, ServerCounters, ServerHandle, StartError,
};
use mmtls_packet_io::af_packet::{Bridge, Steering, Warning};
use mmtls_packet_io::{Outbox, Ports};

use crate::keylog::follow::Follower;
use crate::keylog::live_keys;
use crate::keys::sealed::SealedInput;
use crate::keys::{self, ConnectedAgent, KeyReceiver, KeyRouter, SealedCounters, WorkerSink};
use crate::settings::{Settings, key_log_error};
use crate::worker::{KeyInput, Worker};
use crate::{Error, Status, harden};

/// An opened middlebox: frames are being received, and wait for [`Middlebox::run`].
pub struct Middlebox<P = Bridge> {
    ports: Vec<P>,
    receivers: Vec<KeyReceiver>,
    router: Arc<KeyRouter>,
    server: Server,
    settings: Settings,
    share: Share,
    follower: Option<Follower>,
    /// For packets of key servers, where there may be some.
    sealed: Option<WorkerSink>,
}

/// Counters that all workers share.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyCounters {
    /// The key server's.
    pub server: ServerCounters,
    /// Deliveries dropped because a worker's queue was full.
    pub queue_full: u64,
    /// Deliveries whose keys fit no supported suite.
    pub unusable: u64,
    /// Packets of key servers.
    pub sealed: SealedCounters,
}

/// Reads [`KeyCounters`] from any thread.
#[derive(Clone)]
pub struct KeyMeter {
    server: ServerHandle,
    router: Arc<KeyRouter>,
}

/// Exchanges the key channel's certificates while the middlebox runs.
#[derive(Clone)]
pub struct KeyCertificates(ServerHandle);

/// Certificates that were read and are in force nowhere yet.
pub struct ReadCertificates(Certificates);

impl KeyCertificates {
    /// Reads those that `settings` name.
    ///
    /// # Errors
    /// [`Error::KeyServer`].
    pub fn read(&self, settings: &Settings) -> Result<ReadCertificates, Error> {
        let ServerConfig { identity, client_ca_file, .. } = &settings.server;
        let read = Certificates::read(identity, client_ca_file.as_deref());
        read.map(ReadCertificates).map_err(|error| Error::KeyServer(error.to_string()))
    }

    /// Puts them in force for connections that begin from now on: those that are there stay.
    pub fn exchange(&self, read: ReadCertificates) {
        self.0.exchange(read.0);
    }
}

impl KeyMeter {
    /// The counters now.
    #[must_use]
    pub fn read(&self) -> KeyCounters {
        KeyCounters {
            server: self.server.counters(),
            queue_full: self.router.queue_full.load(Ordering::Relaxed),
            unusable: self.router.unusable.load(Ordering::Relaxed),
            sealed: self.router.sealed_counters(),
        }
    }

    /// The endpoints that are connected.
    #[must_use]
    pub fn agents(&self) -> Vec<ConnectedAgent> {
        self.router.agents()
    }

    /// Why the key log that is followed cannot be read, once. It is tried again in any case.
    #[must_use]
    pub fn take_key_log_error(&self) -> Option<std::io::Error> {
        self.router.take_log_error()
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
        Self::open_confined(settings, || Ok(|| ()))
    }

    /// As [`Self::open`], for a program that confines its own process: `confine` is called when everything is open and
    /// there are no capabilities any more, before the first thread starts. What it returns is the first that the thread
    /// does which takes keys.
    ///
    /// # Errors
    /// All of [`Error`], and those of `confine`.
    pub fn open_confined<T: FnOnce() + Send + 'static>(
        mut settings: Settings,
        confine: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Self, Error> {
        settings.workers = settings.workers.max(1);
        settings.bridge.socket_buffer_bytes = settings.socket_buffer();
        // With a port they mean servers, and are looked at when a connection opens.
        let everything = settings.engine.bypass.iter().filter(|rule| rule.port.is_none());
        settings.bridge.left_alone =
            everything.map(|rule| (rule.address, rule.prefix_len)).collect();
        // Truncation takes some of the random bits.
        let steering = Steering { bridges: settings.workers, seed: random_words::<1>()?[0] as u32 };
        let share = Share {
            own: 0,
            engines: steering.bridges,
            seed: steering.seed,
            owner: |bridges, seed, one, other| Steering { bridges, seed }.bridge_of(one, other),
        };
        let Steering { bridges: workers, seed } = steering;
        let told = message::Steering { workers, seed };
        let open = |settings: &Settings| {
            Bridge::open_shared(&settings.bridge, steering).map_err(Error::Interface)
        };
        Self::start_steered(settings, share, Some(told), open, confine)
    }

    /// What is suspicious about the interfaces.
    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.ports.iter().flat_map(Bridge::warnings)
    }
}

impl<P: Ports> Middlebox<P> {
    /// As [`Middlebox::open`], on ports of any back end, which `open` gives: one pair for each worker, and
    /// all frames of a connection come to the pair that `share` names ([`Share::owner`]; `own` does not
    /// matter). `open` is the last that has this process's capabilities.
    ///
    /// # Errors
    /// All of [`Error`].
    pub fn start(
        settings: Settings,
        share: Share,
        open: impl FnOnce(&Settings) -> Result<Vec<P>, Error>,
    ) -> Result<Self, Error> {
        Self::start_steered(settings, share, None, open, || Ok(|| ()))
    }

    fn start_steered<T: FnOnce() + Send + 'static>(
        mut settings: Settings,
        share: Share,
        told: Option<message::Steering>,
        open: impl FnOnce(&Settings) -> Result<Vec<P>, Error>,
        confine: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Self, Error> {
        settings.workers = share.engines;
        harden::forbid_dumps()?;
        harden::allow_descriptors(settings.descriptors())?;
        settings.engine.hash_seed = random_words()?;

        let ports = open(&settings)?;
        let (sink, receivers, router) =
            keys::queues(share).map_err(|error| Error::System { what: "eventfd", error })?;
        let sink = match told {
            Some(told) => sink.steered(told),
            None => sink,
        };
        if ports.len() != receivers.len() {
            let text = format!("{} pairs of ports for {} workers", ports.len(), receivers.len());
            return Err(Error::Usage(text));
        }
        // The port may need privileges; the server's thread inherits what this one has left.
        let key_server = |error: StartError| Error::KeyServer(error.to_string());
        let lines = sink.lines().tapped(settings.key_log_tap.clone());
        let sealed = (!settings.server.key_servers.is_empty()).then(|| sink.clone());
        let server = Server::bind(settings.server.clone(), sink).map_err(key_server)?;
        harden::drop_capabilities()?;
        let bind = harden::binding_to(settings.key_cpu)?;
        let confine_thread = confine()?;
        let prepare = || {
            bind();
            confine_thread();
        };
        let server = server.start_with(prepare).map_err(key_server)?;
        let follower = match &settings.key_log {
            Some(path) => Some(Follower::start(path.clone(), lines).map_err(key_log_error(path))?),
            None => None,
        };
        Ok(Self { ports, receivers, router, server, settings, share, follower, sealed })
    }

    /// How many workers there are: as many handlers are needed.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.ports.len()
    }

    /// Where keys are taken.
    #[must_use]
    pub fn keys_address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Exchanges the key channel's certificates while the middlebox runs.
    #[must_use]
    pub fn key_certificates(&self) -> KeyCertificates {
        KeyCertificates(self.server.handle())
    }

    /// Reads the key channel's counters while the middlebox runs.
    #[must_use]
    pub fn key_meter(&self) -> KeyMeter {
        KeyMeter { server: self.server.handle(), router: Arc::clone(&self.router) }
    }

    /// Moves frames until `stop` is set, which every error does: the first worker on the calling
    /// thread, which stays bound to its processor where [`Settings::cpus`] has some, each further one on a
    /// thread of its own. `tick` runs on every worker's thread several
    /// times a second: there [`Worker::take_message`] and [`KeyMeter::take_key_log_error`] have what
    /// operators should know.
    ///
    /// # Panics
    /// When there are not as many handlers as [`Middlebox::workers`], and when a handler panics.
    pub fn run<H: Handler + Send>(
        self,
        handlers: Vec<H>,
        stop: &AtomicBool,
        tick: impl Fn(usize, &mut Worker<H, P>) + Sync,
    ) -> Finished<H>
    where
        P: Send,
    {
        // Bound to a name, so that the key log is followed until the end.
        let Self { ports, receivers, router, server, settings, share, follower, sealed } = self;
        let _follower = follower;
        assert_eq!(handlers.len(), ports.len(), "one handler for each worker");
        let parts = ports.into_iter().zip(receivers).zip(handlers).enumerate();
        let (settings, tick) = (&settings, &tick);
        let mut jobs = parts.map(|(number, ((mut ports, receiver), handler))| {
            let log = settings.key_log.as_ref().map(|_| live_keys());
            let (router, watched) = (Arc::clone(&router), Arc::clone(&router));
            let senders = settings.engine.key_senders.clone();
            let mut keys = KeyInput::new(receiver, router);
            (keys.senders, keys.log) = (senders.clone(), log);
            keys.server = Some(server.handle());
            keys.sealed = sealed.clone().map(|sink| SealedInput::new(number, sink));
            move || {
                let ending = StopAtEnd(stop);
                let mut config = engine_config(settings, share, number);
                // A key log's lines come without any connection.
                config.awaited = settings.key_log.is_none().then(|| awaited(watched, senders));
                config.offload = ports.outbox().offloads();
                let engine = Engine::new(config, handler);
                let mut worker = Worker::new(ports, engine, keys, settings.worker);
                let result = pin_to_cpu(settings, number)
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
fn engine_config(settings: &Settings, share: Share, number: usize) -> Config {
    let mut config = settings.engine_of_worker();
    if settings.workers > 1 {
        // At most as many as there are workers.
        config.share = Some(Share { own: number as u32, ..share });
    }
    config
}

/// Who is awaited: those whose agent, or where others may deliver, some agent is connected, or about to be again.
fn awaited(router: Arc<KeyRouter>, senders: KeySenders) -> Awaited {
    Awaited(Arc::new(move |client, server| router.is_awaited(client, server, &senders)))
}

/// Binds the calling thread to its worker's processor.
fn pin_to_cpu(settings: &Settings, number: usize) -> Result<(), Error> {
    settings.cpus.get(number).map_or(Ok(()), |cpu| harden::bind_to_cpu(*cpu))
}

/// Numbers that an attacker cannot know.
fn random_words<const N: usize>() -> Result<[u64; N], Error> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| Error::System {
            what: "random numbers",
            error: std::io::Error::other("the crypto library has none"),
        })?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}
