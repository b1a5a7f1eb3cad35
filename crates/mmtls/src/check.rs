//! What would keep `mmtls run` from starting, or from doing what it is for: all of it, before anything is opened.
//!
//! Refuses to leave anything behind: nothing is listened at, no file is made, no frame is received.

mod certificate;
mod directory;
mod host;
mod outputs;
mod problem;

use std::fmt::Display;
use std::time::SystemTime;

use mmtls_middlebox::Settings;

use crate::config::{File, Places};
use crate::monitor::MonitorConfig;
use crate::rules::{LoadedRules, RulesConfig};
use certificate::Usage;
pub use host::{Line, Verdict, host};
use problem::Findings;
pub use problem::{Problem, Severity, told};

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
    add_certificates(settings, &mut found);
    if let Some(dir) = &file.log.directory {
        outputs::logs(dir, file.log.rotation().is_on(), &mut found);
    }
    for section in &file.log.outputs {
        outputs::consumer(section, &mut found);
    }
    if let Some(dir) = &file.log.streams_directory {
        outputs::streams(dir, &mut found);
    }
    if let Some(config) = file.mirror(&settings.bridge) {
        outputs::mirrored(&config, &mut found);
    }
    if let Some(path) = &file.capture.file {
        outputs::packets("capture", path, "capture.file", &mut found);
    }
    outputs::services(file, settings.server.listen, &mut found);
    found.problems
}

/// What endpoints will not like about the key channel's certificates.
#[must_use]
pub fn certificates(settings: &Settings, places: &Places) -> Vec<Problem> {
    let mut found = Findings { places, problems: Vec::new() };
    add_certificates(settings, &mut found);
    found.problems
}

/// When the key channel's own certificate ends, or one above it in its file that ends earlier.
#[must_use]
pub fn key_certificate_end(settings: &Settings) -> Option<SystemTime> {
    certificate::end(&settings.server.identity.certificate_file)
}

fn add_certificates(settings: &Settings, found: &mut Findings<'_>) {
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
    if let Err(error) = monitor.load_patterns() {
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
