//! What the monitor makes of the application layer of one session: records, and the body search.
//!
//! Works on plain bytes and knows no session. Refuses to follow protocols itself, which is
//! `mmtls-inspect`'s, and to keep more than one search per body that is under way.

use std::collections::{BTreeSet, HashMap};

use mmtls_engine::tls::Direction;
use mmtls_inspect::transaction::Transaction;
use mmtls_inspect::{AppBudget, AppLayer, AppProto, Body, Event, Form, Side, Uninspected, Wants};

use super::files::Files;
use super::finding::{Finding, direction, record, side};
use super::look::Look;
use crate::patterns::{BodySearch, Patterns};

/// The application layer of one session.
#[derive(Default)]
pub struct Inspection {
    app: AppLayer,
    /// By side: it was closed.
    closed: [bool; 2],
    search: Searches,
}

/// The search of what is under way, by side and stream.
#[derive(Default)]
struct Searches {
    bodies: HashMap<(Side, u32), BodySearch>,
    /// Of which patterns they are.
    version: u64,
    protocol: AppProto,
    /// Where bodies are reported as files.
    files: Option<Files>,
    /// What was not inspected, and was reported.
    uninspected: BTreeSet<(Direction, Uninspected)>,
}

impl Inspection {
    /// At the start of a session. Decoders share memory with those of other sessions.
    #[must_use]
    pub fn new(budget: &AppBudget) -> Self {
        Self { app: AppLayer::with_budget(budget), ..Self::default() }
    }

    /// Reports bodies as files. From the start on, or never.
    pub fn report_files(&mut self) {
        self.search.files = Some(Files::default());
    }

    /// The protocol that the endpoints negotiated.
    pub fn negotiated(&mut self, alpn: Option<&[u8]>) {
        if let Some(alpn) = alpn {
            self.app.negotiated(alpn);
        }
    }

    /// From so many bytes of a response's body on, the rest of it is not searched.
    pub fn limit(&mut self, limit: Option<u64>) {
        self.app.limit_response_bodies(limit);
    }

    /// The next decrypted bytes of one direction.
    pub fn bytes(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        look: &mut Look<'_>,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        let search = &mut self.search;
        if self.closed[direction.index()] {
            // Not every receiver stops reading at a close_notify.
            search.uninspected(direction, Uninspected::Malformed, out);
        }
        look.data(side(direction), bytes, search.protocol, &mut |it| search.pass_on(it, out));
        let mut sink = |event: Event<'_>| search.event(event, look, out);
        self.app.data(side(direction), bytes, &mut sink);
    }

    /// Bytes of one direction are missing.
    pub fn gap(
        &mut self,
        direction: Direction,
        look: &mut Look<'_>,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        let search = &mut self.search;
        look.gap(side(direction));
        if let Some(files) = &mut search.files {
            files.gap(side(direction));
        }
        self.app.gap(side(direction), &mut |event| search.event(event, look, out));
        self.search.uninspected(direction, Uninspected::Gap, out);
        self.search.restart(side(direction));
    }

    /// The next bytes from the server were not looked at.
    pub fn skip_response(
        &mut self,
        count: u64,
        look: &mut Look<'_>,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        let search = &mut self.search;
        self.app.skip(Side::Server, count, &mut |event| search.event(event, look, out));
        self.search.restart(Side::Server);
    }

    /// What comes next from the server is a part of a body that is beyond the limit.
    pub fn pass_over(&mut self, out: &mut dyn FnMut(Finding<'_>)) {
        self.search.uninspected(Direction::ServerToClient, Uninspected::BodyLimit, out);
    }

    /// Nothing more comes from a side.
    pub fn close(
        &mut self,
        direction: Direction,
        look: &mut Look<'_>,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        if core::mem::replace(&mut self.closed[direction.index()], true) {
            return;
        }
        let search = &mut self.search;
        self.app.close(side(direction), &mut |event| search.event(event, look, out));
    }

    /// The session is over; `closed` when both sides closed it in order.
    pub fn end(&mut self, closed: bool, look: &mut Look<'_>, out: &mut dyn FnMut(Finding<'_>)) {
        if closed {
            self.close(Direction::ClientToServer, look, out);
            self.close(Direction::ServerToClient, look, out);
        }
        let search = &mut self.search;
        self.app.finish(&mut |event| search.event(event, look, out));
    }

    /// How much of what a side sends next is of interest.
    #[must_use]
    pub fn wants(&self, direction: Direction) -> Wants {
        self.app.wants(side(direction))
    }

    /// What the session carries, once that is known.
    #[must_use]
    pub fn protocol(&self) -> Option<AppProto> {
        self.app.protocol()
    }
}

