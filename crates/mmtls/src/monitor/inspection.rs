//! What the monitor knows of the HTTP/1 inside one session: transactions and the body search.
//!
//! Works on plain bytes and knows no session. Refuses to keep more than a cap of waiting
//! requests or of any text; what is cut is still counted.

use std::collections::VecDeque;

use mmtls_engine::tls::Direction;
use mmtls_inspect::http1::{Anomaly, BodyLeft, Event, Http1, RequestHead, ResponseHead, Side};

use crate::eve::HttpTransaction;
use crate::patterns::{BodySearch, Patterns};

/// Most requests whose lines are kept until the response comes.
const MAX_WAITING: usize = 256;
/// Most bytes of text in them together; long targets in a deep pipeline are an attack on memory.
const MAX_WAITING_BYTES: usize = 32 << 10;
const MAX_URL: usize = 4096;
const MAX_TEXT: usize = 512;
const MAX_METHOD: usize = 32;

/// What came out of some bytes.
#[derive(Debug)]
pub enum Finding<'a> {
    /// A request line was seen.
    Request,
    /// A transaction ended, or nothing more will be known of it.
    Http(HttpTransaction<'a>),
    /// A pattern was found in a response body.
    Match {
        /// Index of the pattern.
        pattern: usize,
        /// Bytes of the body up to the end of the match.
        offset: u64,
        /// Which transaction, from 0.
        tx_id: u64,
        /// Host of the request.
        hostname: Option<&'a str>,
        /// Target of the request.
        url: Option<&'a str>,
    },
    /// A response body has a content coding: what is searched is the coded bytes.
    EncodedBody,
    /// The session does not carry HTTP/1.
    NotHttp {
        /// It carries HTTP/2.
        http2: bool,
    },
    /// Endpoints may read this differently.
    Anomaly {
        /// Who sent it.
        from: Direction,
        /// What is wrong.
        anomaly: Anomaly,
    },
    /// The client of an HTTP session may take another response body than what is searched.
    HidesBody,
}

/// The HTTP/1 of one session.
#[derive(Default)]
pub struct Inspection {
    http: Http1,
    exchange: Exchange,
}

impl Inspection {
    /// From so many bytes of a response's body on, the rest of it is not searched.
    pub fn limit(&mut self, limit: Option<u64>) {
        let enough = limit.and_then(|limit| self.searched_enough(limit));
        self.exchange.searched_enough = enough.is_some();
    }

