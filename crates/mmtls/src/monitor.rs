//! The first application on the handler trait: reports, streams, rules, a pattern search, a summary.
//!
//! Opens every record, follows what is inside, writes `eve.json` and stream files, applies rules, searches
//! bodies. Refuses to read a clock (its owner tells the time) and to stop because a disk
//! is full. One [`Monitor`] belongs to one engine.

mod config;
mod copies;
mod error;
mod facts;
mod files;
mod finding;
mod handshake;
mod inspection;
mod line_limit;
mod look;
mod mid_stream;
mod operator;
mod reports;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mmtls_engine::session::{
    Certificates, EndReason, FlowAnomaly, FlowEnd, Handler, Record, RefusedKeys, Session,
    SessionError, SessionInfo, TcpFrame,
};
use mmtls_engine::tls::{ContentType, Direction, KeyEpoch};
use mmtls_inspect::{AppBudget, Wants};
use mmtls_middlebox::keys::KeyLogTap;
use serde::Serialize;

use crate::certificate::CertificateFacts;
use crate::eve::{Anomaly, EveWriter, FlowKey};
use crate::patterns::Patterns;
use crate::recent::{Recent, Recorder};
use crate::rules::{LiveRules, LoadedRules, Reloader, SessionRules};
use crate::summary::{Outcome, Summary};
pub use config::{Inspect, MonitorConfig};
use copies::{Copies, SessionCopies};
pub use error::{MonitorError, MonitorIoError};
pub use finding::Finding;
pub use inspection::Inspection;
pub use look::{Look, RuleLook};
use operator::Operated;
pub use reports::Stops;
use reports::{Asked, Known, Reports};

/// Reports sessions, follows HTTP/1, searches and counts.
pub struct Monitor {
    reports: Reports,
    copies: Copies,
    patterns: Option<Arc<Patterns>>,
    rules: Option<LiveRules>,
    inspect: Inspect,
    inspect_limit_bytes: Option<u64>,
    limit_trusts_padding: bool,
    fileinfo: bool,
    writes_fingerprints: bool,
    /// Memory of all sessions' decoders.
    budget: AppBudget,
    pub(crate) operated: Operated,
}

/// What the monitor keeps for each session.
#[derive(Default)]
pub struct MonitorState {
    inspection: Option<Box<Inspection>>,
    rules: Option<Box<SessionRules>>,
    copies: SessionCopies,
    /// Session errors reported already; a handful of kinds at most.
    pub(crate) reported: Vec<(SessionError, Direction)>,
    known: Known,
    failed: bool,
    stalled: bool,
    /// The longest that packets waited for keys which then came, in microseconds.
    stall_us: u32,
    /// Bytes of a response in the clear that are still to be passed over.
    passed_over: u64,
}

impl MonitorState {
    /// Gives back what nothing will be looked at with: the engine keeps a flow, and this with it, for a while after its end.
    fn end(&mut self) {
        self.inspection = None;
        // A version of the rules lives as long as a session has it.
        self.rules = None;
        // They are long where a client wants them to be.
        self.known.fingerprints = None;
    }
}

impl Monitor {
    /// Opens the outputs and reads the patterns.
    ///
    /// # Errors
    /// [`MonitorError`].
    pub fn new(config: &MonitorConfig) -> Result<Self, MonitorError> {
        // The patterns first: a mistake in them must not leave new files behind.
        let patterns = config.load_patterns().map_err(MonitorError::Patterns)?.map(Arc::new);
        let rules = match &config.rules {
            Some(rules) => {
                let loaded = LoadedRules::load(rules).map_err(MonitorError::Rules)?;
                Some(LiveRules::new(rules.clone(), loaded))
            }
            None => None,
        };
        let eve = config.eve();
        let has_log = eve.is_on();
        let eve = has_log.then(|| EveWriter::open(&eve, &config.origin)).transpose();
        let eve = eve.map_err(MonitorError::Log)?;
        let copies =
            Copies::open(config.streams_dir.as_deref(), config.mirror.as_ref(), &config.capture)?;
        let operated = Operated::new(eve.as_ref());
        let recorder = || Recorder::new(Arc::default(), operated.flow_ids());
        Ok(Self {
            reports: Reports::new(
                eve,
                config.keeps_recent.then(recorder),
                config.stops,
                config.uninspected_resets.clone(),
                config.uninspected_resets_beside_rules.clone(),
                config.empty_flows_per_second,
            ),
            operated,
            inspect_limit_bytes: config.inspect_limit_bytes,
            limit_trusts_padding: config.limit_trusts_padding,
            fileinfo: config.fileinfo && has_log,
            writes_fingerprints: config.writes_fingerprints(),
            copies,
            patterns,
            rules,
            inspect: config.inspect,
            budget: AppBudget::default(),
        })
    }

