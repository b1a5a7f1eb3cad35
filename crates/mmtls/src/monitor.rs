//! The first application on the handler trait: reports, streams, a pattern search, a summary.
//!
//! Opens every record, follows what is inside, writes `eve.json` and stream files, searches
//! bodies. Refuses to read a clock (its owner tells the time) and to stop because a disk
//! is full. One [`Monitor`] belongs to one engine.

mod files;
mod finding;
mod inspection;
mod reports;

use core::fmt;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mmtls_engine::session::{
    Certificates, EndReason, FlowAnomaly, FlowEnd, Handler, KeyStatus, Record, Session,
    SessionError, SessionInfo,
};
use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_inspect::{DecodeBudget, Uninspected, Wants};
use serde::Serialize;

use crate::certificate::CertificateFacts;
use crate::eve::{Anomaly, EveWriter, FlowKey, Origin};
use crate::patterns::{PatternAction, PatternConfig, Patterns, PatternsError};
use crate::streams::{StreamFiles, Streams};
use crate::summary::{Outcome, Summary};
pub use finding::Finding;
pub use inspection::Inspection;
use reports::{Asked, Known, Reports};

/// Whether records are opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Inspect {
    /// Open every record and follow HTTP/1 inside.
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
    /// What all its lines have in common.
    pub origin: Origin,
    /// Whether the monitor stands between the endpoints. Elsewhere it resets nothing, whatever patterns and
    /// `uninspected_resets` ask for, and reports nothing as if it did.
    pub inline: bool,
    /// Directory of the decrypted streams.
    pub streams_dir: Option<PathBuf>,
    /// Patterns for bodies.
    pub patterns: Option<PatternConfig>,
    /// Whether records are opened.
    pub inspect: Inspect,
    /// After so many body bytes of a response, the rest of it is not decrypted. Has no effect on
    /// chunked bodies, whose end can only be read, and when streams are written.
    pub inspect_limit_bytes: Option<u64>,
    /// Whether bodies are reported as files, with a hash of each.
    pub fileinfo: bool,
    /// What resets a session when something of it passes uninspected.
    pub uninspected_resets: BTreeSet<Uninspected>,
}

/// Why a monitor could not be set up.
#[derive(Debug)]
pub enum MonitorError {
    /// The log directory, or `eve.json` in it.
    Log(PathBuf, io::Error),
    /// The streams directory.
    Streams(PathBuf, io::Error),
    /// The pattern file.
    Patterns(PatternsError),
}

