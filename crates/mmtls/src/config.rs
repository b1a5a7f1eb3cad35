//! The configuration file of `mmtls run`: one TOML file, the same names and units as `mmtls.toml` shows.
//!
//! Refuses what [`Configuration`] refuses, and settings of which one switches off what the other asks for.

mod changes;
mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use mmtls_engine::{Config, Policy};
use mmtls_inspect::Uninspected;
use mmtls_middlebox::Error;
use mmtls_middlebox::config::{
    Configuration, InlineSection, KeysSection, LimitsSection, MAX_SECONDS, OfflineSection,
    PassiveSection, PoliciesSection, WorkersSection,
};
use mmtls_packet_io::af_packet::BridgeConfig;
use serde::{Deserialize, Serialize};

use crate::capture::CaptureConfig;
use crate::control::SocketMode;
use crate::eve::outputs::settings::OutputSection;
use crate::mirror::MirrorConfig;
use crate::patterns::PatternAction;
use crate::rotation::Rotation;
use crate::rules::RulesConfig;
use crate::sandbox::SandboxSection;
pub use changes::changes;
pub use places::Places;

/// The file's sections: those of every middlebox, and those of the built-in application.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names are those of `Configuration`")]
pub struct File {
    pub inline: InlineSection,
    pub passive: PassiveSection,
    pub workers: WorkersSection,
    pub keys: KeysSection,
    pub policies: PoliciesSection,
    pub limits: LimitsSection,
    pub offline: OfflineSection,
    /// The built-in application.
    pub inspect: InspectSection,
    /// Where reports go.
    pub log: LogSection,
    /// Where decrypted sessions go as packets.
    pub mirror: MirrorConfig,
    /// Where original packets go.
    pub capture: CaptureConfig,
    /// Numbers for a monitoring system.
    pub metrics: MetricsSection,
    /// A page that shows the run.
    pub web: WebSection,
    /// Questions and orders of an operator.
    pub control: ControlSection,
    /// What the process keeps itself from.
    pub sandbox: SandboxSection,
}

/// `[control]`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlSection {
    /// Where the socket is; without it, there is none.
    pub socket: Option<PathBuf>,
    /// Who may connect.
    pub mode: SocketMode,
}

/// `[metrics]`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSection {
    /// Where they are served; without it, nowhere.
    pub listen: Option<SocketAddr>,
    /// That may be an address that others can reach.
    pub allow_remote: bool,
}

/// `[web]`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebSection {
    /// Where the page is served; without it, nowhere.
    pub listen: Option<SocketAddr>,
    /// Where its token is, or is written to; without it, it is told at the start.
    pub token_file: Option<PathBuf>,
}

/// `[inspect]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct InspectSection {
    /// Open records at all.
    pub decrypt: bool,
    /// The pattern file.
    pub patterns_file: Option<PathBuf>,
    /// What a match does.
    pub pattern_action: ActionName,
    /// Files of rules in Suricata's language.
    pub rules_files: Vec<PathBuf>,
    /// Groups of addresses that rules name, by name without `$`.
    pub address_groups: BTreeMap<String, String>,
    /// Groups of ports.
    pub port_groups: BTreeMap<String, String>,
    /// Body bytes per response until decryption pauses.
    pub limit_bytes: Option<u64>,
    /// Take padded records of TLS 1.3 for what they announce.
    pub limit_trusts_padding: bool,
    /// Look into TCP connections that do not carry TLS, too; without it, where there are rules.
    pub plaintext: Option<bool>,
    /// What becomes of a session of which something passes uninspected, by cause.
    pub uninspected: BTreeMap<Cause, UninspectedPolicy>,
}

/// A cause for which something is not inspected, by name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cause(pub Uninspected);

impl From<Cause> for String {
    fn from(Cause(cause): Cause) -> Self {
        cause.name().to_owned()
    }
}

impl TryFrom<String> for Cause {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let names = || Uninspected::ALL.map(Uninspected::name).join(", ");
        Uninspected::ALL
            .into_iter()
            .find(|cause| cause.name() == name)
            .map(Self)
            .ok_or_else(|| format!("`{name}` is none of {}", names()))
    }
}