    /// Another monitor with the same settings and outputs, for another worker. What is written goes
    /// to the same files; the counters are its own.
    #[must_use]
    pub fn share(&self) -> Self {
        let Self {
            reports, patterns, rules, inspect, inspect_limit_bytes, fileinfo, budget, ..
        } = self;
        Self {
            reports: reports.share(),
            operated: self.operated.share(),
            copies: self.copies.share(),
            patterns: patterns.clone(),
            rules: rules.as_ref().map(LiveRules::share),
            inspect: *inspect,
            inspect_limit_bytes: *inspect_limit_bytes,
            limit_trusts_padding: self.limit_trusts_padding,
            fileinfo: *fileinfo,
            writes_fingerprints: self.writes_fingerprints,
            budget: budget.clone(),
        }
    }

    /// Takes over what `config` says of patterns, limits, files, fingerprints, content that is not inspected, and empty
    /// flows; outputs stay. Sessions that are open take it over, too, but for files: those are reported from the
    /// start of a session on, or never.
    pub fn reconfigure(&mut self, config: &MonitorConfig, patterns: Option<Arc<Patterns>>) {
        self.patterns = patterns;
        self.inspect_limit_bytes = config.inspect_limit_bytes;
        self.limit_trusts_padding = config.limit_trusts_padding;
        self.fileinfo = config.fileinfo && config.eve().is_on();
        self.writes_fingerprints = config.writes_fingerprints();
        self.reports.reconfigure(
            config.uninspected_resets.clone(),
            config.uninspected_resets_beside_rules.clone(),
            config.empty_flows_per_second,
        );
    }

    /// The rules that are in force.
    #[must_use]
    pub fn rules(&self) -> Option<&LiveRules> {
        self.rules.as_ref()
    }

    /// Has a session go by the rules in force, where it is between two transactions: one that is silent, or that nothing is
    /// looked at in any more, would keep the version before in memory for as long as it is open.
    pub fn take_over_rules(&mut self, state: &mut MonitorState) {
        if let (Some(live), Some(session)) = (&mut self.rules, &mut state.rules) {
            session.take_over(live);
        }
    }

    /// How the rules are read again; `None` without rules.
    #[must_use]
    pub fn reloader(&self) -> Option<Reloader> {
        self.rules.as_ref().map(LiveRules::reloader)
    }

    /// What has happened lately, of all workers; `None` where it is not kept.
    #[must_use]
    pub fn recent(&self) -> Option<Arc<Recent>> {
        self.reports.recorder.as_ref().map(|recorder| Arc::clone(recorder.shared()))
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
        self.reports.stats(uptime, summary, engine, workers);
    }

    /// Notes in the log what an operator, known by user number, decides about a flow.
    pub fn operator_decides(&mut self, flow: FlowKey, action: &'static str, uid: Option<u32>) {
        self.reports.operator_decides(flow, action, uid);
    }

    /// What is to see the lines of a key log; `None` where nobody asks for secrets.
    #[must_use]
    pub fn key_log_tap(&self) -> Option<KeyLogTap> {
        self.copies.key_log_tap()
    }

    /// From now on what comes is of another capture.
    pub fn set_capture(&mut self, name: String) {
        self.reports.eve.iter_mut().for_each(|eve| eve.set_capture(name.clone()));
    }

    /// Opens `eve.json` again under its name. [`Self::flush`] says later whether it failed.
    pub fn reopen_log(&mut self) {
        if let Some(eve) = &mut self.reports.eve {
            eve.reopen();
        }
    }

