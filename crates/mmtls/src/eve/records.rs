//! The objects inside the records. Refuses to own what it can borrow: they live for one line.

use std::net::IpAddr;
use std::time::Duration;

use mmtls_engine::session::{
    EarlyData, EndReason, FlowEnd, KeyStatus, Resumption, SessionInfo, Upgrade,
};
use mmtls_engine::tls::{CipherSuite, ProtocolVersion};
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::certificate::CertificateFacts;
use crate::fingerprint::{Fingerprints, Ja3};

/// Versions that Suricata calls otherwise than the engine.
const SSL_3_0: u16 = 0x0300;
const TLS_1_0: u16 = 0x0301;
const DRAFT_16: u16 = 0x7f10;
const DRAFT_28: u16 = 0x7f1c;

/// Bytes that are probably text: what is not UTF-8 is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lossy<'a>(pub &'a [u8]);

impl Serialize for Lossy<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&String::from_utf8_lossy(self.0))
    }
}

struct Random<'a>(&'a [u8; 32]);

impl Serialize for Random<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base16ct::lower::encode_string(self.0))
    }
}

pub(crate) struct Version(pub(crate) ProtocolVersion);

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.0.0, self.0.name()) {
            (SSL_3_0, _) => serializer.serialize_str("SSLv3"),
            (TLS_1_0, _) => serializer.serialize_str("TLSv1"),
            (DRAFT_16..=DRAFT_28, _) => {
                serializer.collect_str(&format_args!("TLS 1.3 draft-{}", self.0.0 & 0xff))
            }
            (_, Some(name)) => serializer.serialize_str(name),
            (_, None) => serializer.collect_str(&self.0),
        }
    }
}

pub(crate) struct Suite(pub(crate) CipherSuite);

impl Serialize for Suite {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The record layer knows the suites that can be opened, the engine those of TLS 1.3.
        match mmtls_record::suite::name(self.0.0) {
            Some(name) => serializer.serialize_str(name),
            None => serializer.collect_str(&self.0),
        }
    }
}

/// What is written as text, as text of its own.
pub(crate) fn text_of(value: &impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}

struct Names<'a>(&'a [Vec<u8>]);

impl Serialize for Names<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for name in self.0 {
            list.serialize_element(&Lossy(name))?;
        }
        list.end()
    }
}

impl Names<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The certificates that were seen, client's first.
pub type Certificates<'a> = [Option<&'a CertificateFacts>; 2];

#[derive(Serialize)]
pub(super) struct TlsBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    sni: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<Version>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cipher_suite: Option<Suite>,
    #[serde(skip_serializing_if = "Option::is_none")]
    private_tag: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_random: Option<Random<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_random: Option<Random<'a>>,
    #[serde(skip_serializing_if = "Names::is_empty")]
    client_alpns: Names<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_alpns: Option<[Lossy<'a>; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    starttls: Option<&'static str>,
    session_resumed: bool,
    resumption: &'static str,
    hello_retry: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mid_stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ja3: Option<&'a Ja3>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ja3s: Option<&'a Ja3>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ja4: Option<&'a str>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    certificate: Option<&'a CertificateFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<&'a CertificateFacts>,
}

impl<'a> TlsBody<'a> {
    pub(super) fn new(
        info: &'a SessionInfo,
        certificates: Certificates<'a>,
        fingerprints: Option<&'a Fingerprints>,
    ) -> Self {
        let [client, server] = certificates;
        Self {
            sni: info.server_name.as_deref(),
            version: info.version.map(Version),
            cipher_suite: info.cipher_suite.map(Suite),
            private_tag: info.private_tag(),
            client_random: client_random(info),
            server_random: info.server_random.as_ref().map(Random),
            client_alpns: Names(&info.alpn_offered),
            server_alpns: server_alpns(info),
            starttls: info.starttls.map(Upgrade::name),
            session_resumed: info.resumption == Resumption::Accepted,
            resumption: match info.resumption {
                Resumption::None => "none",
                Resumption::Offered => "offered",
                Resumption::Accepted => "accepted",
            },
            hello_retry: info.hello_retry,
            mid_stream: info.is_mid_stream.then_some(true),
            ja3: fingerprints.and_then(|it| it.ja3.as_ref()),
            ja3s: fingerprints.and_then(|it| it.ja3s.as_ref()),
            ja4: fingerprints.and_then(|it| it.ja4.as_deref()),
            certificate: server,
            client,
        }
    }
}