/// What becomes of such a session, by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UninspectedPolicy {
    /// It goes on.
    Forward,
    /// It is reset.
    Reset,
}

/// What a match does, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
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
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// Directory of `eve.json`.
    pub directory: Option<PathBuf>,
    /// Bytes after which another file begins.
    pub max_file_bytes: Option<u64>,
    /// Seconds after which another file begins.
    pub max_file_seconds: Option<u64>,
    /// Most files, the one that is written included.
    pub max_files: u32,
    /// Who gets the lines beside.
    pub outputs: Vec<OutputSection>,
    /// Directory of the decrypted streams.
    pub streams_directory: Option<PathBuf>,
    /// Seconds between `stats` records.
    pub stats_interval_seconds: u64,
    /// Most `flow` records of connections that carried nothing, or are attempts, per worker and second.
    pub empty_flows_per_second: u64,
    /// Name of the machine in every line; without it, the kernel's.
    pub host: Option<String>,
    /// Report bodies as files, with a hash of each.
    pub fileinfo: bool,
    /// Tell JA3, JA3S and JA4 of each session.
    pub fingerprints: bool,
}

impl Default for InspectSection {
    fn default() -> Self {
        Self {
            decrypt: true,
            patterns_file: None,
            pattern_action: ActionName::Alert,
            rules_files: Vec::new(),
            address_groups: BTreeMap::new(),
            port_groups: BTreeMap::new(),
            limit_bytes: None,
            limit_trusts_padding: false,
            plaintext: None,
            uninspected: BTreeMap::new(),
        }
    }
}

impl InspectSection {
    /// Whether connections that do not carry TLS are looked into: by default where there are rules, which
    /// nobody means for TLS alone.
    #[must_use]
    pub fn follows_plaintext(&self) -> bool {
        self.plaintext.unwrap_or(!self.rules_files.is_empty())
    }

    /// The causes that reset a session. Where patterns do, or rules can (`rules_reset`), by default what endpoints read in different ways
    /// does too, and what is beyond a cap: both are easily made.
    #[must_use]
    pub fn uninspected_resets(&self, rules_reset: bool) -> BTreeSet<Uninspected> {
        let by_default = |cause| {
            (self.pattern_action == ActionName::Reset || rules_reset)
                && matches!(cause, Uninspected::Malformed | Uninspected::OverCap)
        };
        let resets = |cause: &Uninspected| match self.uninspected.get(&Cause(*cause)) {
            Some(policy) => *policy == UninspectedPolicy::Reset,
            None => by_default(*cause),
        };
        Uninspected::ALL.into_iter().filter(resets).collect()
    }

    /// What passes uninspected although a pattern or a rule resets its session; `None` where nothing does.
    #[must_use]
    pub fn exceptions(&self, rules_reset: bool) -> Option<String> {
        let resets = self.uninspected_resets(rules_reset);
        let passing: Vec<&str> = Uninspected::ALL
            .into_iter()
            .filter(|cause| !resets.contains(cause))
            .map(Uninspected::name)
            .collect();
        let why = match (self.pattern_action, rules_reset) {
            (ActionName::Reset, _) => "pattern_action=reset",
            (ActionName::Alert, true) => "rules drop or reject",
            (ActionName::Alert, false) => return None,
        };
        (!passing.is_empty()).then(|| {
            let passing = passing.join(", ");
            format!(
                "although {why}, these pass: {passing} (inspect.uninspected = \
                 {{ NAME = \"reset\" }} stops them)"
            )
        })
    }
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            directory: None,
            max_file_bytes: None,
            max_file_seconds: None,
            max_files: 8,
            outputs: Vec::new(),
            streams_directory: None,
            stats_interval_seconds: 8,
            empty_flows_per_second: 100,
            host: None,
            fileinfo: false,
            fingerprints: false,
        }
    }
}

impl LogSection {
    /// When another file begins.
    #[must_use]
    pub fn rotation(&self) -> Rotation {
        Rotation::of(self.max_file_bytes, self.max_file_seconds, self.max_files)
    }
}

