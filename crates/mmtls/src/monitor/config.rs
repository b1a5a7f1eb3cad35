//! How the application is configured.
//!
//! Refuses nothing itself: what cannot be had is found when a [`Monitor`](super::Monitor) is made.

use std::collections::BTreeSet;
use std::path::PathBuf;

use mmtls_inspect::Uninspected;

use super::reports::Stops;
use crate::capture::CaptureConfig;
use crate::eve::outputs::settings::OutputSection;
use crate::eve::{EveConfig, Origin};
use crate::mirror::MirrorConfig;
use crate::patterns::{PatternAction, PatternConfig, Patterns, PatternsError};
use crate::rotation::Rotation;
use crate::rules::RulesConfig;

/// Whether records are opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Inspect {
    /// Open every record and follow the application protocol inside.
    #[default]
    Http,
    /// Open nothing: sessions are only reported. Patterns and streams need `Http`.
    Nothing,
}

/// What to write and to look for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MonitorConfig {
    /// Directory of `eve.json`.
    pub eve_dir: Option<PathBuf>,
    /// When another `eve.json` begins.
    pub eve_rotation: Rotation,
    /// Who gets its lines beside.
    pub eve_outputs: Vec<OutputSection>,
    /// What all its lines have in common.
    pub origin: Origin,
    /// What can be done to a session. What cannot is not, whatever rules, patterns and `uninspected_resets` ask
    /// for, and nothing is reported as if it were.
    pub stops: Stops,
    /// Directory of the decrypted streams.
    pub streams_dir: Option<PathBuf>,
    /// The decrypted mirror.
    pub mirror: Option<MirrorConfig>,
    /// The original packets.
    pub capture: CaptureConfig,
    /// Patterns for bodies.
    pub patterns: Option<PatternConfig>,
    /// Rules.
    pub rules: Option<RulesConfig>,
    /// Whether records are opened.
    pub inspect: Inspect,
    /// After so many body bytes of a response, the rest of it is not decrypted. Has no effect on
    /// chunked bodies, whose end can only be read, and when streams or a mirror are written.
    pub inspect_limit_bytes: Option<u64>,
    /// Take padded records of TLS 1.3 for what they announce, so that the rest of a body can be passed over
    /// there, too. A server that pads can hide its next response behind it.
    pub limit_trusts_padding: bool,
    /// Whether bodies are reported as files, with a hash of each.
    pub fileinfo: bool,
    /// Whether `tls` records have fingerprints. Those that rules look into are made, and written, in any case.
    pub fingerprints: bool,
    /// Whether alerts, ended sessions, and outcomes by client and program are kept for who asks ([`Recent`](crate::recent::Recent)).
    pub keeps_recent: bool,
    /// How many `flow` records a worker may write in a second of connections that carried nothing, or that one side alone
    /// vouches for and are not TLS; `None`: all.
    pub empty_flows_per_second: Option<u64>,
    /// What resets a session when something of it passes uninspected.
    pub uninspected_resets: BTreeSet<Uninspected>,
    /// The same while rules are in force that drop or reject: rules may be exchanged.
    pub uninspected_resets_beside_rules: BTreeSet<Uninspected>,
}

impl MonitorConfig {
    /// Whether the engine should tell hellos (`Config::tell_hellos`): fingerprints are written or counted, or rules may come to
    /// look into them.
    #[must_use]
    pub fn wants_hellos(&self) -> bool {
        self.writes_fingerprints() || self.rules.is_some() || self.keeps_recent
    }

    /// Reads the patterns.
    ///
    /// # Errors
    /// [`PatternsError`].
    pub fn load_patterns(&self) -> Result<Option<Patterns>, PatternsError> {
        let mut patterns = self.patterns.as_ref().map(Patterns::load).transpose()?;
        if let Some(patterns) = &mut patterns
            && self.stops != Stops::Everything
        {
            patterns.action = PatternAction::Alert;
        }
        Ok(patterns)
    }

    pub(super) fn writes_fingerprints(&self) -> bool {
        self.fingerprints && self.eve().is_on()
    }

    /// Where lines of events go.
    pub(super) fn eve(&self) -> EveConfig {
        EveConfig {
            directory: self.eve_dir.clone(),
            rotation: self.eve_rotation,
            outputs: self.eve_outputs.clone(),
        }
    }
}