fn client_random(info: &SessionInfo) -> Option<Random<'_>> {
    info.client_hello.then_some(Random(&info.client_random))
}

fn server_alpns(info: &SessionInfo) -> Option<[Lossy<'_>; 1]> {
    info.alpn.as_deref().map(|alpn| [Lossy(alpn)])
}

/// What the monitor adds to the facts of a session at its end.
#[derive(Clone, Copy, Debug)]
pub struct SessionEnd<'a> {
    /// How it ended.
    pub reason: EndReason,
    /// How the session counts in the summary.
    pub outcome: &'a str,
    /// Application protocol inside, where it was recognised.
    pub app_proto: Option<&'a str>,
    /// Where packets had to wait for keys: the longest that they did until keys came, in microseconds.
    pub stall_us: Option<u32>,
    /// What became known after the session's `tls` record was written.
    pub late: Late<'a>,
}

/// What a `tls` record would have had if it had been written later. Handshake keys may come that late.
#[derive(Clone, Copy, Default, Debug)]
pub struct Late<'a> {
    /// The certificates that it lacks.
    pub certificates: Certificates<'a>,
    /// It lacks the protocol that the server chose.
    pub alpn: bool,
}

#[derive(Serialize)]
pub(super) struct SessionBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_random: Option<Random<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sni: Option<&'a str>,
    key_status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_direction: Option<&'static str>,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    app_proto: Option<&'a str>,
    end_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    early_data: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stall_us: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_alpns: Option<[Lossy<'a>; 1]>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    certificate: Option<&'a CertificateFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<&'a CertificateFacts>,
    decrypted: Decrypted,
}

#[derive(Serialize)]
struct Decrypted {
    records_toserver: u64,
    records_toclient: u64,
    bytes_toserver: u64,
    bytes_toclient: u64,
    seen_toserver: u64,
    seen_toclient: u64,
}

impl<'a> SessionBody<'a> {
    pub(super) fn new(info: &'a SessionInfo, end: &SessionEnd<'a>) -> Self {
        let [client, server] = end.late.certificates;
        Self {
            client_random: client_random(info),
            sni: info.server_name.as_deref(),
            key_status: key_status_name(info.key_status),
            refused_direction: match info.refused {
                [true, _] => Some("toserver"),
                [_, true] => Some("toclient"),
                [false, false] => None,
            },
            outcome: end.outcome,
            app_proto: end.app_proto,
            end_reason: end.reason.name(),
            error: error_name(end.reason),
            early_data: match info.early_data {
                EarlyData::None => None,
                EarlyData::Offered => Some("offered"),
                EarlyData::Accepted => Some("accepted"),
                EarlyData::Rejected => Some("rejected"),
            },
            stall_us: end.stall_us,
            server_alpns: server_alpns(info).filter(|_| end.late.alpn),
            certificate: server,
            client,
            decrypted: Decrypted {
                records_toserver: info.records_opened[0],
                records_toclient: info.records_opened[1],
                bytes_toserver: info.plaintext_bytes[0],
                bytes_toclient: info.plaintext_bytes[1],
                seen_toserver: info.records_seen[0],
                seen_toclient: info.records_seen[1],
            },
        }
    }
}

/// The error for which a policy ended it.
fn error_name(reason: EndReason) -> Option<&'static str> {
    match reason {
        EndReason::ResetByPolicy(error) => Some(error.name()),
        _ => None,
    }
}