impl File {
    /// The rules; `None` without a file of them.
    #[must_use]
    pub fn rules(&self) -> Option<RulesConfig> {
        let files = self.inspect.rules_files.clone();
        (!files.is_empty()).then(|| RulesConfig { files, ..self.rule_variables() })
    }

    /// The variables of rules, without any.
    #[must_use]
    pub fn rule_variables(&self) -> RulesConfig {
        let InspectSection { address_groups, port_groups, .. } = &self.inspect;
        let groups = |groups: &BTreeMap<String, String>| groups.clone().into_iter().collect();
        RulesConfig {
            address_groups: groups(address_groups),
            port_groups: groups(port_groups),
            ..RulesConfig::default()
        }
    }

    /// What is mirrored: not to the interfaces that the traffic, or resets, go by. `None` where nothing is.
    #[must_use]
    pub fn mirror(&self, bridge: &BridgeConfig) -> Option<MirrorConfig> {
        let BridgeConfig { left, right, reset_interface, .. } = bridge;
        let watched = [Some(left), right.as_ref(), reset_interface.as_ref()];
        let watched = watched.into_iter().flatten().cloned().collect();
        Some(MirrorConfig { watched, ..self.mirror.clone() }).filter(MirrorConfig::is_on)
    }

    /// The sections that every middlebox has.
    #[must_use]
    pub fn configuration(&self) -> Configuration {
        let Self { inline, passive, workers, keys, policies, limits, offline, .. } = self.clone();
        Configuration { inline, passive, workers, keys, policies, limits, offline }
    }

    /// Finds settings for `mmtls run` of which one switches off what the other asks for. Options
    /// of the command line are among them, so this is not a matter of the file alone.
    ///
    /// # Errors
    /// [`Error::Usage`] names both.
    pub fn check_inspection(&self) -> Result<(), Error> {
        let InspectSection {
            decrypt, patterns_file, pattern_action, limit_bytes, uninspected, ..
        } = &self.inspect;
        let rules = !self.inspect.rules_files.is_empty();
        let uninspected_resets = uninspected.values().any(|it| *it == UninspectedPolicy::Reset);
        let streams = self.log.streams_directory.is_some();
        let patterns = patterns_file.is_some();
        let mirror = self.mirror.is_on();
        let text = if !decrypt && patterns {
            "inspect.decrypt = false excludes inspect.patterns_file (--patterns)"
        } else if !decrypt && rules {
            "inspect.decrypt = false excludes inspect.rules_files (-s, -S)"
        } else if !decrypt && streams {
            "inspect.decrypt = false excludes log.streams_directory (--streams)"
        } else if !decrypt && mirror {
            "inspect.decrypt = false excludes [mirror] (-w, --mirror)"
        } else if !decrypt && self.log.fileinfo {
            "inspect.decrypt = false excludes log.fileinfo (--fileinfo)"
        } else if !decrypt && *pattern_action == ActionName::Reset {
            "inspect.decrypt = false excludes inspect.pattern_action = \"reset\""
        } else if !decrypt && limit_bytes.is_some() {
            "inspect.decrypt = false excludes inspect.limit_bytes"
        } else if !patterns && *pattern_action == ActionName::Reset {
            "inspect.pattern_action = \"reset\" needs inspect.patterns_file (--patterns)"
        } else if self.passive.interfaces.is_some() && *pattern_action == ActionName::Reset {
            "inspect.pattern_action = \"reset\" (--pattern-action) needs --inline: a passive monitor \
             can stop nothing"
        } else if !decrypt && !uninspected.is_empty() {
            "inspect.decrypt = false excludes inspect.uninspected"
        } else if self.passive.interfaces.is_some() && uninspected_resets {
            "inspect.uninspected needs --inline to reset: a passive monitor can stop nothing"
        } else if !decrypt && self.inspect.plaintext == Some(true) {
            "inspect.decrypt = false excludes inspect.plaintext (--plaintext): nothing is looked into"
        } else if limit_bytes.is_none() && self.inspect.limit_trusts_padding {
            "inspect.limit_trusts_padding needs inspect.limit_bytes"
        } else if streams && limit_bytes.is_some() {
            "inspect.limit_bytes excludes log.streams_directory (--streams): streams are whole"
        } else if mirror && limit_bytes.is_some() {
            "inspect.limit_bytes excludes [mirror] (-w, --mirror): its sessions are whole"
        } else {
            return Ok(());
        };
        Err(Error::Usage(text.to_owned()))
    }

