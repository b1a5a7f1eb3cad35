//! What the monitor writes and counts: the records of a session in their order, and each once.
//!
//! Refuses to decide what is looked for.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use mmtls_engine::session::{EndReason, FlowEnd, KeyStatus, RefusedKeys, SessionId, SessionInfo};
use mmtls_engine::tls::{Direction, ProtocolVersion};
use mmtls_inspect::rules::Rule;
use mmtls_inspect::rules::header::Action;
use mmtls_inspect::{AppProto, Uninspected};
use serde::Serialize;

use super::finding::Finding;
use super::line_limit::LineLimit;
use crate::certificate::CertificateFacts;
use crate::eve::{
    Alert, Anomaly, Certificates, Dropped, EveWriter, FlowFacts, FlowKey, HttpTransaction, Late,
    Metadata, SessionEnd,
};
use crate::fingerprint::Fingerprints;
use crate::patterns::{PatternAction, Patterns};
use crate::recent::Recorder;
use crate::summary::{Outcome, Summary};

/// Records of keys that were not taken, for each worker.
const REFUSED_KEYS_PER_SECOND: u64 = 10;

/// What a monitor can do to a session.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Stops {
    /// It stands between the endpoints: what is dropped does not arrive.
    Everything,
    /// It stands beside them and can send resets, which `reject` asks for.
    Rejects,
    /// It only looks.
    #[default]
    Nothing,
}

/// Where findings go.
pub(super) struct Reports {
    pub(super) eve: Option<EveWriter>,
    pub(super) recorder: Option<Recorder>,
    pub(super) now_ns: u64,
    pub(super) summary: Summary,
    stops: Stops,
    uninspected_resets: BTreeSet<Uninspected>,
    /// The same while [`Self::rules_stop`].
    uninspected_resets_beside_rules: BTreeSet<Uninspected>,
    /// Rules are in force that drop or reject.
    pub(super) rules_stop: bool,
    /// Flows whose sessions have ended, until they end themselves; only those of which there is something to
    /// be told.
    flows: HashMap<SessionId, FlowFacts>,
    /// Bounds the records of connections that carried nothing.
    empty_flows: Option<LineLimit>,
    /// Bounds the records of keys that were not taken.
    refused_keys: LineLimit,
}

/// What reports keep of a session.
#[derive(Default)]
pub(super) struct Known {
    /// The first certificate of each side, client's first.
    pub(super) certificates: [Option<Box<CertificateFacts>>; 2],
    /// What programs the hellos come from, where the engine tells them.
    pub(super) fingerprints: Option<Box<Fingerprints>>,
    /// They are counted, and not written.
    pub(super) hides_fingerprints: bool,
    /// The handshake is through, and its record waits for the server's certificate.
    waits: bool,
    /// What the session's `tls` record had; `None` until it was written.
    told: Option<Told>,
    /// There was an alert.
    alerted: bool,
    /// The application has asked for a reset, and that was reported.
    dropped: bool,
}

/// What a session's `tls` record had of what may come late.
#[derive(Clone, Copy)]
struct Told {
    certificates: [bool; 2],
    alpn: bool,
}

/// What the findings in some bytes ask for.
#[derive(Default)]
pub(super) struct Asked {
    /// The first reason for a reset, and who sent it.
    reset: Option<(Direction, Dropped)>,
    alerted: bool,
}

/// A rule that has matched, and where.
struct RuleMatch<'a> {
    from: Direction,
    rule: &'a Rule,
    app_proto: &'a str,
    tx_id: Option<u64>,
    http: Option<HttpTransaction<'a>>,
    is_reported: bool,
}

#[derive(Serialize)]
struct Stats<'a, C> {
    uptime: u64,
    monitor: &'a Summary,
    engine: &'a C,
    #[serde(skip_serializing_if = "<[C]>::is_empty")]
    workers: &'a [C],
}

