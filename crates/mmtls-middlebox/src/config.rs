//! What a middlebox is configured with, in sections: names and units as `mmtls.toml` shows them. Any format
//! that serde reads will do; this crate reads none itself.
//!
//! Refuses unknown keys, unknown policy names, and zero where zero makes no sense.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use mmtls_engine::{Bypass, KeySenders, Limits, Network, Policies, Policy};
use mmtls_keyshare::policy::ServerNames;
use mmtls_packet_io::af_packet::Offloading;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The sections.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// The bridged interfaces.
    pub inline: InlineSection,
    /// Interfaces that are only looked at, in place of the bridged ones.
    pub passive: PassiveSection,
    /// The threads that move frames.
    pub workers: WorkersSection,
    /// The key channel.
    pub keys: KeysSection,
    /// What to do when.
    pub policies: PoliciesSection,
    /// Caps.
    pub limits: LimitsSection,
    /// A capture in place of the interfaces.
    pub offline: OfflineSection,
}

/// `[inline]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct InlineSection {
    /// Left and right interface.
    pub interfaces: Option<[String; 2]>,
    /// Frames per system call.
    pub batch_frames: usize,
    /// Socket buffers in bytes.
    pub socket_buffer_bytes: usize,
    /// How long to let frames gather where many come.
    pub moderation_microseconds: u64,
    /// Let consecutive TCP segments of a connection leave as one super-frame.
    pub coalesce: bool,
    /// Let the kernel forward connections that nobody reads.
    pub kernel_forwarding: KernelForwarding,
    /// What becomes of traffic while this process does not move it.
    pub when_down: WhenDown,
}

/// A value of `inline.when_down`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum WhenDown {
    /// Nothing passes.
    #[default]
    Closed,
    /// The kernel forwards everything: the guard.
    Open,
}

impl TryFrom<String> for WhenDown {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "closed" => Ok(Self::Closed),
            "open" => Ok(Self::Open),
            _ => Err(format!("unknown value {name:?}: expected closed or open")),
        }
    }
}

/// A value of `inline.kernel_forwarding`: `auto`, `always` or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct KernelForwarding(pub Offloading);

impl From<KernelForwarding> for String {
    fn from(KernelForwarding(offloading): KernelForwarding) -> Self {
        let name = match offloading {
            Offloading::OfCards => "auto",
            Offloading::Always => "always",
            Offloading::Off => "never",
        };
        name.to_owned()
    }
}

impl TryFrom<String> for KernelForwarding {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.as_str() {
            "auto" => Ok(Self(Offloading::OfCards)),
            "always" => Ok(Self(Offloading::Always)),
            "never" => Ok(Self(Offloading::Off)),
            _ => Err(format!("unknown value {name:?}: expected auto, always or never")),
        }
    }
}

/// `[passive]`: nothing is held or dropped. A handler's reset ends the following of a session, and is sent
/// where there is an interface for it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveSection {
    /// One interface or two.
    pub interfaces: Option<Vec<String>>,
    /// Where resets are sent.
    pub reset_interface: Option<String>,
}

/// `[workers]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSection {
    /// How many.
    pub count: u32,
    /// Processors, one for each worker; empty binds none. Without it, several workers are bound
    /// to the first ones that the process may use.
    pub cpus: Option<Vec<usize>>,
}

/// `[keys]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeysSection {
    /// Where endpoints connect to.
    #[serde(deserialize_with = "listen_address")]
    pub listen: Option<SocketAddr>,
    /// The middlebox's certificate.
    pub certificate_file: Option<PathBuf>,
    /// Its private key.
    pub key_file: Option<PathBuf>,
    /// Who may certify endpoints.
    pub client_ca_file: Option<PathBuf>,
    /// Names of key servers, as their certificates say: each speaks for endpoints that have connected to it.
    pub key_servers: Vec<String>,
    /// The processor for the thread that takes keys.
    pub cpu: Option<usize>,
    /// From where keys are accepted.
    pub accept_from: SenderRules,
    /// Endpoints connected at a time.
    pub max_connections: usize,
    /// A key log that is followed, too.
    pub log_file: Option<PathBuf>,
}