    /// Finds an address for the page that others can reach: names and addresses, and the token, would pass there in the clear.
    ///
    /// # Errors
    /// [`Error::Usage`] names it, and another way.
    pub fn check_web(&self) -> Result<(), Error> {
        match self.web.listen.filter(|it| !it.ip().to_canonical().is_loopback()) {
            None => Ok(()),
            Some(address) => Err(Error::Usage(format!(
                "web.listen (--web) {address} is not on loopback, and the page has no encryption: choose 127.0.0.1, and reach \
                 it from elsewhere by ssh -L {port}:127.0.0.1:{port}",
                port = address.port()
            ))),
        }
    }

    /// Finds a capture that cannot have what is asked for.
    ///
    /// # Errors
    /// [`Error::Usage`] says why.
    pub fn check_capture(&self) -> Result<(), Error> {
        let CaptureConfig { file, secrets, .. } = &self.capture;
        let text = if *secrets && file.is_none() {
            "capture.secrets needs capture.file (--capture)"
        } else if *secrets && self.keys.log_file.is_none() {
            "capture.secrets needs keys.log_file (--keylog): agents send record keys, which no other tool takes"
        } else if file.is_some() && *file == self.mirror.file {
            "capture.file (--capture) and mirror.file (-w) are the same file: name another one"
        } else {
            return Ok(());
        };
        Err(Error::Usage(text.to_owned()))
    }

    /// Finds an address for metrics that others can reach, unless that is wanted.
    ///
    /// # Errors
    /// [`Error::Usage`] names it, and what allows it.
    pub fn check_metrics(&self) -> Result<(), Error> {
        let MetricsSection { listen, allow_remote } = self.metrics;
        match listen.filter(|it| !it.ip().to_canonical().is_loopback() && !allow_remote) {
            None => Ok(()),
            Some(address) => Err(Error::Usage(format!(
                "metrics.listen (--metrics) {address} is not on loopback, and whoever reaches it learns what passes here; \
                 metrics.allow_remote = true in the configuration file allows it"
            ))),
        }
    }
}

/// Reads and checks a configuration file.
///
/// # Errors
/// A line for each mistake, with file, line and key.
pub fn load(path: &Path) -> Result<(File, Places), Vec<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => read(path, &text),
        Err(error) => Err(vec![format!("{}: {error}", path.display())]),
    }
}

fn read(path: &Path, text: &str) -> Result<(File, Places), Vec<String>> {
    let name = path.display();
    let file: File = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        vec![format!("{name}: line {}: {}", places::line_of(text, start), error.message())]
    })?;
    let places = Places::of(path, text);
    let mistakes: Vec<String> =
        file.mistakes().into_iter().map(|mistake| places.locate(&mistake)).collect();
    if mistakes.is_empty() { Ok((file, places)) } else { Err(mistakes) }
}

impl File {
    /// Values that make no sense, alone or together.
    fn mistakes(&self) -> Vec<String> {
        let mut found = self.configuration().mistakes();
        found.extend(self.mirror.check().err());
        found.extend(self.capture.check().err());
        found.extend(self.log.rotation().check("log").err());
        found.extend(self.log.outputs.iter().filter_map(|output| output.check().err()));
        if self.log.host.as_deref() == Some("") {
            found.push("log.host must not be empty".to_owned());
        }
        if !(1..=MAX_SECONDS).contains(&self.log.stats_interval_seconds) {
            found.push(format!("log.stats_interval_seconds must be 1 to {MAX_SECONDS}"));
        }
        found
    }
}

