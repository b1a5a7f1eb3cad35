//! What a middlebox is started with: from a [`Configuration`], or put together in code.
//!
//! Refuses a middlebox without an explicit answer to missing keys.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mmtls_engine::{Config, ExemptNames, Limits, Policies, Policy};
use mmtls_keyshare::server::{Identity, ServerConfig, ServerName, StartError};
use mmtls_packet_io::Error as PortsError;
use mmtls_packet_io::af_packet::{self, BridgeConfig, Warning};

use crate::config::{
    BypassRule, Configuration, KeysSection, NameRules, PolicyName, WhenDown, only,
};
use crate::keylog::follow;
use crate::keys::KeyLogTap;
use crate::{Error, harden, keys, offline, worker};

/// Socket buffers are for all workers together, but no worker's gets smaller than this: some sixty
/// super-frames.
const MIN_SOCKET_BUFFER: usize = 4 << 20;

/// Descriptors that one worker may need: its sockets, its wake, its application's stream files.
const DESCRIPTORS_PER_WORKER: u64 = 192;

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
    /// Who sees its lines, beside the workers.
    pub key_log_tap: Option<KeyLogTap>,
}

impl Settings {
    /// What a configuration says.
    ///
    /// # Errors
    /// [`Error::Usage`] names what is missing or makes no sense: the first of [`Self::read`].
    pub fn from_configuration(config: &Configuration) -> Result<Self, Error> {
        Self::read(config).map_err(|mut mistakes| mistakes.swap_remove(0))
    }

    /// As [`Self::from_configuration`], and tells all that is wrong.
    ///
    /// # Errors
    /// [`Error::Usage`] for each; at least one.
    pub fn read(config: &Configuration) -> Result<Self, Vec<Error>> {
        if config.offline.capture_file.is_some() {
            let text = "section [offline] is for programs that use the C library; a capture is read \
                        with `mmtls read`, and in Rust with offline::replay";
            return Err(vec![Error::Usage(text.to_owned())]);
        }
        let mut mistakes: Vec<_> = config.mistakes().into_iter().map(Error::Usage).collect();
        let bridge = note(bridge(config), &mut mistakes);
        let engine = engine(config, &mut mistakes);
        let server = server(&config.keys, &mut mistakes);
        let workers = config.workers.count;
        let cpus = note(cpus(config), &mut mistakes);
        let (Some(bridge), Some(mut engine), Some(server), Some(cpus)) =
            (bridge, engine, server, cpus)
        else {
            return Err(mistakes);
        };
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        engine.resets_beside = bridge.reset_interface.is_some();
        // The session that brings keys has none itself.
        if !server.listen.ip().is_unspecified() {
            engine.bypass.push(only(server.listen));
        }
        let moderation = Duration::from_micros(config.inline.moderation_microseconds);
        let worker = worker::Settings { batch: bridge.batch, moderation, passive: bridge.passive };
        let key_log = config.keys.log_file.clone();
        let key_cpu = config.keys.cpu;
        Ok(Self {
            bridge,
            server,
            engine,
            worker,
            workers,
            cpus,
            key_cpu,
            key_log,
            key_log_tap: None,
        })
    }

    /// Finds all that a start would find wrong on this machine: nothing is listened at, no frame is received, and
    /// nothing is written.
    #[must_use]
    pub fn check(&self) -> Findings {
        let mut found = Findings::default();
        let buffer = self.socket_buffer();
        let bridge = BridgeConfig { socket_buffer_bytes: buffer, ..self.bridge.clone() };
        let interfaces = if bridge.passive { "passive.interfaces" } else { "inline.interfaces" };
        let seen = af_packet::check(&bridge);
        for error in seen.errors {
            found.add(self.setting_of(&error).unwrap_or(interfaces), Err(Error::Interface(error)));
        }
        found.warnings = seen.warnings;
        let key_server = |error: StartError| Error::KeyServer(error.to_string());
        found.add("keys.certificate_file", self.server.check().map_err(key_server));
        found.add("keys.listen", self.server.check_address().map_err(key_server));
        for cpu in &self.cpus {
            found.add("workers.cpus", harden::check_cpu(*cpu));
        }
        found.add("keys.cpu", self.key_cpu.map_or(Ok(()), harden::check_cpu));
        let descriptors = harden::allow_descriptors(self.descriptors());
        found.add("keys.max_connections", descriptors);
        let key_log = harden::without_capabilities(|| self.check_key_log());
        found.add("keys.log_file", key_log.and_then(|readable| readable));
        found
    }

