//! `mmtls doctor`: what this machine has for a monitor, line by line, with the remedy where it lacks something.
//!
//! Refuses to change anything, and to receive a frame.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use mmtls::check::{self, Severity, Verdict};
use mmtls::config::{self, File, Places};
use mmtls_middlebox::Error;
use mmtls_packet_io::Error as PortsError;
use mmtls_packet_io::af_packet::{self, BridgeConfig};
use mmtls_packet_io::guard::GuardError;

use super::prepare::settings;
use super::say::say;

#[derive(Args)]
pub struct DoctorArgs {
    /// Interfaces to be bridged.
    #[arg(value_name = "IF", num_args = 2, conflicts_with = "config")]
    interfaces: Vec<String>,
    /// A configuration file: everything that it names is looked at.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl DoctorArgs {
    /// Looks, and says what it sees.
    pub fn run(&self) -> Result<ExitCode, Error> {
        let (file, places) = match self.config.as_deref().map(config::load).transpose() {
            Ok(loaded) => loaded.unwrap_or_else(|| (File::default(), Places::default())),
            Err(mistakes) => {
                mistakes.iter().for_each(|mistake| say(mistake));
                return Ok(ExitCode::FAILURE);
            }
        };
        let mut lines = check::host(file.inline.socket_buffer_bytes);
        if self.config.is_some() {
            lines.extend(configured(&file, &places));
        }
        if let [left, right] = &self.interfaces[..] {
            lines.extend(bridged(left, right));
        }
        let mut out = std::io::stdout();
        for (verdict, text) in &lines {
            // Where nobody reads it, nothing is lost.
            let _ = writeln!(out, "{:<5} {text}", verdict.name());
        }
        let fails = lines.iter().any(|(verdict, _)| *verdict == Verdict::Fail);
        Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// What a start would say of a configuration.
fn configured(file: &File, places: &Places) -> Vec<check::Line> {
    let settings = match settings(file, places) {
        Ok(settings) => settings,
        Err(mistakes) => return mistakes.into_iter().map(|it| (Verdict::Fail, it)).collect(),
    };
    let problems = check::machine(file, &settings, places);
    if problems.is_empty() {
        return vec![(Verdict::Ok, "everything that the configuration names will do".to_owned())];
    }
    let line = |problem: check::Problem| match problem.severity {
        Severity::Warning => (Verdict::Warn, problem.text),
        Severity::Fault | Severity::Fatal => (Verdict::Fail, problem.text),
    };
    problems.into_iter().map(line).collect()
}

/// What a start would say of two interfaces.
fn bridged(left: &str, right: &str) -> Vec<check::Line> {
    let found = af_packet::check(&BridgeConfig::new(left, right));
    let line = |error| match error {
        // Which way it is to fail is not known here.
        PortsError::Guard(GuardError::FailsClosed { .. }) => (
            Verdict::Ok,
            format!("{left} and {right} have a guard: inline.when_down = \"open\" is needed"),
        ),
        // Probably the monitor itself.
        error @ PortsError::Bridged { .. } => (Verdict::Warn, error.to_string()),
        error => (Verdict::Fail, check::told(&Error::Interface(error))),
    };
    let errors = found.errors.into_iter().map(line);
    let warnings = found.warnings.iter().map(|warning| (Verdict::Warn, warning.to_string()));
    let lines: Vec<_> = errors.chain(warnings).collect();
    if lines.is_empty() {
        let text = format!(
            "{left} and {right}: Ethernet, up, with carrier, of nobody else, without addresses, of one MTU, super-frames of at \
             most 64 KB"
        );
        return vec![(Verdict::Ok, text)];
    }
    lines
}
