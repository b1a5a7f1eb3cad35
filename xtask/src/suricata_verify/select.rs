//! Which tests are run, and why the others are not.
//!
//! Refuses exceptions by name: a test is judged by what it asks for.

use core::fmt;
use std::path::{Path, PathBuf};

use mmtls::rules::{LoadedRules, RulesConfig};
use mmtls_middlebox::inspect::rules::header::Protocol;
use mmtls_middlebox::inspect::rules::{Cause, Skipped};
use serde_json::Value;

use super::checks::{self, Check};
use super::drive::Manner;
use super::requires::{Version, unmet};
use super::settings::Settings;
use super::yaml;

/// Why a test is not run.
#[derive(Debug)]
pub(super) enum Reason {
    /// Its description cannot be read.
    Unreadable(String),
    /// It says so itself.
    SkippedThere,
    /// It requires something.
    Requires(String),
    /// It runs something else than the rules on a capture.
    Command(&'static str),
    /// Nothing is asked about alerts that can be answered.
    NoAlertChecks,
    /// It has no rules.
    NoRules,
    /// It is about firewall rules.
    Firewall,
    /// It sets something.
    Setting(String),
    /// Its rules ask for something that is not there: the cause, as it is counted.
    Rules(String),
    /// Its capture is not there, or cannot be read.
    Capture(String),
    /// No connection is HTTP or TLS.
    Protocol(String),
    /// There is something in the capture besides TCP to which the rules apply.
    NotTcp(&'static str),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "unreadable: {error}"),
            Self::SkippedThere => f.write_str("skipped by the suite itself"),
            Self::Requires(what) => write!(f, "requires {what}"),
            Self::Command(what) => write!(f, "runs other commands ({what})"),
            Self::NoAlertChecks => f.write_str("no checks of alerts that can be compared"),
            Self::NoRules => f.write_str("no rules"),
            Self::Firewall => f.write_str("firewall rules"),
            Self::Setting(what) => f.write_str(what),
            Self::Rules(cause) => write!(f, "rules: {cause}"),
            Self::Capture(error) => write!(f, "capture: {error}"),
            Self::Protocol(found) => write!(f, "no HTTP or TLS that is followed: {found}"),
            Self::NotTcp(what) => write!(f, "rules on {what}"),
        }
    }
}

/// A test that is run.
pub(super) struct Case {
    pub(super) checks: Vec<Check>,
    pub(super) capture: PathBuf,
    pub(super) rules: RulesConfig,
    /// Some rule is about any packet of IP.
    pub(super) has_ip: bool,
    pub(super) manner: Manner,
    /// Rules that the test has and that were refused as faulty.
    pub(super) faulty: Vec<String>,
}

/// Prepares a test.
pub(super) fn prepare(dir: &Path, version: Version) -> Result<Case, Reason> {
    let config = yaml::read(&dir.join("test.yaml")).map_err(Reason::Unreadable)?;
    if config["skip"] == true {
        return Err(Reason::SkippedThere);
    }
    if let Some(what) = unmet(&config["requires"], version) {
        return Err(Reason::Requires(what));
    }
    let asked = checks::read(&config, version);
    if checks::judge(&asked, &[]).is_none() {
        return Err(Reason::NoAlertChecks);
    }
    for key in ["command", "unix-commands", "setup", "pre-check"] {
        if !config[key].is_null() {
            return Err(Reason::Command(key));
        }
    }
    if config["exit-code"].as_i64().is_some_and(|code| code != 0) {
        return Err(Reason::Command("exit-code"));
    }
    let rules = match rules_file(dir, &config, version) {
        // Fingerprints are written without any.
        Err(Reason::NoRules) if !checks::need_rules(&asked) => None,
        rules => Some(rules?),
    };
    let mut settings = Settings::read(dir, &config["args"]).map_err(Reason::Setting)?;
    let name = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // As the suite has it.
    settings.inline |= name.contains("ips");
    if settings.has_thresholds(dir) {
        return Err(Reason::Setting("setting threshold-file".to_owned()));
    }
    let rules = RulesConfig {
        files: rules.into_iter().collect(),
        address_groups: settings.groups("address-groups"),
        port_groups: settings.groups("port-groups"),
        ..RulesConfig::default()
    };
    let loaded = load(&rules)?;
    let faulty = faulty(&loaded.skipped)?;
    let capture = capture_file(dir, &config, &settings)?;
    let has_ip = loaded.matcher.rules().any(|rule| rule.header.protocol == Protocol::Ip);
    let ignores_checksums = settings.ignores_checksums();
    let midstream = settings.midstream() || settings.one_sided();
    let manner = Manner { inline: settings.inline, midstream, ignores_checksums };
    Ok(Case { checks: asked, capture, rules, has_ip, manner, faulty })
}

/// The one file of rules.
fn rules_file(dir: &Path, config: &Value, version: Version) -> Result<PathBuf, Reason> {
    let file = match &config["rules"] {
        Value::Null => {
            let mut files = files_with(dir, &["rules"]);
            match files.len() {
                0 => return Err(Reason::NoRules),
                1 => files.remove(0),
                _ => return Err(Reason::Firewall),
            }
        }
        Value::String(name) => dir.join(name),
        _ => return Err(Reason::NoRules),
    };
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.ends_with("firewall.rules") {
        return Err(Reason::Firewall);
    }
    if let Some(least) = name.strip_prefix("min").and_then(|rest| rest.strip_suffix(".rules"))
        && let Some(what) = unmet(&serde_json::json!({ "min-version": least }), version)
    {
        return Err(Reason::Requires(what));
    }
    if file.is_file() { Ok(file) } else { Err(Reason::NoRules) }
}

fn load(config: &RulesConfig) -> Result<LoadedRules, Reason> {
    // Paths in messages are of this machine.
    LoadedRules::load(config).map_err(|error| {
        let text = error.to_string();
        Reason::Rules(text.rsplit(": ").next().unwrap_or(&text).to_owned())
    })
}

/// Rules that were taken for faulty; an error where one asks for what is not supported.
fn faulty(skipped: &[Skipped]) -> Result<Vec<String>, Reason> {
    let mut faulty = Vec::new();
    for rule in skipped {
        match &rule.cause {
            Cause::UnsupportedProtocol(_)
            | Cause::UnsupportedKeyword(_)
            | Cause::UnsupportedForm { .. } => {
                return Err(Reason::Rules(rule.cause.summary()));
            }
            cause => faulty.push(format!("line {}: {cause}", rule.line)),
        }
    }
    Ok(faulty)
}

fn capture_file(dir: &Path, config: &Value, settings: &Settings) -> Result<PathBuf, Reason> {
    let file = match (&settings.capture, &config["pcap"]) {
        (Some(file), _) => file.clone(),
        (None, Value::String(name)) => dir.join(name),
        _ => {
            let mut files = files_with(dir, &["pcap", "pcapng"]);
            if files.len() != 1 {
                return Err(Reason::Capture(format!("{} files", files.len())));
            }
            files.remove(0)
        }
    };
    if file.is_file() { Ok(file) } else { Err(Reason::Capture("not there".to_owned())) }
}

fn files_with(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension().and_then(|it| it.to_str()).is_some_and(|it| extensions.contains(&it))
        })
        .collect();
    files.sort();
    files
}