    /// The next decrypted bytes of one direction.
    pub fn bytes(
        &mut self,
        direction: Direction,
        bytes: &[u8],
        patterns: Option<&Patterns>,
        out: &mut impl FnMut(Finding<'_>),
    ) {
        let exchange = &mut self.exchange;
        let mut sink = |event: Event<'_>| exchange.event(event, patterns, out);
        match direction {
            Direction::ClientToServer => self.http.request_bytes(bytes, &mut sink),
            Direction::ServerToClient => self.http.response_bytes(bytes, &mut sink),
        }
    }

    /// Bytes of one direction are missing.
    pub fn gap(&mut self, direction: Direction, out: &mut impl FnMut(Finding<'_>)) {
        let exchange = &mut self.exchange;
        self.http.gap(side(direction), &mut |event| exchange.event(event, None, out));
        exchange.search.restart();
    }

    /// The next bytes from the server were not looked at.
    pub fn skip_response(&mut self, count: u64, out: &mut impl FnMut(Finding<'_>)) {
        let exchange = &mut self.exchange;
        if let Some(response) = &mut exchange.response {
            response.length += count;
        }
        self.http.skip_response_bytes(count, &mut |event| exchange.event(event, None, out));
        exchange.search.restart();
    }

    /// The session is over; `closed` when both sides closed it in order.
    pub fn end(&mut self, closed: bool, out: &mut impl FnMut(Finding<'_>)) {
        let exchange = &mut self.exchange;
        if closed {
            self.http.close(&mut |event| exchange.event(event, None, out));
        }
        exchange.response_complete(false, out);
        while let Some(request) = exchange.waiting.pop_front() {
            out(Finding::Http(request.transaction(None)));
        }
    }

    /// What is left of the current response's body, once so many bytes of it were seen. Never where
    /// a client may find another end of it: what one takes for the rest, another may take for a
    /// response.
    #[must_use]
    pub fn searched_enough(&self, limit: u64) -> Option<BodyLeft> {
        let response = self.exchange.response.as_ref()?;
        let left = self.http.response_body_left();
        let framed = matches!(left, BodyLeft::Length(_) | BodyLeft::Chunked);
        (framed && !self.exchange.doubtful && response.length >= limit).then_some(left)
    }

    /// Whether there is no more HTTP to expect.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        self.http.is_opaque()
    }

    /// Whether a legal request or response was seen.
    #[must_use]
    pub fn is_http(&self) -> bool {
        self.exchange.is_http
    }
}

fn side(direction: Direction) -> Side {
    match direction {
        Direction::ClientToServer => Side::Client,
        Direction::ServerToClient => Side::Server,
    }
}

/// Requests and responses as they are matched up.
#[derive(Default)]
struct Exchange {
    waiting: VecDeque<Request>,
    /// Bytes of text in them.
    waiting_bytes: usize,
    /// Requests behind the waiting ones, of which nothing is kept.
    forgotten: u64,
    response: Option<Response>,
    search: BodySearch,
    next_tx: u64,
    is_http: bool,
    /// A response was faulty such that clients disagree; not told yet.
    hides_body: bool,
    /// Something was wrong with the framing of a response.
    doubtful: bool,
    /// The rest of the current body is not searched.
    searched_enough: bool,
}

impl Exchange {
    fn event(
        &mut self,
        event: Event<'_>,
        patterns: Option<&Patterns>,
        out: &mut impl FnMut(Finding<'_>),
    ) {
        match event {
            Event::RequestHead(head) => self.request(&head, out),
            Event::RequestBody(bytes) => {
                if let Some(request) = self.waiting.back_mut() {
                    request.length += bytes.len() as u64;
                }
            }
            Event::RequestEnd | Event::Upgraded => {}
            Event::ResponseHead(head) => self.response(&head, out),
            Event::ResponseBody(bytes) => self.body(bytes, patterns, out),
            Event::ResponseEnd => self.response_complete(true, out),
            Event::NotHttp { http2 } => out(Finding::NotHttp { http2 }),
            Event::Anomaly(Side::Client, anomaly) => {
                out(Finding::Anomaly { from: Direction::ClientToServer, anomaly });
                // What is not HTTP is no bad request.
                if matches!(anomaly, Anomaly::BadHead | Anomaly::HeadTooLarge) {
                    self.is_http(out);
                }
            }
            Event::Anomaly(Side::Server, anomaly) => {
                out(Finding::Anomaly { from: Direction::ServerToClient, anomaly });
                self.hides_body |= anomaly.hides_body();
                self.doubtful = true;
                self.searched_enough = false;
                if self.is_http {
                    self.is_http(out);
                }
            }
        }
    }

    /// The session carries HTTP. A server that has greeted in another protocol was no evasion until
    /// that is known.
    fn is_http(&mut self, out: &mut impl FnMut(Finding<'_>)) {
        self.is_http = true;
        if std::mem::take(&mut self.hides_body) {
            out(Finding::HidesBody);
        }
    }

    fn request(&mut self, head: &RequestHead<'_>, out: &mut impl FnMut(Finding<'_>)) {
        self.is_http(out);
        out(Finding::Request);
        let request = Request::new(self.next_tx, head);
        self.next_tx += 1;
        // Behind a forgotten request everything is, or responses would go to the wrong ones.
        let bytes = self.waiting_bytes + request.text_bytes();
        let room = self.waiting.is_empty()
            || self.waiting.len() < MAX_WAITING && bytes <= MAX_WAITING_BYTES;
        if room && self.forgotten == 0 {
            self.waiting_bytes = bytes;
            self.waiting.push_back(request);
        } else {
            self.forgotten += 1;
            out(Finding::Http(request.transaction(None)));
        }
    }

    fn response(&mut self, head: &ResponseHead<'_>, out: &mut impl FnMut(Finding<'_>)) {
        self.is_http(out);
        if head.interim {
            return;
        }
        // A response that lost its framing never ended.
        self.response_complete(false, out);
        let request = if head.answers_request {
            let request = self.waiting.pop_front();
            match &request {
                Some(request) => self.waiting_bytes -= request.text_bytes(),
                None => self.forgotten = self.forgotten.saturating_sub(1),
            }
            request
        } else {
            None
        };
        // Searched as it is all the same: clients that do not know the coding take the body so.
        if head.content_encoding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity")) {
            out(Finding::EncodedBody);
        }
        self.search.restart();
        self.searched_enough = false;
        self.response = Some(Response {
            request,
            status: head.status,
            version: head.version,
            reason: cut(head.reason, MAX_TEXT).into(),
            content_type: head.content_type.map(text),
            length: 0,
        });
    }

    fn body(
        &mut self,
        bytes: &[u8],
        patterns: Option<&Patterns>,
        out: &mut impl FnMut(Finding<'_>),
    ) {
        let request = match &mut self.response {
            Some(response) => {
                response.length += bytes.len() as u64;
                response.request.as_ref()
            }
            None => None,
        };
        let Some(patterns) = patterns.filter(|_| !self.searched_enough) else {
            return;
        };
        self.search.search(patterns, bytes, |pattern, offset| {
            out(Finding::Match {
                pattern,
                offset,
                tx_id: request.map_or(0, |request| request.tx_id),
                hostname: request.and_then(|request| request.host.as_deref()),
                url: request.map(|request| &*request.url),
            });
        });
    }

    fn response_complete(&mut self, complete: bool, out: &mut impl FnMut(Finding<'_>)) {
        let Some(response) = self.response.take() else {
            return;
        };
        if let Some(request) = &response.request {
            out(Finding::Http(request.transaction(Some((&response, complete)))));
        }
    }
}

struct Request {
    tx_id: u64,
    method: Box<str>,
    url: Box<str>,
    host: Option<Box<str>>,
    user_agent: Option<Box<str>>,
    version: u8,
    length: u64,
}

struct Response {
    request: Option<Request>,
    status: u16,
    version: u8,
    reason: Box<str>,
    content_type: Option<Box<str>>,
    length: u64,
}

impl Request {
    fn new(tx_id: u64, head: &RequestHead<'_>) -> Self {
        Self {
            tx_id,
            method: cut(head.method, MAX_METHOD).into(),
            url: cut(head.target, MAX_URL).into(),
            host: head.host.map(text),
            user_agent: head.user_agent.map(text),
            version: head.version,
            length: 0,
        }
    }

    fn text_bytes(&self) -> usize {
        let optional = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        self.method.len() + self.url.len() + optional(&self.host) + optional(&self.user_agent)
    }

    fn transaction<'a>(&'a self, response: Option<(&'a Response, bool)>) -> HttpTransaction<'a> {
        let (response, complete) = match response {
            Some((response, complete)) => (Some(response), complete),
            None => (None, false),
        };
        HttpTransaction {
            tx_id: self.tx_id,
            hostname: self.host.as_deref(),
            url: &self.url,
            http_user_agent: self.user_agent.as_deref(),
            http_content_type: response.and_then(|response| response.content_type.as_deref()),
            http_method: &self.method,
            protocol: version(self.version),
            request_length: self.length,
            status: response.map(|response| response.status),
            reason: response.map(|response| &*response.reason).filter(|reason| !reason.is_empty()),
            response_protocol: response.map(|response| version(response.version)),
            length: response.map_or(0, |response| response.length),
            complete,
        }
    }
}

fn version(minor: u8) -> &'static str {
    match minor {
        0 => "HTTP/1.0",
        _ => "HTTP/1.1",
    }
}

/// Bytes of a field as text, cut to a limit.
fn text(bytes: &[u8]) -> Box<str> {
    let bytes = &bytes[..bytes.len().min(MAX_TEXT)];
    String::from_utf8_lossy(bytes).into()
}

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use mmtls_inspect::literal::PatternSet;

    use super::*;
    use crate::patterns::PatternAction;

    const CLIENT: Direction = Direction::ClientToServer;
    const SERVER: Direction = Direction::ServerToClient;

    fn show(finding: &Finding<'_>) -> Option<String> {
        Some(match finding {
            Finding::Request => return None,
            Finding::Http(http) => format!(
                "{} {} {} {:?} {} {}",
                http.tx_id, http.http_method, http.url, http.status, http.length, http.complete
            ),
            Finding::Match { pattern, offset, tx_id, url, .. } => {
                format!("match {pattern} at {offset} in {tx_id} {url:?}")
            }
            Finding::EncodedBody => "encoded".into(),
            Finding::NotHttp { http2 } => format!("not http {http2}"),
            Finding::Anomaly { from, anomaly } => format!("{from} {anomaly}"),
            Finding::HidesBody => "hides body".to_owned(),
        })
    }

    fn run(parts: &[(Direction, &[u8])], closed: bool) -> Vec<String> {
        run_within(None, parts, closed)
    }

    fn run_within(limit: Option<u64>, parts: &[(Direction, &[u8])], closed: bool) -> Vec<String> {
        let patterns = Patterns {
            set: PatternSet::from_lines("EVIL\nbad").unwrap(),
            action: PatternAction::Alert,
        };
        let mut inspection = Inspection::default();
        let mut log = Vec::new();
        let mut out = |finding: Finding<'_>| log.extend(show(&finding));
        for (direction, bytes) in parts {
            inspection.limit(limit);
            inspection.bytes(*direction, bytes, Some(&patterns), &mut out);
        }
        inspection.end(closed, &mut out);
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
            ["encoded", "match 0 at 4 in 0 Some(\"/\")", "0 GET / Some(200) 4 true"]
        );
    }

    #[test]
    fn accepts_bodies_that_lost_their_head() {
        assert_eq!(
            run(&[(CLIENT, b"GET / HTTP/1.1\r\n\r\n"), (SERVER, b"no head EVIL")], false),
            [
                "to_client http_bad_head",
                "hides body",
                "match 0 at 12 in 0 None",
                "0 GET / None 0 false"
            ]
        );
        let mut inspection = Inspection::default();
        let mut log = Vec::new();
        let mut out = |finding: Finding<'_>| log.extend(show(&finding));
        inspection.bytes(CLIENT, b"GET / HTTP/1.1\r\n\r\n", None, &mut out);
        inspection.gap(SERVER, &mut out);
        assert_eq!(log, ["to_client http_gap"]);
    }

    #[test]
    fn accepts_skips_in_long_bodies() {
        let mut inspection = Inspection::default();
        let mut log = Vec::new();
        let mut out = |finding: Finding<'_>| log.extend(show(&finding));
        inspection.bytes(CLIENT, b"GET / HTTP/1.1\r\n\r\n", None, &mut out);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789";
        inspection.bytes(SERVER, head, None, &mut out);
        assert_eq!(inspection.searched_enough(11), None);
        assert_eq!(inspection.searched_enough(10), Some(BodyLeft::Length(990)));
        inspection.skip_response(985, &mut out);
        inspection.bytes(SERVER, b"12345", None, &mut out);
        assert_eq!(inspection.searched_enough(0), None);
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
        inspection.bytes(CLIENT, request.as_bytes(), None, &mut |finding| {
            reported += usize::from(matches!(finding, Finding::Http(_)));
        });
        let kept = &inspection.exchange;
        assert!(kept.waiting_bytes <= MAX_WAITING_BYTES && kept.waiting.len() == 8);
        assert_eq!(reported, 12);
        let responses = "HTTP/1.1 204 N\r\n\r\n".repeat(20);
        inspection.bytes(SERVER, responses.as_bytes(), None, &mut |_| {});
        assert_eq!((inspection.exchange.waiting_bytes, inspection.exchange.forgotten), (0, 0));
    }

    #[test]
    fn refuses_other_protocols_and_long_text() {
        assert_eq!(run(&[(CLIENT, b"\0\0")], true), ["not http false"]);
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(text(&[0xff; 600]).chars().count(), 512);
    }
}