/// `[policies]`; see [`Policies`].
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are those of mmtls_engine::Policies")]
pub struct PoliciesSection {
    pub missing_keys: Option<PolicyName>,
    pub null_keys: Option<PolicyName>,
    pub too_many_null_keys: Option<PolicyName>,
    pub unread_flight: Option<PolicyName>,
    pub unsupported: Option<PolicyName>,
    pub require_private_tag: Option<PolicyName>,
    pub integrity_failure: Option<PolicyName>,
    pub lost_synchronisation: Option<PolicyName>,
    pub mid_stream: Option<PolicyName>,
    pub not_tls: Option<PolicyName>,
    pub table_full: Option<PolicyName>,
    pub memory_cap: Option<PolicyName>,
    pub fragments: Option<PolicyName>,
    pub multipath: Option<PolicyName>,
    pub udp_tls: Option<PolicyName>,
    pub encapsulated: Option<PolicyName>,
    /// Ports for `not_tls`; [`mmtls_engine::TLS_PORTS`] without it.
    pub tls_ports: Option<Vec<u16>>,
    /// Endpoints that are left alone.
    pub bypass: Vec<BypassRule>,
    /// Server names whose sessions are left alone.
    pub exempt_names: NameRules,
    /// Server names whose keys endpoints may refuse.
    pub private_names: NameRules,
}

/// Server names: exact, or `*.example.org` for what is below it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct NameRules(pub ServerNames);

impl From<NameRules> for Vec<String> {
    fn from(NameRules(names): NameRules) -> Self {
        let text = names.to_string();
        text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }
}

impl TryFrom<Vec<String>> for NameRules {
    type Error = String;

    fn try_from(rules: Vec<String>) -> Result<Self, String> {
        let mut names = ServerNames::default();
        for rule in rules {
            names.add(&rule).map_err(|error| error.to_string())?;
        }
        Ok(Self(names))
    }
}

/// A policy by name.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicyName(pub Policy);

impl From<PolicyName> for String {
    fn from(PolicyName(policy): PolicyName) -> Self {
        policy.name().to_owned()
    }
}

impl TryFrom<String> for PolicyName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Policy::from_name(&name).map(Self).ok_or_else(|| {
            format!("unknown policy {name:?}: expected forward, bypass, drop or reset")
        })
    }
}

/// From where keys are accepted: `client`, `server`, `any`, addresses and networks.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct SenderRules(pub KeySenders);

impl From<SenderRules> for Vec<String> {
    fn from(SenderRules(senders): SenderRules) -> Self {
        let words = [("any", senders.any), ("client", senders.client), ("server", senders.server)];
        let words = words.into_iter().filter(|(_, is_meant)| *is_meant);
        let networks = senders.networks.into_iter();
        let networks = networks.map(|it| format!("{}/{}", it.address, it.prefix_len));
        words.map(|(word, _)| word.to_owned()).chain(networks).collect()
    }
}

impl Default for SenderRules {
    fn default() -> Self {
        Self(KeySenders::CLIENT)
    }
}

impl TryFrom<Vec<String>> for SenderRules {
    type Error = String;

    fn try_from(rules: Vec<String>) -> Result<Self, String> {
        let mut senders = KeySenders { client: false, ..KeySenders::CLIENT };
        for rule in &rules {
            match rule.as_str() {
                "client" => senders.client = true,
                "server" => senders.server = true,
                "any" => (senders.client, senders.any) = (true, true),
                text => {
                    let bad = "is not client, server, any, ADDRESS or ADDRESS/BITS";
                    let network = network(text).ok_or_else(|| format!("{text:?} {bad}"))?;
                    senders.networks.push(network);
                }
            }
        }
        match rules.is_empty() {
            true => Err("nobody could share keys: name client, server, any or networks".to_owned()),
            false => Ok(Self(senders)),
        }
    }
}

/// An address, or a network of them.
fn network(text: &str) -> Option<Network> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address = address.parse::<IpAddr>().ok()?;
    let prefix_len = bits.unwrap_or(address_bits(address));
    (prefix_len <= address_bits(address)).then_some(Network { address, prefix_len })
}

/// An address, a network, or an address and a port.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct BypassRule(pub Bypass);

impl From<BypassRule> for String {
    fn from(BypassRule(rule): BypassRule) -> Self {
        rule.to_string()
    }
}

impl TryFrom<String> for BypassRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("{text:?} is not ADDRESS, ADDRESS/BITS or ADDRESS:PORT");
        if let Ok(end) = text.parse::<SocketAddr>() {
            return Ok(Self(only(end)));
        }
        let Network { address, prefix_len } = network(&text).ok_or_else(bad)?;
        Ok(Self(Bypass { address, prefix_len, port: None }))
    }
}

fn listen_address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(from)?;
    address_and_port(&text).map(Some).map_err(D::Error::custom)
}

/// An address to listen at.
///
/// # Errors
/// What is missing, with an example.
pub fn address_and_port(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(address) => {
            let whole = SocketAddr::new(address, 4433);
            format!("{text:?} has no port: ADDRESS:PORT is expected, as in {whole}")
        }
        Err(_) => format!(
            "{text:?} is not ADDRESS:PORT, as in 192.0.2.1:4433 or [2001:db8::1]:4433 (no names)"
        ),
    })
}