fn key_status_name(status: KeyStatus) -> &'static str {
    match status {
        KeyStatus::Waiting => "waiting",
        KeyStatus::Shared => "shared",
        KeyStatus::Exempt => "exempt",
        KeyStatus::Missing => "missing",
        KeyStatus::Unusable => "unusable",
    }
}

/// An HTTP request and its response.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct HttpTransaction<'a> {
    /// Which transaction of the connection, from 0.
    #[serde(skip)]
    pub tx_id: u64,
    /// Host field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<&'a str>,
    /// Request target as sent; cut when very long.
    pub url: &'a str,
    /// User-Agent field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_user_agent: Option<&'a str>,
    /// Content-Type of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_content_type: Option<&'a str>,
    /// Request method.
    pub http_method: &'a str,
    /// Version of the request.
    pub protocol: &'static str,
    /// Body bytes of the request that were seen.
    pub request_length: u64,
    /// Status of the final response; absent when none was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Reason phrase of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// Version of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_protocol: Option<&'static str>,
    /// Body bytes of the response that were seen, transfer coding removed.
    pub length: u64,
    /// The response was seen to its end.
    pub complete: bool,
    /// `2` for HTTP/2, as Suricata writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<&'static str>,
    /// Only in HTTP/2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http2: Option<Http2Stream>,
}

/// What Suricata says of an HTTP/2 transaction besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Http2Stream {
    /// Number of the stream.
    pub stream_id: u32,
    request: Nothing,
    response: Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Nothing {}

impl Http2Stream {
    /// One whose settings are not looked at.
    #[must_use]
    pub const fn new(stream_id: u32) -> Self {
        Self { stream_id, request: Nothing {}, response: Nothing {} }
    }
}

/// What the monitor knows of a flow besides its end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FlowFacts {
    /// There was an alert.
    pub alerted: bool,
    /// It carried a session of which the rest passed unseen.
    pub bypassed: bool,
    /// It carried a session that both sides have closed.
    pub closed: bool,
    /// What it carried in the clear, before TLS began where it did.
    pub app_proto: Option<&'static str>,
}

#[derive(Serialize)]
pub(super) struct FlowBody<'a> {
    pkts_toserver: u64,
    pkts_toclient: u64,
    bytes_toserver: u64,
    bytes_toclient: u64,
    start: &'a str,
    end: &'a str,
    age: u64,
    state: &'static str,
    reason: &'static str,
    alerted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'static str>,
    end_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
}

impl<'a> FlowBody<'a> {
    pub(super) fn new(flow: &FlowEnd, facts: FlowFacts, start: &'a str, end: &'a str) -> Self {
        let age = Duration::from_nanos(flow.last_ns.saturating_sub(flow.started_ns));
        let is_reset = flow.reason.is_reset_by_monitor();
        Self {
            pkts_toserver: flow.packets[0],
            pkts_toclient: flow.packets[1],
            bytes_toserver: flow.bytes[0],
            bytes_toclient: flow.bytes[1],
            start,
            end,
            age: age.as_secs(),
            state: state(flow, facts),
            // Suricata lets flows that were closed time out, too.
            reason: match flow.reason {
                EndReason::Closed | EndReason::ResetByPeer(_) | EndReason::TimedOut => "timeout",
                EndReason::ResetByHandler
                | EndReason::ResetByOperator
                | EndReason::ResetByPolicy(_) => "forced",
                EndReason::Replaced => "tcp_reuse",
                EndReason::Shutdown | EndReason::FailedOpen => "shutdown",
            },
            alerted: facts.alerted,
            action: is_reset.then_some("drop"),
            end_reason: flow.reason.name(),
            error: error_name(flow.reason),
        }
    }
}