    /// Has threads write `eve.json`, streams and the mirror from here on, with the privileges of the calling one: for all
    /// monitors that share them, each of which must say so.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn write_behind(&mut self) -> io::Result<()> {
        self.copies.write_behind()?;
        self.reports.eve.as_mut().map_or(Ok(()), EveWriter::write_behind)
    }

    /// As [`Self::flush`], and waits until everything is written, but not for a disk that does nothing
    /// for five seconds.
    pub fn finish(&mut self) -> Vec<MonitorIoError> {
        if let Some(eve) = &mut self.reports.eve {
            eve.finish();
        }
        self.copies.finish();
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
            self.reports.summary.set_outputs(&eve.output_counters());
            errors.extend(eve.take_output_changes().into_iter().map(|(name, error)| match error {
                Some(error) => MonitorIoError::Output(name, error),
                None => MonitorIoError::OutputAgain(name),
            }));
        }
        self.reports.recorder.iter_mut().for_each(Recorder::publish);
        self.copies.report(&mut self.reports.summary, &mut errors);
        errors
    }
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
        self.copies.append(info, &mut state.copies, self.reports.now_ns, direction, bytes);
        self.inspected(info, state, |inspection, look, out| {
            inspection.bytes(direction, bytes, look, out);
        })
    }

    /// Does something with the inspection of a session; true when the session is to be reset.
    fn inspected(
        &mut self,
        info: &SessionInfo,
        state: &mut MonitorState,
        work: impl FnOnce(&mut Inspection, &mut Look<'_>, &mut dyn FnMut(Finding<'_>)),
    ) -> bool {
        let flow = FlowKey::from(info);
        let (reports, patterns) = (&mut self.reports, self.patterns.as_deref());
        let now_ns = reports.now_ns;
        let (budget, fileinfo) = (&self.budget, self.fileinfo);
        let inspection = state
            .inspection
            .get_or_insert_with(|| inspection(&budget.for_client(flow.client.ip()), fileinfo));
        inspection.negotiated(info.alpn.as_deref());
        inspection.limit(self.inspect_limit_bytes);
        reports.rules_stop = self.rules.as_mut().is_some_and(LiveRules::can_drop);
        let rules = rule_look(&mut self.rules, &mut state.rules, flow, now_ns);
        let mut asked = Asked::default();
        work(inspection, &mut Look { patterns, rules }, &mut |finding| {
            reports.finding(flow, patterns, &finding, &mut asked);
        });
        reports.summary.expression_limits += limits_hit(&mut self.rules);
        reports.conclude(flow, &mut state.known, &asked)
    }

    /// Bytes are missing; true when the session is to be reset.
    fn gap(&mut self, info: &SessionInfo, state: &mut MonitorState, direction: Direction) -> bool {
        self.inspected(info, state, |inspection, look, out| inspection.gap(direction, look, out))
    }

    /// The rest of a body need not be decrypted; true when the session is to be reset for it.
    fn pass_over(&mut self, info: &SessionInfo, state: &mut MonitorState) -> bool {
        self.inspected(info, state, |inspection, _, out| inspection.pass_over(out))
    }

    /// The server's bytes of a response whose rest nobody wanted were passed over; true when the session
    /// is to be reset.
    fn skipped(&mut self, info: &SessionInfo, state: &mut MonitorState, count: u64) -> bool {
        self.inspected(info, state, |inspection, look, out| {
            inspection.skip_response(count, look, out);
        })
    }

    /// When enough of the current response was looked at: how much need not even be decrypted.
    /// Where a body of another framing ends can only be read.
    fn past_limit(&self, state: &MonitorState) -> Option<u64> {
        if self.copies.are_made() {
            return None;
        }
        match state.inspection.as_ref()?.wants(Direction::ServerToClient) {
            Wants::After(left) => Some(left),
            // What is not followed is opened all the same: the session counts as decrypted.
            Wants::All | Wants::Nothing => None,
        }
    }
}

/// What rules know of a session, from its first byte on.
fn rule_look<'a>(
    live: &'a mut Option<LiveRules>,
    session: &'a mut Option<Box<SessionRules>>,
    flow: FlowKey,
    now_ns: u64,
) -> Option<RuleLook<'a>> {
    let live = live.as_mut()?;
    let session = session.get_or_insert_with(|| Box::new(live.session(flow)));
    Some(RuleLook { session, live, now_ns })
}

fn limits_hit(live: &mut Option<LiveRules>) -> u64 {
    live.as_mut().map_or(0, LiveRules::take_limits_hit)
}