impl fmt::Display for MonitorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(dir, error) => write!(f, "log directory {}: {error}", dir.display()),
            Self::Streams(dir, error) => write!(f, "streams directory {}: {error}", dir.display()),
            Self::Patterns(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MonitorError {}

/// Reports sessions, follows HTTP/1, searches and counts.
pub struct Monitor {
    reports: Reports,
    streams: Option<Streams>,
    patterns: Option<Arc<Patterns>>,
    inspect: Inspect,
    inspect_limit_bytes: Option<u64>,
    fileinfo: bool,
    /// Memory of all sessions' decoders.
    budget: DecodeBudget,
}

/// What the monitor keeps for each session.
#[derive(Default)]
pub struct MonitorState {
    inspection: Option<Box<Inspection>>,
    files: StreamFiles,
    /// Why bytes of the client are missing before the first ones that came.
    hole_ahead: Option<SessionError>,
    /// What may have ended the following of both directions, and in which one it was found.
    lost: Option<(SessionError, Direction)>,
    /// Session errors reported already; a handful of kinds at most.
    reported: Vec<(SessionError, Direction)>,
    known: Known,
    failed: bool,
    stalled: bool,
}

impl Monitor {
    /// Opens the outputs and reads the patterns.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn new(config: &MonitorConfig) -> Result<Self, MonitorError> {
        // The patterns first: a mistake in them must not leave new files behind.
        let patterns = match &config.patterns {
            Some(patterns) => {
                let mut patterns = Patterns::load(patterns).map_err(MonitorError::Patterns)?;
                if !config.inline {
                    patterns.action = PatternAction::Alert;
                }
                Some(Arc::new(patterns))
            }
            None => None,
        };
        let uninspected_resets = match config.inline {
            true => config.uninspected_resets.clone(),
            false => BTreeSet::new(),
        };
        let eve = match &config.eve_dir {
            Some(dir) => Some(
                EveWriter::create(dir, &config.origin)
                    .map_err(|error| MonitorError::Log(dir.clone(), error))?,
            ),
            None => None,
        };
        let streams = open_streams(config)?;
        Ok(Self {
            reports: Reports::new(eve, uninspected_resets),
            inspect_limit_bytes: config.inspect_limit_bytes,
            fileinfo: config.fileinfo && config.eve_dir.is_some(),
            streams,
            patterns,
            inspect: config.inspect,
            budget: DecodeBudget::default(),
        })
    }

    /// Another monitor with the same settings and outputs, for another worker. What is written goes
    /// to the same files; the counters are its own.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn share(&self, config: &MonitorConfig) -> Result<Self, MonitorError> {
        let Self { reports, patterns, inspect, inspect_limit_bytes, fileinfo, budget, .. } = self;
        Ok(Self {
            reports: reports.share(),
            streams: open_streams(config)?,
            patterns: patterns.clone(),
            inspect: *inspect,
            inspect_limit_bytes: *inspect_limit_bytes,
            fileinfo: *fileinfo,
            budget: budget.clone(),
        })
    }

    /// Tells the time, in nanoseconds since 1970. Events tell it too: this is for an owner that
    /// writes `stats` while nothing happens.
    pub fn set_now(&mut self, now_ns: u64) {
        self.reports.now_ns = self.reports.now_ns.max(now_ns);
    }

    /// The counters so far.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.reports.summary
    }

    /// Writes a `stats` record: the summary and the engine's counters of all workers together, and
    /// where there are several, what each of them has counted.
    pub fn write_stats<C: Serialize>(
        &mut self,
        uptime: Duration,
        summary: &Summary,
        engine: &C,
        workers: &[C],
    ) {
        let reports = &mut self.reports;
        if let Some(eve) = &mut reports.eve {
            eve.stats(
                reports.now_ns,
                &Stats { uptime: uptime.as_secs(), monitor: summary, engine, workers },
            );
        }
    }

    /// Opens `eve.json` again under its name. [`Self::flush`] says later whether it failed.
    pub fn reopen_log(&mut self) {
        if let Some(eve) = &mut self.reports.eve {
            eve.reopen();
        }
    }

    /// Has a thread write `eve.json` from here on, with the privileges of the calling one: for all
    /// monitors that share it, each of which must say so.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn write_behind(&mut self) -> io::Result<()> {
        self.reports.eve.as_mut().map_or(Ok(()), EveWriter::write_behind)
    }

    /// As [`Self::flush`], and waits until everything is written, but not for a disk that does nothing
    /// for five seconds.
    pub fn finish(&mut self) -> Vec<MonitorIoError> {
        if let Some(eve) = &mut self.reports.eve {
            eve.finish();
        }
        self.flush()
    }

    /// Writes what is buffered: about once a second, and at the end. Errors of writing are
    /// returned once, for the owner to print; the monitor goes on in any case.
    pub fn flush(&mut self) -> Vec<MonitorIoError> {
        let mut errors = Vec::new();
        if let Some(eve) = &mut self.reports.eve {
            eve.flush();
            self.reports.summary.lost_log_lines = eve.lost_lines();
            errors.extend(eve.take_error().map(MonitorIoError::Log));
            errors.extend(eve.take_reopen_error().map(MonitorIoError::Reopen));
        }
        if let Some(streams) = &mut self.streams {
            self.reports.summary.failed_streams = streams.failed();
            errors.extend(streams.take_error().map(MonitorIoError::Streams));
        }
        errors
    }
}

/// An output could not be written.
#[derive(Debug)]
pub enum MonitorIoError {
    /// `eve.json`.
    Log(io::Error),
    /// `eve.json` could not be opened again, and goes on in the old file. Nothing is lost.
    Reopen(io::Error),
    /// A stream file.
    Streams(io::Error),
}

impl fmt::Display for MonitorIoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => write!(f, "writing eve.json: {error}"),
            Self::Reopen(error) => write!(f, "the log goes on in the old file: {error}"),
            Self::Streams(error) => write!(f, "writing a stream file: {error}"),
        }
    }
}