/// What passes uninspected although sessions without keys do not, and what would stop it; `None`
/// where those pass, too. `bypasses`: endpoints are named that are left alone. Told at start, since the name `reset`
/// promises more than it holds.
#[must_use]
pub fn exceptions(config: &Config, grace_seconds: u64, bypasses: bool) -> Option<String> {
    let Config { policies, exempt_names, private_names, .. } = config;
    let passes = |policy| matches!(policy, Policy::Forward | Policy::Bypass);
    if passes(policies.missing_keys) {
        return None;
    }
    let mut found: Vec<String> = [
        ("null_keys", policies.null_keys, "sessions whose endpoint refuses to share", "reset"),
        (
            "too_many_null_keys",
            policies.too_many_null_keys,
            "refusals beyond null_keys_per_minute",
            "reset",
        ),
        ("udp_tls", policies.udp_tls, "DTLS and QUIC", "drop"),
        ("encapsulated", policies.encapsulated, "IP in tunnels and other frames", "drop"),
        ("fragments", policies.fragments, "TCP in IP fragments", "drop"),
        ("multipath", policies.multipath, "multipath TCP", "drop"),
        ("unread_flight", policies.unread_flight, "what passes as a client's certificate", "reset"),
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
    if !passes(policies.mid_stream) && grace_seconds > 0 {
        let until =
            if exempt_names.is_some() { "" } else { " until their endpoints have shared keys" };
        found.push(format!(
            "for {grace_seconds} s connections from before the start{until} \
             (limits.mid_stream_grace_seconds = 0 stops them)"
        ));
    }
    if exempt_names.is_some() {
        found.push("sessions with names of policies.exempt_names".to_owned());
    }
    if private_names.is_some() && !passes(policies.null_keys) {
        let what = "sessions with names of policies.private_names whose endpoint refuses to share";
        found.push(what.to_owned());
    }
    if bypasses {
        found.push("endpoints of policies.bypass".to_owned());
    }
    found.push(ALWAYS.to_owned());
    let missing = policies.missing_keys.name();
    Some(format!("although missing_keys={missing}, these pass: {}", found.join(", ")))
}

/// What no policy stops.
const ALWAYS: &str = "what is not TLS on ports outside policies.tls_ports, encrypted tunnels (IPsec, WireGuard, MACsec)";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mmtls_engine::{ExemptNames, Limits, Policies};
    use mmtls_middlebox::config::{BypassRule, NameRules, PolicyName};

    use super::*;

    const SAMPLE: &str = include_str!("../mmtls.toml");

    fn parse(text: &str) -> Result<File, String> {
        let read = read(Path::new("m.toml"), text);
        read.map(|(file, _)| file).map_err(|mistakes| mistakes.join("\n"))
    }

    #[test]
    fn refuses_settings_that_switch_each_other_off() {
        for (text, words) in [
            ("[inspect]\ndecrypt = false\npatterns_file = \"p\"\n", "inspect.patterns_file"),
            ("[inspect]\ndecrypt = false\npattern_action = \"reset\"\n", "pattern_action"),
            ("[inspect]\ndecrypt = false\nlimit_bytes = 1\n", "limit_bytes"),
            ("[inspect]\ndecrypt = false\n[log]\nstreams_directory = \"s\"\n", "--streams"),
            ("[inspect]\ndecrypt = false\n[log]\nfileinfo = true\n", "--fileinfo"),
            ("[inspect]\npattern_action = \"reset\"\n", "needs inspect.patterns_file"),
            ("[inspect]\nlimit_trusts_padding = true\n", "needs inspect.limit_bytes"),
            ("[inspect]\nlimit_bytes = 1\n[log]\nstreams_directory = \"s\"\n", "--streams"),
            ("[inspect]\nlimit_bytes = 1\n[mirror]\nfile = \"m\"\n", "--mirror"),
            ("[inspect]\ndecrypt = false\n[mirror]\ninterface = \"m\"\n", "--mirror"),
            ("[inspect]\ndecrypt = false\nuninspected.gap = \"forward\"\n", "inspect.uninspected"),
            (
                "[passive]\ninterfaces = [\"a\"]\n[inspect]\nuninspected.gap = \"reset\"\n",
                "needs --inline",
            ),
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
    fn refuses_a_capture_that_cannot_have_what_is_asked_for() {
        for (text, words) in [
            ("[capture]\nsecrets = true\n", "needs capture.file"),
            ("[capture]\nsecrets = true\nfile = \"c\"\n", "needs keys.log_file"),
            ("[capture]\nfile = \"c\"\n[mirror]\nfile = \"c\"\n", "the same file"),
        ] {
            let error = parse(text).unwrap().check_capture().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        let both = "[capture]\nsecrets = true\nfile = \"c\"\n[keys]\nlog_file = \"k\"\n";
        parse(both).unwrap().check_capture().unwrap();
    }

    #[test]
    fn refuses_metrics_that_others_can_reach() {
        for (address, remote) in [
            ("127.0.0.1:9600", false),
            ("127.9.9.9:1", false),
            ("[::1]:9600", false),
            ("[::ffff:127.0.0.1]:9600", false),
            ("0.0.0.0:9600", true),
            ("[::]:9600", true),
            ("192.0.2.1:9600", true),
            ("[::ffff:192.0.2.1]:9600", true),
        ] {
            let text = format!("[metrics]\nlisten = \"{address}\"\n");
            let result = parse(&text).unwrap().check_metrics();
            assert_eq!(result.is_err(), remote, "{address}");
            if let Err(error) = result {
                let error = error.to_string();
                assert!(error.contains("metrics.allow_remote = true") && error.contains(address));
            }
            parse(&format!("{text}allow_remote = true\n")).unwrap().check_metrics().unwrap();
        }
        assert!(parse("[metrics]\nlisten = \"127.0.0.1\"\n").unwrap_err().contains("line 2"));
    }

    #[test]
    fn refuses_a_page_that_others_can_reach() {
        for (address, remote) in [
            ("127.0.0.1:9700", false),
            ("[::1]:9700", false),
            ("[::ffff:127.0.0.1]:9700", false),
            ("0.0.0.0:9700", true),
            ("[2001:db8::1]:9700", true),
        ] {
            let result = parse(&format!("[web]\nlisten = \"{address}\"\n")).unwrap().check_web();
            assert_eq!(result.is_err(), remote, "{address}");
        }
        assert!(parse("[web]\nallow_remote = true\n").unwrap_err().contains("unknown field"));
    }

    #[test]
    fn names_what_is_not_inspected_and_passes() {
        let section = |text: &str| parse(&format!("[inspect]\n{text}")).unwrap().inspect;
        assert_eq!(section("").uninspected_resets(false), [].into());
        assert_eq!(section("").exceptions(false), None);
        let reset = "pattern_action = \"reset\"\n";
        let defaults = [Uninspected::Malformed, Uninspected::OverCap];
        assert_eq!(section(reset).uninspected_resets(false), defaults.into());
        let passing = section(reset).exceptions(false).unwrap();
        assert!(passing.contains(
            "these pass: unknown_protocol, unknown_coding, expression_limit, body_limit, gap"
        ));
        let all: String = Uninspected::ALL
            .iter()
            .map(|cause| format!("uninspected.{cause} = \"reset\"\n"))
            .collect();
        let all = section(&format!("{reset}{all}"));
        assert_eq!((all.uninspected_resets(false).len(), all.exceptions(false)), (7, None));
        let none = section(&format!("{reset}uninspected.malformed = \"forward\""));
        assert_eq!(none.uninspected_resets(false), [Uninspected::OverCap].into());
        let error = parse("[inspect]\nuninspected.gaps = \"reset\"").unwrap_err();
        assert!(error.contains("m.toml: line 2: `gaps` is none of unknown_protocol"), "{error}");
    }

    #[test]
    fn accepts_the_sample_whose_values_are_the_defaults() {
        let sample = format!("{:?}", parse(SAMPLE).unwrap());
        let mut defaults = File::default();
        let policies = Policies::new(Policy::Reset);
        defaults.policies = PoliciesSection {
            missing_keys: None,
            null_keys: Some(PolicyName(policies.null_keys)),
            too_many_null_keys: Some(PolicyName(policies.too_many_null_keys)),
            unread_flight: Some(PolicyName(policies.unread_flight)),
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
            exempt_names: NameRules::default(),
            private_names: NameRules::default(),
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
        let mut config = Config::new(Policy::Reset);
        let text = exceptions(&config, 0, false).unwrap();
        assert_eq!(
            text,
            "although missing_keys=reset, these pass: sessions whose endpoint refuses to share \
             (null_keys=bypass; policies.null_keys = \"reset\" stops them), DTLS and QUIC \
             (udp_tls=forward; policies.udp_tls = \"drop\" stops them), what passes as a \
             client's certificate (unread_flight=forward; policies.unread_flight = \"reset\" stops them), what is not TLS on ports \
             outside policies.tls_ports, encrypted tunnels (IPsec, WireGuard, MACsec)"
        );
        config.policies.null_keys = Policy::Reset;
        config.policies.udp_tls = Policy::Drop;
        config.policies.unread_flight = Policy::Reset;
        let always = format!("although missing_keys=reset, these pass: {ALWAYS}");
        assert_eq!(exceptions(&config, 0, false), Some(always));
        assert!(exceptions(&config, 0, true).unwrap().contains("policies.bypass"));
        assert!(exceptions(&config, 60, false).unwrap().contains("for 60 s connections from"));
        let names = || Some(ExemptNames(Arc::new(|_: &[u8]| true)));
        let named = Config { exempt_names: names(), ..config.clone() };
        assert!(exceptions(&named, 0, false).unwrap().contains("policies.exempt_names"));
        let named = Config { private_names: names(), ..config.clone() };
        assert!(exceptions(&named, 0, false).unwrap().contains("policies.private_names"));
        config.policies.fragments = Policy::Forward;
        assert!(exceptions(&config, 0, false).unwrap().contains("fragments=forward"));
        assert_eq!(exceptions(&Config::new(Policy::Forward), 60, true), None);
        // Every policy has a sentence, apart from the condition and one that is off by default.
        let mut all = Config::new(Policy::Forward);
        all.policies.missing_keys = Policy::Reset;
        all.policies.too_many_null_keys = Policy::Forward;
        all.policies.memory_cap = Policy::Forward;
        all.policies.integrity_failure = Policy::Forward;
        all.policies.lost_synchronisation = Policy::Forward;
        let text = exceptions(&all, 0, false).unwrap();
        for (name, _) in all.policies.list() {
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
        assert_eq!(
            error("[limits]\nmax_flows = 0"),
            "m.toml: line 2: limits.max_flows must not be 0"
        );
        assert!(error("[limits]\ntombstone_timeout_seconds = 0").contains("must be 1 to"));
        let endless = format!("[log]\nstats_interval_seconds = {}", i64::MAX);
        assert!(error(&endless).contains("must be 1 to"));
        assert_eq!(error("[log]\nhost = \"\""), "m.toml: line 2: log.host must not be empty");
        let two = error("[limits]\nmax_flows = 0\n\n[workers]\ncount = 0\n");
        assert_eq!(two.lines().count(), 2, "all are told: {two}");
        assert!(two.ends_with("m.toml: line 5: workers.count must be 1 to 128"), "{two}");
        for (address, words) in [
            ("192.0.2.1", "has no port: ADDRESS:PORT is expected, as in 192.0.2.1:4433"),
            ("h:1", "no names"),
        ] {
            let text = format!("[keys]\nlisten = \"{address}\"");
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with("m.toml: line 2: ") && error.contains(words), "{error}");
        }
        let keys_only = "[offline]\nkeylog_file = \"keys\"";
        assert_eq!(
            error(keys_only),
            "m.toml: line 2: offline.keylog_file needs offline.capture_file"
        );
        let both = "[inline]\ninterfaces = [\"a\", \"b\"]\n[offline]\ncapture_file = \"c\"";
        assert_eq!(error(both), "m.toml: line 4: offline.capture_file excludes inline.interfaces");
        let both = "[passive]\ninterfaces = [\"a\"]\n[offline]\ncapture_file = \"c\"";
        assert_eq!(error(both), "m.toml: line 4: offline.capture_file excludes passive.interfaces");
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
