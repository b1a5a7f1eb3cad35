//! The configuration file: one TOML file, the same names and units as `mmtls.toml` shows.
//!
//! Refuses unknown keys, unknown policy names, and zero where zero makes no sense.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use mmtls_engine::{Bypass, Limits, Policies, Policy};
use serde::Deserialize;

use crate::Error;
use crate::patterns::PatternAction;

/// The file's sections.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
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
    /// The built-in application.
    pub inspect: InspectSection,
    /// Where reports go.
    pub log: LogSection,
    /// A capture in place of the interfaces.
    pub offline: OfflineSection,
}

/// `[inline]`
#[derive(Clone, Debug, Deserialize)]
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
}

/// `[passive]`: nothing is held, dropped or sent. A handler's reset only ends the following of a
/// session.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PassiveSection {
    /// One interface or two.
    pub interfaces: Option<Vec<String>>,
}

/// `[workers]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSection {
    /// How many.
    pub count: u32,
    /// Processors, one for each worker; empty binds none. Without it, several workers are bound
    /// to the first ones that the process may use.
    pub cpus: Option<Vec<usize>>,
}

/// `[keys]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeysSection {
    /// Where endpoints connect to.
    pub listen: Option<SocketAddr>,
    /// The middlebox's certificate.
    pub certificate_file: Option<PathBuf>,
    /// Its private key.
    pub key_file: Option<PathBuf>,
    /// Who may certify endpoints.
    pub client_ca_file: Option<PathBuf>,
    /// Accept keys whatever address delivers them.
    pub accept_any_sender: bool,
    /// Endpoints connected at a time.
    pub max_connections: usize,
    /// A key log that is followed, too.
    pub log_file: Option<PathBuf>,
}

/// `[policies]`; see [`Policies`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are those of mmtls_engine::Policies")]
pub struct PoliciesSection {
    pub missing_keys: Option<PolicyName>,
    pub null_keys: Option<PolicyName>,
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
}

/// A policy by name.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct PolicyName(pub Policy);

impl TryFrom<String> for PolicyName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Policy::from_name(&name).map(Self).ok_or_else(|| {
            format!("unknown policy {name:?}: expected forward, bypass, drop or reset")
        })
    }
}

/// An address, a network, or an address and a port.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct BypassRule(pub Bypass);

impl TryFrom<String> for BypassRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let bad = || format!("{text:?} is not ADDRESS, ADDRESS/BITS or ADDRESS:PORT");
        if let Ok(end) = text.parse::<SocketAddr>() {
            return Ok(Self(only(end)));
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| bad())?)),
            None => (text.as_str(), None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| bad())?;
        let prefix_len = bits.unwrap_or(address_bits(address));
        if prefix_len > address_bits(address) {
            return Err(bad());
        }
        Ok(Self(Bypass { address, prefix_len, port: None }))
    }
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
#[derive(Clone, Copy, Debug, Deserialize)]
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
    pub opening_timeout_seconds: u64,
    pub idle_timeout_seconds: u64,
    pub closed_timeout_seconds: u64,
    pub tombstone_timeout_seconds: u64,
    pub mid_stream_grace_seconds: u64,
}

/// `[inspect]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InspectSection {
    /// Open records at all.
    pub decrypt: bool,
    /// The pattern file.
    pub patterns_file: Option<PathBuf>,
    /// What a match does.
    pub pattern_action: ActionName,
    /// Body bytes per response until decryption pauses.
    pub limit_bytes: Option<u64>,
}

/// What a match does, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ActionName {
    /// Report it.
    #[default]
    Alert,
    /// Report it and reset the session.
    Reset,
}

impl From<ActionName> for PatternAction {
    fn from(name: ActionName) -> Self {
        match name {
            ActionName::Alert => Self::Alert,
            ActionName::Reset => Self::Reset,
        }
    }
}

/// `[log]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// Directory of `eve.json`.
    pub directory: Option<PathBuf>,
    /// Directory of the decrypted streams.
    pub streams_directory: Option<PathBuf>,
    /// Seconds between `stats` records.
    pub stats_interval_seconds: u64,
}

/// `[offline]`
#[derive(Clone, Debug, Default, Deserialize)]
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
            accept_any_sender: false,
            max_connections: 4096,
            log_file: None,
        }
    }
}

