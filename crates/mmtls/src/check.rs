//! What would keep `mmtls run` from starting, or from doing what it is for: all of it, before anything is opened.
//!
//! Refuses to leave anything behind: nothing is listened at, no file is made, no frame is received.

mod certificate;
mod directory;
mod host;
mod problem;

use std::fmt::Display;
use std::path::Path;
use std::time::SystemTime;

use mmtls_middlebox::{Error, Settings, harden};
use mmtls_packet_io::Error as PortsError;

use crate::config::{File, Places};
use crate::monitor::MonitorConfig;
use crate::patterns::Patterns;
use crate::rules::{LoadedRules, RulesConfig};
use certificate::Usage;
pub use host::{Line, Verdict, host};
pub use problem::{Problem, Severity};

/// What was found so far.
pub struct Findings<'a> {
    places: &'a Places,
    problems: Vec<Problem>,
}

impl Findings<'_> {
    fn add(&mut self, severity: Severity, key: &str, what: &impl Display) {
        let text = self.places.about(key, &what.to_string());
        // Two workers that share a processor, or two files an authority.
        if self.problems.iter().all(|problem| problem.text != text) {
            self.problems.push(Problem { severity, text, is_of_interfaces: false });
        }
    }
}

/// What is wrong with this machine and the files that the settings name; not with rules and patterns.
#[must_use]
pub fn machine(file: &File, settings: &Settings, places: &Places) -> Vec<Problem> {
    let mut found = Findings { places, problems: Vec::new() };
    let seen = settings.check();
    for (key, error) in seen.problems {
        found.add(Severity::Fatal, key, &told(&error));
    }
    for warning in seen.warnings {
        let (severity, text) = (Severity::Warning, warning.to_string());
        found.problems.push(Problem { severity, text, is_of_interfaces: true });
    }
    let server = &settings.server;
    let now = SystemTime::now();
    let own = (&server.identity.certificate_file, "keys.certificate_file", Usage::Middlebox);
    let authority = server.client_ca_file.as_ref();
    let authority = authority.map(|path| (path, "keys.client_ca_file", Usage::Authority));
    for (path, key, usage) in [Some(own), authority].into_iter().flatten() {
        for (severity, text) in certificate::check(path, usage, server.listen.ip(), now) {
            found.add(severity, key, &text);
        }
    }
    if let Some(dir) = &file.log.directory {
        logs(dir, &mut found);
    }
    if let Some(dir) = &file.log.streams_directory {
        let told = |error: &dyn Display| format!("streams directory {}: {error}", dir.display());
        match harden::without_capabilities(|| directory::check(dir)) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let hint =
                    "files come into it after capabilities are given up: let this user own it";
                let text = format!("{} ({hint})", told(&error));
                found.add(Severity::Fatal, "log.streams_directory", &text);
            }
            Err(error) => found.add(Severity::Fatal, "", &error),
        }
    }
    found.problems
}

/// The log directory: it is used before capabilities are given up, and again when the log is rotated.
fn logs(dir: &Path, found: &mut Findings<'_>) {
    let check =
        || directory::check(dir).and_then(|()| directory::check_file(&dir.join("eve.json")));
    let key = "log.directory";
    if let Err(error) = check() {
        let text = format!("log directory {}: {error}", dir.display());
        return found.add(Severity::Fatal, key, &text);
    }
    match harden::without_capabilities(check) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let text = format!(
                "log directory {}: {error}, once capabilities are given up: eve.json cannot be opened anew (SIGHUP) unless \
                 this user owns it",
                dir.display()
            );
            found.add(Severity::Warning, key, &text);
        }
        Err(error) => found.add(Severity::Fatal, "", &error),
    }
}

/// What is wrong with rules and patterns, and otherwise the rules.
///
/// # Errors
/// A problem for each.
pub fn inputs(monitor: &MonitorConfig) -> Result<Option<LoadedRules>, Vec<Problem>> {
    let mut problems = Vec::new();
    let fatal = |what: &dyn Display| {
        let (severity, text) = (Severity::Fatal, what.to_string());
        Problem { severity, text, is_of_interfaces: false }
    };
    let patterns = monitor.patterns.as_ref().map(Patterns::load);
    if let Some(Err(error)) = patterns {
        problems.push(fatal(&error));
    }
    let mut loaded = None;
    if let Some(rules) = &monitor.rules {
        match LoadedRules::load(rules) {
            Ok(rules) => loaded = Some(rules),
            Err(error) => {
                // Each file alone, so that the next one's fault is told, too.
                let single = |file: &_| {
                    let config = RulesConfig { files: vec![Clone::clone(file)], ..rules.clone() };
                    LoadedRules::load(&config).err()
                };
                let each: Vec<_> = rules.files.iter().filter_map(single).collect();
                match each.is_empty() {
                    true => problems.push(fatal(&error)),
                    false => problems.extend(each.iter().map(|error| fatal(error))),
                }
            }
        }
    }
    if problems.is_empty() { Ok(loaded) } else { Err(problems) }
}

/// An error, and what to do about it where it does not say so itself.
#[must_use]
pub fn told(error: &Error) -> String {
    let remedy = match error {
        Error::Interface(PortsError::InterfaceDown { interface }) => {
            format!(" (ip link set {interface} up)")
        }
        Error::Interface(PortsError::NoSuchInterface { .. }) => {
            " (`ip link` lists them)".to_owned()
        }
        Error::Interface(PortsError::NotPermitted) => {
            ": run as root, or with AmbientCapabilities=CAP_NET_RAW".to_owned()
        }
        _ => String::new(),
    };
    format!("{error}{remedy}")
}
