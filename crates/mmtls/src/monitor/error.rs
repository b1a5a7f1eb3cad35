//! What goes wrong with a monitor's inputs and outputs. Refuses to end anything for it.

use core::fmt;
use std::io;
use std::path::PathBuf;

use crate::mirror::{MirrorError, OpenError};
use crate::patterns::PatternsError;
use crate::rules::RulesError;

/// Why a monitor could not be set up.
#[derive(Debug)]
pub enum MonitorError {
    /// The log directory, or `eve.json` in it.
    Log(PathBuf, io::Error),
    /// The streams directory.
    Streams(PathBuf, io::Error),
    /// The mirror.
    Mirror(OpenError),
    /// The pattern file.
    Patterns(PatternsError),
    /// The files of rules.
    Rules(RulesError),
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(dir, error) => write!(f, "log directory {}: {error}", dir.display()),
            Self::Streams(dir, error) => write!(f, "streams directory {}: {error}", dir.display()),
            Self::Mirror(error) => error.fmt(f),
            Self::Patterns(error) => error.fmt(f),
            Self::Rules(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MonitorError {}

/// An output could not be written.
#[derive(Debug)]
pub enum MonitorIoError {
    /// `eve.json`.
    Log(io::Error),
    /// `eve.json` could not be opened again, and goes on in the old file. Nothing is lost.
    Reopen(io::Error),
    /// A stream file.
    Streams(io::Error),
    /// The mirror.
    Mirror(MirrorError),
}

impl fmt::Display for MonitorIoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => write!(f, "writing eve.json: {error}"),
            Self::Reopen(error) => write!(f, "the log goes on in the old file: {error}"),
            Self::Streams(error) => write!(f, "writing a stream file: {error}"),
            Self::Mirror(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MonitorIoError {}
