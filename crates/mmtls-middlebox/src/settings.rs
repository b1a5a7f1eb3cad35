//! What a middlebox is started with: from a [`Configuration`], or put together in code.
//!
//! Refuses a middlebox without an explicit answer to missing keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mmtls_engine::{Config, ExemptNames, Limits, Policies, Policy};
use mmtls_keyshare::server::{Identity, ServerConfig, ServerName};
use mmtls_packet_io::af_packet::BridgeConfig;

use crate::config::{BypassRule, Configuration, KeysSection, NameRules, PolicyName, only};
use crate::keylog::follow;
use crate::{Error, harden, keys, offline, worker};

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
    pub worker: worker::Settings,
    /// How many workers.
    pub workers: u32,
    /// Processors that workers are bound to, the first worker to the first one; empty binds none.
    pub cpus: Vec<usize>,
    /// The processor that the key channel's thread is bound to.
    pub key_cpu: Option<usize>,
    /// A key log that is followed, a file or a FIFO.
    pub key_log: Option<PathBuf>,
}

impl Settings {
    /// What a configuration says.
    ///
    /// # Errors
    /// [`Error::Usage`] names what is missing or makes no sense.
    pub fn from_configuration(config: &Configuration) -> Result<Self, Error> {
        if config.offline.capture_file.is_some() {
            let text = "section [offline] is for programs that use the C library; a capture is read \
                        with `mmtls read`";
            return Err(Error::Usage(text.to_owned()));
        }
        let bridge = bridge(config)?;
        let passive = bridge.passive;
        let missing_keys = match config.policies.missing_keys {
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
        engine.resets_beside = bridge.reset_interface.is_some();
        engine.policies = match passive {
            true => passive_policies(config)?,
            false => config.policies.policies(Policies::new(missing_keys)),
        };
        engine.limits = config.limits.limits();
        if passive {
            // Nothing slows a sender down whose keys are late, and nothing depends on knowing who
            // has long been silent.
            let Limits { stall_max_bytes, idle_timeout_ns, .. } = &mut engine.limits;
            *stall_max_bytes = (*stall_max_bytes).max(PASSIVE_STALL_BYTES);
            *idle_timeout_ns = (*idle_timeout_ns).min(PASSIVE_IDLE_NS);
        }
        engine.mid_stream_grace_ns =
            config.limits.mid_stream_grace_seconds.saturating_mul(1_000_000_000);
        if let Some(ports) = &config.policies.tls_ports {
            engine.tls_ports.clone_from(ports);
        }
        engine.supports = keys::supports;
        engine.key_senders = config.keys.accept_from.0.clone();
        engine.asks_for_live_keys = true;

        let listen =
            config.keys.listen.ok_or_else(|| missing("--keys-listen ADDR:PORT", "keys.listen"))?;
        let need =
            |path: &Option<PathBuf>, option, key| path.clone().ok_or_else(|| missing(option, key));
        let identity = Identity {
            certificate_file: need(
                &config.keys.certificate_file,
                "--key-cert FILE",
                "keys.certificate_file",
            )?,
            key_file: need(&config.keys.key_file, "--key-key FILE", "keys.key_file")?,
        };
        let mut server = ServerConfig::new(listen, identity);
        server.client_ca_file = config.keys.client_ca_file.clone();
        server.max_connections = config.keys.max_connections;
        server.key_servers = key_servers(&config.keys)?;
        engine.bypass = config.policies.bypass.iter().map(|BypassRule(bypass)| *bypass).collect();
        let names = |NameRules(names): &NameRules| {
            let names = names.clone();
            (!names.is_empty()).then(|| ExemptNames(Arc::new(move |name| names.matches(name))))
        };
        engine.exempt_names = names(&config.policies.exempt_names);
        engine.private_names = names(&config.policies.private_names);
        // The session that brings keys has none itself.
        if !listen.ip().is_unspecified() {
            engine.bypass.push(only(listen));
        }

        let moderation = Duration::from_micros(config.inline.moderation_microseconds);
        let worker = worker::Settings { batch: bridge.batch, moderation, passive };
        let workers = config.workers.count;
        let cpus = match &config.workers.cpus {
            Some(cpus) if !cpus.is_empty() && cpus.len() != workers as usize => {
                let text = "workers.cpus must name one processor for each worker, or none";
                return Err(Error::Usage(text.to_owned()));
            }
            Some(cpus) => cpus.clone(),
            // One worker gains nothing from staying where it is.
            None if workers == 1 => Vec::new(),
            None => harden::allowed_cpus()?.into_iter().cycle().take(workers as usize).collect(),
        };
        let key_log = config.keys.log_file.clone();
        let key_cpu = config.keys.cpu;
        Ok(Self { bridge, server, engine, worker, workers, cpus, key_cpu, key_log })
    }

    /// Finds what a start would find wrong on this machine, without opening a socket; not the key
    /// log, see [`Settings::check_key_log`].
    ///
    /// # Errors
    /// Those that [`crate::Middlebox::open`] and [`crate::Middlebox::run`] would give.
    pub fn check(&self) -> Result<(), Error> {
        self.server.check().map_err(|error| Error::KeyServer(error.to_string()))?;
        if i32::try_from(self.socket_buffer()).is_err() {
            let text = "inline.socket_buffer_bytes must be below 2 GiB for each worker";
            return Err(Error::Usage(text.to_owned()));
        }
        self.cpus.iter().chain(&self.key_cpu).try_for_each(|cpu| harden::check_cpu(*cpu))
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
    pub(crate) fn socket_buffer(&self) -> usize {
        let buffer = self.bridge.socket_buffer_bytes;
        (buffer / self.workers.max(1) as usize).max(buffer.min(MIN_SOCKET_BUFFER))
    }
}

/// Who may speak for endpoints.
fn key_servers(config: &KeysSection) -> Result<Vec<ServerName<'static>>, Error> {
    if !config.key_servers.is_empty() && config.client_ca_file.is_none() {
        let text = "keys.key_servers needs keys.client_ca_file: a key server speaks for others, so it must show \
                    a certificate";
        return Err(Error::Usage(text.to_owned()));
    }
    let name = |name: &String| {
        ServerName::try_from(name.clone())
            .map_err(|_| Error::Usage(format!("keys.key_servers: {name:?} is no host name")))
    };
    config.key_servers.iter().map(name).collect()
}

/// The interfaces.
fn bridge(config: &Configuration) -> Result<BridgeConfig, Error> {
    let mut bridge = match (&config.inline.interfaces, &config.passive.interfaces) {
        (Some(_), None) if config.passive.reset_interface.is_some() => {
            let text = "passive.reset_interface needs passive.interfaces (--passive)";
            return Err(Error::Usage(text.to_owned()));
        }
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
            let reset_interface = config.passive.reset_interface.clone();
            let bridge = BridgeConfig::new(left, "");
            BridgeConfig { right, passive: true, reset_interface, ..bridge }
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
    bridge.batch = config.inline.batch_frames;
    bridge.socket_buffer_bytes = config.inline.socket_buffer_bytes;
    bridge.coalesce = config.inline.coalesce;
    bridge.offload = config.inline.kernel_forwarding.0;
    Ok(bridge)
}

/// The policies of a middlebox that only looks: it can stop nothing, and must not be asked to.
fn passive_policies(config: &Configuration) -> Result<Policies, Error> {
    // As for captures, which have been where they were going, too.
    let defaults = Policies { missing_keys: Policy::Forward, ..offline::config().policies };
    let policies = config.policies.policies(defaults);
    let impossible = |(name, policy): &(&str, Policy)| match policy {
        Policy::Drop | Policy::Reset => Some(format!("policies.{name} = \"{}\"", policy.name())),
        Policy::Forward | Policy::Bypass => None,
    };
    match policies.list().iter().find_map(impossible) {
        Some(setting) => Err(Error::Usage(format!(
            "{setting} needs --inline: a passive monitor can stop nothing"
        ))),
        None => Ok(policies),
    }
}

/// What is wrong with a key log that is there and cannot be followed.
pub(crate) fn key_log_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
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