fn state(flow: &FlowEnd, facts: FlowFacts) -> &'static str {
    match flow.reason {
        EndReason::ResetByHandler | EndReason::ResetByOperator | EndReason::ResetByPolicy(_) => {
            "closed"
        }
        _ if facts.bypassed => "bypassed",
        _ if facts.closed => "closed",
        EndReason::Closed | EndReason::ResetByPeer(_) => "closed",
        EndReason::TimedOut | EndReason::Shutdown | EndReason::FailedOpen | EndReason::Replaced => {
            // The three segments with which connections begin.
            let [client, server] = flow.packets;
            let answered = client >= 2 && server >= 1;
            if flow.tls || answered { "established" } else { "new" }
        }
    }
}

/// A body of HTTP, as a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct FileInfo<'a> {
    /// What it is called.
    pub filename: &'a str,
    /// Bytes of it are missing.
    pub gaps: bool,
    /// `CLOSED` where its end was seen, else `TRUNCATED`.
    pub state: &'static str,
    /// Of the whole, where that was seen; in lower-case hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<&'a str>,
    /// Always false.
    pub stored: bool,
    /// Bytes that were seen.
    pub size: u64,
    /// Which transaction of the connection, from 0.
    pub tx_id: u64,
    /// Application protocol of the session; beside the record's own object, as the next one.
    #[serde(skip)]
    pub app_proto: &'a str,
    /// The transaction as far as it is known.
    #[serde(skip)]
    pub http: HttpTransaction<'a>,
}

/// Keys that were not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct KeysBody {
    pub(super) action: &'static str,
    pub(super) reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sender: Option<IpAddr>,
}

/// What an operator has decided, known by user number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct ControlBody {
    pub(super) action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uid: Option<u32>,
}

/// Something that should not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Anomaly<'a> {
    /// `stream` below the application protocol, `applayer` in it.
    #[serde(rename = "type")]
    pub kind: &'a str,
    /// Stable name.
    pub event: &'a str,
    /// The session error's number; absent for anomalies of the application protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
}

/// A rule that has matched, or a pattern that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Alert<'a> {
    /// Which transaction of the connection, from 0; absent where it belongs to none.
    #[serde(skip)]
    pub tx_id: Option<u64>,
    /// Application protocol of the session.
    #[serde(skip)]
    pub app_proto: &'a str,
    /// `allowed` or `blocked`, as Suricata says it.
    pub action: &'a str,
    /// `alert` or `reset`: what is done about it.
    pub verdict: &'a str,
    /// The rule's group; 1 for patterns.
    pub gid: u32,
    /// The rule's `sid`; number of the pattern in its file, from 1.
    pub signature_id: u64,
    /// The rule's revision; 1 for patterns.
    pub rev: u32,
    /// The rule's message; the pattern as it stands in its file.
    pub signature: &'a str,
    /// The rule's class; what was searched for a pattern.
    pub category: &'a str,
    /// The rule's priority; 1 for patterns.
    pub severity: u32,
    /// What the rule says of itself.
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub metadata: Metadata<'a>,
    /// Bytes of the body up to the end of a pattern.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The transaction as far as it is known; stands beside the record's own object.
    #[serde(skip)]
    pub http: Option<HttpTransaction<'a>>,
}

/// Keys and values of a rule's `metadata`, as Suricata writes them: a list of values for each key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Metadata<'a>(pub &'a [(Box<str>, Box<str>)]);

impl Metadata<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut lists: Vec<(&str, Vec<&str>)> = Vec::new();
        for (key, value) in self.0 {
            match lists.iter_mut().find(|(known, _)| *known == &**key) {
                Some((_, values)) => values.push(value),
                None => lists.push((key, vec![value])),
            }
        }
        serializer.collect_map(lists)
    }
}

/// Why the application resets a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Dropped {
    /// One of the reasons that Suricata gives.
    pub reason: &'static str,
    /// Why something was not inspected, if it is that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
}

impl Dropped {
    /// A pattern was found, or a rule has matched.
    pub const RULE: Self = Self { reason: "rules", cause: None };

    /// Something would pass that was not inspected.
    #[must_use]
    pub const fn uninspected(cause: &'static str) -> Self {
        Self { reason: "applayer error", cause: Some(cause) }
    }
}