impl Searches {
    /// Bytes of a side are missing: no pattern may be put together over the hole.
    fn restart(&mut self, side: Side) {
        for ((of, _), search) in &mut self.bodies {
            if *of == side {
                search.restart();
            }
        }
    }

    /// A body begins.
    fn begin(&mut self, side: Side, transaction: &Transaction) {
        if let Some(search) = self.bodies.get_mut(&(side, transaction.stream_id.unwrap_or(0))) {
            search.restart();
        }
    }

    fn event(&mut self, event: Event<'_>, look: &mut Look<'_>, out: &mut dyn FnMut(Finding<'_>)) {
        let patterns = look.patterns;
        if let Some(Patterns { version, .. }) = patterns
            && *version != self.version
        {
            self.version = *version;
            self.bodies.clear();
        }
        // Before transactions are reported: what completes one may be what a rule looks for.
        look.event(&event, self.protocol, &mut |it| self.pass_on(it, out));
        if let Some(files) = &mut self.files {
            files.event(&event, self.protocol.name(), out);
        }
        match event {
            Event::RequestHead { transaction, .. } => {
                self.begin(Side::Client, transaction);
                out(Finding::Request);
            }
            Event::ResponseHead(transaction, _) => self.begin(Side::Server, transaction),
            Event::Body(body) => self.body(&body, patterns, out),
            Event::Data(side, bytes) => {
                if self.protocol != AppProto::WebSocket {
                    self.uninspected(direction(side), Uninspected::UnknownProtocol, out);
                }
                let Some(patterns) = patterns else {
                    return;
                };
                let app_proto = self.protocol.name();
                let search = self.bodies.entry((side, 0)).or_default();
                search.search(patterns, Form::AsSent, bytes, |pattern, offset| {
                    let (from, place, tx_id, http) = (direction(side), "stream", 0, None);
                    let found =
                        Finding::Match { from, place, app_proto, pattern, offset, tx_id, http };
                    out(found);
                });
            }
            Event::Complete(transaction) => {
                if let Some(stream) = transaction.stream_id {
                    self.bodies.remove(&(Side::Client, stream));
                    if !transaction.is_reset {
                        self.bodies.remove(&(Side::Server, stream));
                    }
                }
                if let Some(http) = record(transaction) {
                    out(Finding::Http(http));
                }
            }
            Event::ResetOver(transaction) => {
                self.bodies.remove(&(Side::Server, transaction.stream_id.unwrap_or(0)));
            }
            Event::Protocol(protocol) => {
                self.protocol = protocol;
                if !matches!(protocol, AppProto::Http | AppProto::Http2 | AppProto::WebSocket) {
                    out(Finding::NotHttp);
                }
            }
            Event::Anomaly(side, anomaly) => {
                out(Finding::Anomaly { from: direction(side), anomaly });
                if let Some(cause) = anomaly.uninspected() {
                    self.uninspected(direction(side), cause, out);
                }
            }
            Event::BodyLimit(side) => {
                self.uninspected(direction(side), Uninspected::BodyLimit, out);
            }
            _ => {}
        }
    }

    /// What rules have found.
    fn pass_on(&mut self, finding: Finding<'_>, out: &mut dyn FnMut(Finding<'_>)) {
        match finding {
            Finding::Uninspected { from, cause } => self.uninspected(from, cause, out),
            other => out(other),
        }
    }

    fn uninspected(
        &mut self,
        from: Direction,
        cause: Uninspected,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        if self.uninspected.insert((from, cause)) {
            out(Finding::Uninspected { from, cause });
        }
    }