/// This end and no other.
#[must_use]
pub fn only(end: SocketAddr) -> Bypass {
    let address = end.ip();
    Bypass { address, prefix_len: address_bits(address), port: Some(end.port()) }
}

fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// `[limits]`; see [`Limits`].
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are those of mmtls_engine::Limits, with units")]
pub struct LimitsSection {
    pub max_flows: usize,
    pub max_reassembly_bytes: usize,
    pub max_buffered_bytes: usize,
    pub max_handshake_bytes: usize,
    pub max_search_bytes: usize,
    pub max_held_frames: usize,
    pub stall_max_packets: usize,
    pub stall_max_bytes: usize,
    pub stall_timeout_milliseconds: u64,
    pub unshared_stall_timeout_milliseconds: u64,
    pub max_pending_keys: usize,
    pub pending_keys_timeout_seconds: u64,
    pub null_keys_per_minute: u32,
    pub opening_timeout_seconds: u64,
    pub idle_timeout_seconds: u64,
    pub closed_timeout_seconds: u64,
    pub tombstone_timeout_seconds: u64,
    pub mid_stream_grace_seconds: u64,
}

/// `[offline]`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OfflineSection {
    /// The capture that is replayed.
    pub capture_file: Option<PathBuf>,
    /// Its key log, unless its secrets are inside.
    pub keylog_file: Option<PathBuf>,
}

impl Default for InlineSection {
    fn default() -> Self {
        Self {
            interfaces: None,
            batch_frames: 32,
            socket_buffer_bytes: 64 << 20,
            moderation_microseconds: 50,
            coalesce: true,
            kernel_forwarding: KernelForwarding(Offloading::OfCards),
            when_down: WhenDown::Closed,
        }
    }
}

impl Default for WorkersSection {
    fn default() -> Self {
        Self { count: 1, cpus: None }
    }
}

/// Most workers: each has its own sockets and buffers.
const MAX_WORKERS: u32 = 128;

impl Default for KeysSection {
    fn default() -> Self {
        Self {
            listen: None,
            certificate_file: None,
            key_file: None,
            client_ca_file: None,
            key_servers: Vec::new(),
            cpu: None,
            accept_from: SenderRules::default(),
            max_connections: 4096,
            log_file: None,
        }
    }
}

/// Longest interval and timeout: a hundred years.
pub const MAX_SECONDS: u64 = 3_155_760_000;
const SECOND_NS: u64 = 1_000_000_000;
const MILLISECOND_NS: u64 = 1_000_000;

impl Default for LimitsSection {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_flows: limits.max_flows,
            max_reassembly_bytes: limits.max_reassembly_bytes,
            max_buffered_bytes: limits.max_buffered_bytes,
            max_handshake_bytes: limits.max_handshake_bytes,
            max_search_bytes: limits.max_search_bytes,
            max_held_frames: limits.max_held_frames,
            stall_max_packets: limits.stall_max_packets,
            stall_max_bytes: limits.stall_max_bytes,
            stall_timeout_milliseconds: limits.stall_timeout_ns / MILLISECOND_NS,
            unshared_stall_timeout_milliseconds: limits.unshared_stall_timeout_ns / MILLISECOND_NS,
            max_pending_keys: limits.max_pending_keys,
            pending_keys_timeout_seconds: limits.pending_keys_timeout_ns / SECOND_NS,
            null_keys_per_minute: limits.null_keys_per_minute,
            opening_timeout_seconds: limits.opening_timeout_ns / SECOND_NS,
            idle_timeout_seconds: limits.idle_timeout_ns / SECOND_NS,
            closed_timeout_seconds: limits.closed_timeout_ns / SECOND_NS,
            tombstone_timeout_seconds: limits.tombstone_timeout_ns / SECOND_NS,
            mid_stream_grace_seconds: 60,
        }
    }
}

