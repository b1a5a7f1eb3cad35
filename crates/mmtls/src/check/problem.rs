//! Something that is wrong, as operators are told of it.
//!
//! Refuses more than one line.

use std::fmt::{self, Display};

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