    fn body(
        &mut self,
        body: &Body<'_>,
        patterns: Option<&Patterns>,
        out: &mut dyn FnMut(Finding<'_>),
    ) {
        let Some(patterns) = patterns else {
            return;
        };
        let &Body { side, transaction, form, bytes } = body;
        let stream = transaction.and_then(|it| it.stream_id).unwrap_or(0);
        let place = match side {
            Side::Client => "http request body",
            Side::Server => "http response body",
        };
        let app_proto = self.protocol.name();
        let search = self.bodies.entry((side, stream)).or_default();
        search.search(patterns, form, bytes, |pattern, offset| {
            out(Finding::Match {
                from: direction(side),
                place,
                app_proto,
                pattern,
                offset,
                tx_id: transaction.and_then(|it| it.id).unwrap_or(0),
                http: transaction.and_then(record),
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use mmtls_inspect::literal::PatternSet;
    use mmtls_inspect::transaction::MAX_WAITING;

    use super::*;
    use crate::patterns::PatternAction;

    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;

    fn show(finding: &Finding<'_>) -> Option<String> {
        Some(match finding {
            Finding::Request | Finding::File { .. } => return None,
            Finding::Http(http) => format!(
                "{} {} {} {:?} {} {}",
                http.tx_id, http.http_method, http.url, http.status, http.length, http.complete
            ),
            Finding::Match { pattern, offset, tx_id, http, .. } => {
                let url = http.map(|http| http.url);
                format!("match {pattern} at {offset} in {tx_id} {url:?}")
            }
            Finding::Rule { rule, tx_id, .. } => format!("rule {} in {tx_id:?}", rule.id.sid),
            Finding::NotHttp => "not http".into(),
            Finding::Anomaly { from, anomaly } => format!("{from} {anomaly}"),
            Finding::Uninspected { from, cause } => format!("{from} uninspected: {cause}"),
        })
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn run(parts: &[(Direction, &[u8])], closed: bool) -> Vec<String> {
        run_within(None, parts, closed)
    }

    fn run_within(limit: Option<u64>, parts: &[(Direction, &[u8])], closed: bool) -> Vec<String> {
        let patterns = Patterns {
            set: PatternSet::from_lines("EVIL\nbad").unwrap(),
            action: PatternAction::Alert,
            version: 0,
        };
        let mut inspection = Inspection::default();
        let mut log = Vec::new();
        let mut out = |finding: Finding<'_>| log.extend(show(&finding));
        for (direction, bytes) in parts {
            inspection.limit(limit);
            inspection.bytes(*direction, bytes, &mut Look::patterns(&patterns), &mut out);
        }
        inspection.end(closed, &mut Look::patterns(&patterns), &mut out);
        log
    }

    #[test]
    fn accepts_pipelined_transactions_in_order() {
        let requests = b"GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.0\r\nContent-Length: 2\r\n\r\nEVGET /3 HTTP/1.1\r\n\r\n";
        let responses = b"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nx EVILHTTP/1.1 404 N\r\nContent-Length: 3\r\n\r\nbad";
        assert_eq!(
            run(&[(CLIENT, requests), (SERVER, responses)], true),
            [
                "match 0 at 6 in 0 Some(\"/1\")",
                "0 GET /1 Some(200) 6 true",
                "match 1 at 3 in 1 Some(\"/2\")",
                "1 POST /2 Some(404) 3 true",
                "2 GET /3 None 0 false",
            ]
        );
    }

    #[test]
    fn accepts_matches_across_records_but_not_across_bodies() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
        let get = b"GET / HTTP/1.1\r\n\r\n".repeat(2);
        assert_eq!(
            run(
                &[
                    (CLIENT, &get),
                    (SERVER, head),
                    (SERVER, b"xxEV"),
                    (SERVER, head),
                    (SERVER, b"ILEV")
                ],
                true
            ),
            ["0 GET / Some(200) 4 true", "1 GET / Some(200) 4 true"]
        );
        assert_eq!(
            run(&[(CLIENT, &get), (SERVER, head), (SERVER, b"EV"), (SERVER, b"IL")], false),
            ["match 0 at 4 in 0 Some(\"/\")", "0 GET / Some(200) 4 true", "1 GET / None 0 false"]
        );
    }

    #[test]
    fn accepts_encoded_bodies_as_they_are_and_counts_them() {
        let response =
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nEVIL";
        assert_eq!(
            run(&[(CLIENT, b"GET / HTTP/1.1\r\n\r\n"), (SERVER, response)], true),
            [
                "match 0 at 4 in 0 Some(\"/\")",
                "to_client http_content_coding_malformed",
                "to_client uninspected: malformed",
                "0 GET / Some(200) 4 true"
            ]
        );
    }

    #[test]
    fn accepts_coded_bodies_of_both_sides() {
        let body = gzip(b"some EVIL");
        let head = |line: &str| {
            let head = format!(
                "{line}\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), &body].concat()
        };
        let request = head("POST / HTTP/1.1");
        let response = head("HTTP/1.1 200 OK");
        let post = format!("0 POST / Some(200) {} true", body.len());
        let whole = run(&[(CLIENT, &request), (SERVER, &response)], true);
        assert_eq!(
            whole,
            ["match 0 at 9 in 0 Some(\"/\")", "match 0 at 9 in 0 Some(\"/\")", post.as_str()]
        );
        let bytes = |side, text: &[u8]| -> Vec<(Direction, Vec<u8>)> {
            text.iter().map(|byte| (side, vec![*byte])).collect()
        };
        let pieces = [bytes(CLIENT, &request), bytes(SERVER, &response)].concat();
        let pieces: Vec<_> = pieces.iter().map(|(side, text)| (*side, &text[..])).collect();
        assert_eq!(run(&pieces, true), whole);
    }

    #[test]
    fn accepts_bodies_that_lost_their_head() {
        assert_eq!(
            run(&[(CLIENT, b"GET / HTTP/1.1\r\n\r\n"), (SERVER, b"no head EVIL")], false),
            [
                "to_client http_bad_head",
                "to_client uninspected: malformed",
                "match 0 at 12 in 0 None",
                "0 GET / None 0 false"
            ]
        );
        let mut inspection = Inspection::default();
        let mut log = Vec::new();
        let mut out = |finding: Finding<'_>| log.extend(show(&finding));
        inspection.bytes(CLIENT, b"GET / HTTP/1.1\r\n\r\n", &mut Look::default(), &mut out);
        inspection.gap(SERVER, &mut Look::default(), &mut out);
        assert_eq!(log, ["to_client http_gap", "to_client uninspected: gap"]);
    }

    #[test]
    fn accepts_skips_in_long_bodies() {
        let mut inspection = Inspection::default();
        let mut log = Vec::new();
        let mut out = |finding: Finding<'_>| log.extend(show(&finding));
        inspection.bytes(CLIENT, b"GET / HTTP/1.1\r\n\r\n", &mut Look::default(), &mut out);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789";
        inspection.bytes(SERVER, head, &mut Look::default(), &mut out);
        inspection.limit(Some(11));
        assert_eq!(inspection.wants(SERVER), Wants::All);
        inspection.limit(Some(10));
        assert_eq!(inspection.wants(SERVER), Wants::After(990));
        inspection.skip_response(985, &mut Look::default(), &mut out);
        inspection.bytes(SERVER, b"12345", &mut Look::default(), &mut out);
        inspection.limit(Some(0));
        assert_eq!(inspection.wants(SERVER), Wants::All);
        assert_eq!(log, ["0 GET / Some(200) 1000 true"]);
    }

    #[test]
    fn limit_spares_the_rest_of_a_body_and_nothing_else() {
        const GET: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
        let matches = |parts: &[&[u8]]| {
            let parts = parts.iter().map(|part| (SERVER, *part));
            let parts: Vec<_> = [(CLIENT, GET), (CLIENT, GET)].into_iter().chain(parts).collect();
            let log = run_within(Some(4), &parts, true);
            log.iter().filter(|line| line.starts_with("match")).count()
        };
        let long: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n0123";
        let chunked: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123";
        let next: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL";
        assert_eq!(matches(&[long, b"EVIL"]), 0);
        assert_eq!(matches(&[chunked, b"\r\n4\r\nEVIL\r\n0\r\n\r\n"]), 0);
        // The next response may stand in the same record.
        assert_eq!(matches(&[long, &[b"EVIL", next].concat()]), 1);
        // Nobody knows where these end for the client.
        let close: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n0123";
        assert_eq!(matches(&[close, b"EVIL"]), 1);
        let both: &[u8] =
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123";
        assert_eq!(matches(&[both, b"\r\n4\r\nEVIL\r\n0\r\n\r\n"]), 1);
    }

    #[test]
    fn refuses_to_keep_endless_pipelines() {
        let requests = b"GET / HTTP/1.1\r\n\r\n".repeat(MAX_WAITING + 2);
        let responses = b"HTTP/1.1 204 N\r\n\r\n".repeat(MAX_WAITING + 3);
        let log = run(
            &[(CLIENT, &requests), (SERVER, &responses), (CLIENT, b"GET /last HTTP/1.1\r\n\r\n")],
            true,
        );
        assert_eq!(log.len(), MAX_WAITING + 3);
        assert_eq!(log[0], "256 GET / None 0 false");
        assert_eq!(log[2], "0 GET / Some(204) 0 true");
        assert_eq!(log.last().unwrap(), "258 GET /last None 0 false");
    }

    #[test]
    fn refuses_to_keep_long_targets_of_a_deep_pipeline() {
        let request = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(4000)).repeat(20);
        let mut inspection = Inspection::default();
        let mut reported = 0;
        inspection.bytes(CLIENT, request.as_bytes(), &mut Look::default(), &mut |finding| {
            reported += usize::from(matches!(finding, Finding::Http(_)));
        });
        assert_eq!(reported, 12);
    }

    #[test]
    fn refuses_other_protocols() {
        assert_eq!(
            run(&[(CLIENT, b"\0\0"), (CLIENT, b"\0"), (SERVER, b"\0")], true),
            [
                "not http",
                "to_server uninspected: unknown_protocol",
                "to_client uninspected: unknown_protocol"
            ]
        );
    }
}
