//! Something that is wrong, as operators are told of it, and all of it that was found.
//!
//! Refuses more than one line, and to tell the same twice.

use std::fmt::{self, Display};

use mmtls_middlebox::Error;
use mmtls_packet_io::Error as PortsError;

use crate::config::Places;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Probably not meant.
    Warning,
    /// The monitor starts, and does not do all that it is for. What crosses it goes on.
    Fault,
    /// The monitor does not start.
    Fatal,
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// One line: where, what, and what to do about it.
    pub text: String,
    /// Opening the interfaces tells it, too.
    pub is_of_interfaces: bool,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.severity {
            Severity::Warning => write!(f, "warning: {}", self.text),
            Severity::Fault | Severity::Fatal => f.write_str(&self.text),
        }
    }
}

/// What was found so far.
pub(super) struct Findings<'a> {
    pub(super) places: &'a Places,
    pub(super) problems: Vec<Problem>,
}

impl Findings<'_> {
    pub(super) fn add(&mut self, severity: Severity, key: &str, what: &impl Display) {
        let text = self.places.about(key, &what.to_string());
        // Two workers that share a processor, or two files an authority.
        if self.problems.iter().all(|problem| problem.text != text) {
            self.problems.push(Problem { severity, text, is_of_interfaces: false });
        }
    }
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
