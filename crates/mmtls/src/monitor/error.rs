//! What goes wrong with a monitor's inputs and outputs. Refuses to end anything for it.

use core::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::capture::CaptureError;
use crate::eve::OpenLogError;
use crate::mirror::{MirrorError, OpenError};
use crate::patterns::PatternsError;
use crate::rules::RulesError;

/// Why a monitor could not be set up.
#[derive(Debug)]
pub enum MonitorError {
    /// The log.
    Log(OpenLogError),
    /// The streams directory.
    Streams(PathBuf, io::Error),
    /// The mirror.
    Mirror(OpenError),
    /// The capture.
    Capture(CaptureError),
    /// The pattern file.
    Patterns(PatternsError),
    /// The files of rules.
    Rules(RulesError),
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(OpenLogError::Directory(dir, error)) => {
                write!(f, "log directory {}: {error}", dir.display())
            }
            Self::Log(OpenLogError::Output(name, error)) => {
                write!(f, "log.outputs: {name}: {error}")
            }
            Self::Streams(dir, error) => write!(f, "streams directory {}: {error}", dir.display()),
            Self::Mirror(error) => error.fmt(f),
            Self::Capture(error) => error.fmt(f),
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
    /// `eve.json` could not be opened again, or kept under another name, and goes on in the old file. Nothing is lost.
    Reopen(io::Error),
    /// An output beside the file, by name.
    Output(Arc<str>, io::Error),
    /// It takes lines again.
    OutputAgain(Arc<str>),
    /// A stream file.
    Streams(io::Error),
    /// The mirror.
    Mirror(MirrorError),
    /// The capture.
    Capture(CaptureError),
}

impl fmt::Display for MonitorIoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => write!(f, "writing eve.json: {error}"),
            Self::Reopen(error) => write!(f, "the log goes on in the old file: {error}"),
            Self::Output(name, error) => write!(f, "log.outputs: {name}: {error}"),
            Self::OutputAgain(name) => write!(f, "log.outputs: {name} takes lines again"),
            Self::Streams(error) => write!(f, "writing a stream file: {error}"),
            Self::Mirror(error) => error.fmt(f),
            Self::Capture(error) => error.fmt(f),
        }
    }
}

impl MonitorIoError {
    /// Whether something is missing in an output.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        !matches!(self, Self::Reopen(_) | Self::OutputAgain(_))
    }
}

impl std::error::Error for MonitorIoError {}