impl std::error::Error for MonitorIoError {}

#[derive(Serialize)]
struct Stats<'a, C> {
    uptime: u64,
    monitor: &'a Summary,
    engine: &'a C,
    #[serde(skip_serializing_if = "<[C]>::is_empty")]
    workers: &'a [C],
}

fn open_streams(config: &MonitorConfig) -> Result<Option<Streams>, MonitorError> {
    let open = |dir: &PathBuf| {
        Streams::create(dir).map_err(|error| MonitorError::Streams(dir.clone(), error))
    };
    config.streams_dir.as_ref().map(open).transpose()
}

impl Monitor {
    /// Follows decrypted bytes; true when the session is to be reset.
    fn inspect(
        &mut self,
        info: &SessionInfo,
        state: &mut MonitorState,
        direction: Direction,
        bytes: &[u8],
    ) -> bool {
        if let Some(streams) = &mut self.streams {
            let (random, files) = (&info.client_random, &mut state.files);
            // An empty one creates nothing: the hole is before what creates the files.
            let ahead = state.hole_ahead.take_if(|_| !bytes.is_empty());
            if let Some(error) = ahead {
                streams.hole_ahead(info.id, random, files, error.name());
            }
            streams.append(info.id, random, files, direction, bytes);
        }
        let flow = FlowKey::from(info);
        let (reports, patterns) = (&mut self.reports, self.patterns.as_deref());
        let mut asked = Asked::default();
        let (budget, fileinfo) = (&self.budget, self.fileinfo);
        let inspection = state.inspection.get_or_insert_with(|| inspection(budget, fileinfo));
        inspection.negotiated(info.alpn.as_deref());
        inspection.limit(self.inspect_limit_bytes);
        inspection.bytes(direction, bytes, patterns, &mut |finding| {
            reports.finding(flow, patterns, &finding, &mut asked);
        });
        reports.conclude(flow, &mut state.known, &asked)
    }

    /// Bytes that an error has kept from being decrypted are missing in the streams.
    fn hole(
        &mut self,
        info: &SessionInfo,
        state: &mut MonitorState,
        direction: Direction,
        error: SessionError,
    ) {
        let Some(streams) = &mut self.streams else {
            return;
        };
        match error {
            // What a failed record had is told where it fails.
            SessionError::Integrity
            | SessionError::UnsupportedVersion
            | SessionError::UnsupportedCipherSuite
            | SessionError::UnsupportedCompression
            | SessionError::NoPrivateTag
            | SessionError::EarlyFin
            | SessionError::ConflictingOverlap
            | SessionError::NothingOpened
            | SessionError::JudgedLate => return,
            SessionError::EarlyDataNotInspected => {
                if state.files == StreamFiles::None {
                    state.hole_ahead = Some(error);
                }
            }
            _ => drop(state.lost.get_or_insert((error, direction))),
        }
        streams.hole(&info.client_random, &mut state.files, direction, error.name());
    }

    /// Bytes are missing; true when the session is to be reset.
    fn gap(&mut self, info: &SessionInfo, state: &mut MonitorState, direction: Direction) -> bool {
        let flow = FlowKey::from(info);
        let reports = &mut self.reports;
        let (budget, fileinfo) = (&self.budget, self.fileinfo);
        let inspection = state.inspection.get_or_insert_with(|| inspection(budget, fileinfo));
        let mut asked = Asked::default();
        inspection.gap(direction, &mut |finding| {
            reports.finding(flow, None, &finding, &mut asked);
        });
        reports.conclude(flow, &mut state.known, &asked)
    }

    /// The rest of a body need not be decrypted; true when the session is to be reset for it.
    fn pass_over(&mut self, info: &SessionInfo, state: &mut MonitorState) -> bool {
        let (flow, reports) = (FlowKey::from(info), &mut self.reports);
        let mut asked = Asked::default();
        if let Some(inspection) = &mut state.inspection {
            inspection.pass_over(&mut |it| reports.finding(flow, None, &it, &mut asked));
        }
        reports.conclude(flow, &mut state.known, &asked)
    }