impl Default for InspectSection {
    fn default() -> Self {
        Self {
            decrypt: true,
            patterns_file: None,
            pattern_action: ActionName::Alert,
            limit_bytes: None,
        }
    }
}

impl Default for LogSection {
    fn default() -> Self {
        Self { directory: None, streams_directory: None, stats_interval_seconds: 8 }
    }
}

/// Longest interval and timeout: a hundred years.
const MAX_SECONDS: u64 = 3_155_760_000;
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
            opening_timeout_ns: seconds(self.opening_timeout_seconds),
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

/// What passes uninspected although sessions without keys do not, and what would stop it; `None`
/// where nothing does. Told at start, since the name `reset` promises more than it holds.
#[must_use]
pub fn exceptions(policies: &Policies) -> Option<String> {
    let passes = |policy| matches!(policy, Policy::Forward | Policy::Bypass);
    if passes(policies.missing_keys) {
        return None;
    }
    let found: Vec<String> = [
        ("null_keys", policies.null_keys, "sessions whose endpoint refuses to share", "reset"),
        ("udp_tls", policies.udp_tls, "DTLS and QUIC", "drop"),
        ("encapsulated", policies.encapsulated, "IP in tunnels and other frames", "drop"),
        ("fragments", policies.fragments, "TCP in IP fragments", "drop"),
        ("multipath", policies.multipath, "multipath TCP", "drop"),
        ("unsupported", policies.unsupported, "what cannot be followed", "reset"),
        ("integrity_failure", policies.integrity_failure, "what keys do not open", "reset"),
        ("lost_synchronisation", policies.lost_synchronisation, "broken streams", "reset"),
        ("mid_stream", policies.mid_stream, "connections without their start", "reset"),
        ("not_tls", policies.not_tls, "what is not TLS on its ports", "reset"),
        ("table_full", policies.table_full, "connections beyond max_flows", "drop"),
        ("memory_cap", policies.memory_cap, "sessions beyond max_buffered_bytes", "reset"),
    ]
    .into_iter()
    .filter(|(_, policy, ..)| passes(*policy))
    .map(|(name, policy, what, stop)| {
        format!("{what} ({name}={}; policies.{name} = \"{stop}\" stops them)", policy.name())
    })
    .collect();
    (!found.is_empty()).then(|| {
        let missing = policies.missing_keys.name();
        format!("although missing_keys={missing}, these pass: {}", found.join(", "))
    })
}

impl File {
    /// Finds settings for `mmtls run` of which one switches off what the other asks for. Options
    /// of the command line are among them, so this is not a matter of the file alone.
    ///
    /// # Errors
    /// [`Error::Usage`] names both.
    pub fn check_inspection(&self) -> Result<(), Error> {
        let InspectSection { decrypt, patterns_file, pattern_action, limit_bytes } = &self.inspect;
        let streams = self.log.streams_directory.is_some();
        let patterns = patterns_file.is_some();
        let text = if !decrypt && patterns {
            "inspect.decrypt = false excludes inspect.patterns_file (--patterns)"
        } else if !decrypt && streams {
            "inspect.decrypt = false excludes log.streams_directory (--streams)"
        } else if !decrypt && *pattern_action == ActionName::Reset {
            "inspect.decrypt = false excludes inspect.pattern_action = \"reset\""
        } else if !decrypt && limit_bytes.is_some() {
            "inspect.decrypt = false excludes inspect.limit_bytes"
        } else if !patterns && *pattern_action == ActionName::Reset {
            "inspect.pattern_action = \"reset\" needs inspect.patterns_file (--patterns)"
        } else if streams && limit_bytes.is_some() {
            "inspect.limit_bytes excludes log.streams_directory (--streams): streams are whole"
        } else {
            return Ok(());
        };
        Err(Error::Usage(text.to_owned()))
    }
}

/// Reads and checks a configuration file.
///
/// # Errors
/// [`Error::File`]; [`Error::Usage`] names file, line and key.
pub fn load(path: &Path) -> Result<File, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    parse(&text).map_err(|error| Error::Usage(format!("{}: {error}", path.display())))
}