impl Reports {
    /// `stops`: what the monitor can do to a session.
    pub(super) fn new(
        eve: Option<EveWriter>,
        recorder: Option<Recorder>,
        stops: Stops,
        uninspected_resets: BTreeSet<Uninspected>,
        uninspected_resets_beside_rules: BTreeSet<Uninspected>,
        empty_flows_per_second: Option<u64>,
    ) -> Self {
        let (summary, flows, rules_stop) = Default::default();
        Self {
            eve,
            recorder,
            now_ns: 0,
            summary,
            stops,
            uninspected_resets,
            uninspected_resets_beside_rules,
            rules_stop,
            flows,
            empty_flows: empty_flows_per_second.map(LineLimit::new),
            refused_keys: LineLimit::new(REFUSED_KEYS_PER_SECOND),
        }
    }

    /// Takes over what can change.
    pub(super) fn reconfigure(
        &mut self,
        uninspected_resets: BTreeSet<Uninspected>,
        uninspected_resets_beside_rules: BTreeSet<Uninspected>,
        empty_flows_per_second: Option<u64>,
    ) {
        self.uninspected_resets = uninspected_resets;
        self.uninspected_resets_beside_rules = uninspected_resets_beside_rules;
        if self.empty_flows.as_ref().map(LineLimit::per_second) != empty_flows_per_second {
            self.empty_flows = empty_flows_per_second.map(LineLimit::new);
        }
    }

    /// Those of another worker.
    pub(super) fn share(&self) -> Self {
        let eve = self.eve.as_ref().map(EveWriter::share);
        let recorder = self.recorder.as_ref().map(Recorder::share);
        let resets = self.uninspected_resets.clone();
        let beside_rules = self.uninspected_resets_beside_rules.clone();
        let empty_flows = self.empty_flows.as_ref().map(LineLimit::per_second);
        Self::new(eve, recorder, self.stops, resets, beside_rules, empty_flows)
    }

    /// What has been counted.
    pub(super) fn stats<C: Serialize>(
        &mut self,
        uptime: Duration,
        summary: &Summary,
        engine: &C,
        workers: &[C],
    ) {
        if let Some(eve) = &mut self.eve {
            let uptime = uptime.as_secs();
            eve.stats(self.now_ns, &Stats { uptime, monitor: summary, engine, workers });
        }
    }

    /// An operator decides about a flow.
    pub(super) fn operator_decides(
        &mut self,
        flow: FlowKey,
        action: &'static str,
        uid: Option<u32>,
    ) {
        if let Some(eve) = &mut self.eve {
            eve.control(self.now_ns, flow, action, uid);
        }
    }

    /// Keys were not taken. The engine counts all of them; who sends some can send many.
    pub(super) fn keys_refused(&mut self, refused: &RefusedKeys<'_>) {
        if let Some(eve) = &mut self.eve
            && self.refused_keys.allow(refused.now_ns)
        {
            eve.keys_refused(refused);
        }
    }

    pub(super) fn anomaly(&mut self, flow: FlowKey, from: Direction, anomaly: &Anomaly<'static>) {
        self.summary.count_anomaly(anomaly.event);
        if let Some(eve) = &mut self.eve {
            eve.anomaly(self.now_ns, flow, from, anomaly);
        }
    }