    /// The server's bytes of a response whose rest nobody wanted were passed over.
    fn skipped(&mut self, info: &SessionInfo, state: &mut MonitorState, count: u64) {
        let (flow, reports) = (FlowKey::from(info), &mut self.reports);
        if let Some(inspection) = &mut state.inspection {
            let mut asked = Asked::default();
            inspection.skip_response(count, &mut |it| {
                reports.finding(flow, None, &it, &mut asked);
            });
        }
    }

    /// When enough of the current response was looked at: how much need not even be decrypted.
    /// Where a body of another framing ends can only be read.
    fn past_limit(&self, state: &MonitorState) -> Option<u64> {
        if self.streams.is_some() {
            return None;
        }
        match state.inspection.as_ref()?.wants(Direction::ServerToClient) {
            Wants::After(left) => Some(left),
            // What is not followed is opened all the same: the session counts as decrypted.
            Wants::All | Wants::Nothing => None,
        }
    }
}

fn inspection(budget: &DecodeBudget, fileinfo: bool) -> Box<Inspection> {
    let mut inspection = Box::new(Inspection::new(budget));
    if fileinfo {
        inspection.report_files();
    }
    inspection
}

impl Handler for Monitor {
    type State = MonitorState;

    fn session_start(&mut self, session: &mut Session<'_>, _state: &mut MonitorState) {
        self.set_now(session.now_ns());
        self.reports.summary.tls_sessions += 1;
    }

    fn handshake_end(&mut self, session: &mut Session<'_>, state: &mut MonitorState) {
        self.set_now(session.now_ns());
        let (info, known) = (session.info(), &mut state.known);
        match self.inspect {
            Inspect::Http => self.reports.handshake_end(info, known),
            Inspect::Nothing => self.reports.handshake(info, known),
        }
    }

    fn new_record(
        &mut self,
        session: &mut Session<'_>,
        state: &mut MonitorState,
        record: &mut Record<'_>,
    ) {
        if self.inspect == Inspect::Nothing {
            return;
        }
        self.set_now(session.now_ns());
        let direction = record.direction();
        if direction == Direction::ServerToClient {
            self.reports.handshake_known(session.info(), &mut state.known);
        }
        if record.skipped_bytes() > 0 {
            self.skipped(session.info(), state, record.skipped_bytes());
        }
        let exact = record.announced_len_is_exact();
        match record.open() {
            Ok(plaintext) => {
                self.reports.summary.records_opened += 1;
                if plaintext.content_type != ContentType::APPLICATION_DATA {
                    return;
                }
                self.reports.summary.plaintext_bytes += plaintext.bytes.len() as u64;
                if self.inspect(session.info(), state, direction, plaintext.bytes) {
                    session.reset();
                } else if direction == Direction::ServerToClient
                    && exact
                    && let Some(skip) = self.past_limit(state)
                {
                    if skip > 0 && self.pass_over(session.info(), state) {
                        session.reset();
                    } else {
                        session.pause(Direction::ServerToClient, Some(skip));
                    }
                }
            }
            Err(_) => {
                // The engine raises the error event and applies the policy.
                self.reports.summary.records_failed += 1;
                if let Some(streams) = &mut self.streams {
                    let reason = SessionError::Integrity.name();
                    let random = session.info().client_random;
                    streams.hole(&random, &mut state.files, direction, reason);
                }
                if self.gap(session.info(), state, direction) {
                    session.reset();
                }
            }
        }
    }

    fn early_data(&mut self, session: &mut Session<'_>, state: &mut MonitorState, accepted: bool) {
        self.set_now(session.now_ns());
        if accepted {
            return;
        }
        // The client sends again what was refused: its requests begin anew.
        let flow = FlowKey::from(session.info());
        let reports = &mut self.reports;
        if let Some(mut inspection) = state.inspection.take() {
            let mut asked = Asked::default();
            inspection.end(false, &mut |it| reports.finding(flow, None, &it, &mut asked));
        }
    }