fn inspection(budget: &AppBudget, fileinfo: bool) -> Box<Inspection> {
    let mut inspection = Box::new(Inspection::new(budget));
    if fileinfo {
        inspection.report_files();
    }
    inspection
}

impl Handler for Monitor {
    type State = MonitorState;

    fn session_start(&mut self, session: &mut Session<'_>, state: &mut MonitorState) {
        self.set_now(session.now_ns());
        self.reports.summary.tls_sessions += 1;
        if session.info().is_mid_stream && self.goes_on(session.info(), state) {
            session.reset();
        }
    }

    fn handshake_end(&mut self, session: &mut Session<'_>, state: &mut MonitorState) {
        self.set_now(session.now_ns());
        let (info, known) = (session.info(), &mut state.known);
        match self.inspect {
            Inspect::Http => self.reports.handshake_end(info, known),
            Inspect::Nothing => self.reports.handshake(info, known),
        }
        if self.handshake_known(session.info(), state) {
            session.reset();
        }
    }

    fn handshake_start(&mut self, session: &mut Session<'_>, state: &mut MonitorState) {
        self.set_now(session.now_ns());
        self.copies.captured_session(session.info(), &mut state.copies);
        if self.client_said_hello(session.info(), state) {
            session.reset();
        }
    }

    fn server_hello(&mut self, session: &mut Session<'_>, state: &mut MonitorState) {
        self.set_now(session.now_ns());
        if self.server_said_hello(session.info(), state) {
            session.reset();
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
        if record.skipped_bytes() > 0 && self.skipped(session.info(), state, record.skipped_bytes())
        {
            session.reset();
        }
        let exact = record.announced_len_is_exact() || self.limit_trusts_padding;
        state.copies.is_early = record.is_early_data();
        match record.open() {
            Ok(plaintext) => {
                self.reports.summary.records_opened += 1;
                if plaintext.content_type != ContentType::APPLICATION_DATA {
                    // close_notify: what its sender's last body has is complete (RFC 8446, section 6.1).
                    if plaintext.content_type == ContentType::ALERT
                        && matches!(plaintext.bytes, [_, 0])
                    {
                        Copies::close(&mut state.copies, direction);
                        if self.inspected(session.info(), state, |inspection, look, out| {
                            inspection.close(direction, look, out);
                        }) {
                            session.reset();
                        }
                    }
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
                let (info, now_ns) = (session.info(), session.now_ns());
                self.copies.record_failed(info, &mut state.copies, now_ns, direction);
                if self.gap(session.info(), state, direction) {
                    session.reset();
                }
            }
        }
    }

    fn early_data(&mut self, session: &mut Session<'_>, state: &mut MonitorState, accepted: bool) {
        self.set_now(session.now_ns());
        let (info, now_ns) = (session.info(), session.now_ns());
        self.copies.early_data(info, &mut state.copies, now_ns, accepted);
        if accepted {
            return;
        }
        // The client sends again what was refused: its requests begin anew.
        if state.inspection.is_some() {
            self.inspected(session.info(), state, |inspection, look, out| {
                inspection.end(false, look, out);
            });
            state.inspection = None;
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
        let chain = certificates.chain();
        if self.handshake_rules(session.info(), state, direction, chain, false) {
            session.reset();
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
            let now_ns = session.now_ns();
            self.copies.hole(session.info(), &mut state.copies, now_ns, direction, error);
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
            if self.handshake_given_up(session.info(), state) {
                session.reset();
            }
        }
        if matches!(error, SessionError::LostSynchronisation | SessionError::MemoryCap)
            && self.gap(session.info(), state, direction)
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
        state: &mut MonitorState,
        _direction: Direction,
        _epoch: KeyEpoch,
        waited: Duration,
    ) {
        let summary = &mut self.reports.summary;
        summary.keys += 1;
        let waited = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
        state.stall_us = state.stall_us.max(waited);
        summary.longest_stall_us = summary.longest_stall_us.max(waited.into());
    }

    fn session_end(&mut self, session: &mut Session<'_>, state: &mut MonitorState, why: EndReason) {
        self.set_now(session.now_ns());
        // What ends with the session may be what a rule looks for.
        if state.inspection.is_some()
            && self.inspected(session.info(), state, |inspection, look, out| {
                inspection.end(why == EndReason::Closed, look, out);
            })
        {
            session.reset();
        }
        let info = session.info();
        let reports = &mut self.reports;
        self.copies.end(info, &mut state.copies, reports.now_ns, why);
        let reset = why.is_reset_by_monitor();
        reports.summary.resets += u64::from(reset);
        let outcome = Outcome::of(info, state.failed, state.stalled);
        reports.summary.count_outcome(outcome);
        let private_tag = info.private_tag();
        reports.summary.private_tag += u64::from(private_tag == Some(true));
        reports.summary.no_private_tag += u64::from(private_tag == Some(false));
        let app_proto = state.inspection.as_deref().and_then(Inspection::protocol);
        let waits = state.stalled.then_some(state.stall_us);
        if let Some(recorder) = &mut reports.recorder {
            let ja4 = state.known.fingerprints.as_ref().and_then(|it| it.ja4.as_deref());
            let error = match why {
                EndReason::ResetByPolicy(error) => Some(error),
                _ => state.reported.last().map(|(error, _)| *error),
            };
            let error = error.map(SessionError::name);
            recorder.ended(reports.now_ns, info, ja4, why, (outcome, error, waits));
        }
        reports.session_end(info, &mut state.known, why, (outcome, waits), app_proto);
        state.end();
    }

    fn cleartext_start(&mut self, session: &mut Session<'_>, _state: &mut MonitorState) {
        self.set_now(session.now_ns());
        self.reports.summary.cleartext_sessions += 1;
    }

    fn cleartext(
        &mut self,
        session: &mut Session<'_>,
        state: &mut MonitorState,
        direction: Direction,
        mut bytes: &[u8],
    ) {
        self.set_now(session.now_ns());
        self.reports.summary.cleartext_bytes += bytes.len() as u64;
        let from_server = direction == Direction::ServerToClient;
        if from_server && state.passed_over > 0 {
            let count = state.passed_over.min(bytes.len() as u64);
            state.passed_over -= count;
            bytes = bytes.get(count as usize..).unwrap_or_default();
            if self.skipped(session.info(), state, count) {
                session.reset();
            }
            if bytes.is_empty() {
                return;
            }
        }
        if self.inspected(session.info(), state, |inspection, look, out| {
            inspection.bytes(direction, bytes, look, out);
        }) {
            session.reset();
        } else if from_server && let Some(rest) = self.past_limit(state) {
            if rest > 0 && self.pass_over(session.info(), state) {
                session.reset();
            }
            state.passed_over = rest;
        }
    }

    fn cleartext_fin(
        &mut self,
        session: &mut Session<'_>,
        state: &mut MonitorState,
        direction: Direction,
    ) {
        self.set_now(session.now_ns());
        if self.inspected(session.info(), state, |inspection, look, out| {
            inspection.close(direction, look, out);
        }) {
            session.reset();
        }
    }

    fn cleartext_end(
        &mut self,
        session: &mut Session<'_>,
        state: &mut MonitorState,
        why: Option<EndReason>,
    ) {
        self.set_now(session.now_ns());
        if state.inspection.is_some()
            && self.inspected(session.info(), state, |inspection, look, out| {
                inspection.end(why == Some(EndReason::Closed), look, out);
            })
        {
            session.reset();
        }
        let app_proto = state.inspection.as_deref().and_then(Inspection::protocol);
        self.reports.cleartext_end(session.info(), &state.known, why, app_proto);
        state.end();
    }

    fn tls_behind_cleartext(
        &mut self,
        info: &SessionInfo,
        before: &MonitorState,
        state: &mut MonitorState,
    ) {
        if let (Some(live), Some(before)) = (&mut self.rules, &before.rules) {
            let flow = FlowKey::from(info);
            let own = state.rules.get_or_insert_with(|| Box::new(live.session(flow)));
            own.inherit(before);
        }
    }

    fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        self.set_now(refused.now_ns);
        self.operated.keys_refused(refused);
        self.reports.keys_refused(refused);
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

    fn wants_frames(&self) -> bool {
        self.copies.wants_frames()
    }

    fn tcp_frame(&mut self, frame: &TcpFrame<'_>) {
        self.copies.frame(frame);
    }
}

#[cfg(test)]
mod tests;