    /// Which setting an error of the ports is about, where it is not the interfaces.
    fn setting_of(&self, error: &PortsError) -> Option<&'static str> {
        let resets = self.bridge.reset_interface.as_deref();
        match error {
            PortsError::InvalidConfig { .. } => Some("inline.socket_buffer_bytes"),
            PortsError::Guard(_) => Some("inline.when_down"),
            PortsError::NotPermitted | PortsError::Unsupported { .. } => Some(""),
            PortsError::NoSuchInterface { interface }
            | PortsError::NotEthernet { interface, .. }
            | PortsError::InterfaceDown { interface }
                if resets == Some(interface) =>
            {
                Some("passive.reset_interface")
            }
            _ => None,
        }
    }

    /// Finds out whether the key log could be followed, if it is there. What counts is what the
    /// caller may do: a middlebox has dropped its capabilities then.
    fn check_key_log(&self) -> Result<(), Error> {
        match &self.key_log {
            Some(path) => follow::check(path).map_err(key_log_error(path)),
            None => Ok(()),
        }
    }

    /// How many files this process must be allowed to have open.
    pub(crate) fn descriptors(&self) -> u64 {
        let workers = u64::from(self.workers) * DESCRIPTORS_PER_WORKER;
        self.server.max_connections as u64 + harden::SPARE_DESCRIPTORS + workers
    }

    /// What one worker's engine is configured with: its share of what may be kept.
    pub(crate) fn engine_of_worker(&self) -> Config {
        let mut config = self.engine.clone();
        let of = |whole: usize| whole.div_ceil(self.workers.max(1) as usize);
        let Limits { max_flows, max_buffered_bytes, max_held_frames, max_pending_keys, .. } =
            &mut config.limits;
        for limit in [max_flows, max_buffered_bytes, max_held_frames, max_pending_keys] {
            *limit = of(*limit);
        }
        config
    }

    /// One worker's share of the socket buffers.
    pub(crate) fn socket_buffer(&self) -> usize {
        let buffer = self.bridge.socket_buffer_bytes;
        (buffer / self.workers.max(1) as usize).max(buffer.min(MIN_SOCKET_BUFFER))
    }
}

/// What [`Settings::check`] found.
#[derive(Debug, Default)]
pub struct Findings {
    /// What would keep a middlebox from starting, each with the key of the setting that it is about; empty for none.
    pub problems: Vec<(&'static str, Error)>,
    /// What is suspicious about the interfaces.
    pub warnings: Vec<Warning>,
}

impl Findings {
    fn add(&mut self, setting: &'static str, outcome: Result<(), Error>) {
        self.problems.extend(outcome.err().map(|error| (setting, error)));
    }
}

/// The outcome, or a mistake more.
fn note<T>(outcome: Result<T, Error>, mistakes: &mut Vec<Error>) -> Option<T> {
    outcome.map_err(|error| mistakes.push(error)).ok()
}

/// What to do when, and the caps.
fn engine(config: &Configuration, mistakes: &mut Vec<Error>) -> Option<Config> {
    let passive = config.passive.interfaces.is_some();
    let missing_keys = match config.policies.missing_keys {
        None if passive => Policy::Forward,
        // What it cannot do is refused below.
        Some(PolicyName(policy)) if passive => policy,
        Some(PolicyName(policy @ (Policy::Forward | Policy::Reset))) => policy,
        Some(PolicyName(policy)) => {
            let name = policy.name();
            let text = format!("policies.missing_keys must be forward or reset, not {name}");
            mistakes.push(Error::Usage(text));
            return None;
        }
        None => {
            mistakes.push(missing("--missing-keys forward|reset", "policies.missing_keys"));
            return None;
        }
    };
    let mut engine = Config::new(missing_keys);
    engine.inline = !passive;
    engine.policies = match passive {
        true => note(passive_policies(config), mistakes)?,
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
    engine.bypass = config.policies.bypass.iter().map(|BypassRule(bypass)| *bypass).collect();
    let names = |NameRules(names): &NameRules| {
        let names = names.clone();
        (!names.is_empty()).then(|| ExemptNames(Arc::new(move |name| names.matches(name))))
    };
    engine.exempt_names = names(&config.policies.exempt_names);
    engine.private_names = names(&config.policies.private_names);
    Some(engine)
}

/// Where endpoints connect to.
fn server(keys: &KeysSection, mistakes: &mut Vec<Error>) -> Option<ServerConfig> {
    let mut need = |path: &Option<PathBuf>, option, key| {
        note(path.clone().ok_or_else(|| missing(option, key)), mistakes)
    };
    let certificate = need(&keys.certificate_file, "--key-cert FILE", "keys.certificate_file");
    let key = need(&keys.key_file, "--key-key FILE", "keys.key_file");
    let listen = keys.listen.ok_or_else(|| missing("--keys-listen ADDR:PORT", "keys.listen"));
    let listen = note(listen, mistakes);
    let names = note(key_servers(keys), mistakes);
    let identity = Identity { certificate_file: certificate?, key_file: key? };
    let mut server = ServerConfig::new(listen?, identity);
    server.client_ca_file.clone_from(&keys.client_ca_file);
    server.max_connections = keys.max_connections;
    server.key_servers = names?;
    Some(server)
}

/// The workers' processors.
fn cpus(config: &Configuration) -> Result<Vec<usize>, Error> {
    let workers = config.workers.count as usize;
    match &config.workers.cpus {
        Some(cpus) if !cpus.is_empty() && cpus.len() != workers => {
            let text = "workers.cpus must name one processor for each worker, or none";
            Err(Error::Usage(text.to_owned()))
        }
        Some(cpus) => Ok(cpus.clone()),
        // One worker gains nothing from staying where it is.
        None if workers == 1 => Ok(Vec::new()),
        None => Ok(harden::allowed_cpus()?.into_iter().cycle().take(workers).collect()),
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
    bridge.fails_open = config.inline.when_down == WhenDown::Open;
    if bridge.fails_open && bridge.passive {
        let text = "inline.when_down = \"open\" needs --inline: when a passive monitor is down, others forward";
        return Err(Error::Usage(text.to_owned()));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_the_configuration_refuses() {
        let mut config = Configuration::default();
        let has_told = |config: &Configuration| match Settings::read(config) {
            Ok(_) => false,
            Err(mistakes) => mistakes.iter().any(|it| it.to_string().contains("limits.max_flows")),
        };
        assert!(!has_told(&config));
        config.limits.max_flows = 0;
        assert!(has_told(&config));
    }
}