    /// Takes in a finding.
    pub(super) fn finding(
        &mut self,
        flow: FlowKey,
        patterns: Option<&Patterns>,
        finding: &Finding<'_>,
        asked: &mut Asked,
    ) {
        match finding {
            Finding::Request => self.summary.http_requests += 1,
            Finding::Http(http) => {
                self.summary.http_responses += u64::from(http.complete);
                if let Some(eve) = &mut self.eve {
                    eve.http(self.now_ns, flow, http);
                }
            }
            Finding::File { from, file } => {
                if let Some(eve) = &mut self.eve {
                    eve.fileinfo(self.now_ns, flow, *from, file);
                }
            }
            &Finding::Rule { from, rule, is_reported, app_proto, tx_id, http } => {
                let found = RuleMatch { from, rule, app_proto, tx_id, http, is_reported };
                self.rule(flow, found, asked);
            }
            Finding::NotHttp => self.summary.not_http += 1,
            Finding::Anomaly { from, anomaly } => {
                let anomaly = Anomaly { kind: "applayer", event: anomaly.name(), code: None };
                self.anomaly(flow, *from, &anomaly);
            }
            Finding::Uninspected { from, cause } => {
                self.summary.count_uninspected(*cause);
                let resets = match self.rules_stop {
                    true => &self.uninspected_resets_beside_rules,
                    false => &self.uninspected_resets,
                };
                if self.stops != Stops::Everything || !resets.contains(cause) {
                    return;
                }
                // The other causes are anomalies, which say it themselves.
                if matches!(cause, Uninspected::UnknownProtocol | Uninspected::BodyLimit) {
                    let anomaly = Anomaly { kind: "applayer", event: cause.name(), code: None };
                    self.anomaly(flow, *from, &anomaly);
                }
                asked.reset.get_or_insert((*from, Dropped::uninspected(cause.name())));
            }
            Finding::Match { from, place, app_proto, pattern, offset, tx_id, http } => {
                let Some(patterns) = patterns else {
                    return;
                };
                self.summary.alerts += 1;
                asked.alerted = true;
                let reset = patterns.action == PatternAction::Reset;
                let alert = Alert {
                    tx_id: Some(*tx_id),
                    app_proto,
                    action: if reset { "blocked" } else { "allowed" },
                    verdict: if reset { "reset" } else { "alert" },
                    gid: 1,
                    signature_id: *pattern as u64 + 1,
                    rev: 1,
                    signature: patterns.set.text(*pattern).unwrap_or_default(),
                    category: place,
                    severity: 1,
                    metadata: Metadata::default(),
                    offset: Some(*offset),
                    http: *http,
                };
                self.alert(flow, *from, &alert);
                if reset {
                    asked.reset.get_or_insert((*from, Dropped::RULE));
                }
            }
        }
    }

    fn alert(&mut self, flow: FlowKey, from: Direction, alert: &Alert<'_>) {
        if let Some(eve) = &mut self.eve {
            eve.alert(self.now_ns, flow, from, alert);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.alert(self.now_ns, flow, from, alert);
        }
    }

    /// A rule has matched.
    fn rule(&mut self, flow: FlowKey, found: RuleMatch<'_>, asked: &mut Asked) {
        let RuleMatch { from, rule, app_proto, tx_id, http, is_reported } = found;
        let reset = match rule.header.action {
            Action::Drop => self.stops == Stops::Everything,
            Action::Reject(_) => self.stops != Stops::Nothing,
            _ => false,
        };
        // Beside the traffic, what has matched has been delivered.
        let blocked = reset && self.stops == Stops::Everything;
        if is_reported {
            self.summary.alerts += 1;
            asked.alerted = true;
            let alert = Alert {
                tx_id,
                app_proto,
                action: if blocked { "blocked" } else { "allowed" },
                verdict: if reset { "reset" } else { "alert" },
                gid: rule.id.gid,
                signature_id: rule.id.sid.into(),
                rev: rule.revision,
                signature: &rule.message,
                category: rule.category(),
                severity: rule.severity().into(),
                metadata: Metadata(&rule.metadata),
                offset: None,
                http,
            };
            self.alert(flow, from, &alert);
        }
        if reset {
            asked.reset.get_or_insert((from, Dropped::RULE));
        }
    }

    /// What the findings come to; true when the session is to be reset.
    pub(super) fn conclude(&mut self, flow: FlowKey, known: &mut Known, asked: &Asked) -> bool {
        known.alerted |= asked.alerted;
        let Some((from, dropped)) = &asked.reset else {
            return false;
        };
        if self.stops == Stops::Everything
            && !core::mem::replace(&mut known.dropped, true)
            && let Some(eve) = &mut self.eve
        {
            eve.dropped(self.now_ns, flow, *from, dropped);
        }
        true
    }

    /// The handshake is through. Live, handshake keys come a moment later, and tools look for certificates and the
    /// chosen protocol in the `tls` record: in TLS 1.3 it is written when a certificate shows, or with the server's
    /// first record.
    pub(super) fn handshake_end(&mut self, info: &SessionInfo, known: &mut Known) {
        let encrypted = info.version == Some(ProtocolVersion::TLS_1_3);
        known.waits = encrypted && known.certificates[1].is_none();
        if !known.waits {
            self.handshake(info, known);
        }
    }