    fn certificates(
        &mut self,
        session: &mut Session<'_>,
        state: &mut MonitorState,
        direction: Direction,
        certificates: &Certificates<'_>,
    ) {
        self.set_now(session.now_ns());
        let place = match direction {
            Direction::ClientToServer => &mut state.known.certificates[0],
            Direction::ServerToClient => &mut state.known.certificates[1],
        };
        if place.is_some() {
            return;
        }
        let facts = match (certificates.chain().first(), certificates.compression()) {
            (Some(own), _) => CertificateFacts::of(own),
            (None, Some(algorithm)) => CertificateFacts::compressed(algorithm),
            // A client without one says so.
            (None, None) => return,
        };
        *place = Some(Box::new(facts));
        if direction == Direction::ServerToClient {
            self.reports.handshake_known(session.info(), &mut state.known);
        }
    }

    fn error(
        &mut self,
        session: &mut Session<'_>,
        state: &mut MonitorState,
        direction: Direction,
        error: SessionError,
    ) {
        self.set_now(session.now_ns());
        state.failed |= Outcome::is_failure(error);
        // Once per session: a peer that repeats its errors must not fill the disk.
        if !state.reported.contains(&(error, direction)) {
            state.reported.push((error, direction));
            let anomaly = Anomaly { kind: "stream", event: error.name(), code: Some(error.code()) };
            self.reports.anomaly(session.info().into(), direction, &anomaly);
            self.hole(session.info(), state, direction, error);
        }
        // Where no end of the handshake will be seen, nothing more will be known of it.
        if matches!(
            error,
            SessionError::UnsupportedVersion
                | SessionError::UnsupportedCipherSuite
                | SessionError::UnsupportedCompression
                | SessionError::MissingKeys
        ) {
            self.reports.handshake(session.info(), &mut state.known);
        }
        if error == SessionError::LostSynchronisation && self.gap(session.info(), state, direction)
        {
            session.reset();
        }
    }

    fn stall(&mut self, _session: &mut Session<'_>, state: &mut MonitorState, _: Direction) {
        state.stalled = true;
        self.reports.summary.stalls += 1;
    }

    fn keys(
        &mut self,
        _session: &mut Session<'_>,
        _state: &mut MonitorState,
        _direction: Direction,
        _epoch: KeyEpoch,
        waited: Duration,
    ) {
        let summary = &mut self.reports.summary;
        summary.keys += 1;
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        summary.longest_stall_us = summary.longest_stall_us.max(waited);
    }

    fn session_end(&mut self, session: &mut Session<'_>, state: &mut MonitorState, why: EndReason) {
        self.set_now(session.now_ns());
        let info = session.info();
        let flow = FlowKey::from(info);
        let reports = &mut self.reports;
        if let Some(inspection) = &mut state.inspection {
            let mut asked = Asked::default();
            let closed = why == EndReason::Closed;
            inspection.end(closed, &mut |it| reports.finding(flow, None, &it, &mut asked));
        }
        if let Some(streams) = &mut self.streams {
            let bypassed = matches!(info.key_status, KeyStatus::Missing | KeyStatus::Unusable);
            if let Some((error, direction)) = state.lost.filter(|_| bypassed) {
                // The other direction went on as well, and nobody looked at it.
                let other = direction.reverse();
                streams.hole(&info.client_random, &mut state.files, other, error.name());
            }
            streams.close(info.id);
        }
        let reset = matches!(why, EndReason::ResetByHandler | EndReason::ResetByPolicy(_));
        reports.summary.resets += u64::from(reset);
        let outcome = Outcome::of(info, state.failed, state.stalled);
        reports.summary.count_outcome(outcome);
        let private_tag = info.private_tag();
        reports.summary.private_tag += u64::from(private_tag == Some(true));
        reports.summary.no_private_tag += u64::from(private_tag == Some(false));
        let app_proto = state.inspection.as_deref().and_then(Inspection::protocol);
        reports.session_end(info, &mut state.known, why, outcome, app_proto);
    }

    fn flow_anomaly(&mut self, found: &FlowAnomaly) {
        self.set_now(found.now_ns);
        let anomaly = Anomaly { kind: "stream", event: found.kind.name(), code: None };
        self.reports.anomaly(found.into(), found.direction, &anomaly);
    }

    fn flow_end(&mut self, flow: &FlowEnd) {
        self.set_now(flow.last_ns);
        self.reports.flow_end(flow);
    }
}

#[cfg(test)]
mod tests;