fn parse(text: &str) -> Result<File, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {}", error.message())
    })?;
    let limits = &file.limits;
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
        ("keys.max_connections", file.keys.max_connections),
        ("inline.batch_frames", file.inline.batch_frames),
    ] {
        if value == 0 {
            return Err(format!("{name} must not be 0"));
        }
    }
    match &file.offline {
        OfflineSection { capture_file: None, keylog_file: Some(_) } => {
            return Err("offline.keylog_file needs offline.capture_file".to_owned());
        }
        OfflineSection { capture_file: Some(_), .. } if file.inline.interfaces.is_some() => {
            return Err("offline.capture_file excludes inline.interfaces".to_owned());
        }
        OfflineSection { capture_file: Some(_), .. } if file.passive.interfaces.is_some() => {
            return Err("offline.capture_file excludes passive.interfaces".to_owned());
        }
        _ => {}
    }
    if !(1..=MAX_WORKERS).contains(&file.workers.count) {
        return Err(format!("workers.count must be 1 to {MAX_WORKERS}"));
    }
    if file.inline.moderation_microseconds > 10_000 {
        return Err("inline.moderation_microseconds must be 0 to 10000".to_owned());
    }
    if file.inline.batch_frames > 1024 {
        return Err("inline.batch_frames must be 1 to 1024".to_owned());
    }
    for (name, value) in [
        ("limits.opening_timeout_seconds", limits.opening_timeout_seconds),
        ("limits.idle_timeout_seconds", limits.idle_timeout_seconds),
        ("limits.tombstone_timeout_seconds", limits.tombstone_timeout_seconds),
        ("log.stats_interval_seconds", file.log.stats_interval_seconds),
    ] {
        if !(1..=MAX_SECONDS).contains(&value) {
            return Err(format!("{name} must be 1 to {MAX_SECONDS}"));
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../mmtls.toml");

    #[test]
    fn refuses_settings_that_switch_each_other_off() {
        for (text, words) in [
            ("[inspect]\ndecrypt = false\npatterns_file = \"p\"\n", "inspect.patterns_file"),
            ("[inspect]\ndecrypt = false\npattern_action = \"reset\"\n", "pattern_action"),
            ("[inspect]\ndecrypt = false\nlimit_bytes = 1\n", "limit_bytes"),
            ("[inspect]\ndecrypt = false\n[log]\nstreams_directory = \"s\"\n", "--streams"),
            ("[inspect]\npattern_action = \"reset\"\n", "needs inspect.patterns_file"),
            ("[inspect]\nlimit_bytes = 1\n[log]\nstreams_directory = \"s\"\n", "--streams"),
        ] {
            let error = parse(text).unwrap().check_inspection().unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{text}: {error}");
        }
        for text in [
            "",
            "[inspect]\ndecrypt = false\npattern_action = \"alert\"\n[log]\ndirectory = \"l\"\n",
            "[inspect]\npatterns_file = \"p\"\npattern_action = \"reset\"\nlimit_bytes = 1\n",
            "[inspect]\npatterns_file = \"p\"\n[log]\nstreams_directory = \"s\"\n",
        ] {
            parse(text).unwrap().check_inspection().unwrap();
        }
    }

    #[test]
    fn accepts_the_sample_whose_values_are_the_defaults() {
        let sample = format!("{:?}", parse(SAMPLE).unwrap());
        let mut defaults = File::default();
        let policies = Policies::new(Policy::Reset);
        defaults.policies = PoliciesSection {
            missing_keys: None,
            null_keys: Some(PolicyName(policies.null_keys)),
            unsupported: None,
            require_private_tag: Some(PolicyName(policies.require_private_tag)),
            integrity_failure: Some(PolicyName(policies.integrity_failure)),
            lost_synchronisation: Some(PolicyName(policies.lost_synchronisation)),
            mid_stream: None,
            not_tls: None,
            tls_ports: Some(mmtls_engine::TLS_PORTS.to_vec()),
            table_full: None,
            memory_cap: Some(PolicyName(policies.memory_cap)),
            bypass: Vec::new(),
            fragments: None,
            multipath: None,
            udp_tls: Some(PolicyName(policies.udp_tls)),
            encapsulated: None,
        };
        assert_eq!(sample, format!("{defaults:?}"));
        assert_eq!(File::default().limits.limits(), Limits::default());
    }

    #[test]
    fn names_what_passes_where_sessions_without_keys_do_not() {
        let mut policies = Policies::new(Policy::Reset);
        let text = exceptions(&policies).unwrap();
        assert_eq!(
            text,
            "although missing_keys=reset, these pass: sessions whose endpoint refuses to share \
             (null_keys=bypass; policies.null_keys = \"reset\" stops them), DTLS and QUIC \
             (udp_tls=forward; policies.udp_tls = \"drop\" stops them)"
        );
        policies.null_keys = Policy::Reset;
        policies.udp_tls = Policy::Drop;
        assert_eq!(exceptions(&policies), None);
        policies.fragments = Policy::Forward;
        assert!(exceptions(&policies).unwrap().contains("fragments=forward"));
        assert_eq!(exceptions(&Policies::new(Policy::Forward)), None);
        // Every policy has a sentence, apart from the condition and one that is off by default.
        let mut all = Policies::new(Policy::Forward);
        all.missing_keys = Policy::Reset;
        all.memory_cap = Policy::Forward;
        all.integrity_failure = Policy::Forward;
        all.lost_synchronisation = Policy::Forward;
        let text = exceptions(&all).unwrap();
        for (name, _) in all.list() {
            let told = text.contains(&format!("({name}="));
            assert_eq!(told, !["missing_keys", "require_private_tag"].contains(&name), "{name}");
        }
    }

    #[test]
    fn accepts_the_sample_with_its_examples_switched_on() {
        let all: String = SAMPLE
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.contains(" = ") && !rest.contains(": ") => format!("{rest}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let file = parse(&all.replace("capture_file", "# ").replace("keylog_file", "# ")).unwrap();
        assert!(file.inline.interfaces.is_some() && file.keys.key_file.is_some());
        assert!(file.policies.missing_keys.is_some() && file.inspect.limit_bytes.is_some());
    }

    #[test]
    fn refuses_unknown_keys_names_and_zeros_with_their_line() {
        let error = |text| parse(text).unwrap_err();
        assert!(error("[limits]\nmax_flow = 1").contains("line 2: unknown field `max_flow`"));
        assert!(error("[policies]\nmissing_keys = \"ignore\"").contains("unknown policy"));
        assert_eq!(error("[limits]\nmax_flows = 0"), "limits.max_flows must not be 0");
        assert!(error("[limits]\ntombstone_timeout_seconds = 0").contains("must be 1 to"));
        let endless = format!("[log]\nstats_interval_seconds = {}", i64::MAX);
        assert!(error(&endless).contains("must be 1 to"));
        let keys_only = "[offline]\nkeylog_file = \"keys\"";
        assert_eq!(error(keys_only), "offline.keylog_file needs offline.capture_file");
        let both = "[inline]\ninterfaces = [\"a\", \"b\"]\n[offline]\ncapture_file = \"c\"";
        assert_eq!(error(both), "offline.capture_file excludes inline.interfaces");
        let both = "[passive]\ninterfaces = [\"a\"]\n[offline]\ncapture_file = \"c\"";
        assert_eq!(error(both), "offline.capture_file excludes passive.interfaces");
    }

    #[test]
    fn accepts_bypass_rules_and_refuses_others() {
        let file = |rule: &str| parse(&format!("[policies]\nbypass = [\"{rule}\"]"));
        for (rule, inside, outside) in [
            ("10.1.0.0/16", "10.1.2.3:4", "10.2.0.0:4"),
            ("192.0.2.1", "192.0.2.1:5", "192.0.2.2:5"),
            ("192.0.2.1:443", "192.0.2.1:443", "192.0.2.1:444"),
            ("2001:db8::/32", "[2001:db8::1]:5", "[2001:db9::1]:5"),
            ("[2001:db8::1]:443", "[2001:db8::1]:443", "[2001:db8::1]:444"),
        ] {
            let BypassRule(bypass) = file(rule).unwrap().policies.bypass[0];
            assert!(bypass.contains(inside.parse().unwrap()), "{rule}");
            assert!(!bypass.contains(outside.parse().unwrap()), "{rule}");
        }
        for rule in ["", "example.org", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.1:99999", "::1/129"] {
            let error = file(rule).unwrap_err();
            assert!(error.contains("is not ADDRESS"), "{rule}: {error}");
        }
    }
}