    /// What a handshake's record waits for has come.
    pub(super) fn handshake_known(&mut self, info: &SessionInfo, known: &mut Known) {
        if core::mem::take(&mut known.waits) {
            self.handshake(info, known);
        }
    }

    /// Nothing more will be known of the handshake.
    pub(super) fn handshake(&mut self, info: &SessionInfo, known: &mut Known) {
        if known.told.is_some() {
            return;
        }
        let certificates = certificates(known);
        if let Some(eve) = &mut self.eve {
            let fingerprints = known.fingerprints.as_deref().filter(|_| !known.hides_fingerprints);
            eve.tls(self.now_ns, info, certificates, fingerprints);
        }
        let certificates = certificates.map(|it| it.is_some());
        known.told = Some(Told { certificates, alpn: info.alpn.is_some() });
    }

    /// The session is over; of a session that had to wait for keys how long at most, in microseconds. Its `tls` record is
    /// written now where the handshake never was through.
    pub(super) fn session_end(
        &mut self,
        info: &SessionInfo,
        known: &mut Known,
        reason: EndReason,
        (outcome, stall_us): (Outcome, Option<u32>),
        app_proto: Option<AppProto>,
    ) {
        self.handshake(info, known);
        let bypassed = matches!(info.key_status, KeyStatus::Exempt);
        // The flow itself goes on until nothing can come any more.
        let closed = reason == EndReason::Closed;
        // It may have begun behind another protocol.
        let facts = self.flows.entry(info.id).or_default();
        facts.alerted |= known.alerted;
        (facts.bypassed, facts.closed) = (bypassed, closed);
        if *facts == FlowFacts::default() {
            self.flows.remove(&info.id);
        }
        let (Some(eve), Some(told)) = (&mut self.eve, known.told) else {
            return;
        };
        let [client, server] = certificates(known);
        let late = Late {
            certificates: [
                client.filter(|_| !told.certificates[0]),
                server.filter(|_| !told.certificates[1]),
            ],
            alpn: !told.alpn,
        };
        let (outcome, app_proto) = (outcome.name(), named(app_proto));
        let end = SessionEnd { reason, outcome, app_proto, stall_us, late };
        eve.session(self.now_ns, info, &end);
    }

    /// Nothing more of a connection in the clear is looked at.
    pub(super) fn cleartext_end(
        &mut self,
        info: &SessionInfo,
        known: &Known,
        reason: Option<EndReason>,
        app_proto: Option<AppProto>,
    ) {
        let reset = reason.is_some_and(EndReason::is_reset_by_monitor);
        self.summary.resets += u64::from(reset);
        // Nothing but TLS begins behind it, which is a session of its own.
        let facts = FlowFacts {
            alerted: known.alerted,
            closed: reason == Some(EndReason::Closed),
            app_proto: named(app_proto),
            ..FlowFacts::default()
        };
        if facts != FlowFacts::default() {
            self.flows.insert(info.id, facts);
        }
    }

    /// The flow is over.
    pub(super) fn flow_end(&mut self, flow: &FlowEnd) {
        self.summary.flows += 1;
        let facts = self.flows.remove(&flow.id).unwrap_or_default();
        // What one side alone sends is no connection, unless it is TLS, which is told of anyway.
        let is_empty = flow.bytes == [0; 2] || !flow.established && !flow.tls;
        if is_empty
            && !flow.reason.is_reset_by_monitor()
            && self.eve.is_some()
            && self.empty_flows.as_mut().is_some_and(|lines| !lines.allow(self.now_ns))
        {
            self.summary.flows_not_logged += 1;
            return;
        }
        if let Some(eve) = &mut self.eve {
            eve.flow(self.now_ns, flow, facts);
        }
    }
}

/// The name of a protocol, where it was recognised.
fn named(app_proto: Option<AppProto>) -> Option<&'static str> {
    app_proto.filter(|it| *it != AppProto::Unknown).map(AppProto::name)
}

fn certificates(known: &Known) -> Certificates<'_> {
    known.certificates.each_ref().map(Option::as_deref)
}