impl LimitsSection {
    /// The engine's limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let seconds = |value: u64| value.saturating_mul(SECOND_NS);
        Limits {
            max_flows: self.max_flows,
            max_reassembly_bytes: self.max_reassembly_bytes,
            max_buffered_bytes: self.max_buffered_bytes,
            max_handshake_bytes: self.max_handshake_bytes,
            max_search_bytes: self.max_search_bytes,
            max_held_frames: self.max_held_frames,
            stall_max_packets: self.stall_max_packets,
            stall_max_bytes: self.stall_max_bytes,
            stall_timeout_ns: self.stall_timeout_milliseconds.saturating_mul(MILLISECOND_NS),
            unshared_stall_timeout_ns: self
                .unshared_stall_timeout_milliseconds
                .saturating_mul(MILLISECOND_NS),
            max_pending_keys: self.max_pending_keys,
            pending_keys_timeout_ns: seconds(self.pending_keys_timeout_seconds),
            null_keys_per_minute: self.null_keys_per_minute,
            opening_timeout_ns: seconds(self.opening_timeout_seconds),
            rest_after_ns: Limits::default().rest_after_ns,
            idle_timeout_ns: seconds(self.idle_timeout_seconds),
            closed_timeout_ns: seconds(self.closed_timeout_seconds),
            tombstone_timeout_ns: seconds(self.tombstone_timeout_seconds),
        }
    }
}

impl PoliciesSection {
    /// The engine's policies: the defaults, and what is said here.
    #[must_use]
    pub fn policies(&self, defaults: Policies) -> Policies {
        let mut policies = defaults;
        for (slot, name) in [
            (&mut policies.missing_keys, self.missing_keys),
            (&mut policies.null_keys, self.null_keys),
            (&mut policies.too_many_null_keys, self.too_many_null_keys),
            (&mut policies.unread_flight, self.unread_flight),
            (&mut policies.unsupported, self.unsupported),
            (&mut policies.require_private_tag, self.require_private_tag),
            (&mut policies.integrity_failure, self.integrity_failure),
            (&mut policies.lost_synchronisation, self.lost_synchronisation),
            (&mut policies.mid_stream, self.mid_stream),
            (&mut policies.not_tls, self.not_tls),
            (&mut policies.table_full, self.table_full),
            (&mut policies.memory_cap, self.memory_cap),
            (&mut policies.fragments, self.fragments),
            (&mut policies.multipath, self.multipath),
            (&mut policies.udp_tls, self.udp_tls),
            (&mut policies.encapsulated, self.encapsulated),
        ] {
            if let Some(PolicyName(policy)) = name {
                *slot = policy;
            }
        }
        policies
    }
}

impl Configuration {
    /// Finds values that make no sense, alone or together.
    ///
    /// # Errors
    /// One line that names the key: the first of [`Self::mistakes`].
    pub fn check(&self) -> Result<(), String> {
        self.mistakes().into_iter().next().map_or(Ok(()), Err)
    }

    /// All values that make no sense, alone or together: a line each, which begins with the key.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Vec::new();
        let limits = &self.limits;
        for (name, value) in [
            ("limits.max_flows", limits.max_flows),
            ("limits.max_held_frames", limits.max_held_frames),
            ("limits.stall_max_packets", limits.stall_max_packets),
            ("limits.stall_max_bytes", limits.stall_max_bytes),
            ("limits.max_handshake_bytes", limits.max_handshake_bytes),
            ("limits.max_search_bytes", limits.max_search_bytes),
            ("limits.max_reassembly_bytes", limits.max_reassembly_bytes),
            ("limits.max_buffered_bytes", limits.max_buffered_bytes),
            ("limits.max_pending_keys", limits.max_pending_keys),
            ("keys.max_connections", self.keys.max_connections),
        ] {
            if value == 0 {
                found.push(format!("{name} must not be 0"));
            }
        }
        match &self.offline {
            OfflineSection { capture_file: None, keylog_file: Some(_) } => {
                found.push("offline.keylog_file needs offline.capture_file".to_owned());
            }
            OfflineSection { capture_file: Some(_), .. } if self.inline.interfaces.is_some() => {
                found.push("offline.capture_file excludes inline.interfaces".to_owned());
            }
            OfflineSection { capture_file: Some(_), .. } if self.passive.interfaces.is_some() => {
                found.push("offline.capture_file excludes passive.interfaces".to_owned());
            }
            _ => {}
        }
        if !(1..=MAX_WORKERS).contains(&self.workers.count) {
            found.push(format!("workers.count must be 1 to {MAX_WORKERS}"));
        }
        if self.inline.moderation_microseconds > 10_000 {
            found.push("inline.moderation_microseconds must be 0 to 10000".to_owned());
        }
        if !(1..=1024).contains(&self.inline.batch_frames) {
            found.push("inline.batch_frames must be 1 to 1024".to_owned());
        }
        for (name, value) in [
            ("limits.opening_timeout_seconds", limits.opening_timeout_seconds),
            ("limits.idle_timeout_seconds", limits.idle_timeout_seconds),
            ("limits.tombstone_timeout_seconds", limits.tombstone_timeout_seconds),
        ] {
            if !(1..=MAX_SECONDS).contains(&value) {
                found.push(format!("{name} must be 1 to {MAX_SECONDS}"));
            }
        }
        found
    }
}
